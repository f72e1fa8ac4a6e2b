//! What `maitre top` knows and shows: news and keys in, wishes out.
//!
//! No socket, no clock, no terminal: the time is a parameter, keys are our own, and what is to be done about one is
//! returned. What is selected is selected by its number, so that it stays while the list moves under it.

use std::collections::VecDeque;
use std::time::Duration;

use crate::operator::api::{Decision, Decisions, History, Overview, Worker};
use crate::operator::trouble::Trouble;

/// Decisions that are remembered. Chosen: some screens full.
pub(super) const DECISIONS_MAX: usize = 200;

/// As many samples as the router itself keeps: a quarter of an hour.
const SAMPLES_MAX: usize = 900;

/// How long it is shown what became of a wish.
const NOTICE: Duration = Duration::from_secs(6);

/// More lines than the longest dialog has.
const TOP_MAX: usize = 60;

/// How far a key that turns pages moves.
const PAGE: isize = 10;

#[derive(Debug, Default)]
pub(super) struct State {
    /// The router's address, for people.
    pub(super) url: String,
    pub(super) overview: Overview,
    /// In order of their numbers.
    pub(super) decisions: VecDeque<Decision>,
    /// Those of the last event that were left out.
    pub(super) skipped: u64,
    pub(super) samples: VecDeque<Sample>,
    pub(super) link: Link,
    /// When anything was last heard.
    heard: Duration,
    notice: Option<(String, Duration)>,
    pub(super) pane: Pane,
    worker: Option<u32>,
    decision: Option<u64>,
    pub(super) dialog: Dialog,
    /// How many of its lines are scrolled away.
    pub(super) top: usize,
}

/// One second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) at_ms: u64,
    pub(super) ttft_p50_ms: Option<f64>,
    pub(super) requests_per_s: f64,
}

#[derive(Debug, Default)]
pub(super) enum Link {
    #[default]
    Live,
    /// Why, and when it is tried again.
    Lost(Trouble, Duration),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pane {
    #[default]
    Workers,
    Decisions,
}

/// What lies over the picture.
#[derive(Debug, Default)]
pub(super) enum Dialog {
    #[default]
    None,
    Help,
    Worker(u32),
    Sure(Act),
    Decision(Weighed),
}

#[derive(Debug)]
pub(super) enum Weighed {
    Awaited(u64),
    There(Box<Decision>),
    Failed(Trouble),
}

/// What can be done to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Act {
    pub(super) worker: u32,
    pub(super) url: String,
    pub(super) drain: bool,
}

impl Act {
    pub(super) fn word(&self) -> &'static str {
        if self.drain { "drain" } else { "resume" }
    }
}

/// All that was known when it was asked for.
#[derive(Debug, Default)]
pub(super) struct Picture {
    pub(super) overview: Overview,
    pub(super) decisions: Decisions,
    pub(super) history: History,
}

/// What is heard of a router.
#[derive(Debug)]
pub(super) enum News {
    Picture(Box<Picture>),
    Overview(Box<Overview>),
    Decisions(Decisions),
    /// The stream ended; it is tried again so much later.
    Lost(Trouble, Duration),
    Acted(Act, Result<(), Trouble>),
    Weighed(Result<Box<Decision>, Trouble>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Letter(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Tab,
    Enter,
    Escape,
}

/// What is to be done about a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Quit,
    Act(Act),
    Weigh(u64),
}

impl State {
    pub(super) fn new(url: &str, picture: Picture) -> State {
        let mut state = State { url: url.to_owned(), ..State::default() };
        state.begin(picture);
        state
    }

    /// Takes in what is new at `now`. True if it should be seen at once.
    pub(super) fn hear(&mut self, news: News, now: Duration) -> bool {
        match news {
            News::Lost(why, later) => {
                self.link = Link::Lost(why, now + later);
                return true;
            }
            News::Acted(act, done) => {
                let text = match done {
                    Ok(()) if act.drain => format!("{} drains: it gets no new requests", act.url),
                    Ok(()) => format!("{} gets requests again", act.url),
                    Err(why) => format!("could not {} {}: {why}", act.word(), act.url),
                };
                self.notice = Some((text, now + NOTICE));
                return true;
            }
            News::Weighed(told) => {
                self.show(told);
                return true;
            }
            News::Picture(picture) => self.begin(*picture),
            News::Overview(overview) => self.look(*overview),
            News::Decisions(decisions) => self.learn(decisions),
        }
        (self.link, self.heard) = (Link::Live, now);
        false
    }

    /// What became of the last wish, for a while.
    pub(super) fn notice(&self, now: Duration) -> Option<&str> {
        self.notice.as_ref().filter(|it| now < it.1).map(|it| it.0.as_str())
    }

    /// How old all this is.
    pub(super) fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.heard)
    }

    /// The place of the selected worker among all; none without workers.
    pub(super) fn worker(&self) -> Option<usize> {
        let workers = &self.overview.workers;
        let found = self.worker.and_then(|id| workers.iter().position(|it| it.id == id));
        found.or((!workers.is_empty()).then_some(0))
    }

    /// The place of the selected decision, counted from the newest.
    pub(super) fn decision(&self) -> Option<usize> {
        let number = |number| self.decisions.iter().rev().position(|it| it.number == Some(number));
        self.decision.and_then(number).or((!self.decisions.is_empty()).then_some(0))
    }

    pub(super) fn find_worker(&self, id: u32) -> Option<&Worker> {
        self.overview.workers.iter().find(|it| it.id == id)
    }

    pub(super) fn press(&mut self, key: Key) -> Option<Wish> {
        match (&mut self.dialog, key) {
            (Dialog::Sure(act), Key::Letter('y' | 'Y')) => {
                let act = act.clone();
                self.dialog = Dialog::None;
                return Some(Wish::Act(act));
            }
            (Dialog::Sure(_), Key::Letter('n' | 'N' | 'q') | Key::Escape) => self.dialog = Dialog::None,
            // Whoever is asked a question should answer that one.
            (Dialog::Sure(_), _) => {}
            (Dialog::None, key) => return self.press_picture(key),
            (_, Key::Escape | Key::Enter | Key::Letter('q' | '?')) => self.dialog = Dialog::None,
            (_, key) => self.top = self.top.saturating_add_signed(steps(key)).min(TOP_MAX),
        }
        None
    }

    fn press_picture(&mut self, key: Key) -> Option<Wish> {
        self.top = 0;
        match (key, self.pane) {
            (Key::Letter('q'), _) => return Some(Wish::Quit),
            (Key::Letter('?'), _) => self.dialog = Dialog::Help,
            (Key::Tab, Pane::Workers) => self.pane = Pane::Decisions,
            (Key::Tab, Pane::Decisions) => self.pane = Pane::Workers,
            (Key::Letter('d'), Pane::Workers) => self.ask(true),
            (Key::Letter('r'), Pane::Workers) => self.ask(false),
            (Key::Enter, Pane::Workers) => {
                let worker = self.worker().and_then(|it| self.overview.workers.get(it));
                self.dialog = worker.map_or(Dialog::None, |it| Dialog::Worker(it.id));
            }
            (Key::Enter, Pane::Decisions) => {
                let number = self.decision().and_then(|it| self.newest(it))?;
                self.dialog = Dialog::Decision(Weighed::Awaited(number));
                return Some(Wish::Weigh(number));
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

    /// The number of a decision, counted from the newest.
    fn newest(&self, place: usize) -> Option<u64> {
        self.decisions.iter().rev().nth(place)?.number
    }

    /// Asks whether the selected worker should be drained, or resumed.
    fn ask(&mut self, drain: bool) {
        let Some(worker) = self.worker().and_then(|it| self.overview.workers.get(it)) else { return };
        self.dialog = Dialog::Sure(Act { worker: worker.id, url: worker.url.to_string(), drain });
    }

    fn show(&mut self, told: Result<Box<Decision>, Trouble>) {
        // Whoever closed it, or opened another one since, does not want this one.
        let Dialog::Decision(shown @ Weighed::Awaited(_)) = &mut self.dialog else { return };
        match (&*shown, told) {
            (Weighed::Awaited(number), Ok(decision)) if decision.number == Some(*number) => {
                *shown = Weighed::There(decision);
            }
            (_, Ok(_)) => {}
            (_, Err(why)) => *shown = Weighed::Failed(why),
        }
    }

    fn begin(&mut self, picture: Picture) {
        let History { at_ms, ttft_p50_ms, requests_per_s } = picture.history;
        let samples = at_ms.into_iter().zip(ttft_p50_ms).zip(requests_per_s);
        let samples = samples.map(|((at_ms, ttft_p50_ms), requests_per_s)| Sample {
            at_ms,
            ttft_p50_ms,
            requests_per_s,
        });
        self.samples = samples.collect();
        // Of a router that was started anew: it counts from one again.
        self.decisions.clear();
        self.learn(picture.decisions);
        self.look(picture.overview);
    }

    fn look(&mut self, overview: Overview) {
        let (now, at_ms) = (&overview.now, overview.at_ms);
        if self.samples.back().is_none_or(|it| it.at_ms < at_ms) {
            let (ttft_p50_ms, requests_per_s) = (now.ttft_p50_ms, now.requests_per_s);
            self.samples.push_back(Sample { at_ms, ttft_p50_ms, requests_per_s });
        }
        let too_many = self.samples.len().saturating_sub(SAMPLES_MAX);
        self.samples.drain(..too_many);
        self.overview = overview;
    }

    fn learn(&mut self, news: Decisions) {
        self.skipped = news.skipped;
        for decision in news.decisions {
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

fn steps(key: Key) -> isize {
    match key {
        Key::Up | Key::Letter('k') => -1,
        Key::Down | Key::Letter('j') => 1,
        Key::PageUp => -PAGE,
        Key::PageDown => PAGE,
        _ => 0,
    }
}

/// Where a selection lands, among so many.
fn moved(place: Option<usize>, steps: isize, count: usize) -> Option<usize> {
    Some(place?.saturating_add_signed(steps).min(count.checked_sub(1)?))
}
