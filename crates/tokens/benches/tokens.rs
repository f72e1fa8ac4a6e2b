//! How long it takes to turn a prompt into ids: three numbers, each from the fastest of many rounds, because other
//! programs on the machine only add time.
//!
//! `cargo bench -p maitre-tokens` measures the fixture; with `MAITRE_BENCH_MODEL=<folder>` it measures a real model.
//! `cargo test` runs it once with small inputs, so that it keeps working.
#![allow(clippy::print_stdout, reason = "a bench prints its numbers")]
#![allow(clippy::disallowed_methods, reason = "a bench is about the clock, and told what to measure")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use maitre_tokens::chat::Chat;
use maitre_tokens::date::Date;
use maitre_tokens::model::Model;
use maitre_tokens::options::ModelOptions;

fn main() {
    let measuring = std::env::args().any(|it| it == "--bench");
    let (rounds, words) = if measuring { (20, 80_000) } else { (1, 100) };
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chatml");
    let folder = std::env::var("MAITRE_BENCH_MODEL").map_or(fixture, PathBuf::from);
    let start = Instant::now();
    let model = Model::load(&folder, ModelOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    println!("load: {:.0} ms", start.elapsed().as_secs_f64() * 1e3);

    let text = prose(words);
    let fresh = (0..rounds).map(|round| took(|| model.text(&format!("{round} {text}")).is_ok())).min();
    let megabytes = text.len() as f64 / 1e6;
    println!(
        "fresh text: {:.1} MB/s ({:.1} MB a round)",
        megabytes / fresh.unwrap_or_default().as_secs_f64(),
        megabytes
    );

    for (name, turn_words) in [("2 KB", 20), ("40 KB", 400)] {
        let tenth =
            (0..rounds * 10).map(|round| tenth_turn(&model, round, turn_words)).min().unwrap_or_default();
        println!("tenth turn of a {name} conversation: {:.1} µs", tenth.as_secs_f64() * 1e6);
    }
}

/// Runs nine turns unmeasured, then measures the tenth.
fn tenth_turn(model: &Model, round: usize, words: usize) -> Duration {
    let said = |turn: usize| format!("{round} {turn} {}", prose(words));
    let turn =
        |at: usize| format!(r#"{{"role":"{}","content":"{}"}}"#, ["user", "assistant"][at % 2], said(at));
    let messages = |turns: usize| format!("[{}]", (0..turns).map(turn).collect::<Vec<_>>().join(","));
    let today = Date::of_unix_seconds(1_794_700_800);
    assert!(model.chat(&Chat::new(&messages(17), today)).is_ok(), "the bench's own chat renders");
    let tenth = messages(19);
    took(|| model.chat(&Chat::new(&tenth, today)).is_ok())
}

/// Words of many lengths, some repeated often, some hardly ever.
fn prose(words: usize) -> String {
    let mut state = 7_u64;
    let mut text = String::new();
    for at in 0..words {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let picked = (state >> 33) as usize;
        let common = ["the", "router", "of", "answers", "and", "prefix", "in", "which", "tokens", "every"];
        match picked % 4 {
            0 => (0..3 + picked % 7).for_each(|it| text.push(char::from(b'a' + (picked >> it) as u8 % 26))),
            _ => text.push_str(common[picked / 4 % common.len()]),
        }
        text.push_str(if at % 17 == 16 { ". " } else { " " });
    }
    text
}

fn took(run: impl FnOnce() -> bool) -> Duration {
    let start = Instant::now();
    assert!(run(), "the bench's own text has ids");
    start.elapsed()
}
