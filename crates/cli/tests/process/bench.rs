//! `maitre bench` as its users run it: its output and its exit code.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::client::{Client, within};
use crate::program::{Engine, run};

/// Forty requests in two tenths of a second: ten prompts, each sent four times.
pub(crate) fn trace(name: &str) -> String {
    let row = |index: u64| {
        let prompt = [(1, 200), (10 + index % 10, 100)];
        json!({"timestamp": 5 * index, "output_length": 8, "prompt": prompt, "answer": 1_000 + index})
            .to_string()
    };
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, (0..40).map(row).collect::<Vec<_>>().join("\n")).unwrap();
    path.to_str().unwrap().to_owned()
}

struct Ran {
    code: Option<i32>,
    printed: String,
    said: String,
}

async fn bench(args: &[&str]) -> Ran {
    let args: Vec<String> = ["bench"].iter().chain(args).map(|it| (*it).to_owned()).collect();
    let run = move || run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let output = within(tokio::task::spawn_blocking(run)).await.unwrap();
    Ran {
        code: output.status.code(),
        printed: String::from_utf8(output.stdout).unwrap(),
        said: String::from_utf8(output.stderr).unwrap(),
    }
}

#[tokio::test]
async fn a_trace_becomes_a_row() {
    let engine = Engine::start(&["--profile", "instant"]).await;
    let trace = trace("bench-row.jsonl");
    let args = ["--url", &engine.url, "--trace", &trace, "--api", "completions"];
    let ran = bench(&[&args[..], &["--json", "--label", "soup"]].concat()).await;
    assert_eq!((ran.code, ran.said.as_str()), (Some(0), ""));
    let report: Value = serde_json::from_str(&ran.printed).unwrap();
    let row = &report["rows"][0];
    assert_eq!(
        (&row["strategy"], &row["requests"], &row["speed"]),
        (&json!("soup"), &json!(40), &json!(1.0))
    );
    assert_eq!((&row["refused"], &row["failed"], &report["errors"]), (&json!(0), &json!(0), &json!({})));
    assert!(row["hit_ratio"].as_f64().unwrap() > 0.5, "{row}");
    let [tokens, seconds] = ["output_tokens_per_s", "duration_s"].map(|it| row[it].as_f64().unwrap());
    assert_eq!((tokens * seconds).round(), 40.0 * 8.0);
    assert_eq!((&report["sent"], &report["hit_ratio_known"]), (&json!(40), &json!(true)));
    let ran = bench(&args).await;
    assert!(
        ran.printed.contains("TTFT") && ran.printed.contains("from when a request was due"),
        "{}",
        ran.printed
    );
}

#[tokio::test]
async fn a_run_without_any_answer_is_a_failure() {
    let engine = Engine::start(&["--profile", "instant"]).await;
    let mut client = Client::connect(engine.url.trim_start_matches("http://").parse().unwrap()).await;
    client.post("/sim/fault", &json!({"kind": "status", "status": 503})).await;
    let ran = bench(&["--url", &engine.url, "--trace", &trace("bench-503.jsonl"), "--json"]).await;
    assert_eq!(ran.code, Some(1), "{}", ran.said);
    assert!(ran.said.contains("no request was answered; status 503: "), "{}", ran.said);
    let report: Value = serde_json::from_str(&ran.printed).unwrap();
    assert_eq!((&report["rows"][0]["refused"], &report["rows"][0]["requests"]), (&json!(40), &json!(0)));
    assert_eq!(report["errors"]["status 503"]["count"], 40);
}

#[tokio::test]
async fn bad_traces_and_endpoints_are_reported_at_once() {
    let trace = trace("bench-bad.jsonl");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("http://{}", taken.local_addr().unwrap());
    drop(taken);
    for (url, trace, code, expected) in [
        ("ftp://host", trace.as_str(), 1, "scheme ftp is not supported"),
        ("nonsense", &trace, 1, "--url"),
        (
            &nobody,
            &trace,
            1,
            &format!("list the models of {nobody} (--model names one instead): connect: Connection refused"),
        ),
        (&nobody, "/nonexistent/trace", 1, "--trace /nonexistent/trace"),
    ] {
        let ran = bench(&["--url", url, "--trace", trace]).await;
        assert_eq!(ran.code, Some(code), "{}", ran.said);
        assert!(ran.said.contains(expected), "{}", ran.said);
    }
    let ran = bench(&["--url", &nobody, "--trace", &trace, "--ttft-target", "5"]).await;
    assert!(ran.code == Some(2) && ran.said.contains("has no unit"), "{}", ran.said);
}
