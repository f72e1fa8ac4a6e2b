//! The result of playing a trace, and its rows.

use std::time::Duration;

use maitre_sim::report::{self, AnswerMetrics, LossCause, LostRequest, ReportRow, RequestLabel, Targets};
use maitre_sim::sessions::tasks::{self, PlayedSession};
use serde::Serialize;

use super::refusal::Refusals;
use super::trouble::{Kind, Trouble, Troubles};

/// A request that is sent later than this after it was due is late. Chosen: well above the timer's
/// resolution.
pub const LATE: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, Default)]
pub struct Played {
    /// Answers, in the order in which the requests were due. All times are from when a request was due.
    pub seen: Vec<AnswerMetrics>,
    /// Responses with a status of 400 or above.
    pub refused: u64,
    /// Requests that failed for any other reason.
    pub failed: u64,
    pub troubles: Troubles,
    pub refusals: Refusals,
    pub late: Late,
    pub sent: u64,
    /// How many were to be sent; more than `sent` if the run ended early.
    pub planned: u64,
    /// The speed, as a multiple of the trace's.
    pub speed: f64,
    /// Answers that reported usage, and answers that reported cached tokens.
    pub told_usage: u64,
    pub told_cached: u64,
    /// How often a prompt needed an answer that was missing, and got generated text instead.
    pub missing_answers: u64,
    /// Sessions that are over, if the trace is of sessions.
    pub sessions: Vec<PlayedSession>,
    /// Refused and failed requests, by reason.
    pub(super) lost: Vec<LostRequest>,
}

/// Requests that were sent late, because the generator was busy or too many were in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Late {
    pub requests: u64,
    /// Requests that waited because the maximum was in flight; late or not.
    pub capped: u64,
    pub mean_s: f64,
    pub max_s: f64,
}

impl Played {
    pub(super) fn left(&mut self, late: Duration) {
        self.sent += 1;
        if late <= LATE {
            return;
        }
        let (late, all) = (late.as_secs_f64(), &mut self.late);
        all.requests += 1;
        all.mean_s += (late - all.mean_s) / all.requests as f64;
        all.max_s = all.max_s.max(late);
    }

    pub(super) fn lose(&mut self, label: &RequestLabel, trouble: &Trouble) {
        let how = match trouble.kind.is_refusal() {
            true => LossCause::Refused,
            false => LossCause::Failed,
        };
        match how {
            LossCause::Refused => self.refused += 1,
            LossCause::Failed => self.failed += 1,
        }
        self.lost.push(LostRequest { label: label.clone(), how });
        self.troubles.add(trouble);
    }

    /// Sent, and neither answered nor lost when the run ended.
    pub fn unfinished(&self) -> u64 {
        self.sent - self.finished()
    }

    pub fn finished(&self) -> u64 {
        self.seen.len() as u64 + self.refused + self.failed
    }

    /// Whether the hit ratio is meaningful. One answer is enough: vLLM reports nothing where nothing was
    /// cached.
    pub fn hit_ratio_known(&self) -> bool {
        self.told_cached > 0
    }

    /// A row for the whole run and, if there are several, for each part of the trace, each class and each
    /// tenant.
    pub fn rows(&self, label: &str, targets: &Targets) -> Vec<ReportRow> {
        let mut rows = vec![ReportRow::of(label, &self.seen, &self.lost, targets)];
        for by in [ReportRow::by_part, ReportRow::by_class, ReportRow::by_tenant] {
            rows.extend(by(label, &self.seen, &self.lost, targets));
        }
        rows.iter_mut().for_each(|it| it.speed = self.speed);
        match self.sessions.is_empty() {
            true => rows,
            false => rows.into_iter().map(|it| self.add_tasks(it)).collect(),
        }
    }

    /// The row of the whole run or of a tenant, with the times of its sessions.
    fn add_tasks(&self, row: ReportRow) -> ReportRow {
        match row.tenant.clone() {
            Some(name) => {
                tasks::add_tasks(row, self.sessions.iter().filter(|it| report::tenant(it.tenant) == name))
            }
            None if row.part.is_none() && row.class.is_none() => tasks::add_tasks(row, self.sessions.iter()),
            None => row,
        }
    }

    /// Notes that a reader of the numbers needs, one sentence each.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let answered = self.seen.len() as u64;
        if self.sent < self.planned || self.unfinished() > 0 {
            notes.push(format!(
                "ended early: {} of {} requests were sent, {} of them were still open",
                self.sent,
                self.planned,
                self.unfinished()
            ));
        }
        if self.late.requests > 0 {
            notes.push(format!(
                "could not keep up: {} of {} requests left more than {LATE:?} after they were due, {:.3} s on average, {:.3} s at worst; {} waited for --concurrency",
                self.late.requests, self.sent, self.late.mean_s, self.late.max_s, self.late.capped
            ));
        }
        if answered > 0 && !self.hit_ratio_known() {
            notes.push("hit ratio unknown: no answer told usage.prompt_tokens_details.cached_tokens (vLLM wants --enable-prompt-tokens-details)".to_owned());
        }
        if self.told_usage < answered {
            notes.push(format!(
                "{} answers told no usage: their tokens are events counted, and the trace's prompt",
                answered - self.told_usage
            ));
        }
        if self.missing_answers > 0 {
            notes.push(format!(
                "{} times a prompt went on from an answer that was not there yet; made-up text stood in for it",
                self.missing_answers
            ));
        }
        notes.extend(self.refusals.notes());
        notes
    }

    /// The first message of the most frequent kind of trouble.
    pub fn main_trouble(&self) -> Option<(Kind, &str)> {
        let most = self.troubles.iter().max_by_key(|it| it.1.count)?;
        Some((most.0, &most.1.first))
    }
}

#[cfg(test)]
mod tests {
    use maitre_base::Instant;

    use super::*;

    fn seen(part: u32) -> AnswerMetrics {
        AnswerMetrics {
            at: Instant::ZERO,
            first_token: Duration::from_millis(10),
            total: Duration::from_millis(20),
            prompt_tokens: 8,
            cached_tokens: 0,
            answer_tokens: 2,
            label: label(part),
        }
    }

    fn label(part: u32) -> RequestLabel {
        RequestLabel { part, ..RequestLabel::default() }
    }

    fn lose(played: &mut Played, part: u32, kind: Kind) {
        played.lose(&label(part), &Trouble::new(kind, String::new()));
    }

    #[test]
    fn a_part_without_answers_still_has_a_row() {
        let mut played = Played { seen: vec![seen(0), seen(0)], sent: 4, speed: 2.0, ..Played::default() };
        lose(&mut played, 1, Kind::Status(503));
        lose(&mut played, 1, Kind::Timeout);
        let rows = played.rows("x", &Targets::default());
        let counts: Vec<_> = rows.iter().map(|it| (it.part, it.requests, it.refused, it.failed)).collect();
        assert_eq!(counts, [(None, 2, 1, 1), (Some(0), 2, 0, 0), (Some(1), 0, 1, 1)]);
        assert_eq!(rows.iter().map(|it| it.goodput_ratio).collect::<Vec<_>>(), [0.5, 1.0, 0.0]);
        assert_eq!((rows[0].speed, played.unfinished()), (2.0, 0));
    }

    #[test]
    fn one_part_is_the_whole() {
        let played = Played { seen: vec![seen(3)], sent: 1, ..Played::default() };
        assert_eq!(played.rows("x", &Targets::default()).len(), 1);
    }

    #[test]
    fn late_requests_are_reported() {
        let mut played = Played { planned: 3, ..Played::default() };
        for millis in [1, 100, 300] {
            played.left(Duration::from_millis(millis));
        }
        assert_eq!(played.late, Late { requests: 2, capped: 0, mean_s: 0.2, max_s: 0.3 });
        let notes = played.notes().join("\n");
        assert!(notes.contains("2 of 3 requests left more than 10ms after they were due"), "{notes}");
    }
}
