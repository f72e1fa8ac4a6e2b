//! Coding agents as recorded: the lengths and waits of `traces/claude-code-sessions.jsonl.gz`, at any rate.
//!
//! The number of sessions in a recording is fixed. This module draws new ones from 256 recorded sessions: the number
//! of calls, and the lengths of the first prompt, of tool outputs, answers and waits. Each is drawn independently, so
//! correlations within a session, such as long prompts and many calls, are lost.
//!
//! Left out: sub-agents, and contexts that shrink because the agent summarised them (one call in a hundred). A
//! context that reaches the recording's longest ends its session.

use super::dice::{Dice, Shared};
use super::key::{Stage, ValueType, Values, key};
use super::session::turn;
use super::{Size, Workload};
use crate::trace::{Piece, Request};

pub(super) const CODING: Workload = Workload {
    name: "coding",
    about: "Coding agents with the lengths and waits of recorded sessions.",
    keys: &[
        key("rate", "0.02", ValueType::RATE, "sessions started per second"),
        key("kinds", "4", ValueType::COUNT, "kinds of agent"),
        key(
            "system",
            "14500",
            ValueType::TOKENS_OR_NONE,
            "tokens of the first prompt that a kind shares: tools and system prompt",
        ),
        key("pace", "0.03", ValueType::WAIT, "seconds to write a token"),
        key("seconds", "3600", ValueType::SECONDS, "duration in seconds"),
    ],
    size: |values| Ok(size(values)),
    requests,
};

/// The values at every 5 % of the sorted ones, and the one at 99 % in place of the largest. Between them values are
/// interpolated.
type Quantiles = [u32; 21];

// A test compares them with the trace.
const CALLS: Quantiles = [3, 4, 6, 8, 11, 14, 18, 21, 25, 29, 35, 41, 46, 52, 59, 68, 78, 95, 146, 210, 330];
const FIRST_TOKENS: Quantiles = [
    8979, 13692, 15591, 16254, 17188, 18380, 19282, 20727, 26239, 37896, 48175, 61513, 69239, 83637, 93197,
    103541, 112280, 123058, 140908, 216739, 261659,
];
/// What a call adds to the previous prompt and answer: mostly the output of a tool.
const ADDED_TOKENS: Quantiles =
    [1, 1, 5, 20, 39, 64, 110, 161, 218, 271, 333, 408, 512, 645, 808, 1035, 1364, 1823, 2673, 4659, 14842];
const ANSWER_TOKENS: Quantiles =
    [1, 95, 114, 128, 140, 152, 166, 182, 201, 220, 244, 269, 299, 337, 385, 446, 519, 633, 835, 1327, 3436];
/// At most three minutes: after a longer wait a person was away.
const WAIT_SECONDS: Quantiles =
    [0, 4, 5, 5, 6, 7, 8, 9, 10, 11, 13, 16, 20, 25, 36, 52, 83, 133, 180, 180, 180];
/// The longest context of the recording.
const CONTEXT_TOKENS_MAX: u32 = 300_000;

fn draw(quantiles: &Quantiles, dice: &mut Dice) -> f64 {
    let place = dice.unit() * (quantiles.len() - 1) as f64;
    let step = (place as usize).min(quantiles.len() - 2);
    let (low, high) = (f64::from(quantiles[step]), f64::from(quantiles[step + 1]));
    low + (high - low) * (place - step as f64)
}

fn draw_whole(quantiles: &Quantiles, dice: &mut Dice) -> u32 {
    draw(quantiles, dice).round().max(1.0) as u32
}

/// Size of sessions that are not cut: a session of T calls has T² + T pieces.
fn size(values: &Values) -> Size {
    let sessions = values.real("rate") * values.real("seconds");
    let steps = CALLS.windows(2).map(|it| (f64::from(it[0]), f64::from(it[1])));
    let count = (CALLS.len() - 1) as f64;
    let calls_mean = steps.clone().map(|(low, high)| (low + high) / 2.0).sum::<f64>() / count;
    let square_mean =
        steps.map(|(low, high)| (low * low + low * high + high * high) / 3.0).sum::<f64>() / count;
    Size {
        requests_mean: sessions * calls_mean,
        pieces_mean: sessions * (square_mean + calls_mean),
        prompt_tokens_max: f64::from(values.whole("system").max(CONTEXT_TOKENS_MAX)) + 1.0,
        seconds: values.real("seconds"),
    }
}

fn requests(values: &Values, dice: &mut Dice) -> Vec<Request> {
    let mut requests = Vec::new();
    let stage = Stage { qps: values.real("rate"), seconds: values.real("seconds") };
    for begin in dice.arrivals(0.0, stage) {
        play(begin, values, dice, &mut requests);
    }
    requests
}

/// One session, from its first call to its last, to the end of the trace, or to the longest context.
fn play(begin: f64, values: &Values, dice: &mut Dice, requests: &mut Vec<Request>) {
    let session = Some(dice.own());
    let kind = u64::from(dice.below(values.whole("kinds")));
    let system = Piece { text: dice.shared(Shared::Opening, kind), tokens: values.whole("system") };
    let first = draw_whole(&FIRST_TOKENS, dice).saturating_sub(system.tokens).max(1);
    let mut pieces = vec![system, Piece { text: dice.own(), tokens: first }];
    let mut at = begin;
    for _ in 0..draw_whole(&CALLS, dice) {
        let answer = Piece { text: dice.own(), tokens: draw_whole(&ANSWER_TOKENS, dice) };
        requests.push(turn(at, session, &pieces, answer));
        pieces.push(answer);
        pieces.push(Piece { text: dice.own(), tokens: draw_whole(&ADDED_TOKENS, dice) });
        at += f64::from(answer.tokens) * values.real("pace") + draw(&WAIT_SECONDS, dice);
        let context: u64 = pieces.iter().map(|it| u64::from(it.tokens)).sum();
        if at >= values.real("seconds") || context > u64::from(CONTEXT_TOKENS_MAX) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use serde_json::Value;

    use super::*;

    /// The values of one quantity, sorted.
    fn quantiles(mut values: Vec<u64>) -> Vec<u64> {
        values.sort_unstable();
        let at = |percent: usize| values[(values.len() - 1) * percent / 100];
        (0..20).map(|it| at(5 * it)).chain([at(99)]).collect()
    }

    /// The calls of the agent itself, for each session.
    fn recorded() -> Vec<Vec<Value>> {
        let packed = include_bytes!("../../../../traces/claude-code-sessions.jsonl.gz");
        let mut text = String::new();
        flate2::read::GzDecoder::new(&packed[..]).read_to_string(&mut text).unwrap();
        let calls = |line: &str| {
            let mut session: Value = serde_json::from_str(line).unwrap();
            let calls = std::mem::take(session["requests"].as_array_mut().unwrap());
            calls.into_iter().filter(|it| it.get("requests").is_none()).collect()
        };
        text.lines().map(calls).collect()
    }

    #[test]
    fn the_tables_are_those_of_the_recording() {
        let sessions = recorded();
        let count = |call: &Value, key: &str| call[key].as_u64().unwrap();
        let pairs = || sessions.iter().flat_map(|it| it.windows(2));
        let added = |it: &[Value]| {
            count(&it[1], "in").saturating_sub(count(&it[0], "in") + count(&it[0], "out")).max(1)
        };
        let wait = |it: &[Value]| it[1]["think_time"].as_f64().unwrap_or(0.0).round().min(180.0) as u64;
        for (name, table, values) in [
            ("calls", CALLS, sessions.iter().map(|it| it.len() as u64).collect()),
            ("first", FIRST_TOKENS, sessions.iter().map(|it| count(&it[0], "in")).collect()),
            ("added", ADDED_TOKENS, pairs().map(added).collect()),
            ("answer", ANSWER_TOKENS, sessions.iter().flatten().map(|it| count(it, "out").max(1)).collect()),
            ("wait", WAIT_SECONDS, pairs().map(wait).collect()),
        ] {
            let found: Vec<u64> = quantiles(values);
            assert_eq!(table.map(u64::from).to_vec(), found, "{name}");
        }
    }
}
