//! The laws of hearing: whatever is lost, late, doubled or cut off, those who can hear each other end with the same view.
//!
//! Nodes run in virtual time over a wire that a script cuts, delays and heals. What they hold is compared by a dump in an
//! order of its own: the rows of every router that is heard, and for each worker the links it is believed to hold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::frame::tests::{delta, head, made};
use crate::frame::{Head, PAGE};
use crate::node::{BEAT, FLUSH, Node, Settings};
use crate::row::{Chain, Facts, Incarnation, Load, PeerUpdate, RouterId, Spent, Unit, Verdict};
use maitre_base::{Instant, Rng, hash};
use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

const SILENCE_MAX: Duration = Duration::from_secs(3);

fn born(name: &str, incarnation: u64) -> Node {
    Node::new(Settings { name: name.into(), incarnation: Incarnation(incarnation), silence_max: SILENCE_MAX })
}

/// What can happen at a router, in small numbers so that things meet.
#[derive(Clone, Debug)]
enum Op {
    Promise(u64, u32),
    Judge(u64, u8),
    Forget(u64),
    Pin(u64, u64),
    Spend(u64, u64),
    /// A prompt of this conversation with so many links.
    Seat(u64, u64, usize),
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
            .prop_map(|(worker, conversation, length)| Op::Seat(worker, conversation, length)),
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
                Load { requests, decode_tokens: 9 * u64::from(requests), ..Load::default() },
            );
        }
        Op::Judge(worker, verdict) => {
            let verdict = [Verdict::Fit, Verdict::Doubted, Verdict::Out][usize::from(verdict)];
            node.judge(worker, Facts { verdict, rates: None });
        }
        Op::Forget(worker) => node.forget(worker),
        Op::Pin(session, worker) => node.pin(5, session, worker),
        Op::Spend(tenant, tokens) => node.spend(5, tenant, Spent { requests: 1, tokens }),
        Op::Seat(worker, name, length) => {
            let links = conversation(name, length);
            node.seat(worker, Chain { unit: Unit::Words, block: 16, units: 0, links: &links });
        }
    }
}

type Dump = (Vec<(RouterId, Incarnation, Vec<String>)>, BTreeMap<u64, Load>);

/// What whoever decides has made of the news.
#[derive(Clone, Debug, Default)]
struct Brain {
    promised: BTreeMap<u64, Load>,
    pinned: BTreeMap<u64, u64>,
    spent: BTreeMap<u64, u64>,
    /// Worker and link.
    seated: BTreeSet<(u64, u64)>,
    routers: (u32, u32),
}

impl Brain {
    fn on(&mut self, news: &PeerUpdate) {
        match news {
            PeerUpdate::Promised { worker, load } if *load == Load::default() => {
                assert!(self.promised.remove(worker).is_some(), "nothing was told as news");
            }
            PeerUpdate::Promised { worker, load } => {
                assert_ne!(self.promised.insert(*worker, *load), Some(*load), "told twice");
            }
            PeerUpdate::Judged { .. } => {}
            PeerUpdate::Pinned { session, worker, .. } => {
                self.pinned.insert(*session, *worker);
            }
            PeerUpdate::Spent { tenant, more, .. } => *self.spent.entry(*tenant).or_default() += more.tokens,
            PeerUpdate::Seated(seated) => {
                self.seated.extend(seated.links.iter().map(|&link| (seated.worker, link)));
            }
            PeerUpdate::Routers { heard, known } => self.routers = (*heard, *known),
        }
    }
}

/// Hears frames in this order, at one moment.
fn hear(
    node: &mut Node,
    brain: &mut Brain,
    now: Instant,
    frames: impl IntoIterator<Item = impl AsRef<[u8]>>,
) {
    let mut news = Vec::new();
    for frame in frames {
        node.hear(now, frame.as_ref(), &mut news).unwrap();
    }
    news.iter().for_each(|it| brain.on(it));
}

fn dump(node: &Node) -> Dump {
    let rows = node.view.dump();
    let mut sums: BTreeMap<u64, Load> = BTreeMap::new();
    for router in node.view.live() {
        for worker in router.rows.loaded() {
            let load = router.rows.load(worker);
            let sum = sums.entry(worker).or_default();
            sum.requests += load.requests;
            sum.decode_tokens += load.decode_tokens;
        }
    }
    sums.retain(|_, it| *it != Load::default());
    (rows, sums)
}

/// What several routers told, each flush of each as its frames.
fn told(ops: &[(usize, Op)]) -> Vec<Vec<u8>> {
    let mut nodes = [born("a", 1), born("b", 1), born("b", 2)];
    let mut frames = Vec::new();
    for (at, op) in ops {
        let node = &mut nodes[at % 3];
        act(node, op);
        node.flush(Instant::ZERO, &mut frames);
    }
    frames
}

proptest! {
    /// Order and repetition make no difference: not to rows, not to sums, not to what is believed of caches.
    #[test]
    fn any_order_gives_the_same_view(
        ops in prop::collection::vec((any::<usize>(), op()), 1..60),
        seed in any::<u64>(),
        leaves in any::<bool>(),
    ) {
        let mut frames = told(&ops);
        if leaves {
            frames.push(born("a", 1).bye());
        }
        let (mut plain, mut heard) = (born("c", 1), Brain::default());
        hear(&mut plain, &mut heard, Instant::ZERO, &frames);

        let mut rng = Rng::new(seed);
        let doubled: Vec<Vec<u8>> = (0..frames.len()).map(|_| frames[rng.below(frames.len())].clone()).collect();
        let mut shuffled = [frames, doubled].concat();
        for at in 1..shuffled.len() {
            shuffled.swap(at, rng.below(at + 1));
        }
        let (mut other, mut brain) = (born("c", 1), Brain::default());
        hear(&mut other, &mut brain, Instant::ZERO, &shuffled);
        prop_assert_eq!(dump(&other), dump(&plain));
        prop_assert_eq!(&brain.promised, &dump(&plain).1);
        prop_assert_eq!(&heard.promised, &dump(&plain).1);
        for session in 0..4 {
            let key = crate::own::key(5, session);
            prop_assert_eq!(other.view.pin(key, None), plain.view.pin(key, None));
        }
        // What a router told in a former life is heard or not, as it comes.
        if !leaves && ops.iter().all(|it| it.0 % 3 != 1) {
            prop_assert_eq!(&brain.seated, &heard.seated);
        }
    }
}

/// Routers and the wire between them, in virtual time.
struct Net {
    now: Instant,
    nodes: Vec<Node>,
    brains: Vec<Brain>,
    /// Frames under way, by when they arrive: from, to, frame.
    wire: BTreeMap<(Instant, u64), (usize, usize, Vec<u8>)>,
    sent: u64,
    /// Pairs that do not hear each other.
    cut: BTreeSet<(usize, usize)>,
    /// Of a thousand frames, so many are lost.
    loss: usize,
    rng: Rng,
}

impl Net {
    fn new(count: usize, seed: u64) -> Net {
        let names = ["a", "b", "c", "d", "e"];
        let mut net = Net {
            now: Instant::from_millis(10_000),
            nodes: names[..count].iter().map(|name| born(name, 1)).collect(),
            brains: vec![Brain::default(); count],
            wire: BTreeMap::new(),
            sent: 0,
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
            // In order: the delay of a pair is always the same.
            let delay = Duration::from_millis(1 + 7 * (from + 2 * to) as u64);
            self.sent += 1;
            self.wire.insert((self.now + delay, self.sent), (from, to, frame.clone()));
        }
    }

    /// Lets time pass, a flush at a time.
    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            self.now = self.now + FLUSH;
            while let Some(entry) = self.wire.first_entry() {
                if entry.key().0 > self.now {
                    break;
                }
                let (at, (_, to, frame)) = (entry.key().0, entry.remove());
                hear(&mut self.nodes[to], &mut self.brains[to], at, [frame]);
            }
            for at in 0..self.nodes.len() {
                self.step(at);
            }
        }
    }

    fn step(&mut self, at: usize) {
        let (now, node) = (self.now, &mut self.nodes[at]);
        let mut frames = Vec::new();
        if now.as_nanos().is_multiple_of(BEAT.as_nanos() as u64) {
            frames.push(node.beat(now));
            let mut news = Vec::new();
            node.tick(now, &mut news);
            news.iter().for_each(|it| self.brains[at].on(it));
        }
        let node = &mut self.nodes[at];
        let (is_due, before) = (node.is_due(now), frames.len());
        node.flush(now, &mut frames);
        assert_eq!(frames.len() > before, is_due, "is_due says what flush does");
        frames.into_iter().for_each(|it| self.send(at, it));
    }

    /// Another life of this router begins.
    fn restart(&mut self, at: usize) {
        let name = self.nodes[at].name.clone();
        let incarnation = self.nodes[at].incarnation.0 + 1;
        self.nodes[at] = born(&name, incarnation);
        self.brains[at] = Brain::default();
        self.greet(at);
    }

    /// What a router has told, in all.
    fn truth(&mut self, of: usize) -> Vec<String> {
        let mut witness = born("witness", 1);
        let frames = self.nodes[of].snapshot(self.now);
        hear(&mut witness, &mut Brain::default(), self.now, &frames);
        assert!(witness.view.live().all(|it| !it.stream.is_torn()));
        witness.view.dump().pop().unwrap().2
    }

    /// All hear each other, and each has of each other what that one has told.
    fn check(&mut self) {
        let count = self.nodes.len();
        for of in 0..count {
            let truth = self.truth(of);
            let (id, incarnation) = (self.nodes[of].id, self.nodes[of].incarnation);
            for at in (0..count).filter(|&at| at != of) {
                let dump = dump(&self.nodes[at]);
                let rows = dump.0.iter().find(|it| it.0 == id).unwrap_or_else(|| panic!("{at} lacks {of}"));
                assert_eq!((rows.1, &rows.2), (incarnation, &truth), "of {of} at {at}");
                assert_eq!(self.brains[at].promised, dump.1, "sums at {at}");
                assert_eq!(self.brains[at].routers, (count as u32, count as u32), "at {at}");
                assert!(self.nodes[at].is_warm(), "{at}");
            }
        }
        for session in 0..4 {
            let key = crate::own::key(5, session);
            let pins: Vec<_> = self.nodes.iter().map(|it| it.view.pin(key, it.our_pin(key))).collect();
            assert!(pins.windows(2).all(|it| it[0] == it[1]), "session {session}: {pins:?}");
        }
    }

    /// Each hears of all prompts that others seated.
    fn check_seats(&self, seats: &[BTreeSet<(u64, u64)>]) {
        for (at, brain) in self.brains.iter().enumerate() {
            for (of, seats) in seats.iter().enumerate().filter(|it| it.0 != at) {
                let missing: Vec<_> = seats.difference(&brain.seated).collect();
                assert!(missing.is_empty(), "{at} lacks {} links of {of}", missing.len());
            }
        }
    }
}

/// Does an operation, and notes what the router believes to have seated.
fn act_noted(net: &mut Net, seats: &mut [BTreeSet<(u64, u64)>], at: usize, op: &Op) {
    act(&mut net.nodes[at], op);
    match *op {
        Op::Seat(worker, name, length) => {
            let links = conversation(name, length);
            // Less than a page after others may not be told.
            let pages = links.len() / PAGE * PAGE;
            let told = if pages == 0 { links.len() } else { pages };
            let links = links.into_iter().map(|it| (worker, it));
            seats[at].extend(links.clone().take(told));
            net.brains[at].seated.extend(links);
        }
        // What it no longer believes it does not repeat.
        Op::Forget(worker) => seats[at].retain(|it| it.0 != worker),
        _ => {}
    }
}

#[derive(Clone, Debug)]
enum Step {
    Do(usize, Op),
    Wait(u64),
    Cut(usize, usize),
    Heal,
    Restart(usize),
    Lose(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0..3_usize;
    prop_oneof![
        12 => (at(), op()).prop_map(|(at, op)| Step::Do(at, op)),
        4 => (1..10_u64).prop_map(|it| Step::Wait(20 * it)),
        1 => (1..10_u64).prop_map(|it| Step::Wait(500 * it)),
        1 => (at(), at()).prop_map(|(a, b)| Step::Cut(a.min(b), a.max(b))),
        1 => prop::strategy::Just(Step::Heal),
        1 => at().prop_map(Step::Restart),
        1 => (0..500_usize).prop_map(Step::Lose),
    ]
}

proptest! {
    #![proptest_config(prop::test_runner::Config::with_cases(96))]

    /// Whatever is lost is asked for again, and nothing is counted twice or not at all.
    #[test]
    fn loss_is_repaired(
        ops in prop::collection::vec((0..3_usize, op(), 0..3_u64), 1..60),
        seed in any::<u64>(),
        loss in 0..600_usize,
    ) {
        let mut net = Net::new(3, seed);
        net.run(Duration::from_millis(1_200));
        net.loss = loss;
        let (mut seats, mut spent) = (vec![BTreeSet::new(); 3], vec![BTreeMap::new(); 3]);
        for (at, op, wait) in &ops {
            act_noted(&mut net, &mut seats, *at, op);
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
        net.check_seats(&seats);
        for (brain, spent) in net.brains.iter().zip(&spent) {
            prop_assert_eq!(&brain.spent, spent);
        }
    }

    /// However routers were cut off, restarted or not heard: two seconds after they can hear each other they agree.
    #[test]
    fn what_was_cut_off_agrees_after_healing(
        script in prop::collection::vec(step(), 1..60),
        seed in any::<u64>(),
        greets in any::<bool>(),
    ) {
        let mut net = Net::new(3, seed);
        let (mut seats, mut has_restarted) = (vec![BTreeSet::new(); 3], false);
        for step in &script {
            match step {
                Step::Do(at, op) => act_noted(&mut net, &mut seats, *at, op),
                Step::Wait(millis) => net.run(Duration::from_millis(*millis)),
                Step::Cut(a, b) => drop(net.cut.insert((*a, *b))),
                Step::Heal => net.cut.clear(),
                Step::Restart(at) => {
                    net.restart(*at);
                    has_restarted = true;
                }
                Step::Lose(of_thousand) => net.loss = *of_thousand,
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
            net.check_seats(&seats);
        }
        // And then there is nothing more to say.
        let (mut frames, now) = (Vec::new(), net.now + FLUSH);
        net.nodes.iter_mut().for_each(|it| it.flush(now, &mut frames));
        prop_assert!(frames.is_empty());
    }
}

proptest! {
    /// No row survives its router, and sums return to nothing.
    #[test]
    fn nothing_is_left_of_a_router_that_is_gone(
        ops in prop::collection::vec((any::<usize>(), op()), 1..60),
        ways in prop::collection::vec(0..3_u8, 2),
    ) {
        let mut frames = told(&ops);
        let (mut node, mut brain) = (born("c", 1), Brain::default());
        hear(&mut node, &mut brain, Instant::ZERO, &frames);
        for (name, way) in ["a", "b"].into_iter().zip(ways) {
            let farewell = match way {
                0 => born(name, 9).bye(),
                1 => born(name, 9).beat(Instant::ZERO),
                // Silence.
                _ => continue,
            };
            hear(&mut node, &mut brain, Instant::ZERO, [farewell]);
        }
        // What still comes of former lives is too late.
        frames.reverse();
        hear(&mut node, &mut brain, Instant::ZERO, &frames);
        let mut news = Vec::new();
        node.tick(Instant::ZERO + SILENCE_MAX, &mut news);
        news.iter().for_each(|it| brain.on(it));
        prop_assert_eq!(node.view.rows(), 0);
        prop_assert_eq!(&brain.promised, &BTreeMap::new());
        prop_assert_eq!(brain.routers.0.max(1), 1);
    }

    /// Frames that are well formed and make no sense, and frames of others with a byte changed, break nothing.
    #[test]
    fn whatever_is_said_breaks_nothing(
        heads in prop::collection::vec((head(), 0..3_u64, prop::collection::vec(made(), 0..20)), 1..20),
        ops in prop::collection::vec((any::<usize>(), op()), 1..20),
        changes in prop::collection::vec(any::<(usize, usize, u8)>(), 0..20),
    ) {
        let mut frames = told(&ops);
        // A router has to say more than one thing for them to contradict each other.
        frames.extend(heads.iter().map(|(head, router, made)| {
            delta(&Head { router: RouterId(*router), incarnation: Incarnation(1), ..*head }, made)
        }));
        for (which, at, byte) in changes {
            let frame = which % frames.len();
            let at = at % frames[frame].len();
            frames[frame][at] = byte;
        }
        let (mut node, mut news) = (born("c", 1), Vec::new());
        let mut now = Instant::ZERO;
        for frame in &frames {
            now = now + BEAT;
            let _ = node.hear(now, frame, &mut news);
            node.tick(now, &mut news);
            let mut said = Vec::new();
            node.flush(now, &mut said);
            said.push(node.beat(now));
            said.extend(node.snapshot(now));
            let mut other = born("d", 1);
            for frame in said {
                prop_assert!(other.hear(now, &frame, &mut Vec::new()).is_ok());
            }
        }
        let promised: Vec<_> = news.iter().filter(|it| matches!(it, PeerUpdate::Promised { .. })).collect();
        prop_assert!(promised.windows(2).all(|it| it[0] != it[1]));
        node.tick(now + SILENCE_MAX, &mut news);
        prop_assert_eq!(node.view.rows(), 0);
    }
}
