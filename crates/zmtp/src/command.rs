//! ZMTP commands. We send READY and PONG, and understand READY, ERROR and PING.

use crate::error::ZmtpError;
use crate::frame;
use crate::role::Role;

/// Maximum context bytes of a PING, which a PONG returns.
const CONTEXT_BYTES_MAX: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command<'a> {
    /// Properties, not parsed yet.
    Ready(&'a [u8]),
    Error(&'a [u8]),
    Ping {
        context: &'a [u8],
    },
    /// PONG, SUBSCRIBE and commands of later versions: ignored.
    Other,
}

impl<'a> Command<'a> {
    pub(crate) fn parse(body: &'a [u8]) -> Result<Command<'a>, ZmtpError> {
        let (name, rest) = take_short(body).ok_or(ZmtpError::Malformed("a command has no name"))?;
        match name {
            b"READY" => Ok(Command::Ready(rest)),
            b"ERROR" => {
                let reason = take_short(rest).ok_or(ZmtpError::Malformed("an ERROR has no reason"))?.0;
                Ok(Command::Error(reason))
            }
            b"PING" => {
                // Two bytes of time-to-live, which we ignore.
                let context = rest.get(2..).ok_or(ZmtpError::Malformed("a PING has no time to live"))?;
                Ok(Command::Ping { context: &context[..context.len().min(CONTEXT_BYTES_MAX)] })
            }
            _ => Ok(Command::Other),
        }
    }
}

/// Appends our READY. A dealer's empty identity is what libzmq sends too.
pub(crate) fn put_ready(role: Role, out: &mut Vec<u8>) {
    let mut body = b"\x05READY".to_vec();
    put_property("Socket-Type", role.name().as_bytes(), &mut body);
    if role == Role::Dealer {
        put_property("Identity", b"", &mut body);
    }
    frame::put_command(&body, out);
}

/// Appends the reply to a PING.
pub(crate) fn put_pong(context: &[u8], out: &mut Vec<u8>) {
    let mut body = b"\x04PONG".to_vec();
    body.extend_from_slice(context);
    frame::put_command(&body, out);
}

/// The socket type among the properties of a READY. All of them must be well formed.
pub(crate) fn socket_type(mut properties: &[u8]) -> Result<&[u8], ZmtpError> {
    let mut found = None;
    while !properties.is_empty() {
        let (name, value, rest) =
            take_property(properties).ok_or(ZmtpError::Malformed("a READY has a broken property"))?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            found = Some(value);
        }
        properties = rest;
    }
    found.ok_or(ZmtpError::Malformed("a READY names no socket type"))
}

fn put_property(name: &str, value: &[u8], out: &mut Vec<u8>) {
    out.push(name.len() as u8);
    out.extend_from_slice(name.as_bytes());
    out.extend((value.len() as u32).to_be_bytes());
    out.extend_from_slice(value);
}

fn take_property(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (name, rest) = take_short(bytes)?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    Some((name, value, rest))
}

/// A one-byte length and that many bytes.
fn take_short(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_is_as_libzmq_writes_it() {
        let mut out = Vec::new();
        put_ready(Role::Sub, &mut out);
        assert_eq!(out, b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB");
        out.clear();
        put_ready(Role::Dealer, &mut out);
        assert_eq!(out, b"\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0");
    }

    #[track_caller]
    fn check_type(properties: &[u8], expected: Result<&[u8], &'static str>) {
        assert_eq!(socket_type(properties), expected.map_err(ZmtpError::Malformed), "{properties:02x?}");
    }

    #[test]
    fn the_socket_type_is_found_among_others_whatever_its_case() {
        check_type(b"\x01a\0\0\0\0\x0bsocket-type\0\0\0\x03PUB\x01b\0\0\0\x01x", Ok(b"PUB"));
        check_type(b"\x01a\0\0\0\0", Err("a READY names no socket type"));
        check_type(b"\x0bSocket-Type\xff\xff\xff\xffPUB", Err("a READY has a broken property"));
        check_type(b"\x0bSocket", Err("a READY has a broken property"));
    }

    #[track_caller]
    fn check(body: &[u8], expected: Result<Command<'_>, &'static str>) {
        assert_eq!(Command::parse(body), expected.map_err(ZmtpError::Malformed), "{body:02x?}");
    }

    #[test]
    fn commands_are_read_by_name() {
        check(b"\x05READYxyz", Ok(Command::Ready(b"xyz")));
        check(b"\x05ERROR\x02no", Ok(Command::Error(b"no")));
        check(b"\x04PING\0\x0actx", Ok(Command::Ping { context: b"ctx" }));
        check(b"\x04PONGctx", Ok(Command::Other));
        check(b"\x09SUBSCRIBEkv", Ok(Command::Other));
        check(b"", Err("a command has no name"));
        check(b"\x05READ", Err("a command has no name"));
        check(b"\x05ERROR\x09no", Err("an ERROR has no reason"));
        check(b"\x04PING\0", Err("a PING has no time to live"));
    }
}
