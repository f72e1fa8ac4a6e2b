//! The other end of one connection: what it says, in the order in which it may say it.
//!
//! The caller owns the buffer. It asks `next` what stands at its front, removes as many bytes as the answer
//! covers, and asks again; on `Wait` it reads. So frames are cut out of the buffer they arrived in, and a
//! head that announces too much is an error before anybody makes room for it.
//!
//! We say `greeting::OPENING` first, unasked; all else we have to say comes out of `next` as a reply. It could
//! all be said in one breath, and was: libzmq then resets a connection it does not like before its own word
//! has arrived, and nobody learns why.

use crate::command::{self, Command};
use crate::error::Error;
use crate::frame::{self, Head, Kind};
use crate::greeting;
use crate::role::Role;

/// The largest command: a READY with metadata of an application's own is a few hundred bytes.
const COMMAND_BYTES_MAX: usize = 4096;

/// What a peer may send. A message is its frames together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub message_bytes_max: usize,
    pub frames_max: usize,
}

/// What stands at the front of the buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing whole: ask again when the buffer holds at least `bytes`, which is more than it does. Never
    /// more than the limits allow, and a head's length.
    Wait { bytes: usize },
    /// Something between the two ends, not for the caller. Remove it, and send the reply, if there is one.
    Handled { bytes: usize, reply: Vec<u8> },
    /// A frame of a message: remove the head, then take the body out. After the last one the message is
    /// complete.
    Frame { head_bytes: usize, body_bytes: usize, is_last: bool },
}

#[derive(Clone, Debug)]
pub struct Peer {
    ours: Role,
    limits: Limits,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The first piece of its greeting comes next, and then the second.
    Opening,
    Rest,
    /// Its READY comes next.
    Handshake,
    /// So much of a message is behind us.
    Traffic {
        frames: usize,
        bytes: usize,
    },
}

const BETWEEN_MESSAGES: Phase = Phase::Traffic { frames: 0, bytes: 0 };

impl Peer {
    pub fn new(ours: Role, limits: Limits) -> Peer {
        Peer { ours, limits, phase: Phase::Opening }
    }

    /// Whether the handshake is over: from now on there are messages.
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Traffic { .. })
    }

    /// Says what the buffer begins with. After an error the connection is of no more use.
    ///
    /// Counts on the caller to remove what `Handled` or `Frame` covers before it asks again.
    pub fn next(&mut self, buffer: &[u8]) -> Result<Next, Error> {
        match self.phase {
            Phase::Opening => self.greet(buffer),
            Phase::Rest => self.introduce(buffer),
            Phase::Handshake => self.shake_hands(buffer),
            Phase::Traffic { frames, bytes } => self.read(buffer, frames, bytes),
        }
    }

    fn greet(&mut self, buffer: &[u8]) -> Result<Next, Error> {
        let opening = front(buffer, greeting::OPENING_BYTES);
        greeting::check_opening(opening)?;
        if opening.len() < greeting::OPENING_BYTES {
            return Ok(Next::Wait { bytes: buffer.len() + 1 });
        }
        self.phase = Phase::Rest;
        Ok(Next::Handled { bytes: opening.len(), reply: greeting::REST.to_vec() })
    }

    fn introduce(&mut self, buffer: &[u8]) -> Result<Next, Error> {
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

    fn shake_hands(&mut self, buffer: &[u8]) -> Result<Next, Error> {
        let Some(head) = frame::head(buffer)? else { return Ok(wait_for_head(buffer)) };
        if head.kind != Kind::Command {
            return Err(Error::Malformed("a message comes before READY"));
        }
        let Some((body, bytes)) = command_body(buffer, head)? else { return wait_for(head) };
        match Command::parse(body)? {
            Command::Ready(properties) => self.accept(command::socket_type(properties)?)?,
            Command::Error(reason) => return Err(refused(reason)),
            Command::Ping { .. } | Command::Other => {
                return Err(Error::Malformed("another command comes before READY"));
            }
        }
        self.phase = BETWEEN_MESSAGES;
        Ok(Next::Handled { bytes, reply: Vec::new() })
    }

    fn accept(&self, theirs: &[u8]) -> Result<(), Error> {
        match self.ours.partners().iter().any(|it| it.as_bytes() == theirs) {
            true => Ok(()),
            false => {
                let theirs = String::from_utf8_lossy(theirs).into_owned();
                Err(Error::SocketType { ours: self.ours, theirs })
            }
        }
    }

    fn read(&mut self, buffer: &[u8], frames: usize, bytes: usize) -> Result<Next, Error> {
        let Some(head) = frame::head(buffer)? else { return Ok(wait_for_head(buffer)) };
        if head.kind == Kind::Command {
            let Some((body, bytes)) = command_body(buffer, head)? else { return wait_for(head) };
            let mut reply = Vec::new();
            match Command::parse(body)? {
                Command::Ping { context } => command::put_pong(context, &mut reply),
                Command::Error(reason) => return Err(refused(reason)),
                Command::Ready(_) | Command::Other => {}
            }
            return Ok(Next::Handled { bytes, reply });
        }
        let Limits { message_bytes_max, frames_max } = self.limits;
        let body_bytes = check_size(head, message_bytes_max)?;
        let bytes = bytes + body_bytes;
        if bytes > message_bytes_max {
            return Err(Error::MessageTooLarge { bytes_max: message_bytes_max });
        }
        if frames >= frames_max {
            return Err(Error::TooManyFrames { frames_max });
        }
        if buffer.len() < head.bytes + body_bytes {
            return Ok(Next::Wait { bytes: head.bytes + body_bytes });
        }
        let is_last = head.kind == Kind::Last;
        self.phase = match is_last {
            true => BETWEEN_MESSAGES,
            false => Phase::Traffic { frames: frames + 1, bytes },
        };
        Ok(Next::Frame { head_bytes: head.bytes, body_bytes, is_last })
    }
}

/// The first bytes, as many as are there.
fn front(buffer: &[u8], bytes: usize) -> &[u8] {
    buffer.get(..bytes).unwrap_or(buffer)
}

fn wait_for_head(buffer: &[u8]) -> Next {
    Next::Wait { bytes: buffer.len() + 1 }
}

fn wait_for(head: Head) -> Result<Next, Error> {
    Ok(Next::Wait { bytes: head.bytes + check_size(head, COMMAND_BYTES_MAX)? })
}

/// The body of a command, if all of it is there, and its length with the head.
fn command_body(buffer: &[u8], head: Head) -> Result<Option<(&[u8], usize)>, Error> {
    let bytes = head.bytes + check_size(head, COMMAND_BYTES_MAX)?;
    Ok(buffer.get(head.bytes..bytes).map(|body| (body, bytes)))
}

fn check_size(head: Head, bytes_max: usize) -> Result<usize, Error> {
    let too_large = Error::FrameTooLarge { bytes: head.body_bytes, bytes_max };
    match usize::try_from(head.body_bytes) {
        Ok(bytes) if bytes <= bytes_max => Ok(bytes),
        _ => Err(too_large),
    }
}

fn refused(reason: &[u8]) -> Error {
    Error::Refused(String::from_utf8_lossy(reason).into_owned())
}

#[cfg(test)]
mod tests;
