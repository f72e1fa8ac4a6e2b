//! Searches the knobs (dials) of a strategy: sets one after the other to its best value with the others
//! unchanged, until a full round brings no gain.
//!
//! Coarse on purpose: there are few dials with few values, and a finer search would only fit the noise of one
//! trace. Nothing is played here: `wants` returns the runs needed next, `take` takes their results.

use maitre_sim::report::ReportRow;

use super::dials::{Dial, Setting};
use super::target::Goal;

#[derive(Debug)]
pub(super) struct Climb {
    dials: &'static [Dial],
    /// The best settings so far.
    settings: Vec<Setting>,
    /// The dial that is searched now.
    turn: usize,
    /// Consecutive dials that brought no gain.
    idle: usize,
    runs_left: usize,
}

impl Climb {
    /// `settings` has one entry per dial, in the order of the dials.
    pub(super) fn new(dials: &'static [Dial], settings: Vec<Setting>, runs: usize) -> Climb {
        debug_assert_eq!(dials.len(), settings.len(), "one setting a dial");
        Climb { dials, settings, turn: 0, idle: 0, runs_left: runs }
    }

    pub(super) fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// The settings that must be played before `take`; empty at the end. Returns no more unplayed settings
    /// than there are runs left.
    pub(super) fn wants(&mut self, is_known: impl Fn(&[Setting]) -> bool) -> Vec<Vec<Setting>> {
        if self.idle >= self.dials.len() {
            return Vec::new();
        }
        let mut wanted = vec![self.settings.clone()];
        wanted.extend(self.neighbours());
        wanted.retain(|it| {
            let is_new = !is_known(it);
            let affordable = !is_new || self.runs_left > 0;
            self.runs_left -= usize::from(is_new && affordable);
            affordable
        });
        if wanted.len() < 2 {
            self.idle = self.dials.len();
            return Vec::new();
        }
        wanted
    }

    /// Sets the dial to its best value if that is a gain, and continues with the next dial.
    pub(super) fn take<'a>(&mut self, row: impl Fn(&[Setting]) -> Option<&'a ReportRow>, goal: &Goal) {
        let here = row(&self.settings);
        let known = self.neighbours().into_iter().filter_map(|it| Some((row(&it)?, it)));
        let gains = known.filter(|it| here.is_some_and(|here| goal.is_gain(here, it.0)));
        match gains.min_by(|one, other| goal.order(one.0, other.0)) {
            Some((_, better)) => {
                self.settings = better;
                self.idle = 1;
            }
            None => self.idle += 1,
        }
        self.turn = (self.turn + 1) % self.dials.len().max(1);
    }

    /// The settings with this dial at each of its other values.
    fn neighbours(&self) -> Vec<Vec<Setting>> {
        let (turn, now) = (self.turn, &self.settings[self.turn].value);
        let others = self.dials[turn].values.iter().filter(|it| *it != now);
        let turned = |value: &&str| {
            let mut settings = self.settings.clone();
            settings[turn].value = (*value).to_owned();
            settings
        };
        others.map(turned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::target::find;
    use super::*;
    use crate::tune::dials;
    use maitre_config::Config;
    use maitre_policy::Name;

    fn number(settings: &[Setting], dial: usize) -> f64 {
        settings[dial].value.parse().unwrap()
    }

    /// Climbs with `cost` as the height; returns the end and how many runs it took.
    fn climb(name: Name, runs: usize, cost: impl Fn(&[Setting]) -> f64) -> (Vec<Setting>, usize) {
        let goal = Goal { targets: Vec::new(), objective: find("ttft_mean").unwrap() };
        let mut climb = Climb::new(dials::of(name), dials::settings(name, &Config::default()), runs);
        let mut known: Vec<(Vec<Setting>, ReportRow)> = Vec::new();
        loop {
            let wanted = climb.wants(|it| known.iter().any(|known| known.0 == it));
            if wanted.is_empty() {
                return (climb.settings, known.len());
            }
            for settings in wanted {
                let row = ReportRow { requests: 1, ttft_mean_s: cost(&settings), ..ReportRow::default() };
                if !known.iter().any(|it| it.0 == settings) {
                    known.push((settings, row));
                }
            }
            climb.take(|it| known.iter().find(|known| known.0 == it).map(|it| &it.1), &goal);
        }
    }

    #[test]
    fn every_dial_reaches_its_best_value_even_if_it_depends_on_others() {
        // The best value of the first dial depends on the second, whose best value is five.
        let cost = |it: &[Setting]| {
            1.0 + 0.5 * (number(it, 0) - number(it, 1)).abs() + (number(it, 1) - 5.0).abs() + number(it, 2)
        };
        let (end, runs) = climb(Name::Weighted, 60, cost);
        assert_eq!((number(&end, 0), number(&end, 1), number(&end, 2)), (5.0, 5.0, 0.0));
        assert!(runs <= 60, "{runs}");
    }

    #[test]
    fn dials_without_effect_stay_and_runs_are_bounded() {
        let start = dials::settings(Name::Weighted, &Config::default());
        assert_eq!(climb(Name::Weighted, 60, |_| 1.0), (start, 1 + 6 + 5 + 5));
        let (_, runs) = climb(Name::Weighted, 4, |it| 20.0 - number(it, 0));
        assert_eq!(runs, 4);
        assert_eq!(climb(Name::Weighted, 0, |it| number(it, 0)).1, 0);
    }
}
