//! `/metrics` as scrapers and `promtool check metrics` read it.

use std::collections::{HashMap, HashSet};

use http::Request;
use http_body_util::Full;

use crate::fixture::{Client, TestResponse, chat, engine_settings, fixture_with, get, settings};

const PROMETHEUS: &str =
    "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";

async fn scrape(admin: &mut Client, accept: &str) -> TestResponse {
    let request = Request::builder().uri("/metrics").header("host", "maitre").header("accept", accept);
    admin.ask(request.body(Full::default()).unwrap()).await.unwrap()
}

#[tokio::test]
async fn a_scraper_gets_the_format_that_it_asks_for() {
    let fixture = fixture_with(1, engine_settings(), settings()).await;
    let mut admin = Client::connect(fixture.router.admin()).await;
    let open = scrape(&mut admin, PROMETHEUS).await;
    assert_eq!(open.header("content-type"), "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(open.text().ends_with("\n# EOF\n") && open.text().contains("# TYPE maitre_requests counter"));
    for classic in [scrape(&mut admin, "*/*").await, admin.ask(get("/metrics")).await.unwrap()] {
        assert_eq!(classic.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
        assert_eq!(classic.header("vary"), "accept");
        assert!(!classic.text().contains("# EOF"), "{}", classic.text());
    }
}

/// The rules of `promtool check metrics`, over every family that the router can have.
#[tokio::test]
async fn the_classic_page_is_what_promtool_wants() {
    let mut settings = settings();
    settings.brain.shadows = vec!["random".parse().unwrap()];
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let mut client = fixture.client().await;
    for stream in [true, false] {
        assert_eq!(client.post("/v1/chat/completions", chat(3, stream)).await.status, 200);
    }
    assert_eq!(client.ask(get("/nothing")).await.unwrap().status, 404);
    let mut admin = Client::connect(fixture.router.admin()).await;
    let page = scrape(&mut admin, "text/plain").await.text();
    let faults = faults(&page);
    assert!(faults.is_empty(), "{faults:#?}\n{page}");
}

#[test]
fn the_rules_find_what_is_wrong() {
    let page = "# HELP a_total A.\n# TYPE a_total gauge\na_total 1\n\
                # HELP b B.\n# TYPE b counter\nb 1\nb 1\n\
                # HELP c_ms C.\n# TYPE c_ms gauge\nc_ms 1\n\
                # HELP d D.\n# TYPE d histogram\nd_sum 1\n\
                # HELP e \n# TYPE e gauge\ne 1\n\
                # HELP f_seconds_wait F.\n# TYPE f_seconds_wait gauge\nf_seconds_wait{le=\"1\"} 1\n\
                g_total 1\n";
    let expected = [
        "a_total: a gauge that ends in _total",
        "b: a counter that does not end in _total",
        "b 1: twice",
        "c_ms: ms is no base unit",
        "d: a histogram without d_bucket",
        "d: a histogram without d_count",
        "e: no help",
        "f_seconds_wait: seconds is not at its end",
        "f_seconds_wait{le=\"1\"}: a label of histograms",
        "g_total 1: no help and no type",
    ];
    assert_eq!(faults(page), expected);
}

/// What is wrong with the names, types and units of a page.
fn faults(page: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut kinds: HashMap<&str, &str> = HashMap::new();
    let mut family = "";
    let mut seen = HashSet::new();
    for line in page.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] => {
                if help.trim().is_empty() {
                    faults.push(format!("{name}: no help"));
                }
                family = name;
            }
            ["#", "TYPE", name, kind] => {
                faults.extend((name != family).then(|| format!("{name}: no help")));
                if kinds.insert(name, kind).is_some() {
                    faults.push(format!("{name}: two types"));
                }
                faults.extend(wrong_name(name, kind));
                faults.extend(missing_series(page, name, kind));
            }
            _ => {
                let series = line.rsplit_once(' ').map_or(line, |it| it.0);
                let name = series.split('{').next().unwrap_or(series);
                let of_histogram =
                    || ["_bucket", "_sum", "_count"].iter().find_map(|it| name.strip_suffix(it));
                let kind = kinds.get(name).or_else(|| kinds.get(of_histogram()?));
                if kind.is_none() {
                    faults.push(format!("{line}: no help and no type"));
                }
                if !seen.insert(series) {
                    faults.push(format!("{line}: twice"));
                }
                if series.contains("{le=") && kind != Some(&"histogram") {
                    faults.push(format!("{series}: a label of histograms"));
                }
            }
        }
    }
    faults
}

fn wrong_name(name: &str, kind: &str) -> Vec<String> {
    let mut faults = Vec::new();
    match (kind, name.ends_with("_total")) {
        ("counter", false) => faults.push(format!("{name}: a counter that does not end in _total")),
        ("gauge" | "histogram", true) => faults.push(format!("{name}: a {kind} that ends in _total")),
        ("counter" | "gauge" | "histogram", _) => {}
        _ => faults.push(format!("{name}: {kind} is no type that we have")),
    }
    let parts: Vec<&str> = name.trim_end_matches("_total").split('_').collect();
    const OTHER_UNITS: [&str; 14] = [
        "ms",
        "us",
        "ns",
        "s",
        "sec",
        "milliseconds",
        "microseconds",
        "minutes",
        "hours",
        "kb",
        "mb",
        "gb",
        "percent",
        "kilobytes",
    ];
    let other = parts.iter().find(|it| OTHER_UNITS.contains(it));
    faults.extend(other.map(|it| format!("{name}: {it} is no base unit")));
    let inner = parts.iter().rev().skip(1).find(|it| ["seconds", "bytes", "ratio"].contains(it));
    faults.extend(inner.map(|it| format!("{name}: {it} is not at its end")));
    let kinds = ["counter", "gauge", "histogram", "summary"];
    faults.extend(parts.iter().find(|it| kinds.contains(it)).map(|it| format!("{name}: {it} is a type")));
    let is_plain = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_';
    faults.extend((!name.chars().all(is_plain)).then(|| format!("{name}: not in snake case")));
    faults
}

fn missing_series(page: &str, name: &str, kind: &str) -> Vec<String> {
    if kind != "histogram" {
        return Vec::new();
    }
    let has = |suffix: &str| page.lines().any(|it| it.starts_with(&format!("{name}{suffix}")));
    let absent = ["_bucket", "_sum", "_count"].into_iter().filter(|it| !has(it));
    absent.map(|it| format!("{name}: a histogram without {name}{it}")).collect()
}
