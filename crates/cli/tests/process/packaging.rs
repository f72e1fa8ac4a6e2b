//! The files shipped with the binary use only metrics, labels, flags and paths that it has.

use std::collections::BTreeSet;
use std::path::Path;

use crate::client::{CHAT, chat_stream};
use crate::program::{Engine, Serve};

/// These appear once an error occurred, a worker publishes events, TLS is on or its files changed, or another router was
/// seen; none of this happens here.
const RARE: [&str; 7] = [
    "maitre_cluster_lag_seconds",
    "maitre_attempts_failed_total",
    "maitre_events_unreadable_total",
    "maitre_tls_handshakes_failed_total",
    "maitre_tls_files_changed_total",
    "maitre_tls_certificate_begins_timestamp_seconds",
    "maitre_tls_certificate_expires_timestamp_seconds",
];
/// Appears once a predicted first token has arrived, which one request may or may not cause.
const LATER: &str = "maitre_forecast_error_ratio";

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every word of the text that begins like one of our metrics.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let is_letter = |it: char| it.is_ascii_alphanumeric() || it == '_';
    let words = text.split(|it: char| !is_letter(it));
    words.filter(|it| it.starts_with("maitre_")).map(str::to_owned).collect()
}

/// Every sample name that the page has, or may have once there is a value. In the classic text a counter's name has its
/// suffix.
fn names_on(page: &str) -> BTreeSet<String> {
    let types = page.lines().filter_map(|it| it.strip_prefix("# TYPE ")?.split_once(' '));
    let of = |(name, kind): (&str, &str)| match kind {
        "histogram" => ["_bucket", "_sum", "_count"].map(|it| format!("{name}{it}")).to_vec(),
        _ => vec![name.to_owned()],
    };
    types.flat_map(of).collect()
}

#[tokio::test]
async fn dashboard_and_alerts_use_only_existing_metrics() {
    let engines = Engine::start_some(1, &["--profile", "instant"]).await;
    let serve = Serve::start(&engines, &["--shadow-strategies", "round-robin"]).await;
    assert_eq!(serve.client().await.post(CHAT, &chat_stream(3)).await.status, 200);
    let mut known = names_on(&serve.metrics().await);
    // A cluster's first router has all cluster metrics except those about each of the others.
    let mesh =
        ["--cluster", "mesh", "--cluster-listen", "127.0.0.1:0", "--cluster-key", "of-one-that-is-alone"];
    known.extend(names_on(&Serve::start(&engines, &mesh).await.metrics().await));
    let documented = metrics_in(&read("docs/metrics.md"));
    assert!(documented.contains(LATER));
    known.insert(LATER.to_owned());
    assert!(RARE.iter().all(|&it| documented.contains(it) && !known.contains(it)), "no longer rare");
    for path in ["packaging/grafana/maitre.json", "packaging/prometheus/alerts.yaml"] {
        let used = metrics_in(&read(path));
        assert!(used.len() > 10, "this test no longer understands {path}: it found only {used:?}");
        let unknown: Vec<&String> =
            used.iter().filter(|it| !known.contains(*it) && !RARE.contains(&it.as_str())).collect();
        assert!(unknown.is_empty(), "{path}: no such metric: {unknown:?}");
    }
}

#[test]
fn the_dashboard_is_json_and_each_panel_has_a_place_and_a_query() {
    let dashboard: serde_json::Value = serde_json::from_str(&read("packaging/grafana/maitre.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|it| it["id"].as_u64().unwrap()).collect();
    assert!(panels.len() > 10 && ids.len() == panels.len(), "an id twice");
    for panel in panels.iter().filter(|it| it["type"] != "row") {
        let queries = panel["targets"].as_array().unwrap();
        assert!(!queries.is_empty() && queries.iter().all(|it| it["expr"].is_string()), "{}", panel["title"]);
    }
}

#[test]
fn the_unit_uses_only_existing_flags() {
    let unit = read("packaging/systemd/maitre.service");
    let starts: Vec<&str> = unit.lines().filter_map(|it| it.strip_prefix("ExecStart")).collect();
    assert_eq!(starts.len(), 2, "{starts:?}");
    for start in starts {
        let words: Vec<&str> = start.split_whitespace().skip(1).collect();
        let asked = maitre_cli::commands::command().try_get_matches_from([&["maitre"], &words[..]].concat());
        assert!(asked.is_ok(), "{start}: {}", asked.unwrap_err());
    }
    assert!(unit.contains("\nType=notify\n"), "serve tells systemd when it is ready");
    assert!(
        unit.contains("\nExecReload=/bin/kill -HUP $MAINPID\n"),
        "serve reads its settings again on SIGHUP"
    );
}
