//! Where one goes that has waited: looked up afresh, and for a while better nowhere than to a cold worker.

use super::*;
use maitre_base::Tier;
use maitre_index::feed::Trust;
use maitre_index::prefix;

const BLOCK: u32 = 16;

/// A thousand times four tokens that all share, and some of its own.
fn text(which: u32, own: u32) -> Vec<u32> {
    let own = (0..own).map(|it| 1_000_000 * which + it);
    (0..4_000).chain(own).collect()
}

pub(super) fn prompt(tokens: &[u32]) -> Prompt {
    let mut chain = Vec::new();
    let root = Root::new(Unit::Tokens, "llama", None, None);
    prefix::chain(root, tokens, BLOCK as usize, &mut chain);
    Prompt { unit: Unit::Tokens, units: tokens.len() as u64, block: BLOCK, chain: chain.into() }
}

fn with(prompt: &Prompt, request: u64) -> Arrival<'_> {
    Arrival { size: Size::Tokens(prompt.units), prompt: Some(prompt), ..one(request) }
}

impl Table {
    /// Two workers that report their caches, and that take one request at a time.
    fn warm() -> Table {
        let queue = Queue { sequences_max: 1, ..Queue::default() };
        let mut table = Table::with_line(2, Settings { queue, ..Settings::default() });
        for worker in [0, 1].map(WorkerId) {
            table.on(Event::TrustChanged { worker, trust: Trust::Fresh });
        }
        table
    }

    /// The worker's engine says that it has this.
    fn stored(&mut self, worker: u32, tokens: &[u32]) {
        let names: Vec<u64> = (0..tokens.len() as u64 / u64::from(BLOCK)).collect();
        let blocks = StoredBlocks {
            names: &names,
            parent: None,
            tokens: &tokens[..names.len() * BLOCK as usize],
            block_tokens: BLOCK,
            adapter: None,
            salt: None,
            extras: &[],
            tier: Tier::Gpu,
        };
        self.on(Event::CacheChanged { worker: WorkerId(worker), event: KvEvent::Stored(blocks) });
    }
}

#[test]
fn one_that_waited_is_looked_up_afresh() {
    for holder in [0, 1] {
        let (mut table, shared) = (Table::warm(), prompt(&text(0, 0)));
        let seats = [0, 1].map(|it| placement(&table.step(Come(one(it)))).worker.0);
        assert_eq!(table.tell(Come(with(&shared, 2))), "2 waits", "nobody holds it, and nobody has room");
        table.stored(holder, &text(0, 0));
        let there = seats.iter().position(|&it| it == holder).unwrap() as u64;
        let placement = placement(&table.step(End(there)));
        assert_eq!((placement.request.0, placement.worker.0), (2, holder));
        assert!(placement.held.unwrap() >= Tokens(3_900), "{placement:?}");
    }
}

/// The holder is busy for 25 ms or so, and the other one would take 200 to compute it again.
#[test]
fn it_holds_out_for_a_warm_worker_rather_than_take_a_cold_one() {
    let (mut table, shared) = (Table::warm(), prompt(&text(0, 0)));
    table.stored(1, &text(0, 0));
    table.play(&[(Come(with(&shared, 1)), "1@1"), (Come(with(&shared, 2)), "2 waits")]);
    assert_eq!(table.awaited(1).0, 1);
    table.play(&[(First(1), ""), (After(100), ""), (End(1), "2@1")]);
    assert_eq!(table.awaited(1), (0, 0));
    // One that is cold everywhere has nobody to hold out for.
    assert_eq!(table.tell(Come(one(3))), "3@0");
    table.play(&[(End(2), ""), (End(3), "")]);
    table.is_clear();
}

/// Each that waits there makes the next one's wait longer, until to compute it again is cheaper.
#[test]
fn those_behind_reckon_with_who_holds_out() {
    let prompts: Vec<Prompt> = (0..12).map(|it| prompt(&text(it + 1, 500))).collect();
    let mut table = Table::warm();
    table.stored(1, &text(0, 0));
    let told: Vec<String> =
        prompts.iter().zip(0..).map(|(it, request)| table.tell(Come(with(it, request)))).collect();
    let cold = told.iter().position(|it| it.ends_with("@0")).unwrap();
    assert_eq!(told[0], "0@1");
    assert!((2..10).contains(&cold), "{told:?}");
    assert!(told[1..cold].iter().all(|it| it.ends_with("waits")), "{told:?}");
    // Now both are busy. Of those that wait as many as are looked at have said whom for.
    let awaited = (table.awaited(0).0 + table.awaited(1).0) as usize;
    assert_eq!(awaited, table.waiting().min(maitre_queue::wait_queue::LOOK), "{told:?}");
    for request in 0..12 {
        table.step(Leave(request));
    }
    table.is_clear();
}

#[test]
fn nobody_holds_out_for_more_than_ten_seconds() {
    let (mut table, shared) = (Table::warm(), prompt(&text(0, 0)));
    table.stored(1, &text(0, 0));
    table.play(&[
        (Come(with(&shared, 1)), "1@1"),
        (First(1), ""),
        (Come(with(&shared, 2)), "2 waits"),
        (After(9_990), ""),
        (After(20), "2@0"),
    ]);
    assert_eq!(table.awaited(1), (0, 0));
}

#[test]
fn ten_thousand_who_hold_out_and_leave_leave_nothing() {
    let (mut table, shared) = (Table::warm(), prompt(&text(0, 0)));
    table.stored(1, &text(0, 0));
    table.play(&[(Come(with(&shared, 1)), "1@1"), (Come(with(&shared, 2)), "2 waits")]);
    for request in 10..10_010 {
        table.step(Come(with(&shared, request)));
        table.step(Leave(request));
    }
    assert_eq!((table.waiting(), table.awaited(1).0), (1, 1));
    table.play(&[(Leave(2), ""), (End(1), "")]);
    table.is_clear();
}

/// It held out while thirty-two others went to the free worker; then it goes there itself, and all go on.
#[test]
fn one_that_may_not_be_overtaken_any_more_holds_out_no_longer() {
    let (mut table, shared) = (Table::warm(), prompt(&text(0, 0)));
    table.stored(1, &text(0, 0));
    table.play(&[(Come(with(&shared, 1)), "1@1"), (Come(with(&shared, 2)), "2 waits")]);
    for request in 3..60 {
        table.step(Come(one(request)));
        table.step(After(1));
        table.step(Leave(request));
    }
    let placement = table.brain.worker_of(RequestId(2));
    assert_eq!(placement, Some(WorkerId(0)), "{:?}", table.brain.pending.get(&2));
}
