//! Who waits, who goes next and where to, as scripts of events; what each of them tells, in words.

use super::*;
use maitre_queue::settings::{Class, Tenant, Terms};
use maitre_queue::{Settings as Queue, wait_queue::OVERTAKEN_MAX};

mod explain;
mod fleet;
mod late;
mod law;
mod recall;
mod share;
mod warm;

const INTERACTIVE: ClassId = ClassId(0);
const BATCH: ClassId = ClassId(2);
/// What engines usually take to prefill the thousand tokens of `one`.
const FIRST_TOKEN: Duration = Duration::from_millis(70);

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Come(Arrival<'a>),
    First(u64),
    End(u64),
    Leave(u64),
    Fail(u64, Failure),
    /// So many milliseconds later we are told the time.
    After(u64),
    Gone(u32),
    Drain(u32),
    Resume(u32),
    See(u32, Evidence),
    Report(u32, maitre_base::EngineLoad),
}
use Step::{After, Come, Drain, End, Fail, First, Gone, Leave, Report, Resume, See};

/// A thousand tokens, and an answer of a hundred.
fn one(request: u64) -> Arrival<'static> {
    Arrival { size: Size::Tokens(1_000), ..arrival(request, Some("llama")) }
}

fn batch(request: u64) -> Arrival<'static> {
    Arrival { class: BATCH, ..one(request) }
}

fn chat(request: u64) -> Arrival<'static> {
    Arrival { class: INTERACTIVE, ..one(request) }
}

impl Table {
    /// Workers that take turns, each one request at a time.
    fn in_line(count: u32, change: impl FnOnce(&mut Queue)) -> Table {
        let mut queue = Queue { sequences_max: 1, ..Queue::default() };
        change(&mut queue);
        Table::with_line(count, Settings { strategy: Name::RoundRobin, queue, ..Settings::default() })
    }

    fn step(&mut self, step: Step<'_>) -> Vec<Effect> {
        let id = RequestId;
        match step {
            Come(arrival) => self.on(Event::Arrived(arrival)),
            First(request) => self.begin(request),
            End(request) => self.on(Event::Finished { request: id(request), counted: None, pieces: 100 }),
            Leave(request) => self.on(Event::Left { request: id(request) }),
            Fail(request, failure) => self.break_down(request, failure),
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

    /// Plays a script: after each step, what it told.
    #[track_caller]
    fn play(&mut self, script: &[(Step<'_>, &str)]) {
        for (place, (step, expected)) in script.iter().enumerate() {
            let actual = told(&self.step(*step));
            assert_eq!(actual, *expected, "step {place}: {step:?}");
        }
    }

    /// Plays one step and shows what it told.
    fn tell(&mut self, step: Step<'_>) -> String {
        told(&self.step(step))
    }

    /// First tokens come as they usually do, until what is learned counts.
    fn learn(mut self) -> Table {
        for request in 1_000_000..1_000_020 {
            if request == 1_000_019 {
                // All but one long enough ago that nobody has to make room for them.
                self.step(After(60_000));
            }
            self.step(Come(one(request)));
            self.now = self.now + FIRST_TOKEN;
            self.step(First(request));
            self.step(Leave(request));
        }
        assert!(self.brain.fleet().rates().is_learned());
        self
    }

    /// How many wait, by all accounts.
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

    /// Requests and tokens that wait for this worker alone.
    fn awaited(&self, worker: u32) -> (u32, u64) {
        let it = self.brain.parts.scheduler.reservations().at(WorkerId(worker), BATCH);
        (it.requests, it.prefill.0)
    }

    /// Nothing is left of anybody.
    #[track_caller]
    fn is_clear(&self) {
        assert_eq!((self.waiting(), self.brain.open(), self.brain.due()), (0, 0, None));
        for worker in self.brain.fleet().workers() {
            assert_eq!((worker.promised.work, self.awaited(worker.id.0)), (PromisedWork::default(), (0, 0)));
        }
        assert!(self.brain.parts.scheduler.pools().all(|it| it.queue.is_empty()));
    }
}

/// What matters of effects here, in words.
fn told(effects: &[Effect]) -> String {
    let word = |effect: &Effect| {
        Some(match effect {
            Effect::Place(placement) => format!("{}@{}", placement.request.0, placement.worker.0),
            Effect::Wait { request } => format!("{} waits", request.0),
            Effect::Recall { request, worker } => format!("{} back from {}", request.0, worker.0),
            Effect::Refuse { request, refusal } => {
                let why = match refusal {
                    Refusal::UnknownModel | Refusal::ModelRequired => "unknown",
                    Refusal::NoWorker => "nobody",
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

/// When the refused one was told to come again.
#[track_caller]
fn retry_after(effects: &[Effect]) -> Duration {
    let found = effects.iter().find_map(|it| match *it {
        Effect::Refuse {
            refusal:
                Refusal::QueueFull { retry_after }
                | Refusal::RateLimited { retry_after }
                | Refusal::Deadline { retry_after },
            ..
        } => Some(retry_after),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("nobody was told to come again: {effects:?}"))
}

#[test]
fn below_the_knee_nobody_waits_and_nothing_is_due() {
    let mut table = Table::with_line(2, Settings::default());
    // Eight times a thousand tokens are what a worker of which nothing is known may have.
    for request in 0..16 {
        let effects = table.step(Come(one(request)));
        assert_eq!(placement(&effects).waited, Duration::ZERO);
        assert_eq!((table.waiting(), table.brain.due()), (0, None), "{request}");
    }
    assert_eq!(table.tell(Come(one(16))), "16 waits");
    assert_eq!(table.waiting(), 1);
    assert_eq!(table.brain.due(), Some(table.now + Duration::from_millis(50)), "a pulse, while one waits");
}

#[test]
fn at_the_knee_of_prompts_the_next_first_token_makes_room() {
    let mut table = Table::in_line(1, |it| (it.prefill_tokens_max, it.sequences_max) = (1, 0));
    table.play(&[
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
    table.is_clear();
}

#[test]
fn at_the_knee_of_answers_the_next_end_makes_room() {
    for end in [End(1), Leave(1), Fail(1, Failure::TimedOut)] {
        let mut table = Table::in_line(1, |_| ());
        table.play(&[(Come(one(1)), "1@0"), (Come(one(2)), "2 waits"), (First(1), "")]);
        assert!(table.tell(end).ends_with("2@0"), "{end:?}");
        table.step(End(2));
        table.is_clear();
    }
}

#[test]
fn a_seat_tells_how_long_it_was_waited_for_over_all_attempts() {
    let mut table = Table::in_line(2, |_| ());
    table.play(&[(Come(one(1)), "1@0"), (Come(one(2)), "2@1"), (Come(one(3)), "3 waits"), (After(300), "")]);
    let first = placement(&table.step(End(1)));
    assert_eq!((first.request.0, first.waited), (3, Duration::from_millis(300)));
    // What it was there does not count; what it stands in line again does.
    table.play(&[(After(1_000), ""), (Fail(3, Failure::Busy), "3 waits"), (After(200), "")]);
    let second = placement(&table.step(End(2)));
    assert_eq!((second.request.0, second.worker.0, second.attempt), (3, 1, 1));
    assert_eq!(second.waited, Duration::from_millis(500));
}

#[test]
fn one_free_worker_is_enough() {
    let mut table = Table::in_line(3, |_| ());
    table.play(&[
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
fn nobody_waits_where_the_line_is_off() {
    let mut table = Table::in_line(1, |it| it.enabled = false);
    for request in 0..50 {
        assert_eq!(table.tell(Come(one(request))), format!("{request}@0"));
    }
    assert_eq!(table.brain.due(), None);
}

#[test]
fn a_busy_model_keeps_no_other_waiting() {
    let mut table = Table::in_line(2, |_| ());
    table.on(Event::ModelsReported { worker: WorkerId(1), cards: &[Card { name: "qwen", parent: None }] });
    let qwen = |request| Arrival { model: Some("qwen"), ..one(request) };
    table.play(&[
        (Come(one(1)), "1@0"),
        (Come(one(2)), "2 waits"),
        (Come(qwen(3)), "3@1"),
        (Come(qwen(4)), "4 waits"),
        (End(3), "4@1"),
        (End(1), "2@0"),
        (End(2), ""),
        (End(4), ""),
    ]);
    table.is_clear();
}

/// One whose prompt fits no cache now is overtaken by those that do, so often and not more.
#[test]
fn what_does_not_fit_is_overtaken_but_not_for_ever() {
    let mut table = Table::in_line(1, |it| it.sequences_max = 0);
    let load = maitre_base::EngineLoad { kv_tokens: Some(10_000), ..maitre_base::EngineLoad::default() };
    let big = Arrival { size: Size::Tokens(9_500), ..one(1) };
    table.play(&[(Report(0, load), ""), (Come(one(2)), "2@0"), (Come(big), "1 waits"), (After(1), "")]);
    let mut last = 2;
    for request in 3..3 + u64::from(OVERTAKEN_MAX) {
        assert_eq!(table.tell(Come(one(request))), format!("{request}@0"));
        // There is always one, so the cache is never quite empty.
        table.play(&[(First(request), ""), (End(last), "")]);
        last = request;
    }
    table.play(&[
        (Come(one(100)), "100 waits"),
        // What fits beside nobody goes where nobody is, and nobody fits beside it.
        (End(last), "1@0"),
        (First(1), ""),
        (End(1), "100@0"),
    ]);
}

#[test]
fn a_higher_class_goes_first_though_it_came_later() {
    let mut table = Table::in_line(1, |_| ());
    table.play(&[
        (Come(batch(1)), "1@0"),
        (Come(batch(2)), "2 waits"),
        (Come(one(3)), "3 waits"),
        (Come(chat(4)), "4 waits"),
        (End(1), "4@0"),
        (End(4), "3@0"),
        (End(3), "2@0"),
        (End(2), ""),
    ]);
    table.is_clear();
}

/// Chats always wait; how many go before the one batch job does.
fn chats_before_a_job(aging: Duration) -> Option<u64> {
    let mut table = Table::in_line(1, |it| it.aging = aging);
    table.play(&[(Come(chat(0)), "0@0"), (Come(batch(1_000)), "1000 waits"), (Come(chat(1)), "1 waits")]);
    table.now = table.now + Duration::from_secs(2);
    (1..40).find(|&turn| {
        table.step(Come(chat(turn + 1)));
        table.tell(End(turn - 1)) == "1000@0"
    })
}

#[test]
fn whoever_has_aged_goes_after_ten_times_its_work() {
    assert_eq!(chats_before_a_job(Duration::from_secs(10)), None, "it has not aged");
    let before = chats_before_a_job(Duration::from_secs(1)).unwrap();
    assert!((10..=12).contains(&before), "after {before}");
}

#[test]
fn a_class_holds_so_many_and_no_more_and_tells_when_to_come_again() {
    let bounds: [fn(&mut Class); 2] = [|it| it.requests_max = 2, |it| it.tokens_max = 2_500];
    for bound in bounds {
        let mut table = Table::in_line(1, |it| bound(&mut it.classes[1]));
        table.play(&[(Come(one(1)), "1@0"), (Come(one(2)), "2 waits"), (Come(one(3)), "3 waits")]);
        let effects = table.step(Come(one(4)));
        assert_eq!(told(&effects), "4 full");
        assert!(retry_after(&effects) >= Duration::from_secs(1));
        // Another class has places of its own.
        table.play(&[(Come(batch(5)), "5 waits"), (Leave(2), ""), (Come(one(6)), "6 waits")]);
    }
}

#[test]
fn who_holds_most_places_gives_one_up_for_another_tenant() {
    let mut table = Table::in_line(1, |it| it.classes[1].requests_max = 4);
    let of = |tenant, request| Arrival { tenant: TenantId(tenant), ..one(request) };
    table.step(Come(of(7, 0)));
    for request in 1..=4 {
        assert_eq!(table.tell(Come(of(7, request))), format!("{request} waits"));
    }
    table.play(&[
        (Come(of(7, 5)), "5 full"),
        (Come(of(8, 6)), "4 full, 6 waits"),
        (Come(of(8, 7)), "3 full, 7 waits"),
        (Come(of(8, 8)), "8 full"),
    ]);
    assert_eq!(table.waiting(), 4);
    for request in [0, 1, 2, 6, 7] {
        table.step(Leave(request));
    }
    table.is_clear();
}

/// Of four places two are kept for chats.
#[test]
fn what_is_reserved_is_not_taken_though_it_is_idle() {
    let mut table = Table::in_line(1, |it| (it.sequences_max, it.classes[0].reserve) = (4, 0.5));
    table.play(&[
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
fn ten_thousand_who_leave_leave_nothing() {
    let mut table = Table::in_line(2, |_| ());
    table.play(&[(Come(one(0)), "0@0"), (Come(one(1)), "1@1")]);
    for request in 2..10_002 {
        table.step(Come(one(request)));
    }
    assert_eq!(table.waiting(), 10_000);
    assert_eq!(table.tell(Come(one(20_000))), "20000 full");
    for request in (2..10_002).rev() {
        assert_eq!(table.tell(Leave(request)), "");
    }
    assert_eq!((table.waiting(), table.brain.open(), table.brain.due()), (0, 2, None));
    table.play(&[(End(0), ""), (End(1), "")]);
    table.is_clear();
}
