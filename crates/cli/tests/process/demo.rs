//! `maitre demo`: the parts of its JSON that readers rely on.

use http::Request;
use http_body_util::Full;
use serde_json::Value;

use crate::client::{Client, within};
use crate::program::{LOOK_AGAIN, Program, run};

/// The object that a demo of three seconds prints; it must contain no errors.
fn demo(args: &[&str]) -> Value {
    let output = run(&[&["demo", "--seconds", "3", "--headless", "--json"], args].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(&text).unwrap()
}

#[track_caller]
fn check_row(row: &Value, name: &str, engines: usize) {
    assert_eq!(row["name"], name);
    assert_eq!(row["errors"], 0, "{row}");
    assert!(row["requests"].as_u64().unwrap() > 0, "{row}");
    let hit_ratio = row["hit_ratio"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&hit_ratio), "{row}");
    let [p50, p99] = ["ttft_p50_ms", "ttft_p99_ms"].map(|it| row[it].as_f64().unwrap());
    assert!(0.0 < p50 && p50 <= p99, "{row}");
    assert!(row["output_tokens_per_s"].as_f64().unwrap() > 0.0, "{row}");
    let workers = row["workers"].as_array().unwrap();
    assert_eq!(workers.len(), engines, "{row}");
    let requests: u64 = workers.iter().map(|it| it["requests"].as_u64().unwrap()).sum();
    assert_eq!(row["requests"], requests, "{row}");
}

#[test]
fn a_demo_prints_one_object_with_every_field() {
    let report = demo(&["--engines", "2", "--seed", "7"]);
    assert_eq!((&report["seed"], &report["seconds"]), (&7.into(), &3.0.into()));
    assert_eq!(report["routers"], 1);
    let rows = report["strategies"].as_array().unwrap();
    assert_eq!(rows.len(), 1);
    check_row(&rows[0], "least-delay", 2);
}

#[test]
fn strategies_are_run_one_after_the_other_in_the_order_given() {
    let report = demo(&["--strategy", "round-robin,least-work"]);
    let rows = report["strategies"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    check_row(&rows[0], "round-robin", 4);
    check_row(&rows[1], "least-work", 4);
    assert_eq!(rows[0]["sessions"], rows[1]["sessions"], "the same seed brings the same sessions");
}

#[test]
fn several_routers_serve_the_same_engines_and_are_counted_together() {
    let report = demo(&["--routers", "3", "--engines", "2"]);
    assert_eq!(report["routers"], 3);
    check_row(&report["strategies"][0], "least-delay", 2);
}

/// Every page lists all routers, and every router took its turn.
#[tokio::test]
async fn each_router_of_a_demo_has_a_page_that_knows_the_others() {
    let args = ["demo", "--headless", "--seconds", "600", "--rate", "4", "--engines", "2", "--routers", "3"];
    let mut demo = Program::start(&args);
    for (number, before) in [(1, "page "), (2, "page of router-2 "), (3, "page of router-3 ")] {
        let page = demo.until_says(|it| it.strip_prefix(before).map(str::to_owned)).await;
        let cluster = within(until_all_serve(&page)).await;
        assert_eq!((&cluster["via"], &cluster["connected"]), (&"mesh".into(), &true.into()), "{cluster}");
        let here: Vec<&Value> =
            cluster["routers"].as_array().unwrap().iter().filter(|it| it["self"] == true).collect();
        assert_eq!(here.len(), 1, "{cluster}");
        assert_eq!(here[0]["name"], format!("router-{number}"), "{cluster}");
    }
}

/// The cluster in a page's data, once three routers are live and have served requests.
async fn until_all_serve(page: &str) -> Value {
    let (address, key) = page.strip_prefix("http://").unwrap().split_once("/#key=").unwrap();
    let mut client = Client::connect(address.parse().unwrap()).await;
    let mut looks = tokio::time::interval(LOOK_AGAIN);
    loop {
        looks.tick().await;
        let request = Request::get("/admin/v1/overview").header("host", "maitre");
        let request = request.header("authorization", format!("Bearer {key}")).body(Full::default()).unwrap();
        let cluster = client.begin(request).await.rest().await.json()["cluster"].clone();
        let serves = |it: &&Value| it["state"] == "live" && it["served"].as_u64().is_some_and(|it| it > 0);
        if cluster["routers"].as_array().is_some_and(|it| it.iter().filter(serves).count() == 3) {
            return cluster;
        }
    }
}
