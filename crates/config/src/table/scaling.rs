//! What is aimed at by the number of workers that the router asks for.

use std::time::Duration;

use super::{ABOVE_ZERO, FROM_ZERO};
use crate::field::{At, List};
use crate::form::Time;
use crate::knob::{Knob, knob};
use crate::types::MODEL_NAME;

/// As many minutes as the number remembers what was needed.
const SETTLE_MAX: Duration = Duration::from_secs(3_600);

pub(super) static SCALING: &[Knob] = &[
    knob(
        "scaling.ttft",
        &At(|it| &mut it.settings.brain.scaling.ttft, Time(ABOVE_ZERO)),
        "The TTFT that the number of workers aims at, for requests without a deadline.",
    ),
    knob(
        "scaling.start_up",
        &At(|it| &mut it.settings.brain.scaling.start_up, Time(FROM_ZERO)),
        "How long a new worker takes to start. The router asks for it this much in advance.",
    ),
    knob(
        "scaling.settle",
        &At(|it| &mut it.settings.brain.scaling.settle, Time(Duration::ZERO..=SETTLE_MAX)),
        "How long past demand keeps workers: all of it for a third of this time, then less and less.",
    ),
    knob(
        "scaling.idle",
        &At(|it| &mut it.settings.brain.scaling.idle, Time(FROM_ZERO)),
        "Time without requests after which a model needs no worker; 0s: it always needs one.",
    ),
    knob(
        "scaling.first_worker",
        &At(|it| &mut it.settings.brain.scaling.first_worker, Time(FROM_ZERO)),
        "With scaling.idle: how long a request without a deadline waits for the first worker of its model; \
         0s does not wait.",
    ),
    knob(
        "scaling.models",
        &At(|it| &mut it.settings.brain.expected_models, List::of(MODEL_NAME)),
        "Models that may have no worker when the router starts, by the names that workers list.",
    ),
];
