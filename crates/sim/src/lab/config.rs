//! The settings of a run: fleet, strategy, and what the router knows.

use std::time::Duration;

use maitre_base::{ChunkReuse, Instant, Role};

use super::autoscale::Autoscale;
use super::script::Script;
use crate::link::LinkModel;
use crate::profile::Profile;

#[derive(Clone, Debug)]
pub struct LabConfig {
    /// One engine each. All use the block size of the prepared trace.
    pub fleet: Vec<Profile>,
    /// The role of each worker of the fleet. Workers without an entry do both.
    pub roles: Vec<Role>,
    pub link: LinkChange,
    pub pulls: PullingWorkers,
    /// A store that all workers share.
    pub store: Option<StoreConfig>,
    pub chunks: ChunkKnowledge,
    pub brain: maitre_dispatch::BrainSettings,
    pub decider: Decider,
    pub knowledge: Knowledge,
    /// Delay from a cache change to its arrival at the router.
    pub event_delay: Duration,
    /// The part of cache-change batches that never arrive. There is no replay.
    pub event_loss: f64,
    /// Interval between two scrapes, and from a scrape to its arrival.
    pub scrape_every: Duration,
    pub scrape_delay: Duration,
    /// Requests go to the routers in turn.
    pub routers: usize,
    /// How routers share their state; `None`: they do not.
    pub sync: Option<Sync>,
    pub limits: AnswerLimits,
    pub script: Script,
    /// `None`: only the script changes the fleet.
    pub autoscale: Option<Autoscale>,
    /// `None`: requests arrive at the trace's times.
    pub closed_loop: Option<ClosedLoop>,
    /// How many sessions of each tenant are open at once, if the trace has sessions. Tenants are numbered from one;
    /// if there is only one, requests name none.
    pub sessions: Vec<u32>,
    /// Clients do not say which session a request belongs to.
    pub are_sessions_hidden: bool,
    /// How often a client retries after `Retry-After`.
    pub retries_max: u32,
}

impl LabConfig {
    pub fn new(fleet: Vec<Profile>, brain: maitre_dispatch::BrainSettings) -> LabConfig {
        LabConfig {
            fleet,
            roles: Vec::new(),
            link: LinkChange::default(),
            pulls: PullingWorkers::None,
            store: None,
            chunks: ChunkKnowledge::default(),
            brain,
            decider: Decider::Brain,
            knowledge: Knowledge::Reported,
            event_delay: Duration::ZERO,
            event_loss: 0.0,
            // As in the router.
            scrape_every: Duration::from_secs(1),
            scrape_delay: Duration::ZERO,
            routers: 1,
            sync: None,
            limits: AnswerLimits::Unstated,
            script: Script::default(),
            autoscale: None,
            closed_loop: None,
            sessions: Vec::new(),
            are_sessions_hidden: false,
            retries_max: 0,
        }
    }
}

impl LabConfig {
    /// Whether workers neither join nor leave.
    pub(super) fn is_fleet_fixed(&self) -> bool {
        self.script.is_empty() && self.autoscale.is_none()
    }
}

/// Which workers can pull KV from each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PullingWorkers {
    #[default]
    None,
    /// All workers, including those that join later.
    All,
    /// By number.
    Some(Vec<u32>),
}

impl PullingWorkers {
    pub(super) fn has(&self, worker: u32) -> bool {
        match self {
            PullingWorkers::None => false,
            PullingWorkers::All => true,
            PullingWorkers::Some(workers) => workers.contains(&worker),
        }
    }
}

/// A store of KV that workers share, and the link of each worker to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoreConfig {
    pub tokens: u64,
    pub link: LinkChange,
}

/// Whether engines reuse documents at any position, and whether routers know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkKnowledge {
    /// `None`: engines reuse prefixes only.
    pub engines: Option<ChunkReuse>,
    pub is_hidden: bool,
}

impl ChunkKnowledge {
    /// What routers know.
    pub(super) fn known(self) -> Option<ChunkReuse> {
        self.engines.filter(|_| !self.is_hidden)
    }
}

/// How links differ from those of the workers' profiles.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkChange {
    pub floor: Option<Duration>,
    pub bytes_per_second: Option<f64>,
}

impl LinkChange {
    pub(super) fn of(self, profile: &Profile) -> LinkModel {
        let usual = LinkModel::of(profile);
        LinkModel {
            floor: self.floor.unwrap_or(usual.floor),
            bytes_per_second: self.bytes_per_second.unwrap_or(usual.bytes_per_second),
            ..usual
        }
    }
}

/// Clients that send the trace's requests in order. Each sends its next one when its last one has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedLoop {
    pub clients: u32,
    /// When they stop, if the trace lasts so long.
    pub until: Instant,
}

/// How routers share their state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sync {
    pub via: Via,
    /// From one router to the others.
    pub delay: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// Changes made during a round trip to the server are sent with the next one.
    Redis,
    /// Directly to each peer.
    Mesh,
}

/// What places requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decider {
    /// The router's brain with its strategy.
    Brain,
    /// A rule with perfect knowledge of the present.
    Oracle,
    /// The same, with one unlimited cache shared by all workers.
    IdealCache,
}

/// What the router knows about caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowledge {
    /// Engines report stored and evicted blocks.
    Reported,
    /// It predicts them from its placements and the cached tokens in responses.
    Predicted,
    /// It does not look at prompts.
    None,
}

/// Whether clients state the length of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerLimits {
    Unstated,
    /// The exact length, as `maitre bench` does, which has no other way to reproduce the trace's answers.
    Stated,
}
