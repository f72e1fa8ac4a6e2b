//! Sessions of agents: recorded programs of many calls, played as closed loops.
//!
//! An agent sends its next call some time after the last answer, however late that was. So a session has no arrival
//! times: it has calls in order, the think time before each, and sub-agents that run in parallel. A sub-agent starts
//! some time after its parent received an answer. A later call of the parent waits for the sub-agent if it did so in
//! the recording.
//!
//! A file has one session per line; `line` reads it. Block ids are local to a session. All sessions of one kind share
//! their first tokens, the tools and the system prompt. Sessions with equal token counts of both are of one kind.
//!
//! The text of an answer has no ids of its own in the recording. It is part of the next prompt's new blocks, so an
//! engine computes it once more.

pub(crate) mod alone;
pub mod closed_loop;
mod line;
pub mod tasks;

use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::time::Duration;

use crate::trace::{LINE_BYTES_MAX, REQUESTS_MAX, Trace};
use line::Assembly;
pub use line::SessionError;

/// Maximum sessions that are read.
pub const SESSIONS_MAX: usize = 1_000_000;
/// Maximum length of a line: 512 calls with their runs take 60 kB.
const SESSION_BYTES_MAX: u64 = 64 * LINE_BYTES_MAX;

/// Recorded sessions. All their calls are in one trace, the calls of each thread one after another.
#[derive(Clone, Debug, Default)]
pub struct SessionTrace {
    pub trace: Trace,
    /// For each request of the trace, when it is sent.
    pub calls: Vec<CallPlan>,
    pub sessions: Vec<AgentSession>,
}

#[derive(Clone, Debug)]
pub struct AgentSession {
    /// By their numbers in the trace. The first thread is the agent, the others are its sub-agents.
    pub threads: Vec<Range<usize>>,
}

/// When a call is sent.
#[derive(Clone, Debug, Default)]
pub struct CallPlan {
    pub session: u32,
    pub thread: u32,
    /// From the answer before it, unless it waits for sub-agents.
    pub think: Duration,
    /// The sub-agents that it waits for, and how long after the end of each it comes.
    pub waits_for: Box<[(u32, Duration)]>,
    /// The sub-agents that begin after its answer, and how long after it.
    pub starts: Box<[(u32, Duration)]>,
}

#[derive(Debug, thiserror::Error)]
pub enum SessionTraceError {
    #[error(transparent)]
    Read(#[from] std::io::Error),
    #[error("line {line}: {wrong}")]
    Line { line: usize, wrong: SessionError },
    #[error("line {line} is longer than {SESSION_BYTES_MAX} bytes")]
    LongLine { line: usize },
    #[error("it contains no sessions")]
    Empty,
    #[error("it has more than {SESSIONS_MAX} sessions, or more than {REQUESTS_MAX} calls")]
    TooMany,
}

impl AgentSession {
    /// The numbers of all its calls.
    pub fn calls(&self) -> Range<usize> {
        let first = self.threads.first().map_or(0, |it| it.start);
        first..self.threads.last().map_or(first, |it| it.end)
    }
}

impl SessionTrace {
    /// Reads sessions, compressed or not, in their order.
    pub fn read(source: impl Read) -> Result<SessionTrace, SessionTraceError> {
        let mut source = BufReader::new(source);
        let compressed = source.fill_buf()?.starts_with(&[0x1F, 0x8B]);
        let trace = match compressed {
            true => read_lines(BufReader::new(flate2::bufread::MultiGzDecoder::new(source)))?,
            false => read_lines(source)?,
        };
        if trace.sessions.is_empty() { Err(SessionTraceError::Empty) } else { Ok(trace) }
    }

    /// Keeps only the sessions that `keep` selects, by number.
    #[must_use]
    pub fn filtered(&self, keep: impl Fn(usize) -> bool) -> SessionTrace {
        let mut kept = SessionTrace::default();
        for number in (0..self.sessions.len()).filter(|&it| keep(it)) {
            let calls = self.sessions[number].calls();
            let (old, new) = (calls.start, kept.calls.len());
            let session = kept.sessions.len() as u32;
            let threads = &self.sessions[number].threads;
            let moved = threads.iter().map(|it| it.start - old + new..it.end - old + new).collect();
            kept.sessions.push(AgentSession { threads: moved });
            kept.trace.requests.extend_from_slice(&self.trace.requests[calls.clone()]);
            kept.calls.extend(self.calls[calls].iter().map(|it| CallPlan { session, ..it.clone() }));
        }
        kept
    }

    /// The largest call of a session, prompt plus answer, in tokens.
    pub fn largest_call(&self, session: usize) -> u64 {
        let calls = &self.trace.requests[self.sessions[session].calls()];
        calls.iter().map(|it| it.prompt_tokens() + u64::from(it.answer_tokens)).max().unwrap_or(0)
    }

    /// The mean context over all calls: what a session keeps in a cache.
    pub fn mean_context(&self) -> f64 {
        let sum: u64 = self.trace.requests.iter().map(crate::trace::Request::prompt_tokens).sum();
        sum as f64 / self.trace.requests.len().max(1) as f64
    }

    /// Assigns the sessions to this many tenants in turn, numbered from one.
    pub fn deal(&mut self, tenants: usize) {
        for (number, session) in self.sessions.iter().enumerate() {
            for request in &mut self.trace.requests[session.calls()] {
                request.tenant = (number % tenants.max(1)) as u64 + 1;
            }
        }
    }

    /// Divides all client-side times by `speed`.
    pub fn hasten(&mut self, speed: f64) {
        for call in &mut self.calls {
            call.think = call.think.div_f64(speed);
            call.waits_for.iter_mut().chain(&mut call.starts).for_each(|it| it.1 = it.1.div_f64(speed));
        }
    }

    /// Limits each think time to `longest`: a person's break is not the agent's.
    pub fn cut_think_times(&mut self, longest: Duration) {
        for call in &mut self.calls {
            call.think = call.think.min(longest);
            let waits = call.waits_for.iter_mut().chain(&mut call.starts);
            waits.for_each(|it| it.1 = it.1.min(longest));
        }
    }
}

fn read_lines(mut source: impl BufRead) -> Result<SessionTrace, SessionTraceError> {
    let mut assembly = Assembly::default();
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        if source.by_ref().take(SESSION_BYTES_MAX).read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        if bytes.len() as u64 == SESSION_BYTES_MAX && bytes.last() != Some(&b'\n') {
            return Err(SessionTraceError::LongLine { line });
        }
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        assembly.add(&bytes).map_err(|wrong| SessionTraceError::Line { line, wrong })?;
        let trace = &assembly.made;
        if trace.sessions.len() > SESSIONS_MAX || trace.calls.len() > REQUESTS_MAX {
            return Err(SessionTraceError::TooMany);
        }
    }
    Ok(assembly.made)
}

#[cfg(test)]
mod tests;
