//! Programs without a name: a prompt that extends an earlier one belongs to the same program.
//!
//! Prefix hashes at regular places of a prompt are its anchors. Of each program the last few are kept, which lie near the
//! end of its last prompt. A new prompt belongs to the program whose anchor it has farthest from its beginning. A shared
//! system prompt does not join two programs: once they differ, their anchors are past it.

use maitre_base::hash;
use maitre_base::recent::Recent;

use super::{PROGRAMS_MAX, ProgramId};
use crate::cache::PromptChain;

/// Blocks between two anchors.
const SPACING: usize = 16;
/// Anchors that are kept of a prompt. A client may rewrite the end of its last prompt, so the last one alone is not enough.
const ANCHORS: usize = 8;
/// The part of a program's last prompt that a prompt must begin with to belong to it. Chosen: agents rewrite the end of
/// their prompts, and share less than this with others once they have done some work.
const EXTENDED: f64 = 0.8;
/// Anchors of a new prompt that are looked up.
const LOOKED_UP_MAX: usize = 256;

/// A block of a prompt that every prompt has which extends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    block: u32,
    hash: u64,
}

impl Mark {
    /// None if the prompt is too short to say. What `Lineage` finds has the mark: it goes by anchors, so one anchor before its bound.
    pub(crate) fn of(prompt: &PromptChain) -> Option<Mark> {
        let block = ((prompt.chain.len() as f64 * EXTENDED) as usize).saturating_sub(SPACING);
        let hash = prompt.chain.get(block).filter(|_| is_long(prompt))?;
        Some(Mark { block: block as u32, hash: hash.0 })
    }

    pub(crate) fn is_in(self, prompt: &PromptChain) -> bool {
        prompt.chain.get(self.block as usize).is_some_and(|it| it.0 == self.hash)
    }
}

#[derive(Debug)]
pub(crate) struct Lineage {
    /// The program of each anchor, and which of its blocks the anchor is.
    anchors: Recent<(ProgramId, u32)>,
    /// How many blocks the last prompt of each program had.
    lengths: Recent<u32>,
    /// New programs so far.
    begun: u64,
}

impl Default for Lineage {
    fn default() -> Lineage {
        Lineage { anchors: Recent::new(PROGRAMS_MAX * ANCHORS), lengths: Recent::new(PROGRAMS_MAX), begun: 0 }
    }
}

impl Lineage {
    /// The program that this prompt belongs to; none if it is too short to have an anchor.
    pub(crate) fn identify(&mut self, prompt: &PromptChain) -> Option<ProgramId> {
        if !is_long(prompt) {
            return None;
        }
        let id = self.find(prompt).unwrap_or_else(|| {
            self.begun += 1;
            // Unlike any session's.
            ProgramId(hash::pair(0x6C69_6E65_6167_6500, self.begun))
        });
        anchors(prompt).take(ANCHORS).for_each(|(block, hash)| self.anchors.put(hash, (id, block)));
        self.lengths.put(id.0, prompt.chain.len() as u32);
        Some(id)
    }

    /// The program that this prompt extends.
    pub(crate) fn find(&self, prompt: &PromptChain) -> Option<ProgramId> {
        let extends = |(id, block): (ProgramId, u32)| {
            let length = self.lengths.peek(id.0).unwrap_or(u32::MAX);
            (f64::from(block + SPACING as u32) >= EXTENDED * f64::from(length)).then_some(id)
        };
        anchors(prompt).take(LOOKED_UP_MAX).find_map(|it| extends(self.anchors.peek(it.1)?))
    }
}

/// Whether a prompt has an anchor.
pub(crate) fn is_long(prompt: &PromptChain) -> bool {
    prompt.chain.len() >= SPACING
}

/// The anchors of a prompt, the last first: which block each is, and its hash.
fn anchors(prompt: &PromptChain) -> impl Iterator<Item = (u32, u64)> {
    let all = prompt.chain.iter().enumerate().skip(SPACING - 1).step_by(SPACING).rev();
    all.map(|(block, hash)| (block as u32, hash.0))
}
