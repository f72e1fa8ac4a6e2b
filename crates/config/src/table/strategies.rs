//! Rows of the table that one strategy alone goes by.

use super::{BODY_BYTES_MAX, Field, Knob, SECONDS, WEIGHTS, knob};

pub(super) static CACHE_AWARE: &[Knob] = &[
    knob(
        "cache_aware.cache_threshold",
        Field::Ratio(|it| &mut it.settings.brain.knobs.cache_aware.cache_threshold, 0.0..=1.0),
        "The part of a prompt that must be cached somewhere for it to be sent there.",
    ),
    knob(
        "cache_aware.balance_abs_threshold",
        Field::Count32(|it| &mut it.settings.brain.knobs.cache_aware.balance_abs_threshold, 0..=1_000_000),
        "Requests that the busiest worker must be ahead for the fleet to be out of balance,",
    ),
    knob(
        "cache_aware.balance_rel_threshold",
        Field::Ratio(|it| &mut it.settings.brain.knobs.cache_aware.balance_rel_threshold, 1.0..=1_000.0),
        "and how many times as many as the least busy one it must have.",
    ),
];

pub(super) static PREFIX_HASH: &[Knob] = &[
    knob(
        "prefix_hash.head_bytes",
        Field::Count(|it| &mut it.settings.head_bytes, 1..=BODY_BYTES_MAX),
        "How many bytes of a prompt's beginning name its home.",
    ),
    knob(
        "prefix_hash.load_factor",
        Field::Ratio(|it| &mut it.settings.brain.knobs.load_factor, 1.0..=1_000.0),
        "How far above the mean a home may be loaded before its prompts spill over.",
    ),
];

pub(super) static SESSION: &[Knob] = &[
    knob(
        "session.header",
        Field::Header(|it| &mut it.settings.session.header),
        "The request header that names a session.",
    ),
    knob(
        "session.cookie",
        Field::Cookie(|it| &mut it.settings.session.cookie),
        "The cookie that names a session, if the header does not.",
    ),
];

pub(super) static DYNAMO_COST: &[Knob] = &[knob(
    "dynamo_cost.prefill_weight",
    Field::Ratio(|it| &mut it.settings.brain.knobs.dynamo_cost.prefill_weight, WEIGHTS),
    "What a block to prefill costs beside a block to keep.",
)];

pub(super) static WEIGHTED: &[Knob] = &[
    knob(
        "weighted.prefix",
        Field::Ratio(|it| &mut it.settings.brain.knobs.weighted.prefix, WEIGHTS),
        "What the cached part of a prompt weighs,",
    ),
    knob(
        "weighted.queue",
        Field::Ratio(|it| &mut it.settings.brain.knobs.weighted.queue, WEIGHTS),
        "what a short line of waiting requests weighs,",
    ),
    knob(
        "weighted.kv",
        Field::Ratio(|it| &mut it.settings.brain.knobs.weighted.kv, WEIGHTS),
        "and what a free KV cache weighs.",
    ),
];

pub(super) static STICKY_UNTIL_SATURATED: &[Knob] = &[
    knob(
        "sticky_until_saturated.threshold",
        Field::Ratio(|it| &mut it.settings.brain.knobs.sticky_until_saturated.threshold, 0.0..=1.0),
        "The part of a prompt that must be cached somewhere for it to stay there; 0 for none ever.",
    ),
    knob(
        "sticky_until_saturated.seconds",
        Field::Ratio(|it| &mut it.settings.brain.knobs.sticky_until_saturated.seconds, SECONDS),
        "How many seconds more prefill may be waiting there than elsewhere; 0 for any.",
    ),
];

pub(super) static PREBLE: &[Knob] = &[knob(
    "preble.balance",
    Field::Ratio(|it| &mut it.settings.brain.knobs.preble.balance, 1.0..=1_000.0),
    "How many times the least load the most may be before cached prompts leave it.",
)];

pub(super) static DUALMAP: &[Knob] = &[knob(
    "dualmap.slo_seconds",
    Field::Ratio(|it| &mut it.settings.brain.knobs.dualmap.slo_seconds, SECONDS),
    "How late, in seconds, a first token may be expected before the cache is left for the other home.",
)];
