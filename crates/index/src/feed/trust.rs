//! How far a worker's KV events can be trusted.

maitre_base::words! {
    /// How much the index knows of the worker's cache.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Trust {
        /// Nothing.
        None = "none",
        /// What the index knows is right, but events from before the subscription are missing.
        Cold = "cold",
        /// What the index knows was right. A check is under way, or there is no replay to check it with.
        Suspect = "suspect",
        /// Everything, or everything that still matters.
        Fresh = "fresh",
    }
}
