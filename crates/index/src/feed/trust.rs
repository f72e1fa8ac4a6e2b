//! How far a worker's KV events can be trusted.

/// How much the index knows of the worker's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trust {
    /// Nothing.
    None,
    /// What the index knows is right, but events from before the subscription are missing.
    Cold,
    /// What the index knows was right. A check is under way, or there is no replay to check it with.
    Suspect,
    /// Everything, or everything that still matters.
    Fresh,
}

impl Trust {
    pub const ALL: [Trust; 4] = [Trust::None, Trust::Cold, Trust::Suspect, Trust::Fresh];

    /// The metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Trust::None => "none",
            Trust::Cold => "cold",
            Trust::Suspect => "suspect",
            Trust::Fresh => "fresh",
        }
    }
}
