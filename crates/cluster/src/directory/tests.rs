//! What is told is heard whole, pages never lose the way to the root, and everything has its bound.

use super::*;
use crate::directory::parked::{PARKED_LINKS_MAX, PARKED_MAX};
use crate::directory::recital::Scope;
use crate::frame::write::{self, Sheet};
use crate::frame::{Body, Head, UNFOLD_MAX, read};
use crate::row::Incarnation;
use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

const TELLER: Teller = Teller { router: RouterId(1), source: Source::Delta, ask: Instant::ZERO };
const MEMORY: Teller = Teller { source: Source::Memory, ..TELLER };

fn links(name: u64, count: usize) -> Vec<u64> {
    (0..count as u64).map(|it| hash::pair(name, it).max(1)).collect()
}

fn chain(links: &[u64]) -> Chain<'_> {
    Chain { unit: Unit::Tokens, block: 16, units: 16 * links.len() as u64, links }
}

/// Frames of what was pushed, at any number of records.
#[derive(Default)]
struct Wire(Vec<Sheet>);

impl Wire {
    fn push(&mut self, record: &Record<'_>) -> u64 {
        if self.0.last_mut().is_none_or(|it| !it.takes(record)) {
            let mut sheet = Sheet::default();
            assert!(sheet.takes(record));
            self.0.push(sheet);
        }
        self.0.len() as u64
    }

    fn put(&mut self, record: &Record<'_>) {
        self.push(record);
    }

    fn frames(mut self) -> Vec<Vec<u8>> {
        let head = Head { router: RouterId(1), incarnation: Incarnation(1), seq: 1, stamp: 0, is_warm: true };
        self.0.iter_mut().map(|sheet| write::delta(&head, sheet)).collect()
    }
}

fn told(directory: &mut CacheDirectory) -> Vec<Vec<u8>> {
    let mut wire = Wire::default();
    directory.tell(|record| wire.push(record));
    wire.frames()
}

fn recited(directory: &CacheDirectory, scope: Scope, bytes_max: usize) -> Vec<Vec<u8>> {
    let mut wire = Wire::default();
    directory.recite(scope, bytes_max, |record| wire.put(record));
    wire.frames()
}

#[track_caller]
fn hear(directory: &mut CacheDirectory, teller: Teller, frames: &[Vec<u8>]) -> Vec<Seated> {
    let mut news = Vec::new();
    for frame in frames {
        let Body::Delta(records) = read::parse(frame).unwrap().body else { panic!("no delta") };
        for record in records {
            match record {
                Record::Seat(seat) => directory.hear(teller, &seat, &mut news),
                Record::Pages { block, parent, links } => directory.hear_pages(block, parent, links),
                other => panic!("{other:?}"),
            }
        }
    }
    directory.settle(Instant::ZERO, &mut news);
    seated(news)
}

fn seated(news: Vec<PeerUpdate>) -> Vec<Seated> {
    let seated = news.into_iter().map(|it| match it {
        PeerUpdate::Seated(seated) => seated,
        other => panic!("{other:?}"),
    });
    seated.collect()
}

fn directory() -> CacheDirectory {
    CacheDirectory::new(PAGES_MAX, CLAIMS_MAX)
}

fn bytes(frames: &[Vec<u8>]) -> usize {
    frames.iter().map(Vec::len).sum()
}

#[test]
fn chains_of_every_length_arrive_whole() {
    let (mut a, mut b) = (directory(), directory());
    let all = links(1, 60);
    // Up, and down again: longer and shorter than what is known.
    for (turn, count) in (1..=60).chain((1..60).rev()).enumerate() {
        // Each so late that it is worth telling.
        a.seat(7, chain(&all[..count]), 1 + turn as u64 * TOLD_AGAIN);
        let told = told(&mut a);
        let expected = Seated {
            worker: 7,
            unit: Unit::Tokens,
            block: 16,
            units: 16 * count as u64,
            links: all[..count].to_vec(),
        };
        assert_eq!(hear(&mut b, TELLER, &told), [expected], "{count} links");
    }
    assert_eq!((a.pages(), b.pages(), a.dropped(), b.dropped()), (7, 7, 0, 0));
}

#[test]
fn what_adds_less_than_a_page_is_told_now_and_then() {
    let mut a = directory();
    let (one, other) = (forked(1, 16, 23), forked(2, 16, 23));
    // When, what, to whom, and whether it is told.
    for (next, links, worker, expected) in [
        (1, &one, 7, true),
        (1, &other, 7, false),
        (1, &other, 8, true),
        (TOLD_AGAIN, &other, 7, false),
        (1 + TOLD_AGAIN, &other, 7, true),
        (1 + TOLD_AGAIN, &one, 7, false),
        (1 + TOLD_AGAIN, &forked(3, 16, 24), 7, true),
    ] {
        a.seat(worker, chain(links), next);
        assert_eq!(!told(&mut a).is_empty(), expected, "{} links to {worker} at {next}", links.len());
    }
    // Who has let the worker go tells it anew.
    a.forget(7);
    a.seat(7, chain(&one), 2 + TOLD_AGAIN);
    assert!(!told(&mut a).is_empty());
    // Less than a page at all is told each time: nothing stands for it.
    for _ in 0..2 {
        a.seat(7, chain(&links(9, 5)), 2 + TOLD_AGAIN);
        assert!(!told(&mut a).is_empty());
    }
}

/// So many links that all have, and others up to `count` that are its own.
fn forked(own: u64, shared: usize, count: usize) -> Vec<u64> {
    [&links(100, shared)[..], &links(own, count - shared)].concat()
}

#[test]
fn chains_that_fork_share_the_pages_before_the_fork() {
    let (mut a, mut b) = (directory(), directory());
    let (one, mut other) = (links(1, 400), links(1, 400));
    other[200..].copy_from_slice(&links(2, 200));
    a.seat(7, chain(&one), 1);
    hear(&mut b, TELLER, &told(&mut a));
    a.seat(8, chain(&other), 2);
    let frames = told(&mut a);
    assert!(bytes(&frames) < 200 * 8 + 100, "{}", bytes(&frames));
    assert_eq!(hear(&mut b, TELLER, &frames)[0].links, other);
}

#[test]
fn one_prefix_in_blocks_of_two_sizes_is_two_chains() {
    // Eight blocks of 128 end where sixty-four of 16 do, and there the prefix has one name.
    let (mut a, mut b) = (directory(), directory());
    let fine = links(1, 64);
    let coarse: Vec<u64> = fine.chunks(8).map(|it| it[7]).collect();
    a.seat(7, chain(&fine), 1);
    a.seat(7, Chain { block: 128, ..chain(&coarse) }, 1);
    let heard = hear(&mut b, TELLER, &told(&mut a));
    assert_eq!((&heard[0].links, &heard[1].links), (&fine, &coarse));
}

#[test]
fn a_chain_too_long_for_a_frame_is_told_in_pages() {
    let (mut a, mut b) = (directory(), directory());
    let all = links(1, LINKS_MAX);
    a.seat(7, chain(&all), 1);
    let frames = told(&mut a);
    assert!(frames.len() > 3 && frames.iter().all(|it| it.len() <= crate::frame::FRAME_MAX));
    assert_eq!(hear(&mut b, TELLER, &frames)[0].links, all);
    assert_eq!((a.dropped(), b.dropped()), (0, 0));
}

#[test]
fn what_cannot_be_told_is_counted() {
    let mut a = directory();
    a.seat(7, chain(&[]), 1);
    assert_eq!(a.dropped(), 0, "nothing is lost of nothing");
    a.seat(7, chain(&[5, 0, 6]), 1);
    a.seat(7, chain(&links(1, LINKS_MAX + 1)), 1);
    assert_eq!(a.dropped(), 2);
    assert!(!a.has_pending());
    // Nobody flushes.
    for name in 0..600 {
        a.seat(7, chain(&links(name, 1_000)), 1);
    }
    assert!(a.pending_links.len() <= PENDING_LINKS_MAX);
    assert_eq!(a.dropped(), 2 + 600 - (PENDING_LINKS_MAX / 1_000) as u64);
}

#[test]
fn a_prompt_whose_page_is_unknown_waits_for_it() {
    let (mut a, mut b) = (directory(), directory());
    let all = links(1, 100);
    a.seat(7, chain(&all[..64]), 1);
    let lost = told(&mut a);
    a.seat(7, chain(&all), 2);
    assert_eq!(hear(&mut b, TELLER, &told(&mut a)), []);
    let mut wants = Vec::new();
    b.wants(Instant::ZERO, &mut wants);
    assert_eq!(wants, [Want { router: RouterId(1), block: 16, page: pages::id(all[63], 16) }]);
    let mut wire = Wire::default();
    a.answer(&[(16, wants[0].page)], usize::MAX, |record| wire.put(record));
    assert_eq!(hear(&mut b, TELLER, &wire.frames())[0].links, all);
    // What was late is heard too, and nothing waits any more.
    assert_eq!(hear(&mut b, TELLER, &lost)[0].links, all[..64]);
    assert_eq!((b.wants_by(), b.dropped()), (None, 0));
}

#[test]
fn a_page_is_asked_for_three_times_once_a_second() {
    let (mut a, mut b) = (directory(), directory());
    a.seat(7, chain(&links(1, 8)), 1);
    told(&mut a);
    a.seat(7, chain(&links(1, 9)), 1 + TOLD_AGAIN);
    hear(&mut b, TELLER, &told(&mut a));
    let asked: Vec<u64> = (0..100)
        .map(|it| it * 100)
        .filter(|&millis| {
            let mut wants = Vec::new();
            b.wants(Instant::from_millis(millis), &mut wants);
            !wants.is_empty()
        })
        .collect();
    assert_eq!(asked, [0, 1_000, 2_000]);
    assert_eq!((b.dropped(), b.wants_by()), (1, None));
}

#[test]
fn what_waits_is_bounded_and_the_oldest_goes() {
    let mut b = directory();
    let seat = |parent, links| Seat {
        worker: 7,
        unit: Unit::Tokens,
        block: 16,
        units: 0,
        whole: 8 + 3_000,
        parent,
        links: Links::Numbers(links),
    };
    let few = links(1, 3);
    for parent in 1..=PARKED_MAX as u64 + 10 {
        b.hear(TELLER, &Seat { whole: 11, ..seat(parent, &few) }, &mut Vec::new());
    }
    assert_eq!(b.dropped(), 10);
    let many = links(1, 3_000);
    for parent in 1..=100 {
        b.hear(TELLER, &seat(parent, &many), &mut Vec::new());
    }
    let mut wants = Vec::new();
    b.wants(Instant::ZERO, &mut wants);
    assert_eq!(wants.len(), PARKED_LINKS_MAX / 3_000);
    assert_eq!(wants.last().map(|it| it.page), Some(100));
    assert_eq!(b.dropped() as usize + wants.len(), PARKED_MAX + 10 + 100);
}

#[test]
fn a_prompt_that_claims_to_be_shorter_than_its_pages_is_dropped_before_they_are_read() {
    let (mut a, mut b) = (directory(), directory());
    let all = links(1, LINKS_MAX);
    a.seat(7, chain(&all), 1);
    hear(&mut b, TELLER, &told(&mut a));
    let (few, parent) = (links(2, 1), pages::id(all[LINKS_MAX - 1], 16));
    let seat = Seat {
        worker: 7,
        unit: Unit::Tokens,
        block: 16,
        units: 0,
        whole: PAGE as u32 + 1,
        parent,
        links: Links::Numbers(&few),
    };
    let mut news = Vec::new();
    b.hear(TELLER, &seat, &mut news);
    assert_eq!((news, b.dropped(), b.wants_by()), (vec![], 1, None));
    assert!(b.path.len() <= 1, "{} pages for a prompt of one", b.path.len());
}

#[test]
fn the_book_stands_for_itself_and_is_told_oldest_first() {
    let mut a = directory();
    for name in 0..50 {
        a.seat(7, chain(&links(name, 30)), 1);
        a.seat(8, chain(&links(name, 37)), 1);
    }
    told(&mut a);
    let frames = recited(&a, Scope::All, usize::MAX);
    let mut b = directory();
    let heard = hear(&mut b, MEMORY, &frames);
    assert_eq!(heard.len(), 100);
    assert_eq!(heard[1].links, links(0, 37));
    assert_eq!(heard[99].links, links(49, 37));
    assert_eq!(hear(&mut b, MEMORY, &frames), [], "known already");
    // Told on by one who only heard it: a belief outlives its router.
    let mut c = directory();
    assert_eq!(hear(&mut c, MEMORY, &recited(&b, Scope::All, usize::MAX)), heard);
    assert!(recited(&b, Scope::OursSince(0), usize::MAX).is_empty(), "none of it is b's own");
}

#[test]
fn of_a_book_too_large_the_newest_is_told() {
    let mut a = directory();
    for name in 0..100 {
        a.seat(7, chain(&links(name, 32)), 1);
    }
    let frames = recited(&a, Scope::All, 10_000);
    assert!(bytes(&frames) <= 10_000, "{}", bytes(&frames));
    let heard = hear(&mut directory(), MEMORY, &frames);
    assert!(heard.len() > 20);
    assert_eq!(heard.last().unwrap().links, links(99, 32));
    assert_eq!(heard[0].links, links(100 - heard.len() as u64, 32));
}

#[test]
fn a_longer_claim_takes_the_place_of_what_it_begins_with() {
    let mut a = directory();
    for turn in 1..20 {
        a.seat(7, chain(&links(1, 5 * turn)), 1);
    }
    assert_eq!(a.claims.len(), 1);
    a.seat(8, chain(&links(1, 50)), 1);
    assert_eq!(a.claims.len(), 2, "another worker's is another");
    a.forget(7);
    assert_eq!(a.claims.len(), 1);
}

#[test]
fn chains_told_since_are_told_again() {
    let mut a = directory();
    for name in 1..=4 {
        a.seat(7, chain(&links(name, 8)), name);
        // Each in a delta of its own.
        a.tell(|_| name);
    }
    let heard = hear(&mut directory(), MEMORY, &recited(&a, Scope::OursSince(2), usize::MAX));
    let heard: Vec<Vec<u64>> = heard.into_iter().map(|it| it.links).collect();
    assert_eq!(heard, [links(3, 8), links(4, 8)]);
}

#[test]
fn a_frame_of_the_book_unfolds_to_what_one_can_hold() {
    let mut a = directory();
    let all = links(1, 20_000);
    for worker in 0..50 {
        a.seat(worker, chain(&all), 1);
    }
    let frames = recited(&a, Scope::All, usize::MAX);
    for frame in &frames {
        let Body::Delta(records) = read::parse(frame).unwrap().body else { panic!("no delta") };
        let whole = |it: &Record<'_>| if let Record::Seat(seat) = it { seat.whole as usize } else { 0 };
        assert!(records.iter().map(whole).sum::<usize>() <= UNFOLD_MAX);
    }
    assert_eq!(hear(&mut directory(), MEMORY, &frames).len(), 50);
}

/// Every page leads to the root, and the young ones by young ones.
#[track_caller]
fn check_paths(directory: &CacheDirectory, limit: usize) {
    let mut path = Vec::new();
    assert!(directory.pages() <= limit, "{} pages", directory.pages());
    for id in directory.pages.ids() {
        assert_eq!(directory.pages.trace(id, pages::PATH_MAX, &mut path), Ok(()));
        if directory.pages.is_young(id) {
            assert!(path.iter().all(|&it| directory.pages.is_young(it)), "a young page without its parents");
        }
    }
}

proptest! {
    /// However small the books are: whoever hears what he has room for hears it whole, and pages lead to the root.
    #[test]
    fn small_books_forget_but_do_not_err(
        prompts in prop::collection::vec((0..6_u64, 1..70_usize, any::<bool>()), 1..80),
    ) {
        let (mut a, mut b) = (CacheDirectory::new(24, 8), CacheDirectory::new(18, 8));
        for (turn, (name, count, is_lost)) in prompts.into_iter().enumerate() {
            let all = links(name, count);
            let before = a.dropped();
            a.seat(name % 2, chain(&all), 1 + turn as u64 * TOLD_AGAIN);
            let frames = told(&mut a);
            check_paths(&a, 24);
            if is_lost {
                continue;
            }
            let missed = b.dropped();
            let heard = hear(&mut b, TELLER, &frames);
            check_paths(&b, 18);
            prop_assert!(a.claims.len() <= 8 && b.claims.len() <= 8);
            for seated in &heard {
                prop_assert_eq!(&seated.links, &links_of(&seated.links));
            }
            if heard.is_empty() && a.dropped() == before {
                prop_assert!(b.wants_by().is_some() || b.dropped() > missed, "neither told nor missed");
            }
            // What it lacks it gets, if it has room.
            let mut wants = Vec::new();
            b.wants(Instant::ZERO, &mut wants);
            let wanted: Vec<(u32, u64)> = wants.iter().map(|it| (it.block, it.page)).collect();
            let mut wire = Wire::default();
            a.answer(&wanted, usize::MAX, |record| wire.put(record));
            for seated in hear(&mut b, TELLER, &wire.frames()) {
                prop_assert_eq!(&seated.links, &links_of(&seated.links));
            }
            check_paths(&b, 18);
        }
    }
}

/// The conversation that begins with this link, as long.
fn links_of(heard: &[u64]) -> Vec<u64> {
    let name = (0..6).find(|&it| links(it, 1)[0] == heard[0]).unwrap();
    links(name, heard.len())
}
