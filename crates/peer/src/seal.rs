//! The key that the routers of a cluster share, and frames encrypted with it.
//!
//! Frames that pass through a third party's server are encrypted with ChaCha20-Poly1305: its operator can neither
//! read nor forge them. The nonce is random, because routers with one key share no counter; with 96 bits that is safe
//! for about 2^36 frames per key (500 per second for four years).
//!
//! A first byte says whether a frame is encrypted and in which version of this format. It distinguishes a router
//! without a key from one with another key.
//!
//! Replay is not prevented: rows carry versions and routers incarnations, so a replayed frame changes nothing.
//! Frequency and size of frames are visible.

use bytes::{BufMut, Bytes, BytesMut};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

/// Format version in the upper half of the byte; plain or sealed in the lower.
const VERSION: u8 = 1;
const PLAIN: u8 = 0;
const SEALED: u8 = 1;

const TAG_LEN: usize = 16;

/// Maximum bytes that sealing adds to a frame.
pub(crate) const SEAL_LEN: usize = 1 + NONCE_LEN + TAG_LEN;

/// The shared secret. Never shown.
#[derive(Clone)]
pub struct ClusterKey([u8; 32]);

impl ClusterKey {
    /// From the operator's secret, of any length. It is hashed, not stretched: a short secret can be guessed.
    pub fn new(secret: &[u8]) -> ClusterKey {
        ClusterKey(mac(b"maitre cluster key", secret))
    }

    /// An independent key for each purpose.
    pub(crate) fn derive(&self, purpose: &str) -> [u8; 32] {
        mac(&self.0, purpose.as_bytes())
    }
}

impl std::fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterKey(…)")
    }
}

/// HMAC-SHA256.
fn mac(key: &[u8], data: &[u8]) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), data);
    let mut out = [0; 32];
    out.copy_from_slice(tag.as_ref());
    out
}

/// Why a frame cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SealError {
    #[error("it is not encrypted, but this router has a key; give all routers the same cluster.key")]
    Plain,
    #[error("it is encrypted, but this router has no key; give all routers the same cluster.key")]
    Keyless,
    #[error("it was encrypted with another key or changed in transit; give all routers the same cluster.key")]
    ClusterKey,
    #[error("it has version {0}, but this router uses version {VERSION}; run one release on all routers")]
    Version(u8),
    #[error("it is not a Maitre frame")]
    Malformed,
}

/// Seals and opens frames, or marks them as plain if there is no key.
pub(crate) struct Sealer {
    key: Option<LessSafeKey>,
    random: SystemRandom,
}

impl Sealer {
    /// For one purpose: frames sealed for another do not open.
    pub(crate) fn new(key: Option<&ClusterKey>, purpose: &str) -> Sealer {
        let key = key.and_then(|key| UnboundKey::new(&CHACHA20_POLY1305, &key.derive(purpose)).ok());
        Sealer { key: key.map(LessSafeKey::new), random: SystemRandom::new() }
    }

    /// `None` if the system has no randomness or the frame is absurdly long: a nonce is never reused, and a frame is
    /// never sent unencrypted instead.
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

    pub(crate) fn open(&self, sealed: Bytes) -> Result<Bytes, SealError> {
        let first = *sealed.first().ok_or(SealError::Malformed)?;
        match (first >> 4, first & 0xF, &self.key) {
            (VERSION, PLAIN, None) => Ok(sealed.slice(1..)),
            (VERSION, PLAIN, Some(_)) => Err(SealError::Plain),
            (VERSION, SEALED, None) => Err(SealError::Keyless),
            (VERSION, SEALED, Some(key)) => open(key, first, sealed),
            (theirs, PLAIN | SEALED, _) if theirs > VERSION => Err(SealError::Version(theirs)),
            _ => Err(SealError::Malformed),
        }
    }
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealer(…)")
    }
}

fn open(key: &LessSafeKey, first: u8, sealed: Bytes) -> Result<Bytes, SealError> {
    // In place unless the bytes are shared, which is rare.
    let mut sealed = sealed.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    let nonce = sealed.get(1..1 + NONCE_LEN).ok_or(SealError::Malformed)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::Malformed)?;
    let mut body = sealed.split_off(1 + NONCE_LEN);
    let length =
        key.open_in_place(nonce, Aad::from([first]), &mut body).map_err(|_| SealError::ClusterKey)?.len();
    body.truncate(length);
    Ok(body.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    fn sealer(secret: &[u8]) -> Sealer {
        Sealer::new(Some(&ClusterKey::new(secret)), "test")
    }

    #[track_caller]
    fn check(from: &Sealer, to: &Sealer, expected: Result<&'static [u8], SealError>) {
        let sealed = from.seal(b"promised").unwrap();
        assert_eq!(to.open(sealed), expected.map(Bytes::from_static));
    }

    #[test]
    fn each_mismatch_of_keys_has_its_own_error() {
        let (ours, theirs, none) = (sealer(b"ours"), sealer(b"theirs"), Sealer::new(None, "test"));
        let elsewhere = Sealer::new(Some(&ClusterKey::new(b"ours")), "elsewhere");
        check(&ours, &sealer(b"ours"), Ok(b"promised"));
        check(&none, &none, Ok(b"promised"));
        check(&theirs, &ours, Err(SealError::ClusterKey));
        check(&elsewhere, &ours, Err(SealError::ClusterKey));
        check(&none, &ours, Err(SealError::Plain));
        check(&ours, &none, Err(SealError::Keyless));
    }

    #[test]
    fn a_sealed_frame_is_unreadable_and_never_repeats() {
        let sealer = sealer(b"ours");
        let (one, two) = (sealer.seal(b"promised").unwrap(), sealer.seal(b"promised").unwrap());
        assert_ne!(one, two);
        assert_eq!(one.len(), 8 + SEAL_LEN);
        assert!(!one.windows(8).any(|it| it == b"promised"));
    }

    #[test]
    fn a_newer_version_is_reported_as_such() {
        let sealer = sealer(b"ours");
        assert_eq!(sealer.open(Bytes::from_static(&[0x21, 0, 0])), Err(SealError::Version(2)));
        assert_eq!(sealer.open(Bytes::from_static(&[0x22])), Err(SealError::Malformed));
        assert_eq!(sealer.open(Bytes::new()), Err(SealError::Malformed));
    }

    #[test]
    fn each_purpose_has_its_own_key_and_none_is_shown() {
        let key = ClusterKey::new(b"a secret");
        assert_ne!(key.derive("mesh"), key.derive("redis"));
        assert_eq!(key.derive("mesh"), ClusterKey::new(b"a secret").derive("mesh"));
        assert_ne!(key.derive("mesh"), ClusterKey::new(b"a secre7").derive("mesh"));
        assert_eq!(format!("{key:?}"), "ClusterKey(…)");
    }

    proptest! {
        #[test]
        fn changed_frames_do_not_open(frame: Vec<u8>, at: usize, by in 1u8..) {
            let sealer = sealer(b"ours");
            let sealed = sealer.seal(&frame).unwrap();
            prop_assert_eq!(sealer.open(sealed.clone()), Ok(Bytes::from(frame)));
            let mut bent = sealed.to_vec();
            let at = at % bent.len();
            bent[at] ^= by;
            prop_assert!(sealer.open(Bytes::from(bent)).is_err());
        }

        #[test]
        fn forged_frames_do_not_open(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(sealer(b"ours").open(Bytes::from(bytes)).is_err());
        }
    }
}
