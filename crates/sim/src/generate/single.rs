//! Prompts without reuse: after one common prefix, with nothing shared, and in bursts.

use super::dice::{Dice, Length, Shared, instant, prompt};
use super::key::{Stage, ValueType, Values, key};
use super::{Size, Workload};
use crate::trace::{Piece, Request};

pub(super) const HOT: Workload = Workload {
    name: "hot",
    about: "One long prefix shared by all: a cache-only strategy would use one worker.",
    keys: &[
        key("shared", "8000", ValueType::TOKENS_OR_NONE, "tokens that all prompts share"),
        key("own", "200", ValueType::TOKENS, "further tokens of each prompt"),
        key("out", "200", ValueType::ANSWER, "tokens of an answer"),
        key("qps", "30", ValueType::RATE, "requests per second"),
        key("seconds", "120", ValueType::SECONDS, "duration in seconds"),
    ],
    size: |values| Ok(size(values, values.real("shared") + values.real("own"))),
    requests: |values, dice| {
        let prompts = Prompts {
            shared_tokens: values.whole("shared"),
            own: Length::Fixed(values.whole("own")),
            answer_tokens: values.whole("out"),
        };
        let arrivals = dice.arrivals(0.0, stage(values));
        arrivals.into_iter().map(|at| prompts.at(at, dice)).collect()
    },
};

pub(super) const NO_REUSE: Workload = Workload {
    name: "noreuse",
    about: "Nothing shared: caches are useless, and any cost spent on them is lost.",
    keys: &[
        key("prompt", "4000", ValueType::TOKENS, "tokens of a prompt, mean"),
        key("out", "200", ValueType::ANSWER, "tokens of an answer"),
        key("qps", "20", ValueType::RATE, "requests per second"),
        key("seconds", "120", ValueType::SECONDS, "duration in seconds"),
    ],
    size: |values| Ok(size(values, Length::Mean(values.whole("prompt")).max())),
    requests: |values, dice| {
        let prompts = Prompts {
            shared_tokens: 0,
            own: Length::Mean(values.whole("prompt")),
            answer_tokens: values.whole("out"),
        };
        let arrivals = dice.arrivals(0.0, stage(values));
        arrivals.into_iter().map(|at| prompts.at(at, dice)).collect()
    },
};

pub(super) const BURSTS: Workload = Workload {
    name: "bursts",
    about: "Short prompts, with periodic bursts of long ones (part 1 of the trace).",
    keys: &[
        key("system", "500", ValueType::TOKENS_OR_NONE, "tokens that short prompts share"),
        key("prompt", "1000", ValueType::TOKENS, "further tokens of each short prompt"),
        key("out", "200", ValueType::ANSWER, "tokens of an answer to a short prompt"),
        key("qps", "10", ValueType::RATE, "short prompts per second"),
        key("every", "30", ValueType::SECONDS, "seconds between bursts"),
        key("burst", "100", ValueType::COUNT, "prompts in a burst"),
        key("burst_prompt", "8000", ValueType::TOKENS, "tokens of each burst prompt"),
        key("burst_out", "100", ValueType::ANSWER, "tokens of an answer to a burst prompt"),
        key("within", "1", ValueType::WAIT, "seconds a burst takes"),
        key("seconds", "120", ValueType::SECONDS, "duration in seconds"),
        key("class", "", ValueType::Class, "class of the short prompts"),
        key("burst_class", "", ValueType::Class, "class of burst prompts"),
    ],
    size: |values| {
        let base =
            size(values, (values.real("system") + values.real("prompt")).max(values.real("burst_prompt")));
        let bursts = (values.real("seconds") / values.real("every")).floor() * values.real("burst");
        Ok(Size {
            requests_mean: base.requests_mean + bursts,
            pieces_mean: base.pieces_mean + bursts,
            seconds: base.seconds + values.real("within"),
            ..base
        })
    },
    requests: burst_requests,
};

/// The common properties of a workload's prompts.
struct Prompts {
    shared_tokens: u32,
    own: Length,
    answer_tokens: u32,
}

impl Prompts {
    fn at(&self, seconds: f64, dice: &mut Dice) -> Request {
        Request {
            at: instant(seconds),
            prompt: prompt(&[
                Piece { text: dice.shared(Shared::Opening, 0), tokens: self.shared_tokens },
                Piece { text: dice.own(), tokens: dice.length(self.own) },
            ]),
            answer_tokens: self.answer_tokens,
            answer: dice.own(),
            ..Request::default()
        }
    }
}

fn stage(values: &Values) -> Stage {
    Stage { qps: values.real("qps"), seconds: values.real("seconds") }
}

fn size(values: &Values, prompt_tokens_max: f64) -> Size {
    let Stage { qps, seconds } = stage(values);
    Size { requests_mean: qps * seconds, pieces_mean: 2.0 * qps * seconds, prompt_tokens_max, seconds }
}

/// Bursts form a separate part: the interesting latency is that of the other requests.
fn burst_requests(values: &Values, dice: &mut Dice) -> Vec<Request> {
    let short = Prompts {
        shared_tokens: values.whole("system"),
        own: Length::Fixed(values.whole("prompt")),
        answer_tokens: values.whole("out"),
    };
    let long = Prompts {
        shared_tokens: 0,
        own: Length::Fixed(values.whole("burst_prompt")),
        answer_tokens: values.whole("burst_out"),
    };
    let arrivals = dice.arrivals(0.0, stage(values));
    let (class, burst_class) = (values.class("class"), values.class("burst_class"));
    let request = |at| Request { class: class.clone(), ..short.at(at, dice) };
    let mut requests: Vec<Request> = arrivals.into_iter().map(request).collect();
    let bursts = (1..).map(|it| f64::from(it) * values.real("every"));
    for begin in bursts.take_while(|&it| it < values.real("seconds")) {
        for _ in 0..values.whole("burst") {
            let at = begin + dice.unit() * values.real("within");
            requests.push(Request { part: 1, class: burst_class.clone(), ..long.at(at, dice) });
        }
    }
    requests
}
