//! `maitre demo`: what those who read its JSON count on.

use serde_json::Value;

use crate::program::run;

/// The one object that a demo of three seconds prints; nothing went wrong in it.
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
