//! Whether this router can take requests.

/// The one answer for probes, the page, the admin API and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    Ready,
    /// It finishes its requests in order to stop.
    Draining,
    /// It waits for the snapshots of other routers.
    Joining,
    NoWorker,
}

impl Readiness {
    pub(crate) const ALL: [Readiness; 4] =
        [Readiness::Ready, Readiness::Draining, Readiness::Joining, Readiness::NoWorker];

    /// As metrics call it.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Readiness::Ready => "ready",
            Readiness::Draining => "draining",
            Readiness::Joining => "joining",
            Readiness::NoWorker => "no-worker",
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Readiness::Ready => "ready",
            Readiness::Draining => "draining",
            Readiness::Joining => "joining the other routers",
            Readiness::NoWorker => "no worker is ready",
        }
    }
}
