//! Written frames are read back unchanged, and malformed bytes are rejected without a panic.

use super::*;
use crate::frame::read::parse;
use crate::frame::write::RecordBuffer;
use crate::row::{LinearFit, Verdict};
use maitre_base::{PrefillWork, Tokens};
use proptest::prelude::{Just, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

/// A record that owns its links.
#[derive(Clone, Debug)]
pub(crate) enum OwnedRecord {
    Plain(Record<'static>),
    Placement(EncodedPlacement<'static>, Vec<u64>),
    Segments(u32, u64, Vec<u64>),
}

impl OwnedRecord {
    fn record(&self) -> Record<'_> {
        match self {
            OwnedRecord::Plain(record) => *record,
            OwnedRecord::Placement(placement, links) => {
                Record::Placement(EncodedPlacement { links: Links::Numbers(links), ..*placement })
            }
            OwnedRecord::Segments(block, parent, links) => {
                Record::Segments { block: *block, parent: *parent, links: Links::Numbers(links) }
            }
        }
    }
}

fn links(count: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(1..u64::MAX, count)
}

fn load() -> impl Strategy<Value = PromisedWork> {
    any::<(u32, u32, u64, u64, u64, u64)>().prop_map(|it| PromisedWork {
        requests: it.0,
        prefilling: it.1,
        prefill: PrefillWork { tokens: Tokens(it.2), attended: it.3 },
        decode: Tokens(it.4),
        context: Tokens(it.5),
    })
}

fn facts() -> impl Strategy<Value = WorkerFacts> {
    let verdict = prop_oneof![Just(Verdict::Healthy), Just(Verdict::Suspect), Just(Verdict::Ejected)];
    let fit = || (0.0..1e3_f32, 0.0..1e3_f32).prop_map(|(base, slope)| LinearFit { base, slope });
    (verdict, prop::option::of((fit(), fit()))).prop_map(|(verdict, rates)| WorkerFacts { verdict, rates })
}

fn placement() -> impl Strategy<Value = OwnedRecord> {
    let unit = prop_oneof![Just(Unit::Tokens), Just(Unit::Words)];
    (any::<u64>(), unit, 1..u32::MAX, any::<u64>(), 0..9_u32, 1..u64::MAX, links(1..20)).prop_map(
        |(worker, unit, block, units, segments, parent, links)| {
            let parent = if segments == 0 { 0 } else { parent };
            let total_links = segments * SEGMENT_LINKS as u32 + links.len() as u32;
            OwnedRecord::Placement(
                EncodedPlacement {
                    placed: PlacedChain { worker, unit, block, units, total_links },
                    parent,
                    links: Links::Numbers(&[]),
                },
                links,
            )
        },
    )
}

/// Any record that is allowed in a delta.
pub(crate) fn owned() -> impl Strategy<Value = OwnedRecord> {
    let key = || 0..5_u64;
    prop_oneof![
        (key(), load()).prop_map(|(worker, load)| OwnedRecord::Plain(Record::Load { worker, load })),
        (key(), facts()).prop_map(|(worker, facts)| OwnedRecord::Plain(Record::Facts { worker, facts })),
        key().prop_map(|worker| OwnedRecord::Plain(Record::Removed { worker })),
        (key(), any::<u64>(), key(), any::<u64>()).prop_map(|(model, session, worker, stamp)| {
            OwnedRecord::Plain(Record::Pin { model, session, worker, stamp })
        }),
        any::<(u64, u64, u64, u64, u64)>().prop_map(|(model, tenant, first_delta, requests, tokens)| {
            OwnedRecord::Plain(Record::Spent {
                model,
                tenant,
                first_delta,
                total: Spent { requests, tokens },
            })
        }),
        placement(),
        (1..u32::MAX, any::<u64>(), links(1..4)).prop_map(|(block, parent, links)| {
            OwnedRecord::Segments(block, parent, links.iter().flat_map(|&it| [it; SEGMENT_LINKS]).collect())
        }),
    ]
}

pub(crate) fn head() -> impl Strategy<Value = Head> {
    (any::<u64>(), any::<u64>(), 1..u64::MAX, any::<u64>(), any::<bool>()).prop_map(|it| Head {
        router: RouterId(it.0),
        incarnation: Incarnation(it.1),
        seq: it.2,
        stamp: it.3,
        is_synced: it.4,
    })
}

fn part() -> impl Strategy<Value = Part> {
    (any::<u64>(), 0..PARTS_MAX).prop_flat_map(|(edition, index)| {
        (index + 1..=PARTS_MAX).prop_map(move |count| Part { edition, index, count })
    })
}

fn buffer(owned: &[OwnedRecord]) -> RecordBuffer {
    let mut buffer = RecordBuffer::default();
    assert!(owned.iter().all(|it| buffer.try_push(&it.record())));
    buffer
}

pub(crate) fn delta(head: &Head, owned: &[OwnedRecord]) -> Vec<u8> {
    write::delta(head, &mut buffer(owned))
}

proptest! {
    #[test]
    fn records_survive_a_round_trip(
        head in head(),
        owned in prop::collection::vec(owned(), 0..30),
        part in part(),
        since in any::<(u64, u64)>(),
    ) {
        let records: Vec<Record<'_>> = owned.iter().map(OwnedRecord::record).collect();
        let frame = delta(&head, &owned);
        prop_assert_eq!(parse(&frame), Ok(Frame { head, body: Body::Delta(records.clone()) }));

        let published: Vec<OwnedRecord> =
            owned.iter().filter(|it| it.record().belongs_in(FrameKind::Snapshot)).cloned().collect();
        let records: Vec<Record<'_>> = published.iter().map(OwnedRecord::record).collect();
        let since = Since { rows: since.0, chains: since.1 };
        let frame = write::snapshot(&head, part, since, "näme", &mut buffer(&published));
        let body = Body::Snapshot { part, since, name: "näme", records };
        prop_assert_eq!(parse(&frame), Ok(Frame { head, body }));

        let published: Vec<OwnedRecord> = owned.iter().filter(|it| it.record().belongs_in(FrameKind::CacheDirectory)).cloned().collect();
        let records = published.iter().map(OwnedRecord::record).collect();
        let routers = vec![RouterId(since.rows); since.chains as usize % ROUTERS_MAX];
        let frame = write::directory(&head, part, &routers, &mut buffer(&published));
        prop_assert_eq!(parse(&frame), Ok(Frame { head, body: Body::CacheDirectory { part, routers, records } }));
    }

    #[test]
    fn other_frames_survive_a_round_trip(
        head in head(),
        numbers in any::<(u64, u64, u32)>(),
        routers in prop::collection::vec(any::<(u64, u64, u64)>(), 0..ROUTERS_MAX),
        wants_directory in any::<bool>(),
    ) {
        let echo = |it: &(u64, u64, u64)| Echo { router: RouterId(it.0), number: it.1, held_us: it.2 };
        let echoes = routers.iter().map(echo).collect();
        let heartbeat = Heartbeat { name: "a", number: numbers.0, served: numbers.1, in_flight: numbers.2, echoes };
        let frame = write::heartbeat(&head, &heartbeat);
        prop_assert_eq!(parse(&frame), Ok(Frame { head, body: Body::Heartbeat(heartbeat) }));

        let has = routers.iter().map(|it| (RouterId(it.0), Incarnation(it.1))).collect();
        let hello = Hello { name: "", attempt: numbers.2, wants_directory, has };
        let frame = write::hello(&head, &hello);
        prop_assert_eq!(parse(&frame), Ok(Frame { head, body: Body::Hello(hello) }));
        let frame = write::leave(&head);
        prop_assert_eq!(parse(&frame), Ok(Frame { head, body: Body::Leave }));

        let router = RouterId(numbers.0);
        let since = Since { rows: numbers.1, chains: numbers.0 };
        let records = [Record::Resync { router, since }, Record::WantSegments { router, block: 1, segment: numbers.1 }];
        let mut buffer = RecordBuffer::default();
        prop_assert!(records.iter().all(|it| buffer.try_push(it)));
        let frame = write::repair(&head, &mut buffer);
        prop_assert_eq!(parse(&frame), Ok(Frame { head, body: Body::Repair(records.to_vec()) }));
    }

    #[test]
    fn any_bytes_are_parsed_or_rejected(
        kind in any::<u8>(),
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        prop_assert!(parse(&bytes).is_err() || bytes[..2] == MAGIC);
        let _ = parse(&[&MAGIC[..], &[VERSION, kind], &bytes].concat());
    }

    /// A truncated frame is rejected. A frame with a changed or added byte is parsed or rejected.
    #[test]
    fn damaged_frames_are_parsed_or_rejected(
        head in head(),
        owned in prop::collection::vec(owned(), 1..10),
        at in any::<usize>(),
        byte in any::<u8>(),
    ) {
        let frame = delta(&head, &owned);
        let mut changed = frame.clone();
        changed[at % frame.len()] = byte;
        let _ = parse(&changed);
        changed.insert(at % frame.len(), byte);
        let _ = parse(&changed);
        prop_assert!(parse(&frame[..at % frame.len()]).is_err());
    }
}

fn plain() -> Head {
    Head { router: RouterId(1), incarnation: Incarnation(1), seq: 1, stamp: 0, is_synced: false }
}

#[test]
fn foreign_bytes_and_other_versions_are_distinguished() {
    assert_eq!(parse(b""), Err(FrameError::Foreign));
    assert_eq!(parse(b"GET / HTTP/1.1\r\n"), Err(FrameError::Foreign));
    let mut frame = write::leave(&plain());
    frame[2] = 9;
    assert_eq!(parse(&frame), Err(FrameError::Version { theirs: 9, ours: VERSION }));
}

#[test]
fn malformed_frames_are_rejected_with_a_reason() {
    #[track_caller]
    fn check(body: &[u8], why: &'static str) {
        let mut frame = write::leave(&plain());
        frame[3] = body[0];
        frame.extend_from_slice(&body[1..]);
        assert_eq!(parse(&frame), Err(FrameError::Malformed(why)));
    }
    let (delta, heartbeat, hello, leave, snapshot, repair) = (1, 2, 3, 4, 5, 7);
    check(&[0], "unknown frame kind");
    check(&[8], "unknown frame kind");
    check(&[leave, 0], "bytes after the end");
    check(&[heartbeat], "truncated frame");
    check(&[heartbeat, 129, 1], "name is too long");
    check(&[heartbeat, 1, 10], "name is not printable text");
    check(&[heartbeat, 1, 0xFF], "name is not printable text");
    check(&[heartbeat, 0, 1, 1, 1, 65], "too many routers");
    check(&[hello, 0, 0, 2], "invalid boolean");
    check(&[snapshot, 1, 3, 3], "invalid part number");
    check(&[snapshot, 1, 0, 0x81, 0x08], "invalid part number");
    // Counts far beyond the remaining bytes.
    check(&[delta, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1], "truncated frame");
    check(&[delta, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2], "number is too large");
    check(&[delta, 0, 0xFF, 0xFF, 0xFF, 0xFF, 1], "truncated frame");
    check(&[delta, 0, 1, 99], "unknown record tag");
    check(&[delta, 0, 1, tag::REMOVED, 0], "key index out of range");
    check(
        &[delta, 0, 1, tag::WANT_SEGMENTS, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        "record is not allowed in this kind of frame",
    );
    check(
        &[repair, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, tag::REMOVED, 0],
        "record is not allowed in this kind of frame",
    );
    let keyed = |rest: &[u8]| [&[delta, 1, 7, 7, 7, 7, 7, 7, 7, 7, 1], rest].concat();
    check(&keyed(&[tag::FACTS, 0, 3]), "unknown verdict");
    check(&keyed(&[tag::FACTS, 0, 0x20]), "invalid rates flag");
    for rate in [f32::NAN, f32::INFINITY, -1.0] {
        check(
            &keyed(&[&[tag::FACTS, 0, 0x10][..], &rate.to_le_bytes()].concat()),
            "rate is negative or not finite",
        );
    }
    check(&keyed(&[tag::LOAD, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x1F]), "number is too large");
    check(&keyed(&[tag::PLACEMENT, 0, 2]), "unknown unit");
    check(&keyed(&[tag::PLACEMENT, 0, 0, 0]), "block size is 0");
    check(&keyed(&[tag::PLACEMENT, 0, 0x20, 16, 1, 1]), "invalid parent flag");
    check(&keyed(&[tag::PLACEMENT, 0, 0, 16, 1, 0, 0]), "invalid chain length");
    check(&keyed(&[tag::PLACEMENT, 0, 0, 16, 1, 1, 0]), "invalid chain length");
    check(&keyed(&[tag::PLACEMENT, 0, 0, 16, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]), "link is 0");
    check(&keyed(&[tag::SEGMENTS, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0]), "incomplete segment");
    let unnumbered = write::delta(&Head { seq: 0, ..plain() }, &mut RecordBuffer::default());
    assert_eq!(parse(&unnumbered), Err(FrameError::Malformed("delta number is 0")));
    let long = [write::leave(&plain()), vec![0; FRAME_MAX]].concat();
    assert_eq!(parse(&long), Err(FrameError::Malformed("frame is too long")));
}

#[test]
fn a_frame_expands_within_the_limit() {
    let placement = EncodedPlacement {
        placed: PlacedChain {
            worker: 1,
            unit: Unit::Tokens,
            block: 16,
            units: 0,
            total_links: LINKS_MAX as u32,
        },
        parent: 5,
        links: Links::Numbers(&[]),
    };
    let mut buffer = RecordBuffer::default();
    assert!(buffer.try_push(&Record::Placement(placement)));
    assert!(!buffer.try_push(&Record::Placement(placement)), "it would rebuild to twice as much");
    let record = record_bytes(&placement);
    let thrice = [write::leave(&plain()), vec![1, 1, 0, 0, 0, 0, 0, 0, 0, 3], record.repeat(3)].concat();
    let mut frame = thrice;
    frame[3] = FrameKind::Delta as u8;
    assert_eq!(parse(&frame), Err(FrameError::Malformed("chains that rebuild too far")));
}

/// The record without head and keys.
fn record_bytes(placement: &EncodedPlacement<'_>) -> Vec<u8> {
    let mut buffer = RecordBuffer::default();
    assert!(buffer.try_push(&Record::Placement(*placement)));
    let frame = write::delta(&plain(), &mut buffer);
    frame[write::leave(&plain()).len() + 10..].to_vec()
}

#[test]
fn a_full_buffer_makes_a_frame_within_the_limit() {
    let mut buffer = RecordBuffer::default();
    let prefill = PrefillWork { tokens: Tokens(u64::MAX), attended: u64::MAX };
    let load = PromisedWork { requests: u32::MAX, prefill, ..PromisedWork::default() };
    let count = (0..).take_while(|&worker| buffer.try_push(&Record::Load { worker, load })).count();
    let head = Head { incarnation: Incarnation(u64::MAX), seq: u64::MAX, stamp: u64::MAX, ..plain() };
    let part = Part { edition: u64::MAX, index: 1_022, count: 1_023 };
    let since = Since { rows: u64::MAX, chains: u64::MAX };
    let frame = write::snapshot(&head, part, since, &"n".repeat(NAME_MAX), &mut buffer);
    assert!((FRAME_MAX - 1_100..=FRAME_MAX).contains(&frame.len()), "{} loads in {}", count, frame.len());
    assert!(parse(&frame).is_ok());
}

/// Frames as they are written serve as seeds. What is read can be walked to its last link.
#[test]
fn fuzz_cluster_frame() {
    let head = plain();
    let heartbeat = Heartbeat {
        name: "router-1",
        number: 3,
        served: 90,
        in_flight: 4,
        echoes: vec![Echo { router: RouterId(9), number: 2, held_us: 70 }],
    };
    let hello =
        Hello { name: "b", attempt: 1, wants_directory: true, has: vec![(RouterId(1), Incarnation(2))] };
    let records = [
        OwnedRecord::Plain(Record::Load { worker: 7, load: PromisedWork::default() }),
        OwnedRecord::Segments(16, 5, vec![1, 2, 3]),
    ];
    let part = Part { edition: 1, index: 0, count: 2 };
    let since = Since { rows: 1, chains: 2 };
    let seeds = [
        write::heartbeat(&head, &heartbeat),
        write::hello(&head, &hello),
        write::leave(&head),
        delta(&head, &records[..1]),
        write::snapshot(&head, part, since, "name", &mut buffer(&records[..1])),
        write::directory(&head, part, &[RouterId(3)], &mut buffer(&records[1..])),
    ];
    let seeds: Vec<&[u8]> = seeds.iter().map(Vec::as_slice).collect();
    maitre_testkit::fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "cluster-frame", &seeds, |input, _| {
        let Ok(frame) = parse(input) else { return };
        let records = match &frame.body {
            Body::Delta(records) | Body::Repair(records) => records,
            Body::Snapshot { records, .. } | Body::CacheDirectory { records, .. } => records,
            Body::Heartbeat(_) | Body::Hello(_) | Body::Leave => return,
        };
        for record in records {
            if let Record::Placement(EncodedPlacement { links, .. }) | Record::Segments { links, .. } = record
            {
                assert!(links.to_vec().len() <= input.len(), "more links than bytes");
            }
        }
    });
}
