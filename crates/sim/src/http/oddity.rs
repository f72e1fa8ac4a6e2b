//! How an engine may be set up wrong: what it is from its start on, where `fault` is what befalls it.
//!
//! Each is a mistake that somebody made with a real engine, and that costs hits or sight without an error.
//! `maitre doctor` is there to find them; its tests play each of them here.

#[derive(Clone, Debug)]
pub enum Oddity {
    /// Nothing is found in the cache, the metrics say that it is off, and no events are published.
    NoPrefixCaching,
    /// Usage does not tell how much of a prompt was cached.
    NoCachedTokens,
    /// `/metrics` is not there.
    NoMetrics,
    /// `/v1/models` lists nothing.
    NoModels,
    /// Every answer carries this in its `date` header.
    Date(&'static str),
    /// `cache_salt` is read over.
    IgnoresSalts,
    /// A body with a `cache_salt` is refused.
    RefusesSalts,
    /// Paths below `/v1` need this bearer token.
    WantsKey(&'static str),
    /// What `/version` says.
    Version(&'static str),
    /// What `/tokenize` makes of a body; None refuses it. The engine itself goes on in words of four bytes.
    Tokenizes(fn(&[u8]) -> Option<Vec<u32>>),
    /// `/kv_event_sources` names this endpoint, whatever is published where.
    EventsToldAt(&'static str),
}

/// What an engine was set up with.
#[derive(Clone, Debug, Default)]
pub struct Oddities(pub Vec<Oddity>);

impl Oddities {
    /// What `read` makes of the first oddity that it makes something of.
    pub(super) fn find<T>(&self, read: impl FnMut(&Oddity) -> Option<T>) -> Option<T> {
        self.0.iter().find_map(read)
    }

    pub(super) fn any(&self, is: impl FnMut(&Oddity) -> bool) -> bool {
        self.0.iter().any(is)
    }

    pub(super) fn caches_prefixes(&self) -> bool {
        !self.any(|it| matches!(it, Oddity::NoPrefixCaching))
    }

    pub(super) fn tells_cached_tokens(&self) -> bool {
        !self.any(|it| matches!(it, Oddity::NoCachedTokens))
    }
}
