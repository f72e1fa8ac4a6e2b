//! Deliberate misconfigurations of an engine, from its start on; `fault` is for failures at run time.
//!
//! Each occurs with real engines and costs hits or visibility without an error. `maitre doctor` detects them; its
//! tests use these.

#[derive(Clone, Debug)]
pub enum Misconfiguration {
    /// Prefix caching is off: no hits, the metrics say so, and no events are published.
    NoPrefixCaching,
    /// Usage does not report cached tokens.
    NoCachedTokens,
    /// `/metrics` is missing.
    NoMetrics,
    /// `/v1/models` lists nothing.
    NoModels,
    /// Every answer carries this in its `date` header.
    Date(&'static str),
    /// `cache_salt` is ignored.
    IgnoresSalts,
    /// A body with a `cache_salt` is rejected.
    RefusesSalts,
    /// A body with `return_token_ids` is rejected.
    RefusesTokenIds,
    /// Paths below `/v1` need this bearer token.
    RequiresKey(&'static str),
    /// What `/version` says.
    Version(&'static str),
    /// The result of `/tokenize` for a body; `None` rejects it. The engine itself still uses its four-byte tokens.
    Tokenizes(fn(&[u8]) -> Option<Vec<u32>>),
    /// `/kv_event_sources` reports this endpoint regardless of the actual one.
    EventsReportedAt(&'static str),
}

/// All misconfigurations of an engine.
#[derive(Clone, Debug, Default)]
pub struct Misconfigurations(pub Vec<Misconfiguration>);

impl Misconfigurations {
    /// The first result that is not `None`.
    pub(super) fn find<T>(&self, read: impl FnMut(&Misconfiguration) -> Option<T>) -> Option<T> {
        self.0.iter().find_map(read)
    }

    pub(super) fn any(&self, is: impl FnMut(&Misconfiguration) -> bool) -> bool {
        self.0.iter().any(is)
    }

    pub(super) fn caches_prefixes(&self) -> bool {
        !self.any(|it| matches!(it, Misconfiguration::NoPrefixCaching))
    }

    pub(super) fn reports_cached_tokens(&self) -> bool {
        !self.any(|it| matches!(it, Misconfiguration::NoCachedTokens))
    }
}
