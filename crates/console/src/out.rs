//! Standard output, for results.

use std::io::{self, Write as _};

/// Prints a result. The reader may close the pipe early, as `head` does.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    ignore_closed_pipe(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// A closed pipe is not an error.
pub fn ignore_closed_pipe(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
