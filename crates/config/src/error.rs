//! What is wrong with a configuration, and where it is written.

use std::fmt;
use std::sync::Arc;

/// Every mistake that was found: those in the file by line, then the environment, then flags. One a line
/// when shown.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(Error::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Errors(pub Vec<Error>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub place: Place,
    /// The key it is about; none if it is about a whole file.
    pub key: Option<String>,
    pub what: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    File(Arc<str>),
    /// Lines count from one.
    Line(Arc<str>, usize),
    Variable(String),
    Flag(String),
}

impl Place {
    /// Puts mistakes in the order in which one would mend them.
    pub(super) fn rank(&self) -> (u8, usize) {
        match self {
            Place::File(_) => (0, 0),
            Place::Line(_, line) => (1, *line),
            Place::Variable(_) => (2, 0),
            Place::Flag(_) => (3, 0),
        }
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.place, &self.key) {
            // The name of a variable or a flag is the key already.
            (Place::File(_) | Place::Line(..), Some(key)) => {
                write!(f, "{}: {key}: {}", self.place, self.what)
            }
            _ => write!(f, "{}: {}", self.place, self.what),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(file) => f.write_str(file),
            Place::Line(file, line) => write!(f, "{file}:{line}"),
            Place::Variable(name) | Place::Flag(name) => f.write_str(name),
        }
    }
}
