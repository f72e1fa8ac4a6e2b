//! The record: one line for each request, as hashes, for `maitre replay`.
//!
//! A request that ends puts an entry into a queue; one thread turns entries into lines and writes them. The queue is
//! bounded, in entries and in bytes: when the disk cannot keep up, entries are dropped and counted, and no request ever
//! waits. Sending costs the request a few atomic operations, because the thread wakes by the clock and not by entries.
//!
//! Recorded is every request whose prompt was tokenized, also if it was refused for lack of capacity, failed, or its
//! client disconnected: all of it is load. Not recorded are requests that the client got wrong (no worker would compute
//! them), those that ended before their prompt was tokenized, and those that decode nothing, such as embeddings.

mod encode;
mod files;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use std::{io, thread};

use maitre_base::{ClassId, Instant, TenantId};
use maitre_dialect::usage::Usage;
use maitre_dispatch::{Arrival, Form, PromptChain};
use parking_lot::Mutex;
use tracing::{info, warn};

use crate::clock::Clock;
use crate::metrics::RecordCounts;
use crate::settings::RouterSettings;
use encode::LineEncoder;
use files::RecordFiles;

/// Entries that wait at most: a tenth of a second at 80,000 requests a second, which is more than a router serves.
const ENTRIES_MAX: usize = 8_192;
/// Prefix hashes in all waiting entries at most: 32 MiB at eight bytes each.
const PREFIXES_MAX: usize = 4 << 20;
/// How long entries gather before they are written; a crash loses as much.
const GATHER: Duration = Duration::from_millis(100);
/// The size at which a batch is written early.
const BATCH_BYTES: usize = 64 << 10;
/// Between two lines of log about the disk. On one that is nearly full, short batches fit and long ones do not: ten
/// times a second one or the other.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// A prompt as the record needs it.
#[derive(Clone, Debug)]
pub(crate) struct RecordedPrompt {
    /// The base model that computes it; empty if no worker lists it.
    pub(crate) model: Arc<str>,
    pub(crate) prompt: PromptChain,
}

/// What is known of a request when the brain decides about it.
#[derive(Debug)]
pub(crate) struct RecordEntry {
    prompt: RecordedPrompt,
    session: Option<u64>,
    class: ClassId,
    tenant: TenantId,
    deadline: Option<Instant>,
    form: Form,
}

impl RecordEntry {
    pub(crate) fn new(prompt: RecordedPrompt, arrival: &Arrival<'_>) -> RecordEntry {
        let &Arrival { session, class, tenant, deadline, form, .. } = arrival;
        RecordEntry { prompt, session, class, tenant, deadline, form }
    }
}

/// What is known when the request ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordEnding {
    pub(crate) arrived: Instant,
    pub(crate) usage: Option<Usage>,
    pub(crate) chunks: u32,
    /// None unless the answer was complete: other times say nothing about an engine.
    pub(crate) times: Option<RecordedTimes>,
}

/// From the arrival at the router.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordedTimes {
    pub(crate) first_chunk: Duration,
    pub(crate) last_chunk: Duration,
}

enum Job {
    Write(Box<RecordEntry>, RecordEnding),
    Finish,
}

#[derive(Debug, thiserror::Error)]
#[error("record to {}: {error}", file.display())]
pub struct NotRecorded {
    file: PathBuf,
    error: io::Error,
}

pub(crate) struct Recorder {
    jobs: SyncSender<Job>,
    /// Prefix hashes in the queue.
    prefixes: Arc<AtomicUsize>,
    counts: RecordCounts,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Recorder {
    /// Opens the file and starts the thread; None if no record is set.
    pub(crate) fn start(
        settings: &RouterSettings,
        clock: Clock,
        counts: RecordCounts,
    ) -> Result<Option<Recorder>, NotRecorded> {
        let Some(file) = settings.record.file.clone() else { return Ok(None) };
        let failed = |error| NotRecorded { file: file.clone(), error };
        let files = RecordFiles::open(file.clone(), &settings.record, clock.now()).map_err(failed)?;
        let (jobs, queue) = sync_channel(ENTRIES_MAX);
        let prefixes = Arc::new(AtomicUsize::new(0));
        let writer = Writer {
            files,
            clock,
            encoder: LineEncoder::new(&settings.brain.queue),
            counts: counts.clone(),
            prefixes: prefixes.clone(),
            batch: LineBatch::default(),
            failures: FailureLog::default(),
        };
        let thread = Builder::new().name("record".to_owned()).spawn(move || writer.run(&queue));
        let writer = Mutex::new(Some(thread.map_err(failed)?));
        Ok(Some(Recorder { jobs, prefixes, counts, writer }))
    }

    /// Never waits: an entry that finds no room is dropped, and counted.
    pub(crate) fn take(&self, entry: Box<RecordEntry>, ending: RecordEnding) {
        let weight = entry.prompt.prompt.chain.len();
        let waiting = self.prefixes.fetch_add(weight, Ordering::Relaxed) + weight;
        if waiting > PREFIXES_MAX || self.jobs.try_send(Job::Write(entry, ending)).is_err() {
            self.prefixes.fetch_sub(weight, Ordering::Relaxed);
            self.counts.dropped.inc();
        }
    }

    /// Waits until all entries taken so far are written. Later ones are dropped.
    pub(crate) fn finish(&self) {
        // Fails only if the thread has ended.
        let _ = self.jobs.send(Job::Finish);
        if let Some(writer) = self.writer.lock().take() {
            let _ = writer.join();
        }
    }
}

/// Whole lines to write.
#[derive(Default)]
struct LineBatch {
    text: String,
    lines: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    More,
    Finish,
}

struct Writer {
    files: RecordFiles,
    clock: Clock,
    encoder: LineEncoder,
    counts: RecordCounts,
    prefixes: Arc<AtomicUsize>,
    batch: LineBatch,
    failures: FailureLog,
}

/// What the log says about the disk.
#[derive(Default)]
struct FailureLog {
    is_failing: bool,
    /// When the last line was logged.
    logged: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiskState {
    Failing,
    Writing,
}

impl FailureLog {
    /// What to log after a write that failed, or did not: a change, unless the last one was logged less than
    /// `LOG_INTERVAL` ago.
    fn change(&mut self, now: Instant, failed: bool) -> Option<DiskState> {
        let is_recent = self.logged.is_some_and(|it| now.since(it) < LOG_INTERVAL);
        if failed == self.is_failing || is_recent {
            return None;
        }
        (self.is_failing, self.logged) = (failed, Some(now));
        Some(if failed { DiskState::Failing } else { DiskState::Writing })
    }
}

impl Writer {
    /// Until the `Finish` job, or until the recorder is dropped.
    fn run(mut self, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            let mut next = self.take(job);
            if next == Next::More {
                thread::sleep(GATHER);
            }
            while next == Next::More
                && let Ok(job) = jobs.try_recv()
            {
                next = self.take(job);
            }
            self.flush();
            if next == Next::Finish {
                return;
            }
        }
    }

    fn take(&mut self, job: Job) -> Next {
        let Job::Write(entry, ending) = job else { return Next::Finish };
        self.prefixes.fetch_sub(entry.prompt.prompt.chain.len(), Ordering::Relaxed);
        let mut line = self.encoder.line(&entry, ending, self.files.began());
        if self.files.is_full(&self.batch, &line, ending.arrived) {
            self.flush();
            let begun = self.files.begin_next(self.clock.now());
            self.log(begun.err());
            line = self.encoder.line(&entry, ending, self.files.began());
        }
        self.batch.text.push_str(&line);
        self.batch.lines += 1;
        if self.batch.text.len() >= BATCH_BYTES {
            self.flush();
        }
        Next::More
    }

    fn flush(&mut self) {
        if self.batch.lines == 0 {
            return;
        }
        let written = self.files.write(self.batch.text.as_bytes());
        match &written {
            Ok(()) => self.counts.requests.inc_by(self.batch.lines),
            Err(_) => self.counts.dropped.inc_by(self.batch.lines),
        };
        self.log(written.err());
        self.batch.text.clear();
        self.batch.lines = 0;
    }

    /// Logs that writes begin to fail, and that they succeed again.
    fn log(&mut self, error: Option<io::Error>) {
        let change = self.failures.change(self.clock.now(), error.is_some());
        let file = self.files.path().display();
        match (change, error) {
            (Some(DiskState::Failing), Some(error)) => warn!(%file, %error, "requests are not recorded"),
            (Some(DiskState::Writing), _) => info!(%file, "requests are recorded again"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
