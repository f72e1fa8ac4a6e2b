//! Follows all sources until dropped, and publishes the whole list whenever it changes.
//!
//! One task per source, so that none waits for another; all of them end with the future. Their reports go
//! through one table, whose rules are in `stable_list`. Logs are written only here: one line when the state
//! of a source changes.

use std::time::Duration;

use maitre_base::{Instant, Rng};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::report::{Reporter, SourceReport};
use crate::settings::{DiscoverySettings, SOURCES_MAX};
use crate::source::WorkerSource;
use crate::update::{SourceState, SourceStatus, SourceTable, Update};
use crate::{dns, file, kubernetes};

/// Reports in transit from sources to the table. A source waits while the channel is full.
const ANSWERS_MAX: usize = SOURCES_MAX;
/// How long to sleep if nothing is due.
const LONG: Duration = Duration::from_secs(3_600);

/// Follows the sources (the first `SOURCES_MAX` of them) until every receiver of `updates` is gone, or this is
/// dropped. `SourceStatus::answered` is a time of `clock`. Needs a tokio runtime with I/O and time.
///
/// Receivers are woken when workers or the state of a source change; `SourceStatus::answered` is updated
/// without waking a receiver.
pub async fn run(
    sources: Vec<WorkerSource>,
    settings: DiscoverySettings,
    clock: impl Fn() -> Instant + Send,
    updates: watch::Sender<Update>,
) {
    if sources.len() > SOURCES_MAX {
        warn!(given = sources.len(), "only the first {SOURCES_MAX} sources of workers are followed");
    }
    let sources = &sources[..sources.len().min(SOURCES_MAX)];
    let (to, mut reports) = mpsc::channel(ANSWERS_MAX);
    let mut tasks = JoinSet::new();
    let mut table = SourceTable::new(sources, settings.grace);
    let mut numbers = Vec::new();
    for (index, source) in sources.iter().enumerate() {
        numbers.push(start(&mut tasks, source, &settings, Reporter { index, to: to.clone() }));
    }
    publish(&table, &updates);
    loop {
        let wait = table.next_expiry().map_or(LONG, |due| due.since(clock()));
        tokio::select! {
            Some((index, report)) = reports.recv() => table.apply(clock(), index, report),
            Some(ended) = tasks.join_next_with_id() => {
                // A task ends only by a fault of ours. Its workers stay as they are.
                let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                if let Some(index) = numbers.iter().position(|it| *it == id) {
                    let note = "is no longer followed, by a fault of this program; restart it, and report this";
                    table.apply(clock(), index, SourceReport::failure(note));
                }
            }
            () = sleep(wait) => {}
            () = updates.closed() => return,
        }
        table.expire(clock());
        publish(&table, &updates);
    }
}

fn start(
    tasks: &mut JoinSet<()>,
    source: &WorkerSource,
    settings: &DiscoverySettings,
    reporter: Reporter,
) -> tokio::task::Id {
    let mut rng = Rng::new(settings.seed);
    (0..=reporter.index).for_each(|_| _ = rng.next_u64());
    let rng = Rng::new(rng.next_u64());
    let recheck = settings.grace.gone_after / 2;
    let handle = match source.clone() {
        WorkerSource::File { path } => tasks.spawn(file::follow(path, settings.reread, reporter)),
        WorkerSource::Dns { host, port, family, options } => {
            let question = dns::DnsQuery::Addresses { host, port, family, options };
            tasks.spawn(dns::follow(question, settings.dns.clone(), recheck, rng, reporter))
        }
        WorkerSource::Srv { name, options } => {
            let question = dns::DnsQuery::Services { name, options };
            tasks.spawn(dns::follow(question, settings.dns.clone(), recheck, rng, reporter))
        }
        WorkerSource::Kubernetes(cluster) => {
            tasks.spawn(kubernetes::follow(cluster, settings.kubernetes.clone(), rng, reporter))
        }
    };
    handle.id()
}

fn publish(table: &SourceTable, updates: &watch::Sender<Update>) {
    let update = table.update();
    updates.send_if_modified(|last| {
        let statuses = update.sources.iter().enumerate();
        let moved = statuses.filter(|(index, it)| last.sources.get(*index).is_none_or(|last| !it.says(last)));
        let moved: Vec<_> = moved.map(|(index, it)| (it, last.sources.get(index))).collect();
        moved.iter().for_each(|(status, last)| note(status, *last));
        let has_changed = !moved.is_empty() || last.workers != update.workers;
        *last = update;
        has_changed
    });
}

fn note(status: &SourceStatus, last: Option<&SourceStatus>) {
    let (source, workers) = (&status.source, status.workers);
    let why = status.note.as_deref();
    match (status.state, last.map(|it| it.state)) {
        (SourceState::Waiting, _) => {}
        (SourceState::Failing, _) => warn!(source, workers, why, "cannot find workers; its last list stays"),
        (SourceState::Holding, _) => {
            let held = status.held;
            warn!(source, workers, held, why, "most workers vanished at once; they are kept for now");
        }
        // A wrong name, more often than a fleet of none.
        (SourceState::Fine, _) if workers == 0 => warn!(source, why, "no workers found"),
        (SourceState::Fine, Some(SourceState::Failing | SourceState::Holding)) => {
            info!(source, workers, why, "finds workers again")
        }
        (SourceState::Fine, _) => info!(source, workers, why, "workers found"),
    }
}
