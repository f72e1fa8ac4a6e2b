//! Whether an engine reuses KV at any position of a prompt, and how much of it.
//!
//! KV that was computed after another text differs a little from what the prompt would give. So an engine computes
//! the most different part of a reused chunk again: 15 % in LMCache's blending by default.

use std::fmt;
use std::str::FromStr;

use crate::Tokens;

/// The accepted form, for messages.
pub const CHUNK_REUSE_FORM: &str = "the part that is computed again, from 0 to 0.99, such as 0.15";

const PARTS: f64 = 10_000.0;

/// Kept in ten-thousandths, so that options with it can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkReuse {
    recomputed: u16,
}

impl ChunkReuse {
    /// `None` unless the part is from 0 to 0.99.
    pub fn new(recomputed: f64) -> Option<ChunkReuse> {
        let is_part = (0.0..=0.99).contains(&recomputed);
        is_part.then(|| ChunkReuse { recomputed: (recomputed * PARTS).round() as u16 })
    }

    /// The part of a reused chunk that the engine computes again.
    pub fn recomputed(self) -> f64 {
        f64::from(self.recomputed) / PARTS
    }

    /// How many of these reused tokens the engine does not compute.
    pub fn saved(self, reused: Tokens) -> Tokens {
        Tokens((reused.0 as f64 * (1.0 - self.recomputed())) as u64)
    }
}

impl FromStr for ChunkReuse {
    type Err = ();

    fn from_str(text: &str) -> Result<ChunkReuse, ()> {
        text.parse().ok().and_then(ChunkReuse::new).ok_or(())
    }
}

impl fmt::Display for ChunkReuse {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.recomputed().fmt(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_and_written() {
        for (text, expected) in
            [("0.15", "0.15"), ("0", "0"), ("0.99", "0.99"), (".5", "0.5"), ("0.12345", "0.1235")]
        {
            assert_eq!(
                text.parse::<ChunkReuse>().map(|it| it.to_string()),
                Ok(expected.to_owned()),
                "{text}"
            );
        }
        for text in ["", "1", "-0.1", "15%", "NaN", "inf"] {
            assert_eq!(text.parse::<ChunkReuse>(), Err(()), "{text}");
        }
    }

    #[test]
    fn what_is_computed_again_is_not_saved() {
        let saved = |part: &str| part.parse().map(|it: ChunkReuse| it.saved(Tokens(1_000)).0);
        assert_eq!((saved("0"), saved("0.15"), saved("0.99")), (Ok(1_000), Ok(850), Ok(10)));
    }
}
