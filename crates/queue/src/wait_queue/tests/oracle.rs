//! The plain queue: a list, and rules that scan all of it each time. The tests compare the real queue with it.

use std::time::Duration;

use maitre_base::{ClassId, Instant, RequestId, TenantId};

use crate::settings::Class;
use crate::wait_queue::aging::AGED_PART;
use crate::wait_queue::work::{Work, per_weight};
use crate::wait_queue::{ClassMask, LOOK, OVERTAKEN_MAX, QueueEntry};

pub(super) struct Oracle {
    classes: Vec<Class>,
    aging: Duration,
    pub(super) entries: Vec<(QueueEntry, u32)>,
    shares: Vec<PlainShare>,
    clocks: Vec<Work>,
    credit: Work,
}

#[derive(Clone, Copy)]
struct PlainShare {
    class: ClassId,
    tenant: TenantId,
    at: Work,
    charged: Work,
}

/// The age of a request.
fn age(entry: &QueueEntry) -> (Instant, RequestId) {
    (entry.since, entry.request)
}

type Order = (Instant, Instant, RequestId);

fn order(entry: &QueueEntry) -> Order {
    (entry.latest.unwrap_or(Instant::from_nanos(u64::MAX)), entry.since, entry.request)
}

fn charge(entry: &QueueEntry) -> Work {
    Work::of(entry.cost).over(entry.weight)
}

impl Oracle {
    pub(super) fn new(classes: &[Class], aging: Duration) -> Oracle {
        Oracle {
            classes: classes.to_vec(),
            aging,
            entries: Vec::new(),
            shares: Vec::new(),
            clocks: vec![Work::ZERO; classes.len()],
            credit: Work::ZERO,
        }
    }

    pub(super) fn of_class(&self, class: ClassId) -> impl Iterator<Item = &QueueEntry> {
        self.entries.iter().map(|it| &it.0).filter(move |it| it.class == class)
    }

    pub(super) fn enqueue(&mut self, entry: QueueEntry) -> Result<Option<RequestId>, ()> {
        let mut leaving = None;
        if !self.fits(&entry, None) {
            let others = self.of_class(entry.class).filter(|it| it.tenant != entry.tenant);
            let most = others.map(|it| (self.held(it), it.tenant)).max().ok_or(())?;
            let own = self.of_class(entry.class).find(|it| it.tenant == entry.tenant);
            let own = own.map_or(0, |it| self.held(it)) + self.size(&entry);
            if most.0 <= own {
                return Err(());
            }
            let last = self.of_class(entry.class).filter(|it| it.tenant == most.1).max_by_key(|it| order(it));
            leaving = last.copied().filter(|it| self.fits(&entry, Some(it)));
            self.cancel(leaving.ok_or(())?.request);
        }
        self.advance(entry.class);
        let younger = self.of_class(entry.class).filter(|it| age(it) > age(&entry)).min_by_key(|it| age(it));
        let younger = younger.map(|it| self.share(it.class, it.tenant).unwrap().at);
        let clock = self.clocks[entry.class.index()];
        let at = younger.map_or(clock, |it| it.min(clock));
        if self.share(entry.class, entry.tenant).is_none() {
            self.shares.push(PlainShare {
                class: entry.class,
                tenant: entry.tenant,
                at,
                charged: Work::ZERO,
            });
        }
        self.entries.push((entry, 0));
        Ok(leaving.map(|it| it.request))
    }

    pub(super) fn next(&self, now: Instant, open: ClassMask) -> Vec<RequestId> {
        let open: Vec<ClassId> = self.classes().filter(|&it| open.has(it)).collect();
        let waiting: Vec<ClassId> =
            open.iter().copied().filter(|&it| self.of_class(it).count() > 0).collect();
        let below = waiting.iter().skip(1).flat_map(|&it| self.of_class(it));
        let oldest = below.min_by_key(|it| (it.since, it.request));
        let by_age =
            oldest.filter(|it| now.since(it.since) >= self.aging && self.credit >= Work::of(it.cost));
        let mut found: Vec<RequestId> = by_age.map(|it| it.request).into_iter().collect();
        for class in waiting {
            let all = self.in_order(class);
            found.extend(all.into_iter().filter(|&it| by_age.is_none_or(|aged| aged.request != it)));
        }
        found.truncate(LOOK);
        let overtaken = |it: RequestId| self.entries.iter().find(|entry| entry.0.request == it).unwrap().1;
        match found.iter().position(|&it| overtaken(it) >= OVERTAKEN_MAX) {
            Some(place) => found[..=place].to_vec(),
            None => found,
        }
    }

    pub(super) fn dequeue(&mut self, now: Instant, request: RequestId, passed: &[RequestId]) {
        let entry = self.entries.iter().find(|it| it.0.request == request).unwrap().0;
        self.charge(entry.tenant, charge(&entry));
        self.move_on(&entry);
        self.cancel(request);
        let mut overtook_above = false;
        for it in self.entries.iter_mut().filter(|it| passed.contains(&it.0.request)) {
            it.1 += 1;
            overtook_above |= it.0.class < entry.class;
        }
        let aged = |it: &&(QueueEntry, u32)| it.0.class.0 > 0 && now.since(it.0.since) >= self.aging;
        let oldest = |class: ClassId| {
            let all = self.entries.iter().filter(aged).map(|it| it.0).filter(|it| it.class == class);
            all.min_by_key(|it| (it.since, it.request)).map(|it| Work::of(it.cost))
        };
        let most = self.classes().filter(|&it| it > entry.class).filter_map(oldest).max();
        if self.entries.iter().any(|it| it.0.class < entry.class) && !overtook_above {
            self.credit -= Work::of(entry.cost);
        } else if let Some(most) = most {
            self.credit = (self.credit + Work::of(entry.cost).part(AGED_PART)).min(most);
        } else if !self.entries.iter().any(|it| aged(&it)) {
            self.credit = Work::ZERO;
        }
    }

    pub(super) fn cancel(&mut self, request: RequestId) -> bool {
        let Some(place) = self.entries.iter().position(|it| it.0.request == request) else { return false };
        let class = self.entries[place].0.class;
        self.advance(class);
        self.entries.remove(place);
        if self.of_class(class).count() == 0 {
            self.shares.retain(|it| it.class != class);
            self.clocks[class.index()] = Work::ZERO;
        }
        true
    }

    pub(super) fn expire(&mut self, now: Instant) -> Vec<RequestId> {
        let mut late: Vec<QueueEntry> = self.entries.iter().map(|it| it.0).collect();
        late.retain(|it| it.latest.is_some_and(|it| it < now));
        late.sort_by_key(|it| (it.latest, it.request));
        late.retain(|it| self.cancel(it.request));
        late.iter().map(|it| it.request).collect()
    }

    pub(super) fn charge(&mut self, tenant: TenantId, work: Work) {
        self.each_share(tenant, |it| {
            it.at += work;
            it.charged += work;
        });
    }

    pub(super) fn give_back(&mut self, tenant: TenantId, work: Work) {
        self.each_share(tenant, |it| {
            let work = work.min(it.charged);
            it.at -= work;
            it.charged -= work;
        });
    }

    fn each_share(&mut self, tenant: TenantId, change: impl Fn(&mut PlainShare)) {
        for class in self.classes() {
            self.advance(class);
        }
        self.shares.iter_mut().filter(|it| it.tenant == tenant).for_each(change);
    }

    fn classes(&self) -> impl Iterator<Item = ClassId> + use<> {
        (0..self.classes.len() as u8).map(ClassId)
    }

    fn share(&self, class: ClassId, tenant: TenantId) -> Option<PlainShare> {
        self.shares.iter().copied().find(|it| it.class == class && it.tenant == tenant)
    }

    fn waits(&self, share: &PlainShare) -> bool {
        self.of_class(share.class).any(|it| it.tenant == share.tenant)
    }

    /// The time of a class is that of the tenant furthest behind; tenants with nothing queued are remembered
    /// while they are ahead of it.
    fn advance(&mut self, class: ClassId) {
        let waiting = self.shares.iter().filter(|it| it.class == class && self.waits(it));
        let clock = waiting.map(|it| it.at).min().unwrap_or(Work::ZERO).max(self.clocks[class.index()]);
        self.clocks[class.index()] = clock;
        let kept = self.shares.iter().filter(|it| it.class != class || it.at > clock || self.waits(it));
        self.shares = kept.copied().collect();
    }

    /// A request of this class goes: the class's time moves by what each waiting tenant would have got.
    fn move_on(&mut self, entry: &QueueEntry) {
        let waiting = self.shares.iter().filter(|it| it.class == entry.class && self.waits(it));
        let weights: Vec<f64> = waiting.clone().map(|it| self.weight(it)).collect();
        let sum: f64 = weights.iter().sum();
        let others = self.of_class(entry.class).filter(|it| it.request != entry.request);
        let costs: Vec<Work> = others.map(|it| Work::of(it.cost)).collect();
        if costs.is_empty() {
            return;
        }
        let total = costs.iter().fold(Work::ZERO, |sum, &it| sum + it);
        let mean = total.part(costs.len() as u128).over(sum / weights.len() as f64);
        let most = waiting.map(|it| it.at).min().unwrap() + mean + mean;
        let clock = &mut self.clocks[entry.class.index()];
        *clock = most.min(*clock + Work::of(entry.cost).over(sum)).max(*clock);
    }

    /// The weight of the tenant's latest request.
    fn weight(&self, share: &PlainShare) -> f64 {
        self.of_class(share.class).find(|it| it.tenant == share.tenant).unwrap().weight
    }

    fn in_order(&self, class: ClassId) -> Vec<RequestId> {
        let mut rest: Vec<QueueEntry> = self.of_class(class).copied().collect();
        let mut shares = self.shares.clone();
        let mut found = Vec::new();
        while !rest.is_empty() {
            let oldest =
                |it: &PlainShare| rest.iter().filter(|entry| entry.tenant == it.tenant).map(age).min();
            let turns = shares.iter_mut().filter(|it| it.class == class && oldest(it).is_some());
            let turn = turns.min_by_key(|it| (it.at, oldest(it))).unwrap();
            let of_tenant = rest.iter().filter(|it| it.tenant == turn.tenant);
            let first = *of_tenant.min_by_key(|it| order(it)).unwrap();
            turn.at += charge(&first);
            rest.retain(|it| it.request != first.request);
            found.push(first.request);
        }
        found
    }

    fn fits(&self, entry: &QueueEntry, leaving: Option<&QueueEntry>) -> bool {
        let class = &self.classes[entry.class.index()];
        let stay = || {
            self.of_class(entry.class).filter(|it| leaving.is_none_or(|other| other.request != it.request))
        };
        let tokens: u64 = stay().map(|it| it.tokens).sum();
        stay().count() < class.requests_max as usize && tokens + entry.tokens <= class.tokens_max
    }

    fn size(&self, entry: &QueueEntry) -> u128 {
        let class = &self.classes[entry.class.index()];
        let whole = 1_000_000_000_000u128;
        let requests = whole / u128::from(class.requests_max);
        per_weight(
            requests.max(whole * u128::from(entry.tokens) / u128::from(class.tokens_max)),
            entry.weight,
        )
    }

    /// The share that this entry's tenant holds.
    fn held(&self, entry: &QueueEntry) -> u128 {
        let all = self.of_class(entry.class).filter(|it| it.tenant == entry.tenant);
        all.map(|it| self.size(it)).sum()
    }
}
