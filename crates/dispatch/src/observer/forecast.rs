//! Predicts when the first token will come, for people: the estimate that prices use, corrected by recent errors.
//!
//! A price compares workers, so an error that all of them share does no harm. People compare a prediction with a clock. So
//! each prediction is compared with what came, and the running mean of the log ratio corrects the next one: per worker,
//! with the fleet's mean as prior. This also learns the router's own time, such as that of its sockets. No price uses the
//! correction.
//!
//! Left out: caches that were not looked up. Where no strategy uses caches, a cached prompt is faster than predicted.

use maitre_base::WorkerId;
use maitre_policy::{Ask, Candidate, Pace, least_delay};

/// Weight left of a ratio after the next one: half after 17.
const MEMORY: f64 = 0.96;
/// Weight of the prior, in ratios: of the fleet's correction for a worker, and of no correction for the fleet.
const PRIOR: f64 = 8.0;
const PRIOR_OF_FLEET: f64 = 4.0;
/// A ratio counts as at most this factor off the current correction.
const WILD: f64 = 4.0;
/// Predictions whose errors are kept.
pub const ERRORS_KEPT: usize = 200;
/// Fewer errors give no median.
const ERRORS_MIN: usize = 20;

/// How good recent predictions were.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Streams that count, at most `ERRORS_KEPT`.
    pub count: usize,
    /// The median of |predicted − actual| / actual of first tokens.
    pub median_error: Option<f64>,
}

/// The prediction for one placement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Foreseen {
    /// Before any correction.
    raw: f64,
    pub(crate) seconds: f64,
}

#[derive(Clone, Copy, Debug)]
struct Ratios {
    weight: f64,
    /// Sum of log ratios.
    sum: f64,
    /// The resulting correction, computed when a ratio is added: a decision predicts for every worker.
    times: f64,
}

impl Default for Ratios {
    fn default() -> Ratios {
        Ratios { weight: 0.0, sum: 0.0, times: 1.0 }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Forecast {
    fleet: Ratios,
    /// By worker id; grows when a worker first answers.
    workers: Vec<Ratios>,
    /// The latest errors, in a ring.
    errors: Vec<f64>,
    next: usize,
}

/// A thread's copy of what predictions are multiplied by.
#[derive(Clone, Debug)]
pub(crate) struct Corrections {
    fleet: f64,
    /// By worker id; none for those that have not answered yet.
    workers: Vec<Option<f64>>,
}

impl Default for Corrections {
    fn default() -> Corrections {
        Corrections { fleet: Ratios::default().times, workers: Vec::new() }
    }
}

impl Corrections {
    /// Copies the correction of a worker, and the fleet's.
    pub(crate) fn follow(&mut self, forecast: &Forecast, worker: WorkerId) {
        self.fleet = forecast.fleet.times;
        let places = self.workers.len().max(worker.index() + 1);
        self.workers.resize(places, None);
        self.workers[worker.index()] = forecast.own_correction(worker);
    }

    pub(crate) fn seconds(&self, ask: &Ask, candidate: &Candidate) -> f64 {
        let own = self.workers.get(candidate.worker.index()).copied().flatten();
        raw(ask, candidate) * own.unwrap_or(self.fleet)
    }
}

impl Forecast {
    pub(crate) fn foresee(&self, ask: &Ask, candidate: &Candidate) -> Foreseen {
        let raw = raw(ask, candidate);
        Foreseen { raw, seconds: raw * self.correction(candidate.worker) }
    }

    pub(crate) fn seconds(&self, ask: &Ask, candidate: &Candidate) -> f64 {
        self.foresee(ask, candidate).seconds
    }

    pub(crate) fn prediction(&self) -> Prediction {
        let mut errors = self.errors.clone();
        let middle = errors.len() / 2;
        let median_error =
            (errors.len() >= ERRORS_MIN).then(|| *errors.select_nth_unstable_by(middle, f64::total_cmp).1);
        Prediction { count: self.errors.len(), median_error }
    }

    /// Learns from a first token that came so many seconds after its placement.
    pub(crate) fn learn(&mut self, worker: WorkerId, foreseen: Foreseen, seconds: f64) {
        if seconds <= 0.0 || foreseen.raw <= 0.0 {
            return;
        }
        let error = (foreseen.seconds - seconds).abs() / seconds;
        match self.errors.len() < ERRORS_KEPT {
            true => self.errors.push(error),
            false => self.errors[self.next] = error,
        }
        self.next = (self.next + 1) % ERRORS_KEPT;
        if worker.index() >= self.workers.len() {
            self.workers.resize(worker.index() + 1, Ratios::default());
        }
        // Clamped around the current correction: a first token that is ten times late says little about the next.
        let current = self.correction(worker).ln();
        let ratio = (seconds / foreseen.raw).ln().clamp(current - WILD.ln(), current + WILD.ln());
        self.fleet.learn(ratio, PRIOR_OF_FLEET, 0.0);
        self.workers[worker.index()].learn(ratio, PRIOR, self.fleet.times.ln());
    }

    /// Another worker has this id from now on.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        if let Some(it) = self.workers.get_mut(worker.index()) {
            *it = Ratios::default();
        }
    }

    /// The correction of a worker; of one that has not answered yet, the fleet's.
    fn correction(&self, worker: WorkerId) -> f64 {
        self.own_correction(worker).unwrap_or(self.fleet.times)
    }

    fn own_correction(&self, worker: WorkerId) -> Option<f64> {
        self.workers.get(worker.index()).filter(|it| it.weight > 0.0).map(|it| it.times)
    }
}

impl Ratios {
    /// Adds a ratio; `other` is the prior, with this weight.
    fn learn(&mut self, ratio: f64, prior: f64, other: f64) {
        self.weight = self.weight * MEMORY + 1.0;
        self.sum = self.sum * MEMORY + ratio;
        self.times = ((self.sum + prior * other) / (self.weight + prior)).exp();
    }
}

/// Seconds to the first token before any correction: the estimate of the price, and two terms that a price does not need.
///
/// A prompt waits for the end of the step that is under way, half a step on average. The floor was learned from prompts
/// that did, so an idle worker is faster by that much. The step that computes the prompt also decodes for every stream
/// there. With both terms, median errors in the simulator fell from 0.083 to 0.081 on the demo's traffic and from 0.116 to
/// 0.109 on chats. What remains is mostly that half step: where in its step an engine is, is unknown.
fn raw(ask: &Ask, candidate: &Candidate) -> f64 {
    let Pace { step, step_request, .. } = candidate.pace;
    let first_token = least_delay::first_token(ask, candidate);
    match candidate.requests {
        0 => first_token - (step / 2.0).min(first_token / 2.0),
        others => first_token + step_request * f64::from(others),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use maitre_base::{AdapterSlot, FreshLoad, PromisedWork, Rng, Tokens, hash};

    fn worker(number: u32, requests: u32) -> Candidate {
        Candidate {
            worker: WorkerId(number),
            key: hash::mix(u64::from(number)),
            requests,
            promised: PromisedWork::default(),
            share: 1.0,
            held: Tokens::ZERO,
            held_below: Tokens::ZERO,
            fetch: maitre_policy::Fetch::default(),
            chunks: maitre_policy::ReusedChunks::default(),
            holds: Tokens::ZERO,
            sent: Tokens::ZERO,
            in_use: Tokens::ZERO,
            held_in_use: Tokens::ZERO,
            pace: Pace {
                floor: 0.02,
                prefill_token: 1e-4,
                prefill_attended: 0.0,
                step: 0.01,
                step_request: 1e-4,
            },
            wait_seconds: 0.0,
            room: None,
            displaced_seconds: 0.0,
            requests_elsewhere: f64::INFINITY,
            reported: FreshLoad::default(),
            adapter: AdapterSlot::Ready,
        }
    }

    fn ask(prefill: u64) -> Ask {
        Ask { prefill: Tokens(prefill), ..Ask::default() }
    }

    /// Plays first tokens that come `times` as late as the price says, within ten per cent.
    fn play(forecast: &mut Forecast, number: u32, times: f64, count: usize) {
        let mut rng = Rng::new(3);
        for _ in 0..count {
            let (ask, worker) = (ask(rng.below(4_000) as u64), worker(number, 3));
            let foreseen = forecast.foresee(&ask, &worker);
            let seconds = foreseen.raw * times * (0.9 + 0.2 * rng.unit());
            forecast.learn(worker.worker, foreseen, seconds);
        }
    }

    #[test]
    fn an_idle_worker_is_predicted_sooner_and_a_busy_one_later() {
        let forecast = Forecast::default();
        let seconds = |requests| forecast.seconds(&ask(1_000), &worker(0, requests));
        assert!(seconds(0) < seconds(1) && seconds(1) < seconds(20), "{}", seconds(0));
        // Whatever the rates, a prediction is a positive time.
        let mut odd = worker(0, 0);
        odd.pace =
            Pace { floor: 0.0, prefill_token: 1e-9, prefill_attended: 0.0, step: 5.0, step_request: 0.0 };
        assert!(forecast.seconds(&ask(1), &odd) > 0.0);
    }

    #[test]
    fn a_constant_factor_is_soon_corrected() {
        for times in [0.4, 1.0, 3.0] {
            let mut forecast = Forecast::default();
            play(&mut forecast, 0, times, 300);
            let Prediction { count, median_error } = forecast.prediction();
            assert_eq!(count, ERRORS_KEPT);
            assert!(median_error.is_some_and(|it| it < 0.1), "{times}: {median_error:?}");
        }
    }

    #[test]
    fn each_worker_has_its_own_correction_and_a_new_one_has_the_fleets() {
        let mut forecast = Forecast::default();
        for _ in 0..30 {
            play(&mut forecast, 0, 1.0, 5);
            play(&mut forecast, 1, 3.0, 5);
        }
        let times = |number| {
            forecast.foresee(&ask(1_000), &worker(number, 3)).seconds / raw(&ask(1_000), &worker(number, 3))
        };
        assert!(
            (0.85..1.25).contains(&times(0)) && (2.4..3.2).contains(&times(1)),
            "{} {}",
            times(0),
            times(1)
        );
        assert!((1.2..2.6).contains(&times(7)), "{}", times(7));
    }

    #[test]
    fn a_reused_id_does_not_inherit_a_correction() {
        let mut forecast = Forecast::default();
        play(&mut forecast, 0, 1.0, 100);
        play(&mut forecast, 1, 3.0, 20);
        let slow = forecast.seconds(&ask(1_000), &worker(1, 3));
        forecast.forget(WorkerId(1));
        forecast.forget(WorkerId(9));
        let (fresh, unknown) =
            (forecast.seconds(&ask(1_000), &worker(1, 3)), forecast.seconds(&ask(1_000), &worker(7, 3)));
        assert!(fresh == unknown && fresh < slow, "{fresh} {unknown} {slow}");
    }

    #[test]
    fn one_outlier_does_little_and_few_samples_give_no_median() {
        let mut forecast = Forecast::default();
        play(&mut forecast, 0, 1.0, ERRORS_MIN - 1);
        assert_eq!(forecast.prediction().median_error, None);
        play(&mut forecast, 0, 1.0, 100);
        let before = forecast.seconds(&ask(1_000), &worker(0, 3));
        forecast.learn(WorkerId(0), forecast.foresee(&ask(1_000), &worker(0, 3)), 600.0);
        forecast.learn(WorkerId(0), forecast.foresee(&ask(1_000), &worker(0, 3)), 0.0);
        let after = forecast.seconds(&ask(1_000), &worker(0, 3));
        assert!((1.0..1.1).contains(&(after / before)), "{before} {after}");
    }
}
