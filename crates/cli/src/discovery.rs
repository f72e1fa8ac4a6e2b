//! Follows the discovery sources and passes the workers they find to the router.

use maitre_base::Instant;
use maitre_config::WorkerSources;
use maitre_discover::{Update, update};
use maitre_net::worker_url::WorkerUrl;
use maitre_proxy::{Router, roster, secret};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::info;

use maitre_console::clock::Stopwatch;

/// The sources that are followed now.
pub(crate) struct Discovery {
    /// Ends when this is dropped.
    _task: JoinSet<()>,
    updates: watch::Receiver<Update>,
    wanted: String,
    /// The list last given to the router.
    told: Update,
    /// Workers found by former sources. They stay until all current sources have answered, or one of them
    /// finds the worker.
    kept: Vec<WorkerUrl>,
}

impl Discovery {
    pub(crate) fn start(wanted: &WorkerSources) -> std::io::Result<Discovery> {
        let (sender, updates) = watch::channel(Update::default());
        let mut task = JoinSet::new();
        if !wanted.from.is_empty() {
            let mut settings =
                maitre_discover::DiscoverySettings { grace: wanted.grace, ..Default::default() };
            settings.dns.servers.clone_from(&wanted.servers);
            settings.kubernetes.api.clone_from(&wanted.api);
            settings.seed = u64::from_le_bytes(secret::random_bytes()?);
            let watch = Stopwatch::start();
            let clock = move || Instant::ZERO + watch.elapsed();
            task.spawn(maitre_discover::run(wanted.from.clone(), settings, clock, sender));
        }
        let (wanted, told, kept) = (format!("{wanted:?}"), Update::default(), Vec::new());
        Ok(Discovery { _task: task, updates, wanted, told, kept })
    }

    /// Follows new sources, if they differ. Workers found so far stay until the new sources have answered.
    pub(crate) fn retune(&mut self, router: &Router, wanted: &WorkerSources) -> std::io::Result<()> {
        if self.wanted == format!("{wanted:?}") {
            return Ok(());
        }
        let started = Discovery::start(wanted)?;
        let before = std::mem::replace(self, started);
        self.kept = before.kept;
        self.kept.extend(before.told.workers);
        if wanted.from.is_empty() {
            self.tell(router, Update::default());
        }
        Ok(())
    }

    /// Waits for an update; for ever, if there are no sources.
    pub(crate) async fn news(&mut self) -> Update {
        match self.updates.changed().await {
            Ok(()) => self.updates.borrow_and_update().clone(),
            Err(_) => std::future::pending().await,
        }
    }

    pub(crate) fn tell(&mut self, router: &Router, update: Update) {
        let mut workers = update.workers.clone();
        keep(&mut self.kept, &update, &workers);
        workers.extend(self.kept.iter().cloned());
        let difference = router.discovered(&workers, update.sources.iter().map(source).collect());
        if difference != roster::Difference::default() {
            let list = |it: Vec<String>| (!it.is_empty()).then(|| it.join(" "));
            let (added, removed) = (list(difference.added), list(difference.removed));
            info!(added, removed, workers = workers.len(), "discovery changed the fleet");
        }
        self.told = update;
    }
}

/// Drops workers of former sources once the current sources have answered. A source that has never answered,
/// slow or failing, may still know them.
fn keep(kept: &mut Vec<WorkerUrl>, update: &Update, found: &[WorkerUrl]) {
    if update.sources.iter().all(|it| it.answered.is_some()) {
        kept.clear();
    }
    kept.retain(|it| found.iter().all(|new| new.address != it.address));
}

fn source(it: &update::SourceStatus) -> roster::DiscoveryStatus {
    roster::DiscoveryStatus {
        name: it.source.clone(),
        state: it.state.name(),
        workers: it.workers,
        note: it.note.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(states: &[update::SourceState], answered: &[bool]) -> Update {
        let status = |(state, answered): (&update::SourceState, &bool)| update::SourceStatus {
            source: "dns:a:1".to_owned(),
            state: *state,
            workers: 0,
            held: 0,
            note: None,
            answered: answered.then_some(Instant::ZERO),
        };
        Update { workers: Vec::new(), sources: states.iter().zip(answered).map(status).collect() }
    }

    #[test]
    fn workers_stay_until_new_sources_have_answered() {
        use update::SourceState::{Failing, Fine, Waiting};
        let workers: Vec<WorkerUrl> = ["http://a:1", "http://b:1"].map(|it| it.parse().unwrap()).into();
        for (states, answered, expected) in [
            (&[Waiting][..], &[false][..], 2),
            (&[Failing], &[false], 2),
            (&[Fine, Failing], &[true, false], 2),
            (&[Fine, Failing], &[true, true], 0),
            (&[Fine], &[true], 0),
            (&[], &[], 0),
        ] {
            let mut kept = workers.clone();
            keep(&mut kept, &update(states, answered), &[]);
            assert_eq!(kept.len(), expected, "{states:?}");
        }
        // A worker that a current source has found belongs to it from then on.
        let mut kept = workers.clone();
        keep(&mut kept, &update(&[Failing], &[false]), &workers[..1]);
        assert_eq!(kept, workers[1..]);
    }
}
