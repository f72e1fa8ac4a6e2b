//! Properties that hold for any sequence of operations.

use proptest::prelude::*;

use super::oracle::Oracle;
use super::*;

const CLASSES: u8 = 3;
const REQUESTS_MAX: u32 = 6;
const TOKENS_MAX: u64 = 60;
const WEIGHTS: [f64; 4] = [1.0, 3.0, 0.5, 1.0];

#[derive(Clone, Debug)]
enum Operation {
    Join {
        class: u8,
        tenant: usize,
        tokens: u64,
        cost: f64,
        /// Seconds ago, as after a recall.
        since: u64,
        /// Seconds from now.
        latest: Option<u64>,
    },
    /// Dequeues the request at this position of those shown, if there are that many.
    Go {
        place: usize,
        open: u8,
    },
    Leave(usize),
    Correct {
        tenant: usize,
        difference: f64,
    },
    Wait {
        seconds: u64,
    },
    Expire,
}

fn any_step() -> impl Strategy<Value = Operation> {
    let join = (0..CLASSES, 0..WEIGHTS.len(), 0u64..30, 0.0f64..50.0, 0u64..3, prop::option::of(0u64..40));
    let join = join.prop_map(|(class, tenant, tokens, cost, since, latest)| {
        // A few costs only, so that there are ties.
        let cost = (cost / 10.0).floor() * 10.0;
        Operation::Join { class, tenant, tokens, cost, since, latest }
    });
    prop_oneof![
        8 => join,
        5 => (0..LOOK, 1..1u8 << CLASSES).prop_map(|(place, open)| Operation::Go { place: place / 2, open }),
        5 => Just(Operation::Go { place: 0, open: u8::MAX }),
        1 => (0usize..20).prop_map(Operation::Leave),
        1 => (0..WEIGHTS.len(), -60.0f64..60.0)
            .prop_map(|(tenant, difference)| Operation::Correct { tenant, difference }),
        2 => (0u64..6).prop_map(|seconds| Operation::Wait { seconds }),
        1 => Just(Operation::Expire),
    ]
}

fn any_steps() -> impl Strategy<Value = Vec<Operation>> {
    prop::collection::vec(any_step(), 1..120)
}

fn mask(open: u8) -> ClassMask {
    let classes = (0..CLASSES).filter(|it| open & 1 << it != 0);
    classes.fold(ClassMask::NONE, |mask, it| mask.with(ClassId(it)))
}

/// The queue and the plain one, compared.
struct Pair {
    queue: WaitQueue,
    oracle: Oracle,
    now: Instant,
    count: u64,
}

impl Pair {
    fn new() -> Pair {
        let classes = classes(usize::from(CLASSES), REQUESTS_MAX, TOKENS_MAX);
        Pair {
            queue: WaitQueue::new(&classes, AGING),
            oracle: Oracle::new(&classes, AGING),
            now: at(100),
            count: 0,
        }
    }

    fn step(&mut self, step: &Operation) {
        match *step {
            Operation::Join { class, tenant, tokens, cost, since, latest } => {
                self.count += 1;
                let since = Instant::from_nanos(self.now.as_nanos() - at(since).as_nanos());
                self.enqueue(QueueEntry {
                    request: RequestId(self.count),
                    class: ClassId(class),
                    tenant: TenantId(tenant as u64),
                    weight: WEIGHTS[tenant],
                    tokens,
                    cost,
                    since,
                    latest: latest.map(|it| self.now + SECOND * it as u32),
                });
            }
            Operation::Go { place, open } => self.dequeue(place, mask(open)),
            Operation::Leave(place) => {
                if let Some(&(entry, _)) = self.oracle.entries.get(place) {
                    assert!(self.oracle.cancel(entry.request));
                    assert_eq!(self.queue.cancel(entry.request), Some(entry));
                    assert_eq!(self.queue.cancel(entry.request), None);
                }
            }
            Operation::Correct { tenant, difference } => {
                let work = Work::exactly(difference.abs()).over(WEIGHTS[tenant]);
                match difference < 0.0 {
                    true => self.oracle.give_back(TenantId(tenant as u64), work),
                    false => self.oracle.charge(TenantId(tenant as u64), work),
                }
                self.queue.correct(TenantId(tenant as u64), WEIGHTS[tenant], difference);
            }
            Operation::Wait { seconds } => self.now = self.now + SECOND * seconds as u32,
            Operation::Expire => self.expire(),
        }
    }

    fn enqueue(&mut self, entry: QueueEntry) {
        let before = self.queue.len();
        let preview = self.queue.preview(entry);
        let view = preview.as_ref().map_or(self.queue.view(), |it| self.queue.view_with(it));
        let expected = self.shown(view);
        let actual = self.queue.enqueue(entry);
        assert_eq!(preview.map(|it| it.leaving), actual, "the preview of {entry:?}");
        assert_eq!(self.shown(self.queue.view()), expected, "the view with {entry:?}");
        assert_eq!(actual.map(|it| it.map(|it| it.request)).map_err(|_| ()), self.oracle.enqueue(entry));
        match actual {
            Ok(None) => assert_eq!(self.queue.len(), before + 1),
            Ok(Some(_)) | Err(_) => assert_eq!(self.queue.len(), before),
        }
        assert_eq!(self.queue.contains(entry.request), actual.is_ok());
    }

    /// What a view shows, for every set of classes and for requests that fit and that do not.
    fn shown(&self, view: QueueView<'_>) -> (Vec<Vec<RequestId>>, Vec<Waiting>, Vec<f64>) {
        let next = (0..1u8 << CLASSES).flat_map(|open| {
            [1, 2].map(|part| {
                let mut found = Vec::new();
                view.next_matching(self.now, mask(open), |it| it.0.is_multiple_of(part), &mut found);
                found
            })
        });
        let classes = (0..CLASSES).map(ClassId);
        let ahead = classes.clone().map(|it| view.cost_ahead(it)).collect();
        (next.collect(), classes.map(|it| view.waiting(it)).collect(), ahead)
    }

    fn dequeue(&mut self, place: usize, open: ClassMask) {
        let mut shown = Vec::new();
        self.queue.next(self.now, open, &mut shown);
        if let Some(&request) = shown.get(place) {
            self.oracle.dequeue(self.now, request, &shown[..place]);
            let gone = self.queue.dequeue(self.now, request, &shown[..place]);
            assert_eq!(gone.map(|it| it.request), Some(request));
            assert_eq!(self.queue.dequeue(self.now, request, &[]), None);
        }
    }

    fn expire(&mut self) {
        let mut late = Vec::new();
        self.queue.expire(self.now, usize::MAX, &mut late);
        assert_eq!(late.iter().map(|it| it.request).collect::<Vec<_>>(), self.oracle.expire(self.now));
    }

    fn assert_same(&self) {
        let mut shown = Vec::new();
        for open in 0..1u8 << CLASSES {
            self.queue.next(self.now, mask(open), &mut shown);
            assert_eq!(shown, self.oracle.next(self.now, mask(open)), "open {open:b}");
        }
        for class in (0..CLASSES).map(ClassId) {
            let mut expected = Waiting::default();
            for entry in self.oracle.of_class(class) {
                expected.requests += 1;
                expected.tokens += entry.tokens;
                expected.cost += entry.cost.max(1.0);
            }
            assert_eq!(self.queue.waiting(class), expected);
        }
        let entries = self.oracle.entries.iter();
        assert_eq!(self.queue.earliest_deadline(), entries.filter_map(|it| it.0.latest).min());
        assert_eq!(self.queue.len(), self.oracle.entries.len());
    }
}

proptest! {
    #[test]
    fn the_queue_matches_the_plain_one(steps in any_steps()) {
        let mut pair = Pair::new();
        for step in &steps {
            pair.step(step);
            pair.assert_same();
        }
    }

    #[test]
    fn the_limits_are_never_exceeded(steps in any_steps()) {
        let mut pair = Pair::new();
        for step in &steps {
            pair.step(step);
            for class in (0..CLASSES).map(ClassId) {
                let waiting = pair.queue.waiting(class);
                prop_assert!(waiting.requests <= REQUESTS_MAX && waiting.tokens <= TOKENS_MAX, "{waiting:?}");
            }
        }
    }

    #[test]
    fn a_request_may_go_whenever_one_waits(steps in any_steps()) {
        let mut pair = Pair::new();
        let mut shown = Vec::new();
        for step in &steps {
            pair.step(step);
            for open in 1..1u8 << CLASSES {
                pair.queue.next(pair.now, mask(open), &mut shown);
                let waits = pair.oracle.entries.iter().any(|it| mask(open).has(it.0.class));
                prop_assert_eq!(!shown.is_empty(), waits);
            }
        }
    }

    #[test]
    fn no_request_goes_after_its_latest_moment_or_is_shown_after_it_left(steps in any_steps()) {
        let mut pair = Pair::new();
        let mut shown = Vec::new();
        for step in &steps {
            pair.step(step);
            pair.expire();
            pair.queue.next(pair.now, ClassMask::ALL, &mut shown);
            for request in &shown {
                let entry = pair.oracle.entries.iter().find(|it| it.0.request == *request).map(|it| it.0);
                prop_assert!(entry.is_some_and(|it| it.latest.is_none_or(|it| it >= pair.now)), "{entry:?}");
            }
        }
    }

    #[test]
    fn an_empty_queue_keeps_no_state(steps in any_steps(), goes: bool) {
        let mut pair = Pair::new();
        for step in &steps {
            pair.step(step);
        }
        while let Some(&(entry, _)) = pair.oracle.entries.first() {
            match goes {
                true => pair.dequeue(0, ClassMask::ALL),
                false => pair.step(&Operation::Leave(0)),
            }
            prop_assert!(goes || !pair.queue.contains(entry.request));
        }
        assert_empty(&pair.queue);
    }

    #[test]
    fn without_aged_requests_precedence_is_strict(steps in any_steps()) {
        let mut pair = Pair::new();
        let mut shown = Vec::new();
        for step in steps.iter().filter(|it| !matches!(it, Operation::Wait { .. })) {
            pair.step(step);
            pair.queue.next(pair.now, ClassMask::ALL, &mut shown);
            let class = |it: &RequestId| pair.oracle.entries.iter().find(|e| e.0.request == *it).unwrap().0.class;
            prop_assert!(shown.iter().map(class).is_sorted());
        }
    }

    #[test]
    fn no_tenant_has_more_than_its_share_while_others_wait(
        costs in prop::array::uniform2(prop::collection::vec(1.0f64..5_000.0, 1..20)),
        weight in prop::sample::select(vec![1.0, 3.0, 10.0]),
        goes in 100usize..2_000,
    ) {
        let got = shares(&costs, weight, goes);
        // Start-time fair queueing: never further apart than one request of each, for the weight.
        let most = |it: &Vec<f64>| it.iter().copied().fold(0.0, f64::max);
        let apart = (got[0] - got[1] / weight).abs();
        prop_assert!(apart <= most(&costs[0]) + most(&costs[1]) / weight + 1.0, "{got:?}");
    }

    #[test]
    fn under_constant_load_aged_requests_get_a_tenth_and_all_of_them_go(
        above in prop::collection::vec(1.0f64..1_000.0, 1..10),
        below in prop::collection::vec(0.0f64..1_000.0, 1..30),
    ) {
        let mut queue = queue();
        enqueue(&mut queue, (0..).zip(&below).map(|(it, &cost)| QueueEntry { cost, ..in_class(2, it) }));
        let waiting: f64 = below.iter().map(|it| it.max(1.0)).sum();
        let (mut got_above, mut got_below, mut number) = (0.0, 0.0, 1_000);
        for cost in above.iter().cycle() {
            while queue.waiting(ClassId(0)).requests < 2 {
                number += 1;
                enqueue(&mut queue, [QueueEntry { cost: *cost, tenant: TenantId(number % 2), ..in_class(0, number) }]);
            }
            let gone = step(&mut queue, at(60)).unwrap();
            match gone.class.0 {
                0 => got_above += gone.cost,
                _ => got_below += gone.cost.max(1.0),
            }
            prop_assert!(got_below <= got_above / 10.0 + 1e-3, "{got_below} of {got_above}");
            if queue.waiting(ClassId(2)).requests == 0 {
                break;
            }
            // What each class earns beyond its own cost is lost: less than one request of a higher class earns.
            let lost = below.len() as f64 * 100.0;
            prop_assert!(got_above <= 10.0 * waiting + 10.0 * lost + 1e4, "still waiting after {got_above}");
        }
    }
}

/// A worker that takes one request at a time, and tenants that ask for more than it can do. Times are in tokens of
/// work.
struct Overload<'a> {
    queue: WaitQueue,
    costs: &'a [f64],
    /// When the worker has finished what it took.
    free: f64,
    /// By request: when it came, and how long it would wait if only the requests then queued went before it.
    came: Vec<(f64, f64)>,
}

/// Asks again as soon as it has its answer.
const AGENT: TenantId = TenantId(0);
/// Has two requests from the beginning.
const PAIR: TenantId = TenantId(1);

impl Overload<'_> {
    fn arrive(&mut self, tenant: TenantId, time: f64) {
        let request = self.came.len() as u64;
        let cost = self.costs[request as usize % self.costs.len()];
        self.came.push((time, self.free - time + self.queue.waiting(ClassId(1)).cost));
        let since = Instant::from_nanos((time * 1e3) as u64);
        enqueue(&mut self.queue, [QueueEntry { tenant, cost, since, ..entry(request) }]);
    }

    /// New tenants of one request each come all the time, and ask for 1.4 times what the worker can do. Returns the
    /// requests in the order in which they went, and how long each waited.
    fn run(&mut self, regulars: &[TenantId], goes: u64) -> Vec<(QueueEntry, f64)> {
        let gap = self.costs.iter().sum::<f64>() / self.costs.len() as f64 / 1.4;
        regulars.iter().for_each(|&it| self.arrive(it, 0.0));
        let mut fresh = 0u32;
        let go = |_| {
            if self.queue.is_empty() {
                self.free = self.free.max(f64::from(fresh) * gap);
            }
            while f64::from(fresh) * gap <= self.free {
                let tenant = TenantId(maitre_base::hash::mix(u64::from(fresh) + 2));
                self.arrive(tenant, f64::from(fresh) * gap);
                fresh += 1;
            }
            let gone = step(&mut self.queue, Instant::ZERO).unwrap();
            let waited = self.free - self.came[gone.request.0 as usize].0;
            self.free += gone.cost;
            if gone.tenant == AGENT {
                self.arrive(AGENT, self.free);
            }
            (gone, waited)
        };
        (0..goes).map(go).collect()
    }
}

proptest! {
    /// What one API key for each user gives. If names decided, every newcomer would pass the same tenants.
    #[test]
    fn fresh_tenants_go_first_come_first_served(costs in prop::collection::vec(1.0f64..5_000.0, 1..20)) {
        let mut overload = overload(&costs);
        let gone = overload.run(&[], 500);
        prop_assert!(gone.iter().map(|it| it.0.request).is_sorted());
        let most = costs.iter().copied().fold(0.0, f64::max);
        for (entry, waited) in gone {
            let ahead = overload.came[entry.request.0 as usize].1;
            prop_assert!(waited <= ahead + most, "{entry:?} waited {waited} behind {ahead}");
        }
    }
}

/// A tenant that has had an answer waits for the next one about as long as any other, not until no new tenant comes.
#[test]
fn fresh_tenants_do_not_keep_those_back_who_were_there() {
    for costs in [vec![100.0], vec![100.0, 300.0], vec![100.0, 100.0, 200.0], vec![150.0, 100.0, 50.0]] {
        let most = costs.iter().copied().fold(0.0, f64::max);
        // Shares are by work: a tenant that had an expensive request waits proportionally longer for the next.
        let dear = most * costs.len() as f64 / costs.iter().sum::<f64>();
        let mut overload = overload(&costs);
        let gone = overload.run(&[PAIR, PAIR, AGENT], 500);
        let requests = |tenant| gone.iter().filter(move |it| it.0.tenant == tenant);
        assert_eq!(requests(PAIR).count(), 2, "{costs:?}");
        // In order of arrival alone about ten: the queue grows by two fifths from each request to the next.
        assert!(requests(AGENT).count() >= 6, "{costs:?}: {}", requests(AGENT).count());
        for (entry, waited) in requests(AGENT).chain(requests(PAIR)) {
            let ahead = overload.came[entry.request.0 as usize].1;
            assert!(
                *waited <= 2.0 * dear * ahead + 8.0 * most,
                "{costs:?}: {entry:?} waited {waited} behind {ahead}"
            );
        }
    }
}

fn overload(costs: &[f64]) -> Overload<'_> {
    let queue = WaitQueue::new(&classes(3, u32::MAX, u64::MAX), AGING);
    Overload { queue, costs, free: 0.0, came: Vec::new() }
}

/// What two tenants that always wait have received after so many dequeues: one of weight 1, one of the given
/// weight.
fn shares(costs: &[Vec<f64>; 2], weight: f64, goes: usize) -> [f64; 2] {
    let mut queue = queue();
    let mut costs = [costs[0].iter().cycle(), costs[1].iter().cycle()];
    let mut number = 0;
    let mut arrive = |tenant: usize| {
        number += 1;
        let cost = *costs[tenant].next().unwrap();
        QueueEntry { cost, weight: [1.0, weight][tenant], ..of(tenant as u64, number) }
    };
    enqueue(&mut queue, [arrive(0), arrive(1), arrive(0), arrive(1)]);
    let mut got = [0.0; 2];
    for _ in 0..goes {
        let gone = step(&mut queue, Instant::ZERO).unwrap();
        let tenant = gone.tenant.0 as usize;
        got[tenant] += gone.cost;
        enqueue(&mut queue, [arrive(tenant)]);
    }
    got
}

#[test]
fn shares_converge_to_the_weights() {
    for (costs, weight) in [
        ([vec![100.0], vec![100.0]], 1.0),
        ([vec![1_000.0, 10.0], vec![100.0]], 1.0),
        ([vec![100.0], vec![7.0, 300.0, 2_000.0]], 3.0),
        ([vec![3_000.0], vec![10.0]], 3.0),
    ] {
        let got = shares(&costs, weight, 20_000);
        let expected = (got[0] + got[1]) / (1.0 + weight);
        let one = costs[0].iter().chain(&costs[1]).copied().fold(0.0, f64::max);
        assert!((got[0] - expected).abs() <= 0.02 * expected + one, "{got:?}, weight {weight}");
    }
}

#[test]
fn more_agents_get_no_more_work() {
    for (agents, newcomers) in [([10, 1], 0), ([100, 10], 0), ([3, 30], 0), ([100, 10], 1), ([100, 10], 3)] {
        let mut queue = queue();
        let mut number = 0;
        let mut arrive = |queue: &mut WaitQueue, tenant| {
            number += 1;
            enqueue(queue, [of(tenant, number)]);
        };
        for (tenant, count) in (0..).zip(agents) {
            (0..count).for_each(|_| arrive(&mut queue, tenant));
        }
        let mut got = [0u64; 3];
        // A round serves as many requests as tenants: one of each is a fair share.
        for round in 0..1_000 {
            (0..newcomers).for_each(|it| arrive(&mut queue, 100 + 10 * round + it));
            for _ in 0..2 + newcomers {
                let tenant = step(&mut queue, Instant::ZERO).unwrap().tenant.0;
                got[tenant.min(2) as usize] += 1;
                if tenant < 2 {
                    arrive(&mut queue, tenant);
                }
            }
        }
        assert!(got[0].abs_diff(got[1]) <= 1, "{agents:?}, {newcomers} new ones: {got:?}");
        assert!(got[2].abs_diff(1_000 * newcomers) <= 20, "{agents:?}, {newcomers} new ones: {got:?}");
    }
}

#[test]
fn a_lone_tenant_gets_everything_without_debt() {
    let mut queue = queue();
    for number in 0..1_000 {
        enqueue(&mut queue, [of(1, number)]);
        assert_eq!(step(&mut queue, Instant::ZERO).unwrap().request.0, number);
        assert_empty(&queue);
    }
    enqueue(&mut queue, [of(1, 2_000), of(2, 2_001)]);
    assert_eq!(next(&queue, Instant::ZERO), [2_000, 2_001]);
}

#[test]
fn an_idle_tenant_saves_no_credit() {
    let mut queue = queue();
    enqueue(&mut queue, [of(2, 0)]);
    enqueue(&mut queue, (1..=600).map(|it| of(1, it)));
    step(&mut queue, Instant::ZERO);
    // Tenant 2 was here, and then had nothing queued while the other received five hundred requests.
    for _ in 0..501 {
        step(&mut queue, Instant::ZERO);
    }
    enqueue(&mut queue, (1_000..1_050).map(|it| of(2, it)));
    let mut got = [0; 3];
    for _ in 0..60 {
        got[step(&mut queue, Instant::ZERO).unwrap().tenant.0 as usize] += 1;
    }
    assert_eq!(got, [0, 30, 30]);
}

#[test]
fn the_number_of_remembered_tenants_is_bounded() {
    let mut queue = queue();
    // A request that always waits and never goes keeps the class from being empty and its time from moving.
    enqueue(&mut queue, [of(0, 0)]);
    for number in 1..5_000 {
        enqueue(&mut queue, [of(number, number)]);
        queue.dequeue(Instant::ZERO, RequestId(number), &[]);
    }
    assert!(queue.tenants() <= 1_010, "{}", queue.tenants());
    step(&mut queue, Instant::ZERO);
    assert_empty(&queue);
}
