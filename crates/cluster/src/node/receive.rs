//! Applies received frames.

use crate::directory::{Freshness, Origin};
use crate::frame::{Body, Frame, FrameError, Head, Heartbeat, Part, Record, Since, read};
use crate::node::{Node, Received};
use crate::own_rows;
use crate::row::{PeerUpdate, RouterId};
use crate::view::Admission;
use crate::view::rows::PeerAccount;
use maitre_base::Instant;
use std::time::Duration;

/// How long a joining router waits for segments in a directory snapshot before it requests them.
const SEGMENT_REQUEST_DELAY: Duration = Duration::from_secs(1);

impl Node {
    pub fn receive(
        &mut self,
        now: Instant,
        frame: &[u8],
        updates: &mut Vec<PeerUpdate>,
    ) -> Result<Received, FrameError> {
        let Frame { head, body } = read::parse(frame)?;
        if head.router == self.id {
            return match head.incarnation > self.incarnation {
                true => Err(FrameError::NameTaken(self.name.clone())),
                false => Ok(Received::Ignored),
            };
        }
        self.stamp = self.stamp.max(head.stamp);
        let admission = match body {
            Body::Leave => self.view.leave(now, &head),
            _ => self.view.admit(now, &head, &body),
        };
        // A rejected frame may still have removed a router.
        if admission == Admission::Accepted {
            self.apply(now, &head, &body, updates);
            self.view.drop_tombstones(head.router);
        }
        self.view.emit(updates);
        self.check_synced(now);
        match admission {
            Admission::Accepted => Ok(Received::Applied),
            Admission::Stale => Ok(Received::Ignored),
            Admission::TooManyRouters => Err(FrameError::TooManyRouters),
        }
    }

    /// Applies a stored frame. Its sender may be long gone, so only its cache directory is applied: caches outlive
    /// routers.
    pub fn receive_stored(
        &mut self,
        now: Instant,
        frame: &[u8],
        updates: &mut Vec<PeerUpdate>,
    ) -> Result<Received, FrameError> {
        let Frame { head, body } = read::parse(frame)?;
        let Body::CacheDirectory { records, .. } = body else { return Ok(Received::Ignored) };
        self.apply_records(now, &head, (Freshness::Stored, &records), updates);
        Ok(Received::Applied)
    }

    fn apply(&mut self, now: Instant, head: &Head, body: &Body<'_>, updates: &mut Vec<PeerUpdate>) {
        let Some(router) = self.view.get_mut(head.router) else {
            return;
        };
        if router.stream.listening_since.is_none() {
            let is_delta = matches!(body, Body::Delta(_));
            let listening_since = head.seq - u64::from(is_delta);
            router.stream.listening_since = Some(listening_since);
            router.stream.ask_at = self.join.answers_by();
            // A joining router gets the chains published so far from a directory snapshot.
            if !self.join.is_synced() {
                router.chains = listening_since;
            }
        }
        match body {
            Body::Delta(records) => {
                if router.stream.record(head.seq) {
                    router.chains += u64::from(router.chains == head.seq - 1);
                    self.apply_records(now, head, (Freshness::Live, records), updates);
                }
            }
            Body::Heartbeat(heartbeat) => {
                router.stream.announce(head.seq);
                self.apply_heartbeat(now, head.router, heartbeat);
            }
            Body::Hello(hello) => {
                router.stream.announce(head.seq);
                router.rename(hello.name);
                self.receive_hello(head, hello);
            }
            Body::Leave => {}
            Body::Snapshot { part, since, name, records } => {
                router.rename(name);
                // A snapshot of what is already applied is not needed.
                if head.seq > router.stream.applied() {
                    self.apply_records(now, head, (Freshness::Stored, records), updates);
                    self.apply_part(head, *part, *since);
                }
            }
            Body::CacheDirectory { part, routers, records } => {
                let is_complete = router.directory_parts.record(*part);
                self.apply_records(now, head, (Freshness::Stored, records), updates);
                self.join.receive_directory(now, is_complete, routers);
            }
            Body::Repair(records) => {
                router.stream.announce(head.seq);
                self.apply_records(now, head, (Freshness::Stored, records), updates);
            }
        }
    }

    fn apply_records(
        &mut self,
        now: Instant,
        head: &Head,
        received: (Freshness, &[Record<'_>]),
        updates: &mut Vec<PeerUpdate>,
    ) {
        let (freshness, records) = received;
        let (from, version) = (head.router, head.seq);
        let ask_at = if self.is_synced() { now } else { now + SEGMENT_REQUEST_DELAY };
        let origin = Origin { router: from, freshness, ask_at };
        for record in records {
            match *record {
                Record::Load { worker, load } => self.view.load(from, version, worker, load),
                Record::Facts { worker, facts } => {
                    updates.extend(self.view.facts(from, version, worker, facts))
                }
                Record::Removed { worker } => self.view.remove_worker(from, version, worker),
                Record::Pin { model, session, worker, stamp } => {
                    self.apply_pin((model, session), (stamp, from, worker), updates);
                }
                Record::Spent { model, tenant, first_delta, total } => {
                    updates.extend(self.view.spent(from, model, tenant, PeerAccount { first_delta, total }));
                }
                Record::Placement(placement) => self.directory.receive(origin, &placement, updates),
                Record::Segments { block, parent, links } => {
                    self.directory.receive_segments(block, parent, links)
                }
                Record::Resync { router, since } if router == self.id => self.note_rows_request(since),
                Record::WantSegments { router, block, segment } if router == self.id => {
                    self.note_segment_request(block, segment)
                }
                Record::Resync { .. } | Record::WantSegments { .. } => {}
            }
        }
        self.directory.retry_parked(now, updates);
    }

    /// A peer pinned a session. Emits an update if that pin wins and names another worker than before.
    fn apply_pin(
        &mut self,
        (model, session): (u64, u64),
        pin: (u64, RouterId, u64),
        updates: &mut Vec<PeerUpdate>,
    ) {
        let key = own_rows::row_key(model, session);
        self.stamp = self.stamp.max(pin.0);
        let ours = self.our_pin(key);
        let before = self.view.pin(key, ours);
        self.view.set_pin(key, pin);
        let Some((_, _, worker)) = self.view.pin(key, ours) else {
            return;
        };
        if before.is_none_or(|it| it.2 != worker) {
            updates.push(PeerUpdate::Pinned { model, session, worker });
        }
    }

    /// Records a part of a snapshot. The last part closes the gap if the snapshot left out only what we know.
    fn apply_part(&mut self, head: &Head, part: Part, since: Since) {
        let Some(router) = self.view.get_mut(head.router) else {
            return;
        };
        let applied = router.stream.applied();
        let suffices = since.rows <= applied && since.chains <= router.chains.max(applied);
        router.stream.announce(head.seq);
        if router.snapshot_parts.record(part) && suffices {
            self.view.complete(head.router, head.seq);
        }
    }

    fn apply_heartbeat(&mut self, now: Instant, from: RouterId, heartbeat: &Heartbeat<'_>) {
        let Some(router) = self.view.get_mut(from) else {
            return;
        };
        router.rename(heartbeat.name);
        if router.heartbeat.is_some_and(|it| it.0 >= heartbeat.number) {
            return;
        }
        router.heartbeat = Some((heartbeat.number, now));
        (router.peer.served, router.peer.in_flight) = (heartbeat.served, heartbeat.in_flight);
        let Some(echo) = heartbeat.echoes.iter().find(|it| it.router == self.id) else {
            return;
        };
        let sent = self.heartbeats.sent.iter().find(|it| it.0 == echo.number);
        let held = Duration::from_micros(echo.held_us);
        if let Some(round_trip) = sent.and_then(|it| now.since(it.1).checked_sub(held)) {
            router.peer.lag = Some(round_trip / 2);
        }
    }
}
