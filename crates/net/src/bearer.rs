//! A bearer token that we send: to workers, routers and API servers.
//!
//! It is kept in plain text because it must be sent. It is marked sensitive, and `Debug` does not print it.

use std::fmt;
use std::str::FromStr;

use http::HeaderValue;

/// Longest token. Chosen: far below the header limits of servers.
pub const BEARER_BYTES_MAX: usize = 4_096;

/// A token in the form in which it is sent.
#[derive(Clone, PartialEq, Eq)]
pub struct Bearer(HeaderValue);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key has at most {BEARER_BYTES_MAX} letters, digits and signs, and no space")]
pub struct BadBearer;

impl Bearer {
    /// The value of `authorization`.
    pub fn header(&self) -> &HeaderValue {
        &self.0
    }
}

impl FromStr for Bearer {
    type Err = BadBearer;

    fn from_str(key: &str) -> Result<Bearer, BadBearer> {
        if !(1..=BEARER_BYTES_MAX).contains(&key.len()) || !key.bytes().all(|it| it.is_ascii_graphic()) {
            return Err(BadBearer);
        }
        let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| BadBearer)?;
        value.set_sensitive(true);
        Ok(Bearer(value))
    }
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_does_not_contain_the_token() {
        let bearer: Bearer = "sk-worker".parse().unwrap();
        assert_eq!(bearer.header(), "Bearer sk-worker");
        assert!(!format!("{bearer:?} {:?}", bearer.header()).contains("sk-"));
    }

    #[test]
    fn a_token_that_is_no_header_value_is_an_error() {
        for text in ["", "two words", "line\nbreak", "é", &"x".repeat(BEARER_BYTES_MAX + 1)] {
            assert_eq!(text.parse::<Bearer>().unwrap_err(), BadBearer, "{text}");
        }
    }
}
