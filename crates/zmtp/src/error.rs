//! Why a connection cannot go on. None of these heals by reading further.

use std::fmt;

use crate::role::Role;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The first bytes are nobody's who speaks ZeroMQ.
    NotZmtp,
    /// A peer of the time before version 3.
    OldVersion {
        major: u8,
    },
    /// It wants to talk in secret; we only know NULL.
    Mechanism(String),
    /// A socket that cannot be on the other end of ours.
    SocketType {
        ours: Role,
        theirs: String,
    },
    /// The peer says why it does not want us.
    Refused(String),
    FrameTooLarge {
        bytes: u64,
        bytes_max: usize,
    },
    /// Frames that are each small enough, together are not.
    MessageTooLarge {
        bytes_max: usize,
    },
    TooManyFrames {
        frames_max: usize,
    },
    /// Bits set in the flags of a frame that mean nothing.
    Flags(u8),
    Malformed(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotZmtp => f.write_str("the peer does not speak ZMTP"),
            Error::OldVersion { major } => write!(f, "the peer speaks ZMTP {major}, and we need 3"),
            Error::Mechanism(name) => write!(f, "the peer asks for the mechanism {name:?}, and we know NULL"),
            Error::SocketType { ours, theirs } => {
                write!(f, "the peer's socket is a {theirs:?}, which a {ours} cannot talk to")
            }
            Error::Refused(reason) => write!(f, "the peer refuses: {reason:?}"),
            Error::FrameTooLarge { bytes, bytes_max } => {
                write!(f, "a frame of {bytes} bytes is announced, and {bytes_max} are allowed")
            }
            Error::MessageTooLarge { bytes_max } => write!(f, "a message is larger than {bytes_max} bytes"),
            Error::TooManyFrames { frames_max } => write!(f, "a message has more than {frames_max} frames"),
            Error::Flags(flags) => write!(f, "a frame has the flags {flags:#04x}"),
            Error::Malformed(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}
