//! What is shipped beside the binary speaks of things that the binary has: metrics, labels, flags and paths.

use std::collections::BTreeSet;
use std::path::Path;

use crate::client::{CHAT, chat_stream};
use crate::program::{Engine, Serve};

/// These are on the page once something went wrong, a worker publishes events, files of TLS changed, or another router
/// was heard; nothing of this happens here.
const RARE: [&str; 5] = [
    "maitre_cluster_lag_seconds",
    "maitre_attempts_failed_total",
    "maitre_events_unreadable_total",
    "maitre_tls_handshakes_failed_total",
    "maitre_tls_files_changed_total",
];
/// On the page once a first token came that had been foreseen, which one request may or may not bring.
const LATER: &str = "maitre_forecast_error_ratio";

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every word of the text that begins like a metric of ours.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let is_letter = |it: char| it.is_ascii_alphanumeric() || it == '_';
    let words = text.split(|it: char| !is_letter(it));
    words.filter(|it| it.starts_with("maitre_")).map(str::to_owned).collect()
}

/// Every name that a sample on the page has, or may have once there is one.
fn names_on(page: &str) -> BTreeSet<String> {
    let types = page.lines().filter_map(|it| it.strip_prefix("# TYPE ")?.split_once(' '));
    let of = |(name, kind): (&str, &str)| match kind {
        "counter" => vec![format!("{name}_total")],
        "histogram" => ["_bucket", "_sum", "_count"].map(|it| format!("{name}{it}")).to_vec(),
        _ => vec![name.to_owned()],
    };
    types.flat_map(of).collect()
}

#[tokio::test]
async fn dashboard_and_alerts_use_only_metrics_that_there_are() {
    let engines = Engine::start_some(1, &["--profile", "instant"]).await;
    let serve = Serve::start(&engines, &["--shadow-strategies", "round-robin"]).await;
    assert_eq!(serve.client().await.post(CHAT, &chat_stream(3)).await.status, 200);
    let mut known = names_on(&serve.metrics().await);
    // A cluster's first router has all metrics of a cluster, but for those about each of the others.
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
fn the_unit_names_only_flags_that_there_are() {
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
