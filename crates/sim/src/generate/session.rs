//! Conversations, of people and of agents: each prompt is the last one, its answer, and something new.
//!
//! Both are the same but for sizes and waits. A chat's next question comes after the answer was read and
//! thought about, an agent's next step after the answer was written and a tool ran. `pace` is the time a
//! token of the answer takes, nominal, as nobody knows yet how fast the engine will be.
//!
//! Nothing comes after the last of the `seconds`: conversations that are not over are cut there, or most of
//! a short trace would be a long tail of thin traffic. Until the first conversations end, load rises.

use super::dice::{Dice, Length, Shared, instant, prompt};
use super::key::{Key, Kind, Stage, Values};
use super::{Size, Workload};
use crate::trace::{Piece, Request};

pub(super) const CHAT: Workload = Workload {
    name: "chat",
    about: "People in conversations of several turns, with time to think.",
    keys: &[
        Key { name: "rate", default: "2", kind: Kind::RATE, about: "conversations begun a second" },
        Key { name: "turns", default: "8", kind: Kind::TURNS, about: "turns, mean; uniform from 1 on" },
        Key {
            name: "system",
            default: "1500",
            kind: Kind::TOKENS_OR_NONE,
            about: "tokens all prompts begin with",
        },
        Key { name: "question", default: "300", kind: Kind::TOKENS, about: "tokens of a question, mean" },
        Key { name: "out", default: "250", kind: Kind::ANSWER, about: "tokens of an answer, mean" },
        Key { name: "think", default: "20", kind: Kind::WAIT, about: "seconds of thought, mean" },
        Key { name: "pace", default: "0.03", kind: Kind::WAIT, about: "seconds a token takes to be read" },
        Key { name: "seconds", default: "300", kind: Kind::SECONDS, about: "how long requests come" },
    ],
    size: |values| Ok(Sessions::chat(values).size()),
    requests: |values, dice| Sessions::chat(values).requests(dice),
};

pub(super) const AGENTS: Workload = Workload {
    name: "agents",
    about: "Agents in loops: every step adds what a tool returned to a growing context.",
    keys: &[
        Key { name: "rate", default: "0.5", kind: Kind::RATE, about: "agents started a second" },
        Key { name: "steps", default: "20", kind: Kind::TURNS, about: "steps, mean; uniform from 1 on" },
        Key { name: "kinds", default: "4", kind: Kind::COUNT, about: "kinds of agent" },
        Key { name: "system", default: "4000", kind: Kind::TOKENS_OR_NONE, about: "tokens a kind shares" },
        Key { name: "task", default: "500", kind: Kind::TOKENS, about: "tokens of the agent's own task" },
        Key { name: "observation", default: "1500", kind: Kind::TOKENS, about: "tokens a step adds, mean" },
        Key { name: "out", default: "150", kind: Kind::ANSWER, about: "tokens of an answer" },
        Key { name: "pause", default: "3", kind: Kind::WAIT, about: "seconds a tool runs, mean" },
        Key { name: "pace", default: "0.03", kind: Kind::WAIT, about: "seconds a token takes to be written" },
        Key { name: "seconds", default: "300", kind: Kind::SECONDS, about: "how long requests come" },
    ],
    size: |values| Ok(Sessions::agents(values).size()),
    requests: |values, dice| Sessions::agents(values).requests(dice),
};

struct Sessions {
    rate: f64,
    turns_mean: u32,
    kinds: u32,
    system_tokens: u32,
    first: Length,
    next: Length,
    answer: Length,
    wait_seconds_mean: f64,
    token_seconds: f64,
    seconds: f64,
}

impl Sessions {
    fn chat(values: &Values) -> Sessions {
        let question = Length::Mean(values.whole("question"));
        Sessions {
            rate: values.real("rate"),
            turns_mean: values.whole("turns"),
            kinds: 1,
            system_tokens: values.whole("system"),
            first: question,
            next: question,
            answer: Length::Mean(values.whole("out")),
            wait_seconds_mean: values.real("think"),
            token_seconds: values.real("pace"),
            seconds: values.real("seconds"),
        }
    }

    fn agents(values: &Values) -> Sessions {
        Sessions {
            rate: values.real("rate"),
            turns_mean: values.whole("steps"),
            kinds: values.whole("kinds"),
            system_tokens: values.whole("system"),
            first: Length::Fixed(values.whole("task")),
            next: Length::Mean(values.whole("observation")),
            answer: Length::Fixed(values.whole("out")),
            wait_seconds_mean: values.real("pause"),
            token_seconds: values.real("pace"),
            seconds: values.real("seconds"),
        }
    }

    /// Of conversations that are not cut. Turn k, from one on, has 2 k pieces, so T turns have T² + T, and
    /// the mean of T², uniform from 1 to 2 m - 1, is m (4 m - 1) / 3.
    fn size(&self) -> Size {
        let sessions = self.rate * self.seconds;
        let mean = f64::from(self.turns_mean);
        let turns_max = 2.0 * mean - 1.0;
        let grown_tokens = (turns_max - 1.0) * (self.answer.max() + self.next.max());
        Size {
            requests_mean: sessions * mean,
            pieces_mean: sessions * (mean * (4.0 * mean - 1.0) / 3.0 + mean),
            prompt_tokens_max: f64::from(self.system_tokens) + self.first.max() + grown_tokens,
            seconds: self.seconds,
        }
    }

    fn requests(&self, dice: &mut Dice) -> Vec<Request> {
        let mut requests = Vec::new();
        for begin in dice.arrivals(0.0, Stage { qps: self.rate, seconds: self.seconds }) {
            self.converse(begin, dice, &mut requests);
        }
        requests
    }

    /// One conversation, from its first turn to its last or to the end of the trace.
    fn converse(&self, begin: f64, dice: &mut Dice, requests: &mut Vec<Request>) {
        let session = Some(dice.own());
        let kind = u64::from(dice.below(self.kinds));
        let system = Piece { text: dice.shared(Shared::Opening, kind), tokens: self.system_tokens };
        let mut pieces = vec![system];
        let mut asked = self.first;
        let mut at = begin;
        for _ in 0..dice.turns(self.turns_mean) {
            pieces.push(Piece { text: dice.own(), tokens: dice.length(asked) });
            let answer = Piece { text: dice.own(), tokens: dice.length(self.answer) };
            requests.push(Request {
                at: instant(at),
                prompt: prompt(&pieces),
                answer_tokens: answer.tokens,
                answer: answer.text,
                session,
                ..Request::default()
            });
            pieces.push(answer);
            asked = self.next;
            at += f64::from(answer.tokens) * self.token_seconds + dice.wait(self.wait_seconds_mean);
            if at >= self.seconds {
                return;
            }
        }
    }
}
