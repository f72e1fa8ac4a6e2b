//! Random draws of the generators: arrivals, lengths, popularity, and text numbers.

use std::time::Duration;

use maitre_base::{Instant, Rng, hash};

use super::key::Stage;
use crate::trace::Piece;

/// Maximum drawn length, in means: one draw in three thousand would be longer.
pub(super) const LENGTH_MEANS_MAX: f64 = 8.0;

/// Shared texts by purpose.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shared {
    /// What opens the prompts of a kind.
    Opening,
    /// What follows it in one of a group's prompts.
    Rest,
    Document,
}

#[derive(Clone, Debug)]
pub(super) struct Dice {
    seed: u64,
    rng: Rng,
    names: u64,
}

/// How long a text is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Length {
    Fixed(u32),
    /// A tenth of this mean and an exponential rest: mostly short, sometimes several times the mean.
    Mean(u32),
}

impl Length {
    pub(super) fn max(self) -> f64 {
        match self {
            Length::Fixed(tokens) => f64::from(tokens),
            Length::Mean(tokens) => f64::from(tokens) * LENGTH_MEANS_MAX,
        }
    }
}

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice { seed, rng: Rng::new(seed), names: 0 }
    }

    /// The number of a shared text: the same for the same seed, kind and index.
    pub(super) fn shared(&self, kind: Shared, number: u64) -> u64 {
        hash::pair(hash::pair(self.seed, 1 + kind as u64), number)
    }

    /// A unique number.
    pub(super) fn own(&mut self) -> u64 {
        self.names += 1;
        hash::pair(hash::pair(self.seed, 0), self.names)
    }

    /// The seconds of a Poisson process's events from `begin` on. At least one: an empty trace is useless.
    pub(super) fn arrivals(&mut self, begin: f64, stage: Stage) -> Vec<f64> {
        let mut all = Vec::new();
        let mut after = self.rng.exponential(1.0 / stage.qps);
        while after < stage.seconds {
            all.push(begin + after);
            after += self.rng.exponential(1.0 / stage.qps);
        }
        if all.is_empty() {
            all.push(begin + stage.seconds * self.rng.unit());
        }
        all
    }

    pub(super) fn length(&mut self, length: Length) -> u32 {
        match length {
            Length::Fixed(tokens) => tokens,
            Length::Mean(mean) => {
                let mean = f64::from(mean);
                let drawn = mean * 0.1 + self.rng.exponential(mean * 0.9);
                drawn.min(mean * LENGTH_MEANS_MAX).round().max(1.0) as u32
            }
        }
    }

    /// How many turns a conversation has: uniform from 1 to twice the mean less one.
    pub(super) fn turns(&mut self, mean: u32) -> u32 {
        1 + self.below(2 * mean - 1)
    }

    /// An exponential wait with this mean.
    pub(super) fn wait(&mut self, mean: f64) -> f64 {
        self.rng.exponential(mean)
    }

    pub(super) fn below(&mut self, bound: u32) -> u32 {
        self.rng.below(bound as usize) as u32
    }

    pub(super) fn unit(&mut self) -> f64 {
        self.rng.unit()
    }
}

/// Zipf popularity: index r, from one on, in proportion to 1 / r to a power.
#[derive(Clone, Debug)]
pub(super) struct Popularity {
    /// The sum of the weights up to and including each number.
    sums: Vec<f64>,
}

impl Popularity {
    pub(super) fn new(count: u32, zipf: f64) -> Popularity {
        let mut sum = 0.0;
        let add = |rank: u32| {
            sum += f64::from(rank).powf(-zipf);
            sum
        };
        Popularity { sums: (1..=count).map(add).collect() }
    }

    /// A number from zero on.
    pub(super) fn draw(&self, dice: &mut Dice) -> u32 {
        let at = dice.unit() * self.sums.last().copied().unwrap_or_default();
        self.sums.partition_point(|&it| it <= at).min(self.sums.len() - 1) as u32
    }
}

pub(super) fn instant(seconds: f64) -> Instant {
    Instant::ZERO + Duration::from_secs_f64(seconds)
}

/// The pieces that have any tokens.
pub(super) fn prompt(pieces: &[Piece]) -> Box<[Piece]> {
    pieces.iter().copied().filter(|it| it.tokens > 0).collect()
}
