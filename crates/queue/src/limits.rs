//! How much work a worker takes before more of it only waits there.
//!
//! An engine computes prompts and answers in steps, and a step takes as long as what it carries, on top of what it
//! takes empty. By Little's law, with `n` requests there and steps of `empty + n · each` seconds, the worker
//! gives `n / (empty + n · each)` tokens a second: nearly `n / empty` at first, and never more than `1 / each`. Where
//! the two meet the curve bends. Below, one more request is almost free; far above, it adds as much to everybody's
//! time as it adds to the work done. The same holds for prompt tokens in line and the time to the first token. So a
//! limit is so many times the point of the bend, and all it needs is what is learned anyway: the floor and the
//! slope of two straight lines.
//!
//! A limit that is too low idles a worker, and one that is too high only gives away some order: where little is
//! known the limit is high.
//!
//! Left out: memory. What a cache has room for is asked for each request by itself.

use maitre_base::Knee;

/// What a worker may have before others wait here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerLimits {
    /// Promised to it and not yet computed.
    pub prefill_tokens: u64,
    pub sequences: u32,
}

impl WorkerLimits {
    /// So much of it, and never nothing.
    #[must_use]
    pub fn times(self, part: f64) -> WorkerLimits {
        WorkerLimits {
            prefill_tokens: ((self.prefill_tokens as f64 * part) as u64).max(1),
            sequences: ((f64::from(self.sequences) * part) as u32).max(1),
        }
    }
}

/// How many times the load at the bend. With four times, a worker gives 80 % of all the prefill there is to be had,
/// with ten times 91 % of all tokens. With twice, chats waited here without need when a fleet
/// had 80 % of what it can take.
const PREFILL: f64 = 4.0;
const CROWD: f64 = 10.0;

/// Never fewer tokens: half a step of a small GPU (vLLM: 2,048). With 4,096, a prompt at an engine on a CPU waited for four
/// seconds of others. Never more: what large GPUs take in one step. Past saturation first tokens bend later than they
/// should, for steps are long; with 16,384 a fleet of 32B models gave 12 % less in time than with 4,096.
const PREFILL_MIN: f64 = 1_024.0;
const PREFILL_MAX: f64 = 8_192.0;
/// Never fewer requests at a worker, whatever was learned from answers that came in one gulp.
const SEQUENCES_MIN: f64 = 16.0;
const SEQUENCES_MAX: f64 = 100_000.0;

/// What an operator allows at the most; zero for anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    pub prefill_tokens: u64,
    pub sequences: u32,
}

impl Caps {
    /// All that is allowed, whatever a worker can work on.
    pub fn as_limits(self) -> WorkerLimits {
        let or_any = |limit: u64| if limit == 0 { u64::MAX } else { limit };
        let sequences = u32::try_from(or_any(self.sequences.into())).unwrap_or(u32::MAX);
        WorkerLimits { prefill_tokens: or_any(self.prefill_tokens), sequences }
    }
}

pub fn limits(knee: Knee, caps: Caps) -> WorkerLimits {
    let prefill = (PREFILL * knee.prefill_tokens).clamp(PREFILL_MIN, PREFILL_MAX);
    let crowd = (CROWD * knee.requests).clamp(SEQUENCES_MIN, SEQUENCES_MAX);
    let most = caps.as_limits();
    WorkerLimits {
        prefill_tokens: (prefill as u64).min(most.prefill_tokens),
        sequences: (crowd as u32).min(most.sequences),
    }
}
