//! What `maitre top` knows and shows: updates and keys in, commands out.
//!
//! No socket, no clock, no terminal: the time is a parameter, and a key returns the command it stands for. A selection
//! is kept by number, so that it stays on its row while the list moves.

use std::collections::VecDeque;
use std::time::Duration;

use maitre_views::decision::{DecisionDetail, DecisionEvent, DecisionSummary};
use maitre_views::overview::{History, Overview};
use maitre_views::worker::WorkerView;

use crate::operator::trouble::Trouble;

/// Decisions kept. Chosen: several screens.
pub(super) const DECISIONS_MAX: usize = 200;

/// As many samples as the router keeps: 15 minutes.
const SAMPLES_MAX: usize = 900;

/// How long the result of a command is shown.
const NOTICE: Duration = Duration::from_secs(6);

/// Chosen: more lines than the longest dialog has.
const SCROLL_MAX: usize = 60;

/// Rows that PgUp and PgDn move.
const PAGE: isize = 10;

#[derive(Debug, Default)]
pub(super) struct TopState {
    /// The router's address.
    pub(super) url: String,
    pub(super) overview: Overview,
    /// In order of their numbers.
    pub(super) decisions: VecDeque<DecisionSummary>,
    /// Decisions that the last event left out.
    pub(super) skipped: u64,
    pub(super) samples: VecDeque<SparkSample>,
    pub(super) stream: StreamState,
    /// When the last update came.
    updated: Duration,
    notice: Option<(String, Duration)>,
    pub(super) pane: Pane,
    worker: Option<u32>,
    decision: Option<u64>,
    pub(super) dialog: Dialog,
    /// Lines of the dialog that are scrolled away.
    pub(super) scrolled: usize,
}

/// One second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SparkSample {
    pub(super) at_ms: u64,
    pub(super) ttft_p50_ms: Option<f64>,
    pub(super) requests_per_s: f64,
}

#[derive(Debug, Default)]
pub(super) enum StreamState {
    #[default]
    Live,
    /// Why, and when the next attempt is.
    Lost(Trouble, Duration),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pane {
    #[default]
    Workers,
    Decisions,
}

/// What covers the screen.
#[derive(Debug, Default)]
pub(super) enum Dialog {
    #[default]
    None,
    Help,
    Worker(u32),
    Programs,
    Confirm(WorkerAction),
    Decision(DecisionDialog),
}

#[derive(Debug)]
pub(super) enum DecisionDialog {
    Awaited(u64),
    Shown(Box<DecisionDetail>),
    Failed(Trouble),
}

/// Drain or resume a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WorkerAction {
    pub(super) worker: u32,
    pub(super) url: String,
    pub(super) drain: bool,
}

impl WorkerAction {
    pub(super) fn word(&self) -> &'static str {
        if self.drain { "drain" } else { "resume" }
    }
}

/// The router when it was asked.
#[derive(Debug, Default)]
pub(super) struct RouterSnapshot {
    pub(super) overview: Overview,
    pub(super) decisions: Vec<DecisionSummary>,
    pub(super) history: History,
}

/// What came from the router.
#[derive(Debug)]
pub(super) enum Update {
    Snapshot(Box<RouterSnapshot>),
    Overview(Box<Overview>),
    Decisions(DecisionEvent),
    /// The stream ended; the next attempt is after this pause.
    Lost(Trouble, Duration),
    Acted(WorkerAction, Result<(), Trouble>),
    Decision(Result<Box<DecisionDetail>, Trouble>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TopKey {
    Letter(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Tab,
    Enter,
    Escape,
}

/// What a key stands for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    Quit,
    Worker(WorkerAction),
    Decision(u64),
}

impl TopState {
    pub(super) fn new(url: &str, snapshot: RouterSnapshot) -> TopState {
        let mut state = TopState { url: url.to_owned(), ..TopState::default() };
        state.begin(snapshot);
        state
    }

    /// Applies an update at `now`. True if the screen should be drawn at once.
    pub(super) fn apply(&mut self, update: Update, now: Duration) -> bool {
        match update {
            Update::Lost(why, later) => {
                self.stream = StreamState::Lost(why, now + later);
                return true;
            }
            Update::Acted(act, done) => {
                let text = match done {
                    Ok(()) if act.drain => format!("{} is draining: it gets no new requests", act.url),
                    Ok(()) => format!("{} gets requests again", act.url),
                    Err(why) => format!("could not {} {}: {why}", act.word(), act.url),
                };
                self.notice = Some((text, now + NOTICE));
                return true;
            }
            Update::Decision(answer) => {
                self.show(answer);
                return true;
            }
            Update::Snapshot(snapshot) => self.begin(*snapshot),
            Update::Overview(overview) => self.set_overview(*overview),
            Update::Decisions(event) => self.add_decisions(event),
        }
        (self.stream, self.updated) = (StreamState::Live, now);
        false
    }

    /// The result of the last command, for `NOTICE`.
    pub(super) fn notice(&self, now: Duration) -> Option<&str> {
        self.notice.as_ref().filter(|it| now < it.1).map(|it| it.0.as_str())
    }

    /// Time since the last update.
    pub(super) fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.updated)
    }

    /// The index of the selected worker; none without workers.
    pub(super) fn worker(&self) -> Option<usize> {
        let workers = &self.overview.workers;
        let found = self.worker.and_then(|id| workers.iter().position(|it| it.id == id));
        found.or((!workers.is_empty()).then_some(0))
    }

    /// The index of the selected decision, from the newest.
    pub(super) fn decision(&self) -> Option<usize> {
        let number = |number| self.decisions.iter().rev().position(|it| it.number == Some(number));
        self.decision.and_then(number).or((!self.decisions.is_empty()).then_some(0))
    }

    pub(super) fn find_worker(&self, id: u32) -> Option<&WorkerView> {
        self.overview.workers.iter().find(|it| it.id == id)
    }

    pub(super) fn press(&mut self, key: TopKey) -> Option<Command> {
        match (&mut self.dialog, key) {
            (Dialog::Confirm(act), TopKey::Letter('y' | 'Y')) => {
                let act = act.clone();
                self.dialog = Dialog::None;
                return Some(Command::Worker(act));
            }
            (Dialog::Confirm(_), TopKey::Letter('n' | 'N' | 'q') | TopKey::Escape) => {
                self.dialog = Dialog::None
            }
            // Only yes or no answers the question.
            (Dialog::Confirm(_), _) => {}
            (Dialog::None, key) => return self.press_screen(key),
            (_, TopKey::Escape | TopKey::Enter | TopKey::Letter('q' | '?')) => self.dialog = Dialog::None,
            (_, key) => self.scrolled = self.scrolled.saturating_add_signed(steps(key)).min(SCROLL_MAX),
        }
        None
    }

    fn press_screen(&mut self, key: TopKey) -> Option<Command> {
        self.scrolled = 0;
        match (key, self.pane) {
            (TopKey::Letter('q'), _) => return Some(Command::Quit),
            (TopKey::Letter('?'), _) => self.dialog = Dialog::Help,
            (TopKey::Letter('p'), _) if self.overview.programs.is_some() => self.dialog = Dialog::Programs,
            (TopKey::Tab, Pane::Workers) => self.pane = Pane::Decisions,
            (TopKey::Tab, Pane::Decisions) => self.pane = Pane::Workers,
            (TopKey::Letter('d'), Pane::Workers) => self.confirm(true),
            (TopKey::Letter('r'), Pane::Workers) => self.confirm(false),
            (TopKey::Enter, Pane::Workers) => {
                let worker = self.worker().and_then(|it| self.overview.workers.get(it));
                self.dialog = worker.map_or(Dialog::None, |it| Dialog::Worker(it.id));
            }
            (TopKey::Enter, Pane::Decisions) => {
                let number = self.decision().and_then(|it| self.newest(it))?;
                self.dialog = Dialog::Decision(DecisionDialog::Awaited(number));
                return Some(Command::Decision(number));
            }
            (key, Pane::Workers) => {
                let place = moved(self.worker(), steps(key), self.overview.workers.len());
                self.worker = place.map(|it| self.overview.workers[it].id);
            }
            (key, Pane::Decisions) => {
                let place = moved(self.decision(), steps(key), self.decisions.len());
                self.decision = place.and_then(|it| self.newest(it));
            }
        }
        None
    }

    /// The number of a decision, by its index from the newest.
    fn newest(&self, place: usize) -> Option<u64> {
        self.decisions.iter().rev().nth(place)?.number
    }

    /// Asks whether to drain, or resume, the selected worker.
    fn confirm(&mut self, drain: bool) {
        let Some(worker) = self.worker().and_then(|it| self.overview.workers.get(it)) else { return };
        self.dialog = Dialog::Confirm(WorkerAction { worker: worker.id, url: worker.url.to_string(), drain });
    }

    fn show(&mut self, answer: Result<Box<DecisionDetail>, Trouble>) {
        // The dialog may be closed by now, or show another decision.
        let Dialog::Decision(shown @ DecisionDialog::Awaited(_)) = &mut self.dialog else { return };
        match (&*shown, answer) {
            (DecisionDialog::Awaited(number), Ok(decision)) if decision.summary.number == Some(*number) => {
                *shown = DecisionDialog::Shown(decision);
            }
            (_, Ok(_)) => {}
            (_, Err(why)) => *shown = DecisionDialog::Failed(why),
        }
    }

    fn begin(&mut self, snapshot: RouterSnapshot) {
        let History { at_ms, ttft_p50_ms, requests_per_s, .. } = snapshot.history;
        let samples = at_ms.into_iter().zip(ttft_p50_ms).zip(requests_per_s);
        let samples = samples.map(|((at_ms, ttft_p50_ms), requests_per_s)| SparkSample {
            at_ms,
            ttft_p50_ms,
            requests_per_s,
        });
        self.samples = samples.collect();
        // A router that was restarted counts from one again.
        self.decisions.clear();
        self.add_decisions(DecisionEvent { decisions: snapshot.decisions, skipped: 0 });
        self.set_overview(snapshot.overview);
    }

    fn set_overview(&mut self, overview: Overview) {
        let (now, at_ms) = (&overview.now, overview.at_ms);
        if self.samples.back().is_none_or(|it| it.at_ms < at_ms) {
            let (ttft_p50_ms, requests_per_s) = (now.ttft_p50_ms, now.requests_per_s);
            self.samples.push_back(SparkSample { at_ms, ttft_p50_ms, requests_per_s });
        }
        let too_many = self.samples.len().saturating_sub(SAMPLES_MAX);
        self.samples.drain(..too_many);
        self.overview = overview;
    }

    fn add_decisions(&mut self, event: DecisionEvent) {
        self.skipped = event.skipped;
        for decision in event.decisions {
            let place = self.decisions.partition_point(|it| it.number < decision.number);
            match self.decisions.get_mut(place) {
                Some(known) if known.number == decision.number => *known = decision,
                _ => self.decisions.insert(place, decision),
            }
        }
        let too_many = self.decisions.len().saturating_sub(DECISIONS_MAX);
        self.decisions.drain(..too_many);
    }
}

fn steps(key: TopKey) -> isize {
    match key {
        TopKey::Up | TopKey::Letter('k') => -1,
        TopKey::Down | TopKey::Letter('j') => 1,
        TopKey::PageUp => -PAGE,
        TopKey::PageDown => PAGE,
        _ => 0,
    }
}

/// A selection after so many steps, among `count` rows.
fn moved(place: Option<usize>, steps: isize, count: usize) -> Option<usize> {
    Some(place?.saturating_add_signed(steps).min(count.checked_sub(1)?))
}
