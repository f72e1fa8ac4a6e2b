//! Follows sources and waits for updates.

use std::time::Duration;

use maitre_base::Instant;
use maitre_discover::update::{SourceState, SourceStatus};
use maitre_discover::{DiscoverySettings, Update};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Timeout of any wait: far longer than a busy machine takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// Longer than any test: an event scheduled for then does not happen.
pub(crate) const NEVER: Duration = Duration::from_secs(3_600);
/// Hardly any time.
pub(crate) const SOON: Duration = Duration::from_millis(20);

pub(crate) struct Follower {
    updates: watch::Receiver<Update>,
    _task: JoinSet<()>,
}

impl Follower {
    #[expect(clippy::disallowed_methods, reason = "this is the clock of the test")]
    pub(crate) fn new(sources: &[&str], settings: DiscoverySettings) -> Follower {
        let sources = sources.iter().map(|it| it.parse().unwrap()).collect();
        let (sender, updates) = watch::channel(Update::default());
        let start = std::time::Instant::now();
        let clock = move || Instant::from_nanos(u64::try_from(start.elapsed().as_nanos()).unwrap());
        let mut task = JoinSet::new();
        task.spawn(maitre_discover::run(sources, settings, clock, sender));
        Follower { updates, _task: task }
    }

    /// Waits until an update satisfies `is_so`.
    #[track_caller]
    pub(crate) fn until(
        &mut self,
        what: impl ToString,
        is_so: impl Fn(&Update) -> bool,
    ) -> impl Future<Output = Update> {
        let (caller, what) = (std::panic::Location::caller(), what.to_string());
        async move {
            let found = timeout(LIMIT, self.updates.wait_for(is_so)).await;
            if let Ok(update) = found {
                return update.unwrap().clone();
            }
            drop(found);
            panic!("{caller}: waited for {what}, but: {:#?}", *self.updates.borrow());
        }
    }

    /// Waits until exactly these workers are present.
    #[track_caller]
    pub(crate) fn workers(&mut self, urls: &[&str]) -> impl Future<Output = Update> {
        let is_so = move |it: &Update| it.workers.iter().map(|it| it.to_string()).eq(urls.iter().copied());
        self.until(format!("{urls:?}"), is_so)
    }

    /// Waits until the first source is in this state, and returns its status.
    #[track_caller]
    pub(crate) fn state(&mut self, state: SourceState) -> impl Future<Output = SourceStatus> {
        let update = self
            .until(format!("{state:?}"), move |it| it.sources.first().is_some_and(|it| it.state == state));
        async { update.await.sources.remove(0) }
    }

    /// Waits until the first source's note contains these words.
    #[track_caller]
    pub(crate) fn note(&mut self, part: &str) -> impl Future<Output = Update> {
        self.until(format!("a note with {part:?}"), move |it| {
            it.sources.first().and_then(|it| it.note.as_ref()).is_some_and(|it| it.contains(part))
        })
    }
}

/// Settings with short intervals that never remove a worker.
pub(crate) fn quick() -> DiscoverySettings {
    let mut settings = DiscoverySettings { reread: SOON, ..DiscoverySettings::default() };
    settings.grace.gone_after = NEVER;
    settings.grace.empty_after = NEVER;
    settings.dns.ttl_min = SOON;
    settings.dns.ttl_max = SOON;
    settings.dns.timeout = Duration::from_millis(100);
    settings.kubernetes.timeout = Duration::from_millis(500);
    settings.kubernetes.watch = NEVER;
    settings.kubernetes.retry_min = SOON;
    settings.kubernetes.retry_max = SOON;
    settings
}
