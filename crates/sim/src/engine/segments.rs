//! KV that is reused at any position: documents from another place in another prompt, as in LMCache's blending.
//!
//! A prompt is cut at a separator between its documents, or where the caller says. Each segment is named by its own
//! tokens. A separate store, as large as the KV cache, keeps segments and drops the least recently used first. At
//! admission the engine loads segments after the cached prefix that the store holds, and computes a part of their
//! tokens again. A segment counts whole or not at all: one changed token makes it another.
//!
//! The engine cuts differently from the router, which knows no separator and cuts by content.
//!
//! Left out: the time to load, which CacheBlend hides behind the part it computes again. The answer also stays the
//! same, although the KV is an approximation.

use std::collections::BTreeMap;

use maitre_base::{ChunkReuse, Tokens};
use maitre_index::prefix::PrefixHash;

use super::Engine;
use crate::kv::Root;
use crate::text;

/// Shorter segments are not reused: LMCache's `blend_min_tokens`.
const REUSED_MIN: usize = 256;

/// A part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    name: u64,
    begin: usize,
    end: usize,
}

/// The prompt's segments: up to each of these ends, or between separators if there are none.
pub(super) fn cut(root: &Root, prompt: &[u32], ends: &[u32]) -> Vec<Segment> {
    let separator = text::separator();
    let mut segments = Vec::new();
    let mut begin = 0;
    let mut end_at = |end: usize, next: usize| {
        if begin < end {
            let PrefixHash(name) = PrefixHash(root.hash()).then_all(&prompt[begin..end]);
            segments.push(Segment { name, begin, end });
        }
        begin = next;
    };
    if ends.is_empty() {
        let found = prompt.windows(separator.len()).enumerate().filter(|it| it.1 == separator);
        found.for_each(|(at, _)| end_at(at, at + separator.len()));
    } else {
        ends.iter().map(|&it| (it as usize).min(prompt.len())).for_each(|it| end_at(it, it));
    }
    end_at(prompt.len(), prompt.len());
    segments
}

#[derive(Clone, Copy, Debug)]
struct Stored {
    tokens: u64,
    used: u64,
}

/// The segments whose KV is kept.
#[derive(Debug)]
pub(super) struct SegmentStore {
    pub(super) reuse: ChunkReuse,
    capacity_tokens: u64,
    tokens: u64,
    by_name: BTreeMap<u64, Stored>,
    /// The least recently used first.
    by_use: BTreeMap<u64, u64>,
    clock: u64,
}

impl SegmentStore {
    pub(super) fn new(reuse: ChunkReuse, capacity_tokens: u64) -> SegmentStore {
        let (by_name, by_use) = (BTreeMap::new(), BTreeMap::new());
        SegmentStore { reuse, capacity_tokens, tokens: 0, by_name, by_use, clock: 0 }
    }

    pub(super) fn clear(&mut self) {
        *self = SegmentStore::new(self.reuse, self.capacity_tokens);
    }

    /// Keeps the segments of a prompt that was computed.
    pub(super) fn keep(&mut self, segments: &[Segment]) {
        for segment in segments {
            self.clock += 1;
            let stored = Stored { tokens: (segment.end - segment.begin) as u64, used: self.clock };
            self.tokens += stored.tokens;
            if let Some(before) = self.by_name.insert(segment.name, stored) {
                self.by_use.remove(&before.used);
                self.tokens -= before.tokens;
            }
            self.by_use.insert(self.clock, segment.name);
        }
        while self.tokens > self.capacity_tokens
            && let Some((_, oldest)) = self.by_use.pop_first()
            && let Some(dropped) = self.by_name.remove(&oldest)
        {
            self.tokens -= dropped.tokens;
        }
    }

    /// How many tokens after the first `prefix` are in segments that are kept.
    fn reused(&self, segments: &[Segment], prefix: usize) -> usize {
        let held = segments.iter().filter(|it| self.by_name.contains_key(&it.name));
        let reused = held.map(|it| it.end.saturating_sub(it.begin.max(prefix))).sum();
        if reused < REUSED_MIN { 0 } else { reused }
    }
}

impl Engine {
    /// Loads what the store holds of a sequence that is about to run. The sequence already shares its cached prefix.
    pub(super) fn reuse_segments(&mut self, slot: u32) {
        let Some(store) = &self.segments else { return };
        let sequence = &mut self.sequences[slot as usize];
        let reused = store.reused(&sequence.segments, sequence.computed);
        let saved = store.reuse.saved(Tokens(reused as u64)).0 as usize;
        // From here on that many more leading tokens count as computed. The sum of the work is the same, and all
        // blocks have their names when the prefill is done. The last token is computed in any case.
        sequence.computed = (sequence.computed + saved).min(sequence.tokens.len() - 1);
        if !sequence.preempted {
            // Engines count all the tokens that they load, including the part that they compute again.
            sequence.cached_tokens += reused as u32;
            self.counters.hit_tokens += reused as u64;
        }
    }

    /// The segments of a new sequence; empty if this engine reuses only prefixes.
    pub(super) fn segments_of(&self, root: &Root, prompt: &[u32], ends: &[u32]) -> Vec<Segment> {
        self.segments.as_ref().map(|_| cut(root, prompt, ends)).unwrap_or_default()
    }
}
