//! Requests for missing data, and answers to peers' requests.
//!
//! Answers go to all peers, so requests that arrive together get one answer, and it is not repeated right away. The
//! directory is sent over several flushes, because an overfull transport drops its oldest frames.

use std::time::Duration;

use crate::directory::snapshot::SnapshotScope;
use crate::frame::write::{self, RecordBuffer};
use crate::frame::{PARTS_MAX, Part, Record, Since};
use crate::node::Node;
use crate::row::RouterId;
use maitre_base::Instant;

/// Interval between two requests for the same router's rows.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Minimum interval between two snapshots of our rows.
const ROWS_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum interval between two directory snapshots.
const DIRECTORY_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum bytes of a directory snapshot.
const DIRECTORY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Maximum bytes of chains in an answer to a router that missed some.
const CHAINS_BYTES_MAX: usize = 1024 * 1024;
/// Maximum bytes of segments per flush.
const SEGMENTS_BYTES_MAX: usize = 1024 * 1024;
/// Directory frames per flush. Chosen by calculation: the largest directory is sent within a third of a second,
/// before it may be sent again. A backlog of 4 MB to each of ten peers on a gigabit link holds what is still unsent.
const DIRECTORY_FRAMES_PER_FLUSH: usize = 2;
/// Maximum segments that peers may request between two flushes.
const REQUESTED_SEGMENTS_MAX: usize = 256;

impl Node {
    /// All our rows and the cache directory, as frames that need no earlier frame.
    pub fn snapshot(&mut self, _now: Instant) -> Vec<Vec<u8>> {
        let mut frames = self.rows(Since { rows: 0, chains: self.seq });
        frames.extend(self.directory_snapshot());
        frames
    }

    /// A peer lacks rows of ours.
    pub(super) fn note_rows_request(&mut self, since: Since) {
        let requests = self.requests.rows.get_or_insert(since);
        requests.rows = requests.rows.min(since.rows);
        requests.chains = requests.chains.min(since.chains);
    }

    pub(super) fn note_directory_request(&mut self) {
        self.requests.wants_directory = true;
    }

    pub(super) fn note_segment_request(&mut self, block: u32, segment: u64) {
        let is_new =
            self.directory.has_segment(segment) && !self.requests.segments.contains(&(block, segment));
        if is_new && self.requests.segments.len() < REQUESTED_SEGMENTS_MAX {
            self.requests.segments.push((block, segment));
        }
    }

    /// Whether there is something to request.
    pub(super) fn asks(&self, now: Instant) -> bool {
        let has_gaps = self.view.live().any(|it| it.stream.has_gaps() && it.stream.ask_at <= now);
        has_gaps || self.directory.next_request_at().is_some_and(|it| it <= now)
    }

    /// Whether there is something to answer.
    pub(super) fn answers(&self, now: Instant) -> bool {
        !self.requests.segments.is_empty()
            || !self.requests.directory_frames.is_empty()
            || self.requests.rows.is_some() && is_over(self.requests.rows_sent_at, ROWS_INTERVAL, now)
            || self.requests.wants_directory
                && is_over(self.requests.directory_sent_at, DIRECTORY_INTERVAL, now)
    }

    /// Requests what we lack, and sends the segments that peers requested.
    pub(super) fn ask(&mut self, now: Instant, frames: &mut Vec<Vec<u8>>) {
        let mut buffers = RecordBuffers::default();
        for router in self.view.live_mut() {
            let (applied, chains) = (router.stream.applied(), router.chains);
            if router.stream.has_gaps() && router.stream.ask_at <= now {
                router.stream.ask_at = now + ASK_AGAIN;
                self.repairs += 1;
                let since = Since { rows: applied, chains: chains.max(applied) };
                buffers.push(&Record::Resync { router: router.peer.id, since });
            }
        }
        let mut requests = Vec::new();
        self.directory.due_requests(now, &mut requests);
        for request in requests {
            buffers.push(&Record::WantSegments {
                router: request.router,
                block: request.block,
                segment: request.segment,
            });
        }
        let requested = std::mem::take(&mut self.requests.segments);
        self.directory.write_segments(&requested, SEGMENTS_BYTES_MAX, |record| buffers.push(record));
        let head = self.head();
        frames.extend(buffers.0.iter_mut().map(|buffer| write::repair(&head, buffer)));
    }

    /// Sends our rows and the directory if a peer requested them.
    pub(super) fn answer(&mut self, now: Instant, frames: &mut Vec<Vec<u8>>) {
        if is_over(self.requests.rows_sent_at, ROWS_INTERVAL, now)
            && let Some(since) = self.requests.rows.take()
        {
            self.requests.rows_sent_at = Some(now);
            frames.extend(self.rows(since));
        }
        if self.requests.wants_directory && is_over(self.requests.directory_sent_at, DIRECTORY_INTERVAL, now)
        {
            (self.requests.wants_directory, self.requests.directory_sent_at) = (false, Some(now));
            // Replaces the rest of an earlier snapshot.
            self.requests.directory_frames = self.directory_snapshot().into();
        }
        let count = self.requests.directory_frames.len().min(DIRECTORY_FRAMES_PER_FLUSH);
        frames.extend(self.requests.directory_frames.drain(..count));
    }

    /// Our rows as of the last delta, and chains published after `since.chains`.
    fn rows(&mut self, since: Since) -> Vec<Vec<u8>> {
        let mut buffers = RecordBuffers::default();
        self.own_rows.write_snapshot(since.rows, |record| buffers.push(record));
        if since.chains < self.seq {
            let scope = SnapshotScope::OursSince(since.chains);
            self.directory.write_snapshot(scope, CHAINS_BYTES_MAX, |record| buffers.push(record));
        }
        let (head, edition) = (self.head(), self.next_edition());
        let name = self.name.as_str();
        buffers.finish(edition, |part, buffer| {
            let name = if part.index == 0 { name } else { "" };
            write::snapshot(&head, part, since, name, buffer)
        })
    }

    /// The directory snapshot.
    fn directory_snapshot(&mut self) -> Vec<Vec<u8>> {
        let mut buffers = RecordBuffers::default();
        self.directory.write_snapshot(SnapshotScope::All, DIRECTORY_BYTES_MAX, |record| buffers.push(record));
        let (head, edition) = (self.head(), self.next_edition());
        let routers: Vec<RouterId> = self.view.live().map(|it| it.peer.id).collect();
        buffers.finish(edition, |part, buffer| {
            let routers = if part.index == 0 { &routers[..] } else { &[] };
            write::directory(&head, part, routers, buffer)
        })
    }

    fn next_edition(&mut self) -> u64 {
        self.requests.edition += 1;
        self.requests.edition
    }
}

fn is_over(published: Option<Instant>, gap: Duration, now: Instant) -> bool {
    published.is_none_or(|it| now.since(it) >= gap)
}

/// Records spread over as many frames as they need.
#[derive(Default)]
struct RecordBuffers(Vec<RecordBuffer>);

impl RecordBuffers {
    fn push(&mut self, record: &Record<'_>) {
        if self.0.last_mut().is_none_or(|buffer| !buffer.try_push(record)) {
            let mut buffer = RecordBuffer::default();
            buffer.try_push(record);
            self.0.push(buffer);
        }
    }

    /// The frames of one edition: at least one, so that the asker sees the end.
    fn finish(
        mut self,
        edition: u64,
        mut frame: impl FnMut(Part, &mut RecordBuffer) -> Vec<u8>,
    ) -> Vec<Vec<u8>> {
        if self.0.is_empty() {
            self.0.push(RecordBuffer::default());
        }
        debug_assert!(self.0.len() <= PARTS_MAX as usize, "bounded by what is snapshot_of");
        let count = self.0.len() as u32;
        let parts = (0..count).map(|index| Part { edition, index, count });
        parts.zip(&mut self.0).map(|(part, buffer)| frame(part, buffer)).collect()
    }
}
