//! What watching a stream costs per chunk: four numbers, each the fastest of many rounds.
//!
//! `cargo bench -p maitre-dialect` measures; `cargo test` runs it once with a small input, so that it keeps
//! working.
#![allow(clippy::print_stdout, reason = "a bench prints its numbers")]

use std::hint::black_box;
use std::time::Instant;

use maitre_dialect::continuation::{ContinuableStream, StreamTerms};
use maitre_dialect::route::Route;
use maitre_dialect::sse::Tracker;
use maitre_dialect::usage::Finder;

const CHUNK: &[u8] = b"data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"llama\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
const LAST: &[u8] = b"data: {\"id\":\"chatcmpl-0123456789abcdef\",\"choices\":[],\"usage\":{\"prompt_tokens\":1000,\"total_tokens\":1100,\"completion_tokens\":100,\"prompt_tokens_details\":{\"cached_tokens\":960}}}\n\n";

const KEPT: &[u8] = b"data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"llama\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":[12345]}]}\n\n";
const OPENING: &[u8] = b"data: {\"id\":\"chatcmpl-0123456789abcdef\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"}}],\"prompt_token_ids\":[1]}\n\n";

fn main() {
    let measuring = std::env::args().any(|it| it == "--bench");
    let rounds = if measuring { 2_000 } else { 2 };
    let mut tracker = Tracker::new(Route::Chat);
    report("track one token", rounds, || _ = black_box(tracker.feed(black_box(CHUNK))));
    let mut finder = Finder::new(Route::Chat);
    report("look for usage in one token", rounds, || finder.feed(black_box(CHUNK)));
    report("read usage", rounds, || finder.feed(black_box(LAST)));
    keep_one_token(rounds);
    assert!(black_box(finder.finish()).is_some(), "the bench's own stream reports usage");
}

/// With continuation on: keeps the ids of a token, and hides them from the client.
fn keep_one_token(rounds: usize) {
    let Ok(terms) = StreamTerms::read(Route::Chat, b"{\"messages\":[]}") else { return };
    let mut stream = ContinuableStream::new(terms);
    let mut out = Vec::with_capacity(4096);
    stream.feed(OPENING, &mut out);
    let opened = stream.clone();
    report("keep one token", rounds, || {
        out.clear();
        stream.feed(black_box(KEPT), &mut out);
        if stream.kept_bytes() > 1 << 16 {
            stream = opened.clone();
        }
    });
    assert!(stream.obstacle().is_none(), "the bench's own stream is covered");
}

#[allow(clippy::disallowed_methods, reason = "a bench is about the clock")]
fn report(name: &str, rounds: usize, mut run: impl FnMut()) {
    const BATCH: u32 = 1_000;
    let round = |_| {
        let start = Instant::now();
        (0..BATCH).for_each(|_| run());
        start.elapsed()
    };
    let quietest = (0..rounds).map(round).min().unwrap_or_default();
    println!("{name}: {:.1} ns", quietest.as_nanos() as f64 / f64::from(BATCH));
}
