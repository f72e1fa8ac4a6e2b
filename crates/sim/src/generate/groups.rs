//! Prompts in groups with a common prefix, like tenants' system prompts.
//!
//! llm-d measures its router with this pattern. Every group has a few prompts in total, and each request is one of
//! them, so a whole prompt is cached once it was used. With `stages` the load rises step by step, and the fleet
//! drains in between, which makes each stage a measurement of its own.

use maitre_base::Instant;

use super::dice::{Dice, Popularity, Shared, instant, prompt};
use super::key::{Stage, ValueType, Values, key};
use super::{PlanError, Size, Workload};
use crate::trace::{Piece, Request};

pub(super) const GROUPS: Workload = Workload {
    name: "groups",
    about: "Groups of prompts with a shared beginning, such as tenants' system prompts.",
    keys: &[
        key("groups", "150", ValueType::COUNT, "groups of prompts"),
        key("prompts", "5", ValueType::COUNT, "distinct prompts in each group"),
        key("shared", "6000", ValueType::TOKENS_OR_NONE, "tokens a group shares"),
        key("own", "1200", ValueType::TOKENS, "tokens of each prompt after them"),
        key("out", "1000", ValueType::ANSWER, "tokens of an answer"),
        key("qps", "20", ValueType::RATE, "requests per second"),
        key("seconds", "60", ValueType::SECONDS, "duration in seconds"),
        key("zipf", "0", ValueType::EXPONENT, "skew of the groups' popularity"),
        key(
            "stages",
            "",
            ValueType::Stages,
            "QPS:SECONDS;… instead of qps and seconds; each is a part of the trace",
        ),
        key("pause", "300", ValueType::WAIT, "seconds without requests between stages"),
    ],
    size,
    requests,
};

/// The stages; a single one by default.
fn stages(values: &Values) -> Vec<Stage> {
    match values.stages() {
        [] => vec![Stage { qps: values.real("qps"), seconds: values.real("seconds") }],
        stages => stages.to_vec(),
    }
}

fn size(values: &Values) -> Result<Size, PlanError> {
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
