//! Standard output, for results.

use std::io::{self, Write as _};

/// Prints a result. Whoever reads may have read enough, as `head` does.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    forgive(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// A reader that went away is no mistake of ours.
pub fn forgive(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
