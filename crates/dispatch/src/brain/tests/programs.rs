//! Calls of programs in one brain: held, released, forced, and never lost.

use super::*;
use crate::programs::{ProgramRule, ProgramSettings};
use maitre_base::EngineLoad;

/// One worker of 212,800 KV tokens: programs are admitted up to 180,880.
fn harness(rule: ProgramRule) -> Harness {
    waiting(rule, Duration::from_hours(9))
}

fn waiting(rule: ProgramRule, wait_max: Duration) -> Harness {
    let programs = ProgramSettings { rule, wait_max };
    let settings = BrainSettings { strategy: Name::LeastDelay, programs, ..BrainSettings::default() };
    let mut harness = Harness::with(1, settings);
    let load = EngineLoad { block_size: Some(16), blocks: Some(13_300), ..EngineLoad::default() };
    harness.on(Event::LoadReported { worker: WorkerId(0), load });
    harness
}

impl Harness {
    /// A call of a program, with a context of so many tokens. Returns where it goes; none if it is held.
    fn call(&mut self, request: u64, program: u64, tokens: u64) -> Option<u32> {
        self.call_of(request, program, tokens, TenantId(0))
    }

    fn call_of(&mut self, request: u64, program: u64, tokens: u64, tenant: TenantId) -> Option<u32> {
        let (program, size) = (Some(program), Size::Tokens(tokens));
        self.come(Arrival { program, size, tenant, ..arrival(request, Some("llama")) })
    }

    fn call_with(&mut self, request: u64, program: u64, tokens: u64, prompt: &PromptChain) -> Option<u32> {
        let (program, size, prompt) = (Some(program), Size::Tokens(tokens), Some(prompt));
        self.come(Arrival { program, size, prompt, ..arrival(request, Some("llama")) })
    }

    fn come(&mut self, arrival: Arrival<'_>) -> Option<u32> {
        let request = arrival.request.0;
        let effects = self.on(Event::Arrived(arrival));
        let is_held =
            effects.iter().any(|it| matches!(it, Effect::Wait { request: held } if held.0 == request));
        (!is_held).then(|| placement(&effects).worker.0)
    }

    /// Its answer is complete. Returns the requests that go now.
    fn reply(&mut self, request: u64, tokens: u64) -> Vec<u64> {
        // Computing its context takes a while, and so does doing it again.
        self.now = self.now + Duration::from_secs(5);
        let begun = self.begin(request);
        let counted = Counted { prompt: Some(tokens), cached: Some(0), answer: Some(10) };
        let event = Event::Finished { request: RequestId(request), counted: Some(counted), pieces: 10 };
        let mut all = gone(&begun);
        all.extend(gone(&self.on(event)));
        all
    }

    fn pass(&mut self, seconds: u64) -> Vec<u64> {
        self.now = self.now + Duration::from_secs(seconds);
        gone(&self.on(Event::Tick))
    }
}

fn gone(effects: &[Effect]) -> Vec<u64> {
    let of = |it: &Effect| match it {
        Effect::Place(placement) => Some(placement.request.0),
        _ => None,
    };
    effects.iter().filter_map(of).collect()
}

/// Four programs of 45,000 tokens fill it.
fn full(rule: ProgramRule) -> Harness {
    let mut harness = harness(rule);
    for number in 1..=4 {
        assert!(harness.call(number, number, 45_000).is_some());
    }
    harness
}

#[test]
fn nothing_is_held_while_memory_suffices() {
    for rule in ProgramRule::ALL {
        let mut harness = full(rule);
        for number in 1..=4 {
            assert!(harness.reply(number, 45_000).is_empty());
            assert!(harness.call(10 + number, number, 45_500).is_some(), "{rule:?}");
        }
    }
}

#[test]
fn a_fifth_program_waits_until_one_gives_way() {
    let mut harness = full(ProgramRule::WorkingSet);
    assert_eq!(harness.call(5, 5, 45_000), None);
    assert_eq!(harness.brain.program_counts(harness.now).held, 1);
    // One thinks: its memory is kept for it for a while.
    assert_eq!(harness.reply(1, 45_000), []);
    assert!(harness.call(11, 1, 45_600).is_some(), "its next call goes at once");
    assert_eq!(harness.reply(11, 45_600), []);
    assert_eq!(harness.pass(1), []);
    // It stays away longer than computing its context again would take.
    assert_eq!(harness.pass(5_000), [5]);
    assert_eq!(harness.call(12, 1, 46_000), None, "its memory is gone");
}

#[test]
fn a_call_that_was_held_to_its_bound_goes_whatever_the_memory() {
    let mut harness = full(ProgramRule::WorkingSet);
    assert_eq!(harness.call(5, 5, 45_000), None);
    assert_eq!(harness.pass(9 * 3_600 - 1), []);
    assert_eq!(harness.pass(1), [5]);
}

#[test]
fn held_calls_go_when_programs_are_switched_off() {
    let mut harness = full(ProgramRule::WorkingSet);
    assert_eq!(harness.call(5, 5, 45_000), None);
    // Nothing changes until then.
    assert_eq!(harness.pass(1), []);
    let settings = BrainSettings { strategy: Name::LeastDelay, ..BrainSettings::default() };
    let mut effects = Vec::new();
    harness.brain.reconfigure(harness.now, settings, &mut effects).unwrap();
    let mut went = gone(&effects);
    went.extend(harness.pass(1));
    assert_eq!(went, [5]);
}

#[test]
fn begun_programs_go_before_new_ones_and_tenants_by_their_memory() {
    let mut harness = harness(ProgramRule::WorkingSet);
    let (one, two) = (TenantId(1), TenantId(2));
    for number in 1..=4 {
        assert!(harness.call_of(number, number, 45_000, one).is_some());
    }
    for number in 1..=2 {
        harness.reply(number, 45_000);
    }
    harness.pass(5_000);
    assert!(harness.call_of(5, 5, 45_000, one).is_some(), "the idle ones give way");
    assert!(harness.call_of(6, 6, 45_000, one).is_some());
    assert_eq!(harness.call_of(7, 7, 45_000, one), None, "new");
    assert_eq!(harness.call_of(8, 1, 45_000, one), None, "begun");
    assert_eq!(harness.call_of(9, 9, 45_000, two), None, "of a tenant that has nothing");
    let mut order = Vec::new();
    for number in 3..=6 {
        order.extend(harness.reply(number, 45_000));
        order.extend(harness.pass(5_000));
    }
    assert_eq!(order, [9, 8, 7]);
}

#[test]
fn clients_that_leave_and_workers_that_go_leave_nothing_behind() {
    let mut harness = full(ProgramRule::WorkingSet);
    assert_eq!(harness.call(5, 5, 45_000), None);
    harness.on(Event::Left { request: RequestId(5) });
    assert_eq!(harness.brain.program_counts(harness.now).held, 0);
    for number in 1..=4 {
        harness.on(Event::Left { request: RequestId(number) });
    }
    let counts = harness.brain.program_counts(harness.now);
    assert_eq!((counts.running, harness.brain.open()), (0, 0));
    harness.on(Event::WorkerGone { worker: WorkerId(0) });
    assert_eq!(harness.brain.program_counts(harness.now).resident_tokens, 0);
}

#[test]
fn a_held_call_with_a_deadline_is_refused_in_time() {
    let programs = ProgramSettings { rule: ProgramRule::WorkingSet, ..ProgramSettings::default() };
    let mut harness = Harness::with_queue(
        1,
        BrainSettings { strategy: Name::LeastDelay, programs, ..BrainSettings::default() },
    );
    let load = EngineLoad { block_size: Some(16), blocks: Some(6_250), ..EngineLoad::default() };
    harness.on(Event::LoadReported { worker: WorkerId(0), load });
    harness.call(1, 1, 80_000);
    let deadline = Some(harness.now + Duration::from_secs(3));
    let (program, size) = (Some(2), Size::Tokens(80_000));
    harness.on(Event::Arrived(Arrival { program, size, deadline, ..arrival(2, Some("llama")) }));
    assert_eq!(harness.brain.program_counts(harness.now).held, 1);
    harness.now = harness.now + Duration::from_secs(4);
    let effects = harness.on(Event::Tick);
    let is_late = |it: &Effect| matches!(it, Effect::Refuse { refusal: Refusal::Deadline { .. }, .. });
    assert!(effects.iter().any(is_late), "{effects:?}");
}

#[test]
fn thunder_agent_pauses_the_smallest_that_acts() {
    let mut harness = harness(ProgramRule::ThunderAgent);
    let workers: Vec<Option<u32>> =
        [(1, 50_000), (2, 48_000), (3, 40_000), (4, 42_000)].map(|it| harness.call(it.0, it.0, it.1)).into();
    assert!(workers.iter().all(Option::is_some), "{workers:?}");
    harness.reply(3, 60_000);
    harness.reply(4, 60_000);
    harness.pass(6);
    // 218,000 tokens: what acts is paused down to 160,000, which one of the two makes.
    let calls = [harness.call(13, 3, 60_000), harness.call(14, 4, 60_000)];
    assert_eq!(calls.iter().filter(|it| it.is_none()).count(), 1, "{calls:?}");
    harness.reply(1, 50_000);
    harness.reply(2, 48_000);
    let released: Vec<u64> = (0..400).flat_map(|_| harness.pass(6)).collect();
    assert!(!released.is_empty(), "paused programs resume");
}

#[test]
fn programs_without_names_are_found_by_their_prefixes() {
    use crate::programs::lineage::Lineage;
    use maitre_index::prefix::PrefixHash;
    let mut lineage = Lineage::default();
    let prompt = |words: &[u64]| PromptChain {
        unit: Unit::Tokens,
        units: words.len() as u64 * 16,
        block: 16,
        chain: words.iter().map(|&it| PrefixHash(it)).collect(),
        chunks: None,
    };
    // 64 blocks are shared by all programs; then each has its own.
    let of = |program: u64, blocks: u64| -> Vec<u64> {
        (0..blocks).map(|it| if it < 64 { it } else { program * 100_000 + it }).collect()
    };
    let mut find = |words: &[u64]| lineage.identify(&prompt(words)).unwrap();
    let (first, second) = (find(&of(1, 200)), find(&of(2, 200)));
    assert_ne!(first, second, "a shared system prompt joins nothing");
    assert_eq!(find(&of(1, 260)), first);
    let mut rewritten = of(1, 300);
    rewritten[255..].iter_mut().for_each(|it| *it += 7);
    assert_eq!(find(&rewritten), first, "the end of the last prompt may change");
    assert_eq!(find(&of(2, 900)), second);
    assert_ne!(find(&of(2, 100)), second, "a branch from the middle is another program");
    assert!(lineage.identify(&prompt(&[1, 2, 3])).is_none(), "too short to say");
}

/// Everything that people see.
fn seen(harness: &Harness) -> crate::programs::view::ProgramsSnapshot {
    harness.brain.programs(harness.now, crate::programs::view::ViewLimits { programs: 3, held: 2 }).unwrap()
}

#[test]
fn a_view_lists_the_largest_programs_and_the_calls_held_longest() {
    use crate::programs::view::ProgramState;
    let mut harness = harness(ProgramRule::WorkingSet);
    for (number, tokens) in [(1, 30_000), (2, 70_000), (3, 60_000), (4, 20_000)] {
        assert!(harness.call(number, number, tokens).is_some());
    }
    harness.reply(3, 60_000);
    for number in 5..=7 {
        assert_eq!(harness.call(number, number, 50_000), None);
        harness.pass(1);
    }
    let view = seen(&harness);
    let listed: Vec<_> = view.programs.iter().map(|it| (it.tokens / 1_000, it.state, it.calls)).collect();
    let [running, idle] = [ProgramState::Running, ProgramState::Idle];
    assert_eq!(listed, [(70, running, 1), (60, idle, 1), (30, running, 1)]);
    let held: Vec<_> = view.held.iter().map(|it| (it.request.0, it.held.as_secs(), it.hold.ahead)).collect();
    assert_eq!(held, [(5, 3, 0), (6, 2, 1)]);
    let [worker] = view.workers.as_slice() else { panic!("{:?}", view.workers) };
    assert_eq!((worker.programs, worker.idle, worker.kv_tokens), (4, 1, Some(212_800)));
    let hold = view.held[0].hold;
    assert_eq!((hold.tokens / 1_000, hold.at_latest.as_secs()), (50, 9 * 3_600 - 3));
    assert_eq!(hold.roomiest, Some((WorkerId(0), worker.tokens as f64 / 212_800.0)));
    let counts = view.counts;
    assert_eq!((counts.known, counts.resident, counts.running), (7, 4, 3));
    assert_eq!((counts.held, counts.held_calls, counts.held_tokens), (3, 3, 3 * hold.tokens));
    assert_eq!((counts.resident_tokens, counts.held_longest), (worker.tokens, Duration::from_secs(3)));
}

#[test]
fn the_end_of_every_hold_is_counted_once_by_its_reason() {
    use crate::programs::view::HoldEnd;
    let mut harness = full(ProgramRule::WorkingSet);
    for number in 5..=7 {
        assert_eq!(harness.call(number, number, 45_000), None);
    }
    harness.pass(10);
    harness.on(Event::Left { request: RequestId(6) });
    harness.reply(1, 45_000);
    assert_eq!(harness.pass(5_000), [5], "memory");
    assert_eq!(harness.pass(9 * 3_600), [7], "waited");
    let view = seen(&harness);
    let counted: Vec<_> = view.tallies.iter().map(|it| (it.0, it.1.calls, it.1.held.as_secs())).collect();
    let waited = 10 + 5 + 5_000 + 9 * 3_600;
    let expected = [
        (HoldEnd::Memory, 1, 10 + 5 + 5_000),
        (HoldEnd::Waited, 1, waited),
        (HoldEnd::Deadline, 0, 0),
        (HoldEnd::Disconnected, 1, 10),
        (HoldEnd::ListFull, 0, 0),
    ];
    assert_eq!(counted, expected);
}

#[test]
fn nothing_is_seen_of_programs_that_are_off() {
    let harness = full(ProgramRule::Off);
    assert!(harness.brain.programs(harness.now, crate::programs::view::ViewLimits::default()).is_none());
}

#[test]
fn a_question_says_whether_the_call_would_be_held_and_changes_nothing() {
    for rule in [ProgramRule::WorkingSet, ProgramRule::ThunderAgent] {
        let mut harness = full(rule);
        let ask = |harness: &mut Harness, program: u64| {
            let (program, size) = (Some(program), Size::Tokens(45_000));
            let arrival = Arrival { program, size, ..arrival(99, Some("llama")) };
            harness.brain.explain(harness.now, &arrival).unwrap()
        };
        let resident = ask(&mut harness, 1);
        assert_eq!((resident.hold, resident.outcome), (None, AttemptOutcome::Asked), "{rule:?}");
        let step = resident.program.unwrap();
        assert_eq!((step.calls, step.last), (2, Some(WorkerId(0))));
        let new = ask(&mut harness, 5);
        assert_eq!(new.outcome, AttemptOutcome::WouldWait, "{rule:?}");
        assert_eq!((new.hold.unwrap().ahead, new.program.unwrap().last), (0, None));
        assert_eq!(harness.call(5, 5, 45_000), None, "as it said");
        assert_eq!(ask(&mut harness, 6).hold.unwrap().ahead, 1, "behind the one that is held");
        assert_eq!(harness.brain.program_counts(harness.now).known, 5);
    }
}

#[test]
fn a_decision_says_where_the_program_was_and_how_long_the_call_was_held() {
    let mut harness = full(ProgramRule::WorkingSet);
    assert_eq!(harness.call(5, 5, 45_000), None);
    harness.reply(1, 45_000);
    assert_eq!(harness.pass(5_000), [5]);
    assert!(harness.call(12, 2, 46_000).is_some());
    let of = |request: u64| harness.brain.decisions().of(RequestId(request)).unwrap().program.unwrap();
    assert_eq!((of(5).last, of(5).held.as_secs(), of(5).calls), (None, 5_005, 1));
    assert_eq!((of(12).last, of(12).held.as_secs(), of(12).calls), (Some(WorkerId(0)), 0, 2));
}

/// Agents of two tenants on one worker that holds four of their contexts, for some hours. A session has twenty calls of ten
/// seconds, five seconds apart; then the agent begins the next. Returns the calls of each tenant after the first hour, and the
/// longest hold.
fn shared(agents: [u64; 2], wait_max: Duration, hours: u64) -> ([u64; 2], Duration) {
    let mut harness = waiting(ProgramRule::WorkingSet, wait_max);
    let start = harness.now;
    let (mut due, mut arrived) = (std::collections::BTreeSet::new(), std::collections::BTreeMap::new());
    let (mut answered, mut longest, mut calls) = ([0; 2], Duration::ZERO, vec![0_u64; 1_000]);
    // The larger tenant comes first, and takes everything.
    (0..agents[1]).for_each(|it| assert!(due.insert((0, 1_000_000 + it))));
    (0..agents[0]).for_each(|it| assert!(due.insert((1, 2_000_000 + it))));
    let mut request = 10_000_000;
    for second in 0..hours * 3_600 {
        harness.now = start + Duration::from_secs(second);
        let mut went = gone(&harness.on(Event::Tick));
        while let Some(&(at, what)) = due.first().filter(|it| it.0 <= second) {
            due.remove(&(at, what));
            if what < 10_000_000 {
                let (tenant, agent) = (what / 1_000_000, what % 1_000_000);
                let session = what + 1_000 * (calls[(agent + 500 * (2 - tenant)) as usize] / 20);
                request += 1;
                arrived.insert(request, (second, what));
                if harness.call_of(request, session, 40_000, TenantId(tenant)).is_some() {
                    went.push(request);
                }
            } else {
                let (_, agent) = arrived.remove(&what).unwrap();
                let tenant = agent / 1_000_000;
                answered[(2 - tenant) as usize] += u64::from(second >= 3_600);
                calls[(agent % 1_000_000 + 500 * (2 - tenant)) as usize] += 1;
                due.insert((second + 5, agent));
                went.extend(gone(&harness.begin(what)));
                let counted = Counted { prompt: Some(40_000), cached: Some(0), answer: Some(10) };
                let end = Event::Finished { request: RequestId(what), counted: Some(counted), pieces: 10 };
                went.extend(gone(&harness.on(end)));
            }
        }
        for request in went {
            longest = longest.max(Duration::from_secs(second - arrived[&request].0));
            due.insert((second + 10, request));
        }
    }
    (answered, longest)
}

#[test]
fn a_tenant_with_ten_times_the_agents_gets_half_of_the_capacity() {
    let ([small, large], _) = shared([4, 40], Duration::from_hours(99), 4);
    let part = small as f64 / (small + large) as f64;
    assert!((0.475..=0.525).contains(&part), "{small} and {large} calls");
    assert!(small + large > 2_000, "{small} and {large} calls");
}

#[test]
fn no_call_is_held_longer_than_its_bound() {
    let bound = Duration::from_mins(9);
    let (answered, longest) = shared([4, 40], bound, 2);
    // The tick that releases it comes every second here.
    assert!(longest <= bound + Duration::from_secs(1), "{longest:?}");
    assert!(longest >= bound && answered[0] > 0, "it is reached: {longest:?}");
}

#[test]
fn more_programs_than_are_kept_are_forgotten_and_leave_no_memory() {
    use crate::programs::PROGRAMS_MAX;
    let mut harness = harness(ProgramRule::WorkingSet);
    for number in 0..PROGRAMS_MAX as u64 + 2_000 {
        harness.now = harness.now + Duration::from_millis(86);
        assert!(harness.call(number, number, 400).is_some(), "{number}");
        harness.begin(number);
        let counted = Counted { prompt: Some(400), cached: Some(0), answer: Some(10) };
        harness.on(Event::Finished { request: RequestId(number), counted: Some(counted), pieces: 10 });
    }
    let counts = harness.brain.program_counts(harness.now);
    assert_eq!((counts.known, counts.held, harness.brain.open()), (PROGRAMS_MAX as u64, 0, 0));
    assert!(counts.resident_tokens <= 202_160, "{counts:?}");
}

#[test]
fn the_longest_wait_of_a_class_does_not_end_a_program() {
    let wait_max = Duration::from_mins(9);
    let programs = ProgramSettings { rule: ProgramRule::WorkingSet, wait_max };
    let settings = BrainSettings { strategy: Name::LeastDelay, programs, ..BrainSettings::default() };
    let class = settings.queue.classes[0].deadline;
    let mut harness = Harness::with_queue(1, settings);
    let load = EngineLoad { block_size: Some(16), blocks: Some(13_300), ..EngineLoad::default() };
    harness.on(Event::LoadReported { worker: WorkerId(0), load });
    for number in 1..=4 {
        harness.call(number, number, 45_000);
    }
    assert_eq!(harness.call(5, 5, 45_000), None);
    let is_refused = |it: &Effect| matches!(it, Effect::Refuse { .. });
    let mut refused = Vec::new();
    for _ in 0..9 * 60 - 1 {
        harness.now = harness.now + Duration::from_secs(1);
        refused.extend(harness.on(Event::Tick).into_iter().filter(is_refused));
    }
    assert!(class.is_some_and(|it| it < wait_max), "{class:?}");
    assert!(refused.is_empty(), "{refused:?}");
    assert_eq!(harness.brain.program_counts(harness.now).held_calls, 1);
}

#[test]
fn a_call_with_two_attempts_ends_once() {
    for second_wins in [false, true] {
        let hedges = crate::settings::HedgeSettings { are_on: true, share: 1.0 };
        let programs = ProgramSettings { rule: ProgramRule::WorkingSet, wait_max: Duration::from_hours(9) };
        let settings =
            BrainSettings { strategy: Name::LeastDelay, programs, hedges, ..BrainSettings::default() };
        let mut harness = Harness::with(2, settings);
        let load = EngineLoad { block_size: Some(16), blocks: Some(13_300), ..EngineLoad::default() };
        for worker in [WorkerId(0), WorkerId(1)] {
            harness.on(Event::LoadReported { worker, load });
        }
        harness.call(1, 7, 30_000);
        let (first, second) = (RequestId(1), RequestId(1 << 40));
        let cause = crate::event::SecondCause::Hedge;
        let effects = harness.on(Event::Second { request: first, number: second, cause });
        assert_eq!(gone(&effects), [second.0]);
        let (winner, loser) = if second_wins { (second, first) } else { (first, second) };
        match second_wins {
            true => drop(harness.on(Event::Outpaced { request: loser, by: winner })),
            false => drop(harness.on(Event::Left { request: loser })),
        }
        assert_eq!(seen(&harness).counts.running, 1, "the call goes on");
        harness.reply(winner.0, 30_000);
        assert_eq!((seen(&harness).counts.running, seen(&harness).counts.resident), (0, 1));
        // A program that was idle twice would be asked for its memory twice.
        harness.call(3, 7, 30_000);
        harness.reply(3, 30_000);
        assert_eq!(seen(&harness).workers.iter().map(|it| it.idle).sum::<u64>(), 1);
    }
}

#[test]
fn a_call_is_not_held_while_there_is_no_worker() {
    let mut harness = full(ProgramRule::WorkingSet);
    harness.on(Event::WorkerGone { worker: WorkerId(0) });
    let effects = harness.on(Event::Arrived(Arrival {
        program: Some(99),
        size: Size::Tokens(60_000),
        ..arrival(99, Some("llama"))
    }));
    assert!(matches!(effects.as_slice(), [Effect::Refuse { .. }]), "{effects:?}");
}

/// Two workers of 212,800 KV tokens; the second serves another model. The first is full.
fn of_two_models(rule: ProgramRule) -> Harness {
    let programs = ProgramSettings { rule, wait_max: Duration::from_hours(9) };
    let settings = BrainSettings { strategy: Name::LeastDelay, programs, ..BrainSettings::default() };
    let mut harness = Harness::with(2, settings);
    let load = EngineLoad { block_size: Some(16), blocks: Some(13_300), ..EngineLoad::default() };
    for worker in [WorkerId(0), WorkerId(1)] {
        harness.on(Event::LoadReported { worker, load });
    }
    harness.on(Event::ModelsReported { worker: WorkerId(1), cards: &[Card { name: "qwen", parent: None }] });
    for number in 1..=4 {
        assert_eq!(harness.call(number, number, 45_000), Some(0), "{rule:?}");
    }
    harness
}

#[test]
fn a_program_gets_no_memory_at_a_worker_of_another_model() {
    for rule in [ProgramRule::WorkingSet, ProgramRule::ThunderAgent, ProgramRule::CacheTtl] {
        let mut harness = of_two_models(rule);
        assert_eq!(harness.call(5, 5, 45_000), None, "{rule:?}: only the other model's worker has memory");
        let explained = harness.brain.held_call(harness.now, RequestId(5)).unwrap();
        assert_eq!(explained.hold.roomiest.map(|it| it.0), Some(WorkerId(0)), "{rule:?}");
        assert_eq!(seen(&harness).workers[1].tokens, 0, "{rule:?}");
    }
}

#[test]
fn held_calls_of_one_model_do_not_keep_those_of_another() {
    let mut harness = of_two_models(ProgramRule::WorkingSet);
    let mut qwen = |request: u64, tokens: u64| {
        let (program, size) = (Some(request), Size::Tokens(tokens));
        gone(&harness.on(Event::Arrived(Arrival { program, size, ..arrival(request, Some("qwen")) })))
    };
    assert_eq!((qwen(20, 170_000), qwen(21, 90_000)), (vec![20], vec![]));
    for number in 30..50 {
        assert_eq!(harness.call(number, number, 45_000), None);
    }
    // All have waited for long; then the other model's worker has memory.
    harness.pass(100);
    harness.on(Event::Left { request: RequestId(20) });
    let went: Vec<u64> = (0..10).flat_map(|_| harness.pass(1_000)).collect();
    assert!(went.contains(&21), "{went:?}");
    assert!(went.iter().all(|&it| it == 21), "{went:?}");
}

#[test]
fn the_calls_of_one_program_go_together() {
    let mut harness = full(ProgramRule::WorkingSet);
    for number in 5..30 {
        assert_eq!(harness.call(number, number, 45_000), None);
    }
    assert_eq!(
        harness.call(100, 29, 45_000),
        None,
        "begun, so it goes before all others; its first call came last"
    );
    for number in 1..=4 {
        harness.reply(number, 45_000);
    }
    let went: Vec<u64> = (0..100).flat_map(|_| harness.pass(60)).take(3).collect();
    assert_eq!(went, [100, 29, 5]);
}

#[test]
fn a_context_that_was_rewritten_gives_its_memory_to_the_call_that_waits() {
    let mut harness = harness(ProgramRule::WorkingSet);
    let prompt = |program: u64, context: u64, blocks: u64| {
        // The first 64 blocks are instructions, which stay.
        let name = |it: u64| if it < 64 { program * 1_000_000 + it } else { context * 1_000_000 + it };
        let chain = (0..blocks).map(|it| maitre_index::prefix::PrefixHash(name(it))).collect();
        PromptChain { unit: Unit::Tokens, units: blocks * 225, block: 225, chain, chunks: None }
    };
    for number in 1..=4 {
        assert!(harness.call_with(number, number, 45_000, &prompt(number, number, 200)).is_some());
    }
    assert!((1..=4).all(|it| harness.reply(it, 45_000).is_empty()));
    assert_eq!(harness.call_with(5, 5, 40_000, &prompt(5, 5, 178)), None);
    assert!(harness.call_with(11, 1, 60_000, &prompt(1, 1, 267)).is_some(), "it extends its context");
    assert!(harness.reply(11, 60_000).is_empty());
    // As long as before, with another text after the instructions.
    assert_eq!(harness.call_with(12, 1, 60_000, &prompt(1, 9, 267)), None);
    let held = harness.brain.program_counts(harness.now).held;
    assert_eq!(held, 1, "what it had is of no use to it, and the other call has it now");
    assert_eq!(harness.reply(5, 40_000), []);
}

#[test]
fn who_has_been_idle_for_long_costs_nothing_to_displace() {
    let mut harness = full(ProgramRule::WorkingSet);
    (1..=4).for_each(|it| assert!(harness.reply(it, 45_000).is_empty()));
    let price = |harness: &Harness, tokens: u64| {
        let parts = &harness.brain.parts;
        let worker = parts.fleet.snapshot_of(harness.now, WorkerId(0)).unwrap();
        let mut seconds = Vec::new();
        parts.programs.displaced_seconds(harness.now, (None, tokens), &[worker], &mut seconds);
        seconds[0]
    };
    assert_eq!(price(&harness, 10_000), 0.0, "it fits beside them");
    assert!(price(&harness, 60_000) > 0.0);
    harness.pass(5_000);
    assert_eq!(price(&harness, 60_000), 0.0, "they give way first");
    // One of them calls again: it counts, whatever it takes from the others does not.
    assert!(harness.call(11, 1, 45_500).is_some());
    assert_eq!(price(&harness, 100_000), 0.0);
    assert!(price(&harness, 200_000) > 0.0);
}
