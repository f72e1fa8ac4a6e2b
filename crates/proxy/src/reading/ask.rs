//! Asks an engine which tokens it would make of a prompt, where we cannot tell ourselves.
//!
//! The answer must not cost more than it saves. A question waits for some milliseconds at the most; an
//! engine that does not answer in time, or not at all, is asked less and less often, and meanwhile prompts
//! go as words. Answers are remembered as chains of prefixes, which are all that is wanted of them, so that
//! a retried or repeated prompt asks nobody.

use std::mem;
use std::time::Duration;

use bytes::Bytes;
use maitre_base::hash::{self, NumberMap};
use maitre_base::{Instant, WorkerId};
use maitre_dialect::engine::{self, Kind};
use maitre_dialect::openai;
use maitre_dispatch::PromptChain;
use maitre_fleet::HealthState;
use maitre_net::upstream::{Upstream, UpstreamRequest};
use parking_lot::Mutex;
use tokio::time::timeout;

use super::{Cut, Ids};
use crate::lane::Lane;

/// How long an engine that failed to answer is left alone; doubles each time.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(64);
/// The largest answer: ids of a prompt of a few hundred thousand tokens.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// What is remembered, in prefixes: 16 MiB at eight bytes each.
const REMEMBERED_MAX: usize = 2 << 20;

#[derive(Default)]
pub(crate) struct Asks {
    state: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// By model: when it may be asked again, and how long it is left alone next time.
    pauses: NumberMap<(Instant, Duration)>,
    remembered: Remembered,
    turn: usize,
}

/// Two generations, as in `policy::pins`: what is used moves to the young one.
#[derive(Default)]
struct Remembered {
    young: NumberMap<PromptChain>,
    old: NumberMap<PromptChain>,
    /// Prefixes in the young one.
    prefixes: usize,
}

impl Remembered {
    fn get(&mut self, key: u64) -> Option<PromptChain> {
        if let Some(prompt) = self.young.get(&key) {
            return Some(prompt.clone());
        }
        let prompt = self.old.remove(&key)?;
        self.put(key, prompt.clone());
        Some(prompt)
    }

    fn put(&mut self, key: u64, prompt: PromptChain) {
        // A short prompt costs more than its prefixes.
        let weight = prompt.chain.len() + 16;
        if self.prefixes + weight > REMEMBERED_MAX / 2 {
            self.old = mem::take(&mut self.young);
            self.prefixes = 0;
        }
        self.prefixes += weight;
        self.young.insert(key, prompt);
    }
}

pub(super) async fn prompt(lane: &Lane, parsed: &openai::Request<'_>, cut: &Cut) -> Option<PromptChain> {
    let house = &lane.house;
    if house.settings().tokenize_timeout.is_zero() {
        return None;
    }
    let question = engine::question(parsed)?;
    let model = hash::bytes(1, cut.model.as_bytes());
    let key = hash::pair(hash::bytes(house.salt, question.as_bytes()), cut_key(cut));
    let now = house.now();
    {
        let mut state = house.asks.state.lock();
        if let Some(prompt) = state.remembered.get(key) {
            return Some(prompt);
        }
        if state.pauses.get(&model).is_some_and(|(until, _)| now < *until) {
            return None;
        }
    }
    let answer = match whom(lane, parsed.model.as_deref()) {
        Whom::Worker(worker) => {
            timeout(house.settings().tokenize_timeout, ask(lane, worker, question)).await.ok().flatten()
        }
        // That is no failure of anybody's.
        Whom::NotYet => return None,
        Whom::Nobody => None,
    };
    // Named before the lock is taken, which all threads share: a long prompt takes milliseconds.
    let prompt = answer.map(|tokens| cut.of_ids(&Ids { sure: tokens.len(), tokens }));
    let mut state = house.asks.state.lock();
    let Some(prompt) = prompt else {
        let pause = state.pauses.get(&model).map_or(PAUSE, |it| it.1);
        state.pauses.insert(model, (now + pause, (pause * 2).min(PAUSE_MAX)));
        return None;
    };
    state.pauses.remove(&model);
    state.remembered.put(key, prompt.clone());
    Some(prompt)
}

fn cut_key(cut: &Cut) -> u64 {
    hash::pair(cut.root(maitre_index::prefix::Unit::Tokens).start().0, u64::from(cut.block))
}

enum Whom {
    Worker(WorkerId),
    /// Workers are there, and some have not been found out about.
    NotYet,
    Nobody,
}

/// An engine of a kind that answers, in turns.
fn whom(lane: &Lane, model: Option<&str>) -> Whom {
    let house = &lane.house;
    let fit: Option<Vec<WorkerId>> = house.look(|brain| {
        let fleet = brain.fleet();
        let model = model.and_then(|it| fleet.model(it))?;
        let wanted = maitre_fleet::Wanted::Model(model);
        let ready = fleet.workers().filter(|it| it.serves(wanted) && it.health.state() == HealthState::Ready);
        Some(ready.map(|it| it.id).collect())
    });
    let fit = fit.unwrap_or_default();
    let kind = |worker: &WorkerId| house.link(*worker).and_then(|it| it.about().kind);
    let answers = |worker: &WorkerId| kind(worker).is_some_and(Kind::tokenizes_chats);
    let turn = {
        let mut state = house.asks.state.lock();
        state.turn = state.turn.wrapping_add(1);
        state.turn
    };
    let count = fit.len().max(1);
    match (0..fit.len()).map(|step| fit[(turn + step) % count]).find(answers) {
        Some(worker) => Whom::Worker(worker),
        None if fit.iter().any(|it| kind(it).is_none()) => Whom::NotYet,
        None => Whom::Nobody,
    }
}

async fn ask(lane: &Lane, worker: WorkerId, question: String) -> Option<Vec<u32>> {
    let house = &lane.house;
    let link = house.link(worker)?;
    let mut line = match lane.pool.take(link.serial) {
        Some(line) => line,
        None => {
            Upstream::open(&link.address, &house.tls.workers, house.settings().timeouts.connect).await.ok()?
        }
    };
    let key = house.settings().worker_key.clone();
    let (host, question) = (link.address.header(), Bytes::from(question));
    let request = UpstreamRequest::post(engine::TOKENIZE, host, key.as_ref(), question);
    let head = line.send(request).await.ok()?;
    let body = line.read_all(ANSWER_BYTES_MAX).await.ok()?;
    lane.pool.put(house.now(), link.serial, line);
    if !head.status.is_success() {
        return None;
    }
    engine::answer(&body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use maitre_index::PrefixHash;
    use maitre_index::prefix::Unit;

    #[test]
    fn memory_is_bounded_and_keeps_what_is_used() {
        let mut remembered = Remembered::default();
        let prompt = |blocks: usize| PromptChain {
            unit: Unit::Tokens,
            units: 16 * blocks as u64,
            block: 16,
            chain: vec![PrefixHash(1); blocks].into(),
        };
        remembered.put(0, prompt(10));
        for key in 1..2_000 {
            remembered.put(key, prompt(5_000));
            assert!(remembered.get(0).is_some(), "used after {key} others");
            let held: usize =
                remembered.young.values().chain(remembered.old.values()).map(|it| it.chain.len()).sum();
            assert!(held <= REMEMBERED_MAX);
        }
        assert!(remembered.get(1).is_none());
    }
}
