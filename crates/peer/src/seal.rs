//! The key that routers of one cluster share, and frames sealed with it.
//!
//! Frames that pass through a server of somebody else's are sealed with ChaCha20-Poly1305: whoever runs the server, or
//! reaches it, can neither read nor forge them. The nonce is random, since routers with one key have no counter in
//! common; of 96 bits, that is safe for some 2^36 frames (500 a second for four years) with one key.
//!
//! A first byte says whether a frame is sealed and by which version of this file, so that a router that was given no
//! key is told from one that was given another.
//!
//! What this does not stop: an old sealed frame may be shown again. Rows carry versions and routers incarnations, so
//! that a hearer takes what it knows already for what it is. Nor does it hide how often and how much a router says.

use bytes::{BufMut, Bytes, BytesMut};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

/// The version of this file in the upper half of the byte, and what follows in the lower.
const VERSION: u8 = 1;
const PLAIN: u8 = 0;
const SEALED: u8 = 1;

const TAG_LEN: usize = 16;

/// What a seal adds to a frame, at most.
pub(crate) const SEAL_LEN: usize = 1 + NONCE_LEN + TAG_LEN;

/// What routers of one cluster share. Never shown.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// From what an operator wrote, of any length. It is hashed, not stretched: a short secret stays one that can be
    /// guessed.
    pub fn new(secret: &[u8]) -> Key {
        Key(mac(b"maitre cluster key", secret))
    }

    /// A key of its own for each purpose, none of which tells of the others.
    pub(crate) fn derive(&self, purpose: &str) -> [u8; 32] {
        mac(&self.0, purpose.as_bytes())
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

/// HMAC-SHA256.
fn mac(key: &[u8], data: &[u8]) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), data);
    let mut out = [0; 32];
    out.copy_from_slice(tag.as_ref());
    out
}

/// Why a frame is not one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unsealed {
    #[error("it is not sealed, and this router has a key; give all routers the same cluster.key")]
    Plain,
    #[error("it is sealed, and this router has no key; give all routers the same cluster.key")]
    Keyless,
    #[error("it was sealed with another key, or changed on the way; give all routers the same cluster.key")]
    Key,
    #[error("it is of version {0}, and this router speaks version {VERSION}; run one release on all routers")]
    Version(u8),
    #[error("it is no frame of a router")]
    Nonsense,
}

/// Seals what goes out and opens what comes in, or marks it as plain where there is no key.
pub(crate) struct Sealer {
    key: Option<LessSafeKey>,
    random: SystemRandom,
}

impl Sealer {
    /// For one purpose: what is sealed for another does not open.
    pub(crate) fn new(key: Option<&Key>, purpose: &str) -> Sealer {
        let key = key.and_then(|key| UnboundKey::new(&CHACHA20_POLY1305, &key.derive(purpose)).ok());
        Sealer { key: key.map(LessSafeKey::new), random: SystemRandom::new() }
    }

    /// Nothing if the system has no random bytes to give, or the frame is absurdly long: a nonce is never used twice,
    /// and a frame never goes out open in its stead.
    pub(crate) fn seal(&self, frame: &[u8]) -> Option<Bytes> {
        let mut out = BytesMut::with_capacity(frame.len() + SEAL_LEN);
        let Some(key) = &self.key else {
            out.put_u8(VERSION << 4 | PLAIN);
            out.put_slice(frame);
            return Some(out.freeze());
        };
        let first = VERSION << 4 | SEALED;
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).ok()?;
        out.put_u8(first);
        out.put_slice(&nonce);
        out.put_slice(frame);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let body = &mut out[1 + NONCE_LEN..];
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from([first]), body).ok()?;
        out.put_slice(tag.as_ref());
        Some(out.freeze())
    }

    pub(crate) fn open(&self, sealed: Bytes) -> Result<Bytes, Unsealed> {
        let first = *sealed.first().ok_or(Unsealed::Nonsense)?;
        match (first >> 4, first & 0xF, &self.key) {
            (VERSION, PLAIN, None) => Ok(sealed.slice(1..)),
            (VERSION, PLAIN, Some(_)) => Err(Unsealed::Plain),
            (VERSION, SEALED, None) => Err(Unsealed::Keyless),
            (VERSION, SEALED, Some(key)) => open(key, first, sealed),
            (theirs, PLAIN | SEALED, _) if theirs > VERSION => Err(Unsealed::Version(theirs)),
            _ => Err(Unsealed::Nonsense),
        }
    }
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealer(…)")
    }
}

fn open(key: &LessSafeKey, first: u8, sealed: Bytes) -> Result<Bytes, Unsealed> {
    // In place where nobody else holds the bytes, as is the rule.
    let mut sealed = sealed.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    let nonce = sealed.get(1..1 + NONCE_LEN).ok_or(Unsealed::Nonsense)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| Unsealed::Nonsense)?;
    let mut body = sealed.split_off(1 + NONCE_LEN);
    let length = key.open_in_place(nonce, Aad::from([first]), &mut body).map_err(|_| Unsealed::Key)?.len();
    body.truncate(length);
    Ok(body.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    fn sealer(secret: &[u8]) -> Sealer {
        Sealer::new(Some(&Key::new(secret)), "test")
    }

    #[track_caller]
    fn check(from: &Sealer, to: &Sealer, expected: Result<&'static [u8], Unsealed>) {
        let sealed = from.seal(b"promised").unwrap();
        assert_eq!(to.open(sealed), expected.map(Bytes::from_static));
    }

    #[test]
    fn each_wrong_pair_of_routers_is_told_from_the_others() {
        let (ours, theirs, none) = (sealer(b"ours"), sealer(b"theirs"), Sealer::new(None, "test"));
        let elsewhere = Sealer::new(Some(&Key::new(b"ours")), "elsewhere");
        check(&ours, &sealer(b"ours"), Ok(b"promised"));
        check(&none, &none, Ok(b"promised"));
        check(&theirs, &ours, Err(Unsealed::Key));
        check(&elsewhere, &ours, Err(Unsealed::Key));
        check(&none, &ours, Err(Unsealed::Plain));
        check(&ours, &none, Err(Unsealed::Keyless));
    }

    #[test]
    fn a_frame_is_not_to_be_read_in_its_seal_and_no_seal_is_like_another() {
        let sealer = sealer(b"ours");
        let (one, two) = (sealer.seal(b"promised").unwrap(), sealer.seal(b"promised").unwrap());
        assert_ne!(one, two);
        assert_eq!(one.len(), 8 + SEAL_LEN);
        assert!(!one.windows(8).any(|it| it == b"promised"));
    }

    #[test]
    fn a_newer_version_is_called_one() {
        let sealer = sealer(b"ours");
        assert_eq!(sealer.open(Bytes::from_static(&[0x21, 0, 0])), Err(Unsealed::Version(2)));
        assert_eq!(sealer.open(Bytes::from_static(&[0x22])), Err(Unsealed::Nonsense));
        assert_eq!(sealer.open(Bytes::new()), Err(Unsealed::Nonsense));
    }

    #[test]
    fn purposes_have_keys_of_their_own_and_none_is_shown() {
        let key = Key::new(b"a secret");
        assert_ne!(key.derive("mesh"), key.derive("redis"));
        assert_eq!(key.derive("mesh"), Key::new(b"a secret").derive("mesh"));
        assert_ne!(key.derive("mesh"), Key::new(b"a secre7").derive("mesh"));
        assert_eq!(format!("{key:?}"), "Key(…)");
    }

    proptest! {
        #[test]
        fn nothing_that_was_changed_opens(frame: Vec<u8>, at: usize, by in 1u8..) {
            let sealer = sealer(b"ours");
            let sealed = sealer.seal(&frame).unwrap();
            prop_assert_eq!(sealer.open(sealed.clone()), Ok(Bytes::from(frame)));
            let mut bent = sealed.to_vec();
            let at = at % bent.len();
            bent[at] ^= by;
            prop_assert!(sealer.open(Bytes::from(bent)).is_err());
        }

        #[test]
        fn nothing_made_up_opens(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(sealer(b"ours").open(Bytes::from(bytes)).is_err());
        }
    }
}
