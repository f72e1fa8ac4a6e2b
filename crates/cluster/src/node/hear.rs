//! What came of others, and what follows from it.

use crate::directory::{Source, Teller};
use crate::frame::{Beat, Body, Frame, Head, Part, Record, Since, read};
use crate::node::{Heard, Node, Unheard};
use crate::own;
use crate::row::{PeerUpdate, RouterId};
use crate::view::Admission;
use crate::view::rows::Account;
use maitre_base::Instant;
use std::time::Duration;

/// How long one who has just joined waits for pages in somebody's book before asking for them.
const PAGES_LATER: Duration = Duration::from_secs(1);

impl Node {
    pub fn hear(&mut self, now: Instant, frame: &[u8], news: &mut Vec<PeerUpdate>) -> Result<Heard, Unheard> {
        let Frame { head, body } = read::parse(frame)?;
        if head.router == self.id {
            return match head.incarnation > self.incarnation {
                true => Err(Unheard::Namesake(self.name.clone())),
                false => Ok(Heard::Ignored),
            };
        }
        self.stamp = self.stamp.max(head.stamp);
        let admission = match body {
            Body::Bye => self.view.bye(now, &head),
            _ => self.view.admit(now, &head, &body),
        };
        // Also one that is not heard may have made another one go.
        if admission == Admission::Heard {
            self.take(now, &head, &body, news);
            self.view.settle(head.router);
        }
        self.view.tell(news);
        self.warm_up(now);
        match admission {
            Admission::Heard => Ok(Heard::Taken),
            Admission::Late => Ok(Heard::Ignored),
            Admission::Crowded => Err(Unheard::Crowded),
        }
    }

    /// A frame that was kept for those who join. Who said it may be long gone: what it tells of caches is believed, for they
    /// outlive who filled them, and of that router nothing.
    pub fn recall(
        &mut self,
        now: Instant,
        frame: &[u8],
        news: &mut Vec<PeerUpdate>,
    ) -> Result<Heard, Unheard> {
        let Frame { head, body } = read::parse(frame)?;
        let Body::CacheDirectory { records, .. } = body else { return Ok(Heard::Ignored) };
        self.take_records(now, &head, (Source::Memory, &records), news);
        Ok(Heard::Taken)
    }

    fn take(&mut self, now: Instant, head: &Head, body: &Body<'_>, news: &mut Vec<PeerUpdate>) {
        let Some(router) = self.view.get_mut(head.router) else {
            return;
        };
        if router.stream.begin.is_none() {
            let is_delta = matches!(body, Body::Delta(_));
            let begin = head.seq - u64::from(is_delta);
            router.stream.begin = Some(begin);
            router.stream.ask = self.greeting.answers_by();
            // Who has just joined has the chains told so far from somebody's book.
            if !self.greeting.is_warm() {
                router.chains = begin;
            }
        }
        match body {
            Body::Delta(records) => {
                if router.stream.take(head.seq) {
                    router.chains += u64::from(router.chains == head.seq - 1);
                    self.take_records(now, head, (Source::Delta, records), news);
                }
            }
            Body::Beat(beat) => {
                router.stream.expect(head.seq);
                self.take_beat(now, head.router, beat);
            }
            Body::Hello(hello) => {
                router.stream.expect(head.seq);
                router.rename(hello.name);
                self.hear_hello(head, hello);
            }
            Body::Bye => {}
            Body::Snapshot { part, since, name, records } => {
                router.rename(name);
                // What is known up to there needs no snapshot.
                if head.seq > router.stream.upto() {
                    self.take_records(now, head, (Source::Memory, records), news);
                    self.take_part(head, *part, *since);
                }
            }
            Body::CacheDirectory { part, routers, records } => {
                let is_whole = router.book.take(*part);
                self.take_records(now, head, (Source::Memory, records), news);
                self.greeting.hear_book(now, is_whole, routers);
            }
            Body::Aside(records) => {
                router.stream.expect(head.seq);
                self.take_records(now, head, (Source::Memory, records), news);
            }
        }
    }

    fn take_records(
        &mut self,
        now: Instant,
        head: &Head,
        heard: (Source, &[Record<'_>]),
        news: &mut Vec<PeerUpdate>,
    ) {
        let (source, records) = heard;
        let (from, version) = (head.router, head.seq);
        let ask = if self.is_warm() { now } else { now + PAGES_LATER };
        let teller = Teller { router: from, source, ask };
        for record in records {
            match *record {
                Record::Load { worker, load } => self.view.load(from, version, worker, load),
                Record::Facts { worker, facts } => news.extend(self.view.facts(from, version, worker, facts)),
                Record::Gone { worker } => self.view.gone(from, version, worker),
                Record::Pin { model, session, worker, stamp } => {
                    self.take_pin((model, session), (stamp, from, worker), news);
                }
                Record::Spent { model, tenant, born, total } => {
                    news.extend(self.view.spent(from, model, tenant, Account { born, total }));
                }
                Record::Seat(seat) => self.directory.hear(teller, &seat, news),
                Record::Pages { block, parent, links } => self.directory.hear_pages(block, parent, links),
                Record::Resync { router, since } if router == self.id => self.asked_for_rows(since),
                Record::Want { router, block, page } if router == self.id => self.asked_for_page(block, page),
                Record::Resync { .. } | Record::Want { .. } => {}
            }
        }
        self.directory.settle(now, news);
    }

    /// A session was pinned elsewhere. PeerUpdate if that is now the pin that holds, and to another worker than before.
    fn take_pin(
        &mut self,
        (model, session): (u64, u64),
        pin: (u64, RouterId, u64),
        news: &mut Vec<PeerUpdate>,
    ) {
        let key = own::key(model, session);
        self.stamp = self.stamp.max(pin.0);
        let ours = self.our_pin(key);
        let before = self.view.pin(key, ours);
        self.view.set_pin(key, pin);
        let Some((_, _, worker)) = self.view.pin(key, ours) else {
            return;
        };
        if before.is_none_or(|it| it.2 != worker) {
            news.push(PeerUpdate::Pinned { model, session, worker });
        }
    }

    /// A part of a snapshot. With the last one nothing is missing, if it left out only what we know.
    fn take_part(&mut self, head: &Head, part: Part, since: Since) {
        let Some(router) = self.view.get_mut(head.router) else {
            return;
        };
        let upto = router.stream.upto();
        let suffices = since.rows <= upto && since.chains <= router.chains.max(upto);
        router.stream.expect(head.seq);
        if router.snapshot.take(part) && suffices {
            self.view.complete(head.router, head.seq);
        }
    }

    fn take_beat(&mut self, now: Instant, from: RouterId, beat: &Beat<'_>) {
        let Some(router) = self.view.get_mut(from) else {
            return;
        };
        router.rename(beat.name);
        if router.beat.is_some_and(|it| it.0 >= beat.number) {
            return;
        }
        router.beat = Some((beat.number, now));
        (router.peer.served, router.peer.open) = (beat.served, beat.open);
        let Some(echo) = beat.echoes.iter().find(|it| it.router == self.id) else {
            return;
        };
        let sent = self.pulse.sent.iter().find(|it| it.0 == echo.number);
        let held = Duration::from_micros(echo.held_us);
        if let Some(way) = sent.and_then(|it| now.since(it.1).checked_sub(held)) {
            router.peer.lag = Some(way / 2);
        }
    }
}
