//! Our credentials in the cluster: the files that Kubernetes puts into every Pod.
//!
//! The files are read for every request, not once: tokens live for an hour and are renewed in place, and so
//! are certificates. No text from here goes into a message.

use std::path::PathBuf;

use http::HeaderValue;

use super::ApiError;
use crate::small_file;

/// Tokens take about 1 KiB.
const TOKEN_BYTES_MAX: usize = 64 << 10;

#[derive(Clone, Debug)]
pub(super) struct Account {
    folder: PathBuf,
}

impl Account {
    pub(super) fn new(folder: PathBuf) -> Account {
        Account { folder }
    }

    /// The value of the `authorization` header.
    pub(super) async fn authorization(&self) -> Result<HeaderValue, ApiError> {
        let token = self.text("token").await?;
        let mut header = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
            ApiError::Failed(format!("read {}: is not a token", self.folder.join("token").display()))
        })?;
        header.set_sensitive(true);
        Ok(header)
    }

    pub(super) async fn namespace(&self) -> Result<String, ApiError> {
        self.text("namespace").await
    }

    /// The file with the certificates of the API's authority.
    pub(super) fn authorities(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    async fn text(&self, name: &str) -> Result<String, ApiError> {
        let path = self.folder.join(name);
        let read = small_file::read(path.clone(), TOKEN_BYTES_MAX).await;
        let bytes = read.map_err(|error| ApiError::Failed(format!("read {}: {error}", path.display())))?;
        let text = String::from_utf8(bytes).ok().map(|it| it.trim().to_owned());
        text.filter(|it| !it.is_empty())
            .ok_or_else(|| ApiError::Failed(format!("read {}: is empty or not text", path.display())))
    }
}
