//! Why a connection cannot continue. Every error is final.

use std::fmt;

use crate::role::Role;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZmtpError {
    /// The first bytes are not ZMTP.
    NotZmtp,
    /// A peer older than version 3.
    OldVersion {
        major: u8,
    },
    /// The peer requires a security mechanism; we support NULL only.
    Mechanism(String),
    /// The peer's socket type is incompatible with ours.
    SocketType {
        ours: Role,
        theirs: String,
    },
    /// The peer's reason for rejecting us.
    Refused(String),
    FrameTooLarge {
        bytes: u64,
        bytes_max: usize,
    },
    /// Each frame is within the limit, but the message is not.
    MessageTooLarge {
        bytes_max: usize,
    },
    TooManyFrames {
        frames_max: usize,
    },
    /// Reserved bits in a frame's flags are set.
    Flags(u8),
    Malformed(&'static str),
}

impl fmt::Display for ZmtpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ZmtpError::NotZmtp => f.write_str("the peer does not speak ZMTP"),
            ZmtpError::OldVersion { major } => {
                write!(f, "the peer speaks ZMTP {major}; version 3 is required")
            }
            ZmtpError::Mechanism(name) => {
                write!(f, "the peer requires the mechanism {name:?}, only NULL is supported")
            }
            ZmtpError::SocketType { ours, theirs } => {
                write!(f, "the peer's socket is a {theirs:?}, which a {ours} cannot talk to")
            }
            ZmtpError::Refused(reason) => write!(f, "the peer rejected the connection: {reason:?}"),
            ZmtpError::FrameTooLarge { bytes, bytes_max } => {
                write!(f, "a frame of {bytes} bytes is announced; at most {bytes_max} are allowed")
            }
            ZmtpError::MessageTooLarge { bytes_max } => {
                write!(f, "a message is larger than {bytes_max} bytes")
            }
            ZmtpError::TooManyFrames { frames_max } => {
                write!(f, "a message has more than {frames_max} frames")
            }
            ZmtpError::Flags(flags) => write!(f, "a frame has the flags {flags:#04x}"),
            ZmtpError::Malformed(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for ZmtpError {}
