//! Decisions by several threads: look-ups before the lock, writes after it.

use super::*;
use crate::Scratch;
use parking_lot::Mutex;

#[test]
fn a_look_up_before_the_arrival_counts_once() {
    let mut harness = Harness::cached(4, Name::LeastDelay, 1);
    let prompt = harness.prompt(&text(1, 1_600), None);
    let (mut scratch, index) = (Scratch::default(), harness.brain.cache_index().clone());
    index.look_up(&prompt, &mut scratch.found);
    harness.store(2, &text(1, 1_600), PLAIN);
    let mut place = |request: u64| {
        let mut effects = Vec::new();
        let event = Event::Arrived(of_prompt(request, &prompt));
        harness.brain.decide(harness.now, event, &mut scratch, &mut effects);
        harness.brain.cache_index().write();
        placement(&effects).held
    };
    assert_eq!(place(1), Some(Tokens::ZERO), "what was found before the report");
    assert!(place(2) > Some(Tokens::ZERO), "found anew");
}

#[test]
fn writes_wait_and_keep_their_order() {
    let mut harness = Harness::cached(4, Name::LeastDelay, 1);
    let prompt = harness.prompt(&text(1, 1_600), None);
    let mut decide = |event: Event<'_>| {
        harness.brain.decide(harness.now, event, &mut Scratch::default(), &mut Vec::new());
        harness.predicted()
    };
    assert_eq!(decide(Event::Arrived(of_prompt(1, &prompt))), 0);
    assert_eq!(decide(Event::Left { request: RequestId(1) }), 0);
    assert_eq!(
        decide(Event::Arrived(of_prompt(2, &prompt))),
        0,
        "its look-up has written the first two, which cancel out"
    );
    harness.brain.cache_index().write();
    assert_eq!(harness.predicted(), 100, "the second request's, not the first's");
}

#[test]
fn threads_leave_nothing_behind() {
    let harness = Harness::cached(4, Name::LeastDelay, 1);
    let (now, index) = (harness.now, harness.brain.cache_index().clone());
    let prompts: Vec<PromptChain> = (0..40).map(|it| harness.prompt(&text(it % 7, 1_600), None)).collect();
    let brain = Mutex::new(harness.brain);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (brain, index, prompts) = (&brain, &index, &prompts);
            scope.spawn(move || {
                let (mut scratch, mut effects) = (Scratch::default(), Vec::new());
                for (number, prompt) in prompts.iter().enumerate() {
                    let request = thread * 1_000 + number as u64;
                    index.look_up(prompt, &mut scratch.found);
                    let arrived = Event::Arrived(of_prompt(request, prompt));
                    brain.lock().decide(now, arrived, &mut scratch, &mut effects);
                    index.write();
                    let left = Event::Left { request: RequestId(request) };
                    brain.lock().decide(now, left, &mut scratch, &mut effects);
                    index.write();
                }
            });
        }
    });
    let brain = brain.into_inner();
    assert_eq!(brain.open(), 0);
    for worker in brain.fleet().workers() {
        assert_eq!(worker.promised_by_all().work.requests, 0);
        assert_eq!(brain.cache().numbers(worker.id).map(|it| it.predicted_blocks), Some(0));
    }
}
