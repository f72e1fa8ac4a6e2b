//! Published chains arrive complete, segments always lead to the root, and every store has a limit.

use super::*;
use crate::directory::parked::{PARKED_LINKS_MAX, PARKED_MAX};
use crate::directory::snapshot::SnapshotScope;
use crate::frame::write::{self, RecordBuffer};
use crate::frame::{Body, EXPANDED_LINKS_MAX, Head, read};
use crate::row::{Incarnation, Unit};
use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

const ORIGIN: Origin = Origin { router: RouterId(1), freshness: Freshness::Live, ask_at: Instant::ZERO };
const STORED: Origin = Origin { freshness: Freshness::Stored, ..ORIGIN };

fn links(name: u64, count: usize) -> Vec<u64> {
    (0..count as u64).map(|it| hash::pair(name, it).max(1)).collect()
}

fn chain(links: &[u64]) -> Chain<'_> {
    Chain { unit: Unit::Tokens, block: 16, units: 16 * links.len() as u64, links }
}

/// Packs pushed records into frames.
#[derive(Default)]
struct Wire(Vec<RecordBuffer>);

impl Wire {
    fn push(&mut self, record: &Record<'_>) -> u64 {
        if self.0.last_mut().is_none_or(|it| !it.try_push(record)) {
            let mut buffer = RecordBuffer::default();
            assert!(buffer.try_push(record));
            self.0.push(buffer);
        }
        self.0.len() as u64
    }

    fn put(&mut self, record: &Record<'_>) {
        self.push(record);
    }

    fn frames(mut self) -> Vec<Vec<u8>> {
        let head =
            Head { router: RouterId(1), incarnation: Incarnation(1), seq: 1, stamp: 0, is_synced: true };
        self.0.iter_mut().map(|buffer| write::delta(&head, buffer)).collect()
    }
}

fn published(directory: &mut CacheDirectory) -> Vec<Vec<u8>> {
    let mut wire = Wire::default();
    directory.publish(|record| wire.push(record));
    wire.frames()
}

fn snapshot_of(directory: &CacheDirectory, scope: SnapshotScope, bytes_max: usize) -> Vec<Vec<u8>> {
    let mut wire = Wire::default();
    directory.write_snapshot(scope, bytes_max, |record| wire.put(record));
    wire.frames()
}

#[track_caller]
fn receive(directory: &mut CacheDirectory, origin: Origin, frames: &[Vec<u8>]) -> Vec<PeerPlacement> {
    let mut updates = Vec::new();
    for frame in frames {
        let Body::Delta(records) = read::parse(frame).unwrap().body else { panic!("no delta") };
        for record in records {
            match record {
                Record::Placement(placement) => directory.receive(origin, &placement, &mut updates),
                Record::Segments { block, parent, links } => directory.receive_segments(block, parent, links),
                other => panic!("{other:?}"),
            }
        }
    }
    directory.retry_parked(Instant::ZERO, &mut updates);
    placed(updates)
}

fn placed(updates: Vec<PeerUpdate>) -> Vec<PeerPlacement> {
    let placed = updates.into_iter().map(|it| match it {
        PeerUpdate::Placed(placed) => placed,
        other => panic!("{other:?}"),
    });
    placed.collect()
}

fn directory() -> CacheDirectory {
    CacheDirectory::new(SEGMENTS_MAX, CLAIMS_MAX)
}

fn bytes(frames: &[Vec<u8>]) -> usize {
    frames.iter().map(Vec::len).sum()
}

#[test]
fn chains_of_every_length_arrive_complete() {
    let (mut a, mut b) = (directory(), directory());
    let all = links(1, 60);
    // Longer and shorter than what is known.
    for (turn, count) in (1..=60).chain((1..60).rev()).enumerate() {
        // Spaced so that each is published.
        a.place(7, chain(&all[..count]), 1 + turn as u64 * REPUBLISH_AFTER);
        let published = published(&mut a);
        let expected = PeerPlacement {
            worker: 7,
            unit: Unit::Tokens,
            block: 16,
            units: 16 * count as u64,
            links: all[..count].to_vec(),
        };
        assert_eq!(receive(&mut b, ORIGIN, &published), [expected], "{count} links");
    }
    assert_eq!((a.segments(), b.segments(), a.dropped(), b.dropped()), (7, 7, 0, 0));
}

#[test]
fn a_chain_that_adds_less_than_a_segment_is_published_at_intervals() {
    let mut a = directory();
    let (one, other) = (forked(1, 16, 23), forked(2, 16, 23));
    // Delta number, chain, worker, and whether it is published.
    for (next, links, worker, expected) in [
        (1, &one, 7, true),
        (1, &other, 7, false),
        (1, &other, 8, true),
        (REPUBLISH_AFTER, &other, 7, false),
        (1 + REPUBLISH_AFTER, &other, 7, true),
        (1 + REPUBLISH_AFTER, &one, 7, false),
        (1 + REPUBLISH_AFTER, &forked(3, 16, 24), 7, true),
    ] {
        a.place(worker, chain(links), next);
        assert_eq!(!published(&mut a).is_empty(), expected, "{} links to {worker} at {next}", links.len());
    }
    // After the worker was forgotten, the chain is published again.
    a.forget(7);
    a.place(7, chain(&one), 2 + REPUBLISH_AFTER);
    assert!(!published(&mut a).is_empty());
    // A chain shorter than a segment is published each time: no segment represents it.
    for _ in 0..2 {
        a.place(7, chain(&links(9, 5)), 2 + REPUBLISH_AFTER);
        assert!(!published(&mut a).is_empty());
    }
}

/// `shared` common links, then links of its own up to `count`.
fn forked(own: u64, shared: usize, count: usize) -> Vec<u64> {
    [&links(100, shared)[..], &links(own, count - shared)].concat()
}

#[test]
fn forked_chains_share_the_segments_before_the_fork() {
    let (mut a, mut b) = (directory(), directory());
    let (one, mut other) = (links(1, 400), links(1, 400));
    other[200..].copy_from_slice(&links(2, 200));
    a.place(7, chain(&one), 1);
    receive(&mut b, ORIGIN, &published(&mut a));
    a.place(8, chain(&other), 2);
    let frames = published(&mut a);
    assert!(bytes(&frames) < 200 * 8 + 100, "{}", bytes(&frames));
    assert_eq!(receive(&mut b, ORIGIN, &frames)[0].links, other);
}

#[test]
fn one_prefix_in_blocks_of_two_sizes_is_two_chains() {
    // Eight blocks of 128 and sixty-four of 16 end at the same place, where the prefix hashes are equal.
    let (mut a, mut b) = (directory(), directory());
    let fine = links(1, 64);
    let coarse: Vec<u64> = fine.chunks(8).map(|it| it[7]).collect();
    a.place(7, chain(&fine), 1);
    a.place(7, Chain { block: 128, ..chain(&coarse) }, 1);
    let received = receive(&mut b, ORIGIN, &published(&mut a));
    assert_eq!((&received[0].links, &received[1].links), (&fine, &coarse));
}

#[test]
fn a_chain_too_long_for_a_frame_is_sent_as_segments() {
    let (mut a, mut b) = (directory(), directory());
    let all = links(1, LINKS_MAX);
    a.place(7, chain(&all), 1);
    let frames = published(&mut a);
    assert!(frames.len() > 3 && frames.iter().all(|it| it.len() <= crate::frame::FRAME_MAX));
    assert_eq!(receive(&mut b, ORIGIN, &frames)[0].links, all);
    assert_eq!((a.dropped(), b.dropped()), (0, 0));
}

#[test]
fn unpublishable_chains_are_counted() {
    let mut a = directory();
    a.place(7, chain(&[]), 1);
    assert_eq!(a.dropped(), 0, "nothing is lost of nothing");
    a.place(7, chain(&[5, 0, 6]), 1);
    a.place(7, chain(&links(1, LINKS_MAX + 1)), 1);
    assert_eq!(a.dropped(), 2);
    assert!(!a.has_pending());
    // Never flushed.
    for name in 0..600 {
        a.place(7, chain(&links(name, 1_000)), 1);
    }
    assert!(a.pending_links.len() <= PENDING_LINKS_MAX);
    assert_eq!(a.dropped(), 2 + 600 - (PENDING_LINKS_MAX / 1_000) as u64);
}

#[test]
fn a_prompt_with_an_unknown_segment_is_parked_until_it_arrives() {
    let (mut a, mut b) = (directory(), directory());
    let all = links(1, 100);
    a.place(7, chain(&all[..64]), 1);
    let lost = published(&mut a);
    a.place(7, chain(&all), 2);
    assert_eq!(receive(&mut b, ORIGIN, &published(&mut a)), []);
    let mut requests = Vec::new();
    b.due_requests(Instant::ZERO, &mut requests);
    assert_eq!(
        requests,
        [SegmentRequest { router: RouterId(1), block: 16, segment: segments::id(all[63], 16) }]
    );
    let mut wire = Wire::default();
    a.write_segments(&[(16, requests[0].segment)], usize::MAX, |record| wire.put(record));
    assert_eq!(receive(&mut b, ORIGIN, &wire.frames())[0].links, all);
    // The late frame is applied too, and nothing stays parked.
    assert_eq!(receive(&mut b, ORIGIN, &lost)[0].links, all[..64]);
    assert_eq!((b.next_request_at(), b.dropped()), (None, 0));
}

#[test]
fn a_segment_is_requested_once_a_second_for_a_minute() {
    let (mut a, mut b) = (directory(), directory());
    a.place(7, chain(&links(1, 8)), 1);
    published(&mut a);
    a.place(7, chain(&links(1, 9)), 1 + REPUBLISH_AFTER);
    receive(&mut b, ORIGIN, &published(&mut a));
    let requests: Vec<u64> = (0..700)
        .map(|it| it * 100)
        .filter(|&millis| {
            let mut requests = Vec::new();
            b.due_requests(Instant::from_millis(millis), &mut requests);
            !requests.is_empty()
        })
        .collect();
    assert_eq!(requests, (0..60).map(|it| it * 1_000).collect::<Vec<u64>>());
    assert_eq!((b.dropped(), b.next_request_at()), (1, None));
}

#[test]
fn parked_prompts_are_bounded_and_the_oldest_is_dropped() {
    let mut b = directory();
    let placement = |parent, links, total_links| EncodedPlacement {
        placed: PlacedChain { worker: 7, unit: Unit::Tokens, block: 16, units: 0, total_links },
        parent,
        links: Links::Numbers(links),
    };
    let few = links(1, 3);
    for parent in 1..=PARKED_MAX as u64 + 10 {
        b.receive(ORIGIN, &placement(parent, &few, 11), &mut Vec::new());
    }
    assert_eq!(b.dropped(), 10);
    let many = links(1, 3_000);
    for parent in 1..=100 {
        b.receive(ORIGIN, &placement(parent, &many, 8 + 3_000), &mut Vec::new());
    }
    let mut requests = Vec::new();
    b.due_requests(Instant::ZERO, &mut requests);
    assert_eq!(requests.len(), PARKED_LINKS_MAX / 3_000);
    assert_eq!(requests.last().map(|it| it.segment), Some(100));
    assert_eq!(b.dropped() as usize + requests.len(), PARKED_MAX + 10 + 100);
}

#[test]
fn a_prompt_shorter_than_its_segments_is_dropped_before_they_are_read() {
    let (mut a, mut b) = (directory(), directory());
    let all = links(1, LINKS_MAX);
    a.place(7, chain(&all), 1);
    receive(&mut b, ORIGIN, &published(&mut a));
    let (few, parent) = (links(2, 1), segments::id(all[LINKS_MAX - 1], 16));
    let placement = EncodedPlacement {
        placed: PlacedChain {
            worker: 7,
            unit: Unit::Tokens,
            block: 16,
            units: 0,
            total_links: SEGMENT_LINKS as u32 + 1,
        },
        parent,
        links: Links::Numbers(&few),
    };
    let mut updates = Vec::new();
    b.receive(ORIGIN, &placement, &mut updates);
    assert_eq!((updates, b.dropped(), b.next_request_at()), (vec![], 1, None));
    assert!(b.path.len() <= 1, "{} segments for a prompt of one", b.path.len());
}

#[test]
fn a_directory_snapshot_is_self_contained_and_oldest_first() {
    let mut a = directory();
    for name in 0..50 {
        a.place(7, chain(&links(name, 30)), 1);
        a.place(8, chain(&links(name, 37)), 1);
    }
    published(&mut a);
    let frames = snapshot_of(&a, SnapshotScope::All, usize::MAX);
    let mut b = directory();
    let received = receive(&mut b, STORED, &frames);
    assert_eq!(received.len(), 100);
    assert_eq!(received[1].links, links(0, 37));
    assert_eq!(received[99].links, links(49, 37));
    assert_eq!(receive(&mut b, STORED, &frames), [], "known already");
    // Forwarded by a directory that only received it: a claim outlives its router.
    let mut c = directory();
    assert_eq!(receive(&mut c, STORED, &snapshot_of(&b, SnapshotScope::All, usize::MAX)), received);
    assert!(snapshot_of(&b, SnapshotScope::OursSince(0), usize::MAX).is_empty(), "none of it is b's own");
}

#[test]
fn an_oversized_directory_sends_its_newest_claims() {
    let mut a = directory();
    for name in 0..100 {
        a.place(7, chain(&links(name, 32)), 1);
    }
    let frames = snapshot_of(&a, SnapshotScope::All, 10_000);
    assert!(bytes(&frames) <= 10_000, "{}", bytes(&frames));
    let received = receive(&mut directory(), STORED, &frames);
    assert!(received.len() > 20);
    assert_eq!(received.last().unwrap().links, links(99, 32));
    assert_eq!(received[0].links, links(100 - received.len() as u64, 32));
}

#[test]
fn a_longer_claim_replaces_its_prefixes() {
    let mut a = directory();
    for turn in 1..20 {
        a.place(7, chain(&links(1, 5 * turn)), 1);
    }
    assert_eq!(a.claims.len(), 1);
    a.place(8, chain(&links(1, 50)), 1);
    assert_eq!(a.claims.len(), 2, "another worker's is another");
    a.forget(7);
    assert_eq!(a.claims.len(), 1);
}

#[test]
fn chains_published_since_a_delta_are_sent_again() {
    let mut a = directory();
    for name in 1..=4 {
        a.place(7, chain(&links(name, 8)), name);
        // Each in a delta of its own.
        a.publish(|_| name);
    }
    let received =
        receive(&mut directory(), STORED, &snapshot_of(&a, SnapshotScope::OursSince(2), usize::MAX));
    let received: Vec<Vec<u64>> = received.into_iter().map(|it| it.links).collect();
    assert_eq!(received, [links(3, 8), links(4, 8)]);
}

#[test]
fn a_directory_frame_expands_within_the_limit() {
    let mut a = directory();
    let all = links(1, 20_000);
    for worker in 0..50 {
        a.place(worker, chain(&all), 1);
    }
    let frames = snapshot_of(&a, SnapshotScope::All, usize::MAX);
    for frame in &frames {
        let Body::Delta(records) = read::parse(frame).unwrap().body else { panic!("no delta") };
        let total_links = |it: &Record<'_>| {
            if let Record::Placement(placement) = it { placement.placed.total_links as usize } else { 0 }
        };
        assert!(records.iter().map(total_links).sum::<usize>() <= EXPANDED_LINKS_MAX);
    }
    assert_eq!(receive(&mut directory(), STORED, &frames).len(), 50);
}

/// Every segment leads to the root, and young segments only through young ones.
#[track_caller]
fn check_paths(directory: &CacheDirectory, limit: usize) {
    let mut path = Vec::new();
    assert!(directory.segments() <= limit, "{} segments", directory.segments());
    for id in directory.segments.ids() {
        assert_eq!(directory.segments.trace(id, segments::PATH_MAX, &mut path), Ok(()));
        if directory.segments.is_young(id) {
            assert!(
                path.iter().all(|&it| directory.segments.is_young(it)),
                "a young segment without its parents"
            );
        }
    }
}

proptest! {
    /// Even with tiny limits, applied chains are complete and segments lead to the root.
    #[test]
    fn small_directories_evict_but_stay_consistent(
        prompts in prop::collection::vec((0..6_u64, 1..70_usize, any::<bool>()), 1..80),
    ) {
        let (mut a, mut b) = (CacheDirectory::new(24, 8), CacheDirectory::new(18, 8));
        for (turn, (name, count, is_lost)) in prompts.into_iter().enumerate() {
            let all = links(name, count);
            let before = a.dropped();
            a.place(name % 2, chain(&all), 1 + turn as u64 * REPUBLISH_AFTER);
            let frames = published(&mut a);
            check_paths(&a, 24);
            if is_lost {
                continue;
            }
            let missed = b.dropped();
            let received = receive(&mut b, ORIGIN, &frames);
            check_paths(&b, 18);
            prop_assert!(a.claims.len() <= 8 && b.claims.len() <= 8);
            for placed in &received {
                prop_assert_eq!(&placed.links, &links_of(&placed.links));
            }
            if received.is_empty() && a.dropped() == before {
                prop_assert!(b.next_request_at().is_some() || b.dropped() > missed, "neither published nor missed");
            }
            // Missing segments arrive if there is room.
            let mut requests = Vec::new();
            b.due_requests(Instant::ZERO, &mut requests);
            let requested: Vec<(u32, u64)> = requests.iter().map(|it| (it.block, it.segment)).collect();
            let mut wire = Wire::default();
            a.write_segments(&requested, usize::MAX, |record| wire.put(record));
            for placed in receive(&mut b, ORIGIN, &wire.frames()) {
                prop_assert_eq!(&placed.links, &links_of(&placed.links));
            }
            check_paths(&b, 18);
        }
    }
}

/// The conversation that begins with this link, at the same length.
fn links_of(received: &[u64]) -> Vec<u64> {
    let name = (0..6).find(|&it| links(it, 1)[0] == received[0]).unwrap();
    links(name, received.len())
}
