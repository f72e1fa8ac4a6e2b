//! Documents that are reused at any position.

use super::*;

/// Room for two thousand tokens, one step for any prompt.
const ROOMY: Profile = Profile { kv_blocks: 501, batch_tokens_max: 4_000, context_tokens_max: 4_000, ..TINY };

fn reusing(part: &str) -> Engine {
    Engine::new(EngineConfig { chunks: part.parse().ok(), ..EngineConfig::new(ROOMY) })
}

/// A prompt of these documents, of so many tokens each.
fn prompt(documents: &[(u32, u32)]) -> (Job, Vec<u32>) {
    let tokens = documents.iter().flat_map(|&(which, tokens)| job(which, tokens, 1).prompt);
    let prompt = Job { prompt: tokens.collect(), ..job(0, 1, 1) };
    let ends = documents.iter().scan(0, |end, it| {
        *end += it.1;
        Some(*end)
    });
    (prompt, ends.collect())
}

/// Runs a prompt alone. Returns the tokens that were computed, and those that count as cached.
fn play(engine: &mut Engine, documents: &[(u32, u32)]) -> (u64, u32) {
    let (job, ends) = prompt(documents);
    let known = KnownPrompt { segment_ends: &ends, ..KnownPrompt::default() };
    engine.submit_known(Instant::ZERO, job, known).unwrap();
    let millis = engine.begin_step().unwrap().as_millis() as u64;
    let mut outputs = Vec::new();
    engine.finish_step(Instant::ZERO, &mut outputs);
    assert_eq!(engine.stats().used_blocks, 0, "one step, one token");
    (millis, outputs[0].cached_tokens)
}

#[test]
fn documents_in_another_order_are_computed_in_part() {
    let mut engine = reusing("0.25");
    assert_eq!(play(&mut engine, &[(1, 400), (2, 400)]), (800, 0));
    // 800 tokens are loaded and 200 of them computed again.
    assert_eq!(play(&mut engine, &[(2, 400), (1, 400)]), (200, 800));
    assert_eq!(play(&mut engine, &[(3, 100), (2, 400), (4, 10)]), (100 + 100 + 10, 400));
    assert_eq!(engine.stats().counters.hit_tokens, 1_200);
}

#[test]
fn a_cached_prefix_comes_first_and_is_not_computed_again() {
    let mut engine = reusing("0.25");
    play(&mut engine, &[(1, 400), (2, 400)]);
    play(&mut engine, &[(3, 400)]);
    // 800 tokens of prefix, and 300 of the document after them are saved.
    assert_eq!(play(&mut engine, &[(1, 400), (2, 400), (3, 400)]), (100, 1_200));
    // The prefix ends within a document.
    assert_eq!(play(&mut engine, &[(1, 400), (2, 200), (3, 400)]), (100, 1_000));
}

#[test]
fn few_tokens_and_changed_documents_are_computed() {
    let mut engine = reusing("0.25");
    play(&mut engine, &[(1, 255), (2, 400)]);
    assert_eq!(play(&mut engine, &[(9, 4), (1, 255)]), (259, 0));
    assert_eq!(play(&mut engine, &[(8, 4), (2, 399)]), (403, 0));
}

#[test]
fn an_engine_without_the_option_reuses_prefixes_only() {
    let mut engine = engine(ROOMY);
    play(&mut engine, &[(1, 400), (2, 400)]);
    assert_eq!(play(&mut engine, &[(2, 400), (1, 400)]), (800, 0));
}

#[test]
fn the_store_is_as_large_as_the_cache_and_dies_with_the_engine() {
    let mut engine = reusing("0");
    for document in 1..=8 {
        play(&mut engine, &[(document, 400)]);
    }
    // The last five of eight are kept.
    assert_eq!(play(&mut engine, &[(90, 4), (3, 400)]), (404, 0));
    assert_eq!(play(&mut engine, &[(91, 4), (6, 400)]), (4, 400));
    assert!(engine.clear_cache());
    assert_eq!(play(&mut engine, &[(92, 4), (6, 400)]), (404, 0));
    engine.restart();
    assert_eq!(play(&mut engine, &[(93, 4), (6, 400)]), (404, 0));
    assert_eq!(play(&mut engine, &[(94, 4), (6, 400)]), (4, 400), "a restarted engine reuses too");
}

#[test]
fn separators_cut_a_text() {
    let document = |which: u32| format!("{which:04}").repeat(401);
    let tokens = |text: String| {
        let mut prompt = text::Prompt::default();
        prompt.text(&text);
        prompt.into_tokens()
    };
    let mut engine = reusing("0.25");
    let mut play = |documents: &[u32]| {
        let texts: Vec<String> = documents.iter().map(|&it| document(it)).collect();
        let prompt = tokens(texts.join(text::SEPARATOR));
        submit(&mut engine, Job { prompt, ..job(0, 1, 1) });
        run(&mut engine)[0].cached_tokens
    };
    assert_eq!(play(&[1, 2, 3]), 0);
    assert_eq!(play(&[3, 1]), 802);
    assert_eq!(play(&[4, 5]), 0);
}
