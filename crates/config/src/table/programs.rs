//! How KV memory is given to programs.

use super::FROM_ZERO;
use crate::field::At;
use crate::form::Time;
use crate::knob::{Knob, knob};
use crate::types::PROGRAM_RULE;

pub(super) static PROGRAMS: &[Knob] = &[
    knob(
        "programs.rule",
        &At(|it| &mut it.settings.brain.programs.rule, PROGRAM_RULE),
        "How KV memory is given to programs, such as the sessions of agents, when their contexts outgrow it: not at all \
         (off), by their working sets, or by ThunderAgent's or CacheTTL's rule.",
    )
    .common(),
    knob(
        "programs.wait",
        &At(|it| &mut it.settings.brain.programs.wait_max, Time(FROM_ZERO)),
        "A call that was held this long for its program's memory goes, whatever the memory.",
    ),
];
