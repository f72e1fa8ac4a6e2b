//! Rows of the table that only one strategy uses.

use super::{BODY_BYTES_MAX, SECONDS, WEIGHTS};
use crate::field::At;
use crate::form::{Count, Ratio};
use crate::knob::{Knob, knob};
use crate::types::{COOKIE, HEADER};

pub(super) static CACHE_AWARE: &[Knob] = &[
    knob(
        "cache_aware.cache_threshold",
        &At(|it| &mut it.settings.brain.knobs.cache_aware.cache_threshold, Ratio(0.0..=1.0)),
        "A worker gets the request if it has more than this share of the prompt cached. Lower follows \
         smaller matches.",
    ),
    knob(
        "cache_aware.balance_abs_threshold",
        &At(|it| &mut it.settings.brain.knobs.cache_aware.balance_abs_threshold, Count(0..=1_000_000)),
        "The fleet is out of balance if the busiest worker has more than this many requests more than the \
         least busy one, and balance_rel_threshold is exceeded too. Lower spreads sooner.",
    ),
    knob(
        "cache_aware.balance_rel_threshold",
        &At(|it| &mut it.settings.brain.knobs.cache_aware.balance_rel_threshold, Ratio(1.0..=1_000.0)),
        "The fleet is out of balance if the busiest worker also has more than this many times the requests \
         of the least busy one. Lower spreads sooner.",
    ),
];

pub(super) static PREFIX_HASH: &[Knob] = &[
    knob(
        "prefix_hash.head_bytes",
        &At(|it| &mut it.settings.head_bytes, Count(1..=BODY_BYTES_MAX)),
        "How many bytes at the beginning of a prompt choose its worker. Raise it if all prompts begin alike.",
    ),
    knob(
        "prefix_hash.load_factor",
        &At(|it| &mut it.settings.brain.knobs.load_factor, Ratio(1.0..=1_000.0)),
        "How many times the mean load a worker may have before its prompts go to others. Nearer to 1 \
         spreads sooner.",
    ),
];

pub(super) static SESSION: &[Knob] = &[
    knob(
        "session.header",
        &At(|it| &mut it.settings.session.header, HEADER),
        "The request header that identifies a session.",
    ),
    knob(
        "session.cookie",
        &At(|it| &mut it.settings.session.cookie, COOKIE),
        "The cookie that identifies a session, if the request lacks the header.",
    ),
];

pub(super) static DYNAMO_COST: &[Knob] = &[knob(
    "dynamo_cost.prefill_weight",
    &At(|it| &mut it.settings.brain.knobs.dynamo_cost.prefill_weight, Ratio(WEIGHTS)),
    "Cost of a block to prefill, relative to a block to keep. Higher favours cached prefixes.",
)];

pub(super) static WEIGHTED: &[Knob] = &[
    knob(
        "weighted.prefix",
        &At(|it| &mut it.settings.brain.knobs.weighted.prefix, Ratio(WEIGHTS)),
        "Weight of the cached share of a prompt.",
    ),
    knob(
        "weighted.queue",
        &At(|it| &mut it.settings.brain.knobs.weighted.queue, Ratio(WEIGHTS)),
        "Weight of a short queue at the worker.",
    ),
    knob(
        "weighted.kv",
        &At(|it| &mut it.settings.brain.knobs.weighted.kv, Ratio(WEIGHTS)),
        "Weight of free KV cache at the worker.",
    ),
];

pub(super) static STICKY_UNTIL_SATURATED: &[Knob] = &[
    knob(
        "sticky_until_saturated.threshold",
        &At(|it| &mut it.settings.brain.knobs.sticky_until_saturated.threshold, Ratio(0.0..=1.0)),
        "Share of a prompt that a worker must have cached for the request to stay there; 0: no request \
         stays.",
    ),
    knob(
        "sticky_until_saturated.seconds",
        &At(|it| &mut it.settings.brain.knobs.sticky_until_saturated.seconds, Ratio(SECONDS)),
        "How many more seconds of prefill than elsewhere may be pending there; 0 for any number.",
    ),
];

pub(super) static PREBLE: &[Knob] = &[knob(
    "preble.balance",
    &At(|it| &mut it.settings.brain.knobs.preble.balance, Ratio(1.0..=1_000.0)),
    "The greatest load, as a multiple of the least, above which cached prompts go elsewhere. Lower \
     gives up caches sooner.",
)];

pub(super) static DUALMAP: &[Knob] = &[knob(
    "dualmap.slo_seconds",
    &At(|it| &mut it.settings.brain.knobs.dualmap.slo_seconds, Ratio(SECONDS)),
    "Expected TTFT, in seconds, above which a prompt goes to its other worker. Lower leaves the cache \
     sooner.",
)];
