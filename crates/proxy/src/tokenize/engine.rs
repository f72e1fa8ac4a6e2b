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
use crate::refuse::refuses_prompt;
use crate::upstreams::Upstreams;

/// How long no engine of a model is asked after a failure; doubles each time.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(64);
/// An engine that has tokenized a prompt so recently can tokenize: if it refuses another, that one is at fault.
const PROVEN: Duration = Duration::from_secs(10);
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
    /// By model.
    pauses: NumberMap<Pause>,
    prompts: RememberedPrompts,
    turn: usize,
}

/// When the engines of a model may be asked again.
#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Instant,
    next: Duration,
    answered_at: Option<Instant>,
}

/// What came of a question.
#[derive(Debug, PartialEq)]
enum Reply {
    Tokens(Vec<u32>),
    /// This prompt cannot be tokenized, or none can.
    Refused,
    /// No response in time, or one that is not understood.
    None,
}

impl Default for Pause {
    fn default() -> Pause {
        Pause { until: Instant::ZERO, next: PAUSE, answered_at: None }
    }
}

impl Pause {
    fn is_over(&self, now: Instant) -> bool {
        now >= self.until
    }

    /// Notes a reply to a question that was asked at `now`. One client's malformed chats must not keep the prompts of all others
    /// from being tokenized.
    fn see(&mut self, now: Instant, reply: &Reply) {
        let is_proven = self.answered_at.is_some_and(|it| now.since(it) < PROVEN);
        match reply {
            Reply::Tokens(_) => *self = Pause { answered_at: Some(now), ..Pause::default() },
            Reply::Refused if is_proven => {}
            Reply::Refused | Reply::None => {
                self.until = now + self.next;
                self.next = (self.next * 2).min(PAUSE_MAX);
            }
        }
    }
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
            if memory.pauses.get(&model).is_some_and(|it| !it.is_over(now)) {
                return None;
            }
        }
        let reply = match self.choose(brain, parsed.model.as_deref()) {
            Chosen::Worker(link, kind) => {
                let question = engine::question(kind, parsed)?;
                timeout(limit, ask(upstreams, &link, question)).await.unwrap_or(Reply::None)
            }
            // That is no failure: no pause follows.
            Chosen::NotYet => return None,
            Chosen::None => Reply::None,
        };
        self.memory.lock().pauses.entry(model).or_default().see(now, &reply);
        let Reply::Tokens(tokens) = reply else { return None };
        // Hashed before the lock is taken, which all threads share: a long prompt takes milliseconds.
        let prompt = plan.hash_ids(&TokenIds { exact: tokens.len(), tokens });
        self.memory.lock().prompts.put(key, prompt.clone());
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

async fn ask(upstreams: &Upstreams, link: &Link, question: String) -> Reply {
    let (question, host) = (Bytes::from(question), link.address.header());
    let key = upstreams.settings.load().worker_key.clone();
    let request = || UpstreamRequest::post(engine::TOKENIZE, host, key.as_ref(), question.clone());
    match upstreams.ask(link, request, RESPONSE_BYTES_MAX).await {
        Some((status, body)) if status.is_success() => {
            engine::answer(&body).map_or(Reply::None, Reply::Tokens)
        }
        Some((status, _)) if refuses_prompt(status) => Reply::Refused,
        _ => Reply::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use maitre_index::PrefixHash;
    use maitre_index::prefix::Unit;

    #[test]
    fn a_refused_prompt_stops_others_only_if_none_has_been_tokenized_lately() {
        let at = |seconds: u64| Instant::from_millis(1_000 * seconds);
        let mut pause = Pause::default();
        pause.see(at(1), &Reply::Refused);
        assert_eq!(
            (pause.is_over(at(1)), pause.is_over(at(2))),
            (false, true),
            "no engine has tokenized before"
        );
        pause.see(at(2), &Reply::None);
        assert_eq!((pause.is_over(at(3)), pause.is_over(at(4))), (false, true), "twice as long");
        pause.see(at(4), &Reply::Tokens(vec![1]));
        for second in 5..14 {
            pause.see(at(second), &Reply::Refused);
            assert!(pause.is_over(at(second)), "second {second}");
        }
        pause.see(at(14), &Reply::Refused);
        assert_eq!((pause.is_over(at(14)), pause.is_over(at(15))), (false, true));
        pause.see(at(15), &Reply::Tokens(vec![1]));
        pause.see(at(16), &Reply::None);
        assert!(!pause.is_over(at(16)), "an engine that does not answer is no matter of the prompt");
    }

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
