//! Two placement rules with perfect knowledge, as bounds for real strategies.
//!
//! Both place a request where it adds least to the sum of all first-token and completion times, found by simulating
//! each worker to its end with and without the request: true caches, true answer lengths, true speeds. `oracle` uses
//! the actual caches. `ideal-cache` also assumes that all workers share one unlimited cache.
//!
//! Neither is the optimum: they consider one request at a time, not the next ones.
//!
//! The simulation is approximate. Prefills follow each other at full speed, decoding sequences get one token per
//! step's worth of prefill, and step times are averages until the next sequence ends.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use maitre_base::{Instant, WorkerId};

use super::Simulation;
use crate::engine::RemainingWork;
use crate::profile::Profile;

/// The sum of all first-token and completion times, in seconds from now.
pub(super) fn delay_sum(profile: &Profile, slowness: f64, remaining: &[RemainingWork]) -> f64 {
    let mut play = DelayEstimate { profile, slowness, ..DelayEstimate::begin(profile) };
    for rest in remaining.iter().filter(|it| it.prefill == 0) {
        play.start_decoding(rest);
    }
    for rest in remaining.iter().filter(|it| it.prefill > 0) {
        if !rest.running {
            play.make_room(f64::from(rest.context));
        }
        play.prefill(rest);
        play.sum += play.seconds;
        play.start_decoding(rest);
    }
    while play.end_next().is_some() {}
    play.sum
}

struct DelayEstimate<'a> {
    profile: &'a Profile,
    slowness: f64,
    seconds: f64,
    /// Tokens that every decoding sequence has received since the start.
    steps: f64,
    /// Decoding sequences: the step at which each ends, the tokens it holds then, and those it reads from elsewhere.
    decoding: BinaryHeap<Reverse<(u64, u32, u32)>>,
    /// KV tokens they hold, and those they read from elsewhere.
    held: f64,
    elsewhere: f64,
    sum: f64,
}

impl DelayEstimate<'_> {
    fn begin(profile: &Profile) -> DelayEstimate<'_> {
        let decoding = BinaryHeap::new();
        DelayEstimate {
            profile,
            slowness: 1.0,
            seconds: 0.0,
            steps: 0.0,
            decoding,
            held: 0.0,
            elsewhere: 0.0,
            sum: 0.0,
        }
    }

    fn start_decoding(&mut self, rest: &RemainingWork) {
        let end = self.steps as u64 + u64::from(rest.answer.max(1));
        self.decoding.push(Reverse((end, rest.context + rest.answer, rest.elsewhere)));
        self.held += f64::from(rest.context);
        self.elsewhere += f64::from(rest.elsewhere);
    }

    /// Seconds of one step without prefill.
    fn step(&self) -> f64 {
        let step = &self.profile.step;
        let count = self.decoding.len() as f64;
        let millis = step.floor_ms
            + step.context_token_ms * (self.held + self.elsewhere)
            + step.decode_sequence_ms * count;
        millis * self.slowness / 1e3
    }

    fn advance(&mut self, steps: f64) {
        self.seconds += steps * self.step();
        self.steps += steps;
        self.held += steps * self.decoding.len() as f64;
    }

    /// Decodes until the next sequence ends.
    fn end_next(&mut self) -> Option<()> {
        let Reverse((end, context, elsewhere)) = *self.decoding.peek()?;
        self.advance((end as f64 - self.steps).max(0.0));
        self.decoding.pop();
        self.held = (self.held - f64::from(context)).max(0.0);
        self.elsewhere -= f64::from(elsewhere);
        self.sum += self.seconds;
        Some(())
    }

    /// Decodes until this many tokens fit.
    fn make_room(&mut self, tokens: f64) {
        let capacity = f64::from(self.profile.kv_blocks - 1) * f64::from(self.profile.block_tokens);
        while self.held + tokens > capacity && self.end_next().is_some() {}
    }

    /// Computes a prompt; decoding sequences receive their tokens meanwhile.
    fn prefill(&mut self, rest: &RemainingWork) {
        let tokens = f64::from(rest.prefill);
        let before = f64::from(rest.context + rest.elsewhere) - tokens;
        let step = &self.profile.step;
        let millis =
            step.prefill_token_ms * tokens + step.attended_token_ms * tokens * (before + tokens / 2.0);
        self.seconds += millis * self.slowness / 1e3;
        let mut steps = tokens / f64::from(self.profile.batch_tokens_max);
        while let Some(&Reverse((end, _, _))) = self.decoding.peek() {
            let left = (end as f64 - self.steps).max(0.0);
            if left > steps {
                break;
            }
            steps -= left;
            self.end_next();
        }
        self.advance(steps);
    }
}

impl Simulation<'_> {
    pub(super) fn place_with_full_knowledge(&mut self, now: Instant, request: u64, number: usize) {
        match self.best_worker(number) {
            Some(worker) => self.placement(now, request, (WorkerId(worker as u32), None), None),
            None => self.refuse(now, request),
        }
    }

    /// The worker where the request adds least to the total delay.
    fn best_worker(&mut self, number: usize) -> Option<usize> {
        let request = &self.prepared.requests[number];
        let prompt = request.prompt_tokens() as u32;
        let mut best: Option<(f64, usize)> = None;
        for (worker, sim_worker) in self.workers.iter().enumerate().filter(|it| it.1.takes()) {
            let given = self.ideal_tokens.get(number).copied();
            let elsewhere = given.unwrap_or(0).min(prompt - 1);
            let names = &self.prepared.chains[number];
            let held = match given {
                Some(_) => 0,
                None => (sim_worker.engine.holds_named(names) * self.prepared.block_tokens).min(prompt - 1),
            };
            let new = RemainingWork {
                prefill: prompt - elsewhere - held,
                answer: request.answer_tokens,
                context: prompt - elsewhere,
                elsewhere,
                running: false,
            };
            self.remaining.clear();
            self.remaining.extend(sim_worker.engine.remaining());
            let without = delay_sum(&sim_worker.profile, sim_worker.slowness, &self.remaining);
            self.remaining.push(new);
            let added = delay_sum(&sim_worker.profile, sim_worker.slowness, &self.remaining) - without;
            if best.is_none_or(|it| added < it.0) {
                best = Some((added, worker));
            }
        }
        best.map(|it| it.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{H200_8B, INSTANT, StepModel};

    /// One millisecond per prompt token, ten per step.
    const PLAIN: Profile = Profile {
        step: StepModel { floor_ms: 10.0, prefill_token_ms: 1.0, ..INSTANT.step },
        batch_tokens_max: 1_000_000,
        kv_blocks: 101,
        block_tokens: 10,
        ..INSTANT
    };

    fn rest(prefill: u32, answer: u32) -> RemainingWork {
        RemainingWork { prefill, answer, context: 100, elsewhere: 0, running: prefill == 0 }
    }

    #[track_caller]
    fn check(remaining: &[RemainingWork], expected_millis: f64) {
        let millis = delay_sum(&PLAIN, 1.0, remaining) * 1e3;
        assert!((millis - expected_millis).abs() < 0.5, "{millis} and not {expected_millis}");
    }

    #[test]
    fn sums_of_first_and_last_tokens() {
        check(&[], 0.0);
        check(&[rest(0, 5)], 50.0);
        check(&[rest(100, 5)], 100.0 + 150.0);
        check(&[rest(0, 5), rest(0, 7)], 50.0 + 70.0);
        check(&[rest(100, 5), rest(100, 5)], 100.0 + 200.0 + 2.0 * 250.0);
    }

    #[test]
    fn a_request_that_does_not_fit_waits_for_another_to_end() {
        let (large, small) = (RemainingWork { context: 950, ..rest(0, 50) }, rest(100, 1));
        // 500 ms until the large one ends, then 100 to compute and 10 for the answer.
        check(&[large, small], 500.0 + 600.0 + 610.0);
    }

    #[test]
    fn a_slower_engine_takes_longer() {
        let remaining = [rest(100, 30), rest(5_000, 10)];
        let (one, three) = (delay_sum(&H200_8B, 1.0, &remaining), delay_sum(&H200_8B, 3.0, &remaining));
        assert!((three / one - 3.0).abs() < 1e-6);
    }
}
