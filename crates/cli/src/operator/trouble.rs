//! Why a router did not answer, and what to try.

use maitre_views::text::clean;

use super::target::KEY_VARIABLE;

/// Characters shown of a message from outside.
pub(super) const MESSAGE_CHARS_MAX: usize = 400;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Trouble {
    /// The router was not reached, or the connection broke.
    #[error("{0}")]
    Lost(String),
    #[error(
        "{url} does not accept this key; use the one in `admin_key`; without that, `{command}` prints the one that the router made"
    )]
    Key { url: String, command: String },
    /// The router wants a key, and none was found.
    #[error(
        "no key: {url} asks for one, and no router on this machine left its key for this user; set {KEY_VARIABLE}, or write --key-file FILE or the page's address, as in --url '{url}/#key=…'"
    )]
    NoKey { url: String },
    /// The router refused the request.
    #[error("{message}")]
    Refused { message: String },
    /// What answers there is not the admin API.
    #[error(
        "{url} answered, but not as the admin API does ({what}); --url takes the admin address, by default http://127.0.0.1:8081"
    )]
    Strange { url: String, what: String },
}

impl Trouble {
    pub(crate) fn refused(message: &str) -> Trouble {
        Trouble::Refused { message: clean(message, MESSAGE_CHARS_MAX) }
    }

    pub(crate) fn strange(url: &str, what: &str) -> Trouble {
        Trouble::Strange { url: url.to_owned(), what: clean(what, MESSAGE_CHARS_MAX) }
    }

    /// Whether the router refused the request.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Trouble::Refused { .. })
    }
}
