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
        "How the router gives KV memory to programs, such as the sessions of agents, when their contexts \
         outgrow it: off, by their working sets (working-set), or by a published rule (thunder-agent or \
         cache-ttl).",
    )
    .common(),
    knob(
        "programs.wait",
        &At(|it| &mut it.settings.brain.programs.wait_max, Time(FROM_ZERO)),
        "How long the router holds a call for its program's memory at most; then it sends the call anyway. \
         Keep it below the timeout of the clients.",
    ),
];
