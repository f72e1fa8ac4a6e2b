//! Shadow strategies.

use super::*;

fn watched(strategy: Name, shadows: &[Name]) -> Harness {
    Harness::with(2, BrainSettings { strategy, shadows: shadows.to_vec(), ..BrainSettings::default() })
}

#[test]
fn a_shadow_votes_and_its_score_is_the_sum() {
    let mut harness = watched(Name::RoundRobin, &[Name::LeastWork, Name::RoundRobin]);
    harness.arrive(1, Some("llama")).unwrap();
    harness.arrive(2, Some("llama")).unwrap();
    harness.on(Event::Left { request: RequestId(2) });
    assert_eq!(harness.arrive(3, Some("llama")), Ok(0), "it is the turn of the busy one");
    let it = harness.last();
    let votes: Vec<_> = it.shadows.iter().map(|it| (it.strategy, it.worker.0, it.why)).collect();
    assert_eq!(votes, [(Name::LeastWork, 1, Why::LeastWork), (Name::RoundRobin, 0, Why::Turn)]);
    let ours = it.chosen().unwrap();
    assert!(it.shadows[0].price < ours.price && Some(it.shadows[0].ttft) < ours.ttft, "{it:?}");
    assert_eq!((it.shadows[1].price, Some(it.shadows[1].ttft)), (ours.price, ours.ttft));

    let scores: Vec<_> = harness.brain.shadows().collect();
    assert_eq!((scores[1].decisions, scores[1].differed), (3, 0), "one as in charge agrees");
    assert_eq!(scores[1].price_seconds, scores[1].our_price_seconds);
    assert!(scores[0].differed >= 1 && scores[0].differed < 3, "{scores:?}");
    assert!(scores[0].price_seconds < scores[0].our_price_seconds, "{scores:?}");
    assert!(scores[0].ttft_seconds < scores[0].our_ttft_seconds, "{scores:?}");
}

#[test]
fn a_shadow_sees_caches_that_the_strategy_in_charge_ignores() {
    let text = prompt(4, 200);
    let mut harness = watched(Name::RoundRobin, &[Name::LeastDelay]);
    assert_eq!(harness.brain.plan(Some("llama")).map(|it| it.reader), Some(PromptReader::Shadow));
    let first = placement(&harness.on(Event::Arrived(chat(1, &text))));
    harness.after(50).begin(1);
    let second = placement(&harness.on(Event::Arrived(chat(2, &text))));
    assert_eq!((first.held, second.held), (None, None), "the strategy in charge looked nothing up");
    assert_ne!(first.worker, second.worker);
    assert_eq!(harness.promised()[1].prefill.tokens, Tokens(3_200), "promised as if nothing were known");
    let it = harness.last();
    assert_eq!((it.shadows[0].worker, it.shadows[0].why), (first.worker, Why::Cached));
    let held =
        |worker| it.candidates.iter().find(|it| it.candidate.worker == worker).map(|it| it.candidate.held);
    assert_eq!((held(first.worker), it.held), (Some(Tokens(3_184)), Some(Tokens(0))), "the record knows");
}

#[test]
fn shadows_are_asked_about_a_sample() {
    let settings =
        BrainSettings { shadows: vec![Name::Random], shadow_sample: 0.25, ..BrainSettings::default() };
    let mut harness = Harness::with(3, settings);
    for request in 0..1_000 {
        harness.arrive(request, Some("llama")).unwrap();
        harness.on(Event::Left { request: RequestId(request) });
    }
    let asked = harness.brain.shadows().next().unwrap().decisions;
    assert!((180..320).contains(&asked), "{asked}");
    assert_eq!(harness.brain.decisions().recent(2_000, |it| !it.shadows.is_empty()).len() as u64, asked);
}

#[test]
fn hot_prefixes_are_listed() {
    let mut harness = Harness::with(2, BrainSettings::default());
    for request in 0..20 {
        let text = prompt(request % 2, 100);
        harness.after(100).on(Event::Arrived(chat(request, &text)));
        harness.begin(request);
        harness.on(Event::Left { request: RequestId(request) });
    }
    let hottest = harness.brain.hottest(harness.now, 2);
    assert_eq!(hottest.len(), 2);
    for it in &hottest {
        assert!((8.5..=10.0).contains(&it.seen) && it.holders_total >= 1, "{it:?}");
        // All but the last block, which an engine computes anyway.
        assert_eq!((it.tokens, it.model.is_some()), (Tokens(99 * 16), true), "{it:?}");
    }
}
