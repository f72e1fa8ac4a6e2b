//! What Prometheus sees of the queue: how many requests wait, for how long, and how many are refused.

use std::time::Duration;

use maitre_base::ClassId;
use maitre_dispatch::{Brain, Refusal};
use maitre_queue::Class;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::seconds_histogram;

maitre_base::words! {
    /// Why the queue refuses a request. The names are the codes of docs/errors.md.
    #[derive(Clone, Copy, Debug)]
    enum Reason {
        QueueFull = "queue_full",
        RateLimited = "rate_limit_exceeded",
        Deadline = "deadline",
        NoWorker = "no_worker",
    }
}

impl Reason {
    /// None: the queue did not refuse it.
    const fn of(refusal: Refusal) -> Option<Reason> {
        match refusal {
            Refusal::QueueFull { .. } => Some(Reason::QueueFull),
            Refusal::RateLimited { .. } => Some(Reason::RateLimited),
            Refusal::Deadline { .. } => Some(Reason::Deadline),
            Refusal::NoWorker => Some(Reason::NoWorker),
            Refusal::UnknownModel | Refusal::ModelRequired | Refusal::StateLost | Refusal::Failed { .. } => {
                None
            }
        }
    }
}

pub(crate) struct Queue {
    /// In order of precedence. Looked up once: under overload every request is counted here.
    classes: Vec<ClassMetrics>,
    pub(crate) recalls: Counter,
}

struct ClassMetrics {
    requests: Gauge,
    tokens: Gauge,
    seconds: Histogram,
    /// By `Reason`.
    refusals: [Counter; Reason::ALL.len()],
}

impl Queue {
    pub(super) fn new(registry: &mut Registry, classes: &[Class]) -> Queue {
        let mut gauge = |name, help| {
            let family = Family::<[(&'static str, String); 1], Gauge>::default();
            registry.register(name, help, family.clone());
            family
        };
        let requests = gauge("queue_requests", "Requests in the queue");
        let tokens =
            gauge("queue_tokens", "Tokens of the requests in the queue, prompts and expected outputs");
        let seconds =
            Family::<[(&'static str, String); 1], Histogram>::new_with_constructor(seconds_histogram);
        registry.register("queue_seconds", "Time in the queue, of requests that waited", seconds.clone());
        let refusals = Family::<[(&'static str, String); 2], Counter>::default();
        registry.register("queue_refusals", "Requests refused by the queue, by reason", refusals.clone());
        let recalls = Counter::default();
        registry.register("recalls", "Placed requests recalled into the queue", recalls.clone());
        let metrics = |class: &Class| {
            let label = [("class", class.name.clone())];
            let refused = |reason: Reason| {
                let labels = [("class", class.name.clone()), ("reason", reason.name().to_owned())];
                refusals.get_or_create_owned(&labels)
            };
            ClassMetrics {
                requests: requests.get_or_create_owned(&label),
                tokens: tokens.get_or_create_owned(&label),
                seconds: seconds.get_or_create_owned(&label),
                refusals: Reason::ALL.map(refused),
            }
        };
        Queue { classes: classes.iter().map(metrics).collect(), recalls }
    }

    /// Sets the gauges that are read from the brain.
    pub(super) fn set(&self, brain: &Brain) {
        for (class, metrics) in (0..).map(ClassId).zip(&self.classes) {
            let waiting = brain.waiting(class);
            metrics.requests.set(i64::from(waiting.requests));
            metrics.tokens.set(i64::try_from(waiting.tokens).unwrap_or(i64::MAX));
        }
    }

    /// A request ended that was queued for `waited`, if at all.
    pub(crate) fn waited(&self, class: Option<ClassId>, waited: Duration) {
        if let Some(metrics) = self.class(class).filter(|_| !waited.is_zero()) {
            metrics.seconds.observe(waited.as_secs_f64());
        }
    }

    /// The brain refused a request.
    pub(crate) fn refused(&self, class: Option<ClassId>, refusal: Refusal) {
        if let (Some(metrics), Some(reason)) = (self.class(class), Reason::of(refusal)) {
            metrics.refusals[reason as usize].inc();
        }
    }

    fn class(&self, class: Option<ClassId>) -> Option<&ClassMetrics> {
        self.classes.get(class?.index())
    }
}
