//! The demo's live table: every worker, every half second.

use std::fmt::Write as _;
use std::time::Duration;

use maitre_dispatch::Brain;
use maitre_fleet::Worker;

use crate::demo::tally::{Tally, TokenCounts};

/// Moves to the top left and erases everything below.
pub(crate) const HOME: &str = "\x1b[H\x1b[J";

const BAR: usize = 6;

/// No wider than a plain terminal, which has 80 columns.
const TITLES: &str = "worker           state    events  now promised  cache  requests   hit  tokens\n";

/// The table as text.
pub(crate) fn draw(title: &str, elapsed: Duration, brain: &Brain, tally: &Tally) -> String {
    let mut text = format!("{title}   {:>4.0} s\n\n", elapsed.as_secs_f64());
    text.push_str(TITLES);
    for worker in brain.fleet().workers() {
        let row = tally.workers.get(&worker.url).copied().unwrap_or_default();
        line(&mut text, brain, worker, &row);
    }
    let (total, first) = (tally.total(), tally.first_tokens_ms());
    let rate = total.answer_tokens as f64 / elapsed.as_secs_f64().max(0.1);
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "\n{} requests, {} errors  hit {:.3}  TTFT p50 {:.0} ms, p99 {:.0} ms  {rate:.0} tok/s\n",
        total.requests + tally.errors,
        tally.errors,
        total.hit_ratio(),
        first.p50,
        first.p99,
    );
    text
}

fn line(text: &mut String, brain: &Brain, worker: &Worker, row: &TokenCounts) {
    let numbers = brain.cache().numbers(worker.id).unwrap_or_default();
    let held = f64::from(numbers.reported_blocks.max(numbers.predicted_blocks));
    let part = (held / f64::from(numbers.capacity_blocks.max(1))).clamp(0.0, 1.0);
    let promised = worker.promised.work.prefill.tokens + worker.promised.work.decode;
    let words = [worker.health.state().name(), brain.cache().trust(worker.id).name()];
    let load = [u64::from(worker.promised.work.requests), promised.0];
    text.push_str(&cells(worker.url.trim_start_matches("http://"), words, load, part, row));
    text.push('\n');
}

/// One row: state and trust, requests and promised tokens, the part of the cache in use, totals.
fn cells(name: &str, words: [&str; 2], load: [u64; 2], part: f64, row: &TokenCounts) -> String {
    let full = (part * BAR as f64).round() as usize;
    let ([state, trust], [requests, promised]) = (words, load);
    format!(
        "{name:<16} {state:<8} {trust:<7} {requests:>3} {promised:>8}  {}{} {:>8} {:>5.3} {:>7}",
        "█".repeat(full),
        "░".repeat(BAR - full),
        row.requests,
        row.hit_ratio(),
        row.answer_tokens,
    )
}

/// Strategies in adjacent columns.
pub(crate) fn compare(runs: &[(String, Tally)], seconds: f64) -> String {
    let mut text = String::from(
        "strategy         requests  errors  hit ratio  TTFT mean      p50      p99   tokens/s  most loaded\n",
    );
    for (name, tally) in runs {
        let (total, first) = (tally.total(), tally.first_tokens_ms());
        let most = tally.workers.values().map(|it| it.prompt_tokens - it.cached_tokens).max().unwrap_or(0);
        let mean = (total.prompt_tokens - total.cached_tokens) as f64 / tally.workers.len().max(1) as f64;
        let _ = writeln!(
            text,
            "{name:<16} {:>8} {:>7} {:>10.3} {:>7.0} ms {:>5.0} ms {:>5.0} ms {:>10.0} {:>9.2} ×",
            total.requests + tally.errors,
            tally.errors,
            total.hit_ratio(),
            first.mean,
            first.p50,
            first.p99,
            total.answer_tokens as f64 / seconds,
            most as f64 / mean.max(1.0),
        );
    }
    text.push_str("most loaded: prompt tokens computed by the busiest worker, against the mean of all\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_as_wide_as_the_titles_and_fits_into_a_plain_terminal() {
        let row = TokenCounts { requests: 12_345, answer_tokens: 1_234_567, ..TokenCounts::default() };
        let text = cells("127.0.0.1:45051", ["warming", "suspect"], [123, 1_234_567], 0.5, &row);
        assert_eq!(text.chars().count(), TITLES.trim_end().len(), "{TITLES}{text}");
        assert!(TITLES.trim_end().len() <= 80);
    }
}
