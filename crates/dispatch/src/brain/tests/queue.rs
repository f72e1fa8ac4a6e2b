//! Which request waits, which goes next and to which worker, as scripts of events and a summary of their effects.

use super::*;
use maitre_queue::settings::{Carrier, Class, Tenant, Terms};
use maitre_queue::{QueueSettings as Queue, wait_queue::OVERTAKEN_MAX};

mod deadline;
mod explain;
mod fleet;
mod law;
mod long_prompts;
mod recall;
mod reservation;
mod tenant;

const INTERACTIVE: ClassId = ClassId(0);
const BATCH: ClassId = ClassId(2);
/// What engines usually take to prefill the thousand tokens of `one`.
const FIRST_TOKEN: Duration = Duration::from_millis(70);

/// One event of a script.
#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Come(Arrival<'a>),
    First(u64),
    End(u64),
    Leave(u64),
    Fail(u64, Failure),
    /// A tick, so many milliseconds later.
    After(u64),
    Gone(u32),
    Drain(u32),
    Resume(u32),
    See(u32, Evidence),
    Report(u32, maitre_base::EngineLoad),
}
use Step::{After, Come, Drain, End, Fail, First, Gone, Leave, Report, Resume, See};

/// A prompt of a thousand tokens, and a response of a hundred.
fn one(request: u64) -> Arrival<'static> {
    Arrival { size: Size::Tokens(1_000), ..arrival(request, Some("llama")) }
}

fn batch(request: u64) -> Arrival<'static> {
    Arrival { class: BATCH, ..one(request) }
}

fn chat(request: u64) -> Arrival<'static> {
    Arrival { class: INTERACTIVE, ..one(request) }
}

impl Harness {
    /// Workers that take one request at a time, picked in turn.
    fn queueing(count: u32, change: impl FnOnce(&mut Queue)) -> Harness {
        let mut queue = Queue { sequences_max: 1, ..Queue::default() };
        change(&mut queue);
        Harness::with_queue(
            count,
            BrainSettings { strategy: Name::RoundRobin, queue, ..BrainSettings::default() },
        )
    }

    fn step(&mut self, step: Step<'_>) -> Vec<Effect> {
        let id = RequestId;
        match step {
            Come(arrival) => self.on(Event::Arrived(arrival)),
            First(request) => self.begin(request),
            End(request) => self.on(Event::Finished { request: id(request), counted: None, pieces: 100 }),
            Leave(request) => self.on(Event::Left { request: id(request) }),
            Fail(request, failure) => self.fail_attempt(request, failure),
            After(millis) => {
                self.now = self.now + Duration::from_millis(millis);
                self.on(Event::Tick)
            }
            Gone(worker) => self.on(Event::WorkerGone { worker: WorkerId(worker) }),
            Drain(worker) => self.on(Event::WorkerDrained { worker: WorkerId(worker), draining: true }),
            Resume(worker) => self.on(Event::WorkerDrained { worker: WorkerId(worker), draining: false }),
            See(worker, evidence) => self.on(Event::Probed { worker: WorkerId(worker), evidence }),
            Report(worker, load) => self.on(Event::LoadReported { worker: WorkerId(worker), load }),
        }
    }

    /// Plays a script and checks the summary of each step's effects.
    #[track_caller]
    fn play(&mut self, script: &[(Step<'_>, &str)]) {
        for (place, (step, expected)) in script.iter().enumerate() {
            let actual = summary(&self.step(*step));
            assert_eq!(actual, *expected, "step {place}: {step:?}");
        }
    }

    /// Plays one step and summarizes its effects.
    fn summary_of(&mut self, step: Step<'_>) -> String {
        summary(&self.step(step))
    }

    /// First tokens come as usual, until the rates count as learned.
    fn learn(mut self) -> Harness {
        for request in 1_000_000..1_000_020 {
            if request == 1_000_019 {
                // All but one are long ago, so that higher classes have to leave nothing for them.
                self.step(After(60_000));
            }
            self.step(Come(one(request)));
            self.now = self.now + FIRST_TOKEN;
            self.step(First(request));
            self.step(Leave(request));
        }
        assert!(self.brain.fleet().model_rates(self.brain.fleet().model("llama")).rates().is_learned());
        self
    }

    /// How many requests wait; all counts must agree.
    #[track_caller]
    fn waiting(&self) -> usize {
        let by_class = (0..3).map(|it| self.brain.waiting(ClassId(it)).requests as usize).sum::<usize>();
        let by_request = self.brain.pending.values().filter(|it| it.is_waiting()).count();
        assert_eq!(
            (by_class, by_request),
            (self.brain.parts.scheduler.waiting(), self.brain.parts.scheduler.waiting())
        );
        self.brain.parts.scheduler.waiting()
    }

    /// Requests and tokens that have reserved this worker.
    fn reserved(&self, worker: u32) -> (u32, u64) {
        let it = self.brain.parts.scheduler.reservations().at(WorkerId(worker), BATCH);
        (it.requests, it.prefill.tokens.0)
    }

    /// Nothing is left of any request.
    #[track_caller]
    fn is_clear(&self) {
        assert_eq!((self.waiting(), self.brain.open(), self.brain.due()), (0, 0, None));
        for worker in self.brain.fleet().workers() {
            let reserved = self.brain.parts.scheduler.reservations().at(worker.id, BATCH);
            assert_eq!((worker.promised.work, reserved), Default::default());
        }
        assert!(self.brain.parts.scheduler.pools().all(|it| it.queue.is_empty()));
    }
}

/// The effects on requests, in a word each.
fn summary(effects: &[Effect]) -> String {
    let word = |effect: &Effect| {
        Some(match effect {
            Effect::Place(placement) => format!("{}@{}", placement.request.0, placement.worker.0),
            Effect::Wait { request } => format!("{} waits", request.0),
            Effect::Recall { request, worker } => format!("{} back from {}", request.0, worker.0),
            Effect::Refuse { request, refusal } => {
                let why = match refusal {
                    Refusal::UnknownModel | Refusal::ModelRequired => "unknown",
                    Refusal::NoWorker => "no worker",
                    Refusal::StateLost => "lost",
                    Refusal::QueueFull { .. } => "full",
                    Refusal::RateLimited { .. } => "limited",
                    Refusal::Deadline { .. } => "late",
                    Refusal::Failed { .. } => "failed",
                };
                format!("{} {why}", request.0)
            }
            _ => return None,
        })
    };
    effects.iter().filter_map(word).collect::<Vec<_>>().join(", ")
}

/// The `Retry-After` of the refused request.
#[track_caller]
fn retry_after(effects: &[Effect]) -> Duration {
    let found = effects.iter().find_map(|it| match *it {
        Effect::Refuse {
            refusal:
                Refusal::QueueFull { retry_after }
                | Refusal::RateLimited { retry_after, .. }
                | Refusal::Deadline { retry_after },
            ..
        } => Some(retry_after),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no request was refused with a Retry-After: {effects:?}"))
}

#[test]
fn below_the_limit_no_request_waits_and_nothing_is_due() {
    // What cannot be taken back is limited to 32,768 tokens at an unknown worker, though no class above has requests.
    let queue = Queue { carrier: Carrier::Gateway, ..Queue::default() };
    let mut harness = Harness::with_queue(2, BrainSettings { queue, ..BrainSettings::default() });
    for request in 0..66 {
        let effects = harness.step(Come(one(request)));
        assert_eq!(placement(&effects).waited, Duration::ZERO);
        assert_eq!((harness.waiting(), harness.brain.due()), (0, None), "{request}");
    }
    assert_eq!(harness.summary_of(Come(one(66))), "66 waits");
    assert_eq!(harness.waiting(), 1);
    assert_eq!(
        harness.brain.due(),
        Some(harness.now + Duration::from_millis(50)),
        "a pulse, while one waits"
    );
}

/// How many requests of a thousand tokens an unknown worker gets before one waits, if no class above has requests.
#[track_caller]
fn check_alone(arrival: fn(u64) -> Arrival<'static>, expected: Option<u64>) {
    let mut harness = Harness::with_queue(1, BrainSettings::default());
    let waits = (0..5_000).find(|&it| harness.summary_of(Come(arrival(it))) != format!("{it}@0"));
    assert_eq!(waits, expected);
}

#[test]
fn a_class_alone_goes_to_its_workers_as_far_as_its_longest_wait_allows() {
    // At 14,000 tokens a second, 15 and 30 seconds of work; but no more than 12.8 requests a second without a first token.
    check_alone(chat, Some(192));
    check_alone(one, Some(384));
    check_alone(batch, None);
    // The first two take 18 seconds, because their tokens attend to those before them.
    check_alone(|it| Arrival { size: Size::Tokens(100_000), ..chat(it) }, Some(2));
}

#[test]
fn what_waits_at_workers_above_the_limit_comes_back_when_a_higher_class_arrives() {
    let mut harness = Harness::with_queue(1, BrainSettings::default());
    for request in 0..100 {
        assert_eq!(harness.summary_of(Come(batch(request))), format!("{request}@0"));
    }
    let effects = harness.summary_of(Come(chat(100)));
    assert!(effects.starts_with("99 back from 0, 98 back from 0, 97 back from 0"), "{effects}");
    assert!(effects.ends_with("100@0"), "{effects}");
    let left = harness.promised()[0].requests;
    assert!((2..12).contains(&left), "{left}: the worker keeps what its limit allows, and the chat");
    assert_eq!(harness.waiting() as u32, 101 - left);
    assert_eq!(harness.summary_of(Come(batch(101))), "101 waits");
}

#[test]
fn what_waits_at_workers_comes_back_when_a_second_tenant_arrives_and_not_again_for_its_next_request() {
    let mut harness = Harness::with_queue(1, BrainSettings::default());
    let of = |tenant, request| Arrival { tenant: TenantId(tenant), ..one(request) };
    for request in 0..100 {
        harness.step(Come(of(1, request)));
    }
    assert!(harness.summary_of(Come(of(2, 100))).starts_with("99 back from 0"));
    assert_eq!(harness.summary_of(Come(of(2, 101))), "101 waits");
}

#[test]
fn a_request_that_was_taken_back_waits_longer_than_its_class_allows() {
    let mut harness = Harness::with_queue(1, BrainSettings::default());
    for request in 0..50 {
        harness.step(Come(one(request)));
    }
    assert!(harness.summary_of(Come(chat(50))).starts_with("49 back from 0"));
    let waiting = harness.waiting();
    assert_eq!(harness.summary_of(Come(one(51))), "51 waits");
    assert_eq!(harness.summary_of(After(61_000)), "51 late", "nothing has moved");
    assert_eq!(harness.waiting(), waiting);
}

#[test]
fn at_the_prefill_limit_the_next_first_token_makes_room() {
    let mut harness = Harness::queueing(1, |it| (it.prefill_tokens_max, it.sequences_max) = (1, 0));
    harness.play(&[
        (Come(one(1)), "1@0"),
        (Come(one(2)), "2 waits"),
        (Come(one(3)), "3 waits"),
        (First(1), "2@0"),
        (End(1), ""),
        (First(2), "3@0"),
        (First(3), ""),
        (End(2), ""),
        (End(3), ""),
    ]);
    harness.is_clear();
}

#[test]
fn at_the_sequence_limit_the_next_end_makes_room() {
    for end in [End(1), Leave(1), Fail(1, Failure::TimedOut)] {
        let mut harness = Harness::queueing(1, |_| ());
        harness.play(&[(Come(one(1)), "1@0"), (Come(one(2)), "2 waits"), (First(1), "")]);
        assert!(harness.summary_of(end).ends_with("2@0"), "{end:?}");
        harness.step(End(2));
        harness.is_clear();
    }
}

#[test]
fn a_placement_reports_the_time_in_the_queue_over_all_attempts() {
    let mut harness = Harness::queueing(2, |_| ());
    harness.play(&[
        (Come(one(1)), "1@0"),
        (Come(one(2)), "2@1"),
        (Come(one(3)), "3 waits"),
        (After(300), ""),
    ]);
    let first = placement(&harness.step(End(1)));
    assert_eq!((first.request.0, first.waited), (3, Duration::from_millis(300)));
    // The time at the worker does not count; the second wait does.
    harness.play(&[(After(1_000), ""), (Fail(3, Failure::Busy), "3 waits"), (After(200), "")]);
    let second = placement(&harness.step(End(2)));
    assert_eq!((second.request.0, second.worker.0, second.attempt), (3, 1, 1));
    assert_eq!(second.waited, Duration::from_millis(500));
}

#[test]
fn one_free_worker_is_enough() {
    let mut harness = Harness::queueing(3, |_| ());
    harness.play(&[
        (Come(one(1)), "1@0"),
        (Come(one(2)), "2@1"),
        (Come(one(3)), "3@2"),
        (Come(one(4)), "4 waits"),
        (Come(one(5)), "5 waits"),
        (End(2), "4@1"),
        (End(3), "5@2"),
        (End(5), ""),
        (Come(one(6)), "6@2"),
    ]);
}

#[test]
fn no_request_waits_while_the_queue_is_off() {
    let mut harness = Harness::queueing(1, |it| it.enabled = false);
    for request in 0..50 {
        assert_eq!(harness.summary_of(Come(one(request))), format!("{request}@0"));
    }
    assert_eq!(harness.brain.due(), None);
}

#[test]
fn a_busy_model_does_not_delay_another() {
    let mut harness = Harness::queueing(2, |_| ());
    harness.on(Event::ModelsReported { worker: WorkerId(1), cards: &[Card { name: "qwen", parent: None }] });
    let qwen = |request| Arrival { model: Some("qwen"), ..one(request) };
    harness.play(&[
        (Come(one(1)), "1@0"),
        (Come(one(2)), "2 waits"),
        (Come(qwen(3)), "3@1"),
        (Come(qwen(4)), "4 waits"),
        (End(3), "4@1"),
        (End(1), "2@0"),
        (End(2), ""),
        (End(4), ""),
    ]);
    harness.is_clear();
}

#[test]
fn a_request_takes_nothing_back_from_workers_of_another_model() {
    let mut harness = Harness::with_queue(2, BrainSettings::default());
    harness.on(Event::ModelsReported { worker: WorkerId(1), cards: &[Card { name: "qwen", parent: None }] });
    for request in 0..100 {
        harness.step(Come(batch(request)));
    }
    let other = Arrival { model: Some("qwen"), ..chat(100) };
    assert_eq!(harness.summary_of(Come(other)), "100@1");
    assert_eq!(harness.promised()[0].requests, 100);
}

/// Where a class above has requests, a prompt that fits no cache now waits. It is overtaken by those that fit, up to the
/// limit.
#[test]
fn a_request_that_does_not_fit_is_overtaken_a_limited_number_of_times() {
    let mut harness = Harness::queueing(1, |it| it.sequences_max = 0);
    let load = maitre_base::EngineLoad { kv_tokens: Some(10_000), ..maitre_base::EngineLoad::default() };
    let big = Arrival { size: Size::Tokens(9_500), ..one(1) };
    harness.play(&[(Report(0, load), ""), (Come(chat(2)), "2@0"), (Come(big), "1 waits"), (After(1), "")]);
    let mut last = 2;
    for request in 3..3 + u64::from(OVERTAKEN_MAX) {
        assert_eq!(harness.summary_of(Come(one(request))), format!("{request}@0"));
        // One request is always there, so the cache is never empty.
        harness.play(&[(First(request), ""), (End(last), "")]);
        last = request;
    }
    harness.play(&[
        (Come(one(100)), "100 waits"),
        // It fits an idle worker only, and then no other fits beside it.
        (End(last), "1@0"),
        (First(1), ""),
        (End(1), "100@0"),
    ]);
}

#[test]
fn a_higher_class_goes_first_though_it_came_later() {
    let mut harness = Harness::queueing(1, |_| ());
    harness.play(&[
        (Come(batch(1)), "1@0"),
        (Come(batch(2)), "2 waits"),
        (Come(one(3)), "3 waits"),
        (Come(chat(4)), "4 waits"),
        (End(1), "4@0"),
        (End(4), "3@0"),
        (End(3), "2@0"),
        (End(2), ""),
    ]);
    harness.is_clear();
}

/// Chats always wait; returns how many go before the one batch job.
fn chats_before_a_job(aging: Duration) -> Option<u64> {
    let mut harness = Harness::queueing(1, |it| it.aging = aging);
    harness.play(&[(Come(chat(0)), "0@0"), (Come(batch(1_000)), "1000 waits"), (Come(chat(1)), "1 waits")]);
    harness.now = harness.now + Duration::from_secs(2);
    (1..40).find(|&turn| {
        harness.step(Come(chat(turn + 1)));
        harness.summary_of(End(turn - 1)) == "1000@0"
    })
}

#[test]
fn an_aged_request_goes_after_ten_times_its_work() {
    assert_eq!(chats_before_a_job(Duration::from_secs(10)), None, "it has not aged");
    let before = chats_before_a_job(Duration::from_secs(1)).unwrap();
    assert!((10..=12).contains(&before), "after {before}");
}

#[test]
fn a_full_class_refuses_with_retry_after() {
    let bounds: [fn(&mut Class); 2] = [|it| it.requests_max = 2, |it| it.tokens_max = 2_500];
    for bound in bounds {
        let mut harness = Harness::queueing(1, |it| bound(&mut it.classes[1]));
        harness.play(&[(Come(one(1)), "1@0"), (Come(one(2)), "2 waits"), (Come(one(3)), "3 waits")]);
        let effects = harness.step(Come(one(4)));
        assert_eq!(summary(&effects), "4 full");
        assert!(retry_after(&effects) >= Duration::from_secs(1));
        // Another class has a limit of its own.
        harness.play(&[(Come(batch(5)), "5 waits"), (Leave(2), ""), (Come(one(6)), "6 waits")]);
    }
}

#[test]
fn the_tenant_with_most_places_in_a_full_class_loses_one_to_another() {
    let mut harness = Harness::queueing(1, |it| it.classes[1].requests_max = 4);
    let of = |tenant, request| Arrival { tenant: TenantId(tenant), ..one(request) };
    harness.step(Come(of(7, 0)));
    for request in 1..=4 {
        assert_eq!(harness.summary_of(Come(of(7, request))), format!("{request} waits"));
    }
    harness.play(&[
        (Come(of(7, 5)), "5 full"),
        (Come(of(8, 6)), "4 full, 6 waits"),
        (Come(of(8, 7)), "3 full, 7 waits"),
        (Come(of(8, 8)), "8 full"),
    ]);
    assert_eq!(harness.waiting(), 4);
    for request in [0, 1, 2, 6, 7] {
        harness.step(Leave(request));
    }
    harness.is_clear();
}

/// Two of four sequences are reserved for chats.
#[test]
fn a_reserved_part_stays_free_for_its_class() {
    let mut harness = Harness::queueing(1, |it| (it.sequences_max, it.classes[0].reserve) = (4, 0.5));
    harness.play(&[
        (Come(batch(1)), "1@0"),
        (Come(batch(2)), "2@0"),
        (Come(batch(3)), "3 waits"),
        (Come(one(4)), "4 waits"),
        (Come(chat(5)), "5@0"),
        (Come(chat(6)), "6@0"),
        (Come(chat(7)), "7 waits"),
        (First(1), ""),
        (End(1), "7@0"),
        (End(5), ""),
        (End(6), ""),
        (End(7), "4@0"),
    ]);
}

#[test]
fn ten_thousand_disconnects_leave_nothing() {
    let mut harness = Harness::queueing(2, |_| ());
    harness.play(&[(Come(one(0)), "0@0"), (Come(one(1)), "1@1")]);
    for request in 2..10_002 {
        harness.step(Come(one(request)));
    }
    assert_eq!(harness.waiting(), 10_000);
    assert_eq!(harness.summary_of(Come(one(20_000))), "20000 full");
    for request in (2..10_002).rev() {
        assert_eq!(harness.summary_of(Leave(request)), "");
    }
    assert_eq!((harness.waiting(), harness.brain.open(), harness.brain.due()), (0, 2, None));
    harness.play(&[(End(0), ""), (End(1), "")]);
    harness.is_clear();
}
