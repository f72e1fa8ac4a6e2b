//! The cache salt of a tenant: keeps its cached prompts apart from those of other tenants, in the engines and in our
//! index.
//!
//! A cached prompt is answered sooner, so tenants that share a cache can find out what others have asked. Prompts with
//! different salts share nothing. A tenant's salt is derived from a secret and the tenant's name: routers with the same
//! secret agree on it, it cannot be guessed without the secret, and nothing has to be stored.
//!
//! A client may send a salt of its own, to keep its users apart. It is mixed into ours: users stay apart, and no client
//! can reach another tenant's prompts.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

/// Keeps salts apart from anything else that may be derived from the same secret.
const PURPOSE: &[u8] = b"maitre cache salt 1";

/// Derives salts from a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Salter([u8; 32]);

impl Salter {
    pub fn of(secret: &[u8]) -> Salter {
        Salter(Sha256::digest(secret).into())
    }

    /// The salt of a tenant and of the client's own salt: 256 bits in hex.
    pub(crate) fn salt(&self, tenant: &[u8], own: Option<&str>) -> String {
        // HMAC pads a key that is shorter than a block with zeros; so do we.
        let mut block = [0; 64];
        block[..32].copy_from_slice(&self.0);
        let mut mac = Hmac::<Sha256>::new(&block.into());
        mac.update(PURPOSE);
        // With its length, so that no pair of name and salt equals another pair.
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
        // Computed with Python's `hmac`.
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
    fn debug_output_hides_the_secret() {
        assert_eq!(format!("{:?}", Salter::of(b"secret")), "Salter");
    }
}
