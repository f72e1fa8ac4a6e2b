//! The knee of a worker: the load at which its latency is twice that of an idle worker.
//!
//! A step takes a base time plus a time for each request in it. A first token takes a base time plus a time for each
//! token to prefill before it. The base dominates under a small load and the slope under a large one. The knee is
//! the load at which both are equal.
//!
//! `rates` fits the same lines for prices, from current observations. But a worker that is busy all day shows only one
//! load, and many lines fit one point. So this module keeps separate means of small, medium and large loads, each as
//! last seen, and fits a line through all of them. What an idle worker showed in the morning still counts at noon.

use std::time::Duration;

use maitre_base::Knee;

use crate::rates::LinearFit;

/// Buckets of loads below two, below four, below eight, and so on.
const SIZES: usize = 20;
/// Weight of the newest observation in its bucket, once the bucket has enough.
const NEWEST: f64 = 0.02;
/// Minimum observations for a bucket to count.
const ENOUGH: u32 = 4;
/// The usual knee of steps without prefill: 100 to 120 requests in all our profiles.
const STEP: f64 = 100.0;
/// The usual knee of first tokens.
const FIRST_TOKEN: f64 = 2_000.0;

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    count: u32,
    load: f64,
    seconds: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Curve {
    sizes: [Mean; SIZES],
}

impl Curve {
    /// Records that something took this many seconds at this load.
    fn see(&mut self, load: f64, seconds: f64) {
        let mean = &mut self.sizes[(load.max(1.0).log2() as usize).min(SIZES - 1)];
        mean.count = mean.count.saturating_add(1);
        let weight = NEWEST.max(1.0 / f64::from(mean.count));
        mean.load += weight * (load - mean.load);
        mean.seconds += weight * (seconds - mean.seconds);
    }

    /// The line through the buckets, with a prior that has the usual knee. `None` before enough was seen, or if load
    /// seems to cost nothing.
    fn line(&self, usual: f64) -> Option<LinearFit> {
        let mut sums = Sums::default();
        self.sizes.iter().filter(|it| it.count >= ENOUGH).for_each(|it| sums.add(it.load, it.seconds));
        if sums.weight == 0.0 {
            return None;
        }
        // Loads hardly vary in a steady stream, and many lines fit one point. So the prior counts like two more
        // buckets, one at no load and one at twice the mean.
        let (load, seconds) = (sums.x / sums.weight, sums.y / sums.weight);
        let slope = seconds / (usual + load);
        sums.add(0.0, usual * slope);
        sums.add(2.0 * load, (usual + 2.0 * load) * slope);
        let slope = (sums.weight * sums.xy - sums.x * sums.y) / (sums.weight * sums.xx - sums.x * sums.x);
        let base = (sums.y - slope * sums.x) / sums.weight;
        (slope > 0.0 && base > 0.0).then_some(LinearFit { base, slope }).filter(|it| it.slope.is_finite())
    }
}

/// Weighted sums over points.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Sums {
    fn add(&mut self, x: f64, y: f64) {
        // Errors are proportional: a time that is ten times longer is known ten times less exactly.
        let weight = 1.0 / y.max(1e-6).powi(2);
        self.weight += weight;
        self.x += weight * x;
        self.y += weight * y;
        self.xx += weight * x * x;
        self.xy += weight * x * y;
    }
}

/// Estimates the knee of one worker, or of all workers of a model.
#[derive(Clone, Copy, Debug, Default)]
pub struct KneeEstimator {
    /// Steps without their prefill, by the number of requests in them.
    step: Curve,
    /// First tokens, by the tokens before them.
    first_token: Curve,
    /// Mean plain tokens to prefill, and mean tokens of an answer, per request.
    prefill: f64,
    answer: f64,
}

impl KneeEstimator {
    /// A first token came `took` after its request was placed. `tokens`: the plain tokens to prefill before it.
    pub fn first_token(&mut self, tokens: f64, took: Duration) {
        self.first_token.see(tokens, took.as_secs_f64());
    }

    /// For a while steps took this long, with this many requests and this many prefill tokens in each.
    pub fn step(&mut self, requests: f64, prefill: f64, took: Duration) {
        // Subtract the prefill in the step, whose cost is known from first tokens: it varies, and would look like the
        // cost of requests.
        let took = took.as_secs_f64();
        let prefill = self.first_token.line(FIRST_TOKEN).map_or(0.0, |it| it.slope * prefill);
        self.step.see(requests, (took - prefill).max(took / 10.0));
    }

    /// An answer has ended.
    pub fn answer(&mut self, prefill: f64, tokens: f64) {
        self.prefill += NEWEST * (prefill - self.prefill);
        self.answer += NEWEST * (tokens - self.answer);
    }

    pub fn mean_prefill(&self) -> f64 {
        self.prefill
    }

    /// The knee, half from this worker's measurements and half from those of its model: one worker alone sees few loads.
    pub fn knee(&self, model: &KneeEstimator) -> Knee {
        let usual = Knee::default();
        let (own, all) = (self.own(model), model.own(model));
        let mean = |own: Option<f64>, all: Option<f64>, usual: f64| match (own, all) {
            (Some(own), Some(all)) => (own * all).sqrt(),
            (own, all) => own.or(all).unwrap_or(usual),
        };
        Knee {
            requests: mean(own.0, all.0, usual.requests),
            prefill_tokens: mean(own.1, all.1, usual.prefill_tokens),
        }
    }

    fn own(&self, model: &KneeEstimator) -> (Option<f64>, Option<f64>) {
        let first = self.first_token.line(FIRST_TOKEN);
        // In a steady stream one more request also adds its part of a prompt to each step.
        let prompt = model.prefill / model.answer.max(1.0) * first.map_or(0.0, |it| it.slope);
        let requests = self.step.line(STEP).map(|it| it.base / (it.slope + prompt));
        (requests, first.map(|it| it.base / it.slope))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Observations at loads of these sizes, at 5 ms plus 0.1 ms each: the knee is at 50.
    fn seen(loads: &[u32]) -> Curve {
        let mut curve = Curve::default();
        for &load in loads {
            for turn in 0..20 {
                let noise = 1.0 + 0.1 * f64::from(turn % 3 - 1);
                curve.see(f64::from(load), (5e-3 + 1e-4 * f64::from(load)) * noise);
            }
        }
        curve
    }

    fn bend(curve: &Curve) -> Option<f64> {
        curve.line(STEP).map(|it| it.base / it.slope)
    }

    #[test]
    fn the_knee_is_found_from_several_loads() {
        for loads in [&[1, 400][..], &[2, 10, 50, 300], &[20, 100, 600]] {
            let bend = bend(&seen(loads)).unwrap();
            assert!((40.0..65.0).contains(&bend), "{loads:?}: {bend}");
        }
    }

    #[test]
    fn observations_at_small_loads_outlast_large_ones() {
        let mut curve = seen(&[1, 5, 20]);
        for _ in 0..100_000 {
            curve.see(600.0, 0.065);
        }
        assert!((40.0..65.0).contains(&bend(&curve).unwrap()), "{:?}", bend(&curve));
    }

    #[test]
    fn one_load_alone_gives_the_usual_knee() {
        assert_eq!(bend(&seen(&[])), None);
        for loads in [&[30][..], &[300], &[300, 500]] {
            let bend = bend(&seen(loads)).unwrap();
            assert!((70.0..130.0).contains(&bend), "{loads:?}: {bend}");
        }
    }

    #[test]
    fn a_worker_without_observations_uses_its_models_knee() {
        let model = KneeEstimator { step: seen(&[1, 400]), ..KneeEstimator::default() };
        let knee = KneeEstimator::default().knee(&model);
        assert!((40.0..60.0).contains(&knee.requests), "{knee:?}");
        assert_eq!(knee.prefill_tokens, Knee::default().prefill_tokens);
    }

    #[test]
    fn prefill_in_a_step_is_distinguished_from_its_batch_size() {
        let mut knee_estimator = KneeEstimator::default();
        let spell = |crowd: u32, prefill: f64| 5e-3 + 1e-4 * f64::from(crowd) + 2e-5 * prefill;
        for turn in 0..80 {
            let tokens = 100 << (turn % 8);
            knee_estimator.first_token(tokens as f64, Duration::from_secs_f64(0.03 + 2e-5 * tokens as f64));
        }
        for turn in 0..400 {
            // Few requests when all have just arrived and the worker prefills much; many when it prefills little.
            let (crowd, prefill) = [(4, 2_000.0), (40, 500.0), (200, 100.0), (400, 50.0)][turn % 4];
            knee_estimator.step(f64::from(crowd), prefill, Duration::from_secs_f64(spell(crowd, prefill)));
            knee_estimator.answer(500.0, 100.0);
        }
        let knee = knee_estimator.knee(&knee_estimator);
        // 5 ms against 0.1 for a request and 0.1 for its five tokens of prompt a step: at 25, with a prior at
        // 100.
        assert!((20.0..32.0).contains(&knee.requests), "{knee:?}");
        assert!((1_350.0..1_650.0).contains(&knee.prefill_tokens), "{knee:?}");
    }
}
