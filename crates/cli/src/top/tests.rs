//! What `top` knows and draws, from the admin API's JSON.

mod screens;
mod streams;
mod updates;

use std::time::Duration;

use serde_json::{Value, json};

use super::model::{RouterSnapshot, TopState};

const SECOND: Duration = Duration::from_secs(1);

/// Two workers and some history.
fn snapshot() -> RouterSnapshot {
    let overview: Value = serde_json::from_str(include_str!("tests/overview.json")).unwrap();
    let history = json!({
        "at_ms": (0..60).map(|it| 1_763_214_940_000_u64 + 1_000 * it).collect::<Vec<_>>(),
        "ttft_p50_ms": (0..60).map(|it| (it % 7 != 3).then_some(40 + 5 * (it % 10))).collect::<Vec<_>>(),
        "requests_per_s": (0..60).map(|it| it % 20).collect::<Vec<_>>(),
    });
    RouterSnapshot {
        overview: serde_json::from_value(overview).unwrap(),
        decisions: serde_json::from_value(json!([decision(2), decision(1)])).unwrap(),
        history: serde_json::from_value(history).unwrap(),
    }
}

/// The same router in a cluster of three, one of which is lost.
fn clustered() -> Value {
    let mut overview: Value = serde_json::from_str(include_str!("tests/overview.json")).unwrap();
    overview["workers"][0]["other_routers"] =
        json!({ "requests": 2, "prefill_tokens": 700, "decode_tokens": 480 });
    let router = |name: &str, lag_ms: Option<f64>| json!({ "name": name, "self": lag_ms.is_none(), "state": "live", "lag_ms": lag_ms, "served": 9, "in_flight": 4, "share": 0.5, "last_seen_ms": 90 });
    overview["cluster"] = json!({
        "via": "mesh", "name": "a", "connected": true, "error": null, "synced": true, "limit_share": 0.667,
        "routers": [router("a", None), router("b", Some(1.2)), { "name": "c", "self": false, "state": "lost", "last_seen_ms": 41_000 }],
    });
    overview
}

fn decision(number: u64) -> Value {
    json!({
        "number": number, "id": format!("req-{number}"), "at_ms": 1_763_214_990_123_u64 + 500 * number,
        "model": "llama-8b", "strategy": "least-delay", "worker": 0, "url": "http://127.0.0.1:9001", "why": "cached",
        "prompt_tokens": 2048, "expected_cached_tokens": 1536, "predicted_ttft_ms": 61.2, "actual_ttft_ms": 58.9,
        "outcome": "answered",
    })
}

fn state() -> TopState {
    TopState::new("http://127.0.0.1:8081", snapshot())
}
