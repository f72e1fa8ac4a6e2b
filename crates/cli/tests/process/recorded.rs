//! From traffic to a checked replay: engines, a router that records, a client, and `maitre replay --check`.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::client::within;
use crate::program::{Engine, Serve, run};

const REQUESTS: u64 = 24;

/// Four prompts' beginnings of five recorded blocks each, far enough apart that few requests meet.
fn trace(name: &str) -> String {
    let row = |index: u64| {
        let prompt = [(1 + index % 4, 640), (10 + index, 64)];
        json!({"timestamp": 120 * index, "output_length": 6, "prompt": prompt, "answer": 1_000 + index})
            .to_string()
    };
    let path = file(name);
    std::fs::write(&path, (0..REQUESTS).map(row).collect::<Vec<_>>().join("\n")).unwrap();
    path
}

fn file(name: &str) -> String {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name).to_str().unwrap().to_owned()
}

/// What a command printed; it must succeed.
async fn printed(args: &[&str]) -> String {
    let args: Vec<String> = args.iter().map(|it| (*it).to_owned()).collect();
    let run = move || run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let output = within(tokio::task::spawn_blocking(run)).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn a_replay_of_recorded_traffic_is_held_against_what_was_observed() {
    let engines = Engine::start_some(2, &["--profile", "a10g-8b"]).await;
    let record = file("recorded.jsonl");
    // A record of an earlier run would be rotated, and read in its place if this one failed.
    drop(std::fs::remove_file(&record));
    // Round robin places alike in both worlds, however busy this machine is.
    let flags = ["--strategy", "round-robin", "--queue-enabled=false", "--record", &record];
    let mut serve = Serve::start(&engines, &flags).await;
    let url = format!("http://{}", serve.listen);
    let trace = trace("recorded-source.jsonl");
    let bench = printed(&["bench", "--url", &url, "--trace", &trace, "--api", "completions", "--json"]).await;
    let bench: Value = serde_json::from_str(&bench).unwrap();
    serve.program.signal("TERM");
    assert!(serve.program.until_ends().await.success());

    let replay = ["replay", "--trace", &record, "--check", "--workers", "2", "--profile", "a10g-8b"];
    let same = ["--strategy", "round-robin", "--queue", "off", "--block-tokens", "16"];
    let all = [&replay[..], &same].concat();
    let report: Value = serde_json::from_str(&printed(&[&all[..], &["--json"]].concat()).await).unwrap();
    let check = &report["check"][0];
    assert_eq!(
        (&check["requests"], &check["observed"], &check["compared"]),
        (&json!(REQUESTS), &json!(REQUESTS), &json!(REQUESTS)),
        "{check}"
    );
    let number =
        |path: &str| check.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path}: {check}"));
    let observed_hits = number("/hit_ratio/observed");
    assert!(observed_hits > 0.5 && observed_hits == bench["rows"][0]["hit_ratio"], "{check}\n{bench}");
    assert!(number("/hit_ratio/difference").abs() < 0.02, "{check}");
    for time in ["ttft_s", "tpot_s", "e2e_s"] {
        for statistic in ["mean", "p50", "p90", "p99"] {
            assert!(number(&format!("/{time}/{statistic}/observed")) > 0.0, "{check}");
        }
    }
    // A busy machine is slower than virtual time, and never this much faster.
    let error = number("/ttft_s/mean/error_ratio");
    assert!((-0.8..0.3).contains(&error), "{check}");

    let text = printed(&all).await;
    for part in ["observed  predicted", "hit ratio", "TTFT p90", "TPOT mean", "E2E p99", "on this traffic"] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
}

#[test]
fn a_trace_without_observed_times_is_refused() {
    let trace = trace("unobserved.jsonl");
    for (args, expected) in [
        (&["--trace", &trace, "--check"][..], "has observed times (`ttft_ms`, `e2e_ms`)"),
        (&["--trace", "rag:seconds=5", "--check"], "record some with maitre serve --record"),
        (&["--trace", &trace, "--check", "--speed", "2"], "cannot be used with"),
    ] {
        let output = run(&[&["replay"], args].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(expected), "{said}");
    }
}
