//! What the admin API says, as much of it as is shown. Unknown numbers are none.
//!
//! Only what tells this API from another must be there: a field that an older router does not send is unknown.

use serde::Deserialize;

use super::plain::Plain;

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Overview {
    pub(crate) at_ms: u64,
    #[serde(default)]
    pub(crate) version: Plain,
    #[serde(default)]
    pub(crate) uptime_s: f64,
    #[serde(default)]
    pub(crate) ready: bool,
    #[serde(default)]
    pub(crate) leaving: bool,
    pub(crate) strategy: Plain,
    #[serde(default)]
    pub(crate) now: Now,
    #[serde(default)]
    pub(crate) prediction: Prediction,
    #[serde(default)]
    pub(crate) queue: Queue,
    pub(crate) workers: Vec<Worker>,
    #[serde(default)]
    pub(crate) shadows: Vec<Standing>,
    /// None where the router is alone.
    #[serde(default)]
    pub(crate) cluster: Option<Cluster>,
}

/// The routers in front of the same fleet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Cluster {
    pub(crate) via: Plain,
    pub(crate) connected: bool,
    pub(crate) trouble: Option<Plain>,
    pub(crate) limit_share: Option<f64>,
    pub(crate) routers: Vec<Router>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Router {
    pub(crate) name: Plain,
    #[serde(rename = "self")]
    pub(crate) is_self: bool,
    pub(crate) state: Plain,
    pub(crate) lag_ms: Option<f64>,
    pub(crate) open: u64,
    /// Its part of all requests of late.
    pub(crate) share: Option<f64>,
    pub(crate) heard_ms: Option<f64>,
}

impl Router {
    pub(crate) fn is_live(&self) -> bool {
        &*self.state == "live"
    }
}

/// The last second.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Now {
    pub(crate) requests_per_s: f64,
    pub(crate) answer_tokens_per_s: f64,
    pub(crate) ttft_p50_ms: Option<f64>,
    pub(crate) ttft_p99_ms: Option<f64>,
    pub(crate) hit_ratio: Option<f64>,
    pub(crate) waiting: u64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Prediction {
    pub(crate) median_error: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Queue {
    pub(crate) enabled: bool,
    pub(crate) classes: Vec<Class>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Class {
    pub(crate) class: Plain,
    pub(crate) waiting: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Worker {
    pub(crate) id: u32,
    pub(crate) url: Plain,
    #[serde(default)]
    pub(crate) engine: Option<Plain>,
    #[serde(default)]
    pub(crate) models: Vec<Plain>,
    pub(crate) state: Plain,
    #[serde(default)]
    pub(crate) draining: bool,
    #[serde(default = "one")]
    pub(crate) weight: f64,
    #[serde(flatten)]
    pub(crate) load: Load,
    #[serde(default)]
    pub(crate) rates: Rates,
    #[serde(default)]
    pub(crate) trust: Plain,
}

fn one() -> f64 {
    1.0
}

/// What a worker has to do, and what it has done.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Load {
    pub(crate) requests: u64,
    pub(crate) prefilling: u64,
    pub(crate) waiting: Option<u64>,
    pub(crate) prefill_tokens: u64,
    pub(crate) decode_tokens: u64,
    pub(crate) limits: Option<Limits>,
    pub(crate) others: Option<Others>,
    pub(crate) kv_usage: Option<f64>,
    pub(crate) kv_tokens: Option<u64>,
    pub(crate) held_tokens: u64,
    pub(crate) hit_ratio: Option<f64>,
    pub(crate) seated: u64,
    pub(crate) failures: u64,
    pub(crate) heard_ms: Option<f64>,
}

/// What other routers promised to a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Others {
    pub(crate) requests: u64,
    pub(crate) prefill_tokens: u64,
    pub(crate) decode_tokens: u64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Limits {
    pub(crate) sequences: f64,
    pub(crate) prefill_tokens: f64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Rates {
    pub(crate) learned: bool,
    pub(crate) prefill_tokens_per_s: f64,
    pub(crate) floor_ms: f64,
    pub(crate) step_ms: f64,
    pub(crate) step_per_request_ms: f64,
}

/// What another strategy would have done, over all decisions.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Standing {
    pub(crate) strategy: Plain,
    #[serde(default)]
    pub(crate) decisions: u64,
    #[serde(default)]
    pub(crate) differed: u64,
    #[serde(default)]
    pub(crate) price_ms: Option<f64>,
    #[serde(default)]
    pub(crate) our_price_ms: Option<f64>,
}

/// A sample for each second.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct History {
    pub(crate) at_ms: Vec<u64>,
    pub(crate) ttft_p50_ms: Vec<Option<f64>>,
    pub(crate) requests_per_s: Vec<f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Decisions {
    /// How many were left out of an event of the stream.
    #[serde(default)]
    pub(crate) skipped: u64,
    pub(crate) decisions: Vec<Decision>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Decision {
    /// None for what was only asked.
    pub(crate) number: Option<u64>,
    #[serde(default)]
    pub(crate) id: Option<Plain>,
    pub(crate) at_ms: u64,
    #[serde(default)]
    pub(crate) model: Option<Plain>,
    #[serde(default)]
    pub(crate) strategy: Plain,
    #[serde(default)]
    pub(crate) class: Option<Plain>,
    #[serde(default)]
    pub(crate) tenant: Option<Plain>,
    pub(crate) worker: u32,
    #[serde(default)]
    pub(crate) url: Option<Plain>,
    pub(crate) why: Plain,
    #[serde(default)]
    pub(crate) attempt: u32,
    #[serde(default)]
    pub(crate) waited_ms: f64,
    #[serde(default)]
    pub(crate) prompt_tokens: u64,
    #[serde(default)]
    pub(crate) answer_tokens: u64,
    #[serde(default)]
    pub(crate) held_tokens: Option<u64>,
    #[serde(default)]
    pub(crate) predicted_ttft_ms: Option<f64>,
    #[serde(default)]
    pub(crate) actual_ttft_ms: Option<f64>,
    #[serde(default)]
    pub(crate) cached_tokens: Option<u64>,
    #[serde(default)]
    pub(crate) outcome: Plain,
    /// Only where one decision was asked for, as is all below.
    #[serde(default)]
    pub(crate) total_ms: Option<f64>,
    #[serde(default)]
    pub(crate) actual_answer_tokens: Option<u64>,
    #[serde(default)]
    pub(crate) would_wait: bool,
    #[serde(default)]
    pub(crate) candidates_total: u64,
    #[serde(default)]
    pub(crate) candidates: Vec<Candidate>,
    #[serde(default)]
    pub(crate) shadows: Vec<Shadow>,
}

/// A worker that could have taken it.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Candidate {
    pub(crate) worker: u32,
    #[serde(default)]
    pub(crate) url: Option<Plain>,
    #[serde(default)]
    pub(crate) chosen: bool,
    #[serde(default)]
    pub(crate) held_tokens: u64,
    #[serde(default)]
    pub(crate) requests: u64,
    #[serde(default = "one")]
    pub(crate) share: f64,
    #[serde(default)]
    pub(crate) opening: Plain,
    #[serde(default)]
    pub(crate) ttft_ms: Option<f64>,
    pub(crate) price_ms: f64,
    #[serde(default)]
    pub(crate) terms_ms: Terms,
}

/// What a price is made of.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Terms {
    pub(crate) wait: f64,
    pub(crate) floor: f64,
    pub(crate) prefill: f64,
    pub(crate) behind: f64,
    pub(crate) pushed: f64,
    pub(crate) others: f64,
    pub(crate) answer: f64,
    pub(crate) room: f64,
    pub(crate) adapter: f64,
}

/// What another strategy would have done with this one.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Shadow {
    pub(crate) strategy: Plain,
    pub(crate) worker: u32,
    #[serde(default)]
    pub(crate) url: Option<Plain>,
    #[serde(default)]
    pub(crate) why: Plain,
    #[serde(default)]
    pub(crate) differs: bool,
    #[serde(default)]
    pub(crate) price_ms: Option<f64>,
    #[serde(default)]
    pub(crate) ttft_ms: Option<f64>,
}

/// How an error is told.
#[derive(Debug, Deserialize)]
pub(crate) struct Wrong {
    pub(crate) error: Told,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Told {
    pub(crate) code: String,
    pub(crate) message: String,
}
