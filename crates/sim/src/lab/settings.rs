//! What is played, before whom, and who knows what.

use std::time::Duration;

use super::script::Script;
use crate::profile::Profile;

#[derive(Clone, Debug)]
pub struct Settings {
    /// One engine each. All have the block of the prepared.
    pub fleet: Vec<Profile>,
    pub brain: maitre_dispatch::BrainSettings,
    pub judge: Judge,
    pub knowledge: Knowledge,
    /// From a change in a cache to its arrival at the router.
    pub event_delay: Duration,
    /// Between two scrapes, and from a scrape to its arrival.
    pub scrape_every: Duration,
    pub scrape_delay: Duration,
    /// Requests go to routers in turn.
    pub routers: usize,
    /// How routers tell each other what they do; none: they do not.
    pub sync: Option<Sync>,
    pub limits: Limits,
    pub script: Script,
    /// How often a client comes again when it was told when to.
    pub returns_max: u32,
}

impl Settings {
    pub fn new(fleet: Vec<Profile>, brain: maitre_dispatch::BrainSettings) -> Settings {
        Settings {
            fleet,
            brain,
            judge: Judge::Brain,
            knowledge: Knowledge::Reported,
            event_delay: Duration::ZERO,
            // As in the router.
            scrape_every: Duration::from_secs(1),
            scrape_delay: Duration::ZERO,
            routers: 1,
            sync: None,
            limits: Limits::Untold,
            script: Script::default(),
            returns_max: 0,
        }
    }
}

/// How routers tell each other what they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sync {
    pub via: Via,
    /// From one router to the others.
    pub delay: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// What is told while a round trip to the server is under way goes with the next.
    Redis,
    /// Each to each, as it comes.
    Mesh,
}

/// Who seats requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judge {
    /// The router's brain, by its strategy.
    Brain,
    /// One that knows all there is to know now.
    Oracle,
    /// The same, and all workers share one cache without limits.
    IdealCache,
}

/// What the router is told of caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowledge {
    /// Engines report what they store and evict.
    Reported,
    /// It knows what it sent where, and what answers say of cached tokens.
    Predicted,
    /// It looks at no prompt.
    None,
}

/// Whether clients say how long an answer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limits {
    Untold,
    /// Exactly as long as it will be: so does `maitre bench`, which has no other way to get the trace's answers.
    Told,
}
