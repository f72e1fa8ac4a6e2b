//! What Prometheus sees of the line: who stands in it, for how long, and who is turned away.

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

/// Why somebody is turned away. The words are the codes of docs/errors.md.
#[derive(Clone, Copy, Debug)]
enum Reason {
    QueueFull,
    RateLimited,
    Deadline,
    NoWorker,
}

impl Reason {
    const ALL: [Reason; 4] = [Reason::QueueFull, Reason::RateLimited, Reason::Deadline, Reason::NoWorker];

    const fn name(self) -> &'static str {
        match self {
            Reason::QueueFull => "queue_full",
            Reason::RateLimited => "rate_limited",
            Reason::Deadline => "deadline",
            Reason::NoWorker => "no_worker",
        }
    }

    /// None: not the line's doing.
    const fn of(refusal: Refusal) -> Option<Reason> {
        match refusal {
            Refusal::QueueFull { .. } => Some(Reason::QueueFull),
            Refusal::RateLimited { .. } => Some(Reason::RateLimited),
            Refusal::Deadline { .. } => Some(Reason::Deadline),
            Refusal::NoWorker => Some(Reason::NoWorker),
            Refusal::UnknownModel | Refusal::ModelRequired | Refusal::Failed { .. } => None,
        }
    }
}

pub(crate) struct Queue {
    /// By class, in order of precedence: found once, for under overload every request is counted here.
    lines: Vec<Line>,
    pub(crate) recalls: Counter,
}

/// The line of one class.
struct Line {
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
        let requests = gauge("queue_requests", "Requests that stand in line");
        let tokens =
            gauge("queue_tokens", "Tokens of the requests that stand in line, prompts and expected answers");
        let seconds =
            Family::<[(&'static str, String); 1], Histogram>::new_with_constructor(seconds_histogram);
        registry.register("queue_seconds", "Time in line, of those that stood there", seconds.clone());
        let refusals = Family::<[(&'static str, String); 2], Counter>::default();
        registry.register("queue_refusals", "Requests turned away, by why", refusals.clone());
        let recalls = Counter::default();
        registry.register("recalls", "Seated requests called back into line", recalls.clone());
        let line = |class: &Class| {
            let label = [("class", class.name.clone())];
            let refused = |reason: Reason| {
                let labels = [("class", class.name.clone()), ("reason", reason.name().to_owned())];
                refusals.get_or_create_owned(&labels)
            };
            Line {
                requests: requests.get_or_create_owned(&label),
                tokens: tokens.get_or_create_owned(&label),
                seconds: seconds.get_or_create_owned(&label),
                refusals: Reason::ALL.map(refused),
            }
        };
        Queue { lines: classes.iter().map(line).collect(), recalls }
    }

    /// Reads what the brain knows now.
    pub(super) fn look(&self, brain: &Brain) {
        for (class, line) in (0..).map(ClassId).zip(&self.lines) {
            let waiting = brain.waiting(class);
            line.requests.set(i64::from(waiting.requests));
            line.tokens.set(i64::try_from(waiting.tokens).unwrap_or(i64::MAX));
        }
    }

    /// A request is over that stood in line for so long, if it did.
    pub(crate) fn waited(&self, class: Option<ClassId>, waited: Duration) {
        if let Some(line) = self.line(class).filter(|_| !waited.is_zero()) {
            line.seconds.observe(waited.as_secs_f64());
        }
    }

    /// The brain said no.
    pub(crate) fn refused(&self, class: Option<ClassId>, refusal: Refusal) {
        if let (Some(line), Some(reason)) = (self.line(class), Reason::of(refusal)) {
            line.refusals[reason as usize].inc();
        }
    }

    fn line(&self, class: Option<ClassId>) -> Option<&Line> {
        self.lines.get(class?.index())
    }
}
