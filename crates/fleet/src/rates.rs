//! How fast a worker is, learned from what it did: when first tokens came and how fast tokens followed.
//!
//! Both are straight lines. A first token takes a floor plus so much for each token to prefill before it,
//! ours and those promised earlier; a step takes a base plus so much for each request that shares it. So a
//! rate is a line through weighted points, kept as five sums that forget: half of the memory is the last
//! few dozen observations. Each worker's line leans on the line of the whole fleet, and that one on what
//! engines usually do, so that a new worker is priced like its neighbours and an idle one stays sane.
//!
//! Steps are told apart only by how slow a worker is beside the fleet's line, one number: at a worker the crowd
//! hardly changes while other people's prefills stretch the steps, and a line through such points was noise
//! (it said for minutes on end that company costs nothing). Mean first tokens without reuse fell from 0.67 to
//! 0.59 s with it.
//!
//! One observation in hundreds is wild (a paused process, a client that did not read): what is seen counts
//! as at most four times, at least a quarter of what was expected. A worker that really became ten times
//! slower is still learned in a handful of answers, for the expectation moves with every one.
//!
//! Left out: that prefill grows a little faster than its length, and that other people's prefills stretch
//! the steps they share. Both end up in the slopes, at the mix of prompts there is.

use std::time::Duration;

/// Weight left of an observation after the next one: half after 34.
const MEMORY: f64 = 0.98;
/// How many observations the line one leans on is worth: to a worker, that of the fleet; to the fleet, what
/// engines usually do, which is soon forgotten. If it were not, a worker nobody has tried would look slow in
/// a fleet that is faster than usual, and would not be tried.
const LEAN: f64 = 4.0;
const LEAN_OF_FLEET: f64 = 0.5;
/// The same for the steps of the fleet, whose line needs crowds of many sizes: half after 140.
const MEMORY_OF_FLEET: f64 = 0.995;
/// How many steps at the fleet's pace a worker's own slowness leans on.
const LEAN_STEPS: f64 = 8.0;
/// What another router has learned of a worker is worth so many observations, until ours replace it: more than the lean,
/// or a worker that is unlike its neighbours would be priced half like them.
const HEARSAY: f64 = 16.0;
/// Four points of it at a time count for the fleet: with them its rates are learned, and not usual any more.
const HEARSAY_POINTS: [f64; 4] = [0.0, 1.0, 0.0, 1.0];
/// First tokens seen here, before others are told what was learned: as many as the line one leans on is worth.
const TOLD_FROM: u32 = 4;

/// How far one observation may be from what was expected, as a factor.
const WILD: f64 = 4.0;

/// An intercept and a slope, in seconds and seconds per unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearFit {
    pub base: f64,
    pub slope: f64,
}

impl LinearFit {
    pub fn at(&self, x: f64) -> f64 {
        self.base + self.slope * x
    }

    /// Whether times can be told by it: what comes from elsewhere may be anything.
    fn is_sane(&self) -> bool {
        let is_time = |it: f64| (0.0..MOST_SECONDS).contains(&it);
        is_time(self.base) && is_time(self.slope) && self.slope > 0.0
    }
}

/// What a line leans on, and how heavily.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lean {
    fit: LinearFit,
    weight: f64,
}

/// Points seen of late, as sums.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct LinearRegression {
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl LinearRegression {
    fn learn(&mut self, memory: f64, x: f64, y: f64) {
        *self = self.times(memory).plus(1.0, x, y);
    }

    fn times(self, factor: f64) -> LinearRegression {
        LinearRegression {
            weight: self.weight * factor,
            x: self.x * factor,
            y: self.y * factor,
            xx: self.xx * factor,
            xy: self.xy * factor,
        }
    }

    fn plus(self, weight: f64, x: f64, y: f64) -> LinearRegression {
        LinearRegression {
            weight: self.weight + weight,
            x: self.x + weight * x,
            y: self.y + weight * y,
            xx: self.xx + weight * x * x,
            xy: self.xy + weight * x * y,
        }
    }

    /// The line through the points and through two more of `lean`, one at zero and one at `span`.
    ///
    /// Never below zero, and never flat: a slope of nothing would make work free.
    fn fit(&self, lean: Lean, span: f64) -> LinearFit {
        let Lean { fit: lean, weight } = lean;
        let half = weight / 2.0;
        let all = self.plus(half, 0.0, lean.at(0.0)).plus(half, span, lean.at(span));
        let variance = all.weight * all.xx - all.x * all.x;
        let slope = (all.weight * all.xy - all.x * all.y) / variance;
        let base = (all.y - slope * all.x) / all.weight;
        if base < 0.0 {
            // Through the origin, then.
            return LinearFit { base: 0.0, slope: all.xy / all.xx };
        }
        if slope < lean.slope / SLOPE_RANGE {
            let slope = lean.slope / SLOPE_RANGE;
            return LinearFit { base: ((all.y - slope * all.x) / all.weight).max(0.0), slope };
        }
        LinearFit { base, slope }
    }
}

/// A slope this many times flatter than the one it leans on is noise.
const SLOPE_RANGE: f64 = 50.0;

/// What engines usually do, until somebody has seen one: 20,000 prompt tokens a second, a floor of 20 ms,
/// steps of 10 ms and a tenth of a millisecond for each further request. An 8B model on one large GPU; a
/// 70B one on four is twice as slow.
const FIRST_TOKEN: LinearFit = LinearFit { base: 0.020, slope: 50e-6 };
const STEP: LinearFit = LinearFit { base: 0.010, slope: 100e-6 };

/// No floor and no slope is so large.
const MOST_SECONDS: f64 = 1_000.0;

/// Where the second point of a lean lies: an ordinary prompt, an ordinary crowd.
const FIRST_TOKEN_SPAN: f64 = 4_000.0;
const STEP_SPAN: f64 = 32.0;

/// The rates of one worker, or of the fleet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    first_token: LinearRegression,
    /// Of the fleet.
    step: LinearRegression,
    /// Of a worker: seconds that its steps took of late, and that the fleet's would have.
    seen: f64,
    expected: f64,
    /// Seconds to the first token, by tokens to prefill.
    pub prefill: LinearFit,
    /// Seconds between tokens, by requests that share the step.
    pub decode: LinearFit,
    /// First tokens that were seen here, and not heard of.
    own: u32,
}

impl Default for Rates {
    fn default() -> Rates {
        Rates {
            first_token: LinearRegression::default(),
            step: LinearRegression::default(),
            seen: 0.0,
            expected: 0.0,
            prefill: FIRST_TOKEN,
            decode: STEP,
            own: 0,
        }
    }
}

impl Rates {
    /// Whether enough first tokens were seen to go by, and not only what engines usually do.
    pub fn is_learned(&self) -> bool {
        self.first_token.weight >= LEAN
    }

    /// A first token came after `seconds`, with so many tokens to prefill before it.
    pub fn first_token(&mut self, tokens: u64, took: Duration, lean: Lean) {
        let tokens = tokens as f64;
        self.own = self.own.saturating_add(1);
        self.first_token.learn(MEMORY, tokens, tame(took.as_secs_f64(), self.prefill.at(tokens)));
        self.prefill = self.first_token.fit(lean, FIRST_TOKEN_SPAN);
    }

    /// An answer's tokens followed each other this far apart, among so many requests, somewhere in the fleet.
    pub fn step(&mut self, requests: f64, gap: Duration, lean: Lean) {
        let seen = tame(gap.as_secs_f64(), self.decode.at(requests));
        self.step.learn(MEMORY_OF_FLEET, requests, seen);
        self.decode = self.step.fit(lean, STEP_SPAN);
    }

    /// The same, at a worker of this fleet.
    pub fn step_beside(&mut self, fleet: &Rates, requests: f64, gap: Duration) {
        let seen = tame(gap.as_secs_f64(), self.decode.at(requests));
        self.seen = self.seen * MEMORY + seen;
        self.expected = self.expected * MEMORY + fleet.decode.at(requests);
        self.compare(fleet.decode);
    }

    /// The fleet's steps, as much slower as this worker has been.
    fn compare(&mut self, fleet: LinearFit) {
        let lean = LEAN_STEPS * fleet.at(STEP_SPAN);
        let slowness = (self.seen + lean) / (self.expected + lean);
        self.decode = LinearFit { base: fleet.base * slowness, slope: fleet.slope * slowness };
    }

    /// Looks again at what it leans on, which moves while this worker is idle.
    pub fn lean(&mut self, fleet: &Rates) {
        self.prefill = self.first_token.fit(fleet.as_lean(), FIRST_TOKEN_SPAN);
        self.compare(fleet.decode);
    }

    /// What others may be told: what was learned from answers seen here, and not what they told us.
    pub fn to_tell(&self) -> Option<(LinearFit, LinearFit)> {
        (self.own >= TOLD_FROM).then_some((self.prefill, self.decode))
    }

    /// What another router has learned of this worker counts as long as nothing was seen of it here, and what was told
    /// before does not then.
    pub fn hear(&mut self, fleet: &Rates, (prefill, decode): (LinearFit, LinearFit)) {
        if self.own > 0 || !prefill.is_sane() || !decode.is_sane() {
            return;
        }
        let half = HEARSAY / 2.0;
        let line = LinearRegression::default().plus(half, 0.0, prefill.base);
        self.first_token = line.plus(half, FIRST_TOKEN_SPAN, prefill.at(FIRST_TOKEN_SPAN));
        self.seen = HEARSAY * decode.at(STEP_SPAN);
        self.expected = HEARSAY * fleet.decode.at(STEP_SPAN);
        self.lean(fleet);
    }

    /// The same for the fleet's own rates, of any of its workers: as long as none has answered here.
    pub fn hear_of_any(&mut self, (prefill, decode): (LinearFit, LinearFit)) {
        if self.own > 0 || !prefill.is_sane() || !decode.is_sane() {
            return;
        }
        for part in HEARSAY_POINTS {
            let (tokens, requests) = (part * FIRST_TOKEN_SPAN, part * STEP_SPAN);
            self.first_token.learn(MEMORY, tokens, prefill.at(tokens));
            self.step.learn(MEMORY, requests, decode.at(requests));
        }
        let (first_token, step) = Rates::usual();
        self.prefill = self.first_token.fit(first_token, FIRST_TOKEN_SPAN);
        self.decode = self.step.fit(step, STEP_SPAN);
    }

    /// What first tokens of workers lean on, if these are the fleet's rates.
    pub fn as_lean(&self) -> Lean {
        Lean { fit: self.prefill, weight: LEAN }
    }

    /// What the fleet's own rates lean on.
    pub const fn usual() -> (Lean, Lean) {
        let weight = LEAN_OF_FLEET;
        (Lean { fit: FIRST_TOKEN, weight }, Lean { fit: STEP, weight })
    }
}

fn tame(seen: f64, expected: f64) -> f64 {
    seen.clamp(expected / WILD, expected * WILD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use maitre_base::Rng;

    fn seconds(value: f64) -> Duration {
        Duration::from_secs_f64(value)
    }

    /// Feeds a worker that takes `truth`, with noise, and returns what was learned.
    fn learn(truth: LinearFit, observations: usize, wild: usize) -> Rates {
        let mut rng = Rng::new(7);
        let mut rates = Rates::default();
        for number in 0..observations {
            let tokens = 200 + rng.below(8_000) as u64;
            let noise = 0.9 + 0.2 * rng.unit();
            let mut took = truth.at(tokens as f64) * noise;
            if wild > 0 && number % wild == 0 {
                took *= 100.0;
            }
            rates.first_token(tokens, seconds(took), Rates::usual().0);
        }
        rates
    }

    #[track_caller]
    fn check_near(actual: f64, expected: f64, within: f64) {
        let off = (actual / expected - 1.0).abs();
        assert!(off < within, "{actual} should be near {expected}");
    }

    #[test]
    fn a_line_is_learned_from_noise() {
        for truth in [LinearFit { base: 0.05, slope: 15e-6 }, LinearFit { base: 0.2, slope: 400e-6 }] {
            let rates = learn(truth, 100, 0);
            check_near(rates.prefill.slope, truth.slope, 0.15);
            check_near(rates.prefill.at(4_000.0), truth.at(4_000.0), 0.1);
        }
    }

    #[test]
    fn one_wild_observation_in_fifty_does_little() {
        let truth = LinearFit { base: 0.05, slope: 100e-6 };
        let rates = learn(truth, 300, 50);
        check_near(rates.prefill.at(4_000.0), truth.at(4_000.0), 0.35);
    }

    #[test]
    fn a_tenfold_slowdown_is_learned_in_a_few_dozen_answers() {
        let mut rates = learn(LinearFit { base: 0.02, slope: 50e-6 }, 200, 0);
        for _ in 0..60 {
            rates.first_token(4_000, seconds(10.0 * (0.02 + 0.2)), Rates::usual().0);
        }
        assert!(rates.prefill.at(4_000.0) > 1.2, "{:?}", rates.prefill);
    }

    #[test]
    fn before_data_the_fleet_is_the_best_guess() {
        let fleet = learn(LinearFit { base: 0.1, slope: 500e-6 }, 200, 0);
        let mut new = Rates::default();
        new.lean(&fleet);
        check_near(new.prefill.at(4_000.0), fleet.prefill.at(4_000.0), 0.01);
    }

    #[test]
    fn a_worker_nobody_saw_here_is_as_fast_as_others_found_it_and_what_we_see_counts_more() {
        let (fast, slow) = (LinearFit { base: 0.02, slope: 40e-6 }, LinearFit { base: 0.1, slope: 300e-6 });
        let (step, slow_step) =
            (LinearFit { base: 0.01, slope: 1e-4 }, LinearFit { base: 0.04, slope: 4e-4 });
        let (mut fleet, mut one, mut other) = (Rates::default(), Rates::default(), Rates::default());
        for _ in 0..4 {
            fleet.hear_of_any((fast, step));
            one.hear(&fleet, (fast, step));
            fleet.hear_of_any((slow, slow_step));
            other.hear(&fleet, (slow, slow_step));
        }
        assert!(fleet.is_learned() && one.is_learned());
        check_near(one.prefill.at(4_000.0), fast.at(4_000.0), 0.6);
        check_near(other.prefill.at(4_000.0), slow.at(4_000.0), 0.15);
        check_near(other.decode.at(32.0), slow_step.at(32.0), 0.25);
        assert!(one.prefill.slope < other.prefill.slope / 2.0 && one.decode.base < other.decode.base / 2.0);
        assert_eq!((one.to_tell(), fleet.to_tell()), (None, None), "hearsay is not passed on");
        // The worker is really twice as slow as it was said to be.
        for number in 0..150 {
            let tokens = 500 + 100 * (number % 40);
            one.first_token(tokens, seconds(2.0 * fast.at(tokens as f64)), fleet.as_lean());
        }
        check_near(one.prefill.at(4_000.0), 2.0 * fast.at(4_000.0), 0.2);
        assert!(one.to_tell().is_some());
        let before = one;
        one.hear(&fleet, (slow, slow_step));
        assert_eq!(one, before, "who has seen it knows better");
    }

    #[test]
    fn nonsense_is_not_heard() {
        let fine = LinearFit { base: 0.02, slope: 40e-6 };
        for (base, slope) in [(f64::NAN, 1e-6), (0.1, f64::INFINITY), (-1.0, 1e-6), (0.1, 0.0), (1e9, 1e-6)] {
            let odd = LinearFit { base, slope };
            let mut rates = Rates::default();
            rates.hear(&Rates::default(), (odd, fine));
            rates.hear(&Rates::default(), (fine, odd));
            rates.hear_of_any((odd, fine));
            rates.hear_of_any((fine, odd));
            assert_eq!(rates, Rates::default(), "{odd:?}");
        }
    }

    #[test]
    fn prompts_of_one_size_leave_a_slope() {
        let mut rates = Rates::default();
        for _ in 0..500 {
            rates.first_token(1_000, seconds(0.3), Rates::usual().0);
        }
        check_near(rates.prefill.at(1_000.0), 0.3, 0.1);
        assert!(rates.prefill.slope > 0.0 && rates.prefill.base >= 0.0);
    }

    #[test]
    fn steps_are_learned_by_the_crowd_they_serve() {
        let mut rates = Rates::default();
        let mut rng = Rng::new(3);
        for _ in 0..200 {
            let requests = rng.below(100) as f64;
            rates.step(requests, seconds(0.02 + 0.000_5 * requests), Rates::usual().1);
        }
        check_near(rates.decode.at(80.0), 0.06, 0.1);
        check_near(rates.decode.slope, 0.000_5, 0.15);
    }
}
