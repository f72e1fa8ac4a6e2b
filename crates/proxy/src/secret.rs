//! A key as the router keeps it: its hash.
//!
//! Keys are long and random, so one round of SHA-256 is enough: they cannot be guessed. A presented key is hashed the same
//! way, and hashes are compared in constant time.

use std::fmt;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::{self, Read as _};
use std::str::FromStr;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// The shortest plain-text key. A shorter one could be guessed.
pub const KEY_BYTES_MIN: usize = 16;

/// The prefix of a hash, before its 64 digits.
const PREFIX: &str = "sha256:";

#[derive(Clone, Copy)]
pub struct Secret([u8; 32]);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSecret {
    #[error("a hash has 64 digits from 0 to f after \"sha256:\"; `maitre key` makes one")]
    Hash,
    #[error("a key has at least {KEY_BYTES_MIN} characters; `maitre key` makes one")]
    Short,
}

impl Secret {
    /// The hash of a key.
    pub fn of(key: &[u8]) -> Secret {
        Secret(Sha256::digest(key).into())
    }

    /// Compares in constant time.
    pub fn is(&self, presented: &Secret) -> bool {
        self.0.ct_eq(&presented.0).into()
    }
}

/// Random bytes from the system.
pub fn random_bytes<const COUNT: usize>() -> io::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The prefix of our keys, so that people and secret scanners recognise them.
const PREFIX_OF_KEYS: &str = "mk-";

/// A new random key of 192 bits.
pub fn fresh() -> io::Result<String> {
    let digits: String = random_bytes::<24>()?.iter().map(|it| format!("{it:02x}")).collect();
    Ok(format!("{PREFIX_OF_KEYS}{digits}"))
}

/// In constant time, because maps compare with it.
impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.is(other)
    }
}

impl Eq for Secret {}

impl Hash for Secret {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// Parses a hash, or a plain key, of which only the hash is kept.
impl FromStr for Secret {
    type Err = BadSecret;

    fn from_str(text: &str) -> Result<Secret, BadSecret> {
        let Some(digits) = text.strip_prefix(PREFIX) else {
            return if text.len() < KEY_BYTES_MIN {
                Err(BadSecret::Short)
            } else {
                Ok(Secret::of(text.as_bytes()))
            };
        };
        if digits.len() != 64 || !digits.bytes().all(|it| it.is_ascii_hexdigit()) {
            return Err(BadSecret::Hash);
        }
        let mut hash = [0; 32];
        for (place, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * place..2 * place + 2], 16).map_err(|_| BadSecret::Hash)?;
        }
        Ok(Secret(hash))
    }
}

/// The hash, as it may be written in a file.
impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Not even the hash: debug output ends up in logs.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of `abc`, as FIPS 180 gives it.
    const ABC: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_hash_matches_its_key() {
        let kept: Secret = ABC.parse().unwrap();
        assert!(kept.is(&Secret::of(b"abc")));
        assert!(!kept.is(&Secret::of(b"abd")));
        assert_eq!(kept.to_string(), ABC);
    }

    #[test]
    fn only_the_hash_of_a_plain_key_is_kept() {
        let kept: Secret = "correct-horse-battery".parse().unwrap();
        assert!(kept.is(&Secret::of(b"correct-horse-battery")));
        assert!(!format!("{kept} {kept:?}").contains("horse"));
    }

    #[test]
    fn no_two_fresh_keys_are_the_same() {
        let keys = [fresh().unwrap(), fresh().unwrap()];
        assert_ne!(keys[0], keys[1]);
        assert!(keys[0].len() > KEY_BYTES_MIN && keys[0].parse::<Secret>().is_ok());
    }

    #[test]
    fn a_bad_key_is_an_error() {
        assert_eq!("short".parse::<Secret>().unwrap_err(), BadSecret::Short);
        assert_eq!("sha256:12".parse::<Secret>().unwrap_err(), BadSecret::Hash);
        assert_eq!(ABC.replace("ba", "é").parse::<Secret>().unwrap_err(), BadSecret::Hash);
    }
}
