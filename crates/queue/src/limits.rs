//! The concurrency limit of a worker, from the load at which its latency starts to rise.
//!
//! A step takes a base time plus a time for each request in it. By Little's law a worker with `n` requests and steps
//! of `empty + n · each` seconds gives `n / (empty + n · each)` tokens a second: nearly `n / empty` at first, and
//! never more than `1 / each`. The two lines meet at the knee. Below it one more request is almost free. Far above it
//! each request slows all others as much as it adds throughput. The same holds for queued prompt tokens and the time
//! to the first token. So a limit is a multiple of the knee, which follows from two linear fits that the router
//! learns anyway.
//!
//! A limit that is too low idles a worker. One that is too high only weakens the queue's order. So with little
//! evidence the limit is high.
//!
//! A limit holds requests back for later requests that may go before them. If no higher class has requests, holding
//! back has no use: such requests go to their workers, and the engine orders them. When requests of another class or
//! tenant come, the router takes back what is above the limit.
//!
//! Left out: KV memory, which is checked for each request by itself.

use std::time::Duration;

use maitre_base::Knee;

/// What a worker may have in flight before further requests wait in the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerLimits {
    /// Promised to the worker and not yet computed.
    pub prefill_tokens: u64,
    pub sequences: u32,
    /// Requests without a first token.
    pub prefilling: u32,
}

impl WorkerLimits {
    /// Scales both limits; neither falls below one.
    #[must_use]
    pub fn times(self, part: f64) -> WorkerLimits {
        WorkerLimits {
            prefill_tokens: ((self.prefill_tokens as f64 * part) as u64).max(1),
            sequences: ((f64::from(self.sequences) * part) as u32).max(1),
            prefilling: self.prefilling,
        }
    }
}

/// Multiples of the knee. At four times the knee a worker gives 80 % of its maximum prefill rate, at ten times 91 %
/// of its maximum token rate. With two, chats waited in the router needlessly at 80 % of a fleet's capacity.
const PREFILL: f64 = 4.0;
const CROWD: f64 = 10.0;

/// Minimum: half a step of a small GPU (vLLM: 2,048). With 4,096, a prompt at an engine on a CPU waited four
/// seconds for others. Maximum: what large GPUs take in one step. Past saturation steps are long and the knee
/// is found too late; with 16,384 a fleet of 32B models finished 12 % less in time than with 4,096.
const PREFILL_MIN: f64 = 1_024.0;
const PREFILL_MAX: f64 = 8_192.0;
/// Minimum requests at a worker, even if its answers arrived all at once and taught a lower limit.
const SEQUENCES_MIN: f64 = 16.0;
const SEQUENCES_MAX: f64 = 100_000.0;

/// The prefill that a worker may have if no higher class has requests and the router cannot take its requests back:
/// this many seconds of work, and at most so many tokens. Two steps of the largest usual size (16,384), so that a
/// worker never runs out of prompts in the middle of a step. With 8,192, agents past saturation waited 11.0 s for
/// their first token; with this, as long as in the engines' own queues (8.0 s).
const KEPT_SECONDS: f64 = 5.0;
const KEPT_TOKENS: f64 = 32_768.0;
/// Requests without a first token, per second of work. With short prompts, that is at first more than one step can
/// take. It keeps the requests that an engine without a free slot has not begun from growing into a queue of minutes.
const REQUESTS_A_SECOND: f64 = 12.8;

/// The operator's caps; zero means no cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    pub prefill_tokens: u64,
    pub sequences: u32,
}

impl Caps {
    /// The caps alone, as limits.
    pub fn as_limits(self) -> WorkerLimits {
        let or_any = |limit: u64| if limit == 0 { u64::MAX } else { limit };
        let sequences = u32::try_from(or_any(self.sequences.into())).unwrap_or(u32::MAX);
        WorkerLimits { prefill_tokens: or_any(self.prefill_tokens), sequences, prefilling: u32::MAX }
    }
}

/// The limits for a class that yields to others.
pub fn limits(knee: Knee, caps: Caps) -> WorkerLimits {
    let prefill = (PREFILL * knee.prefill_tokens).clamp(PREFILL_MIN, PREFILL_MAX);
    let crowd = (CROWD * knee.requests).clamp(SEQUENCES_MIN, SEQUENCES_MAX);
    let most = caps.as_limits();
    WorkerLimits {
        prefill_tokens: (prefill as u64).min(most.prefill_tokens),
        sequences: (crowd as u32).min(most.sequences),
        prefilling: u32::MAX,
    }
}

/// How much may wait at a worker for a class that yields to no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitAtWorker {
    /// The limit for requests that no router can take back, because a gateway carries them.
    Kept,
    /// This many seconds of work, but at least as much as `Kept`: the class limits how long its requests wait.
    Within(Duration),
    Unlimited,
}

/// The limits for a class that yields to no other, at a worker that takes `token_seconds` for a prompt token.
pub fn limits_of_first(knee: Knee, token_seconds: f64, caps: Caps, wait: WaitAtWorker) -> WorkerLimits {
    let most = caps.as_limits();
    let (seconds, tokens_max) = match wait {
        WaitAtWorker::Kept => (KEPT_SECONDS, KEPT_TOKENS),
        WaitAtWorker::Within(it) => (it.as_secs_f64().max(KEPT_SECONDS), f64::INFINITY),
        WaitAtWorker::Unlimited => (f64::INFINITY, f64::INFINITY),
    };
    let seconds_worth = (seconds / token_seconds.max(f64::MIN_POSITIVE)).min(tokens_max) as u64;
    let prefill_tokens = limits(knee, caps).prefill_tokens.max(seconds_worth).min(most.prefill_tokens);
    let prefilling = (seconds * REQUESTS_A_SECOND).max(1.0) as u32;
    WorkerLimits { prefill_tokens, sequences: most.sequences, prefilling }
}
