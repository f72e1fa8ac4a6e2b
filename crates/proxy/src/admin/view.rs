//! The router and its workers as views. Numbers are copied under the brain's lock and serialized after it, so that an
//! open page does not delay decisions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use maitre_base::{ClassId, Instant, WorkerId};
use maitre_dispatch::Brain;
use maitre_dispatch::observer::hot::Hot;
use maitre_dispatch::observer::shadow::ShadowScore;
use maitre_dispatch::scaling::ModelScaling;
use maitre_fleet::{HealthState, Models, Worker};
use maitre_policy::Name;
use maitre_queue::Class;
use maitre_views::control::{IndexView, IndexedWorker, StrategyView};
use maitre_views::overview::{
    ClassQueueView, DiscoverySource, History, HotPrefix, LastSecond, Overview, PredictionError, QueueView,
    ShadowMeans, TotalCounts,
};
use maitre_views::scaling::{ModelScalingView, ScalingView};
use maitre_views::text::Text;
use maitre_views::worker::{ConcurrencyLimits, LearnedRates, PromisedLoad, Rates, WorkerList, WorkerView};

use super::{cluster, programs};
use crate::explain::millis;
use crate::link::Link;
use crate::readiness::Readiness;
use crate::recent::{RecentSample, Sums};
use crate::refuse::AdminError;
use crate::roster::DiscoveryStatus;
use crate::state::RouterState;

/// Most models listed of one worker: some serve hundreds of adapters.
const MODELS_MAX: usize = 16;

/// Prefixes listed, the hottest.
const PREFIXES_MAX: usize = 20;

pub(super) fn overview(router: &RouterState) -> Overview {
    let (now, settings, links) = (router.clock.now(), router.settings.load(), router.brain.links());
    let (sums, longest_wait) = (router.recent.sums(), router.recent.longest_wait(now));
    let discovery = router.sources.lock().iter().map(source).collect();
    let (latest, cluster) = (router.recent.latest(), cluster::view(router));
    router.brain.read(|brain| {
        let queue = queue(router, brain, &settings.brain.queue);
        let prediction = brain.prediction();
        let readiness = router.readiness(brain);
        Overview {
            at_ms: router.clock.unix_ms(),
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_s: now.since(Instant::ZERO).as_secs_f64(),
            ready: readiness == Readiness::Ready,
            not_ready: Some(readiness).filter(|&it| it != Readiness::Ready).map(|it| it.name().into()),
            draining: readiness == Readiness::Draining,
            strategy: settings.brain.strategy.to_string().into(),
            strategies: by_model(&settings.brain.strategies),
            totals: totals(&sums),
            now: LastSecond {
                requests_per_s: latest.requests_per_s,
                answer_tokens_per_s: latest.answer_tokens_per_s,
                prompt_tokens_per_s: latest.prompt_tokens_per_s,
                ttft_p50_ms: latest.ttft_p50_ms,
                ttft_p99_ms: latest.ttft_p99_ms,
                longest_wait_ms: longest_wait.map(|it| millis(it.as_secs_f64())),
                hit_ratio: latest.hit_ratio,
                waiting: queue.waiting,
            },
            queue,
            prediction: PredictionError {
                count: prediction.count as u64,
                median_error: prediction.median_error,
            },
            shadows: brain.shadows().map(|it| shadow_means(&it)).collect(),
            prefixes: brain.hottest(now, PREFIXES_MAX).iter().map(|it| hot_prefix(brain, it)).collect(),
            discovery,
            scaling: brain.scaling().iter().take(MODELS_MAX).map(|it| model_scaling(brain, it)).collect(),
            cluster,
            programs: programs::view(router, now, brain),
            workers: brain.fleet().workers().map(|it| worker_view(brain, &links, now, it)).collect(),
        }
    })
}

fn totals(sums: &Sums) -> TotalCounts {
    TotalCounts {
        requests: sums.arrived,
        answered: sums.answered,
        refused: sums.refused,
        declined: sums.declined,
        failed: sums.failed,
        disconnected: sums.left,
        in_flight: sums.in_flight(),
        prompt_tokens: sums.prompt_tokens,
        cached_tokens: sums.cached_tokens,
        answer_tokens: sums.answer_tokens,
    }
}

fn queue(router: &RouterState, brain: &Brain, settings: &maitre_queue::QueueSettings) -> QueueView {
    let classes = settings.classes.iter().enumerate();
    let view = |(index, class): (usize, &Class)| {
        let id = ClassId(index as u8);
        let largest = brain.largest_tenant(id);
        ClassQueueView {
            class: class.name.clone().into(),
            waiting: brain.waiting(id).requests,
            largest_tenant: largest.and_then(|it| programs::tenant(router, it.0)),
            largest_tenant_waiting: largest.map_or(0, |it| it.1),
        }
    };
    let classes: Vec<ClassQueueView> = classes.map(view).collect();
    QueueView { enabled: settings.enabled, waiting: classes.iter().map(|it| it.waiting).sum(), classes }
}

fn source(it: &DiscoveryStatus) -> DiscoverySource {
    DiscoverySource {
        source: it.name.clone().into(),
        state: it.state.into(),
        workers: it.workers as u64,
        note: it.note.clone().map(Text::from),
    }
}

fn shadow_means(it: &ShadowScore) -> ShadowMeans {
    let mean = |seconds: f64| (it.decisions > 0).then(|| millis(seconds / it.decisions as f64));
    ShadowMeans {
        strategy: it.name.to_string().into(),
        decisions: it.decisions,
        differed: it.differed,
        price_ms: mean(it.price_seconds),
        our_price_ms: mean(it.our_price_seconds),
        ttft_ms: mean(it.ttft_seconds),
        our_ttft_ms: mean(it.our_ttft_seconds),
    }
}

fn hot_prefix(brain: &Brain, it: &Hot) -> HotPrefix {
    let model = it.model.and_then(|model| brain.fleet().name(model));
    HotPrefix {
        hash: format!("{:016x}", it.prefix.0).into(),
        tokens: it.tokens.0,
        seen: it.seen,
        holders: it.holders.iter().map(|it| it.0).collect(),
        holders_total: it.holders_total,
        model: model.map(|it| it.to_string().into()),
    }
}

/// `links` are in order of their workers.
fn worker_view(brain: &Brain, links: &[Arc<Link>], now: Instant, worker: &Worker) -> WorkerView {
    let (fleet, cache, load) = (brain.fleet(), brain.cache(), worker.fresh(now));
    let models = match &worker.models {
        Models::Known(models) => models.iter().take(MODELS_MAX).filter_map(|&it| fleet.name(it)).collect(),
        Models::Unknown => Vec::new(),
    };
    let blocks = cache.numbers(worker.id).map_or(0, |it| it.reported_blocks.max(it.predicted_blocks));
    let requests = worker.requests(now);
    let link = links.binary_search_by_key(&worker.id, |it| it.worker).ok().map(|it| &*links[it]);
    let count = |read: fn(&Link) -> &AtomicU64| link.map_or(0, |it| read(it).load(Ordering::Relaxed));
    let (prompt, cached) = (count(|it| &it.tally.prompt_tokens), count(|it| &it.tally.cached_tokens));
    WorkerView {
        id: worker.id.0,
        url: worker.url.clone().into(),
        engine: link.and_then(Link::kind).map(|it| it.name().into()),
        models: models.iter().map(|it| it.to_string().into()).collect(),
        state: worker.health.state().name().into(),
        unhealthy: link.and_then(|it| unhealthy(worker, it)).map(Into::into),
        draining: worker.draining,
        role: worker.role.name().into(),
        weight: worker.weight,
        requests,
        prefilling: worker.promised.work.prefilling,
        waiting: load.and_then(|it| it.waiting),
        prefill_tokens: worker.promised.work.prefill.tokens.0,
        decode_tokens: worker.promised.work.decode.0,
        other_routers: PromisedLoad {
            requests: worker.promised_by_others.work.requests,
            prefill_tokens: worker.promised_by_others.work.prefill.tokens.0,
            decode_tokens: worker.promised_by_others.work.decode.0,
        },
        limits: brain
            .limits(worker.id)
            .map(|it| ConcurrencyLimits { sequences: it.sequences, prefill_tokens: it.prefill_tokens }),
        kv_usage: load.and_then(|it| it.kv_usage),
        kv_tokens: worker.capacity().map(|it| it.0),
        cached_tokens: u64::from(blocks) * u64::from(cache.block(worker.id)),
        hit_ratio: (prompt > 0).then(|| cached as f64 / prompt as f64),
        requests_total: count(|it| &it.tally.placed),
        failures: count(|it| &it.tally.failures),
        rates: rates(worker, requests),
        trust: cache.trust(worker.id).name().into(),
        last_seen_ms: link.and_then(Link::heard).map(|it| now.since(it).as_millis() as u64),
    }
}

/// Why the worker gets no requests. One that is probed for the first time has no reason yet.
fn unhealthy(worker: &Worker, link: &Link) -> Option<String> {
    match worker.health.state() {
        HealthState::Suspect { .. } | HealthState::Ejected { .. } => Some(link.last_failure()),
        HealthState::Probing => link.failure(),
        _ => None,
    }
}

fn rates(worker: &Worker, requests: u32) -> LearnedRates {
    let (prefill, decode) = (&worker.rates.prefill, &worker.rates.decode);
    LearnedRates {
        rates: Rates {
            prefill_tokens_per_s: 1.0 / prefill.slope.max(1e-9),
            floor_ms: prefill.base * 1_000.0,
            step_ms: decode.base * 1_000.0,
            step_per_request_ms: decode.slope * 1_000.0,
            step_now_ms: decode.at(f64::from(requests.max(1))) * 1_000.0,
        },
        learned: worker.rates.is_learned(),
    }
}

pub(super) fn workers(router: &RouterState) -> WorkerList {
    let (now, links) = (router.clock.now(), router.brain.links());
    let view =
        |brain: &Brain| brain.fleet().workers().map(|it| worker_view(brain, &links, now, it)).collect();
    WorkerList { workers: router.brain.read(view) }
}

pub(super) fn worker(router: &RouterState, id: WorkerId) -> Result<WorkerView, AdminError> {
    let (now, links) = (router.clock.now(), router.brain.links());
    let view =
        router.brain.read(|brain| brain.fleet().worker(id).map(|it| worker_view(brain, &links, now, it)));
    view.ok_or_else(|| AdminError::Unknown(format!("there is no worker {}", id.0)))
}

pub(super) fn history(router: &RouterState) -> History {
    let (samples, settings) = (router.recent.samples(), router.settings.load());
    let depths =
        |class: usize| samples.iter().map(|it| it.waiting.get(class).copied().unwrap_or(0)).collect();
    let classes = settings.brain.queue.classes.iter().enumerate();
    History {
        at_ms: column(&samples, |it| it.at_ms),
        ttft_p50_ms: column(&samples, |it| it.ttft_p50_ms),
        ttft_p99_ms: column(&samples, |it| it.ttft_p99_ms),
        requests_per_s: column(&samples, |it| it.requests_per_s),
        answer_tokens_per_s: column(&samples, |it| it.answer_tokens_per_s),
        prompt_tokens_per_s: column(&samples, |it| it.prompt_tokens_per_s),
        hit_ratio: column(&samples, |it| it.hit_ratio),
        waiting: classes.map(|(index, class)| (class.name.clone().into(), depths(index))).collect(),
    }
}

fn column<T>(samples: &[RecentSample], read: fn(&RecentSample) -> T) -> Vec<T> {
    samples.iter().map(read).collect()
}

pub(super) fn strategies(router: &RouterState) -> StrategyView {
    let settings = router.settings.load();
    StrategyView {
        known: Name::ALL.iter().map(|it| it.to_string().into()).collect(),
        strategy: settings.brain.strategy.to_string().into(),
        strategies: by_model(&settings.brain.strategies),
    }
}

fn by_model(strategies: &BTreeMap<String, Name>) -> BTreeMap<Text, Text> {
    strategies.iter().map(|(model, name)| (model.clone().into(), name.to_string().into())).collect()
}

pub(super) fn index(router: &RouterState) -> IndexView {
    let bytes_max = router.settings.load().brain.index.budget_bytes as u64;
    router.brain.read(|brain| {
        let cache = brain.cache();
        let indexed = |it: &Worker| {
            let numbers = cache.numbers(it.id).unwrap_or_default();
            IndexedWorker {
                id: it.id.0,
                url: it.url.clone().into(),
                block_tokens: cache.block(it.id),
                reported_blocks: numbers.reported_blocks,
                predicted_blocks: numbers.predicted_blocks,
                trust: cache.trust(it.id).name().into(),
            }
        };
        IndexView {
            bytes: cache.bytes() as u64,
            bytes_max,
            workers: brain.fleet().workers().map(indexed).collect(),
        }
    })
}

pub(super) fn scaling(router: &RouterState) -> ScalingView {
    router.brain.read(|brain| {
        let models = brain.scaling().iter().map(|it| model_scaling(brain, it)).collect();
        ScalingView { models }
    })
}

fn model_scaling(brain: &Brain, it: &ModelScaling) -> ModelScalingView {
    let name = it.model.and_then(|it| brain.fleet().name(it));
    ModelScalingView {
        model: name.map_or_else(Text::default, |it| it.to_string().into()),
        desired_workers: it.desired.workers,
        workers: it.workers,
        reason: it.desired.reason.name().into(),
        because: it.desired.reason.words().into(),
        load: it.desired.load,
        load_ahead: it.desired.load_ahead,
        backlog_s: it.desired.backlog_s,
        kv_usage: it.desired.kv_usage,
    }
}
