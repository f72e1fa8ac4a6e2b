//! What the two legs of a request cost beside reading its body: each number the fastest of many rounds, because other load
//! on the machine can only slow a round down.
//!
//! `cargo bench -p maitre-dialect --bench legs` measures; `cargo test` runs it once with a small input, so that it keeps
//! working.
#![allow(clippy::print_stdout, reason = "a bench prints its numbers")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use maitre_base::HandoffStyle;
use maitre_dialect::legs::{Answer, Transfer};
use maitre_dialect::openai;
use maitre_dialect::route::Route;

fn main() {
    let measuring = std::env::args().any(|it| it == "--bench");
    let rounds = if measuring { 2_000 } else { 2 };
    let (body, answer) = (chat(64_000), answer(1_000));
    let [read, prefill, decode] = quietest(
        rounds,
        [
            &|| assert!(openai::parse(Route::Chat, black_box(body.as_bytes())).is_ok()),
            &|| assert!(Transfer::NixlPull.prefill(Route::Chat, black_box(body.as_bytes())).is_ok()),
            &|| {
                let answer = Answer::read(HandoffStyle::NixlPull, black_box(answer.as_bytes()));
                assert!(answer.is_ok_and(|it| it.decode(Route::Chat, black_box(body.as_bytes())).is_ok()));
            },
        ],
    )
    .map(|it| it.as_nanos() as f64 / 1e3);
    println!("read a request of {} bytes: {read:.2} µs", body.len());
    println!("its prefill leg: {prefill:.2} µs, {:.2} of reading", prefill / read);
    println!(
        "an answer of {} bytes and its decode leg: {decode:.2} µs, {:.2} of reading",
        answer.len(),
        decode / read
    );
}

/// A chat body with one message and a line feed, escaped, each 60 bytes.
fn chat(length: usize) -> String {
    let text: String =
        (0..length).map(|at| if at % 60 == 59 { '\n' } else { char::from(b'a' + (at % 23) as u8) }).collect();
    format!(
        r#"{{"model": "m", "messages": [{{"role": "user", "content": {}}}], "stream": true, "stream_options": {{"include_usage": true}}, "max_tokens": 256, "temperature": 0.7}}"#,
        serde_json::Value::from(text)
    )
}

/// The answer of a prefill worker that hands over `blocks` blocks.
fn answer(blocks: usize) -> String {
    let blocks: Vec<String> = (0..blocks).map(|it| it.to_string()).collect();
    format!(
        r#"{{"id":"x","choices":[{{"index":0,"message":{{"role":"assistant","content":"Hi"}},"finish_reason":"length"}}],"usage":{{"prompt_tokens":910,"completion_tokens":1}},"kv_transfer_params":{{"do_remote_prefill":true,"remote_block_ids":[[{}]],"remote_engine_id":"e","remote_host":"10.0.0.5","remote_port":5600}}}}"#,
        blocks.join(",")
    )
}

/// The fastest batch of each, all measured in turn in every round.
#[allow(clippy::disallowed_methods, reason = "a bench is about the clock")]
fn quietest<const N: usize>(rounds: usize, runs: [&dyn Fn(); N]) -> [Duration; N] {
    const BATCH: u32 = 20;
    let mut fastest = [Duration::MAX; N];
    for _ in 0..rounds {
        for (run, fastest) in runs.iter().zip(&mut fastest) {
            let start = Instant::now();
            (0..BATCH).for_each(|_| run());
            *fastest = (*fastest).min(start.elapsed() / BATCH);
        }
    }
    fastest
}
