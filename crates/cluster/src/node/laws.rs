//! Convergence: after any loss, delay, duplication or partition, routers that can reach each other reach the same
//! view.
//!
//! Nodes run in virtual time over a network that a script cuts, delays and heals. Their state is compared by a dump
//! in a fixed order: the rows of every live router, and the links in each worker's predicted cache.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::frame::tests::{delta, head, owned};
use crate::frame::{Head, SEGMENT_LINKS};
use crate::node::{FLUSH, HEARTBEAT, Node, NodeConfig};
use crate::row::{Chain, Incarnation, PeerUpdate, RouterId, Spent, Unit, Verdict, WorkerFacts};
use maitre_base::{Instant, PromisedWork, Rng, Tokens, hash};
use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

const SILENCE_MAX: Duration = Duration::from_secs(3);

fn started(name: &str, incarnation: u64) -> Node {
    Node::new(NodeConfig {
        name: name.into(),
        incarnation: Incarnation(incarnation),
        silence_max: SILENCE_MAX,
    })
}

/// Local events with small value ranges, so that they collide.
#[derive(Clone, Debug)]
enum Op {
    Promise(u64, u32),
    Judge(u64, u8),
    Forget(u64),
    Pin(u64, u64),
    Spend(u64, u64),
    /// A prompt of this conversation with this many links.
    Place(u64, u64, usize),
}

fn op() -> impl Strategy<Value = Op> {
    let worker = || 100..104_u64;
    prop_oneof![
        4 => (worker(), 0..3_u32).prop_map(|(worker, requests)| Op::Promise(worker, requests)),
        1 => (worker(), 0..3_u8).prop_map(|(worker, verdict)| Op::Judge(worker, verdict)),
        1 => worker().prop_map(Op::Forget),
        2 => (0..4_u64, worker()).prop_map(|(session, worker)| Op::Pin(session, worker)),
        2 => (0..4_u64, 1..9_u64).prop_map(|(tenant, tokens)| Op::Spend(tenant, tokens)),
        4 => (worker(), 0..3_u64, 1..40_usize)
            .prop_map(|(worker, conversation, length)| Op::Place(worker, conversation, length)),
    ]
}

fn conversation(name: u64, length: usize) -> Vec<u64> {
    (0..length as u64).map(|it| hash::pair(name, it)).collect()
}

fn act(node: &mut Node, op: &Op) {
    match *op {
        Op::Promise(worker, requests) => {
            node.promise(
                worker,
                PromisedWork { requests, decode: Tokens(9 * u64::from(requests)), ..PromisedWork::default() },
            );
        }
        Op::Judge(worker, verdict) => {
            let verdict = [Verdict::Healthy, Verdict::Suspect, Verdict::Ejected][usize::from(verdict)];
            node.set_facts(worker, WorkerFacts { verdict, rates: None });
        }
        Op::Forget(worker) => node.forget(worker),
        Op::Pin(session, worker) => node.pin(5, session, worker),
        Op::Spend(tenant, tokens) => node.spend(5, tenant, Spent { requests: 1, tokens }),
        Op::Place(worker, name, length) => {
            let links = conversation(name, length);
            node.place(worker, Chain { unit: Unit::Words, block: 16, units: 0, links: &links });
        }
    }
}

type Dump = (Vec<(RouterId, Incarnation, Vec<String>)>, BTreeMap<u64, PromisedWork>);

/// The state that follows from all updates.
#[derive(Clone, Debug, Default)]
struct Receiver {
    promised: BTreeMap<u64, PromisedWork>,
    pinned: BTreeMap<u64, u64>,
    spent: BTreeMap<u64, u64>,
    /// Worker and link.
    placed: BTreeSet<(u64, u64)>,
    routers: (u32, u32),
}

impl Receiver {
    fn on(&mut self, updates: &PeerUpdate) {
        match updates {
            PeerUpdate::Promised { worker, load } if *load == PromisedWork::default() => {
                assert!(self.promised.remove(worker).is_some(), "nothing was published as updates");
            }
            PeerUpdate::Promised { worker, load } => {
                assert_ne!(self.promised.insert(*worker, *load), Some(*load), "published twice");
            }
            PeerUpdate::Assessed { .. } => {}
            PeerUpdate::Pinned { session, worker, .. } => {
                self.pinned.insert(*session, *worker);
            }
            PeerUpdate::Spent { tenant, more, .. } => *self.spent.entry(*tenant).or_default() += more.tokens,
            PeerUpdate::Placed(placed) => {
                self.placed.extend(placed.links.iter().map(|&link| (placed.worker, link)));
            }
            PeerUpdate::Routers { live, known } => self.routers = (*live, *known),
        }
    }
}

/// Receives frames in this order, at one instant.
fn receive(
    node: &mut Node,
    receiver: &mut Receiver,
    now: Instant,
    frames: impl IntoIterator<Item = impl AsRef<[u8]>>,
) {
    let mut updates = Vec::new();
    for frame in frames {
        node.receive(now, frame.as_ref(), &mut updates).unwrap();
    }
    updates.iter().for_each(|it| receiver.on(it));
}

fn dump(node: &Node) -> Dump {
    let rows = node.view.dump();
    let mut sums: BTreeMap<u64, PromisedWork> = BTreeMap::new();
    for router in node.view.live() {
        for worker in router.rows.workers_with_load() {
            let load = router.rows.load(worker);
            let sum = sums.entry(worker).or_default();
            sum.requests += load.requests;
            sum.decode += load.decode;
        }
    }
    sums.retain(|_, it| *it != PromisedWork::default());
    (rows, sums)
}

/// The frames of several routers, one flush per event.
fn published(ops: &[(usize, Op)]) -> Vec<Vec<u8>> {
    let mut nodes = [started("a", 1), started("b", 1), started("b", 2)];
    let mut frames = Vec::new();
    for (at, op) in ops {
        let node = &mut nodes[at % 3];
        act(node, op);
        node.flush(Instant::ZERO, &mut frames);
    }
    frames
}

proptest! {
    /// Order and repetition make no difference to rows, sums and the cache directory.
    #[test]
    fn any_frame_order_gives_the_same_view(
        ops in prop::collection::vec((any::<usize>(), op()), 1..60),
        seed in any::<u64>(),
        leaves in any::<bool>(),
    ) {
        let mut frames = published(&ops);
        if leaves {
            frames.push(started("a", 1).leave());
        }
        let (mut plain, mut received) = (started("c", 1), Receiver::default());
        receive(&mut plain, &mut received, Instant::ZERO, &frames);

        let mut rng = Rng::new(seed);
        let doubled: Vec<Vec<u8>> = (0..frames.len()).map(|_| frames[rng.below(frames.len())].clone()).collect();
        let mut shuffled = [frames, doubled].concat();
        for at in 1..shuffled.len() {
            shuffled.swap(at, rng.below(at + 1));
        }
        let (mut other, mut receiver) = (started("c", 1), Receiver::default());
        receive(&mut other, &mut receiver, Instant::ZERO, &shuffled);
        prop_assert_eq!(dump(&other), dump(&plain));
        prop_assert_eq!(&receiver.promised, &dump(&plain).1);
        prop_assert_eq!(&received.promised, &dump(&plain).1);
        for session in 0..4 {
            let key = crate::own_rows::row_key(5, session);
            prop_assert_eq!(other.view.pin(key, None), plain.view.pin(key, None));
        }
        // Frames of an earlier incarnation are applied or not, depending on the order.
        if !leaves && ops.iter().all(|it| it.0 % 3 != 1) {
            prop_assert_eq!(&receiver.placed, &received.placed);
        }
    }
}

/// Routers and the network between them, in virtual time.
struct Net {
    now: Instant,
    nodes: Vec<Node>,
    receivers: Vec<Receiver>,
    /// Frames in transit by arrival time: from, to, frame.
    wire: BTreeMap<(Instant, u64), (usize, usize, Vec<u8>)>,
    sent: u64,
    /// When the last heartbeat was due.
    heartbeat_at: Instant,
    /// Pairs that cannot reach each other.
    cut: BTreeSet<(usize, usize)>,
    /// How many of a thousand frames are lost.
    loss: usize,
    rng: Rng,
}

impl Net {
    fn new(count: usize, seed: u64) -> Net {
        let names = ["a", "b", "c", "d", "e"];
        let mut net = Net {
            now: Instant::from_millis(10_000),
            nodes: names[..count].iter().map(|name| started(name, 1)).collect(),
            receivers: vec![Receiver::default(); count],
            wire: BTreeMap::new(),
            sent: 0,
            heartbeat_at: Instant::from_millis(10_000),
            cut: BTreeSet::new(),
            loss: 0,
            rng: Rng::new(seed),
        };
        for at in 0..count {
            net.greet(at);
        }
        net
    }

    fn greet(&mut self, from: usize) {
        let hello = self.nodes[from].hello(self.now);
        self.send(from, hello);
    }

    fn send(&mut self, from: usize, frame: Vec<u8>) {
        assert!(frame.len() <= crate::frame::FRAME_MAX);
        for to in 0..self.nodes.len() {
            let is_cut = self.cut.contains(&(from.min(to), from.max(to)));
            if to == from || is_cut || self.rng.below(1_000) < self.loss {
                continue;
            }
            // In order: the delay of a pair is constant.
            let delay = Duration::from_millis(1 + 7 * (from + 2 * to) as u64);
            self.sent += 1;
            self.wire.insert((self.now + delay, self.sent), (from, to, frame.clone()));
        }
    }

    /// Advances time, one flush interval at a time.
    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            self.now = self.now + FLUSH;
            while let Some(entry) = self.wire.first_entry() {
                if entry.key().0 > self.now {
                    break;
                }
                let (at, (_, to, frame)) = (entry.key().0, entry.remove());
                receive(&mut self.nodes[to], &mut self.receivers[to], at, [frame]);
            }
            let beats = self.now.since(self.heartbeat_at) >= HEARTBEAT;
            for at in 0..self.nodes.len() {
                self.step(at, beats);
            }
            if beats {
                self.heartbeat_at = self.heartbeat_at + HEARTBEAT;
            }
        }
    }

    fn step(&mut self, at: usize, beats: bool) {
        let (now, node) = (self.now, &mut self.nodes[at]);
        let mut frames = Vec::new();
        if beats {
            frames.push(node.heartbeat(now));
            let mut updates = Vec::new();
            node.tick(now, &mut updates);
            updates.iter().for_each(|it| self.receivers[at].on(it));
        }
        let node = &mut self.nodes[at];
        let (is_due, before) = (node.is_due(now), frames.len());
        node.flush(now, &mut frames);
        assert_eq!(frames.len() > before, is_due, "is_due says what flush does");
        frames.into_iter().for_each(|it| self.send(at, it));
    }

    /// Starts another incarnation of this router.
    fn restart(&mut self, at: usize) {
        let name = self.nodes[at].name.clone();
        let incarnation = self.nodes[at].incarnation.0 + 1;
        self.nodes[at] = started(&name, incarnation);
        self.receivers[at] = Receiver::default();
        self.greet(at);
    }

    /// Everything that a router has published.
    fn truth(&mut self, of: usize) -> Vec<String> {
        let mut witness = started("witness", 1);
        let frames = self.nodes[of].snapshot(self.now);
        receive(&mut witness, &mut Receiver::default(), self.now, &frames);
        assert!(witness.view.live().all(|it| !it.stream.has_gaps()));
        witness.view.dump().pop().unwrap().2
    }

    /// All routers are live for each other, and each has every row that the others published.
    fn check(&mut self) {
        let count = self.nodes.len();
        for of in 0..count {
            let truth = self.truth(of);
            let (id, incarnation) = (self.nodes[of].id, self.nodes[of].incarnation);
            for at in (0..count).filter(|&at| at != of) {
                let dump = dump(&self.nodes[at]);
                let rows = dump.0.iter().find(|it| it.0 == id).unwrap_or_else(|| panic!("{at} lacks {of}"));
                assert_eq!((rows.1, &rows.2), (incarnation, &truth), "of {of} at {at}");
                assert_eq!(self.receivers[at].promised, dump.1, "sums at {at}");
                assert_eq!(self.receivers[at].routers, (count as u32, count as u32), "at {at}");
                assert!(self.nodes[at].is_synced(), "{at}");
            }
        }
        for session in 0..4 {
            let key = crate::own_rows::row_key(5, session);
            let pins: Vec<_> = self.nodes.iter().map(|it| it.view.pin(key, it.our_pin(key))).collect();
            assert!(pins.windows(2).all(|it| it[0] == it[1]), "session {session}: {pins:?}");
        }
    }

    /// Each router knows all prompts that the others placed.
    fn check_placements(&self, placements: &[BTreeSet<(u64, u64)>]) {
        for (at, receiver) in self.receivers.iter().enumerate() {
            for (of, placements) in placements.iter().enumerate().filter(|it| it.0 != at) {
                let missing: Vec<_> = placements.difference(&receiver.placed).collect();
                assert!(missing.is_empty(), "{at} lacks {} links of {of}", missing.len());
            }
        }
    }
}

/// A cut right at the start loses the first delta of `a`. It also keeps `b` from noticing that before its next hello,
/// which tells `a` that `b` lacks nothing. So `a` does not answer that hello, and `b` must ask as soon as it learns
/// of the gap.
#[test]
fn a_gap_that_appears_after_a_hello_is_repaired_without_waiting_for_the_next_one() {
    let mut net = Net::new(3, 0);
    act_noted(&mut net, &mut vec![BTreeSet::new(); 3], 0, &Op::Pin(0, 100));
    net.cut.extend([(0, 1), (1, 2)]);
    net.run(Duration::from_millis(20));
    net.cut.clear();
    net.run(Duration::from_millis(1_200));
    net.check();
}

/// Applies an event and records the links that the router has placed.
fn act_noted(net: &mut Net, placements: &mut [BTreeSet<(u64, u64)>], at: usize, op: &Op) {
    act(&mut net.nodes[at], op);
    match *op {
        Op::Place(worker, name, length) => {
            let links = conversation(name, length);
            // Less than a segment after a known one may stay unpublished.
            let segments = links.len() / SEGMENT_LINKS * SEGMENT_LINKS;
            let published = if segments == 0 { links.len() } else { segments };
            let links = links.into_iter().map(|it| (worker, it));
            placements[at].extend(links.clone().take(published));
            net.receivers[at].placed.extend(links);
        }
        // Forgotten claims are not published again.
        Op::Forget(worker) => placements[at].retain(|it| it.0 != worker),
        _ => {}
    }
}

#[derive(Clone, Debug)]
enum NetStep {
    Do(usize, Op),
    Wait(u64),
    Cut(usize, usize),
    Heal,
    Restart(usize),
    Lose(usize),
}

/// Plays a script, then ends all cuts and losses, and checks that routers agree two seconds later.
fn healed(script: &[NetStep], seed: u64, greets: bool) -> Net {
    let mut net = Net::new(3, seed);
    let (mut placements, mut has_restarted) = (vec![BTreeSet::new(); 3], false);
    for step in script {
        match step {
            NetStep::Do(at, op) => act_noted(&mut net, &mut placements, *at, op),
            NetStep::Wait(millis) => net.run(Duration::from_millis(*millis)),
            NetStep::Cut(a, b) => drop(net.cut.insert((*a, *b))),
            NetStep::Heal => net.cut.clear(),
            NetStep::Restart(at) => {
                net.restart(*at);
                has_restarted = true;
            }
            NetStep::Lose(of_thousand) => net.loss = *of_thousand,
        }
    }
    net.cut.clear();
    net.loss = 0;
    if greets {
        (0..3).for_each(|at| net.greet(at));
    }
    net.run(Duration::from_secs(2));
    net.check();
    if !has_restarted {
        net.check_placements(&placements);
    }
    net
}

/// Router 2 lacks the beginning of a prompt of router 1. It asks for it, while half of all frames are lost for four seconds.
#[test]
fn a_prompt_is_not_given_up_while_frames_are_lost() {
    use NetStep::{Do, Lose, Wait};
    use Op::{Pin, Place, Promise};
    let script = [
        Do(0, Place(101, 2, 16)),
        Lose(338),
        Wait(4_500),
        Do(0, Promise(100, 0)),
        Do(0, Promise(100, 1)),
        Lose(472),
        Do(1, Place(100, 2, 16)),
        Wait(1_060),
        Do(2, Pin(0, 100)),
        Do(0, Promise(100, 0)),
        Do(0, Promise(100, 0)),
        Do(1, Pin(0, 100)),
        Wait(1_500),
    ];
    healed(&script, 5_795_790_327_767_317_834, false);
}

fn step() -> impl Strategy<Value = NetStep> {
    let at = || 0..3_usize;
    prop_oneof![
        12 => (at(), op()).prop_map(|(at, op)| NetStep::Do(at, op)),
        4 => (1..10_u64).prop_map(|it| NetStep::Wait(20 * it)),
        1 => (1..10_u64).prop_map(|it| NetStep::Wait(500 * it)),
        1 => (at(), at()).prop_map(|(a, b)| NetStep::Cut(a.min(b), a.max(b))),
        1 => prop::strategy::Just(NetStep::Heal),
        1 => at().prop_map(NetStep::Restart),
        1 => (0..500_usize).prop_map(NetStep::Lose),
    ]
}

proptest! {
    #![proptest_config(prop::test_runner::Config::with_cases(96))]

    /// Missing data is requested again, and nothing is counted twice or not at all.
    #[test]
    fn lost_frames_are_repaired(
        ops in prop::collection::vec((0..3_usize, op(), 0..3_u64), 1..60),
        seed in any::<u64>(),
        loss in 0..600_usize,
    ) {
        let mut net = Net::new(3, seed);
        net.run(Duration::from_millis(1_200));
        net.loss = loss;
        let (mut placements, mut spent) = (vec![BTreeSet::new(); 3], vec![BTreeMap::new(); 3]);
        for (at, op, wait) in &ops {
            act_noted(&mut net, &mut placements, *at, op);
            if let Op::Spend(tenant, tokens) = op {
                for other in (0..3).filter(|it| it != at) {
                    *spent[other].entry(*tenant).or_default() += tokens;
                }
            }
            net.run(Duration::from_millis(10 * wait));
        }
        net.loss = 0;
        net.run(Duration::from_secs(2));
        net.check();
        net.check_placements(&placements);
        for (receiver, spent) in net.receivers.iter().zip(&spent) {
            prop_assert_eq!(&receiver.spent, spent);
        }
    }

    /// Two seconds after the last cut, restart or loss, all routers agree.
    #[test]
    fn partitioned_routers_agree_after_healing(
        script in prop::collection::vec(step(), 1..60),
        seed in any::<u64>(),
        greets in any::<bool>(),
    ) {
        let mut net = healed(&script, seed, greets);
        // After that there is nothing more to send.
        let (mut frames, now) = (Vec::new(), net.now + FLUSH);
        net.nodes.iter_mut().for_each(|it| it.flush(now, &mut frames));
        prop_assert!(frames.is_empty());
    }
}

proptest! {
    /// No row survives its router, and sums return to zero.
    #[test]
    fn a_departed_router_leaves_no_rows(
        ops in prop::collection::vec((any::<usize>(), op()), 1..60),
        ways in prop::collection::vec(0..3_u8, 2),
    ) {
        let mut frames = published(&ops);
        let (mut node, mut receiver) = (started("c", 1), Receiver::default());
        receive(&mut node, &mut receiver, Instant::ZERO, &frames);
        for (name, round_trip) in ["a", "b"].into_iter().zip(ways) {
            let farewell = match round_trip {
                0 => started(name, 9).leave(),
                1 => started(name, 9).heartbeat(Instant::ZERO),
                // Falls silent.
                _ => continue,
            };
            receive(&mut node, &mut receiver, Instant::ZERO, [farewell]);
        }
        // Frames of earlier incarnations are stale.
        frames.reverse();
        receive(&mut node, &mut receiver, Instant::ZERO, &frames);
        let mut updates = Vec::new();
        node.tick(Instant::ZERO + SILENCE_MAX, &mut updates);
        updates.iter().for_each(|it| receiver.on(it));
        prop_assert_eq!(node.view.rows(), 0);
        prop_assert_eq!(&receiver.promised, &BTreeMap::new());
        prop_assert_eq!(receiver.routers.0.max(1), 1);
    }

    /// Well-formed nonsense, and frames with a changed byte, break nothing.
    #[test]
    fn malformed_and_contradictory_frames_break_nothing(
        heads in prop::collection::vec((head(), 0..3_u64, prop::collection::vec(owned(), 0..20)), 1..20),
        ops in prop::collection::vec((any::<usize>(), op()), 1..20),
        changes in prop::collection::vec(any::<(usize, usize, u8)>(), 0..20),
    ) {
        let mut frames = published(&ops);
        // A router must send more than one frame for them to contradict each other.
        frames.extend(heads.iter().map(|(head, router, owned)| {
            delta(&Head { router: RouterId(*router), incarnation: Incarnation(1), ..*head }, owned)
        }));
        for (which, at, byte) in changes {
            let frame = which % frames.len();
            let at = at % frames[frame].len();
            frames[frame][at] = byte;
        }
        let (mut node, mut updates) = (started("c", 1), Vec::new());
        let mut now = Instant::ZERO;
        for frame in &frames {
            now = now + HEARTBEAT;
            let _ = node.receive(now, frame, &mut updates);
            node.tick(now, &mut updates);
            let mut said = Vec::new();
            node.flush(now, &mut said);
            said.push(node.heartbeat(now));
            said.extend(node.snapshot(now));
            let mut other = started("d", 1);
            for frame in said {
                prop_assert!(other.receive(now, &frame, &mut Vec::new()).is_ok());
            }
        }
        let promised: Vec<_> = updates.iter().filter(|it| matches!(it, PeerUpdate::Promised { .. })).collect();
        prop_assert!(promised.windows(2).all(|it| it[0] != it[1]));
        node.tick(now + SILENCE_MAX, &mut updates);
        prop_assert_eq!(node.view.rows(), 0);
    }
}
