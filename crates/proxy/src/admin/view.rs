//! What an operator sees, as JSON. Numbers are gathered under the brain's lock and written after it: an open page must
//! not hold up a decision.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use maitre_base::{ClassId, Instant, PromisedWork, WorkerId};
use maitre_dispatch::Brain;
use maitre_dispatch::observer::forecast::Prediction;
use maitre_dispatch::observer::hot::Hot;
use maitre_dispatch::observer::shadow;
use maitre_fleet::{Models, Worker};
use maitre_index::feed::Trust;
use maitre_policy::Name;
use maitre_queue::Limits;
use serde_json::{Map, Value, json};

use super::cluster;
use super::decisions::millis;
use crate::house::RouterState;
use crate::link::Link;
use crate::recent::Sample;
use crate::refuse::Wrong;
use crate::roster::Source;

/// Most models listed of one worker: some serve hundreds of adapters.
const MODELS_MAX: usize = 16;

/// Prefixes listed, the hottest.
const PREFIXES_MAX: usize = 20;

pub(super) fn overview(house: &RouterState) -> Value {
    let now = house.now();
    let (settings, sums, latest) = (house.settings(), house.recent.sums(), house.recent.latest());
    let classes = &settings.brain.queue.classes;
    let seen = house.look(|brain| Seen {
        workers: rows(brain, now),
        waiting: (0..classes.len()).map(|it| brain.waiting(ClassId(it as u8)).requests).collect(),
        open: brain.open(),
        prediction: brain.prediction(),
        shadows: brain.shadows().collect(),
        prefixes: prefixes(brain, now),
    });
    let waiting: u32 = seen.waiting.iter().sum();
    let by_class = classes.iter().zip(&seen.waiting);
    json!({
        "at_ms": house.clock.unix_ms(),
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_s": now.since(Instant::ZERO).as_secs_f64(),
        "ready": !house.leaving.is_cancelled() && !house.is_joining() && seen.workers.iter().any(|it| it.is_ready),
        "leaving": house.leaving.is_cancelled(),
        "strategy": settings.brain.strategy.to_string(),
        "strategies": by_model(&settings.brain.strategies),
        "totals": {
            "requests": sums.requests(),
            "answered": sums.answered,
            "refused": sums.refused,
            "declined": sums.declined,
            "failed": sums.failed,
            "left": sums.left,
            "open": seen.open,
            "prompt_tokens": sums.prompt_tokens,
            "cached_tokens": sums.cached_tokens,
            "answer_tokens": sums.answer_tokens,
        },
        "now": {
            "requests_per_s": latest.requests_per_s,
            "answer_tokens_per_s": latest.answer_tokens_per_s,
            "prompt_tokens_per_s": latest.prompt_tokens_per_s,
            "ttft_p50_ms": latest.ttft_p50_ms,
            "ttft_p99_ms": latest.ttft_p99_ms,
            "hit_ratio": latest.hit_ratio.or(sums.hit_ratio()),
            "waiting": waiting,
        },
        "queue": {
            "enabled": settings.brain.queue.enabled,
            "waiting": waiting,
            "classes": by_class.map(|(class, waiting)| json!({ "class": class.name, "waiting": waiting })).collect::<Vec<_>>(),
        },
        "prediction": { "count": seen.prediction.count, "median_error": seen.prediction.median_error },
        "shadows": seen.shadows.iter().map(shadow).collect::<Vec<_>>(),
    "prefixes": seen.prefixes.iter().map(prefix).collect::<Vec<_>>(),
        "discovery": house.sources.lock().iter().map(source).collect::<Vec<_>>(),
        "cluster": cluster::view(house),
        "workers": seen.workers.iter().map(|it| it.show(house, now)).collect::<Vec<_>>(),
    })
}

/// What was gathered under the lock.
struct Seen {
    workers: Vec<Row>,
    waiting: Vec<u32>,
    open: usize,
    prediction: Prediction,
    shadows: Vec<shadow::ShadowScore>,
    prefixes: Vec<(Hot, Option<Arc<str>>)>,
}

fn prefixes(brain: &Brain, now: Instant) -> Vec<(Hot, Option<Arc<str>>)> {
    let name = |it: &Hot| it.model.and_then(|model| brain.fleet().name(model)).cloned();
    let hottest = brain.hottest(now, PREFIXES_MAX).into_iter();
    hottest
        .map(|it| {
            let name = name(&it);
            (it, name)
        })
        .collect()
}

fn source(it: &Source) -> Value {
    json!({ "source": it.name, "state": it.state, "workers": it.workers, "note": it.note })
}

/// Means over all its decisions.
fn shadow(it: &shadow::ShadowScore) -> Value {
    let mean = |seconds: f64| (it.decisions > 0).then(|| millis(seconds / it.decisions as f64));
    json!({
        "strategy": it.name.to_string(),
        "decisions": it.decisions,
        "differed": it.differed,
        "price_ms": mean(it.price_seconds),
        "our_price_ms": mean(it.our_price_seconds),
        "ttft_ms": mean(it.ttft_seconds),
        "our_ttft_ms": mean(it.our_ttft_seconds),
    })
}

fn prefix((it, model): &(Hot, Option<Arc<str>>)) -> Value {
    let model = model.as_deref();
    json!({
        "hash": format!("{:016x}", it.prefix.0),
        "tokens": it.tokens.0,
        "seen": it.seen,
        "holders": it.holders.iter().map(|it| it.0).collect::<Vec<_>>(),
        "holders_total": it.holders_total,
        "model": model,
    })
}

fn rows(brain: &Brain, now: Instant) -> Vec<Row> {
    brain.fleet().workers().map(|it| Row::new(brain, now, it)).collect()
}

/// One worker, as the brain has it.
struct Row {
    worker: WorkerId,
    url: String,
    models: Vec<Arc<str>>,
    state: &'static str,
    is_ready: bool,
    draining: bool,
    weight: f64,
    requests: u32,
    prefilling: u32,
    waiting: Option<u64>,
    prefill_tokens: u64,
    decode_tokens: u64,
    /// What other routers have promised to it.
    others: PromisedWork,
    limits: Option<Limits>,
    kv_usage: Option<f64>,
    kv_tokens: Option<u64>,
    held_tokens: u64,
    rates: Rates,
    trust: Trust,
}

struct Rates {
    learned: bool,
    prefill_tokens_per_s: f64,
    floor_ms: f64,
    step_ms: f64,
    step_per_request_ms: f64,
}

impl Row {
    fn new(brain: &Brain, now: Instant, worker: &Worker) -> Row {
        let fleet = brain.fleet();
        let models = match &worker.models {
            Models::Known(models) => {
                models.iter().take(MODELS_MAX).filter_map(|&it| fleet.name(it)).cloned().collect()
            }
            Models::Unknown => Vec::new(),
        };
        let load = worker.fresh(now);
        let numbers = brain.cache().numbers(worker.id);
        let blocks = numbers.map_or(0, |it| it.reported_blocks.max(it.predicted_blocks));
        let rates = &worker.rates;
        Row {
            worker: worker.id,
            url: worker.url.clone(),
            models,
            state: worker.health.state().name(),
            is_ready: worker.is_fit(),
            draining: worker.draining,
            weight: worker.weight,
            requests: worker.requests(now),
            prefilling: worker.promised.work.prefilling,
            waiting: load.and_then(|it| it.waiting),
            prefill_tokens: worker.promised.work.prefill.0,
            decode_tokens: worker.promised.work.decode.0,
            others: worker.promised_by_others.work,
            limits: brain.limits(worker.id),
            kv_usage: load.and_then(|it| it.kv_usage),
            kv_tokens: worker.capacity().map(|it| it.0),
            held_tokens: u64::from(blocks) * u64::from(brain.cache().block(worker.id)),
            rates: Rates {
                learned: rates.is_learned(),
                prefill_tokens_per_s: 1.0 / rates.prefill.slope.max(1e-9),
                floor_ms: rates.prefill.base * 1_000.0,
                step_ms: rates.decode.base * 1_000.0,
                step_per_request_ms: rates.decode.slope * 1_000.0,
            },
            trust: brain.cache().trust(worker.id),
        }
    }

    fn show(&self, house: &RouterState, now: Instant) -> Value {
        let link = house.link(self.worker);
        let link = link.as_deref();
        let count = |read: fn(&Link) -> &std::sync::atomic::AtomicU64| {
            link.map_or(0, |it| read(it).load(Ordering::Relaxed))
        };
        let (prompt, cached) = (count(|it| &it.tally.prompt_tokens), count(|it| &it.tally.cached_tokens));
        let heard = link.and_then(Link::heard).map(|it| now.since(it).as_millis() as u64);
        json!({
            "id": self.worker.0,
            "url": self.url,
            "engine": link.and_then(Link::kind).map(|it| it.name()),
            "models": self.models.iter().map(|it| &**it).collect::<Vec<_>>(),
            "state": self.state,
            "draining": self.draining,
            "weight": self.weight,
            "requests": self.requests,
            "prefilling": self.prefilling,
            "waiting": self.waiting,
            "prefill_tokens": self.prefill_tokens,
            "decode_tokens": self.decode_tokens,
            "others": {
                "requests": self.others.requests,
                "prefill_tokens": self.others.prefill.0,
                "decode_tokens": self.others.decode.0,
            },
            "limits": self.limits.map(|it| json!({ "sequences": it.sequences, "prefill_tokens": it.prefill_tokens })),
            "kv_usage": self.kv_usage,
            "kv_tokens": self.kv_tokens,
            "held_tokens": self.held_tokens,
            "hit_ratio": (prompt > 0).then(|| cached as f64 / prompt as f64),
            "seated": count(|it| &it.tally.seated),
            "failures": count(|it| &it.tally.failures),
            "rates": {
                "learned": self.rates.learned,
                "prefill_tokens_per_s": self.rates.prefill_tokens_per_s,
                "floor_ms": self.rates.floor_ms,
                "step_ms": self.rates.step_ms,
                "step_per_request_ms": self.rates.step_per_request_ms,
            },
            "trust": self.trust.name(),
            "heard_ms": heard,
        })
    }
}

pub(super) fn workers(house: &RouterState) -> Value {
    let now = house.now();
    let rows = house.look(|brain| rows(brain, now));
    json!({ "workers": rows.iter().map(|it| it.show(house, now)).collect::<Vec<_>>() })
}

pub(super) fn worker(house: &RouterState, id: WorkerId) -> Result<Value, Wrong> {
    let now = house.now();
    let row = house.look(|brain| brain.fleet().worker(id).map(|it| Row::new(brain, now, it)));
    row.map(|it| it.show(house, now)).ok_or_else(|| Wrong::Unknown(format!("there is no worker {}", id.0)))
}

pub(super) fn history(house: &RouterState) -> Value {
    let samples = house.recent.samples();
    let list = |read: fn(&Sample) -> Value| samples.iter().map(read).collect::<Vec<_>>();
    let settings = house.settings();
    let mut waiting = Map::new();
    for (place, class) in settings.brain.queue.classes.iter().enumerate() {
        let line = samples.iter().map(|it| it.waiting.get(place).copied().unwrap_or(0)).collect::<Vec<_>>();
        waiting.insert(class.name.clone(), json!(line));
    }
    json!({
        "at_ms": list(|it| json!(it.at_ms)),
        "ttft_p50_ms": list(|it| json!(it.ttft_p50_ms)),
        "ttft_p99_ms": list(|it| json!(it.ttft_p99_ms)),
        "requests_per_s": list(|it| json!(it.requests_per_s)),
        "answer_tokens_per_s": list(|it| json!(it.answer_tokens_per_s)),
        "prompt_tokens_per_s": list(|it| json!(it.prompt_tokens_per_s)),
        "hit_ratio": list(|it| json!(it.hit_ratio)),
        "waiting": waiting,
    })
}

pub(super) fn strategies(house: &RouterState) -> Value {
    let settings = house.settings();
    json!({
        "known": Name::ALL.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "strategy": settings.brain.strategy.to_string(),
        "strategies": by_model(&settings.brain.strategies),
    })
}

fn by_model(strategies: &std::collections::BTreeMap<String, Name>) -> Map<String, Value> {
    strategies.iter().map(|(model, name)| (model.clone(), json!(name.to_string()))).collect()
}

pub(super) fn index(house: &RouterState) -> Value {
    let budget = house.settings().brain.index.budget_bytes;
    house.look(|brain| {
        let cache = brain.cache();
        let workers = brain.fleet().workers().map(|it| {
            let numbers = cache.numbers(it.id).unwrap_or_default();
            json!({
                "id": it.id.0,
                "url": it.url,
                "block_tokens": cache.block(it.id),
                "reported_blocks": numbers.reported_blocks,
                "predicted_blocks": numbers.predicted_blocks,
                "trust": cache.trust(it.id).name(),
            })
        });
        json!({ "bytes": cache.bytes(), "bytes_max": budget, "workers": workers.collect::<Vec<_>>() })
    })
}
