//! A key as we keep it: its hash, from which nobody learns the key.
//!
//! Keys are long random texts, so one round of SHA-256 is enough: there is nothing to guess. What a client presents is
//! hashed the same way, and two hashes are compared in a time that does not depend on where they differ.

use std::fmt;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::{self, Read as _};
use std::str::FromStr;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// The shortest key that is taken in plain text: below it, guessing begins to be worth while.
pub const KEY_BYTES_MIN: usize = 16;

/// How a hash is written, before its 64 digits.
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
    /// Of a key as its owner presents it.
    pub fn of(key: &[u8]) -> Secret {
        Secret(Sha256::digest(key).into())
    }

    /// Takes as long for any two.
    pub fn is(&self, presented: &Secret) -> bool {
        self.0.ct_eq(&presented.0).into()
    }
}

/// Bytes that nobody can foresee.
pub fn dice<const COUNT: usize>() -> io::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// What our keys begin with, so that people and scanners know one when they see it.
const PREFIX_OF_KEYS: &str = "mk-";

/// A key that nobody had before, from the system's dice: 192 bits.
pub fn fresh() -> io::Result<String> {
    let digits: String = dice::<24>()?.iter().map(|it| format!("{it:02x}")).collect();
    Ok(format!("{PREFIX_OF_KEYS}{digits}"))
}

/// In the same time for any two, since maps compare with it.
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

/// A hash, or a plain key: of that, only the hash is kept.
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

/// The hash, in the form in which it may stand in a file.
impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Not even the hash: what is printed in passing ends up in logs.
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
    fn a_hash_stands_for_its_key() {
        let kept: Secret = ABC.parse().unwrap();
        assert!(kept.is(&Secret::of(b"abc")));
        assert!(!kept.is(&Secret::of(b"abd")));
        assert_eq!(kept.to_string(), ABC);
    }

    #[test]
    fn of_a_plain_key_only_the_hash_is_kept() {
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
    fn what_is_no_key_is_told() {
        assert_eq!("short".parse::<Secret>().unwrap_err(), BadSecret::Short);
        assert_eq!("sha256:12".parse::<Secret>().unwrap_err(), BadSecret::Hash);
        assert_eq!(ABC.replace("ba", "é").parse::<Secret>().unwrap_err(), BadSecret::Hash);
    }
}
