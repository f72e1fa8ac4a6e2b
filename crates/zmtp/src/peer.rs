//! The peer of one connection: a state machine over its bytes.
//!
//! The caller owns the buffer. It asks `next` what is at the front, removes as many bytes as the answer covers, and
//! asks again; on `Wait` it reads. Frames are thus cut out of the buffer they arrived in, and a head beyond the
//! limits is an error before memory is allocated.
//!
//! The caller sends `greeting::OPENING` first; `next` returns everything else to send as a reply. We tried to send
//! all of it at once: libzmq then resets a connection that it rejects before its own bytes have arrived, which hides
//! the reason.

use crate::command::{self, Command};
use crate::error::ZmtpError;
use crate::frame::{self, FrameHead, FrameKind};
use crate::greeting;
use crate::role::Role;

/// Maximum command: a READY with application metadata is a few hundred bytes.
const COMMAND_BYTES_MAX: usize = 4096;

/// What a peer may send. A message is the sum of its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZmtpLimits {
    pub message_bytes_max: usize,
    pub frames_max: usize,
}

/// What is at the front of the buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing complete: ask again once the buffer holds at least `bytes`, which is more than it does now. Never more
    /// than the limits and the length of a head.
    Wait { bytes: usize },
    /// Protocol traffic that is not for the caller. Remove it and send the reply, if there is one.
    Handled { bytes: usize, reply: Vec<u8> },
    /// A frame of a message: remove the head, then take the body. The last one completes the message.
    Frame { head_bytes: usize, body_bytes: usize, is_last: bool },
}

#[derive(Clone, Debug)]
pub struct ZmtpPeer {
    ours: Role,
    limits: ZmtpLimits,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The first piece of the greeting is next, then the second.
    Opening,
    Rest,
    /// The peer's READY is next.
    Handshake,
    /// Frames and bytes of the current message so far.
    Traffic {
        frames: usize,
        bytes: usize,
    },
}

const BETWEEN_MESSAGES: Phase = Phase::Traffic { frames: 0, bytes: 0 };

impl ZmtpPeer {
    pub fn new(ours: Role, limits: ZmtpLimits) -> ZmtpPeer {
        ZmtpPeer { ours, limits, phase: Phase::Opening }
    }

    /// Whether the handshake is complete and messages follow.
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Traffic { .. })
    }

    /// Returns what the buffer begins with. After an error the connection is unusable.
    ///
    /// The caller must remove what `Handled` or `Frame` covers before it asks again.
    pub fn next(&mut self, buffer: &[u8]) -> Result<Next, ZmtpError> {
        match self.phase {
            Phase::Opening => self.greet(buffer),
            Phase::Rest => self.introduce(buffer),
            Phase::Handshake => self.shake_hands(buffer),
            Phase::Traffic { frames, bytes } => self.read(buffer, frames, bytes),
        }
    }

    fn greet(&mut self, buffer: &[u8]) -> Result<Next, ZmtpError> {
        let opening = front(buffer, greeting::OPENING_BYTES);
        greeting::check_opening(opening)?;
        if opening.len() < greeting::OPENING_BYTES {
            return Ok(Next::Wait { bytes: buffer.len() + 1 });
        }
        self.phase = Phase::Rest;
        Ok(Next::Handled { bytes: opening.len(), reply: greeting::REST.to_vec() })
    }

    fn introduce(&mut self, buffer: &[u8]) -> Result<Next, ZmtpError> {
        let rest = front(buffer, greeting::REST_BYTES);
        greeting::check_rest(rest)?;
        if rest.len() < greeting::REST_BYTES {
            return Ok(Next::Wait { bytes: buffer.len() + 1 });
        }
        self.phase = Phase::Handshake;
        let mut reply = Vec::new();
        command::put_ready(self.ours, &mut reply);
        Ok(Next::Handled { bytes: rest.len(), reply })
    }

    fn shake_hands(&mut self, buffer: &[u8]) -> Result<Next, ZmtpError> {
        let Some(head) = frame::head(buffer)? else { return Ok(wait_for_head(buffer)) };
        if head.kind != FrameKind::Command {
            return Err(ZmtpError::Malformed("a message comes before READY"));
        }
        let Some((body, bytes)) = command_body(buffer, head)? else { return wait_for(head) };
        match Command::parse(body)? {
            Command::Ready(properties) => self.accept(command::socket_type(properties)?)?,
            Command::Error(reason) => return Err(refused(reason)),
            Command::Ping { .. } | Command::Other => {
                return Err(ZmtpError::Malformed("another command comes before READY"));
            }
        }
        self.phase = BETWEEN_MESSAGES;
        Ok(Next::Handled { bytes, reply: Vec::new() })
    }

    fn accept(&self, theirs: &[u8]) -> Result<(), ZmtpError> {
        match self.ours.partners().iter().any(|it| it.as_bytes() == theirs) {
            true => Ok(()),
            false => {
                let theirs = String::from_utf8_lossy(theirs).into_owned();
                Err(ZmtpError::SocketType { ours: self.ours, theirs })
            }
        }
    }

    fn read(&mut self, buffer: &[u8], frames: usize, bytes: usize) -> Result<Next, ZmtpError> {
        let Some(head) = frame::head(buffer)? else { return Ok(wait_for_head(buffer)) };
        if head.kind == FrameKind::Command {
            let Some((body, bytes)) = command_body(buffer, head)? else { return wait_for(head) };
            let mut reply = Vec::new();
            match Command::parse(body)? {
                Command::Ping { context } => command::put_pong(context, &mut reply),
                Command::Error(reason) => return Err(refused(reason)),
                Command::Ready(_) | Command::Other => {}
            }
            return Ok(Next::Handled { bytes, reply });
        }
        let ZmtpLimits { message_bytes_max, frames_max } = self.limits;
        let body_bytes = check_size(head, message_bytes_max)?;
        let bytes = bytes + body_bytes;
        if bytes > message_bytes_max {
            return Err(ZmtpError::MessageTooLarge { bytes_max: message_bytes_max });
        }
        if frames >= frames_max {
            return Err(ZmtpError::TooManyFrames { frames_max });
        }
        if buffer.len() < head.bytes + body_bytes {
            return Ok(Next::Wait { bytes: head.bytes + body_bytes });
        }
        let is_last = head.kind == FrameKind::Last;
        self.phase = match is_last {
            true => BETWEEN_MESSAGES,
            false => Phase::Traffic { frames: frames + 1, bytes },
        };
        Ok(Next::Frame { head_bytes: head.bytes, body_bytes, is_last })
    }
}

/// At most the first `bytes` bytes.
fn front(buffer: &[u8], bytes: usize) -> &[u8] {
    buffer.get(..bytes).unwrap_or(buffer)
}

fn wait_for_head(buffer: &[u8]) -> Next {
    Next::Wait { bytes: buffer.len() + 1 }
}

fn wait_for(head: FrameHead) -> Result<Next, ZmtpError> {
    Ok(Next::Wait { bytes: head.bytes + check_size(head, COMMAND_BYTES_MAX)? })
}

/// The body of a command, if it is complete, and its length including the head.
fn command_body(buffer: &[u8], head: FrameHead) -> Result<Option<(&[u8], usize)>, ZmtpError> {
    let bytes = head.bytes + check_size(head, COMMAND_BYTES_MAX)?;
    Ok(buffer.get(head.bytes..bytes).map(|body| (body, bytes)))
}

fn check_size(head: FrameHead, bytes_max: usize) -> Result<usize, ZmtpError> {
    let too_large = ZmtpError::FrameTooLarge { bytes: head.body_bytes, bytes_max };
    match usize::try_from(head.body_bytes) {
        Ok(bytes) if bytes <= bytes_max => Ok(bytes),
        _ => Err(too_large),
    }
}

fn refused(reason: &[u8]) -> ZmtpError {
    ZmtpError::Refused(String::from_utf8_lossy(reason).into_owned())
}

#[cfg(test)]
mod tests;
