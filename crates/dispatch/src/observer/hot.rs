//! The prefixes that prompts have in common, the hottest first.
//!
//! Of each prompt its prefixes of 1, 2, 4, 8, … blocks are counted, and the longest one that any worker holds. So a
//! shared prefix is known within a factor of two at once, and to the block once it is cached. Counts halve every minute.
//! The table is small and most prefixes belong to one prompt alone. So a new prefix must displace an old one: of a few
//! places, the coldest loses one count, and leaves when it has none left. A hot prefix is never the coldest of those, so
//! its count is exact but for the decay.
//!
//! Prefixes are ordered by tokens: count times length, which is the prefill that caches save, or that is computed again
//! and again. By count alone every list would begin with the first block of the system prompt. A prefix is hidden if a
//! longer one is seen nearly as often.
//!
//! Left out: text. A prefix is a hash here, the same as in the index.

use std::time::Duration;

use maitre_base::hash::NumberMap;
use maitre_base::{Instant, Tokens, WorkerId};
use maitre_fleet::ModelId;
use maitre_index::PrefixHash;
use maitre_index::prefix::Unit;
use maitre_policy::Candidate;

use crate::cache::PromptChain;

/// Prefixes that are counted at once.
pub const PREFIXES_MAX: usize = 256;
/// Holders that are listed for each prefix.
pub const HOLDERS_MAX: usize = 16;
/// Places that a new prefix competes for.
const LOOK: usize = 8;
/// Seconds in which a count halves.
const HALF_LIFE: f64 = 60.0;
/// Counts are stored as of a moment in the past, so that they decay without being touched. After so many half-lives the
/// moment is moved forward.
const HALF_LIVES_MAX: f64 = 64.0;
/// A longer prefix with this part of a shorter one's count hides the shorter one.
const NEARLY: f64 = 0.9;
/// How often the holders of a prefix are looked up, at most: it visits every worker.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Depths at which one prompt is counted: powers of two, and the longest prefix that is cached.
const DEPTHS_MAX: usize = 33;

/// A prefix that many prompts share.
#[derive(Clone, Debug, PartialEq)]
pub struct Hot {
    pub prefix: PrefixHash,
    pub tokens: Tokens,
    /// Prompts with this prefix, with a half-life of a minute.
    pub seen: f64,
    /// The model of the last of them.
    pub model: Option<ModelId>,
    /// Workers that held all of it at the last look-up, at most `HOLDERS_MAX` of `holders_total`.
    pub holders: Vec<WorkerId>,
    pub holders_total: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    prefix: u64,
    /// The next shorter prefix that was counted, zero if there is none.
    shorter: u64,
    tokens: Tokens,
    model: Option<ModelId>,
    looked: Option<Instant>,
    /// The first `named` of these.
    holders: [WorkerId; HOLDERS_MAX],
    named: usize,
    holders_total: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Prefixes {
    entries: Vec<Entry>,
    /// For each entry; apart from them, since the search for the coldest reads only these.
    counts: Vec<f64>,
    places: NumberMap<u32>,
    /// The first place that the next new prefix competes for.
    hand: usize,
    /// The moment as of which counts are stored.
    since: Instant,
}

/// A prompt at its first placement.
#[derive(Clone, Copy)]
pub(crate) struct Sight<'a> {
    pub(crate) prompt: &'a PromptChain,
    /// Tokens of the whole prompt.
    pub(crate) tokens: Tokens,
    pub(crate) model: Option<ModelId>,
    /// The workers, with what each holds of it.
    pub(crate) candidates: &'a [Candidate],
}

impl Prefixes {
    pub(crate) fn clear(&mut self) {
        *self = Prefixes::default();
    }

    /// A worker has left: it holds nothing, and its id may be reused.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.entries.iter_mut().for_each(|it| it.forget(worker));
    }

    pub(crate) fn see(&mut self, now: Instant, sight: Sight<'_>) {
        let one = self.worth(now);
        let mut shorter = 0;
        for depth in depths(&sight) {
            let Some(&PrefixHash(prefix)) = sight.prompt.chain.get(depth - 1) else { break };
            match self.places.get(&prefix).copied() {
                Some(place) => {
                    let place = place as usize;
                    self.counts[place] += one;
                    let entry = &mut self.entries[place];
                    (entry.shorter, entry.model) = (shorter, sight.model);
                    if entry.looked.is_none_or(|it| now.since(it) >= LOOK_EVERY) {
                        entry.look(now, sight.candidates);
                    }
                }
                None => {
                    let entry = Entry {
                        prefix,
                        shorter,
                        tokens: sight.tokens_at(depth),
                        model: sight.model,
                        looked: None,
                        holders: [WorkerId(0); HOLDERS_MAX],
                        named: 0,
                        holders_total: 0,
                    };
                    self.admit(entry, one);
                }
            }
            shorter = prefix;
        }
    }

    /// Adds what another table has counted.
    pub(crate) fn add(&mut self, now: Instant, other: &Prefixes) {
        if self.entries.is_empty() {
            *self = other.clone();
            return;
        }
        let scale = (self.growth(now) - other.growth(now)).exp2();
        for (entry, count) in other.entries.iter().zip(&other.counts) {
            match self.places.get(&entry.prefix).map(|&it| it as usize) {
                Some(place) => {
                    self.counts[place] += count * scale;
                    if entry.looked > self.entries[place].looked {
                        self.entries[place] = *entry;
                    }
                }
                None => {
                    self.places.insert(entry.prefix, self.entries.len() as u32);
                    self.entries.push(*entry);
                    self.counts.push(count * scale);
                }
            }
        }
    }

    /// The hottest, those first with the most tokens.
    pub(crate) fn hottest(&self, now: Instant, limit: usize) -> Vec<Hot> {
        let worth = self.growth(now).exp2();
        let mut is_hidden = vec![false; self.entries.len()];
        for (place, entry) in self.entries.iter().enumerate() {
            if let Some(&shorter) = self.places.get(&entry.shorter)
                && self.counts[place] >= NEARLY * self.counts[shorter as usize]
            {
                is_hidden[shorter as usize] = true;
            }
        }
        let heat = |place: usize| self.counts[place] * self.entries[place].tokens.0 as f64;
        // A prefix that was seen once is not hot.
        let mut shown: Vec<usize> = (0..self.entries.len())
            .filter(|&it| !is_hidden[it] && self.entries[it].looked.is_some())
            .collect();
        shown.sort_by(|&one, &other| heat(other).total_cmp(&heat(one)));
        shown.into_iter().take(limit).map(|it| self.entries[it].hot(self.counts[it] / worth)).collect()
    }

    /// Adds an entry if there is room, or takes a count from the coldest of a few.
    fn admit(&mut self, entry: Entry, one: f64) {
        if self.entries.len() < PREFIXES_MAX {
            self.places.insert(entry.prefix, self.entries.len() as u32);
            self.entries.push(entry);
            self.counts.push(one);
            return;
        }
        let looked_at = (0..LOOK).map(|it| (self.hand + it) % PREFIXES_MAX);
        let coldest = looked_at.min_by(|&one, &other| self.counts[one].total_cmp(&self.counts[other]));
        self.hand = (self.hand + LOOK) % PREFIXES_MAX;
        let Some(place) = coldest else { return };
        self.counts[place] -= one;
        if self.counts[place] <= 0.0 {
            self.places.remove(&self.entries[place].prefix);
            self.places.insert(entry.prefix, place as u32);
            (self.entries[place], self.counts[place]) = (entry, one);
        }
    }

    /// The weight of one more prompt now, in counts as of `since`.
    fn worth(&mut self, now: Instant) -> f64 {
        let growth = self.growth(now);
        if growth > HALF_LIVES_MAX {
            self.counts.iter_mut().for_each(|it| *it *= (-growth).exp2());
            self.since = now;
            return 1.0;
        }
        growth.exp2()
    }

    fn growth(&self, now: Instant) -> f64 {
        now.since(self.since).as_secs_f64() / HALF_LIFE
    }
}

impl Entry {
    fn look(&mut self, now: Instant, candidates: &[Candidate]) {
        self.looked = Some(now);
        (self.named, self.holders_total) = (0, 0);
        for candidate in candidates.iter().filter(|it| it.prefix() >= self.tokens) {
            if let Some(place) = self.holders.get_mut(self.named) {
                *place = candidate.worker;
                self.named += 1;
            }
            self.holders_total += 1;
        }
    }

    fn forget(&mut self, worker: WorkerId) {
        let named = &mut self.holders[..self.named];
        if let Some(place) = named.iter().position(|&it| it == worker) {
            named[place..].rotate_left(1);
            self.named -= 1;
            self.holders_total -= 1;
        }
    }

    fn hot(&self, seen: f64) -> Hot {
        Hot {
            prefix: PrefixHash(self.prefix),
            tokens: self.tokens,
            seen,
            model: self.model,
            holders: self.holders[..self.named].to_vec(),
            holders_total: self.holders_total,
        }
    }
}

impl Sight<'_> {
    fn tokens_at(&self, depth: usize) -> Tokens {
        let units = depth as u64 * u64::from(self.prompt.block);
        match self.prompt.unit {
            Unit::Tokens => Tokens(units),
            // The same part of the prompt's tokens.
            Unit::Words => {
                Tokens((units as f64 / self.prompt.units.max(1) as f64 * self.tokens.0 as f64) as u64)
            }
        }
    }

    /// Blocks of the longest prefix that any worker holds.
    fn held(&self) -> usize {
        let most = self.candidates.iter().map(Candidate::prefix).max().unwrap_or_default();
        let units = match self.prompt.unit {
            Unit::Tokens => most.0 as f64,
            Unit::Words => most.0 as f64 / self.tokens.0.max(1) as f64 * self.prompt.units as f64,
        };
        ((units / f64::from(self.prompt.block.max(1))).round() as usize).min(self.prompt.chain.len())
    }
}

/// In blocks, the shortest first.
fn depths(sight: &Sight<'_>) -> impl Iterator<Item = usize> + use<> {
    let (all, held) = (sight.prompt.chain.len(), sight.held());
    let powers = (0..).map(|it| 1usize << it).take_while(move |&it| it <= all);
    let before = powers.clone().filter(move |&it| it < held);
    let from = powers.filter(move |&it| it > held);
    before.chain((held > 0).then_some(held)).chain(from).take(DEPTHS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use maitre_base::{AdapterSlot, FreshLoad, PromisedWork, Rng};
    use maitre_policy::{Fetch, Pace};

    fn prompt(shared: u64, shared_blocks: u64, own: u64, own_blocks: u64) -> PromptChain {
        let chain = (0..shared_blocks + own_blocks).map(|it| {
            let text = if it < shared_blocks { shared } else { 1_000 + own };
            PrefixHash(1 + text * 100_000 + it)
        });
        let blocks = shared_blocks + own_blocks;
        PromptChain {
            unit: Unit::Tokens,
            units: blocks * 16,
            block: 16,
            chain: chain.collect(),
            chunks: None,
        }
    }

    fn holder(number: u32, held: u64) -> Candidate {
        Candidate {
            worker: WorkerId(number),
            key: 0,
            requests: 0,
            promised: PromisedWork::default(),
            share: 1.0,
            held: Tokens(held),
            held_below: Tokens::ZERO,
            fetch: Fetch::default(),
            chunks: maitre_policy::ReusedChunks::default(),
            holds: Tokens::ZERO,
            sent: Tokens::ZERO,
            in_use: Tokens::ZERO,
            held_in_use: Tokens::ZERO,
            pace: Pace {
                floor: 0.0,
                prefill_token: 0.0,
                prefill_attended: 0.0,
                step: 0.0,
                step_request: 0.0,
            },
            wait_seconds: 0.0,
            room: None,
            displaced_seconds: 0.0,
            requests_elsewhere: f64::INFINITY,
            reported: FreshLoad::default(),
            adapter: AdapterSlot::Ready,
        }
    }

    fn see(prefixes: &mut Prefixes, now: Instant, prompt: &PromptChain, candidates: &[Candidate]) {
        prefixes.see(now, Sight { prompt, tokens: Tokens(prompt.units), model: None, candidates });
    }

    #[test]
    fn a_shared_prefix_is_known_to_the_block_once_it_is_held() {
        let mut prefixes = Prefixes::default();
        let now = Instant::from_millis(1);
        for own in 0..40 {
            let held = if own < 20 { 0 } else { 100 * 16 };
            see(
                &mut prefixes,
                now,
                &prompt(7, 100, own, 30),
                &[holder(0, held), holder(1, 16), holder(2, held)],
            );
        }
        let hottest = prefixes.hottest(now, 10);
        assert_eq!((hottest[0].tokens, hottest[0].seen.round()), (Tokens(64 * 16), 40.0), "{hottest:?}");
        assert_eq!((hottest[1].tokens, hottest[1].seen.round()), (Tokens(1_600), 20.0), "of the second half");
        assert_eq!((&hottest[1].holders[..], hottest[1].holders_total), (&[WorkerId(0), WorkerId(2)][..], 2));
        assert_eq!(hottest.len(), 2, "shorter ones say nothing more, and what was seen once is not hot");
    }

    #[test]
    fn a_worker_that_left_is_no_holder() {
        let mut prefixes = Prefixes::default();
        let now = Instant::from_millis(1);
        let all: Vec<Candidate> = (0..HOLDERS_MAX as u32 + 4).map(|it| holder(it, 64 * 16)).collect();
        (0..3).for_each(|own| see(&mut prefixes, now, &prompt(7, 64, own, 1), &all));
        [3, 0, HOLDERS_MAX as u32 + 1, 99].into_iter().for_each(|it| prefixes.forget(WorkerId(it)));
        let hottest = prefixes.hottest(now, 1);
        let left: Vec<WorkerId> = (1..HOLDERS_MAX as u32).filter(|&it| it != 3).map(WorkerId).collect();
        assert_eq!((&hottest[0].holders, hottest[0].holders_total), (&left, HOLDERS_MAX as u32 + 2));
    }

    #[test]
    fn hot_prefixes_are_ordered_by_tokens_and_decay() {
        let (mut prefixes, mut rng) = (Prefixes::default(), Rng::new(2));
        let mut now = Instant::ZERO;
        for own in 0..5_000 {
            now = now + Duration::from_millis(10);
            // Of ten documents the first is asked for in half of all requests, and each further in half of the rest.
            let mut document = 0;
            while document < 9 && rng.unit() < 0.5 {
                document += 1;
            }
            see(&mut prefixes, now, &prompt(document, 64, own, 80), &[]);
        }
        assert!(prefixes.entries.len() == PREFIXES_MAX && prefixes.places.len() == PREFIXES_MAX);
        let hottest = prefixes.hottest(now, 4);
        let documents: Vec<u64> = hottest.iter().map(|it| it.prefix.0 / 100_000).collect();
        assert_eq!(documents, [0, 1, 2, 3]);
        assert!(hottest.iter().all(|it| it.tokens == Tokens(64 * 16)), "{hottest:?}");
        // Fifty seconds at fifty a second, decayed on the way.
        assert!((1_700.0..2_100.0).contains(&hottest[0].seen), "{}", hottest[0].seen);
        let later = prefixes.hottest(now + Duration::from_secs(60), 1);
        assert!((later[0].seen / hottest[0].seen - 0.5).abs() < 1e-9);
        // Much later the counts are stored as of another moment, and the old ones are almost zero.
        now = now + Duration::from_secs(100 * 60);
        (0..3).for_each(|it| see(&mut prefixes, now, &prompt(77, 64, it, 1), &[]));
        let hottest = prefixes.hottest(now, 1);
        assert_eq!((hottest[0].prefix.0 / 100_000, hottest[0].seen.round()), (77, 3.0));
    }

    #[test]
    fn words_count_as_the_tokens_they_stand_for() {
        let mut prefixes = Prefixes::default();
        let words = PromptChain { unit: Unit::Words, ..prompt(1, 32, 1, 0) };
        for _ in 0..3 {
            let sight = Sight { prompt: &words, tokens: Tokens(1_024), model: None, candidates: &[] };
            prefixes.see(Instant::ZERO, sight);
        }
        assert_eq!(prefixes.hottest(Instant::ZERO, 1)[0].tokens, Tokens(1_024), "512 words are all of it");
    }
}
