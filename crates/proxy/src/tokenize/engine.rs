//! Lets an engine tokenize a prompt whose model's tokenizer is not loaded here.
//!
//! This must not cost more than it saves. A request waits for some milliseconds at most. An engine that does not respond
//! in time is asked less and less often, and meanwhile prompts are split into words. Results are remembered as prefix
//! hashes, which is all that is needed of them, so that a repeated prompt asks no engine.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use maitre_base::hash::{self, NumberMap};
use maitre_base::{Instant, WorkerId};
use maitre_dialect::engine::{self, EngineKind};
use maitre_dialect::openai;
use maitre_dispatch::PromptChain;
use maitre_fleet::HealthState;
use maitre_net::upstream::UpstreamRequest;
use parking_lot::Mutex;
use tokio::time::timeout;

use super::{HashPlan, TokenIds};
use crate::brain::SharedBrain;
use crate::link::Link;
use crate::upstreams::Upstreams;

/// How long no engine of a model is asked after a failure; doubles each time.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(64);
/// The largest response: ids of a prompt of a few hundred thousand tokens.
const RESPONSE_BYTES_MAX: usize = 8 << 20;
/// Prefix hashes that are remembered: 16 MiB at eight bytes each.
const REMEMBERED_MAX: usize = 2 << 20;

pub(crate) struct EngineTokenizers {
    seed: u64,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// By model: when its engines may be asked again, and how long the next pause is.
    pauses: NumberMap<(Instant, Duration)>,
    prompts: RememberedPrompts,
    turn: usize,
}

/// Two generations, as in `policy::pins`: entries that are used move to the young one.
#[derive(Default)]
struct RememberedPrompts {
    young: NumberMap<PromptChain>,
    old: NumberMap<PromptChain>,
    /// Prefix hashes in the young one.
    prefixes: usize,
}

impl RememberedPrompts {
    fn get(&mut self, key: u64) -> Option<PromptChain> {
        if let Some(prompt) = self.young.get(&key) {
            return Some(prompt.clone());
        }
        let prompt = self.old.remove(&key)?;
        self.put(key, prompt.clone());
        Some(prompt)
    }

    fn put(&mut self, key: u64, prompt: PromptChain) {
        // A short prompt takes more memory than its hashes.
        let chunks = prompt.chunks.as_ref().map_or(0, |it| 2 * it.len());
        let weight = prompt.chain.len() + chunks + 16;
        if self.prefixes + weight > REMEMBERED_MAX / 2 {
            self.old = mem::take(&mut self.young);
            self.prefixes = 0;
        }
        self.prefixes += weight;
        self.young.insert(key, prompt);
    }
}

impl EngineTokenizers {
    /// `seed` keeps clients from choosing prompts whose hashes collide.
    pub(crate) fn new(seed: u64) -> EngineTokenizers {
        EngineTokenizers { seed, memory: Mutex::default() }
    }

    /// None if no engine tokenizes the prompt in time.
    pub(super) async fn tokenize(
        &self,
        brain: &SharedBrain,
        upstreams: &Upstreams,
        parsed: &openai::Request<'_>,
        plan: &HashPlan,
    ) -> Option<PromptChain> {
        let limit = upstreams.settings.load().tokenize_timeout;
        if limit.is_zero() {
            return None;
        }
        let identity = engine::identity(parsed)?;
        let model = hash::bytes(1, plan.model.as_bytes());
        let key = hash::pair(hash::bytes(self.seed, identity.as_bytes()), plan_key(plan));
        let now = brain.now();
        {
            let mut memory = self.memory.lock();
            if let Some(prompt) = memory.prompts.get(key) {
                return Some(prompt);
            }
            if memory.pauses.get(&model).is_some_and(|(until, _)| now < *until) {
                return None;
            }
        }
        let tokens = match self.choose(brain, parsed.model.as_deref()) {
            Chosen::Worker(link, kind) => {
                let question = engine::question(kind, parsed)?;
                timeout(limit, ask(upstreams, &link, question)).await.ok().flatten()
            }
            // That is no failure: no pause follows.
            Chosen::NotYet => return None,
            Chosen::None => None,
        };
        // Hashed before the lock is taken, which all threads share: a long prompt takes milliseconds.
        let prompt = tokens.map(|tokens| plan.hash_ids(&TokenIds { exact: tokens.len(), tokens }));
        let mut memory = self.memory.lock();
        let Some(prompt) = prompt else {
            let pause = memory.pauses.get(&model).map_or(PAUSE, |it| it.1);
            memory.pauses.insert(model, (now + pause, (pause * 2).min(PAUSE_MAX)));
            return None;
        };
        memory.pauses.remove(&model);
        memory.prompts.put(key, prompt.clone());
        Some(prompt)
    }

    /// A ready worker whose engine can tokenize chats, in turns.
    fn choose(&self, brain: &SharedBrain, model: Option<&str>) -> Chosen {
        let ready: Option<Vec<WorkerId>> = brain.read(|brain| {
            let fleet = brain.fleet();
            let model = model.and_then(|it| fleet.model(it))?;
            let wanted = maitre_fleet::Wanted::Model(model);
            let ready =
                fleet.workers().filter(|it| it.serves(wanted) && it.health.state() == HealthState::Ready);
            Some(ready.map(|it| it.id).collect())
        });
        let ready = ready.unwrap_or_default();
        let turn = {
            let mut memory = self.memory.lock();
            memory.turn = memory.turn.wrapping_add(1);
            memory.turn
        };
        let (before, after) = ready.split_at(turn % ready.len().max(1));
        let mut chosen = Chosen::None;
        for link in after.iter().chain(before).filter_map(|it| brain.link(*it)) {
            match link.kind() {
                Some(kind) if kind.tokenizes_chats() => return Chosen::Worker(link, kind),
                Some(_) => {}
                None => chosen = Chosen::NotYet,
            }
        }
        chosen
    }
}

fn plan_key(plan: &HashPlan) -> u64 {
    let root = plan.root(maitre_index::prefix::Unit::Tokens).start().0;
    hash::pair(root, u64::from(plan.block) << 1 | u64::from(plan.chunks))
}

enum Chosen {
    Worker(Arc<Link>, EngineKind),
    /// The engines of some workers are not detected yet.
    NotYet,
    None,
}

async fn ask(upstreams: &Upstreams, link: &Link, question: String) -> Option<Vec<u32>> {
    let mut upstream = match upstreams.take(link) {
        Some(upstream) => upstream,
        None => {
            let timeout = upstreams.settings.load().timeouts.connect;
            upstreams.open(link, timeout).await.ok()?
        }
    };
    let key = upstreams.settings.load().worker_key.clone();
    let (host, question) = (link.address.header(), Bytes::from(question));
    let request = UpstreamRequest::post(engine::TOKENIZE, host, key.as_ref(), question);
    let head = upstream.send(request).await.ok()?;
    let body = upstream.read_all(RESPONSE_BYTES_MAX).await.ok()?;
    upstreams.put(link, upstream);
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
    fn memory_is_bounded_and_keeps_used_entries() {
        let mut prompts = RememberedPrompts::default();
        let prompt = |blocks: usize| PromptChain {
            unit: Unit::Tokens,
            units: 16 * blocks as u64,
            block: 16,
            chain: vec![PrefixHash(1); blocks].into(),
            chunks: None,
        };
        prompts.put(0, prompt(10));
        for key in 1..2_000 {
            prompts.put(key, prompt(5_000));
            assert!(prompts.get(0).is_some(), "used after {key} others");
            let held: usize =
                prompts.young.values().chain(prompts.old.values()).map(|it| it.chain.len()).sum();
            assert!(held <= REMEMBERED_MAX);
        }
        assert!(prompts.get(1).is_none());
    }
}
