//! Snapshots of the directory that need no earlier frame: segments first, then claims, oldest first.

use crate::directory::segments::{PATH_MAX, Segment};
use crate::directory::{CacheDirectory, Claim};
use crate::frame::{EXPANDED_LINKS_MAX, EncodedPlacement, Links, RECORD_LINKS_MAX, Record, SEGMENT_LINKS};
use maitre_base::hash::NumberMap;
use std::hash::BuildHasherDefault;

/// Maximum links that all claims of a snapshot expand to. The joining router must apply each claim as an update.
const SNAPSHOT_LINKS_MAX: usize = 128 * EXPANDED_LINKS_MAX;
/// Maximum bytes of a claim on the wire, with its run of segments but without its links.
const CLAIM_BYTES: usize = 80;

/// Which claims a snapshot contains.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SnapshotScope {
    /// All claims, from any router.
    All,
    /// Claims that this router published after this delta.
    OursSince(u64),
}

impl CacheDirectory {
    /// Writes the newest claims that fit into `bytes_max`: first their segments, then the claims, oldest first.
    pub(crate) fn write_snapshot(
        &self,
        scope: SnapshotScope,
        bytes_max: usize,
        mut push: impl FnMut(&Record<'_>),
    ) {
        let mut run = SegmentRun::new(self, bytes_max);
        let (mut bytes, mut expanded_links, mut chosen) = (0, 0, Vec::new());
        for claim in self.newest_first(scope) {
            if !run.collect_path(claim.segment) {
                // Its segments were evicted; the claim will be too.
                continue;
            }
            bytes += CLAIM_BYTES + 8 * claim.tail().len() + run.bytes();
            expanded_links += claim.placed.total_links as usize;
            if bytes > bytes_max || expanded_links > SNAPSHOT_LINKS_MAX {
                break;
            }
            run.write(claim.placed.block, &mut push);
            chosen.push(claim);
        }
        for claim in chosen.iter().rev() {
            push(&Record::Placement(EncodedPlacement {
                placed: claim.placed,
                parent: claim.segment,
                links: Links::Numbers(claim.tail()),
            }));
        }
    }

    /// Writes the segments from the root to each requested one, none twice. Unknown segments are skipped.
    pub(crate) fn write_segments(
        &self,
        requested: &[(u32, u64)],
        bytes_max: usize,
        mut push: impl FnMut(&Record<'_>),
    ) {
        let (mut run, mut bytes) = (SegmentRun::new(self, bytes_max), 0);
        for &(block, segment) in requested {
            if run.collect_path(segment) && bytes + run.bytes() <= bytes_max {
                bytes += run.bytes();
                run.write(block, &mut push);
            }
        }
    }

    fn newest_first(&self, scope: SnapshotScope) -> impl Iterator<Item = &Claim> {
        let since = match scope {
            SnapshotScope::All => None,
            SnapshotScope::OursSince(since) => Some(since),
        };
        let claims =
            self.claims.iter().map(|(_, it)| it).filter(|it| since.is_none_or(|since| it.published > since));
        // Sorts a copy of the ages, because the claims are scattered over memory.
        let mut claims: Vec<(u64, &Claim)> = claims.map(|it| (it.age, it)).collect();
        claims.sort_unstable_by_key(|it| std::cmp::Reverse(it.0));
        claims.into_iter().map(|it| it.1)
    }
}

/// Segments written so far, and those to write next.
struct SegmentRun<'a> {
    directory: &'a CacheDirectory,
    written: NumberMap<()>,
    segments: Vec<(u64, &'a Segment)>,
    links: Vec<u64>,
}

impl<'a> SegmentRun<'a> {
    fn new(directory: &'a CacheDirectory, bytes_max: usize) -> SegmentRun<'a> {
        // Preallocated, and each segment looked up once: a full directory took 190 ms without either, 63 ms with
        // both.
        let segments_max = directory.segments.len().min(bytes_max / (8 * SEGMENT_LINKS));
        let written = NumberMap::with_capacity_and_hasher(segments_max, BuildHasherDefault::default());
        SegmentRun { directory, written, segments: Vec::new(), links: Vec::new() }
    }

    /// Collects the unwritten segments from the root to this one. Returns whether they are all known.
    fn collect_path(&mut self, last: u64) -> bool {
        self.segments.clear();
        let mut id = last;
        while id != 0 && !self.written.contains_key(&id) {
            let Some(segment) = self.directory.segments.get(id).filter(|_| self.segments.len() < PATH_MAX)
            else {
                return false;
            };
            self.segments.push((id, segment));
            id = segment.parent;
        }
        self.segments.reverse();
        true
    }

    fn bytes(&self) -> usize {
        8 * SEGMENT_LINKS * self.segments.len()
    }

    /// Writes the collected segments.
    fn write(&mut self, block: u32, push: &mut impl FnMut(&Record<'_>)) {
        for run in self.segments.chunks(RECORD_LINKS_MAX / SEGMENT_LINKS) {
            self.links.clear();
            run.iter().for_each(|it| self.links.extend_from_slice(&it.1.links));
            push(&Record::Segments { block, parent: run[0].1.parent, links: Links::Numbers(&self.links) });
        }
        self.written.extend(self.segments.drain(..).map(|it| (it.0, ())));
    }
}
