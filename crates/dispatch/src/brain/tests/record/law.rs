//! Two brains with the same seed and the same events must agree for ever, though one of them is observed.

use super::*;
use crate::peers::{Assessment, Outbox, PeerUpdate};
use maitre_cluster::{Spent, Verdict};
use maitre_fleet::rates::LinearFit;
use maitre_fleet::worker::key;
use proptest::prelude::ProptestConfig;

/// One random event: its kind, its target, and a number for the rest.
type Dice = (u8, u64, u64);

/// What is done to the observed brain between events and must have no effect.
#[derive(Clone, Copy, Debug)]
enum Meddling {
    Nothing,
    /// The same settings are applied again.
    Reconfigures,
    /// A request is explained.
    Explains,
    /// The outbox is fetched.
    Publishes,
}

fn settings(strategy: Name) -> BrainSettings {
    let mut queue = maitre_queue::QueueSettings::default();
    (queue.sequences_max, queue.prefill_tokens_max, queue.recall) = (3, 4_000, true);
    queue.others.requests_per_minute = Some(25);
    let explain = RecordSettings { decisions: 0 };
    // So small that the index always evicts.
    let index = index::IndexSettings { budget_bytes: 64 << 10, ..index::IndexSettings::default() };
    BrainSettings { strategy, queue, explain, index, seed: 5, ..BrainSettings::default() }
}

struct Pair {
    plain: Harness,
    watched: Harness,
    meddling: Meddling,
    workers: u32,
}

impl Pair {
    fn new(strategies: (Name, Name), shadows: Vec<Name>, sample: f64, meddling: Meddling) -> Pair {
        let mut plain = settings(strategies.0);
        // Two models on the same workers, each with a strategy of its own.
        plain.strategies.insert("sql".to_owned(), strategies.1);
        plain.shares = matches!(meddling, Meddling::Publishes);
        let explain = RecordSettings { decisions: 7 };
        let watched = BrainSettings { explain, shadows, shadow_sample: sample, ..plain.clone() };
        let mut pair = Pair {
            plain: Harness::with_queue(3, plain),
            watched: Harness::with_queue(3, watched),
            meddling,
            workers: 3,
        };
        let cards = [Card { name: "llama", parent: None }, Card { name: "sql", parent: Some("llama") }];
        for worker in (0..3).map(WorkerId) {
            pair.on(Event::ModelsReported { worker, cards: &cards });
            let load =
                maitre_base::EngineLoad { kv_tokens: Some(9_000), ..maitre_base::EngineLoad::default() };
            pair.on(Event::LoadReported { worker, load });
        }
        pair
    }

    fn on(&mut self, event: Event<'_>) {
        let (brain, mut effects) = (&mut self.watched.brain, Vec::new());
        match self.meddling {
            Meddling::Nothing => {}
            Meddling::Reconfigures => {
                let same = brain.settings().clone();
                assert_eq!(brain.reconfigure(self.watched.now, same, &mut effects), Ok(()));
                assert_eq!(effects, []);
            }
            Meddling::Explains => {
                let text = prompt(3, 80);
                let asked = Arrival { session: Some(1), head: Some(3), ..chat(0, &text) };
                let _ = brain.explain(self.watched.now, &asked);
            }
            Meddling::Publishes => {
                let mut outbox = Outbox::default();
                brain.take_outbox(&mut outbox);
                assert!(outbox.is_empty() || !brain.has_outbox());
            }
        }
        let (one, other) = (self.plain.on(event), self.watched.on(event));
        assert_eq!(one, other, "{event:?}");
    }

    fn happen(&mut self, (kind, whom, number): Dice) {
        let later = self.plain.now + Duration::from_millis(number % 50);
        (self.plain.now, self.watched.now) = (later, later);
        let request = RequestId(whom % 40);
        let worker = WorkerId((number / 50) as u32 % self.workers);
        let placement = self.plain.brain.worker_of(request);
        match kind {
            0..=5 if !self.plain.brain.pending.contains_key(&request.0) => self.arrive(request.0, number),
            6 | 7 => {
                if let Some(worker) = placement {
                    self.on(Event::FirstToken { request, worker });
                }
            }
            8 => self.on(Event::Finished { request, counted: None, pieces: 20 }),
            9 => {
                let counted = Counted { prompt: Some(1_000), cached: Some(number % 1_000), answer: Some(40) };
                self.on(Event::Finished { request, counted: Some(counted), pieces: 40 });
            }
            10 => {
                let failure = Failure::ALL[number as usize % Failure::ALL.len()];
                self.on(Event::Failed { request, worker: placement.unwrap_or(worker), failure });
            }
            11 => self.on(Event::Left { request }),
            12 => self.on(Event::WorkerDrained { worker, draining: number.is_multiple_of(3) }),
            13 => self.on(Event::WorkerWeighed { worker, weight: [0.5, 1.0, 3.0][whom as usize % 3] }),
            14 => self.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered }),
            15 => self.receive(whom, number),
            _ => self.on(Event::Tick),
        }
    }

    /// Another router publishes something.
    fn receive(&mut self, whom: u64, number: u64) {
        let worker = key(&format!("http://127.0.0.1:{}", number % 4));
        let (text, model) =
            (prompt(number / 7 % 5, 10 + number % 150), maitre_base::hash::bytes(0, b"llama"));
        let rates = (
            LinearFit { base: 0.01, slope: 1e-6 * (number % 90) as f64 },
            LinearFit { base: 0.01, slope: 1e-4 },
        );
        let verdict = [Verdict::Healthy, Verdict::Suspect, Verdict::Ejected][number as usize % 3];
        let tokens = Tokens(number % 3_000);
        let work = PromisedWork {
            requests: (number % 4) as u32,
            prefilling: (number % 3) as u32,
            prefill: PrefillWork::whole(tokens),
            decode: tokens,
            context: tokens,
        };
        let more = Spent { requests: number % 9, tokens: number };
        self.on(Event::Peers(match whom % 8 {
            0..=2 => PeerUpdate::Promised { worker, work },
            3 => PeerUpdate::Assessed { worker, assessment: Assessment { verdict, rates: Some(rates) } },
            4 => PeerUpdate::Pinned { model, session: number % 6, worker },
            5 => PeerUpdate::Spent { model, tenant: TenantId(0), more },
            6 => PeerUpdate::Placed { worker, prompt: &text },
            _ => PeerUpdate::Routers { live: 1 + (number % 3) as u32, known: 3 },
        }));
    }

    fn arrive(&mut self, request: u64, number: u64) {
        let text = prompt(number / 7 % 5, 10 + number % 150);
        let model = if number.is_multiple_of(4) { "sql" } else { "llama" };
        let base = Arrival {
            model: Some(model),
            session: Some(number % 6),
            head: Some(number / 7 % 5),
            class: ClassId((number % 3) as u8),
            deadline: number.is_multiple_of(11).then(|| self.plain.now + Duration::from_millis(200)),
            ..arrival(request, None)
        };
        // As the proxy does: an unused prompt is not read, and only the strategy in charge gets its size in tokens.
        let now = self.plain.now;
        let effects = [&mut self.plain, &mut self.watched].map(|harness| {
            let (prompt, size) = match harness.brain.plan(Some(model)).map(|it| it.reader) {
                Some(PromptReader::Strategy) => (Some(&text), Size::Tokens(text.units)),
                Some(PromptReader::Shadow) => (Some(&text), Size::Bytes(text.units * 3)),
                Some(PromptReader::Record) | None => (None, Size::Bytes(text.units * 3)),
            };
            harness.on(Event::Arrived(Arrival { prompt, size, ..base }))
        });
        assert_eq!(effects[0], effects[1], "at {now:?}: {base:?}");
    }
}

fn names() -> impl proptest::strategy::Strategy<Value = Name> {
    prop::sample::select(Name::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn an_observed_brain_decides_like_an_unobserved_one(
        strategies in (names(), names()),
        shadows in prop::collection::vec(names(), 0..4),
        sample in prop::sample::select(vec![1.0, 0.5]),
        script in prop::collection::vec((0u8..18, any::<u64>(), 0u64..1_000_000), 0..200),
    ) {
        let mut pair = Pair::new(strategies, shadows, sample, Meddling::Nothing);
        script.into_iter().for_each(|it| pair.happen(it));
    }

    #[test]
    fn to_explain_a_request_changes_nothing(
        strategies in (names(), names()),
        shadows in prop::collection::vec(names(), 0..3),
        script in prop::collection::vec((0u8..18, any::<u64>(), 0u64..1_000_000), 0..100),
    ) {
        let mut pair = Pair::new(strategies, shadows, 1.0, Meddling::Explains);
        script.into_iter().for_each(|it| pair.happen(it));
    }

    #[test]
    fn to_publish_changes_nothing(
        strategies in (names(), names()),
        shadows in prop::collection::vec(names(), 0..3),
        script in prop::collection::vec((0u8..18, any::<u64>(), 0u64..1_000_000), 0..100),
    ) {
        let mut pair = Pair::new(strategies, shadows, 1.0, Meddling::Publishes);
        script.into_iter().for_each(|it| pair.happen(it));
    }

    #[test]
    fn explain_says_what_happens(
        strategies in (names(), names()),
        script in prop::collection::vec((0u8..18, any::<u64>(), 0u64..1_000_000), 0..100),
        number in 0u64..1_000_000,
    ) {
        let mut pair = Pair::new(strategies, vec![], 1.0, Meddling::Nothing);
        script.into_iter().for_each(|it| pair.happen(it));
        let text = prompt(number / 7 % 5, 10 + number % 150);
        let class = ClassId((number % 3) as u8);
        let arrival = Arrival { class, session: Some(number % 6), ..chat(99, &text) };
        let explained = pair.watched.brain.explain(pair.watched.now, &arrival);
        let done = pair.watched.on(Event::Arrived(arrival));
        let happened = done.iter().find_map(|it| match *it {
            Effect::Place(placement) if placement.request.0 == 99 => Some(Ok(Some(placement.worker))),
            Effect::Wait { .. } => Some(Ok(None)),
            Effect::Refuse { request, refusal } if request.0 == 99 => Some(Err(refusal)),
            _ => None,
        });
        let said = match &explained {
            Ok(it) if it.outcome == AttemptOutcome::Asked => Ok(Some(it.worker)),
            Ok(_) => Ok(None),
            Err(refusal) => Err(*refusal),
        };
        prop_assert_eq!(Some(said), happened);
        if let (Ok(it), Ok(Some(_))) = (explained, said) {
            let last = pair.watched.last();
            prop_assert_eq!((it.why, it.predicted, it.held), (last.why, last.predicted, last.held));
            prop_assert_eq!(it.candidates.len(), last.candidates.len());
        }
    }

    #[test]
    fn the_same_settings_again_change_nothing(
        strategies in (names(), names()),
        script in prop::collection::vec((0u8..18, any::<u64>(), 0u64..1_000_000), 0..100),
    ) {
        let mut pair = Pair::new(strategies, vec![Name::DynamoCost], 1.0, Meddling::Reconfigures);
        script.into_iter().for_each(|it| pair.happen(it));
    }
}
