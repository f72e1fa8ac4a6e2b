//! Conversations of people and agents: each prompt is the previous one, its answer, and something new.
//!
//! They differ only in sizes and waits. A chat continues after the answer was read, an agent after the answer was
//! generated and a tool ran. `pace` is the nominal time per answer token, because the engine's speed is unknown.
//!
//! Conversations end with the trace's `seconds`: otherwise most of a short trace would be a long tail of thin
//! traffic. Load rises until the first conversations end.

use super::dice::{Dice, Length, Shared, instant, prompt};
use super::key::{Stage, ValueType, Values, key};
use super::{Size, Workload};
use crate::trace::{Piece, Request};

pub(super) const CHAT: Workload = Workload {
    name: "chat",
    about: "Conversations of several turns, with pauses between them.",
    keys: &[
        key("rate", "2", ValueType::RATE, "conversations started per second"),
        key("turns", "8", ValueType::TURNS, "turns, mean; uniform from 1 on"),
        key("system", "1500", ValueType::TOKENS_OR_NONE, "tokens that all prompts share"),
        key("question", "300", ValueType::TOKENS, "tokens of a question, mean"),
        key("out", "250", ValueType::ANSWER, "tokens of an answer, mean"),
        key("think", "20", ValueType::WAIT, "seconds between turns, mean"),
        key("pace", "0.03", ValueType::WAIT, "seconds to read a token"),
        key("seconds", "300", ValueType::SECONDS, "duration in seconds"),
    ],
    size: |values| Ok(Sessions::chat(values).size()),
    requests: |values, dice| Sessions::chat(values).requests(dice),
};

pub(super) const AGENTS: Workload = Workload {
    name: "agents",
    about: "Agents in loops: every step adds a tool's output to a growing context.",
    keys: &[
        key("rate", "0.5", ValueType::RATE, "agents started per second"),
        key("steps", "20", ValueType::TURNS, "steps, mean; uniform from 1 on"),
        key("kinds", "4", ValueType::COUNT, "kinds of agent"),
        key("system", "4000", ValueType::TOKENS_OR_NONE, "tokens a kind shares"),
        key("task", "500", ValueType::TOKENS, "tokens of the agent's own task"),
        key("observation", "1500", ValueType::TOKENS, "tokens a step adds, mean"),
        key("out", "150", ValueType::ANSWER, "tokens of an answer"),
        key("pause", "3", ValueType::WAIT, "seconds a tool runs, mean"),
        key("pace", "0.03", ValueType::WAIT, "seconds to write a token"),
        key("seconds", "300", ValueType::SECONDS, "duration in seconds"),
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

    /// Size of conversations that are not cut. Turn k, from one on, has 2 k pieces, so T turns have T² + T, and the
    /// mean of T², uniform from 1 to 2 m - 1, is m (4 m - 1) / 3.
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
            requests.push(turn(at, session, &pieces, answer));
            pieces.push(answer);
            asked = self.next;
            at += f64::from(answer.tokens) * self.token_seconds + dice.wait(self.wait_seconds_mean);
            if at >= self.seconds {
                return;
            }
        }
    }
}

/// One call of a conversation.
pub(super) fn turn(at: f64, session: Option<u64>, pieces: &[Piece], answer: Piece) -> Request {
    Request {
        at: instant(at),
        prompt: prompt(pieces),
        answer_tokens: answer.tokens,
        answer: answer.text,
        session,
        ..Request::default()
    }
}
