//! Counts what the demo's clients saw, per worker and in total.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

/// One answered request, as its client saw it.
#[derive(Clone, Debug, Default)]
pub(crate) struct DemoAnswer {
    pub(crate) worker: String,
    pub(crate) first_token: Duration,
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) answer_tokens: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TokenCounts {
    pub(crate) requests: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) answer_tokens: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Sessions that began.
    pub(crate) sessions: u64,
    pub(crate) errors: u64,
    /// The first error, for people.
    pub(crate) first_error: Option<String>,
    pub(crate) workers: BTreeMap<String, TokenCounts>,
    first_tokens_ms: Vec<f64>,
}

impl TokenCounts {
    fn add(&mut self, seen: &DemoAnswer) {
        self.requests += 1;
        self.prompt_tokens += seen.prompt_tokens;
        self.cached_tokens += seen.cached_tokens;
        self.answer_tokens += seen.answer_tokens;
    }

    /// The share of prompt tokens that were cached.
    pub(crate) fn hit_ratio(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64
    }
}

impl Tally {
    pub(crate) fn seen(&mut self, seen: &DemoAnswer) {
        self.workers.entry(seen.worker.clone()).or_default().add(seen);
        self.first_tokens_ms.push(seen.first_token.as_secs_f64() * 1e3);
    }

    pub(crate) fn failed(&mut self, error: String) {
        self.errors += 1;
        self.first_error.get_or_insert(error);
    }

    pub(crate) fn total(&self) -> TokenCounts {
        self.workers.values().fold(TokenCounts::default(), |sum, row| TokenCounts {
            requests: sum.requests + row.requests,
            prompt_tokens: sum.prompt_tokens + row.prompt_tokens,
            cached_tokens: sum.cached_tokens + row.cached_tokens,
            answer_tokens: sum.answer_tokens + row.answer_tokens,
        })
    }

    /// First-token times: mean, then these quantiles, in milliseconds.
    pub(crate) fn first_tokens_ms(&self) -> FirstTokens {
        let mut sorted = self.first_tokens_ms.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let index = (part * sorted.len() as f64).ceil() as usize;
            sorted.get(index.max(1) - 1).copied().unwrap_or(0.0)
        };
        let mean = sorted.iter().sum::<f64>() / sorted.len().max(1) as f64;
        FirstTokens { mean, p50: at(0.50), p99: at(0.99) }
    }

    /// The report of one strategy.
    pub(crate) fn report(&self, name: &str, seconds: f64) -> Value {
        let (total, first) = (self.total(), self.first_tokens_ms());
        let worker = |(url, row): (&String, &TokenCounts)| {
            json!({
                "url": url,
                "requests": row.requests,
                "hit_ratio": rounded(row.hit_ratio(), 4),
                "prompt_tokens": row.prompt_tokens,
                "cached_tokens": row.cached_tokens,
                "output_tokens": row.answer_tokens,
            })
        };
        json!({
            "name": name,
            "sessions": self.sessions,
            "requests": total.requests + self.errors,
            "errors": self.errors,
            "hit_ratio": rounded(total.hit_ratio(), 4),
            "ttft_mean_ms": rounded(first.mean, 1),
            "ttft_p50_ms": rounded(first.p50, 1),
            "ttft_p99_ms": rounded(first.p99, 1),
            "output_tokens_per_s": rounded(total.answer_tokens as f64 / seconds, 1),
            "workers": self.workers.iter().map(worker).collect::<Vec<_>>(),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FirstTokens {
    pub(crate) mean: f64,
    pub p50: f64,
    pub p99: f64,
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_observed_times() {
        let mut tally = Tally::default();
        for millis in 1..=100 {
            tally.seen(&DemoAnswer { first_token: Duration::from_millis(millis), ..DemoAnswer::default() });
        }
        assert_eq!(tally.first_tokens_ms(), FirstTokens { mean: 50.5, p50: 50.0, p99: 99.0 });
        assert_eq!(Tally::default().first_tokens_ms(), FirstTokens { mean: 0.0, p50: 0.0, p99: 0.0 });
    }

    #[test]
    fn a_report_has_every_documented_field() {
        let mut tally = Tally::default();
        let seen = DemoAnswer {
            worker: "w".to_owned(),
            prompt_tokens: 10,
            cached_tokens: 4,
            answer_tokens: 6,
            ..DemoAnswer::default()
        };
        tally.seen(&seen);
        tally.failed("broke".to_owned());
        let report = tally.report("random", 2.0);
        assert_eq!((&report["requests"], &report["errors"]), (&json!(2), &json!(1)));
        assert_eq!((&report["hit_ratio"], &report["output_tokens_per_s"]), (&json!(0.4), &json!(3.0)));
        assert_eq!(report["workers"][0]["url"], "w");
    }
}
