//! The default strategy in virtual time, against others on the same traffic: what it is there for.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;

use maitre_base::{Instant, Rng};
use maitre_policy::Name;
use maitre_sim::lab::{Guest, Outcome, Settings, play};
use maitre_sim::profile::{H200_8B, Profile, StepModel};

/// The same engine, so many times slower.
fn slower(times: f64) -> Profile {
    let step = H200_8B.step;
    let step = StepModel {
        floor_ms: step.floor_ms * times,
        prefill_token_ms: step.prefill_token_ms * times,
        attended_token_ms: step.attended_token_ms * times,
        context_token_ms: step.context_token_ms * times,
        decode_sequence_ms: step.decode_sequence_ms * times,
    };
    Profile { step, ..H200_8B }
}

fn tokens(seed: u64, count: usize) -> impl Iterator<Item = u32> {
    let mut rng = Rng::new(seed);
    (0..count).map(move |_| rng.next_u64() as u32 % 100_000)
}

/// Prompts that arrive by dice, each of one of the groups that begin alike, popular ones first.
struct Traffic {
    per_second: f64,
    seconds: f64,
    groups: usize,
    shared_tokens: usize,
    own_tokens: usize,
}

impl Traffic {
    fn guests(&self) -> Vec<Guest> {
        let mut rng = Rng::new(5);
        let (mut guests, mut now) = (Vec::new(), 0.0);
        while now < self.seconds {
            now += rng.exponential(1.0 / self.per_second);
            // The r-th is half as popular as the one before it, or nearly.
            let group = (rng.exponential(self.groups as f64 / 3.0) as usize) % self.groups;
            let shared = tokens(group as u64, self.shared_tokens);
            let own = tokens(1_000_000 + guests.len() as u64, self.own_tokens);
            let prompt: Arc<[u32]> = shared.chain(own).collect();
            let at = Instant::from_nanos((now * 1e9) as u64);
            guests.push(Guest { at, prompt, answer_tokens: 50 + rng.below(100) as u32 });
        }
        guests
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Events {
    On,
    Off,
}

fn run(strategy: Name, profiles: &[Profile], events: Events, guests: &[Guest]) -> Outcome {
    let brain = maitre_dispatch::Settings { strategy, seed: 1, ..maitre_dispatch::Settings::default() };
    let settings = Settings { profiles: profiles.to_vec(), brain, events: events == Events::On };
    let outcome = play(&settings, guests);
    assert_eq!((outcome.refused, outcome.seen.len()), (0, guests.len()));
    outcome
}

/// Near the knee of both fleets, where a slow worker must be used and must not be trusted.
#[test]
fn a_worker_three_times_slower_gets_its_part_and_keeps_nobody_waiting() {
    let traffic = Traffic { per_second: 29.0, seconds: 60.0, groups: 1, shared_tokens: 0, own_tokens: 2_000 };
    let guests = traffic.guests();
    // As fast together: 1 and 1/3, or twice 2/3.
    let (uneven, even) = ([slower(1.0), slower(3.0)], [slower(1.5), slower(1.5)]);
    let p99 = |it: &Outcome| it.first_token_quantile(0.99).as_secs_f64();

    let reference = run(Name::LeastDelay, &even, Events::Off, &guests);
    let ours = run(Name::LeastDelay, &uneven, Events::Off, &guests);
    let share = ours.shares(2)[1];
    assert!((0.2..=0.34).contains(&share), "the slow one has {share:.2} of the work");
    assert!(p99(&ours) <= 1.5 * p99(&reference), "{:.3} s beside {:.3} s", p99(&ours), p99(&reference));

    let by_requests = run(Name::LeastRequest, &uneven, Events::Off, &guests);
    assert!(p99(&by_requests) > 1.5 * p99(&reference), "{:.3} s", p99(&by_requests));
    assert!(p99(&by_requests) > p99(&ours));
}

/// Documents that do not all fit into every cache, asked about by popularity.
#[test]
fn the_default_has_the_lowest_first_token_time_with_events_and_without() {
    let traffic =
        Traffic { per_second: 50.0, seconds: 12.0, groups: 64, shared_tokens: 8_000, own_tokens: 200 };
    let guests = traffic.guests();
    let engines = [Profile { kv_blocks: 6_001, ..H200_8B }; 4];
    let mean = |it: &Outcome| it.mean_first_token().as_secs_f64();
    for events in [Events::On, Events::Off] {
        let ours = run(Name::LeastDelay, &engines, events, &guests);
        for strategy in [Name::RoundRobin, Name::LeastWork, Name::PrefixHash, Name::CacheAware] {
            let other = run(strategy, &engines, events, &guests);
            assert!(mean(&ours) < mean(&other), "{strategy}: {:.3} and {:.3} s", mean(&ours), mean(&other));
            assert!(ours.hit_ratio() > other.hit_ratio() - 0.03, "{strategy}, {events:?}");
        }
        let exact = ours.seen.iter().filter(|it| it.believed_tokens == Some(it.cached_tokens.into())).count();
        assert!(exact as f64 > 0.9 * guests.len() as f64, "{exact} of {} beliefs came true", guests.len());
    }
}

#[test]
fn a_run_is_the_same_twice() {
    let traffic =
        Traffic { per_second: 20.0, seconds: 5.0, groups: 9, shared_tokens: 1_000, own_tokens: 100 };
    let guests = traffic.guests();
    let engines = [slower(1.0), slower(2.0), slower(1.0)];
    for strategy in Name::ALL {
        let run = || run(strategy, &engines, Events::On, &guests);
        let seats = |it: &Outcome| it.seen.iter().map(|it| (it.worker, it.first_token)).collect::<Vec<_>>();
        assert_eq!(seats(&run()), seats(&run()), "{strategy}");
    }
}
