//! The record: a line for each request that came, as hashes, for `maitre replay` to play again.
//!
//! A visit that ends leaves a note in a queue and goes its way; one thread turns notes into lines and writes
//! them. The queue is bounded, in notes and in what they weigh: when the disk cannot keep up, notes are
//! dropped and counted, and no request ever waits. To send costs the lane a few atomic operations, since
//! the thread sleeps between batches by the clock and not until it is woken.
//!
//! Taken down is every request whose prompt was read, also one that was refused for lack of room, failed or
//! was left by its client: all of that came in. Not taken down is what the client got wrong (nobody would
//! compute it), what left before its prompt was read, and what writes no answer, such as embeddings.

mod files;
mod line;

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
use crate::metrics::Recorded;
use crate::reading::Reading;
use crate::settings::Settings;
use files::Files;
use line::Scribe;

/// Notes that wait at the most. A tenth of a second's worth at 80,000 requests a second, which is more than
/// a router serves.
const NOTES_MAX: usize = 8_192;
/// Prefixes that they hold together at the most: 32 MiB at eight bytes each.
const PREFIXES_MAX: usize = 4 << 20;
/// How long notes gather before they are written. It is also how much a crash loses.
const GATHER: Duration = Duration::from_millis(100);
/// What is written at once.
const BATCH_BYTES: usize = 64 << 10;

/// A prompt as the record wants it.
#[derive(Clone, Debug)]
pub(crate) struct Noted {
    /// The one that computes it; empty if nobody lists it.
    pub(crate) model: Arc<str>,
    pub(crate) prompt: PromptChain,
}

/// What is known of a request when it is seated.
#[derive(Debug)]
pub(crate) struct Note {
    noted: Noted,
    session: Option<u64>,
    class: ClassId,
    tenant: TenantId,
    deadline: Option<Instant>,
    form: Form,
}

impl Note {
    /// None where no record is kept, or nothing was read.
    pub(crate) fn new(reading: &Reading, arrival: &Arrival<'_>) -> Option<Box<Note>> {
        let noted = reading.noted.clone()?;
        let &Arrival { session, class, tenant, deadline, form, .. } = arrival;
        Some(Box::new(Note { noted, session, class, tenant, deadline, form }))
    }
}

/// What is known once it is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) arrived: Instant,
    pub(crate) usage: Option<Usage>,
    pub(crate) pieces: u32,
}

enum Job {
    Write(Box<Note>, Ended),
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
    /// Prefixes in the queue.
    prefixes: Arc<AtomicUsize>,
    counts: Recorded,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Recorder {
    /// Opens the file and starts the thread; none if nothing is to be taken down.
    pub(crate) fn start(
        settings: &Settings,
        clock: Clock,
        counts: Recorded,
    ) -> Result<Option<Recorder>, NotRecorded> {
        let Some(file) = settings.record.file.clone() else { return Ok(None) };
        let failed = |error| NotRecorded { file: file.clone(), error };
        let files = Files::open(file.clone(), &settings.record, clock.now()).map_err(failed)?;
        let (jobs, queue) = sync_channel(NOTES_MAX);
        let prefixes = Arc::new(AtomicUsize::new(0));
        let writer = Writer {
            files,
            clock,
            scribe: Scribe::new(&settings.brain.queue),
            counts: counts.clone(),
            prefixes: prefixes.clone(),
            batch: Batch::default(),
            fails: false,
        };
        let thread = Builder::new().name("record".to_owned()).spawn(move || writer.run(&queue));
        let writer = Mutex::new(Some(thread.map_err(failed)?));
        Ok(Some(Recorder { jobs, prefixes, counts, writer }))
    }

    /// Never waits: what finds no room is dropped, and counted.
    pub(crate) fn take(&self, note: Box<Note>, ended: Ended) {
        let weight = note.noted.prompt.chain.len();
        let waiting = self.prefixes.fetch_add(weight, Ordering::Relaxed) + weight;
        if waiting > PREFIXES_MAX || self.jobs.try_send(Job::Write(note, ended)).is_err() {
            self.prefixes.fetch_sub(weight, Ordering::Relaxed);
            self.counts.dropped.inc();
        }
    }

    /// Waits until all that was taken is written. What comes later is dropped.
    pub(crate) fn finish(&self) {
        // It fails only if the thread is gone.
        let _ = self.jobs.send(Job::Finish);
        if let Some(writer) = self.writer.lock().take() {
            let _ = writer.join();
        }
    }
}

/// Whole lines on their way to the file.
#[derive(Default)]
struct Batch {
    text: String,
    lines: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    More,
    Finish,
}

struct Writer {
    files: Files,
    clock: Clock,
    scribe: Scribe,
    counts: Recorded,
    prefixes: Arc<AtomicUsize>,
    batch: Batch,
    /// What the log said last.
    fails: bool,
}

impl Writer {
    /// Until it is told to finish, or there is nobody left to tell it anything.
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
        let Job::Write(note, ended) = job else { return Next::Finish };
        self.prefixes.fetch_sub(note.noted.prompt.chain.len(), Ordering::Relaxed);
        let mut line = self.scribe.line(&note, ended, self.files.began());
        if self.files.is_full(&self.batch, &line, ended.arrived) {
            self.flush();
            let begun = self.files.begin_next(self.clock.now());
            self.tell(begun.err());
            line = self.scribe.line(&note, ended, self.files.began());
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
        self.tell(written.err());
        self.batch.text.clear();
        self.batch.lines = 0;
    }

    /// Tells the operator, once for each change.
    fn tell(&mut self, error: Option<io::Error>) {
        let file = self.files.path().display();
        match error {
            Some(error) if !self.fails => warn!(%file, %error, "requests are not recorded"),
            None if self.fails => info!(%file, "requests are recorded again"),
            _ => return,
        }
        self.fails = !self.fails;
    }
}

#[cfg(test)]
mod tests;
