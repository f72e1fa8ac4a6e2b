//! What is written is read again, and what is not so written is refused: no bytes break anything.

use super::*;
use crate::frame::read::parse;
use crate::frame::write::Sheet;
use crate::node::Unheard;
use crate::row::{Fit, Verdict};
use proptest::prelude::{Just, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

/// A record that owns its links.
#[derive(Clone, Debug)]
pub(crate) enum Made {
    Plain(Record<'static>),
    Seat(Seat<'static>, Vec<u64>),
    Pages(u32, u64, Vec<u64>),
}

impl Made {
    fn record(&self) -> Record<'_> {
        match self {
            Made::Plain(record) => *record,
            Made::Seat(seat, links) => Record::Seat(Seat { links: Links::Numbers(links), ..*seat }),
            Made::Pages(block, parent, links) => {
                Record::Pages { block: *block, parent: *parent, links: Links::Numbers(links) }
            }
        }
    }
}

fn links(count: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(1..u64::MAX, count)
}

fn load() -> impl Strategy<Value = Load> {
    any::<(u32, u32, u64, u64, u64)>().prop_map(|it| Load {
        requests: it.0,
        prefilling: it.1,
        prefill_tokens: it.2,
        decode_tokens: it.3,
        context_tokens: it.4,
    })
}

fn facts() -> impl Strategy<Value = Facts> {
    let verdict = prop_oneof![Just(Verdict::Fit), Just(Verdict::Doubted), Just(Verdict::Out)];
    let fit = || (0.0..1e3_f32, 0.0..1e3_f32).prop_map(|(base, slope)| Fit { base, slope });
    (verdict, prop::option::of((fit(), fit()))).prop_map(|(verdict, rates)| Facts { verdict, rates })
}

fn seat() -> impl Strategy<Value = Made> {
    let unit = prop_oneof![Just(Unit::Tokens), Just(Unit::Words)];
    (any::<u64>(), unit, 1..u32::MAX, any::<u64>(), 0..9_u32, 1..u64::MAX, links(1..20)).prop_map(
        |(worker, unit, block, units, pages, parent, links)| {
            let parent = if pages == 0 { 0 } else { parent };
            let whole = pages * PAGE as u32 + links.len() as u32;
            Made::Seat(Seat { worker, unit, block, units, whole, parent, links: Links::Numbers(&[]) }, links)
        },
    )
}

/// Whatever may stand in a delta.
pub(crate) fn made() -> impl Strategy<Value = Made> {
    let key = || 0..5_u64;
    prop_oneof![
        (key(), load()).prop_map(|(worker, load)| Made::Plain(Record::Load { worker, load })),
        (key(), facts()).prop_map(|(worker, facts)| Made::Plain(Record::Facts { worker, facts })),
        key().prop_map(|worker| Made::Plain(Record::Gone { worker })),
        (key(), any::<u64>(), key(), any::<u64>()).prop_map(|(model, session, worker, stamp)| {
            Made::Plain(Record::Pin { model, session, worker, stamp })
        }),
        any::<(u64, u64, u64, u64, u64)>().prop_map(|(model, tenant, born, requests, tokens)| {
            Made::Plain(Record::Spent { model, tenant, born, total: Spent { requests, tokens } })
        }),
        seat(),
        (1..u32::MAX, any::<u64>(), links(1..4)).prop_map(|(block, parent, links)| {
            Made::Pages(block, parent, links.iter().flat_map(|&it| [it; PAGE]).collect())
        }),
    ]
}

pub(crate) fn head() -> impl Strategy<Value = Head> {
    (any::<u64>(), any::<u64>(), 1..u64::MAX, any::<u64>(), any::<bool>()).prop_map(|it| Head {
        router: RouterId(it.0),
        incarnation: Incarnation(it.1),
        seq: it.2,
        stamp: it.3,
        is_warm: it.4,
    })
}

fn part() -> impl Strategy<Value = Part> {
    (any::<u64>(), 0..PARTS_MAX).prop_flat_map(|(edition, index)| {
        (index + 1..=PARTS_MAX).prop_map(move |count| Part { edition, index, count })
    })
}

fn sheet(made: &[Made]) -> Sheet {
    let mut sheet = Sheet::default();
    assert!(made.iter().all(|it| sheet.takes(&it.record())));
    sheet
}

pub(crate) fn delta(head: &Head, made: &[Made]) -> Vec<u8> {
    write::delta(head, &mut sheet(made))
}

proptest! {
    #[test]
    fn records_are_read_as_they_were_written(
        head in head(),
        made in prop::collection::vec(made(), 0..30),
        part in part(),
        since in any::<(u64, u64)>(),
    ) {
        let records: Vec<Record<'_>> = made.iter().map(Made::record).collect();
        let frame = delta(&head, &made);
        prop_assert_eq!(parse(&frame), Ok(Frame { head, body: Body::Delta(records.clone()) }));

        let told: Vec<Made> =
            made.iter().filter(|it| it.record().belongs_in(Kind::Snapshot)).cloned().collect();
        let records: Vec<Record<'_>> = told.iter().map(Made::record).collect();
        let since = Since { rows: since.0, chains: since.1 };
        let frame = write::snapshot(&head, part, since, "näme", &mut sheet(&told));
        let body = Body::Snapshot { part, since, name: "näme", records };
        prop_assert_eq!(parse(&frame), Ok(Frame { head, body }));

        let told: Vec<Made> = made.iter().filter(|it| it.record().belongs_in(Kind::CacheDirectory)).cloned().collect();
        let records = told.iter().map(Made::record).collect();
        let routers = vec![RouterId(since.rows); since.chains as usize % ROUTERS_MAX];
        let frame = write::book(&head, part, &routers, &mut sheet(&told));
        prop_assert_eq!(parse(&frame), Ok(Frame { head, body: Body::CacheDirectory { part, routers, records } }));
    }

    #[test]
    fn other_frames_are_read_as_they_were_written(
        head in head(),
        numbers in any::<(u64, u64, u32)>(),
        routers in prop::collection::vec(any::<(u64, u64, u64)>(), 0..ROUTERS_MAX),
        wants_book in any::<bool>(),
    ) {
        let echo = |it: &(u64, u64, u64)| Echo { router: RouterId(it.0), number: it.1, held_us: it.2 };
        let echoes = routers.iter().map(echo).collect();
        let beat = Beat { name: "a", number: numbers.0, served: numbers.1, open: numbers.2, echoes };
        let frame = write::beat(&head, &beat);
        prop_assert_eq!(parse(&frame), Ok(Frame { head, body: Body::Beat(beat) }));

        let has = routers.iter().map(|it| (RouterId(it.0), Incarnation(it.1))).collect();
        let hello = Hello { name: "", attempt: numbers.2, wants_book, has };
        let frame = write::hello(&head, &hello);
        prop_assert_eq!(parse(&frame), Ok(Frame { head, body: Body::Hello(hello) }));
        let frame = write::bye(&head);
        prop_assert_eq!(parse(&frame), Ok(Frame { head, body: Body::Bye }));

        let router = RouterId(numbers.0);
        let since = Since { rows: numbers.1, chains: numbers.0 };
        let records = [Record::Resync { router, since }, Record::Want { router, block: 1, page: numbers.1 }];
        let mut sheet = Sheet::default();
        prop_assert!(records.iter().all(|it| sheet.takes(it)));
        let frame = write::aside(&head, &mut sheet);
        prop_assert_eq!(parse(&frame), Ok(Frame { head, body: Body::Aside(records.to_vec()) }));
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        kind in any::<u8>(),
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        prop_assert!(parse(&bytes).is_err() || bytes[..2] == MAGIC);
        let _ = parse(&[&MAGIC[..], &[VERSION, kind], &bytes].concat());
    }

    /// A frame that was cut short is refused; with a byte changed or added it is one or is refused.
    #[test]
    fn what_is_left_of_a_frame_is_read_or_refused(
        head in head(),
        made in prop::collection::vec(made(), 1..10),
        at in any::<usize>(),
        byte in any::<u8>(),
    ) {
        let frame = delta(&head, &made);
        let mut changed = frame.clone();
        changed[at % frame.len()] = byte;
        let _ = parse(&changed);
        changed.insert(at % frame.len(), byte);
        let _ = parse(&changed);
        prop_assert!(parse(&frame[..at % frame.len()]).is_err());
    }
}

fn plain() -> Head {
    Head { router: RouterId(1), incarnation: Incarnation(1), seq: 1, stamp: 0, is_warm: false }
}

#[test]
fn strangers_and_other_versions_are_told_apart() {
    assert_eq!(parse(b""), Err(Unheard::Foreign));
    assert_eq!(parse(b"GET / HTTP/1.1\r\n"), Err(Unheard::Foreign));
    let mut frame = write::bye(&plain());
    frame[2] = 9;
    assert_eq!(parse(&frame), Err(Unheard::Version { theirs: 9, ours: 1 }));
}

#[test]
fn nonsense_is_refused_and_named() {
    #[track_caller]
    fn check(body: &[u8], why: &'static str) {
        let mut frame = write::bye(&plain());
        frame[3] = body[0];
        frame.extend_from_slice(&body[1..]);
        assert_eq!(parse(&frame), Err(Unheard::Malformed(why)));
    }
    let (delta, beat, hello, bye, snapshot, aside) = (1, 2, 3, 4, 5, 7);
    check(&[0], "a kind nobody knows");
    check(&[8], "a kind nobody knows");
    check(&[bye, 0], "bytes after its end");
    check(&[beat], "it ends too soon");
    check(&[beat, 129, 1], "a name too long");
    check(&[beat, 1, 10], "a name that is no text");
    check(&[beat, 1, 0xFF], "a name that is no text");
    check(&[beat, 0, 1, 1, 1, 65], "more routers than there may be");
    check(&[hello, 0, 0, 2], "neither yes nor no");
    check(&[snapshot, 1, 3, 3], "a part that is none");
    check(&[snapshot, 1, 0, 0x81, 0x08], "a part that is none");
    // Counts far beyond the bytes there are.
    check(&[delta, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1], "it ends too soon");
    check(&[delta, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2], "a number too large");
    check(&[delta, 0, 0xFF, 0xFF, 0xFF, 0xFF, 1], "it ends too soon");
    check(&[delta, 0, 1, 99], "a record nobody knows");
    check(&[delta, 0, 1, tag::GONE, 0], "a key that is not at its head");
    check(
        &[delta, 0, 1, tag::WANT, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        "a record where it does not belong",
    );
    check(&[aside, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, tag::GONE, 0], "a record where it does not belong");
    let keyed = |rest: &[u8]| [&[delta, 1, 7, 7, 7, 7, 7, 7, 7, 7, 1], rest].concat();
    check(&keyed(&[tag::FACTS, 0, 3]), "a verdict nobody knows");
    check(&keyed(&[tag::FACTS, 0, 0x20]), "rates that are none");
    for rate in [f32::NAN, f32::INFINITY, -1.0] {
        check(&keyed(&[&[tag::FACTS, 0, 0x10][..], &rate.to_le_bytes()].concat()), "a rate that cannot be");
    }
    check(&keyed(&[tag::LOAD, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x1F]), "a number too large");
    check(&keyed(&[tag::SEAT, 0, 2]), "a unit nobody knows");
    check(&keyed(&[tag::SEAT, 0, 0, 0]), "a block of nothing");
    check(&keyed(&[tag::SEAT, 0, 0x20, 16, 1, 1]), "a parent that is none");
    check(&keyed(&[tag::SEAT, 0, 0, 16, 1, 0, 0]), "a chain of a length that cannot be");
    check(&keyed(&[tag::SEAT, 0, 0, 16, 1, 1, 0]), "a chain of a length that cannot be");
    check(&keyed(&[tag::SEAT, 0, 0, 16, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]), "a link that names nothing");
    check(&keyed(&[tag::PAGES, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0]), "a page that is not full");
    let unnumbered = write::delta(&Head { seq: 0, ..plain() }, &mut Sheet::default());
    assert_eq!(parse(&unnumbered), Err(Unheard::Malformed("a delta without a number")));
    let long = [write::bye(&plain()), vec![0; FRAME_MAX]].concat();
    assert_eq!(parse(&long), Err(Unheard::Malformed("longer than a frame may be")));
}

#[test]
fn a_frame_unfolds_to_no_more_than_one_can_hold() {
    let seat = Seat {
        worker: 1,
        unit: Unit::Tokens,
        block: 16,
        units: 0,
        whole: LINKS_MAX as u32,
        parent: 5,
        links: Links::Numbers(&[]),
    };
    let mut sheet = Sheet::default();
    assert!(sheet.takes(&Record::Seat(seat)));
    assert!(!sheet.takes(&Record::Seat(seat)), "it would unfold to twice as much");
    let record = sheet_bytes(&seat);
    let thrice = [write::bye(&plain()), vec![1, 1, 0, 0, 0, 0, 0, 0, 0, 3], record.repeat(3)].concat();
    let mut frame = thrice;
    frame[3] = Kind::Delta as u8;
    assert_eq!(parse(&frame), Err(Unheard::Malformed("chains that unfold too far")));
}

/// The record without head and keys.
fn sheet_bytes(seat: &Seat<'_>) -> Vec<u8> {
    let mut sheet = Sheet::default();
    assert!(sheet.takes(&Record::Seat(*seat)));
    let frame = write::delta(&plain(), &mut sheet);
    frame[write::bye(&plain()).len() + 10..].to_vec()
}

#[test]
fn a_full_sheet_is_a_frame_within_its_bounds() {
    let mut sheet = Sheet::default();
    let load = Load { requests: u32::MAX, prefill_tokens: u64::MAX, ..Load::default() };
    let count = (0..).take_while(|&worker| sheet.takes(&Record::Load { worker, load })).count();
    let head = Head { incarnation: Incarnation(u64::MAX), seq: u64::MAX, stamp: u64::MAX, ..plain() };
    let part = Part { edition: u64::MAX, index: 1_022, count: 1_023 };
    let since = Since { rows: u64::MAX, chains: u64::MAX };
    let frame = write::snapshot(&head, part, since, &"n".repeat(NAME_MAX), &mut sheet);
    assert!((FRAME_MAX - 1_100..=FRAME_MAX).contains(&frame.len()), "{} loads in {}", count, frame.len());
    assert!(parse(&frame).is_ok());
}
