//! Whole searches on small generated traffic.

use std::collections::BTreeMap;

use maitre_config as config;
use serde_json::Value;

use super::{Asked, command};

/// Enough traffic for several workers, and fast to replay.
const TRAFFIC: &str = "rag:documents=30,document=1000,qps=8,seconds=15,out=40";

fn asked(args: &[&str]) -> Asked {
    let words = ["tune", "--profile", "a10g-8b"].into_iter().chain(args.iter().copied());
    Asked::read(&command().try_get_matches_from(words).unwrap()).unwrap()
}

#[track_caller]
fn answer(args: &[&str]) -> (Value, bool) {
    let (text, code) = asked(args).answer(true).unwrap();
    let found = code == std::process::ExitCode::SUCCESS;
    (serde_json::from_str(&text).unwrap(), found)
}

#[test]
fn the_fleet_equals_the_one_found_by_counting_up() {
    let target = "ttft_p90<2s";
    let (answer, found) = answer(&["--trace", TRAFFIC, "--workers", "1..24", "--target", target]);
    let least = answer["best"]["workers"].as_u64().unwrap();
    assert!(found && least > 2, "too easy to show anything: {least}");
    let is_met = |workers: u64| {
        let workers = workers.to_string();
        let only = ["--trace", TRAFFIC, "--workers", &workers, "--target", target];
        self::answer(&only).1
    };
    assert_eq!((1..=least).find(|&it| is_met(it)), Some(least));
    assert_eq!(answer["best"]["row"]["strategy"], "least-delay");
    let fewer = &answer["best"]["one_fewer"]["ttft_p90_s"];
    assert!(fewer.as_f64().unwrap() >= 2.0, "{fewer}");
    let elsewhere: Vec<&Value> = answer["best"]["elsewhere"].as_array().unwrap().iter().collect();
    assert_eq!(elsewhere.iter().map(|it| &it["traffic"]).collect::<Vec<_>>(), ["seed 2", "seed 3"]);
}

#[test]
fn a_bad_start_is_improved_and_the_config_says_how() {
    // Every prompt goes where most of it is cached, however busy that worker is: all go to a few workers.
    let bad =
        ["--set", "cache_aware.cache_threshold=0", "--set", "cache_aware.balance_abs_threshold=1000000"];
    let args = [
        "--trace",
        TRAFFIC,
        "--strategy",
        "cache-aware",
        "--workers",
        "1..12",
        "--target",
        "ttft_mean<1500ms",
    ];
    let (answer, found) = answer(&[&args[..], &bad[..]].concat());
    let tuned = &answer["strategies"][0]["tuned"];
    assert!(found && tuned["holds"] == true, "{tuned}");
    assert_eq!(tuned["proofs"].as_array().map(Vec::len), Some(2));
    assert!(answer["strategies"][0]["untuned"]["workers"].is_null(), "the start was not bad: {answer}");
    assert_eq!(tuned["enough"], answer["best"]["workers"]);

    let toml = answer["best"]["config"].as_str().unwrap();
    let path = std::env::temp_dir().join(format!("maitre-tune-{}.toml", std::process::id()));
    std::fs::write(&path, toml).unwrap();
    let config = config::check_file(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(config.settings.brain.strategy.as_str(), "cache-aware");
    for (key, value) in answer["best"]["knobs"].as_object().unwrap() {
        let read: f64 = config::value(&config, key).unwrap().parse().unwrap();
        assert_eq!(Some(read), value.as_f64(), "{key}");
    }
}

#[test]
fn without_a_large_enough_fleet_it_reports_the_nearest() {
    let args = ["--trace", TRAFFIC, "--workers", "1..3", "--target", "p50 TTFT under 1 ms"];
    let (text, code) = asked(&args).answer(false).unwrap();
    assert_ne!(code, std::process::ExitCode::SUCCESS);
    for part in ["No fleet of 1 to 3 × a10g-8b keeps ttft_p50<1ms", "Nearest: 3 × a10g-8b with least-delay"]
    {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    let (answer, found) = answer(&args);
    assert!(!found && answer["best"].is_null() && answer["nearest"]["workers"] == 3);
}

#[test]
fn the_same_command_gives_the_same_bytes_however_many_run_at_once() {
    let args = ["--trace", TRAFFIC, "--strategy", "least-delay,preble,random", "--target", "ttft_mean<3s"];
    let said = |jobs: &str| {
        let words = [&args[..], &["--limit", "60", "--jobs", jobs]].concat();
        asked(&words).answer(false).unwrap().0
    };
    let text = said("1");
    assert_eq!(text, said("3"));
    assert!(text.contains("least-delay has no knobs") && text.contains("Smallest fleet: "), "{text}");
}

#[test]
fn a_recording_is_tuned_on_one_half_and_checked_on_the_other() {
    let path = std::env::temp_dir().join(format!("maitre-tune-{}.jsonl", std::process::id()));
    let trace = crate::trace::load(TRAFFIC, 5).unwrap();
    trace.write(std::fs::File::create(&path).unwrap()).unwrap();
    let file = path.to_str().unwrap();
    let (answer, _) = answer(&["--trace", file, "--strategy", "prefix-hash", "--workers", "6"]);
    std::fs::remove_file(&path).unwrap();
    let mut runs: BTreeMap<&str, usize> = BTreeMap::new();
    for run in answer["tried"].as_array().unwrap() {
        *runs.entry(run["traffic"].as_str().unwrap()).or_default() += 1;
    }
    // The start and the six other values of its one knob; the rest depends on whether there was a gain.
    assert_eq!(runs.get("1st half"), Some(&7), "{runs:?}");
    let gained = !answer["strategies"][0]["tuned"].is_null();
    assert_eq!(runs.get("2nd half").copied().unwrap_or(0), if gained { 2 } else { 0 }, "{runs:?}");
}

#[test]
fn a_fleet_is_sized_as_the_config_serves_it() {
    let args = ["--trace", TRAFFIC, "--strategy", "cache-aware", "--workers", "8", "--runs", "0"];
    let (served, _) = answer(&args);
    assert_eq!(
        (&served["queue"], &served["tried"][0]["row"]["queue"]),
        (&Value::from("on"), &Value::from(true))
    );
    let goal = ["--target", "ttft_mean<60s", "--set", "queue.enabled=false"];
    let (answer, found) = answer(&[&args[..], &goal].concat());
    assert!(found && answer["tried"][0]["row"]["queue"] == false, "{answer}");
    let toml = answer["best"]["config"].as_str().unwrap();
    assert_eq!(toml, "strategy = \"cache-aware\"\nqueue.enabled = false\n");
}

#[test]
fn spans_are_read() {
    let read = |text: &str| super::span(text).map(|it| (it.min, it.max));
    assert_eq!(read("1..64"), Ok((1, 64)));
    assert_eq!(read("7"), Ok((7, 7)));
    for text in ["", "0..4", "5..4", "1..2000", "..4", "1-4"] {
        assert!(read(text).unwrap_err().contains("1..64"), "{text}");
    }
}

/// Long prompts over a fast link, where answers suffer from the prefills between their steps.
const LONG_PROMPTS: &str = "noreuse:prompt=6000,out=120,qps=5,seconds=20";

fn roles(objective: &str, more: &[&str]) -> (Value, String) {
    let args = ["--trace", LONG_PROMPTS, "--workers", "6", "--roles", "--objective", objective];
    let all = ["--profile", "h100x2-32b", "--target", "ttft_p50<30s"];
    let words = [&["tune"], &all[..], &args[..], more].concat();
    let said = |as_json| {
        let asked = Asked::read(&command().try_get_matches_from(&words).unwrap()).unwrap();
        asked.answer(as_json).unwrap().0
    };
    (serde_json::from_str(&said(true)).unwrap(), said(false))
}

#[test]
fn roles_are_found_where_they_pay() {
    let (answer, text) = roles("tpot_mean", &[]);
    let best = &answer["best"]["roles"];
    let count = |it: &str| best[it].as_u64().unwrap();
    assert!(count("prefill") > 0 && count("decode") > 0, "{text}");
    assert_eq!(
        count("prefill") + count("decode") + count("both"),
        answer["best"]["workers"].as_u64().unwrap()
    );
    assert_eq!(answer["strategies"][0]["roles"]["holds"], true);
    assert_eq!(answer["strategies"][0]["roles"]["proofs"].as_array().map(Vec::len), Some(2));
    for part in ["Splitting pays", "  roles: ", "with ?role=prefill"] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
}

#[test]
fn a_fleet_that_gains_nothing_by_roles_gets_none() {
    // A link so slow that every transfer costs more than the prefill.
    let (answer, text) = roles("ttft_mean", &["--kv-link-floor", "9s"]);
    assert!(answer["best"]["roles"].is_null() && text.contains("Do not split this fleet"), "{text}");
    assert!(!answer["best"]["config"].as_str().unwrap().contains("role"));
}

#[test]
fn one_worker_gets_no_role_and_links_need_roles() {
    let (answer, _) = answer(&["--trace", TRAFFIC, "--workers", "1", "--roles", "--target", "ttft_mean<99s"]);
    assert!(answer["strategies"][0]["roles"].is_null());
    let words = ["tune", "--trace", TRAFFIC, "--kv-link-floor", "1s"];
    let error = Asked::read(&command().try_get_matches_from(words).unwrap()).unwrap_err().to_string();
    assert!(error.contains("--roles"), "{error}");
}
