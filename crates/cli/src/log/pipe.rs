//! Log lines on their way to standard error. Writing one never waits.
//!
//! A full pipe blocks the thread that writes to it, for as long as its reader is stuck. That must not be one that serves
//! requests. So lines go into a buffer with a limit, and one thread writes them out. Lines that do not fit are dropped
//! and counted, and a line says so once there is room.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;

/// Most bytes of lines that wait. Chosen: about a thousand lines, more than any burst at the usual level.
const BYTES_MAX: usize = 256 << 10;

/// How long the program waits for its last lines when it ends.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// The end that lines are written to.
#[derive(Clone, Default)]
pub(super) struct LogPipe(Arc<Shared>);

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    /// There are lines, or all of them are written.
    changed: Condvar,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    lines: Vec<u8>,
    /// The thread is writing lines that it has taken.
    is_writing: bool,
}

impl LogPipe {
    /// Starts the thread that writes to `output`. It ends with the process.
    pub(super) fn start(output: impl Write + Send + 'static) -> io::Result<LogPipe> {
        let pipe = LogPipe::default();
        let shared = pipe.0.clone();
        std::thread::Builder::new().name("log".to_owned()).spawn(move || write_out(&shared, output))?;
        Ok(pipe)
    }

    /// Lines that did not fit, since the start.
    pub(super) fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Waits until all lines are written, for a second at most.
    pub(super) fn flush(&self) {
        let is_busy = |it: &mut Waiting| it.is_writing || !it.lines.is_empty();
        self.0.changed.wait_while_for(&mut self.0.waiting.lock(), is_busy, FLUSH_MAX);
    }

    fn push(&self, line: &[u8]) {
        let mut waiting = self.0.waiting.lock();
        if waiting.lines.len() + line.len() > BYTES_MAX {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.lines.extend_from_slice(line);
        drop(waiting);
        self.0.changed.notify_all();
    }
}

fn write_out(shared: &Shared, mut output: impl Write) {
    let (mut lines, mut reported) = (Vec::new(), 0);
    loop {
        {
            let mut waiting = shared.waiting.lock();
            waiting.is_writing = false;
            shared.changed.notify_all();
            while waiting.lines.is_empty() {
                shared.changed.wait(&mut waiting);
            }
            std::mem::swap(&mut waiting.lines, &mut lines);
            waiting.is_writing = true;
        }
        // Standard error may be closed. Then there is no place to say so.
        let _ = output.write_all(&lines).and_then(|()| output.flush());
        lines.clear();
        let dropped = shared.dropped.load(Ordering::Relaxed);
        if dropped > reported {
            tracing::warn!(lines = dropped - reported, "log lines were dropped: standard error was not read");
            reported = dropped;
        }
    }
}

/// The subscriber formats a whole line and then writes it at once.
impl Write for LogPipe {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogPipe {
    type Writer = LogPipe;

    fn make_writer(&'a self) -> LogPipe {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// An output that takes a write only when the test says so.
    struct Valve {
        open: mpsc::Receiver<()>,
        written: mpsc::Sender<Vec<u8>>,
    }

    impl Write for Valve {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.open.recv().map_err(io::Error::other)?;
            self.written.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_beyond_the_limit_are_dropped_and_counted_and_none_waits() {
        let ((open, valve), (written, output)) = (mpsc::channel(), mpsc::channel());
        let mut pipe = LogPipe::start(Valve { open: valve, written }).unwrap();
        let line = [b'x'; 1024];
        // The thread may have taken up to one whole buffer; what does not fit in two is dropped.
        let count = 4 * BYTES_MAX / line.len();
        for _ in 0..count {
            pipe.write_all(&line).unwrap();
        }
        let kept = count - usize::try_from(pipe.dropped()).unwrap();
        assert!((BYTES_MAX / line.len()..=2 * BYTES_MAX / line.len()).contains(&kept), "{kept} of {count}");
        drop((0..count).map(|_| open.send(()).unwrap()).collect::<Vec<_>>());
        pipe.flush();
        drop(pipe);
        let bytes: usize = output.try_iter().map(|it| it.len()).sum();
        assert_eq!(bytes, kept * line.len());
    }
}
