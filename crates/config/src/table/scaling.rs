//! What is aimed at by the number of workers that the router asks for.

use std::time::Duration;

use super::{ABOVE_ZERO, FROM_ZERO};
use crate::field::At;
use crate::form::Time;
use crate::knob::{Knob, knob};

/// As many minutes as the number remembers what was needed.
const SETTLE_MAX: Duration = Duration::from_secs(3_600);

pub(super) static SCALING: &[Knob] = &[
    knob(
        "scaling.ttft",
        &At(|it| &mut it.settings.brain.scaling.ttft, Time(ABOVE_ZERO)),
        "How soon first tokens are due of requests without a deadline, for the number of workers that is asked for.",
    ),
    knob(
        "scaling.start_up",
        &At(|it| &mut it.settings.brain.scaling.start_up, Time(FROM_ZERO)),
        "How long a new worker takes from the moment it is asked for until it takes requests: the number leads by this.",
    ),
    knob(
        "scaling.settle",
        &At(|it| &mut it.settings.brain.scaling.settle, Time(Duration::ZERO..=SETTLE_MAX)),
        "How long the number stays at the most that was needed, before it falls.",
    ),
    knob(
        "scaling.idle",
        &At(|it| &mut it.settings.brain.scaling.idle, Time(FROM_ZERO)),
        "After how long without requests a model needs no worker; 0s: it always needs one.",
    ),
];
