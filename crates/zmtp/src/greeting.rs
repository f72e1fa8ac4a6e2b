//! The greeting: 64 bytes that each end sends before anything else, in two pieces.
//!
//! ```text
//! ff 0000000000000000 7f   signature
//! 03 00                    version
//! "NULL" + 16 zeros        mechanism
//! 00                       as-server, meaningless under NULL
//! 31 zeros
//! ```
//!
//! To a peer of version 1 the signature looks like a frame, and the next byte distinguishes version 2 from 3. So an
//! outdated peer can be distinguished from another protocol. We send the rest once the peer's version is known:
//! libzmq drops a peer whose mechanism it rejects before it has sent its own.

use crate::error::ZmtpError;

/// The first piece: the signature and version 3.0.
pub const OPENING: [u8; OPENING_BYTES] = [0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0];

pub(crate) const OPENING_BYTES: usize = 12;
pub(crate) const REST_BYTES: usize = 52;

/// The second piece: NULL.
pub(crate) const REST: [u8; REST_BYTES] = {
    let mut rest = [0; REST_BYTES];
    rest[0] = b'N';
    rest[1] = b'U';
    rest[2] = b'L';
    rest[3] = b'L';
    rest
};

const MECHANISM_BYTES: usize = 20;

/// Checks a peer's first piece, as far as it has arrived. Fails as early as possible: a client of another protocol
/// may never send twelve bytes.
pub(crate) fn check_opening(bytes: &[u8]) -> Result<(), ZmtpError> {
    match bytes {
        // Version 1 starts with a small frame: the length of an identity and a zero.
        [1..=0x7f, 0, ..] => return Err(ZmtpError::OldVersion { major: 1 }),
        [first, _, ..] if *first != 0xff => return Err(ZmtpError::NotZmtp),
        _ => {}
    }
    if bytes.get(9).is_some_and(|it| it & 1 == 0) {
        return Err(ZmtpError::NotZmtp);
    }
    match bytes.get(10) {
        Some(0) => Err(ZmtpError::OldVersion { major: 1 }),
        // Version 2 sends 1 here.
        Some(1 | 2) => Err(ZmtpError::OldVersion { major: 2 }),
        _ => Ok(()),
    }
}

/// Checks the rest of a greeting, as far as it has arrived.
pub(crate) fn check_rest(bytes: &[u8]) -> Result<(), ZmtpError> {
    let Some(mechanism) = bytes.get(..MECHANISM_BYTES) else { return Ok(()) };
    let name = mechanism.split(|&it| it == 0).next().unwrap_or_default();
    match name {
        b"NULL" => Ok(()),
        _ => Err(ZmtpError::Mechanism(String::from_utf8_lossy(name).into_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expected: Result<(), ZmtpError>) {
        assert_eq!(check_opening(bytes), expected, "{bytes:02x?}");
    }

    #[test]
    fn our_own_greeting_is_good_however_much_of_it_is_there() {
        for length in 0..=OPENING_BYTES {
            check(&OPENING[..length], Ok(()));
        }
        for length in 0..=REST_BYTES {
            assert_eq!(check_rest(&REST[..length]), Ok(()));
        }
    }

    #[test]
    fn a_later_version_is_good() {
        check(b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01", Ok(()));
        check(b"\xff\0\0\0\0\0\0\0\x01\x7f\x04\0", Ok(()));
    }

    #[test]
    fn another_protocol_is_recognised_by_its_first_bytes() {
        check(b"HTTP/1.1 400 Bad Request", Err(ZmtpError::NotZmtp));
        check(b"\xff\0\0\0\0\0\0\0\x01\0", Err(ZmtpError::NotZmtp));
        check(b"\0\0", Err(ZmtpError::NotZmtp));
    }

    #[test]
    fn old_versions_are_named() {
        check(b"\x01\0", Err(ZmtpError::OldVersion { major: 1 }));
        check(b"\xff\0\0\0\0\0\0\0\x01\x7f\0", Err(ZmtpError::OldVersion { major: 1 }));
        check(b"\xff\0\0\0\0\0\0\0\x01\x7f\x01\x02", Err(ZmtpError::OldVersion { major: 2 }));
    }

    #[test]
    fn other_mechanisms_are_named() {
        for name in ["PLAIN", "CURVE", "NULLS"] {
            let mut rest = REST;
            rest[..name.len()].copy_from_slice(name.as_bytes());
            assert_eq!(check_rest(&rest), Err(ZmtpError::Mechanism(name.to_owned())));
        }
    }
}
