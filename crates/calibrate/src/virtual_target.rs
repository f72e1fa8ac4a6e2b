//! For tests: an engine in virtual time that answers rounds as a live one does.

use std::time::Duration;

use maitre_base::{Instant, Rng};
use maitre_sim::profile::Profile;

use crate::predict::VirtualEngine;
use crate::probe::{ProbeAnswer, ProbeRound, ProbeTarget};

/// An engine in virtual time.
pub(crate) struct VirtualTarget {
    engine: VirtualEngine,
    pub(crate) tells_cached: bool,
    /// Every token is late by up to so much, at random.
    pub(crate) late: Duration,
    rng: Rng,
}

impl VirtualTarget {
    pub(crate) fn new(profile: &Profile) -> VirtualTarget {
        let engine = VirtualEngine::new(profile);
        VirtualTarget { engine, tells_cached: true, late: Duration::ZERO, rng: Rng::new(5) }
    }
}

impl ProbeTarget for VirtualTarget {
    async fn run(&mut self, round: &ProbeRound) -> anyhow::Result<Vec<ProbeAnswer>> {
        let mut answers = self.engine.play(&round.requests);
        for answer in &mut answers {
            answer.cached_tokens = answer.cached_tokens.filter(|_| self.tells_cached);
            answer.tokens.iter_mut().for_each(|it| *it += self.late.mul_f64(self.rng.unit()));
            answer.tokens.sort();
        }
        Ok(answers)
    }

    fn elapsed(&self) -> Duration {
        self.engine.now.since(Instant::ZERO)
    }
}
