//! The salt of a tenant: what keeps its cached prompts from everybody else's, in the engines and in our index.
//!
//! An engine's cache answers a prompt that it has seen sooner than one it has not, so whoever shares a cache can ask
//! whether others have asked something. Prompts with different salts share nothing. Each tenant's salt follows
//! from a secret and the tenant's name: routers with the same secret agree on it, nobody without it can guess it, and
//! nothing has to be kept.
//!
//! A client may send a salt of its own, to keep its users apart. That goes into ours, so they stay apart; but whatever
//! it sends, it meets nobody else's prompts.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

/// Tells these from whatever else somebody may one day derive from the same secret.
const PURPOSE: &[u8] = b"maitre cache salt 1";

/// What salts follow from.
#[derive(Clone, PartialEq, Eq)]
pub struct Salter([u8; 32]);

impl Salter {
    pub fn of(secret: &[u8]) -> Salter {
        Salter(Sha256::digest(secret).into())
    }

    /// The salt of one tenant, and of what it may want kept apart itself: 256 bits as digits from 0 to f.
    pub(crate) fn salt(&self, tenant: &[u8], own: Option<&str>) -> String {
        // A key as long as a block of the hash is taken as it is; a shorter one is filled up with zeros, and so are we.
        let mut block = [0; 64];
        block[..32].copy_from_slice(&self.0);
        let mut mac = Hmac::<Sha256>::new(&block.into());
        mac.update(PURPOSE);
        // With its length, so that no name and salt together read as another name.
        mac.update(&(tenant.len() as u64).to_le_bytes());
        mac.update(tenant);
        if let Some(own) = own {
            mac.update(own.as_bytes());
        }
        let mut text = String::with_capacity(64);
        for byte in mac.finalize().into_bytes() {
            for digit in [byte >> 4, byte & 15] {
                text.extend(char::from_digit(u32::from(digit), 16));
            }
        }
        text
    }
}

impl fmt::Debug for Salter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Salter")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn routers_with_one_secret_agree_and_others_do_not() {
        let salt = |secret: &str| Salter::of(secret.as_bytes()).salt(b"acme", None);
        assert_eq!(salt("one"), salt("one"));
        assert_ne!(salt("one"), salt("two"));
        assert_eq!(salt("one").len(), 64);
        // HMAC-SHA-256 as Python's `hmac` has it, of the same bytes.
        assert_eq!(salt("one"), "640eb31dd5a25e0fb2e86099b19ed7aefcda4e8dd678fd86a8d2e7b462616d8f");
    }

    #[test]
    fn no_two_tenants_share_a_salt_whatever_they_send() {
        let salter = Salter::of(b"secret");
        let pairs = [
            ("", None),
            ("a", None),
            ("ab", None),
            ("a", Some("b")),
            ("a", Some("c")),
            ("", Some("ab")),
            ("b", Some("a")),
        ];
        let salts: BTreeSet<String> =
            pairs.iter().map(|(tenant, own)| salter.salt(tenant.as_bytes(), *own)).collect();
        assert_eq!(salts.len(), pairs.len());
    }

    #[test]
    fn the_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Salter::of(b"secret")), "Salter");
    }
}
