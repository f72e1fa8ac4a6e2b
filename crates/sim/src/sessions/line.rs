//! One line of a session file, as published with kv-cache-tester, with its block ids as runs.

use std::collections::BTreeSet;
use std::time::Duration;

use maitre_base::hash;
use serde::Deserialize;

use super::{AgentSession, CallPlan, SessionTrace};
use crate::trace::{ANSWER_TOKENS_MAX, PROMPT_TOKENS_MAX, Piece, Request};

/// A year: longer times are probably times of day.
const SECONDS_MAX: f64 = 366.0 * 86_400.0;
/// Threads of a session: an agent and its sub-agents.
const THREADS_MAX: usize = 4_096;
/// Text numbers of blocks that sessions of one kind share, of a session's own blocks, and of the tokens after the last block.
const SHARED: u64 = 0x7368_6172_6564;
const OWN: u64 = 0x6F77_6E62_6C6B;
const TAIL: u64 = 0x7461_696C;
const ANSWER: u64 = 0x616E_7377_6572;

/// What is wrong with a session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("not a session: {0}")]
    Json(#[from] serde_json::Error),
    #[error("`requests` is empty: a session has at least one call")]
    NoCalls,
    #[error("`block_size` is {0}; 1 to 65536 tokens are expected")]
    BlockSize(u32),
    #[error("`hash_id_scope` is {0:?}; only \"local\" is known")]
    Scope(String),
    #[error("request {call}: neither `in` nor `requests`")]
    NeitherCallNorAgent { call: usize },
    #[error("request {call}: `{key}` is missing")]
    Missing { call: usize, key: &'static str },
    #[error("request {call}: `in` is {tokens}; 1 to {PROMPT_TOKENS_MAX} tokens are expected")]
    PromptTokens { call: usize, tokens: u64 },
    #[error("request {call}: `out` is {tokens}; at most {ANSWER_TOKENS_MAX} tokens are expected")]
    AnswerTokens { call: usize, tokens: u64 },
    #[error("request {call}: `runs` has {found} blocks of {block} tokens, but `in` is {tokens}")]
    Blocks { call: usize, found: u64, block: u32, tokens: u64 },
    #[error("request {call}: `{key}` is {seconds}; seconds from 0 and up to a year are expected")]
    Seconds { call: usize, key: &'static str, seconds: f64 },
    #[error("request {call}: a sub-agent has no sub-agents of its own in this format")]
    Nested { call: usize },
    #[error("more than {THREADS_MAX} sub-agents")]
    TooManyAgents,
}

#[derive(Deserialize)]
struct SessionLine {
    block_size: u32,
    #[serde(default)]
    hash_id_scope: Option<String>,
    #[serde(default)]
    tool_tokens: u64,
    #[serde(default)]
    system_tokens: u64,
    requests: Vec<Entry>,
}

/// A call, or a sub-agent with calls of its own.
#[derive(Deserialize)]
struct Entry {
    /// When a call began; when a sub-agent ended, or was launched if its duration is unknown.
    #[serde(default)]
    t: f64,
    #[serde(rename = "in")]
    prompt: Option<u64>,
    out: Option<u64>,
    runs: Option<Vec<(u64, u64)>>,
    api_time: Option<f64>,
    think_time: Option<f64>,
    requests: Option<Vec<Entry>>,
    duration_ms: Option<f64>,
    #[serde(default)]
    tool_tokens: u64,
    #[serde(default)]
    system_tokens: u64,
}

/// A call that was checked.
struct Call<'a> {
    t: f64,
    prompt: u64,
    answer: u32,
    runs: &'a [(u64, u64)],
    api_time: f64,
    think: Option<f64>,
    /// Sub-agents that end before it, and how long before.
    waits_for: Vec<(u32, Duration)>,
    starts: Vec<(u32, Duration)>,
}

/// The calls of an agent or a sub-agent, and how many tokens they share with others of the kind.
struct Thread<'a> {
    calls: Vec<Call<'a>>,
    kind: (u64, u64),
    /// A sub-agent's beginning and end.
    span: Option<(f64, f64)>,
}

/// Sessions read so far.
#[derive(Default)]
pub(super) struct Assembly {
    pub(super) made: SessionTrace,
}

impl Assembly {
    pub(super) fn add(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        let line: SessionLine = serde_json::from_slice(bytes)?;
        if !(1..=65_536).contains(&line.block_size) {
            return Err(SessionError::BlockSize(line.block_size));
        }
        if let Some(scope) = line.hash_id_scope.filter(|it| it != "local") {
            return Err(SessionError::Scope(scope));
        }
        let kind = (line.tool_tokens, line.system_tokens);
        let threads = threads(&line.requests, kind, line.block_size)?;
        let cuts = cuts(&threads, line.block_size);
        let number = self.made.sessions.len();
        let mut session = AgentSession { threads: Vec::new() };
        for (place, thread) in threads.into_iter().enumerate() {
            let begin = self.made.calls.len();
            let texts = Texts { session: number as u64, block: line.block_size, cuts: &cuts };
            let mut before: Option<(f64, f64)> = None;
            for call in &thread.calls {
                // If the think time is missing, it is the time between the answer and this call.
                let gap = before.replace((call.t, call.api_time)).map_or(0.0, |(t, api)| call.t - t - api);
                self.made.calls.push(CallPlan {
                    session: number as u32,
                    thread: place as u32,
                    think: span(call.think.unwrap_or(gap)),
                    waits_for: call.waits_for.as_slice().into(),
                    starts: call.starts.as_slice().into(),
                });
                let own = self.made.trace.requests.len() as u64;
                self.made.trace.requests.push(Request {
                    prompt: texts.prompt(&thread, call, own),
                    answer_tokens: call.answer,
                    answer: hash::pair(ANSWER, own),
                    session: Some(hash::pair(OWN, number as u64)),
                    ..Request::default()
                });
            }
            session.threads.push(begin..self.made.calls.len());
        }
        self.made.sessions.push(session);
        Ok(())
    }
}

/// How block ids become texts.
struct Texts<'a> {
    session: u64,
    block: u32,
    cuts: &'a BTreeSet<u64>,
}

impl Texts<'_> {
    /// The prompt in pieces. Ids that always occur together are one text.
    fn prompt(&self, thread: &Thread<'_>, call: &Call<'_>, own: u64) -> Box<[Piece]> {
        let base = thread.calls[0].runs.first().map_or(0, |it| it.0);
        let shared = (thread.kind.0 + thread.kind.1) / u64::from(self.block);
        let kind = hash::pair(SHARED, hash::pair(thread.kind.0, thread.kind.1));
        let mut pieces = Vec::new();
        let mut place = 0;
        for &(first, count) in call.runs {
            let mut at = first;
            while at < first + count {
                let next =
                    self.cuts.range(at + 1..).next().map_or(first + count, |&it| it.min(first + count));
                let position = place + (at - first);
                let is_shared = position < shared && at == base + position;
                let text = match is_shared {
                    true => hash::pair(kind, position),
                    false => hash::pair(hash::pair(OWN, self.session), at),
                };
                pieces.push(Piece { text, tokens: (next - at) as u32 * self.block });
                at = next;
            }
            place += count;
        }
        let rest = call.prompt - place * u64::from(self.block);
        if rest > 0 {
            pieces.push(Piece { text: hash::pair(TAIL, own), tokens: rest as u32 });
        }
        pieces.into()
    }
}

/// The ids at which a text begins: where any run begins or ends, or the shared blocks of a thread end.
fn cuts(threads: &[Thread<'_>], block: u32) -> BTreeSet<u64> {
    let mut cuts = BTreeSet::new();
    for thread in threads {
        let runs = thread.calls.iter().flat_map(|it| it.runs);
        cuts.extend(runs.flat_map(|&(first, count)| [first, first + count]));
        let base = thread.calls[0].runs.first().map_or(0, |it| it.0);
        cuts.insert(base + (thread.kind.0 + thread.kind.1) / u64::from(block));
    }
    cuts
}

/// The agent first, then its sub-agents.
fn threads(entries: &[Entry], kind: (u64, u64), block: u32) -> Result<Vec<Thread<'_>>, SessionError> {
    let mut agent = Thread { calls: Vec::new(), kind, span: None };
    let mut others = Vec::new();
    // Sub-agents that no call of their parent follows yet.
    let mut open: Vec<u32> = Vec::new();
    for (call, entry) in entries.iter().enumerate() {
        let Some(inner) = &entry.requests else {
            let mut checked = check_call(call, entry, block)?;
            for number in open.drain(..) {
                let thread: &Thread<'_> = &others[number as usize - 1];
                let end = thread.span.map_or(entry.t, |it| it.1);
                if end <= entry.t {
                    checked.waits_for.push((number, span(entry.t - end)));
                }
            }
            agent.calls.push(checked);
            continue;
        };
        let thread = sub_agent(call, entry, inner, block)?;
        if others.len() + 1 == THREADS_MAX {
            return Err(SessionError::TooManyAgents);
        }
        let number = others.len() as u32 + 1;
        // It begins after the last answer before its beginning; a session that begins with one waits for no answer.
        let begin = thread.span.map_or(0.0, |it| it.0);
        match agent.calls.iter_mut().rev().find(|it| it.t <= begin) {
            Some(before) => before.starts.push((number, span(begin - before.t - before.api_time))),
            None => return Err(SessionError::Missing { call, key: "a call before the sub-agent" }),
        }
        open.push(number);
        others.push(thread);
    }
    if agent.calls.is_empty() {
        return Err(SessionError::NoCalls);
    }
    let mut threads = vec![agent];
    threads.extend(others);
    Ok(threads)
}

fn sub_agent<'a>(
    call: usize,
    entry: &Entry,
    inner: &'a [Entry],
    block: u32,
) -> Result<Thread<'a>, SessionError> {
    let t = check_seconds(call, "t", entry.t)?;
    let span = match entry.duration_ms {
        Some(millis) => (t - check_seconds(call, "duration_ms", millis / 1e3)?, t),
        // Launched at this time; its parent does not wait for it.
        None => (t, f64::INFINITY),
    };
    if inner.iter().any(|it| it.requests.is_some()) {
        return Err(SessionError::Nested { call });
    }
    let calls: Vec<Call<'_>> =
        inner.iter().map(|it| check_call(call, it, block)).collect::<Result<_, SessionError>>()?;
    if calls.is_empty() {
        return Err(SessionError::NoCalls);
    }
    Ok(Thread { calls, kind: (entry.tool_tokens, entry.system_tokens), span: Some(span) })
}

fn check_call(call: usize, entry: &Entry, block: u32) -> Result<Call<'_>, SessionError> {
    let tokens = entry.prompt.ok_or(SessionError::NeitherCallNorAgent { call })?;
    if !(1..=PROMPT_TOKENS_MAX).contains(&tokens) {
        return Err(SessionError::PromptTokens { call, tokens });
    }
    let answer = entry.out.ok_or(SessionError::Missing { call, key: "out" })?;
    if answer > u64::from(ANSWER_TOKENS_MAX) {
        return Err(SessionError::AnswerTokens { call, tokens: answer });
    }
    let runs = entry.runs.as_deref().ok_or(SessionError::Missing { call, key: "runs" })?;
    let found = runs.iter().fold(0_u64, |sum, it| sum.saturating_add(it.1));
    let is_long = found.checked_mul(u64::from(block)).is_none_or(|it| it > tokens);
    let has_room = runs.iter().all(|it| it.1 > 0 && it.0.checked_add(it.1).is_some());
    if is_long || !has_room {
        return Err(SessionError::Blocks { call, found, block, tokens });
    }
    let think = entry.think_time.map(|it| check_seconds(call, "think_time", it)).transpose()?;
    Ok(Call {
        t: check_seconds(call, "t", entry.t)?,
        prompt: tokens,
        answer: answer as u32,
        runs,
        api_time: check_seconds(call, "api_time", entry.api_time.unwrap_or(0.0))?,
        think,
        waits_for: Vec::new(),
        starts: Vec::new(),
    })
}

fn check_seconds(call: usize, key: &'static str, seconds: f64) -> Result<f64, SessionError> {
    match (0.0..=SECONDS_MAX).contains(&seconds) {
        true => Ok(seconds),
        false => Err(SessionError::Seconds { call, key, seconds }),
    }
}

/// A span that may be slightly negative where recorded times were rounded.
fn span(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.max(0.0))
}
