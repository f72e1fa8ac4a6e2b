//! One worker: what it is, what it serves, how it is.

use maitre_base::{WorkerId, hash};

use crate::fleet::{ModelId, Wanted};
use crate::health::Health;
use crate::load::Report;
use crate::promise::Promised;

/// The models a worker answers for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Models {
    /// It was not asked yet, or lists nothing: it may serve anything that nobody else lists.
    Unknown,
    Known(Vec<ModelId>),
}

#[derive(Clone, Debug)]
pub struct Worker {
    pub id: WorkerId,
    /// Its address, which is also its name towards people.
    pub url: String,
    /// The same in every router: what rendezvous hashing goes by.
    pub key: u64,
    pub models: Models,
    pub health: Health,
    pub promised: Promised,
    pub report: Option<Report>,
    /// Takes no new work, finishes the old.
    pub draining: bool,
}

impl Worker {
    pub fn new(id: WorkerId, url: &str) -> Worker {
        Worker {
            id,
            url: url.to_owned(),
            key: hash::bytes(0, url.as_bytes()),
            models: Models::Unknown,
            health: Health::default(),
            promised: Promised::default(),
            report: None,
            draining: false,
        }
    }

    pub fn serves(&self, wanted: Wanted) -> bool {
        match (&self.models, wanted) {
            (_, Wanted::Anything) => true,
            (Models::Known(models), Wanted::Model(model)) => models.contains(&model),
            (Models::Unknown, Wanted::Unlisted) => true,
            (Models::Unknown, Wanted::Model(_)) | (Models::Known(_), Wanted::Unlisted) => false,
        }
    }
}
