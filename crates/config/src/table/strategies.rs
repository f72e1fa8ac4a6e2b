//! Rows of the table that one strategy alone goes by.

use super::{BODY_BYTES_MAX, SECONDS, WEIGHTS};
use crate::field::At;
use crate::form::{Count, Ratio};
use crate::knob::{Knob, knob};
use crate::types::{COOKIE, HEADER};

pub(super) static CACHE_AWARE: &[Knob] = &[
    knob(
        "cache_aware.cache_threshold",
        &At(|it| &mut it.settings.brain.knobs.cache_aware.cache_threshold, Ratio(0.0..=1.0)),
        "The part of a prompt that must be cached somewhere for it to be sent there.",
    ),
    knob(
        "cache_aware.balance_abs_threshold",
        &At(|it| &mut it.settings.brain.knobs.cache_aware.balance_abs_threshold, Count(0..=1_000_000)),
        "Requests that the busiest worker must be ahead for the fleet to be out of balance,",
    ),
    knob(
        "cache_aware.balance_rel_threshold",
        &At(|it| &mut it.settings.brain.knobs.cache_aware.balance_rel_threshold, Ratio(1.0..=1_000.0)),
        "and how many times as many as the least busy one it must have.",
    ),
];

pub(super) static PREFIX_HASH: &[Knob] = &[
    knob(
        "prefix_hash.head_bytes",
        &At(|it| &mut it.settings.head_bytes, Count(1..=BODY_BYTES_MAX)),
        "How many bytes of a prompt's beginning name its home.",
    ),
    knob(
        "prefix_hash.load_factor",
        &At(|it| &mut it.settings.brain.knobs.load_factor, Ratio(1.0..=1_000.0)),
        "How far above the mean a home may be loaded before its prompts spill over.",
    ),
];

pub(super) static SESSION: &[Knob] = &[
    knob(
        "session.header",
        &At(|it| &mut it.settings.session.header, HEADER),
        "The request header that names a session.",
    ),
    knob(
        "session.cookie",
        &At(|it| &mut it.settings.session.cookie, COOKIE),
        "The cookie that names a session, if the header does not.",
    ),
];

pub(super) static DYNAMO_COST: &[Knob] = &[knob(
    "dynamo_cost.prefill_weight",
    &At(|it| &mut it.settings.brain.knobs.dynamo_cost.prefill_weight, Ratio(WEIGHTS)),
    "What a block to prefill costs beside a block to keep.",
)];

pub(super) static WEIGHTED: &[Knob] = &[
    knob(
        "weighted.prefix",
        &At(|it| &mut it.settings.brain.knobs.weighted.prefix, Ratio(WEIGHTS)),
        "What the cached part of a prompt weighs,",
    ),
    knob(
        "weighted.queue",
        &At(|it| &mut it.settings.brain.knobs.weighted.queue, Ratio(WEIGHTS)),
        "what a short line of waiting requests weighs,",
    ),
    knob(
        "weighted.kv",
        &At(|it| &mut it.settings.brain.knobs.weighted.kv, Ratio(WEIGHTS)),
        "and what a free KV cache weighs.",
    ),
];

pub(super) static STICKY_UNTIL_SATURATED: &[Knob] = &[
    knob(
        "sticky_until_saturated.threshold",
        &At(|it| &mut it.settings.brain.knobs.sticky_until_saturated.threshold, Ratio(0.0..=1.0)),
        "The part of a prompt that must be cached somewhere for it to stay there; 0 for none ever.",
    ),
    knob(
        "sticky_until_saturated.seconds",
        &At(|it| &mut it.settings.brain.knobs.sticky_until_saturated.seconds, Ratio(SECONDS)),
        "How many seconds more prefill may be waiting there than elsewhere; 0 for any.",
    ),
];

pub(super) static PREBLE: &[Knob] = &[knob(
    "preble.balance",
    &At(|it| &mut it.settings.brain.knobs.preble.balance, Ratio(1.0..=1_000.0)),
    "How many times the least load the most may be before cached prompts leave it.",
)];

pub(super) static DUALMAP: &[Knob] = &[knob(
    "dualmap.slo_seconds",
    &At(|it| &mut it.settings.brain.knobs.dualmap.slo_seconds, Ratio(SECONDS)),
    "How late, in seconds, a first token may be expected before the cache is left for the other home.",
)];
