//! Decisions by several threads: look-ups before the lock, writes after it.

use super::*;
use crate::Scratch;
use parking_lot::Mutex;
use proptest::prelude::{Just, Strategy};
use proptest::prop_oneof;

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
fn a_first_token_after_which_look_ups_find_more_is_written_before_the_next_one() {
    let mut harness = Harness::cached(1, Name::LeastDelay, 1);
    let reuse = "0.15".parse().unwrap();
    harness.on(Event::WorkerReusesChunks { worker: WorkerId(0), reuse });
    let (document, opening) = (text(1, 2_000), |it| text(it, 64));
    let first = harness.prompt(&[opening(100), document.clone()].concat(), None);
    let second = harness.prompt(&[opening(101), document].concat(), None);
    let (mut scratch, index) = (Scratch::default(), harness.brain.cache_index().clone());
    let mut decide = |event: Event<'_>| {
        let mut effects = Vec::new();
        if let Event::Arrived(arrival) = &event {
            scratch.prepare(&index, harness.now, arrival);
        }
        harness.brain.decide(harness.now, event, &mut scratch, &mut effects);
        index.write();
        effects
    };
    decide(Event::Arrived(of_prompt(1, &first)));
    decide(Event::FirstToken { request: RequestId(1), worker: WorkerId(0) });
    let held = placement(&decide(Event::Arrived(of_prompt(2, &second)))).held;
    assert!(held > Some(Tokens(1_800)), "{held:?}");
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

#[test]
fn a_thread_that_drives_two_brains_does_not_mix_them() {
    let settings = || BrainSettings { strategy: Name::LeastDelay, ..BrainSettings::default() };
    let mut harnesses = [Harness::with(4, settings()), Harness::with(4, settings())];
    let mut scratch = Scratch::default();
    let mut picks = [vec![], vec![]];
    // The first brain gets four requests for each of the second's.
    for number in 0..40_u64 {
        let which = usize::from(number % 5 == 4);
        let harness = &mut harnesses[which];
        let prompt = harness.prompt(&text(number as u32, 1_600), None);
        let arrival = of_prompt(number, &prompt);
        scratch.prepare(harness.brain.cache_index(), harness.now, &arrival);
        let mut effects = Vec::new();
        harness.brain.decide(harness.now, Event::Arrived(arrival), &mut scratch, &mut effects);
        harness.brain.cache_index().write();
        picks[which].push(placement(&effects).worker.0);
    }
    // Nothing ends: eight requests are two for each of four workers.
    let mut second = picks[1].clone();
    second.sort_unstable();
    assert_eq!(second, [0, 0, 1, 1, 2, 2, 3, 3], "{picks:?}");
}

#[test]
fn a_choice_reads_caches_as_they_were_at_its_look_up() {
    for prepares in [false, true] {
        let settings = BrainSettings { strategy: Name::LeastDelay, ..BrainSettings::default() };
        let mut threads = Threads::new(Harness::with(4, settings), prepares);
        // A thread's first decision makes its mirror.
        threads.arrive(0, (1, &[]));
        let mut check = |text: u32, between: &[OtherStep]| {
            let holds = |it: &Threads| it.harness.brain.cache().known().holds(WorkerId(3));
            let then = holds(&threads);
            between.iter().for_each(|&it| threads.step(1, it));
            assert_ne!(holds(&threads), then, "{between:?}");
            // Now a change between the look-up and the decision.
            let then = holds(&threads);
            threads.arrive(0, (text, &[OtherStep::Clears(3)]));
            threads.harness.brain.collect_records(threads.harness.now);
            let decision = threads.harness.brain.decisions().newest_first().next().unwrap();
            let third = decision.candidates.iter().find(|it| it.candidate.worker == WorkerId(3)).unwrap();
            assert_eq!(third.candidate.holds, then, "{between:?}, prepared: {prepares}");
            third.candidate.held.0
        };
        assert_eq!(check(5, &[OtherStep::Stores(3, 5), OtherStep::Stores(3, 4)]), 1_584);
        assert_eq!(check(0, &[OtherStep::Stores(3, 4)]), 0);
    }
}

/// One thread's steps. `between` are those of another thread, between its preparation and its decision.
#[derive(Clone, Debug)]
enum ThreadStep {
    Arrives { text: u32, between: Vec<OtherStep> },
    Other(OtherStep),
}

#[derive(Clone, Copy, Debug)]
enum OtherStep {
    Arrives(u32),
    Begins(usize),
    Ends(usize),
    Fails(usize),
    Drains(u32, bool),
    Reports(u32, u64),
    Trusts(u32, bool),
    Stores(u32, u32),
    Clears(u32),
    Ticks,
    Joins,
}

fn other_steps() -> impl Strategy<Value = OtherStep> {
    prop_oneof![
        4 => (0..6_u32).prop_map(OtherStep::Arrives),
        4 => any::<usize>().prop_map(OtherStep::Begins),
        4 => any::<usize>().prop_map(OtherStep::Ends),
        1 => any::<usize>().prop_map(OtherStep::Fails),
        1 => (0..5_u32, any::<bool>()).prop_map(|(worker, drains)| OtherStep::Drains(worker, drains)),
        1 => (0..5_u32, 0..20_u64).prop_map(|(worker, waiting)| OtherStep::Reports(worker, waiting)),
        1 => (0..5_u32, any::<bool>()).prop_map(|(worker, is_fresh)| OtherStep::Trusts(worker, is_fresh)),
        1 => (0..5_u32, 0..6_u32).prop_map(|(worker, text)| OtherStep::Stores(worker, text)),
        1 => (0..5_u32).prop_map(OtherStep::Clears),
        1 => Just(OtherStep::Ticks),
        1 => Just(OtherStep::Joins),
    ]
}

fn thread_steps() -> impl Strategy<Value = ThreadStep> {
    let between = prop::collection::vec(other_steps(), 0..4);
    prop_oneof![
        (0..6_u32, between).prop_map(|(text, between)| ThreadStep::Arrives { text, between }),
        other_steps().prop_map(ThreadStep::Other),
    ]
}

/// Two threads of one brain, the first of which prepares its choices or does not.
struct Threads {
    harness: Harness,
    prepares: bool,
    scratch: [Scratch; 2],
    open: Vec<RequestId>,
    next: u64,
    workers: u32,
    effects: Vec<Vec<Effect>>,
}

impl Threads {
    fn new(harness: Harness, prepares: bool) -> Threads {
        let (open, effects) = (Vec::new(), Vec::new());
        Threads { harness, prepares, scratch: Default::default(), open, next: 0, workers: 4, effects }
    }

    fn decide(&mut self, thread: usize, event: Event<'_>) {
        let mut effects = Vec::new();
        self.harness.brain.decide(self.harness.now, event, &mut self.scratch[thread], &mut effects);
        self.scratch[thread].finish();
        self.harness.brain.cache_index().write();
        self.effects.push(effects);
    }

    fn arrive(&mut self, thread: usize, (number, between): (u32, &[OtherStep])) {
        let prompt = self.harness.prompt(&text(number, 1_600), None);
        let request = RequestId(self.next);
        self.next += 1;
        // Some are due soon. Without a queue the brain does not look at that.
        let deadline = (number % 3 == 2).then(|| self.harness.now + Duration::from_secs(60));
        let arrival = Arrival { may_split: false, deadline, ..of_prompt(request.0, &prompt) };
        let (index, now) = (self.harness.brain.cache_index().clone(), self.harness.now);
        match self.prepares {
            true => self.scratch[thread].prepare(&index, now, &arrival),
            false => index.look_up(&prompt, &mut self.scratch[thread].found),
        }
        between.iter().for_each(|&it| self.step(1 - thread, it));
        self.decide(thread, Event::Arrived(arrival));
        self.open.push(request);
    }

    fn step(&mut self, thread: usize, step: OtherStep) {
        let open = |it: usize| self.open.get(it % self.open.len().max(1)).copied();
        let event = match step {
            OtherStep::Arrives(number) => return self.arrive(thread, (number, &[])),
            OtherStep::Begins(it) => {
                let Some(request) = open(it) else { return };
                let Some(worker) = self.harness.brain.worker_of(request) else { return };
                Event::FirstToken { request, worker }
            }
            OtherStep::Ends(it) => {
                let Some(request) = open(it) else { return };
                self.open.retain(|&it| it != request);
                Event::Finished { request, counted: None, pieces: 40 }
            }
            OtherStep::Fails(it) => {
                let Some(request) = open(it) else { return };
                let Some(worker) = self.harness.brain.worker_of(request) else { return };
                Event::Failed { request, worker, failure: Failure::Refused }
            }
            OtherStep::Drains(worker, draining) => {
                Event::WorkerDrained { worker: WorkerId(worker), draining }
            }
            OtherStep::Reports(worker, waiting) => {
                let load = maitre_base::EngineLoad {
                    waiting: Some(waiting),
                    running: Some(4),
                    blocks: Some(400),
                    // Some engines change it when they start again.
                    block_size: Some(if waiting % 5 == 0 { 32 } else { 16 }),
                    ..Default::default()
                };
                Event::LoadReported { worker: WorkerId(worker), load }
            }
            OtherStep::Trusts(worker, is_fresh) => {
                let trust = if is_fresh { Trust::Fresh } else { Trust::None };
                Event::TrustChanged { worker: WorkerId(worker), trust }
            }
            OtherStep::Stores(worker, number) => {
                self.harness.store(worker, &text(number, 1_600), PLAIN);
                return self.harness.brain.cache_index().write();
            }
            OtherStep::Clears(worker) => {
                Event::CacheChanged { worker: WorkerId(worker), event: KvEvent::Cleared }
            }
            OtherStep::Ticks => Event::Tick,
            OtherStep::Joins => {
                let worker = WorkerId(self.workers);
                self.workers += 1;
                self.decide(thread, Event::WorkerJoined { url: &format!("http://127.0.0.1:{}", worker.0) });
                self.decide(thread, Event::Probed { worker, evidence: Evidence::ProbeAnswered });
                let cards = &[Card { name: "llama", parent: None }];
                return self.decide(thread, Event::ModelsReported { worker, cards });
            }
        };
        self.decide(thread, event);
    }

    fn run(mut self, steps: &[ThreadStep]) -> Vec<String> {
        for step in steps {
            self.harness.now = self.harness.now + Duration::from_millis(20);
            match step {
                ThreadStep::Arrives { text, between } => self.arrive(0, (*text, between)),
                ThreadStep::Other(step) => self.step(0, *step),
            }
        }
        self.harness.brain.collect_records(self.harness.now);
        let decisions = self.harness.brain.decisions().newest_first().map(|it| format!("{it:?}"));
        self.effects.iter().map(|it| format!("{it:?}")).chain(decisions).collect()
    }
}

#[test]
fn the_list_of_a_prepared_record_is_written_after_the_lock() {
    let settings = BrainSettings { strategy: Name::LeastDelay, ..BrainSettings::default() };
    let mut harness = Harness::with(4, settings);
    let mut scratch = [Scratch::default(), Scratch::default()];
    let mut decide = |harness: &mut Harness, thread: usize, request: u64| {
        let prompt = harness.prompt(&text(7, 1_600), None);
        let (index, arrival) = (harness.brain.cache_index().clone(), of_prompt(request, &prompt));
        scratch[thread].prepare(&index, harness.now, &arrival);
        harness.brain.decide(harness.now, Event::Arrived(arrival), &mut scratch[thread], &mut Vec::new());
        index.write();
        let listed = |harness: &mut Harness| {
            harness.brain.collect_records(harness.now);
            harness.brain.decisions().of(RequestId(request)).unwrap().candidates.len()
        };
        let before = listed(harness);
        scratch[thread].finish();
        (before, listed(harness))
    };
    // A thread's first decision makes its mirror.
    assert_eq!(decide(&mut harness, 0, 1), (4, 4));
    assert_eq!(decide(&mut harness, 0, 2), (0, 4));
    assert_eq!(decide(&mut harness, 1, 3), (4, 4));
    assert_eq!(decide(&mut harness, 1, 4), (0, 4));
    let seen = |harness: &Harness| harness.brain.hottest(harness.now, 1).first().map(|it| it.seen);
    assert_eq!(seen(&harness), Some(4.0), "by both threads");
    drop(scratch);
    harness.brain.collect_records(harness.now);
    assert_eq!(seen(&harness), Some(4.0), "though both have ended");
}

proptest! {
    /// A choice that was prepared before the lock is the one that is made under it, with the same prices on record.
    #[test]
    fn prepared_choices_are_the_same(
        steps in prop::collection::vec(thread_steps(), 1..60),
        queue in any::<bool>(),
    ) {
        let harness = || {
            let settings = BrainSettings { strategy: Name::LeastDelay, ..BrainSettings::default() };
            if queue { Harness::with_queue(4, settings) } else { Harness::with(4, settings) }
        };
        let [prepared, plain] = [true, false].map(|it| Threads::new(harness(), it).run(&steps));
        let differs = prepared.iter().zip(&plain).find(|(one, other)| one != other);
        prop_assert_eq!(differs, None);
    }
}
