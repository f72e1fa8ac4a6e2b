//! Reads a small file that another program may be writing, within a limit.

use std::io::{self, Read};
use std::path::PathBuf;

/// The whole file; an error if it exceeds `bytes_max` bytes. Runs off the runtime's thread: the file may be
/// on a network.
pub(crate) async fn read(path: PathBuf, bytes_max: usize) -> io::Result<Vec<u8>> {
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::new();
        let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
        // To open a pipe would wait for a writer, perhaps for ever.
        if !std::fs::metadata(&path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file"));
        }
        std::fs::File::open(path)?.take(limit).read_to_end(&mut bytes)?;
        match bytes.len() > bytes_max {
            true => {
                Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("has more than {bytes_max} bytes")))
            }
            false => Ok(bytes),
        }
    });
    read.await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_no_file_is_refused_at_once() {
        let error = read(std::env::temp_dir(), 1_000).await.unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }
}
