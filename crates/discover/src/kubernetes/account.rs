//! Who we are to the cluster: the files that Kubernetes puts into every Pod.
//!
//! They are read for every request, not once: tokens live for an hour and are renewed in place, and so are
//! certificates. No text from here goes into a message.

use std::path::PathBuf;

use http::HeaderValue;

use super::Problem;
use crate::small_file;

/// Tokens have about 1 KiB; a bundle of certificates has a few to some hundred.
const TOKEN_BYTES_MAX: usize = 64 << 10;
const CERTIFICATES_BYTES_MAX: usize = 1 << 20;

#[derive(Clone, Debug)]
pub(super) struct Account {
    folder: PathBuf,
}

impl Account {
    pub(super) fn new(folder: PathBuf) -> Account {
        Account { folder }
    }

    /// The header that says who we are.
    pub(super) async fn authorization(&self) -> Result<HeaderValue, Problem> {
        let token = self.text("token", TOKEN_BYTES_MAX).await?;
        let mut header = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
            Problem::Failed(format!("read {}: is not a token", self.folder.join("token").display()))
        })?;
        header.set_sensitive(true);
        Ok(header)
    }

    pub(super) async fn namespace(&self) -> Result<String, Problem> {
        self.text("namespace", TOKEN_BYTES_MAX).await
    }

    /// The certificates that vouch for the API, as PEM.
    pub(super) async fn authorities(&self) -> Result<Vec<u8>, Problem> {
        self.bytes("ca.crt", CERTIFICATES_BYTES_MAX).await
    }

    async fn text(&self, name: &str, bytes_max: usize) -> Result<String, Problem> {
        let bytes = self.bytes(name, bytes_max).await?;
        let text = String::from_utf8(bytes).ok().map(|it| it.trim().to_owned());
        let path = self.folder.join(name);
        text.filter(|it| !it.is_empty())
            .ok_or_else(|| Problem::Failed(format!("read {}: is empty or not text", path.display())))
    }

    async fn bytes(&self, name: &str, bytes_max: usize) -> Result<Vec<u8>, Problem> {
        let path = self.folder.join(name);
        let read = small_file::read(path.clone(), bytes_max).await;
        read.map_err(|error| Problem::Failed(format!("read {}: {error}", path.display())))
    }
}
