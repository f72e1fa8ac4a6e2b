//! What is wrong with a configuration, and where it is written.

use std::fmt;
use std::sync::Arc;

/// Every error that was found: those in the file by line, then the environment, then flags. Shown one a line.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(ConfigError::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Errors(pub Vec<ConfigError>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub origin: Origin,
    /// The key it is about; none if it is about a whole file.
    pub key: Option<String>,
    pub what: String,
}

/// Where a value is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    File(Arc<str>),
    /// Lines count from one.
    Line(Arc<str>, usize),
    Variable(String),
    Flag(String),
}

/// An error about values that are valid one by one, and the keys at which it can be fixed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) keys: Vec<&'static str>,
    pub(crate) what: String,
}

impl Conflict {
    pub(crate) fn new(keys: &[&'static str], what: impl Into<String>) -> Conflict {
        Conflict { keys: keys.to_vec(), what: what.into() }
    }
}

impl Origin {
    /// The order in which errors are listed.
    pub(super) fn rank(&self) -> (u8, usize) {
        match self {
            Origin::File(_) => (0, 0),
            Origin::Line(_, line) => (1, *line),
            Origin::Variable(_) => (2, 0),
            Origin::Flag(_) => (3, 0),
        }
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.origin, &self.key) {
            // The name of a variable or a flag says the key already.
            (Origin::File(_) | Origin::Line(..), Some(key)) => {
                write!(f, "{}: {key}: {}", self.origin, self.what)
            }
            _ => write!(f, "{}: {}", self.origin, self.what),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File(file) => f.write_str(file),
            Origin::Line(file, line) => write!(f, "{file}:{line}"),
            Origin::Variable(name) | Origin::Flag(name) => f.write_str(name),
        }
    }
}
