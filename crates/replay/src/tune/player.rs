//! Plays the runs that a search requests, several at a time and none twice, and keeps the results.

use maitre_config as config;
use maitre_policy::Name;
use maitre_sim::lab::PreparedTrace;
use maitre_sim::profile::Profile;
use maitre_sim::report::ReportRow;

use super::dials::Setting;
use super::mix::RoleMix;
use crate::study::{PlayedRules, StrategyChoice, Study};
use crate::{Task, play_tasks};

/// One run: what to play.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trial {
    pub(super) name: Name,
    pub(super) workers: u32,
    pub(super) mix: RoleMix,
    /// One setting for each dial of the strategy.
    pub(super) settings: Vec<Setting>,
    /// The index of its traffic.
    pub(super) traffic: usize,
}

/// A finished run.
#[derive(Clone, Debug)]
pub(super) struct Tried {
    pub(super) trial: Trial,
    pub(super) row: ReportRow,
}

/// One traffic to play.
#[derive(Debug)]
pub(super) struct Ground<'a> {
    pub(super) prepared: &'a PreparedTrace<'a>,
    pub(super) seed: u64,
}

#[derive(Debug)]
pub(super) struct Player<'a> {
    /// Without its trace: that is in `grounds`, and a copy for each run would be large.
    pub(super) study: Study,
    pub(super) profile: Profile,
    pub(super) grounds: Vec<Ground<'a>>,
    pub(super) speed: f64,
    pub(super) jobs: Option<usize>,
    pub(super) tried: Vec<Tried>,
}

impl Player<'_> {
    /// Plays the trials that have not been played, in this order.
    pub(super) fn play(&mut self, trials: Vec<Trial>) -> anyhow::Result<()> {
        let mut fresh: Vec<Trial> = Vec::new();
        for trial in trials {
            if self.row(&trial).is_none() && !fresh.contains(&trial) {
                fresh.push(trial);
            }
        }
        let studies: Vec<Study> = fresh.iter().map(|it| self.study_of(it)).collect::<anyhow::Result<_>>()?;
        let task = |(trial, study)| self.task(trial, study);
        let tasks: Vec<Task<'_>> = fresh.iter().zip(&studies).map(task).collect();
        let rows = play_tasks(&tasks, self.jobs).into_iter().map(|it| it.row);
        self.tried.extend(fresh.into_iter().zip(rows).map(|(trial, row)| Tried { trial, row }));
        Ok(())
    }

    pub(super) fn row(&self, trial: &Trial) -> Option<&ReportRow> {
        self.tried.iter().find(|it| it.trial == *trial).map(|it| &it.row)
    }

    fn task<'a>(&'a self, trial: &Trial, study: &'a Study) -> Task<'a> {
        let prepared = self.grounds[trial.traffic].prepared;
        Task {
            study,
            rules: PlayedRules {
                choice: StrategyChoice::Strategy(trial.name),
                split: study.config.settings.brain.split,
                autoscale: None,
            },
            name: trial.name.to_string(),
            prepared,
            speed: self.speed,
        }
    }

    fn study_of(&self, trial: &Trial) -> anyhow::Result<Study> {
        let mut study = self.study.clone();
        study.fleet = vec![self.profile; trial.workers as usize];
        study.roles = trial.mix.roles(trial.workers);
        study.seed = self.grounds[trial.traffic].seed;
        for Setting { key, value } in &trial.settings {
            config::set(&mut study.config, key, value).map_err(|it| anyhow::anyhow!("{key}: {it}"))?;
        }
        Ok(study)
    }
}
