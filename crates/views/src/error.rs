//! How the admin API reports errors.

use crate::schema::view;

view! {
    /// Why a request was refused.
    ErrorBody {
        error: ErrorDetail,
    }

    /// The code and the sentence of a refusal.
    ErrorDetail {
        /// Stable; docs/errors.md lists them.
        code: String,
        message: String,
    }
}
