//! Why a router did not answer, and what to do about it.

use super::plain::clean;

/// How much of somebody's message is shown.
const MESSAGE_CHARS_MAX: usize = 400;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Trouble {
    /// Nobody was reached, or they went away.
    #[error("{0}")]
    Lost(String),
    #[error(
        "{url} does not accept this key; maitre prints the page's address with its key when it starts, or has it from `admin_key`"
    )]
    Key { url: String },
    /// It understood, and will not.
    #[error("{message}")]
    Refused { message: String },
    /// Whatever answers there is not the admin API.
    #[error(
        "{url} answered, but not as the admin API does ({what}); --url wants the admin address, by default http://127.0.0.1:8081"
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

    /// Whether the question was understood, and answered with a no.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Trouble::Refused { .. })
    }
}
