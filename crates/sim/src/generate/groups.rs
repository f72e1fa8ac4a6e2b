//! Prompts in groups: those of a group begin alike, as tenants' system prompts do.
//!
//! The shape llm-d measures its router with. Every group has a few prompts in all, and each request is one
//! of them, so that a whole prompt is cached once it was asked before. With `stages` the load climbs a ladder
//! and the fleet gets empty between the rungs, which makes each rung a measurement of its own.

use maitre_base::Instant;

use super::dice::{Dice, Popularity, Shared, instant, prompt};
use super::key::{Key, Kind, Stage, Values};
use super::{Size, Workload, Wrong};
use crate::trace::{Piece, Request};

pub(super) const GROUPS: Workload = Workload {
    name: "groups",
    about: "Groups of prompts that begin alike, as tenants' system prompts do.",
    keys: &[
        Key { name: "groups", default: "150", kind: Kind::COUNT, about: "groups of prompts" },
        Key { name: "prompts", default: "5", kind: Kind::COUNT, about: "distinct prompts in each group" },
        Key { name: "shared", default: "6000", kind: Kind::TOKENS_OR_NONE, about: "tokens a group shares" },
        Key { name: "own", default: "1200", kind: Kind::TOKENS, about: "tokens after them, of one prompt" },
        Key { name: "out", default: "1000", kind: Kind::ANSWER, about: "tokens of an answer" },
        Key { name: "qps", default: "20", kind: Kind::RATE, about: "requests a second" },
        Key { name: "seconds", default: "60", kind: Kind::SECONDS, about: "how long they come" },
        Key { name: "zipf", default: "0", kind: Kind::EXPONENT, about: "skew of the groups' popularity" },
        Key {
            name: "stages",
            default: "",
            kind: Kind::Stages,
            about: "QPS:SECONDS;… instead of qps and seconds; each is a part of the trace",
        },
        Key { name: "pause", default: "300", kind: Kind::WAIT, about: "silent seconds between stages" },
    ],
    size,
    requests,
};

/// The rungs of the ladder; without one, a single stage.
fn stages(values: &Values) -> Vec<Stage> {
    match values.stages() {
        [] => vec![Stage { qps: values.real("qps"), seconds: values.real("seconds") }],
        stages => stages.to_vec(),
    }
}

fn size(values: &Values) -> Result<Size, Wrong> {
    values.check_stages()?;
    let stages = stages(values);
    let requests_mean = stages.iter().map(|it| it.qps * it.seconds).sum();
    Ok(Size {
        requests_mean,
        pieces_mean: 2.0 * requests_mean,
        prompt_tokens_max: values.real("shared") + values.real("own"),
        seconds: stages.iter().map(|it| it.seconds + values.real("pause")).sum::<f64>()
            - values.real("pause"),
    })
}

fn requests(values: &Values, dice: &mut Dice) -> Vec<Request> {
    let popularity = Popularity::new(values.whole("groups"), values.real("zipf"));
    let mut requests = Vec::new();
    let mut begin = 0.0;
    for (part, stage) in stages(values).into_iter().enumerate() {
        for at in dice.arrivals(begin, stage) {
            let group = popularity.draw(dice);
            requests.push(Request { part: part as u32, ..request(values, group, instant(at), dice) });
        }
        begin += stage.seconds + values.real("pause");
    }
    requests
}

/// One of the group's prompts.
fn request(values: &Values, group: u32, at: Instant, dice: &mut Dice) -> Request {
    let which = u64::from(group) << 32 | u64::from(dice.below(values.whole("prompts")));
    let shared = dice.shared(Shared::Opening, u64::from(group));
    let own = dice.shared(Shared::Rest, which);
    Request {
        at,
        prompt: prompt(&[
            Piece { text: shared, tokens: values.whole("shared") },
            Piece { text: own, tokens: values.whole("own") },
        ]),
        answer_tokens: values.whole("out"),
        answer: dice.own(),
        ..Request::default()
    }
}
