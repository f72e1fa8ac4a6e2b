//! Traffic for a demo: arrivals and prompts. No sockets, no clock; the caller sends.
//!
//! Three kinds of session exercise a cache in three ways. *Chats* grow: each turn repeats all before it, so the
//! engine that answered the last turn holds almost all of the next. *Questions* share: each has one of a pool of
//! documents and a short question, and a few documents are much more popular than the others (Zipf). *Giants* do
//! neither: a long prompt that is never repeated, which evicts others from the cache and blocks the queue behind it.
//!
//! The default sizes make placement matter within twenty seconds on four `h200-8b` engines of `DEMO_KV_BLOCKS` each.
//! The documents have 384 thousand tokens: too many for one engine's 128 thousand, but not for four engines' 512. So
//! it pays to send each document to the same engine. If all engines get them in turn, every cache holds a changing
//! quarter; `maitre demo --strategy round-robin,prefix-hash` shows the difference. Sizes are in tokens of the
//! simulated tokenizer, four bytes each.

use std::sync::Arc;
use std::time::Duration;

use maitre_base::{Instant, Rng, hash};
use serde_json::{Value, json};

use crate::text;

/// Blocks of each engine's cache in the demo: 128 thousand tokens, a seventh of what the GPU has.
pub const DEMO_KV_BLOCKS: u32 = 8_001;

/// The kinds of sessions, their rate and their sizes. All chosen; the module says why.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    pub model: String,
    pub sessions_per_second: f64,
    /// Shares of the sessions; the rest are chats.
    pub question_share: f64,
    pub giant_share: f64,
    /// Opens every chat.
    pub system_tokens: u32,
    pub turns_max: u32,
    pub question_tokens_max: u32,
    /// The longest time between an answer and the next turn.
    pub think_max: Duration,
    pub documents: u32,
    pub document_tokens: u32,
    /// Document number r is requested in proportion to 1 / r to this power.
    pub zipf: f64,
    pub giant_tokens: u32,
    pub answer_tokens_max: u32,
}

impl Default for Mix {
    fn default() -> Mix {
        Mix {
            model: "maitre-sim".to_owned(),
            sessions_per_second: 20.0,
            question_share: 0.60,
            giant_share: 0.02,
            system_tokens: 2_000,
            turns_max: 8,
            question_tokens_max: 400,
            think_max: Duration::from_secs(3),
            documents: 32,
            document_tokens: 12_000,
            zipf: 1.0,
            giant_tokens: 24_000,
            answer_tokens_max: 256,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionKind {
    Chat,
    Question { document: u32 },
    Giant,
}

/// Sessions without end, in order of arrival.
#[derive(Clone, Debug)]
pub struct Workload {
    mix: Arc<Mix>,
    rng: Rng,
    now: Instant,
    sessions: u64,
    /// For each document, the chance that a request names it or an earlier one.
    popularity: Vec<f64>,
    seed: u64,
}

/// One client, from its first request to its last.
#[derive(Clone, Debug)]
pub struct Session {
    pub id: u64,
    pub kind: SessionKind,
    /// When the first turn is due.
    pub arrival: Instant,
    mix: Arc<Mix>,
    rng: Rng,
    opening: Opening,
    turns_left: u32,
    messages: Vec<Value>,
}

/// The session's first text; generated when it is sent.
#[derive(Clone, Copy, Debug)]
struct Opening {
    seed: u64,
    tokens: u32,
}

/// A request to be sent to `/v1/chat/completions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// JSON; asks for a stream with usage.
    pub body: Vec<u8>,
    pub max_tokens: u32,
    /// How long the client thinks before it sends this.
    pub think: Duration,
}

impl Workload {
    pub fn new(seed: u64, mix: Mix) -> Workload {
        let weights = (1..=mix.documents.max(1)).map(|rank| f64::from(rank).powf(-mix.zipf));
        let mut popularity: Vec<f64> = weights
            .scan(0.0, |sum, weight| {
                *sum += weight;
                Some(*sum)
            })
            .collect();
        let total = popularity.last().copied().unwrap_or(1.0);
        popularity.iter_mut().for_each(|it| *it /= total);
        Workload {
            mix: Arc::new(mix),
            rng: Rng::new(seed),
            now: Instant::ZERO,
            sessions: 0,
            popularity,
            seed,
        }
    }

    /// The next session, after a Poisson interval.
    pub fn next_session(&mut self) -> Session {
        let wait = self.rng.exponential(1.0 / self.mix.sessions_per_second);
        self.now = self.now + Duration::from_secs_f64(wait);
        let kind = self.kind();
        let id = self.sessions;
        self.sessions += 1;
        let mut rng = Rng::new(hash::pair(self.seed, id));
        let opening = self.opening(kind, &mut rng);
        let turns_left = match kind {
            SessionKind::Chat => 2 + rng.below(self.mix.turns_max.saturating_sub(1) as usize) as u32,
            SessionKind::Question { .. } | SessionKind::Giant => 1,
        };
        let mix = Arc::clone(&self.mix);
        Session { id, kind, arrival: self.now, mix, rng, opening, turns_left, messages: Vec::new() }
    }

    /// Texts that sessions share are named by the workload's seed, others by the session's dice.
    fn opening(&self, kind: SessionKind, rng: &mut Rng) -> Opening {
        let (seed, tokens) = match kind {
            SessionKind::Chat => (hash::pair(self.seed, 1), self.mix.system_tokens),
            SessionKind::Question { document } => {
                (hash::pair(self.seed, 2 + u64::from(document)), self.mix.document_tokens)
            }
            SessionKind::Giant => (rng.next_u64(), self.mix.giant_tokens),
        };
        Opening { seed, tokens }
    }

    fn kind(&mut self) -> SessionKind {
        let dice = self.rng.unit();
        if dice < self.mix.giant_share {
            return SessionKind::Giant;
        }
        if dice < self.mix.giant_share + self.mix.question_share {
            let dice = self.rng.unit();
            let document = self.popularity.partition_point(|&it| it <= dice);
            return SessionKind::Question { document: document.min(self.popularity.len() - 1) as u32 };
        }
        SessionKind::Chat
    }
}

impl Session {
    /// The session's first turn, due at `arrival`.
    pub fn first(&mut self) -> Turn {
        let system = text::answer_text(self.opening.seed, self.opening.tokens);
        self.messages.push(json!({"role": "system", "content": system}));
        Turn { think: Duration::ZERO, ..self.ask() }
    }

    /// The turn that follows an answer; `None` if the session is over.
    pub fn after(&mut self, answer: &str) -> Option<Turn> {
        if self.turns_left == 0 {
            return None;
        }
        self.messages.push(json!({"role": "assistant", "content": answer}));
        Some(self.ask())
    }

    fn ask(&mut self) -> Turn {
        self.turns_left = self.turns_left.saturating_sub(1);
        let question_tokens = 1 + self.rng.below(self.mix.question_tokens_max as usize) as u32;
        let question = text::answer_text(self.rng.next_u64(), question_tokens);
        self.messages.push(json!({"role": "user", "content": question}));
        let max_tokens = 1 + self.rng.below(self.mix.answer_tokens_max as usize) as u32;
        let body = json!({
            "model": &self.mix.model,
            "messages": &self.messages,
            "max_tokens": max_tokens,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        let think = self.mix.think_max.mul_f64(self.rng.unit());
        Turn { body: body.to_string().into_bytes(), max_tokens, think }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions(seed: u64, count: usize) -> Vec<Session> {
        let mut workload = Workload::new(seed, Mix::default());
        (0..count).map(|_| workload.next_session()).collect()
    }

    fn messages(turn: &Turn) -> Vec<Value> {
        let body: Value = serde_json::from_slice(&turn.body).unwrap();
        body["messages"].as_array().unwrap().clone()
    }

    fn bodies(seed: u64) -> Vec<Turn> {
        sessions(seed, 30).into_iter().map(|mut it| it.first()).collect()
    }

    #[test]
    fn same_seed_same_traffic() {
        assert_eq!(bodies(7), bodies(7));
        assert_ne!(bodies(7), bodies(8));
    }

    #[test]
    fn sessions_come_at_their_rate_and_in_their_shares() {
        let sessions = sessions(1, 8_000);
        let seconds = sessions.last().unwrap().arrival.as_secs_f64();
        assert!((380.0..420.0).contains(&seconds), "{seconds}");
        let share = |wanted: fn(&SessionKind) -> bool| {
            sessions.iter().filter(|it| wanted(&it.kind)).count() as f64 / sessions.len() as f64
        };
        assert!((share(|it| matches!(it, SessionKind::Question { .. })) - 0.60).abs() < 0.02);
        assert!((share(|it| matches!(it, SessionKind::Giant)) - 0.02).abs() < 0.01);
    }

    #[test]
    fn documents_are_asked_for_by_their_rank() {
        let mut asked = vec![0u32; 32];
        for session in sessions(1, 20_000) {
            if let SessionKind::Question { document } = session.kind {
                asked[document as usize] += 1;
            }
        }
        assert!(asked.iter().all(|&it| it > 0), "{asked:?}");
        let ratio = f64::from(asked[0]) / f64::from(asked[9]);
        assert!((8.0..12.0).contains(&ratio), "the first ten times as often as the tenth, not {ratio}");
    }

    #[test]
    fn a_turn_repeats_all_before_it() {
        let mut chat = sessions(1, 20).into_iter().find(|it| it.kind == SessionKind::Chat).unwrap();
        let mut before = messages(&chat.first());
        let mut turns = 1;
        while let Some(turn) = chat.after("an answer") {
            let now = messages(&turn);
            assert!(now.starts_with(&before) && now.len() == before.len() + 2);
            assert_eq!(now[before.len()]["content"], "an answer");
            before = now;
            turns += 1;
        }
        assert!((2..=8).contains(&turns), "{turns}");
    }

    #[test]
    fn one_document_is_one_prefix() {
        let mut heads = std::collections::HashMap::new();
        for mut session in sessions(1, 60) {
            if let SessionKind::Question { document } = session.kind {
                let head = messages(&session.first())[0].clone();
                assert_eq!(*heads.entry(document).or_insert_with(|| head.clone()), head);
                assert_eq!(session.after("an answer"), None);
            }
        }
        let distinct: std::collections::HashSet<_> = heads.values().map(Value::to_string).collect();
        assert_eq!(distinct.len(), heads.len());
    }
}
