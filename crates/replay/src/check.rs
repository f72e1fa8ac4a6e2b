//! `maitre replay --check`: the replay beside what was observed, on a recorded trace.
//!
//! Both columns are of the same requests: those whose complete answer was recorded and that the replay answered too.
//! All others are load in the replay, as they were in production, and are compared in no row.

use std::fmt::Write as _;

use maitre_sim::lab::AnsweredRequest;
use maitre_sim::report::{AnswerMetrics, mean, quantile};
use maitre_sim::trace::{ObservedAnswer, Request};
use serde_json::{Map, Value, json};

use crate::Run;
use crate::study::Study;
use crate::table::{seconds, title};

/// The replay is close if it is at most this far off. The sentences say so.
const HIT_RATIO_OFF: f64 = 0.02;
const MEAN_OFF: f64 = 0.15;
const P90_OFF: f64 = 0.25;
/// Smaller differences between strategies are not worth believing, however close the replay is.
const DIFFERENCE_MIN: f64 = 0.02;
/// Fewer answers have no p99.
const ANSWERS_FEW: usize = 100;

const STATISTICS: [&str; 4] = ["mean", "p50", "p90", "p99"];
const MEAN: usize = 0;
const P90: usize = 2;

/// One number, as it was and as the replay has it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Compared {
    observed: f64,
    predicted: f64,
}

impl Compared {
    fn difference(self) -> f64 {
        self.predicted - self.observed
    }

    /// How much too high the prediction is, as a part of what was observed; none if that was nothing.
    fn error(self) -> Option<f64> {
        (self.observed > 0.0).then(|| self.difference() / self.observed)
    }
}

/// One time of many answers: a number for each of `STATISTICS`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread([Compared; 4]);

/// The replay of one strategy beside what was observed.
#[derive(Clone, Debug)]
pub(crate) struct ReplayCheck {
    /// Requests of the trace, those with a complete answer on record, and those that are compared.
    requests: usize,
    observed: usize,
    compared: usize,
    /// None if no engine reported cached tokens.
    hit_ratio: Option<Compared>,
    /// None if no answer was streamed.
    ttft: Option<Spread>,
    tpot: Option<Spread>,
    e2e: Option<Spread>,
    /// The median of |predicted − observed| / observed of single requests' TTFT.
    ttft_request_error: Option<f64>,
}

/// Whether the trace has something to compare with.
pub(crate) fn ensure_observed(study: &Study) -> anyhow::Result<()> {
    let observed = study.trace.requests.iter().any(|it| it.observed.is_some());
    anyhow::ensure!(
        observed,
        "--check: no request of {} has observed times (`ttft_ms`, `e2e_ms`); record some with maitre serve --record",
        study.source
    );
    Ok(())
}

impl ReplayCheck {
    pub(crate) fn new(requests: &[Request], answers: &[AnsweredRequest]) -> ReplayCheck {
        let mut pairs: Vec<(ObservedAnswer, &AnswerMetrics)> = Vec::new();
        for answer in answers {
            let observed = requests.get(answer.number).and_then(|it| it.observed.as_deref());
            pairs.extend(observed.map(|it| (*it, &answer.metrics)));
        }
        let ttft = values(&pairs, |it| Some(it.first_token.as_secs_f64()));
        ReplayCheck {
            requests: requests.len(),
            observed: requests.iter().filter(|it| it.observed.is_some()).count(),
            compared: pairs.len(),
            hit_ratio: hit_ratio(&pairs),
            ttft_request_error: request_error(&ttft),
            ttft: Spread::of(&ttft),
            tpot: Spread::of(&values(&pairs, AnswerMetrics::per_token)),
            e2e: Spread::of(&totals(&pairs)),
        }
    }

    fn times(&self) -> [(&'static str, Option<Spread>); 3] {
        [("TTFT", self.ttft), ("TPOT", self.tpot), ("E2E", self.e2e)]
    }

    /// The times that decide: those to the first token, or else to the last.
    fn deciding(&self) -> Option<(&'static str, Spread)> {
        self.ttft.map(|it| ("TTFT", it)).or(self.e2e.map(|it| ("E2E", it)))
    }

    fn lost(&self) -> usize {
        self.observed - self.compared
    }

    /// How far to trust the replay on this traffic.
    fn sentences(&self) -> String {
        let Some((name, Spread(times))) = self.deciding() else {
            return "The replay answered none of the requests that were answered: there is nothing to compare."
                .to_owned();
        };
        let mut faults: Vec<String> = Vec::new();
        for (place, most) in [(MEAN, MEAN_OFF), (P90, P90_OFF)] {
            let error = times[place].error().filter(|it| it.abs() > most);
            faults.extend(error.map(|it| format!("{} {name} {}", STATISTICS[place], too(it))));
        }
        let are_times_off = !faults.is_empty();
        let hits = self.hit_ratio.map(Compared::difference).filter(|it| it.abs() > HIT_RATIO_OFF);
        faults.extend(hits.map(|it| format!("hit ratio {:.3} too {}", it.abs(), high_or_low(it))));
        let mut text = match faults.is_empty() {
            true => self.close(name, &times),
            false => format!("Not close on this traffic: {}.", faults.join(", ")),
        };
        if hits.is_some() {
            text += " Check the size of the caches (--kv-tokens), --workers and --knowledge.";
        } else if are_times_off {
            text += " Check --workers and --profile: the times of a replay are those of its profile, and maitre calibrate \
                     measures one.";
        }
        if !faults.is_empty() {
            text += " Do not size a fleet by it before they agree.";
        }
        text + &self.cautions()
    }

    fn close(&self, name: &str, times: &[Compared; 4]) -> String {
        let errors = [MEAN, P90].map(|it| times[it].error().unwrap_or(0.0).abs());
        let most = errors.iter().copied().fold(DIFFERENCE_MIN, f64::max);
        let hits = self.hit_ratio.map_or_else(String::new, |_| format!("hit ratio within {HIT_RATIO_OFF}, "));
        format!(
            "Close on this traffic: {hits}mean {name} within {:.0} % and p90 within {:.0} %. Believe differences between \
             strategies above {:.0} %.",
            MEAN_OFF * 100.0,
            P90_OFF * 100.0,
            (most * 100.0).ceil()
        )
    }

    fn cautions(&self) -> String {
        let mut text = String::new();
        if self.hit_ratio.is_none() {
            text += " Engines reported no cached tokens, so hit ratios are not compared.";
        }
        if self.lost() > 0 {
            let _ = write!(text, " The replay lost {} requests that were answered.", self.lost());
        }
        if self.compared < ANSWERS_FEW {
            let _ =
                write!(text, " With only {} answers, p99 is the time of a single request.", self.compared);
        }
        text
    }

    fn is_close(&self) -> bool {
        let within = |it: Compared, most: f64| it.error().is_none_or(|it| it.abs() <= most);
        let times = self
            .deciding()
            .is_some_and(|(_, Spread(it))| within(it[MEAN], MEAN_OFF) && within(it[P90], P90_OFF));
        times && self.hit_ratio.is_none_or(|it| it.difference().abs() <= HIT_RATIO_OFF)
    }

    fn json(&self, run: &Run) -> Value {
        let times = |it: Option<Spread>| it.map(Spread::json);
        json!({
            "strategy": run.row.strategy,
            "queue": run.row.queue,
            "knowledge": run.row.knowledge,
            "requests": self.requests,
            "observed": self.observed,
            "compared": self.compared,
            "hit_ratio": self.hit_ratio.map(|it| json!({
                "observed": it.observed,
                "predicted": it.predicted,
                "difference": round(it.difference()),
            })),
            "ttft_s": times(self.ttft),
            "tpot_s": times(self.tpot),
            "e2e_s": times(self.e2e),
            "ttft_request_error_ratio": self.ttft_request_error.map(round),
            "close": self.is_close(),
            "finding": self.sentences(),
        })
    }

    fn draw(&self, run: &Run) -> String {
        let queue = if run.row.queue == Some(true) { "on" } else { "off" };
        let mut text = format!(
            "{}, queue {queue}: {} requests, {} answered, {} compared\n\n",
            run.row.strategy, self.requests, self.observed, self.compared
        );
        let mut lines = vec![["", "observed", "predicted", "error"].map(str::to_owned)];
        lines.extend(self.hit_ratio.map(|it| {
            let [observed, predicted] = [it.observed, it.predicted].map(|it| format!("{it:.3}"));
            ["hit ratio".to_owned(), observed, predicted, format!("{:+.3}", it.difference())]
        }));
        for (name, spread) in self.times() {
            let Some(Spread(numbers)) = spread else { continue };
            for (statistic, it) in STATISTICS.iter().zip(numbers) {
                let [observed, predicted] = [it.observed, it.predicted].map(|it| time(name, it));
                lines.push([format!("{name} {statistic}"), observed, predicted, percent(it.error())]);
            }
        }
        for [name, observed, predicted, error] in &lines {
            let line = format!("{name:<9}  {observed:>9}  {predicted:>9}  {error:>8}");
            let _ = writeln!(text, "{}", line.trim_end());
        }
        if let Some(error) = self.ttft_request_error {
            let _ =
                writeln!(text, "\nHalf of the requests are within {:.0} % of their own TTFT.", error * 100.0);
        }
        text + "\n" + &self.sentences() + "\n"
    }
}

impl Spread {
    /// None of nothing.
    fn of(values: &[(f64, f64)]) -> Option<Spread> {
        let sorted = |value: fn(&(f64, f64)) -> f64| {
            let mut values: Vec<f64> = values.iter().map(value).collect();
            values.sort_unstable_by(f64::total_cmp);
            values
        };
        let (observed, predicted) = (sorted(|it| it.0), sorted(|it| it.1));
        let compared = |number: fn(&[f64]) -> f64| Compared {
            observed: number(&observed),
            predicted: number(&predicted),
        };
        let numbers: [fn(&[f64]) -> f64; 4] =
            [mean, |it| quantile(it, 0.5), |it| quantile(it, 0.9), |it| quantile(it, 0.99)];
        (!values.is_empty()).then(|| Spread(numbers.map(compared)))
    }

    fn json(self) -> Value {
        let number = |it: Compared| json!({"observed": it.observed, "predicted": it.predicted, "error_ratio": it.error().map(round)});
        let numbers = STATISTICS.iter().zip(self.0).map(|(name, it)| ((*name).to_owned(), number(it)));
        Value::Object(numbers.collect::<Map<String, Value>>())
    }
}

/// What each pair has of a time to the first token, observed and predicted. TPOT counts the tokens on record.
fn values(
    pairs: &[(ObservedAnswer, &AnswerMetrics)],
    value: fn(&AnswerMetrics) -> Option<f64>,
) -> Vec<(f64, f64)> {
    let pair = |(observed, predicted): &(ObservedAnswer, &AnswerMetrics)| {
        let as_observed = AnswerMetrics {
            first_token: observed.first_token?,
            total: observed.total,
            answer_tokens: predicted.answer_tokens,
            ..AnswerMetrics::default()
        };
        Some((value(&as_observed)?, value(predicted)?))
    };
    pairs.iter().filter_map(pair).collect()
}

fn totals(pairs: &[(ObservedAnswer, &AnswerMetrics)]) -> Vec<(f64, f64)> {
    pairs.iter().map(|(one, other)| (one.total.as_secs_f64(), other.total.as_secs_f64())).collect()
}

fn hit_ratio(pairs: &[(ObservedAnswer, &AnswerMetrics)]) -> Option<Compared> {
    let (mut observed, mut predicted, mut prompts) = (0.0, 0.0, 0.0);
    for (one, other) in pairs {
        let Some(cached) = one.cached_tokens else { continue };
        observed += f64::from(cached);
        predicted += f64::from(other.cached_tokens);
        prompts += f64::from(other.prompt_tokens);
    }
    let ratio = |tokens: f64| round(tokens / prompts);
    (prompts > 0.0).then(|| Compared { observed: ratio(observed), predicted: ratio(predicted) })
}

fn request_error(values: &[(f64, f64)]) -> Option<f64> {
    let error = |&(observed, predicted): &(f64, f64)| Compared { observed, predicted }.error().map(f64::abs);
    let mut errors: Vec<f64> = values.iter().filter_map(error).collect();
    errors.sort_unstable_by(f64::total_cmp);
    (!errors.is_empty()).then(|| quantile(&errors, 0.5))
}

fn too(error: f64) -> String {
    format!("{:.0} % too {}", error.abs() * 100.0, high_or_low(error))
}

fn high_or_low(difference: f64) -> &'static str {
    if difference > 0.0 { "high" } else { "low" }
}

/// TPOT has milliseconds with a digit, as in the other tables.
fn time(name: &str, value: f64) -> String {
    if name == "TPOT" { format!("{:.1} ms", value * 1e3) } else { seconds(value) }
}

fn percent(error: Option<f64>) -> String {
    // Adding zero turns minus zero into zero.
    error.map_or_else(|| "-".to_owned(), |it| format!("{:+.0} %", (it * 100.0).round() + 0.0))
}

fn round(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

fn checks<'a>(study: &Study, runs: &'a [Run]) -> Vec<(ReplayCheck, &'a Run)> {
    runs.iter().map(|it| (ReplayCheck::new(&study.trace.requests, &it.outcome.answers), it)).collect()
}

/// A table and a finding for each strategy.
pub(crate) fn draw(study: &Study, runs: &[Run]) -> String {
    let tables: Vec<String> = checks(study, runs).iter().map(|(check, run)| check.draw(run)).collect();
    title(study) + &tables.join("\n")
}

pub(crate) fn json(study: &Study, runs: &[Run]) -> Value {
    checks(study, runs).iter().map(|(check, run)| check.json(run)).collect()
}

#[cfg(test)]
mod tests;
