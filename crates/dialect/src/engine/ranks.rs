//! One metric over the ranks of a data-parallel engine.
//!
//! An engine with several ranks reports each gauge once per rank, distinguished by a label. Some report it
//! again for each process of a rank. Requests and blocks are summed over ranks, ratios are averaged, and
//! duplicates within a rank count once.

use std::borrow::Cow;

use maitre_base::EngineLoad;

use crate::engine::Unreadable;
use crate::exposition::{self, Sample};

/// Maximum ranks distinguished. Chosen: more than one engine has GPUs.
const RANKS_MAX: usize = 1024;

/// The values of one gauge, by rank.
#[derive(Default)]
pub(crate) struct Ranks<'a> {
    values: Vec<(Cow<'a, str>, f64)>,
}

impl<'a> Ranks<'a> {
    /// Adds one value. Of several values for one rank the largest counts.
    pub(crate) fn add(&mut self, rank: Cow<'a, str>, value: f64) {
        if !(value.is_finite() && value >= 0.0) {
            return;
        }
        if let Some(known) = self.values.iter_mut().find(|it| it.0 == rank) {
            known.1 = known.1.max(value);
        } else if self.values.len() < RANKS_MAX {
            self.values.push((rank, value));
        }
    }

    pub(crate) fn sum(&self) -> Option<u64> {
        (!self.values.is_empty()).then(|| self.total() as u64)
    }

    pub(crate) fn mean_share(&self) -> Option<f64> {
        (!self.values.is_empty()).then(|| (self.total() / self.values.len() as f64).min(1.0))
    }

    /// For values that are equal on all ranks.
    pub(crate) fn any(&self) -> Option<u64> {
        self.values.first().map(|it| it.1 as u64)
    }

    /// Each rank reports the total of all of them: gives each its share.
    pub(crate) fn divide(&mut self) {
        let ranks = self.values.len() as f64;
        self.values.iter_mut().for_each(|it| it.1 /= ranks);
    }

    /// Keeps only this rank's value; keeps all if the gauge has no rank label.
    fn keep(&mut self, rank: u32) {
        let rank = rank.to_string();
        if self.values.iter().any(|it| it.0 == rank) {
            self.values.retain(|it| it.0 == rank);
        }
    }

    fn total(&self) -> f64 {
        self.values.iter().map(|it| it.1).sum()
    }
}

/// The numbers a brand may report.
#[derive(Default)]
pub(crate) struct Gauges<'a> {
    pub(crate) running: Ranks<'a>,
    pub(crate) waiting: Ranks<'a>,
    pub(crate) kv_usage: Ranks<'a>,
    pub(crate) block_size: Ranks<'a>,
    pub(crate) blocks: Ranks<'a>,
    pub(crate) kv_tokens: Ranks<'a>,
    pub(crate) queried_tokens: Ranks<'a>,
    pub(crate) hit_tokens: Ranks<'a>,
}

impl<'a> Gauges<'a> {
    /// The load in a scrape. `take` stores a sample and returns whether the brand knows it.
    pub(crate) fn read(
        kind: &'static str,
        only: Option<u32>,
        scrape: &'a [u8],
        take: impl FnMut(&mut Gauges<'a>, &Sample<'a>) -> bool,
    ) -> Result<EngineLoad, Unreadable> {
        Ok(Gauges::collect(kind, scrape, take)?.load(only))
    }

    /// The gauges in a scrape.
    pub(crate) fn collect(
        kind: &'static str,
        scrape: &'a [u8],
        mut take: impl FnMut(&mut Gauges<'a>, &Sample<'a>) -> bool,
    ) -> Result<Gauges<'a>, Unreadable> {
        let mut gauges = Gauges::default();
        let (mut known, mut samples) = (false, 0);
        for sample in exposition::samples(scrape) {
            samples += 1;
            known |= take(&mut gauges, &sample);
        }
        if known { Ok(gauges) } else { Err(Unreadable::NoMetrics { kind, samples }) }
    }

    /// The values of all ranks together, or of one rank.
    pub(crate) fn load(mut self, only: Option<u32>) -> EngineLoad {
        if let Some(rank) = only {
            let all = [
                &mut self.running,
                &mut self.waiting,
                &mut self.kv_usage,
                &mut self.block_size,
                &mut self.blocks,
                &mut self.kv_tokens,
                &mut self.queried_tokens,
                &mut self.hit_tokens,
            ];
            all.into_iter().for_each(|it| it.keep(rank));
        }
        let (block_size, blocks) = (self.block_size.any(), self.blocks.sum());
        let product = block_size.zip(blocks).map(|(size, count)| size.saturating_mul(count));
        EngineLoad {
            running: self.running.sum(),
            waiting: self.waiting.sum(),
            kv_usage: self.kv_usage.mean_share(),
            block_size,
            blocks,
            kv_tokens: self.kv_tokens.sum().or(product),
            queried_tokens: self.queried_tokens.sum(),
            hit_tokens: self.hit_tokens.sum(),
        }
    }
}
