//! Laws of the queue: every request ends exactly once, and no worker id is reused too soon or too late.

use super::*;
use maitre_base::EngineLoad;
use proptest::prelude::ProptestConfig;
use std::collections::{BTreeMap, BTreeSet};

/// Where a request is, by its events and effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// It arrived or failed, and no effect has come yet.
    Asking,
    Waiting {
        recalled: bool,
    },
    Placed {
        worker: u32,
        begun: bool,
    },
    /// Its recall came too late.
    Answered,
}

/// One random event: its kind, its target, and a number for the rest.
type Dice = (u8, prop::sample::Index, u64);

struct World {
    harness: Harness,
    lives: BTreeMap<u64, Life>,
    arrivals: u64,
    /// Workers at which each request was ever placed.
    met: BTreeMap<u64, BTreeSet<WorkerId>>,
    /// The last worker that joined.
    joined: WorkerId,
    /// Workers that have left, and when, until their ids are reused.
    left: BTreeMap<WorkerId, Instant>,
    /// For addresses that are new.
    addresses: u32,
}

impl World {
    fn new(strategy: Name, recall: bool, quarantine: Duration) -> World {
        let mut queue = Queue { sequences_max: 2, prefill_tokens_max: 3_000, recall, ..Queue::default() };
        queue.aging = Duration::from_millis(200);
        let bounds = [(Some(300), 0.3), (Some(1_000), 0.0), (None, 0.0)];
        for (class, (millis, reserve)) in queue.classes.iter_mut().zip(bounds) {
            (class.requests_max, class.tokens_max, class.reserve) = (5, 20_000, reserve);
            class.deadline = millis.map(Duration::from_millis);
        }
        let terms = Terms { requests_per_minute: Some(20), weight: 2.0, ..Terms::default() };
        queue.tenants.insert(TenantId(2), Tenant { name: "2".to_owned(), terms });
        let settings = BrainSettings { strategy, queue, quarantine, ..BrainSettings::default() };
        let mut harness = Harness::with_queue(3, settings);
        let cards = [Card { name: "qwen", parent: None }];
        harness.on(Event::ModelsReported { worker: WorkerId(2), cards: &cards });
        World {
            harness,
            lives: BTreeMap::new(),
            arrivals: 0,
            met: BTreeMap::new(),
            joined: WorkerId(2),
            left: BTreeMap::new(),
            addresses: 3,
        }
    }

    fn happen(&mut self, (kind, index, number): Dice) {
        self.harness.now = self.harness.now + Duration::from_millis(number % 60);
        match kind {
            0..=8 => self.arrive(number),
            9..=15 if !self.lives.is_empty() => {
                let place = index.index(self.lives.len());
                let (&request, &life) = self.lives.iter().nth(place).unwrap();
                self.live(kind, request, life, number);
            }
            16..=18 => self.change(kind, number),
            19 => self.on(Event::Tick),
            _ => {
                if let Some(due) = self.harness.brain.due() {
                    self.harness.now = self.harness.now.max(due);
                }
                self.on(Event::Tick);
                assert!(self.harness.brain.due().is_none_or(|it| it > self.harness.now), "due in the past");
            }
        }
    }

    fn arrive(&mut self, number: u64) {
        self.arrivals += 1;
        let text: Vec<u32> = (0..1_600).map(|it| it + 10_000 * (number % 3) as u32).collect();
        let prompt = reservation::prompt(&text);
        let deadlines = [None, None, Some(40), Some(150), Some(2_000)];
        let arrival = Arrival {
            model: Some(if number.is_multiple_of(7) { "qwen" } else { "llama" }),
            size: Size::Tokens([100, 1_600, 3_500][(number / 3 % 3) as usize]),
            class: ClassId((number / 9 % 3) as u8),
            tenant: TenantId(number / 27 % 3),
            deadline: deadlines[(number / 81 % 5) as usize]
                .map(|it| self.harness.now + Duration::from_millis(it)),
            form: if number.is_multiple_of(5) { Form::Whole } else { Form::Stream },
            prompt: number.is_multiple_of(2).then_some(&prompt),
            ..one(self.arrivals)
        };
        self.lives.insert(self.arrivals, Life::Asking);
        self.on(Event::Arrived(arrival));
    }

    fn live(&mut self, kind: u8, number: u64, life: Life, dice: u64) {
        let request = RequestId(number);
        let end = Event::Finished { request, counted: None, pieces: 100 };
        match (kind, life) {
            (9 | 10, Life::Placed { worker, begun: false }) => {
                self.lives.insert(number, Life::Placed { worker, begun: true });
                self.on(Event::FirstToken { request, worker: WorkerId(worker) });
            }
            (9 | 10, Life::Waiting { recalled: true }) => {
                self.lives.insert(number, Life::Answered);
                self.on(Event::FirstToken { request, worker: WorkerId(0) });
            }
            (11 | 12, Life::Placed { .. } | Life::Answered) => self.end(number, end),
            (13, Life::Placed { begun: true, .. }) => self.end(number, Event::BrokeOff { request }),
            (13 | 14, Life::Placed { worker, begun: false }) => {
                let failure = Failure::ALL[dice as usize % Failure::ALL.len()];
                self.lives.insert(number, Life::Asking);
                self.on(Event::Failed { request, worker: WorkerId(worker), failure });
            }
            // Of an attempt that was recalled.
            (14, Life::Waiting { recalled: true }) => {
                self.on(Event::Failed { request, worker: WorkerId(0), failure: Failure::Broke });
            }
            (15, Life::Placed { .. }) if dice.is_multiple_of(2) => {
                self.end(number, Event::Declined { request });
            }
            (15, _) => self.end(number, Event::Left { request }),
            _ => {}
        }
    }

    fn change(&mut self, kind: u8, number: u64) {
        let worker = WorkerId((number / 60) as u32 % self.harness.brain.fleet().numbers() as u32);
        match (kind, number % 6) {
            (16, 0) => {
                self.left.entry(worker).or_insert(self.harness.now);
                self.on(Event::WorkerGone { worker });
            }
            (16, _) => self.on(Event::WorkerDrained { worker, draining: number.is_multiple_of(2) }),
            (17, it) => {
                let evidence = [Evidence::ProbeAnswered, Evidence::Silent, Evidence::Refused];
                self.on(Event::Probed { worker, evidence: evidence[it as usize % 3] });
            }
            (_, 0) => {
                let name = if number.is_multiple_of(12) { "qwen" } else { "llama" };
                let worker = self.join();
                self.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
                self.on(Event::ModelsReported { worker, cards: &[Card { name, parent: None }] });
            }
            (_, it) => {
                let load =
                    EngineLoad { kv_tokens: Some(2_000 * it), running: Some(it), ..EngineLoad::default() };
                self.on(Event::LoadReported { worker, load });
            }
        }
    }

    /// A worker that joins gets the lowest id that has rested and that no pending request names. So there are never more
    /// ids than workers at one time, plus those that are still named.
    fn join(&mut self) -> WorkerId {
        let (now, quarantine) = (self.harness.now, self.harness.brain.settings().quarantine);
        let reserved: Vec<WorkerId> = self
            .harness
            .brain
            .pending
            .values()
            .filter_map(|it| it.waiting()?.reservation.as_ref())
            .map(|it| it.worker)
            .collect();
        let is_named = |it: &WorkerId| reserved.contains(it) || self.met.values().any(|met| met.contains(it));
        let free =
            self.left.iter().filter(|(worker, since)| now.since(**since) >= quarantine && !is_named(worker));
        let new = WorkerId(self.harness.brain.fleet().numbers() as u32);
        let expected = free.map(|it| *it.0).next().unwrap_or(new);
        self.addresses += 1;
        self.on(Event::WorkerJoined { url: &format!("http://127.0.0.1:{}", self.addresses) });
        assert_eq!(self.joined, expected, "of {:?}, at {now:?}", self.left);
        self.left.remove(&expected);
        expected
    }

    fn end(&mut self, request: u64, event: Event<'_>) {
        self.lives.remove(&request);
        self.met.remove(&request);
        self.on(event);
    }

    /// Effects fit what is known, and every request gets one.
    fn on(&mut self, event: Event<'_>) {
        for effect in self.harness.on(event) {
            self.obey(&effect);
        }
        assert!(!self.lives.values().any(|it| *it == Life::Asking), "a request got no effect: {event:?}");
        let waiting = self.lives.values().filter(|it| matches!(it, Life::Waiting { .. })).count();
        assert_eq!(
            (self.harness.waiting(), self.harness.brain.open()),
            (waiting, self.lives.len()),
            "{event:?}"
        );
        assert_eq!(self.harness.brain.due().is_some(), waiting > 0, "{event:?}");
        for worker in self.harness.brain.fleet().workers() {
            let placed = |it: &&Life| matches!(it, Life::Placed { worker: at, .. } if *at == worker.id.0);
            let placed = self.lives.values().filter(placed).count() as u32;
            assert_eq!(worker.promised.work.requests, placed, "{event:?}: promises at {}", worker.id);
        }
    }

    fn obey(&mut self, effect: &Effect) {
        match *effect {
            Effect::Place(placement) => {
                let life = Life::Placed { worker: placement.worker.0, begun: false };
                let before = self.lives.insert(placement.request.0, life);
                assert!(
                    matches!(before, Some(Life::Asking | Life::Waiting { .. })),
                    "{before:?}: {placement:?}"
                );
                self.met.entry(placement.request.0).or_default().insert(placement.worker);
            }
            Effect::Watch { worker } => self.joined = worker,
            Effect::Wait { request } => {
                let before = self.lives.insert(request.0, Life::Waiting { recalled: false });
                assert_eq!(before, Some(Life::Asking), "{request:?} waits");
            }
            Effect::Recall { request, worker } => {
                let before = self.lives.insert(request.0, Life::Waiting { recalled: true });
                assert_eq!(before, Some(Life::Placed { worker: worker.0, begun: false }), "{request:?}");
            }
            Effect::Refuse { request, .. } => {
                let before = self.lives.remove(&request.0);
                self.met.remove(&request.0);
                assert!(
                    matches!(before, Some(Life::Asking | Life::Waiting { .. })),
                    "{before:?}: {request:?}"
                );
            }
            _ => {}
        }
    }

    /// Ends all requests.
    fn close(&mut self) {
        while let Some((&request, &life)) = self.lives.first_key_value() {
            let id = RequestId(request);
            let event = match life {
                Life::Placed { .. } if request % 2 == 0 => {
                    Event::Finished { request: id, counted: None, pieces: 2 }
                }
                _ => Event::Left { request: id },
            };
            self.end(request, event);
        }
        self.harness.is_clear();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_request_ends_once_and_nothing_is_left(
        script in prop::collection::vec((0u8..22, any::<prop::sample::Index>(), 0u64..1_000_000), 0..150),
        (strategy, recall) in
            (prop::sample::select(vec![Name::LeastDelay, Name::RoundRobin, Name::DynamoCost]), any::<bool>()),
        (learned, index) in (prop::sample::select(vec![0, 12]), any::<prop::sample::Index>()),
        quarantine in prop::sample::select(vec![0, 200, 60_000]),
    ) {
        let mut world = World::new(strategy, recall, Duration::from_millis(quarantine));
        // Usual first tokens of requests at idle workers.
        for _ in 0..learned {
            world.happen((0, index, 1));
            let request = world.arrivals;
            world.harness.now = world.harness.now + Duration::from_millis(25);
            let life = world.lives.get(&request).copied().unwrap_or(Life::Answered);
            world.live(9, request, life, 0);
            world.end(request, Event::Left { request: RequestId(request) });
        }
        for dice in script {
            world.happen(dice);
        }
        world.close();
    }

    /// The same, where half of all events are workers that join or leave.
    #[test]
    fn ids_are_reused_neither_too_soon_nor_too_late(
        script in prop::collection::vec((0u8..22, any::<prop::sample::Index>(), 0u64..1_000_000), 0..150),
        recall in any::<bool>(),
        quarantine in prop::sample::select(vec![0, 200, 1_000]),
    ) {
        let mut world = World::new(Name::LeastDelay, recall, Duration::from_millis(quarantine));
        for (kind, index, number) in script {
            let change = if number.is_multiple_of(2) { 16 } else { 18 };
            match kind {
                9 | 10 | 19.. => world.happen((change, index, number - number % 6)),
                _ => world.happen((kind, index, number)),
            }
        }
        world.close();
    }
}
