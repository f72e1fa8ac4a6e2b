//! Models as workers list them and as requests name them.

/// A model name that the fleet has seen, as a dense number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId(pub u32);

/// A model as a worker lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card<'a> {
    pub name: &'a str,
    /// The base model, if this one is an adapter.
    pub parent: Option<&'a str>,
}

/// What a request requires of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Anything,
    Model(ModelId),
    /// A model that no worker lists: only workers that list nothing can serve it.
    Unlisted,
}
