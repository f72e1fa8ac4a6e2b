//! Disturbances of the event stream, on command: effects of networks, slow readers and crashes.
//!
//! Set through the handle or with `POST /sim/events`, for instance `{"kind":"drop","batches":3}`;
//! `DELETE /sim/events` ends lasting ones. They affect what is sent, not what is kept: a batch dropped from the
//! stream is complete in a replay. Several may be pending; a batch can be affected by more than one, in the order
//! drop, truncate, double, swap.

use bytes::Bytes;
use serde::Deserialize;

use super::Kept;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Disturbance {
    /// The next batches are not sent; their numbers are used up.
    Drop { batches: u32 },
    /// The next batches are sent twice.
    Double { batches: u32 },
    /// The next batches arrive in pairs, the second before the first. A batch waits for its second until there is one
    /// or the disturbance is cleared.
    Swap { pairs: u32 },
    /// The payload of the next batches ends in the middle.
    Truncate { batches: u32 },
    /// The next replay ends after this many messages: no end mark, only silence.
    CutReplay { messages: u32 },
    /// Replays are not answered until cleared.
    MuteReplay,
    /// Every connection is closed once. New ones are accepted.
    CloseConnections,
}

#[derive(Debug, Default)]
pub(super) struct Disturbances {
    drop: u32,
    double: u32,
    swap: u32,
    truncate: u32,
    /// Half of a pair.
    held: Vec<Bytes>,
    cut_replay: Option<u32>,
    mute_replay: bool,
}

impl Disturbances {
    pub(super) fn add(&mut self, disturbance: Disturbance) {
        match disturbance {
            Disturbance::Drop { batches } => self.drop = batches,
            Disturbance::Double { batches } => self.double = batches,
            Disturbance::Swap { pairs } => self.swap = pairs,
            Disturbance::Truncate { batches } => self.truncate = batches,
            Disturbance::CutReplay { messages } => self.cut_replay = Some(messages),
            Disturbance::MuteReplay => self.mute_replay = true,
            Disturbance::CloseConnections => {}
        }
    }

    /// Ends them all; returns what was held back.
    pub(super) fn clear(&mut self) -> Vec<Bytes> {
        std::mem::take(self).held
    }

    /// The sender of the first of a pair is gone.
    pub(super) fn forget_held(&mut self) {
        self.held.clear();
    }

    /// What is sent for a batch with this payload: nothing, the batch, or more.
    pub(super) fn strike(&mut self, payload: Bytes, wrap: impl Fn(&[u8]) -> Bytes) -> Vec<Bytes> {
        if take(&mut self.drop) {
            return Vec::new();
        }
        let kept_bytes = if take(&mut self.truncate) { payload.len() / 2 } else { payload.len() };
        let message = wrap(&payload[..kept_bytes]);
        let mut messages = match take(&mut self.double) {
            true => vec![message.clone(), message],
            false => vec![message],
        };
        if self.swap == 0 {
            return messages;
        }
        if self.held.is_empty() {
            self.held = messages;
            return Vec::new();
        }
        self.swap -= 1;
        messages.append(&mut self.held);
        messages
    }

    /// The part of a reply that is sent; `None` if nothing is.
    pub(super) fn strike_replay(&mut self, mut answer: Vec<Kept>) -> Option<Vec<Kept>> {
        if self.mute_replay {
            return None;
        }
        if let Some(messages) = self.cut_replay.take() {
            answer.truncate(messages as usize);
        }
        Some(answer)
    }
}

fn take(count: &mut u32) -> bool {
    let strikes = *count > 0;
    *count = count.saturating_sub(1);
    strikes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends `0`, `1`, `2`, ... through the disturbances, each a payload of two equal digits.
    #[track_caller]
    fn check(disturbances: &[Disturbance], batches: u8, expected: &str) {
        let mut state = Disturbances::default();
        disturbances.iter().for_each(|&it| state.add(it));
        let mut sent = Vec::new();
        for digit in b'0'..b'0' + batches {
            let payload = Bytes::copy_from_slice(&[digit, digit]);
            sent.extend(state.strike(payload, Bytes::copy_from_slice));
        }
        sent.extend(state.clear());
        let texts: Vec<&str> = sent.iter().map(|it| std::str::from_utf8(it).unwrap()).collect();
        assert_eq!(texts.join(" "), expected, "{disturbances:?}");
    }

    #[test]
    fn each_disturbance_applies_as_often_as_configured() {
        check(&[], 2, "00 11");
        check(&[Disturbance::Drop { batches: 2 }], 3, "22");
        check(&[Disturbance::Double { batches: 1 }], 2, "00 00 11");
        check(&[Disturbance::Truncate { batches: 1 }], 2, "0 11");
        check(&[Disturbance::Swap { pairs: 1 }], 4, "11 00 22 33");
        check(&[Disturbance::Swap { pairs: 2 }], 5, "11 00 33 22 44");
        check(&[Disturbance::Swap { pairs: 1 }], 1, "00");
    }

    #[test]
    fn several_disturbances_may_apply_to_one_batch() {
        let all = [
            Disturbance::Drop { batches: 1 },
            Disturbance::Truncate { batches: 1 },
            Disturbance::Double { batches: 2 },
            Disturbance::Swap { pairs: 1 },
        ];
        check(&all, 4, "22 22 1 1 33");
    }

    #[test]
    fn disturbances_are_read_from_json() {
        let read = |json: &str| serde_json::from_str::<Disturbance>(json).unwrap();
        assert_eq!(read(r#"{"kind":"drop","batches":3}"#), Disturbance::Drop { batches: 3 });
        assert_eq!(read(r#"{"kind":"cut_replay","messages":0}"#), Disturbance::CutReplay { messages: 0 });
        assert_eq!(read(r#"{"kind":"close_connections"}"#), Disturbance::CloseConnections);
    }
}
