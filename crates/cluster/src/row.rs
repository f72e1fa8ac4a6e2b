//! What a router owns and tells, and what follows from it for others.

use maitre_base::hash;

/// A router by its name: the same after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouterId(pub u64);

impl RouterId {
    pub fn named(name: &str) -> RouterId {
        RouterId(hash::bytes(1, name.as_bytes()))
    }
}

/// Which life of a router: that which began later is larger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// What is promised to a worker: by one router, or by all others together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    pub requests: u32,
    /// Those whose first token is not out yet.
    pub prefilling: u32,
    pub prefill_tokens: u64,
    pub decode_tokens: u64,
    pub context_tokens: u64,
}

/// Seconds as a line over what they depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fit {
    pub base: f32,
    pub slope: f32,
}

/// Whether a router would give a worker new work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    #[default]
    Fit,
    Doubted,
    Out,
}

/// What a router has learned of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Facts {
    pub verdict: Verdict,
    /// Seconds to the first token by tokens to prefill, and between tokens by requests; none before enough was seen.
    pub rates: Option<(Fit, Fit)>,
}

/// What a tenant had, in all, since its router began to count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    pub requests: u64,
    pub tokens: u64,
}

/// What the links of a chain are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    Tokens,
    Words,
}

/// A prompt as prefix hashes, one a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain<'a> {
    pub unit: Unit,
    /// Units in a block.
    pub block: u32,
    /// Of the whole prompt, the tail that fills no block included.
    pub units: u64,
    pub links: &'a [u64],
}

/// A prompt that another router sent to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seated {
    pub worker: u64,
    pub unit: Unit,
    pub block: u32,
    pub units: u64,
    pub links: Vec<u64>,
}

/// What changed in the view, for whoever decides. Workers, models and tenants go by hashes of their names.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerUpdate {
    /// All that other routers have promised to this worker now.
    Promised {
        worker: u64,
        load: Load,
    },
    /// One of them has changed its mind about a worker.
    Judged {
        worker: u64,
        facts: Facts,
    },
    /// A session sits there now.
    Pinned {
        model: u64,
        session: u64,
        worker: u64,
    },
    /// A tenant had so much more elsewhere.
    Spent {
        model: u64,
        tenant: u64,
        more: Spent,
    },
    Seated(Seated),
    /// How many routers can be heard, we included, and how many there are as far as we know.
    Routers {
        heard: u32,
        known: u32,
    },
}
