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
//! The signature looks to a peer of version 1 like a frame, and the byte after it tells version 2 from 3; so
//! a peer too old is told from one that is no peer at all. The rest is sent when the version of the peer is
//! known. Sent in one piece it would do as well, but libzmq drops a peer whose mechanism it does not like
//! before it has told its own.

use crate::error::Error;

/// What we send unasked: the signature and version 3.0.
pub const OPENING: [u8; OPENING_BYTES] = [0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0];

pub(crate) const OPENING_BYTES: usize = 12;
pub(crate) const REST_BYTES: usize = 52;

/// What we send next: NULL.
pub(crate) const REST: [u8; REST_BYTES] = {
    let mut rest = [0; REST_BYTES];
    rest[0] = b'N';
    rest[1] = b'U';
    rest[2] = b'L';
    rest[3] = b'L';
    rest
};

const MECHANISM_BYTES: usize = 20;

/// Whether an opening, or as much of it as is there, is one we can go on with. Says no as early as it can: a
/// peer that is something else altogether may never send twelve bytes.
pub(crate) fn check_opening(bytes: &[u8]) -> Result<(), Error> {
    match bytes {
        // Version 1 opens with the length of an identity and a zero: a small frame.
        [1..=0x7f, 0, ..] => return Err(Error::OldVersion { major: 1 }),
        [first, _, ..] if *first != 0xff => return Err(Error::NotZmtp),
        _ => {}
    }
    if bytes.get(9).is_some_and(|it| it & 1 == 0) {
        return Err(Error::NotZmtp);
    }
    match bytes.get(10) {
        Some(0) => Err(Error::OldVersion { major: 1 }),
        // Version 2 says 1 here.
        Some(1 | 2) => Err(Error::OldVersion { major: 2 }),
        _ => Ok(()),
    }
}

/// Whether the rest of a greeting, or as much of it as is there, is one we can go on with.
pub(crate) fn check_rest(bytes: &[u8]) -> Result<(), Error> {
    let Some(mechanism) = bytes.get(..MECHANISM_BYTES) else { return Ok(()) };
    let name = mechanism.split(|&it| it == 0).next().unwrap_or_default();
    match name {
        b"NULL" => Ok(()),
        _ => Err(Error::Mechanism(String::from_utf8_lossy(name).into_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expected: Result<(), Error>) {
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
    fn what_is_not_zeromq_is_known_by_its_first_bytes() {
        check(b"HTTP/1.1 400 Bad Request", Err(Error::NotZmtp));
        check(b"\xff\0\0\0\0\0\0\0\x01\0", Err(Error::NotZmtp));
        check(b"\0\0", Err(Error::NotZmtp));
    }

    #[test]
    fn old_versions_are_named() {
        check(b"\x01\0", Err(Error::OldVersion { major: 1 }));
        check(b"\xff\0\0\0\0\0\0\0\x01\x7f\0", Err(Error::OldVersion { major: 1 }));
        check(b"\xff\0\0\0\0\0\0\0\x01\x7f\x01\x02", Err(Error::OldVersion { major: 2 }));
    }

    #[test]
    fn other_mechanisms_are_named() {
        for name in ["PLAIN", "CURVE", "NULLS"] {
            let mut rest = REST;
            rest[..name.len()].copy_from_slice(name.as_bytes());
            assert_eq!(check_rest(&rest), Err(Error::Mechanism(name.to_owned())));
        }
    }
}
