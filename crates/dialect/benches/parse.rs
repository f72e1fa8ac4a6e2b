//! How long reading a request body takes: three numbers, each the fastest of many rounds, because other load
//! on the machine can only slow a round down.
//!
//! `cargo bench -p maitre-dialect` measures; `cargo test` runs it once with a small input, so that it keeps
//! working.
#![allow(clippy::print_stdout, reason = "a bench prints its numbers")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use maitre_dialect::openai;
use maitre_dialect::route::Route;

fn main() {
    let measuring = std::env::args().any(|it| it == "--bench");
    let rounds = if measuring { 2_000 } else { 2 };
    for (name, body) in [
        ("2 KB chat, three turns", chat(&[500, 600, 600], 80)),
        ("64 KB chat, plain text", chat(&[16_000; 4], usize::MAX)),
        ("64 KB chat, an escape each 60 bytes", chat(&[16_000; 4], 60)),
    ] {
        let took = quietest(rounds, || {
            let request = openai::parse(Route::Chat, black_box(body.as_bytes()));
            assert!(black_box(request).is_ok(), "the bench's own body is valid");
        });
        println!("{name}: {:.2} µs for {} bytes", took.as_nanos() as f64 / 1e3, body.len());
    }
}

/// A chat body with one message per length and a line feed, escaped, each `line` bytes.
fn chat(lengths: &[usize], line: usize) -> String {
    let messages: Vec<String> = lengths
        .iter()
        .map(|&length| {
            let text: String = (0..length)
                .map(|at| if at % line == line - 1 { '\n' } else { char::from(b'a' + (at % 23) as u8) })
                .collect();
            format!(r#"{{"role": "user", "content": {}}}"#, serde_json::Value::from(text))
        })
        .collect();
    format!(
        r#"{{"model": "meta-llama/Llama-3.1-8B-Instruct", "messages": [{}], "stream": true, "stream_options": {{"include_usage": true}}, "max_tokens": 256, "temperature": 0.7, "top_p": 0.95}}"#,
        messages.join(", ")
    )
}

#[allow(clippy::disallowed_methods, reason = "a bench is about the clock")]
fn quietest(rounds: usize, mut run: impl FnMut()) -> Duration {
    const BATCH: u32 = 50;
    let round = |_| {
        let start = Instant::now();
        (0..BATCH).for_each(|_| run());
        start.elapsed() / BATCH
    };
    (0..rounds).map(round).min().unwrap_or_default()
}
