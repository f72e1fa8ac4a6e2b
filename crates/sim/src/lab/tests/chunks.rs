//! Documents in random order, at engines that reuse them at any position.

use maitre_base::hash;

use super::*;
use crate::lab::ChunkKnowledge;

/// Four of forty documents a prompt, each order as likely as any other.
fn documents() -> Trace {
    let mut trace = traffic(9.0);
    for (number, request) in trace.requests.iter_mut().enumerate() {
        let mut rng = Rng::new(hash::mix(number as u64));
        let mut pieces: Vec<Piece> = Vec::new();
        while pieces.len() < 4 {
            let document = Piece { text: rng.below(40) as u64, tokens: 1_000 };
            if !pieces.contains(&document) {
                pieces.push(document);
            }
        }
        pieces.push(Piece { text: 1_000 + number as u64, tokens: 50 });
        request.prompt = pieces.into();
    }
    trace
}

fn reusing(is_hidden: bool) -> LabConfig {
    LabConfig { chunks: ChunkKnowledge { engines: "0.15".parse().ok(), is_hidden }, ..fleet(4) }
}

#[test]
fn a_router_that_knows_of_chunks_sends_documents_to_their_holders() {
    let trace = documents();
    let (without, hidden, known) =
        (run_whole(&fleet(4), &trace), run_whole(&reusing(true), &trace), run_whole(&reusing(false), &trace));
    let hits = [&without, &hidden, &known].map(|it| hit_ratio(&it.answers));
    assert!(hits[0] < 0.15 && hits[1] > hits[0] + 0.2 && hits[2] > hits[1] + 0.1, "{hits:?}");
    let ttft = [&without, &hidden, &known].map(|it| row(it).ttft_mean_s);
    assert!(ttft[2] < ttft[1] && ttft[1] < ttft[0], "{ttft:?}");
}

#[test]
fn what_is_expected_is_what_engines_find() {
    let outcome = run_whole(&reusing(false), &documents());
    let sum = |of: fn(&AnsweredRequest) -> u64| outcome.answers.iter().map(of).sum::<u64>() as f64;
    let believed = sum(|it| it.believed_tokens.unwrap_or(0)) / sum(|it| it.metrics.cached_tokens.into());
    assert!((0.8..1.05).contains(&believed), "{believed}");
}
