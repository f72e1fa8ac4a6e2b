//! How fast a worker is, learned from the times of first tokens and from the gaps between tokens.
//!
//! Both are linear. A first token takes a base time plus a time for each token to prefill before it, ours and those
//! promised earlier, and for what those attend to (see `attention`). A step takes a base time plus a time for each
//! request in it. So a rate is a weighted regression kept as five decaying sums: the last few dozen observations have
//! half of the weight. Each worker's fit has that of all workers of its model as a prior, which has the usual figures of
//! engines, or the mean of other models (see `shared_rates`). So a new worker is priced like its neighbours, and an idle
//! one keeps plausible rates. Where a model runs on several kinds of GPU, its rates mean those of the worker's kind.
//!
//! For steps a worker has only one number of its own: how slow it is relative to its model's fit. At one worker the
//! number of requests hardly changes, while other requests' prefills stretch the steps. A fit through such points was
//! noise: for minutes it said that further requests cost nothing. With the one number, mean TTFT without reuse fell
//! from 0.67 to 0.59 s. We tried to divide a worker's observations by its slowness before they enter the common fit,
//! and dropped it. On two kinds of GPU responses ended 3 % sooner, but a worker that turned four times slower kept 0.82
//! of its share instead of 0.80 (120 seeds).
//!
//! One observation in hundreds is an outlier (a paused process, a client that did not read). So an observation counts
//! as at most four times and at least a quarter of the expectation. A worker that really became ten times slower is
//! still learned in a handful of answers, because the expectation moves with each.
//!
//! Evidence ages. The rates of a worker that shows none fade to its model's (see `staleness`), so that some request
//! tries it again. That trial decides: it confirms the old rates, or it is nearer to its model's and replaces them.
//! We tried faster reactions and dropped them: rates that follow three slow observations in a row, and a memory of
//! thirteen observations instead of 34. They mistake queues, long prefills and full caches for slow workers. They
//! cost 7 to 48 % of mean TTFT, in geometric mean over the ranked workloads.
//!
//! Left out: other requests' prefills stretch shared steps. The slopes absorb that, for the current mix of prompts.

use std::time::Duration;

use maitre_base::{Instant, PrefillWork};

use crate::attention::{self, PrefillFit};
use crate::staleness::{Staleness, UNLIKE, is_unlike};

/// The weight that an observation keeps after the next one: half after 34.
const MEMORY: f64 = 0.98;
/// How many observations a prior is worth. For a worker the prior is its model's fit. For the model it is the usual
/// figures, which it soon forgets. Otherwise an untried worker would look slow beside others that are faster than
/// usual, and would stay untried.
const LEAN: f64 = 4.0;
const LEAN_OF_MODEL: f64 = 0.5;
/// The same for a model's steps, whose fit needs many different loads: half after 140.
const MEMORY_OF_MODEL: f64 = 0.995;
/// How many steps at its model's pace the prior of a worker's slowness is worth.
const LEAN_STEPS: f64 = 8.0;
/// How many observations another router's rates are worth until our own replace them. It is more than the prior, or a
/// worker unlike its neighbours would be priced half like them.
const HEARSAY: f64 = 16.0;
/// Another router's rates count as four points for its model: enough for its rates to be learned instead of usual.
const HEARSAY_POINTS: [f64; 4] = [0.0, 1.0, 0.0, 1.0];
/// First tokens that this router must see before it sends its rates to others: as many as the prior is worth.
const TOLD_FROM: u32 = 4;

/// A worker probably has another GPU if its prompt tokens take this many times longer or shorter than those of the workers
/// that it is compared with. Tested with long prompts on one GPU and short ones on a slower GPU: the router learned that a
/// token takes twice as long after 11,000 tokens with 1.25, and after 16,000 with 2, where 18,000 is true. Equal workers
/// seldom differ so much.
const OTHER_GPU: f64 = 2.0;

/// Maximum factor between one observation and its expectation.
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

    /// Moved by this part towards another fit.
    fn faded(&self, part: f64, to: &LinearFit) -> LinearFit {
        let mix = |own: f64, other: f64| own + part * (other - own);
        LinearFit { base: mix(self.base, to.base), slope: mix(self.slope, to.slope) }
    }

    /// A fit by plain tokens, where attending to a token takes this part of computing one.
    const fn attending(self, part: f64) -> PrefillFit {
        PrefillFit::new(self.base, self.slope, part)
    }

    /// Whether the fit is usable: a fit from another router may hold any value.
    fn is_sane(&self) -> bool {
        let is_time = |it: f64| (0.0..MOST_SECONDS).contains(&it);
        is_time(self.base) && is_time(self.slope) && self.slope > 0.0
    }
}

impl PrefillFit {
    /// The fit by tokens that attend to nothing.
    pub fn by_plain_tokens(&self) -> LinearFit {
        LinearFit { base: self.base, slope: self.slope }
    }
}

/// A prior, and its weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lean {
    pub(crate) fit: LinearFit,
    pub(crate) weight: f64,
}

/// The priors of a model, of which the router knows only what others are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Priors {
    pub first_token: Lean,
    pub step: Lean,
}

impl Priors {
    /// The usual figures.
    pub const USUAL: Priors = Priors::like((FIRST_TOKEN, STEP));

    pub(crate) const fn like((first_token, step): (LinearFit, LinearFit)) -> Priors {
        Priors {
            first_token: Lean { fit: first_token, weight: LEAN_OF_MODEL },
            step: Lean { fit: step, weight: LEAN_OF_MODEL },
        }
    }
}

impl Default for Priors {
    fn default() -> Priors {
        Priors::USUAL
    }
}

/// Recent points, as sums.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LinearRegression {
    pub(crate) weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl LinearRegression {
    pub(crate) fn learn(&mut self, memory: f64, x: f64, y: f64) {
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

    /// The prior of a worker with these first tokens: its model's fit, scaled by how slow the worker is. Prompts of
    /// one length do not show a slope. With the unscaled fit as prior, a worker five times slower than the
    /// others seemed 22 % faster than it is, at twice the lengths seen.
    fn lean(&self, model: &Rates) -> Lean {
        let usual = model.prefill.by_plain_tokens();
        let few = LEAN * usual.at(FIRST_TOKEN_SPAN);
        Lean { fit: self.slowed(usual, few), weight: LEAN }
    }

    /// Another fit, as much slower as these points are; `few` seconds as fast as it count beside them.
    pub(crate) fn slowed(&self, usual: LinearFit, few: f64) -> LinearFit {
        let slowness = (self.y + few) / (self.weight * usual.base + self.x * usual.slope + few);
        LinearFit { base: usual.base * slowness, slope: usual.slope * slowness }
    }

    /// The fit through the points and through two more of the prior, one at zero and one at `span`.
    ///
    /// Never below zero and never flat: a slope of zero would make work free.
    pub(crate) fn fit(&self, lean: Lean, span: f64) -> LinearFit {
        let Lean { fit: lean, weight } = lean;
        let half = weight / 2.0;
        let all = self.plus(half, 0.0, lean.at(0.0)).plus(half, span, lean.at(span));
        let variance = all.weight * all.xx - all.x * all.x;
        let slope = (all.weight * all.xy - all.x * all.y) / variance;
        let base = (all.y - slope * all.x) / all.weight;
        if base < 0.0 {
            // Then through the origin.
            return LinearFit { base: 0.0, slope: all.xy / all.xx };
        }
        if slope < lean.slope / SLOPE_RANGE {
            let slope = lean.slope / SLOPE_RANGE;
            return LinearFit { base: ((all.y - slope * all.x) / all.weight).max(0.0), slope };
        }
        LinearFit { base, slope }
    }
}

/// A slope this many times flatter than its prior is noise.
const SLOPE_RANGE: f64 = 50.0;

/// The usual figures of engines, before any was observed: 20,000 prompt tokens a second, a base of 20 ms,
/// steps of 10 ms and a tenth of a millisecond for each further request. An 8B model on one large GPU; a 70B
/// one on four is twice as slow.
const FIRST_TOKEN: LinearFit = LinearFit { base: 0.020, slope: 50e-6 };
const STEP: LinearFit = LinearFit { base: 0.010, slope: 100e-6 };

/// No base and no slope is this large.
const MOST_SECONDS: f64 = 1_000.0;

/// The second point of a prior lies here: an ordinary prompt, an ordinary number of requests.
const FIRST_TOKEN_SPAN: f64 = 4_000.0;
const STEP_SPAN: f64 = 32.0;

/// The rates of one worker, or of all workers of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    first_token: LinearRegression,
    /// For a model.
    step: LinearRegression,
    /// For a worker: the seconds its recent steps took, and the seconds they would take at its model's rate.
    seen: f64,
    expected: f64,
    /// For a worker: how many of its steps were observed.
    steps: u32,
    /// Seconds to the first token, by the work to prefill.
    pub prefill: PrefillFit,
    /// Seconds between tokens, by requests that share the step.
    pub decode: LinearFit,
    /// The time to attend to one token, as a part of the time to compute one. Its model's value.
    pub(crate) attention: f64,
    /// First tokens that this router observed, not those that others reported.
    own: u32,
    /// For a worker: the age of its last first token and of its last steps.
    first_token_age: Staleness,
    step_age: Staleness,
}

impl Default for Rates {
    fn default() -> Rates {
        Rates {
            first_token: LinearRegression::default(),
            step: LinearRegression::default(),
            seen: 0.0,
            expected: 0.0,
            steps: 0,
            prefill: FIRST_TOKEN.attending(attention::USUAL),
            decode: STEP,
            attention: attention::USUAL,
            own: 0,
            first_token_age: Staleness::default(),
            step_age: Staleness::default(),
        }
    }
}

impl Rates {
    /// Whether enough first tokens were seen to use them instead of the usual figures.
    pub fn is_learned(&self) -> bool {
        self.first_token.weight >= LEAN
    }

    /// A first token came after `took` at any worker of this model, with this much to prefill before it.
    pub fn first_token(&mut self, work: PrefillWork, took: Duration, lean: Lean) {
        self.own = self.own.saturating_add(1);
        self.learn_first_token(work, took.as_secs_f64());
        self.fit_first_token(lean);
    }

    /// The time until a first token, limited to a factor of `WILD` around the expectation.
    pub(crate) fn tame_first_token(&self, work: PrefillWork, seconds: f64) -> f64 {
        tame(seconds, self.prefill.at(work))
    }

    /// How many times longer this worker takes for a prompt token than its model's do, if it has another kind of GPU.
    ///
    /// If each kind of GPU gets prompts of its own length, the difference between workers would look
    /// like one between short and long prompts.
    pub(crate) fn slowness_beside(&self, model: &Rates) -> f64 {
        let (own, usual) = (self.prefill.slope, model.prefill.slope);
        if is_unlike(own, usual, OTHER_GPU) { own / usual } else { 1.0 }
    }

    fn learn_first_token(&mut self, work: PrefillWork, seconds: f64) {
        let seconds = self.tame_first_token(work, seconds);
        self.first_token.learn(MEMORY, self.prefill.plain_tokens(work), seconds);
    }

    fn fit_first_token(&mut self, lean: Lean) {
        self.prefill = self.first_token.fit(lean, FIRST_TOKEN_SPAN).attending(self.attention);
    }

    /// The same, at this worker.
    pub fn first_token_beside(&mut self, model: &Rates, now: Instant, work: PrefillWork, took: Duration) {
        let seconds = took.as_secs_f64();
        self.own = self.own.saturating_add(1);
        let usual = model.prefill.at(work);
        let expected = self.prefill.at(work);
        if self.first_token_age.is_disproved(seconds, expected, usual) {
            self.forget_if(is_unlike(expected, usual, UNLIKE));
            self.first_token = LinearRegression::default();
            self.lean(model);
        }
        self.learn_first_token(work, seconds);
        self.fit_first_token(self.first_token.lean(model));
        self.first_token_age.refresh(now, model.own, is_unlike(self.prefill.at(work), usual, UNLIKE));
    }

    /// The tokens of an answer came this far apart, with this many requests in the batch, at any worker of this model.
    pub fn step(&mut self, requests: f64, gap: Duration, lean: Lean) {
        let seen = tame(gap.as_secs_f64(), self.decode.at(requests));
        self.step.learn(MEMORY_OF_MODEL, requests, seen);
        self.decode = self.step.fit(lean, STEP_SPAN);
    }

    /// The same, at this worker.
    pub fn step_beside(&mut self, model: &Rates, now: Instant, requests: f64, gap: Duration) {
        let (gap, usual) = (gap.as_secs_f64(), model.decode.at(requests));
        let expected = self.decode.at(requests);
        if self.step_age.is_disproved(gap, expected, usual) {
            self.forget_if(is_unlike(expected, usual, UNLIKE));
            (self.seen, self.expected, self.steps) = (0.0, 0.0, 0);
            self.lean(model);
        }
        let seen = tame(gap, self.decode.at(requests));
        self.steps = self.steps.saturating_add(1);
        self.seen = self.seen * MEMORY + seen;
        self.expected = self.expected * MEMORY + usual;
        self.compare(model.decode);
        self.step_age.refresh(now, model.own, is_unlike(self.decode.at(requests), usual, UNLIKE));
    }

    /// A worker that has recovered shows it in first tokens and steps alike. A small difference in one of them says
    /// nothing about the other.
    fn forget_if(&mut self, was_unlike: bool) {
        if was_unlike {
            *self = Rates { own: self.own, ..Rates::default() };
        }
    }

    /// A request is placed at this idle worker.
    pub fn place(&mut self, now: Instant, model: &Rates) {
        self.first_token_age.place(now, model.own);
        self.step_age.place(now, model.own);
    }

    /// The worker's process has been replaced, so what was learned may no longer hold.
    pub fn void(&mut self) {
        self.first_token_age.void();
        self.step_age.void();
    }

    /// The rates of an idle worker that have faded to its model's for lack of evidence.
    pub fn faded(&self, now: Instant, model: &Rates) -> Option<(PrefillFit, LinearFit)> {
        let first_token = self.first_token_age.faded(now, model.own);
        let step = self.step_age.faded(now, model.own);
        let rates =
            || (self.prefill.faded(first_token, &model.prefill), self.decode.faded(step, &model.decode));
        (first_token > 0.0 || step > 0.0).then(rates)
    }

    /// Whether the steps of this worker were observed less often than its prior is worth.
    pub fn has_few_steps(&self) -> bool {
        f64::from(self.steps) < LEAN_STEPS
    }

    /// Its model's steps, scaled by this worker's slowness.
    fn compare(&mut self, model: LinearFit) {
        let lean = LEAN_STEPS * model.at(STEP_SPAN);
        let slowness = (self.seen + lean) / (self.expected + lean);
        self.decode = LinearFit { base: model.base * slowness, slope: model.slope * slowness };
    }

    /// Updates the prior, which changes while this worker is idle.
    pub fn lean(&mut self, model: &Rates) {
        self.attention = model.attention;
        self.fit_first_token(self.first_token.lean(model));
        self.compare(model.decode);
    }

    /// What this router sends to others: only what it learned from answers seen here.
    pub fn to_tell(&self) -> Option<(LinearFit, LinearFit)> {
        (self.own >= TOLD_FROM).then_some((self.prefill.by_plain_tokens(), self.decode))
    }

    /// Applies another router's rates of this worker, as long as this router has observed none. Replaces earlier
    /// ones.
    pub fn hear(&mut self, now: Instant, model: &Rates, (prefill, decode): (LinearFit, LinearFit)) {
        if self.own > 0 || !prefill.is_sane() || !decode.is_sane() {
            return;
        }
        let half = HEARSAY / 2.0;
        let line = LinearRegression::default().plus(half, 0.0, prefill.base);
        self.first_token = line.plus(half, FIRST_TOKEN_SPAN, prefill.at(FIRST_TOKEN_SPAN));
        self.seen = HEARSAY * decode.at(STEP_SPAN);
        self.expected = HEARSAY * model.decode.at(STEP_SPAN);
        self.lean(model);
        let is_unlike =
            |own: LinearFit, usual: LinearFit, at: f64| is_unlike(own.at(at), usual.at(at), UNLIKE);
        let [own, usual] = [self, model].map(|it| it.prefill.by_plain_tokens());
        let first_token = is_unlike(own, usual, FIRST_TOKEN_SPAN);
        self.first_token_age.refresh(now, model.own, first_token);
        self.step_age.refresh(now, model.own, is_unlike(self.decode, model.decode, STEP_SPAN));
    }

    /// The same for a model, from any of its workers, as long as none has answered here.
    pub fn hear_of_any(&mut self, (prefill, decode): (LinearFit, LinearFit), priors: Priors) {
        if self.own > 0 || !prefill.is_sane() || !decode.is_sane() {
            return;
        }
        for part in HEARSAY_POINTS {
            let (tokens, requests) = (part * FIRST_TOKEN_SPAN, part * STEP_SPAN);
            self.first_token.learn(MEMORY, tokens, prefill.at(tokens));
            self.step.learn(MEMORY, requests, decode.at(requests));
        }
        self.fit_first_token(priors.first_token);
        self.decode = self.step.fit(priors.step, STEP_SPAN);
    }

    /// Sets the time to attend to one token, as a part of the time to compute one.
    pub(crate) fn attend(&mut self, part: f64) {
        self.attention = part;
        self.prefill = self.prefill.by_plain_tokens().attending(part);
    }

    /// Whether this router has seen any of it.
    pub(crate) fn is_observed(&self) -> bool {
        self.own > 0 || self.steps > 0
    }

    /// Whether nothing was observed, here or by another router.
    pub(crate) fn is_blank(&self) -> bool {
        self.first_token.weight == 0.0 && self.step.weight == 0.0 && self.expected == 0.0
    }

    /// Sets the rates of a model that has shown none to what they are expected to be.
    pub(crate) fn expect(&mut self, priors: Priors) {
        self.prefill = priors.first_token.fit.attending(self.attention);
        self.decode = priors.step.fit;
    }
}

pub(crate) fn tame(seen: f64, expected: f64) -> f64 {
    seen.clamp(expected / WILD, expected * WILD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use maitre_base::{Rng, Tokens};

    /// So many tokens, which attend to nothing.
    fn plain(tokens: u64) -> PrefillWork {
        PrefillWork { tokens: Tokens(tokens), attended: 0 }
    }

    fn seconds(value: f64) -> Duration {
        Duration::from_secs_f64(value)
    }

    /// Feeds the observations of a worker that takes `truth`, with noise, and returns what was learned.
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
            rates.first_token(plain(tokens), seconds(took), Priors::USUAL.first_token);
        }
        rates
    }

    #[track_caller]
    fn check_near(actual: f64, expected: f64, within: f64) {
        let off = (actual / expected - 1.0).abs();
        assert!(off < within, "{actual} should be near {expected}");
    }

    #[test]
    fn a_fit_is_learned_from_noise() {
        for truth in [LinearFit { base: 0.05, slope: 15e-6 }, LinearFit { base: 0.2, slope: 400e-6 }] {
            let rates = learn(truth, 100, 0);
            check_near(rates.prefill.slope, truth.slope, 0.15);
            check_near(rates.prefill.at(plain(4_000)), truth.at(4_000.0), 0.1);
        }
    }

    #[test]
    fn one_wild_observation_in_fifty_does_little() {
        let truth = LinearFit { base: 0.05, slope: 100e-6 };
        let rates = learn(truth, 300, 50);
        check_near(rates.prefill.at(plain(4_000)), truth.at(4_000.0), 0.35);
    }

    #[test]
    fn a_tenfold_slowdown_is_learned_in_a_few_dozen_answers() {
        let mut rates = learn(LinearFit { base: 0.02, slope: 50e-6 }, 200, 0);
        for _ in 0..60 {
            rates.first_token(plain(4_000), seconds(10.0 * (0.02 + 0.2)), Priors::USUAL.first_token);
        }
        assert!(rates.prefill.at(plain(4_000)) > 1.2, "{:?}", rates.prefill);
    }

    #[test]
    fn before_data_its_model_is_the_best_guess() {
        let model = learn(LinearFit { base: 0.1, slope: 500e-6 }, 200, 0);
        let mut new = Rates::default();
        new.lean(&model);
        check_near(new.prefill.at(plain(4_000)), model.prefill.at(plain(4_000)), 0.01);
    }

    #[test]
    fn rates_of_other_routers_serve_until_ours_replace_them() {
        let (fast, slow) = (LinearFit { base: 0.02, slope: 40e-6 }, LinearFit { base: 0.1, slope: 300e-6 });
        let (step, slow_step) =
            (LinearFit { base: 0.01, slope: 1e-4 }, LinearFit { base: 0.04, slope: 4e-4 });
        let (mut model, mut one, mut other) = (Rates::default(), Rates::default(), Rates::default());
        for _ in 0..4 {
            model.hear_of_any((fast, step), Priors::USUAL);
            one.hear(Instant::ZERO, &model, (fast, step));
            model.hear_of_any((slow, slow_step), Priors::USUAL);
            other.hear(Instant::ZERO, &model, (slow, slow_step));
        }
        assert!(model.is_learned() && one.is_learned());
        check_near(one.prefill.at(plain(4_000)), fast.at(4_000.0), 0.6);
        check_near(other.prefill.at(plain(4_000)), slow.at(4_000.0), 0.15);
        check_near(other.decode.at(32.0), slow_step.at(32.0), 0.25);
        assert!(one.prefill.slope < other.prefill.slope / 2.0 && one.decode.base < other.decode.base / 2.0);
        assert_eq!((one.to_tell(), model.to_tell()), (None, None), "hearsay is not passed on");
        // The worker is really twice as slow as reported.
        for number in 0..150 {
            let tokens = 500 + 100 * (number % 40);
            one.first_token_beside(
                &model,
                Instant::ZERO,
                plain(tokens),
                seconds(2.0 * fast.at(tokens as f64)),
            );
        }
        check_near(one.prefill.at(plain(4_000)), 2.0 * fast.at(4_000.0), 0.2);
        assert!(one.to_tell().is_some());
        let before = one;
        one.hear(Instant::ZERO, &model, (slow, slow_step));
        assert_eq!(one, before, "who has seen it knows better");
    }

    #[test]
    fn invalid_rates_are_ignored() {
        let fine = LinearFit { base: 0.02, slope: 40e-6 };
        for (base, slope) in [(f64::NAN, 1e-6), (0.1, f64::INFINITY), (-1.0, 1e-6), (0.1, 0.0), (1e9, 1e-6)] {
            let odd = LinearFit { base, slope };
            let mut rates = Rates::default();
            rates.hear(Instant::ZERO, &Rates::default(), (odd, fine));
            rates.hear(Instant::ZERO, &Rates::default(), (fine, odd));
            rates.hear_of_any((odd, fine), Priors::USUAL);
            rates.hear_of_any((fine, odd), Priors::USUAL);
            assert_eq!(rates, Rates::default(), "{odd:?}");
        }
    }

    #[test]
    fn prompts_of_one_size_leave_a_slope() {
        let mut rates = Rates::default();
        for _ in 0..500 {
            rates.first_token(plain(1_000), seconds(0.3), Priors::USUAL.first_token);
        }
        check_near(rates.prefill.at(plain(1_000)), 0.3, 0.1);
        assert!(rates.prefill.slope > 0.0 && rates.prefill.base >= 0.0);
    }

    #[test]
    fn step_times_are_learned_by_batch_size() {
        let mut rates = Rates::default();
        let mut rng = Rng::new(3);
        for _ in 0..200 {
            let requests = rng.below(100) as f64;
            rates.step(requests, seconds(0.02 + 0.000_5 * requests), Priors::USUAL.step);
        }
        check_near(rates.decode.at(80.0), 0.06, 0.1);
        check_near(rates.decode.slope, 0.000_5, 0.15);
    }
    /// A model of which one worker is ten times slower for a minute. One of the two produces a first token every 100
    /// ms.
    struct Pair {
        model: Rates,
        worker: Rates,
        now: Instant,
    }

    const USUAL: LinearFit = LinearFit { base: 0.02, slope: 50e-6 };
    const USUAL_STEP: f64 = 0.01;

    impl Pair {
        fn with_slow_worker() -> Pair {
            let model = Rates::default();
            let mut pair = Pair { model, worker: model, now: Instant::ZERO };
            for _ in 0..600 {
                pair.model_answers(1);
                pair.worker_answers(10.0);
            }
            check_near(pair.worker.prefill.at(plain(1_000)), 10.0 * USUAL.at(1_000.0), 0.2);
            pair
        }

        fn model_answers(&mut self, answers: usize) {
            for _ in 0..answers {
                self.now = self.now + Duration::from_millis(100);
                self.model.first_token(plain(1_000), seconds(USUAL.at(1_000.0)), Priors::USUAL.first_token);
                self.model.step(1.0, seconds(USUAL_STEP), Priors::USUAL.step);
            }
        }

        fn worker_answers(&mut self, slowness: f64) {
            let Pair { model, worker, now } = self;
            worker.first_token_beside(model, *now, plain(1_000), seconds(slowness * USUAL.at(1_000.0)));
            worker.step_beside(model, *now, 1.0, seconds(slowness * USUAL_STEP));
        }

        fn try_worker(&mut self, slowness: f64) {
            self.worker.place(self.now, &self.model);
            self.worker_answers(slowness);
        }

        /// The estimated slowness of the idle worker, for first tokens and for steps.
        fn believed(&self) -> [f64; 2] {
            let (prefill, decode) =
                self.worker.faded(self.now, &self.model).unwrap_or((self.worker.prefill, self.worker.decode));
            [prefill.at(plain(1_000)) / USUAL.at(1_000.0), decode.at(1.0) / USUAL_STEP]
        }
    }

    #[test]
    fn rates_without_evidence_fade_to_its_models() {
        let mut pair = Pair::with_slow_worker();
        // Each row: seconds without a request there, and the range of the estimated slowness.
        for (after, least, most) in [(7, 8.0, 11.0), (4, 3.0, 8.0), (5, 0.9, 1.3), (600, 0.9, 1.1)] {
            pair.model_answers(after * 10);
            for slowness in pair.believed() {
                assert!((least..most).contains(&slowness), "{after} s later {slowness:.2}");
            }
        }
    }

    #[test]
    fn a_trial_decides_whether_faded_rates_still_hold() {
        let mut slow = Pair::with_slow_worker();
        slow.model_answers(200);
        slow.try_worker(10.0);
        assert!(slow.believed().iter().all(|&it| it > 8.0), "confirmed: {:?}", slow.believed());
        let mut recovered = Pair::with_slow_worker();
        recovered.model_answers(200);
        recovered.try_worker(1.0);
        assert!(recovered.believed().iter().all(|&it| it < 1.2), "replaced: {:?}", recovered.believed());
    }

    #[test]
    fn one_fast_answer_of_a_busy_slow_worker_decides_nothing() {
        let mut pair = Pair::with_slow_worker();
        pair.worker_answers(1.0);
        assert!(pair.believed().iter().all(|&it| it > 8.0), "{:?}", pair.believed());
    }

    #[test]
    fn rates_of_a_replaced_process_do_not_hold() {
        let mut pair = Pair::with_slow_worker();
        pair.worker.void();
        assert!(pair.believed().iter().all(|&it| it < 1.1), "{:?}", pair.believed());
        pair.try_worker(10.0);
        assert!(pair.believed().iter().all(|&it| it > 8.0), "the same as before: {:?}", pair.believed());
    }
}
