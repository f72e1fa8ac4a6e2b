//! How many blocks of 16 tokens a second one core decodes, for three ways in which engines send them. Each
//! number is the fastest of many rounds, because other load on the machine can only slow a round down.
//!
//! `cargo bench -p maitre-dialect` measures; `cargo test` runs it once with a small input, so that it keeps
//! working.
#![allow(clippy::print_stdout, reason = "a bench prints its numbers")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use maitre_base::Rng;
use maitre_dialect::kv::{EventBatch, Groups, decode};

const BLOCK_TOKENS: usize = 16;

/// Blocks in a payload: a step of 16 k tokens.
const BLOCKS: usize = 1024;

fn main() {
    let measuring = std::env::args().any(|it| it == "--bench");
    let rounds = if measuring { 2_000 } else { 2 };
    let mut rng = Rng::new(1);
    for (name, payload, expected) in [
        ("stored, 64 blocks an event, maps", stored(&mut rng, 64), BLOCKS),
        ("stored one by one, each after a removal, maps", churned(&mut rng), 2 * BLOCKS),
        ("stored one by one, arrays", pages(&mut rng), BLOCKS),
    ] {
        let (mut groups, mut batch) = (Groups::default(), EventBatch::default());
        let took = quietest(rounds, || {
            assert_eq!(decode(black_box(&payload), &mut groups, &mut batch), Ok(()));
            black_box(&batch);
        });
        let bytes = payload.len() / expected;
        println!("{name}: {:.1} M blocks/s of {bytes} bytes", expected as f64 / took.as_nanos() as f64 * 1e3);
    }
}

/// As vLLM 0.32 writes them.
fn stored(rng: &mut Rng, blocks: usize) -> Vec<u8> {
    let mut out = batch(BLOCKS / blocks);
    for _ in 0..BLOCKS / blocks {
        add_stored(&mut out, rng, blocks);
    }
    out.push(0);
    out
}

fn churned(rng: &mut Rng) -> Vec<u8> {
    let mut out = batch(2 * BLOCKS);
    for _ in 0..BLOCKS {
        out.push(0x84);
        ["type", "BlockRemoved", "block_hashes"].iter().for_each(|it| add_text(&mut out, it));
        out.push(0x91);
        add_name(&mut out, rng);
        ["medium", "GPU", "group_idx"].iter().for_each(|it| add_text(&mut out, it));
        out.push(0);
        add_stored(&mut out, rng, 1);
    }
    out.push(0);
    out
}

/// As SGLang 0.5.17 writes them.
fn pages(rng: &mut Rng) -> Vec<u8> {
    let mut out = batch(BLOCKS);
    for _ in 0..BLOCKS {
        out.push(0x97);
        add_text(&mut out, "BlockStored");
        out.push(0x91);
        add_name(&mut out, rng);
        add_name(&mut out, rng);
        add_tokens(&mut out, rng, BLOCK_TOKENS);
        out.extend_from_slice(&[BLOCK_TOKENS as u8, 0xc0]);
        add_text(&mut out, "GPU");
    }
    out.push(0);
    out
}

fn batch(events: usize) -> Vec<u8> {
    let mut out = vec![0x93, 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0];
    add_count(&mut out, events);
    out
}

fn add_stored(out: &mut Vec<u8>, rng: &mut Rng, blocks: usize) {
    out.push(0x8b);
    ["type", "BlockStored", "block_hashes"].iter().for_each(|it| add_text(out, it));
    add_count(out, blocks);
    (0..blocks).for_each(|_| add_name(out, rng));
    add_text(out, "parent_block_hash");
    add_name(out, rng);
    add_text(out, "token_ids");
    add_tokens(out, rng, blocks * BLOCK_TOKENS);
    add_text(out, "block_size");
    out.push(BLOCK_TOKENS as u8);
    add_text(out, "lora_id");
    out.push(0xc0);
    ["medium", "GPU", "lora_name"].iter().for_each(|it| add_text(out, it));
    out.push(0xc0);
    add_text(out, "extra_keys");
    add_count(out, blocks);
    out.extend(std::iter::repeat_n(0xc0, blocks));
    add_text(out, "group_idx");
    out.push(0);
    ["kv_cache_spec_kind", "full_attention"].iter().for_each(|it| add_text(out, it));
}

fn add_tokens(out: &mut Vec<u8>, rng: &mut Rng, count: usize) {
    add_count(out, count);
    for _ in 0..count {
        // A vocabulary of 128 k, with small ids more frequent than large ones, as in text.
        let token = rng.below(rng.clone().below(128_000) + 1) as u32;
        match token {
            0..=0x7f => out.push(token as u8),
            0x80..=0xff => out.extend_from_slice(&[0xcc, token as u8]),
            0x100..=0xffff => {
                out.push(0xcd);
                out.extend_from_slice(&(token as u16).to_be_bytes());
            }
            _ => {
                out.push(0xce);
                out.extend_from_slice(&token.to_be_bytes());
            }
        }
    }
}

fn add_name(out: &mut Vec<u8>, rng: &mut Rng) {
    out.push(0xcf);
    out.extend_from_slice(&rng.next_u64().to_be_bytes());
}

fn add_count(out: &mut Vec<u8>, count: usize) {
    out.push(0xdd);
    out.extend_from_slice(&(count as u32).to_be_bytes());
}

fn add_text(out: &mut Vec<u8>, text: &str) {
    out.push(0xa0 | text.len() as u8);
    out.extend_from_slice(text.as_bytes());
}

#[allow(clippy::disallowed_methods, reason = "a bench is about the clock")]
fn quietest(rounds: usize, mut run: impl FnMut()) -> Duration {
    let round = |_| {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    (0..rounds).map(round).min().unwrap_or_default()
}
