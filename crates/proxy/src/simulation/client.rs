//! Clients: they check each answer, and leave, stop reading or hesitate as the seed says.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use maitre_base::Rng;
use maitre_net::simulated;
use tokio::time::{sleep, timeout};

use super::LIMIT;
use super::message::{MessageBody, MessageHead, Peer, number_after};
use super::router::RouterProcess;
use super::world::World;

/// Requests that a client may number: those of client 3 begin at 300.
const REQUESTS_MAX: u32 = 100;

/// More than two requests have.
const BYTES_TO_PIPELINE: usize = 10_000;

pub(super) struct Client {
    world: Arc<World>,
    number: u32,
    /// Where it is connected.
    router: Arc<RouterProcess>,
    peer: Peer,
    /// It may send a second request before it reads the response to the first: the buffers of its connection hold both.
    pipelines: bool,
    rng: Rng,
}

/// How a client behaves during a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conduct {
    Reads,
    ReadsSlowly,
    /// It closes the connection after this time.
    Leaves(Duration),
    StopsReading,
    /// It closes the connection with half a request on it.
    LeavesInRequest,
}

struct Outgoing {
    number: u32,
    bytes: String,
    id: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum Received {
    Whole,
    Broken,
    Refused(u16),
    /// The router expects the first token after the deadline, of the request or of its class.
    Late,
    /// No response at all.
    Nothing,
}

impl Client {
    /// Connects to a router, with buffers of `bytes_max` bytes. None if it takes no connections.
    pub(super) fn connect(
        world: Arc<World>,
        number: u32,
        (router, bytes_max): (usize, usize),
        mut rng: Rng,
    ) -> Option<Client> {
        let (ours, theirs) = simulated::pair(Rng::new(rng.next_u64()), bytes_max);
        let router = world.routers[router].process().filter(|it| it.accept(theirs))?;
        world.served_by.lock().insert(number, router.clone());
        let pipelines = bytes_max >= BYTES_TO_PIPELINE;
        Some(Client { world, number, router, peer: Peer::new(ours), pipelines, rng })
    }

    /// Which client sent a request.
    pub(super) const fn of(request: u32) -> u32 {
        request / REQUESTS_MAX
    }

    fn millis(&mut self, below: usize) -> Duration {
        Duration::from_millis(self.rng.below(below) as u64)
    }

    /// Sends requests one after the other, sometimes two at once, until the connection ends.
    pub(super) async fn run(mut self) {
        let mut next = self.number * REQUESTS_MAX;
        for _ in 0..1 + self.rng.below(5) {
            let pause = self.millis(1_500);
            sleep(pause).await;
            let count = if self.pipelines && self.rng.below(4) == 0 { 2 } else { 1 };
            let batch: Vec<Outgoing> = (next..next + count).map(|it| self.request(it)).collect();
            next += count;
            let conduct = self.conduct();
            for request in &batch {
                self.world.say(&format!("client {} sends r{}: {conduct:?}", self.number, request.number));
            }
            let Ok(goes_on) = timeout(LIMIT, self.behave(&batch, conduct)).await else {
                let numbers: Vec<_> = batch.iter().map(|it| it.number).collect();
                return self.world.violate(&format!("request did not end: one of {numbers:?}"));
            };
            if !goes_on {
                return;
            }
        }
    }

    fn conduct(&mut self) -> Conduct {
        match self.rng.below(20) {
            0..12 => Conduct::Reads,
            12..15 => Conduct::ReadsSlowly,
            15..18 => Conduct::Leaves(self.millis(2_500)),
            18 => Conduct::StopsReading,
            _ => Conduct::LeavesInRequest,
        }
    }

    fn request(&mut self, number: u32) -> Outgoing {
        let stream = self.rng.below(2) == 0;
        let text = "word ".repeat(self.rng.below(400));
        let body = format!(
            r#"{{"model":"m","stream":{stream},"messages":[{{"role":"user","content":"request r{number}; {text}"}}]}}"#
        );
        let mut head = "POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\n".to_owned();
        let id = (self.rng.below(3) > 0).then(|| format!("c{number}"));
        if let Some(id) = &id {
            let _ = write!(head, "x-request-id: {id}\r\n");
        }
        // Urgent requests may have others recalled.
        let has_deadline = self.rng.below(3) == 0;
        let class = if has_deadline { "interactive" } else { ["standard", "batch"][self.rng.below(2)] };
        let _ = write!(head, "x-maitre-class: {class}\r\n");
        if has_deadline {
            let _ = write!(head, "x-maitre-deadline-ms: {}\r\n", 20 + self.rng.below(3_000));
        }
        let bytes = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        Outgoing { number, bytes, id }
    }

    /// Returns whether the connection carries another request.
    async fn behave(&mut self, batch: &[Outgoing], conduct: Conduct) -> bool {
        let slow = self.millis(200);
        match conduct {
            Conduct::Reads => {}
            Conduct::ReadsSlowly => self.peer.pause = slow,
            Conduct::Leaves(after) => {
                tokio::select! {
                    biased;
                    _ = self.exchange(batch) => {}
                    () = sleep(after) => {}
                }
                return self.leave();
            }
            Conduct::StopsReading => {
                self.send(batch).await;
                while self.peer.stream.handle().is_peer_open() {
                    sleep(Duration::from_millis(500)).await;
                }
                return self.leave();
            }
            Conduct::LeavesInRequest => {
                let bytes = &batch[0].bytes;
                let part = self.rng.below(bytes.len());
                self.peer.write(&bytes.as_bytes()[..part]).await;
                let pause = self.millis(6_000);
                sleep(pause).await;
                return self.leave();
            }
        }
        self.exchange(batch).await
    }

    fn leave(&self) -> bool {
        self.world.say(&format!("client {} leaves", self.number));
        false
    }

    /// Writes the requests, in pieces. A failure shows when the responses are read.
    async fn send(&mut self, batch: &[Outgoing]) {
        let bytes: Vec<u8> = batch.iter().flat_map(|it| it.bytes.bytes()).collect();
        let pieces = 1 + self.rng.below(4);
        for piece in bytes.chunks(bytes.len().div_ceil(pieces)) {
            if !self.peer.write(piece).await {
                return;
            }
            if self.rng.below(4) == 0 {
                let pause = self.millis(300);
                sleep(pause).await;
            }
        }
    }

    async fn exchange(&mut self, batch: &[Outgoing]) -> bool {
        self.send(batch).await;
        for request in batch {
            let Some(head) = self.peer.head().await else {
                self.ended(request, Received::Nothing);
                return false;
            };
            let body = self.peer.body(&head).await;
            let received = self.check(request, &head, &body);
            self.ended(request, received);
            if !body.is_complete || head.header("connection") == Some("close") {
                return false;
            }
        }
        if !self.peer.unused.is_empty() {
            self.world.violate(&format!("r{} is answered twice", batch[0].number));
        }
        true
    }

    fn ended(&self, request: &Outgoing, received: Received) {
        self.world.say(&format!("client {} has of r{}: {received:?}", self.number, request.number));
        let is_expected = matches!(received, Received::Whole | Received::Late);
        if self.world.faults_percent == 0 && !is_expected && !self.router.is_ending() {
            let law =
                format!("r{} is not answered ({received:?}), though nothing went wrong", request.number);
            self.world.violate(&law);
        }
    }

    /// Checks that the response is the one to this request, and what it is.
    fn check(&self, request: &Outgoing, head: &MessageHead, body: &MessageBody) -> Received {
        let text = String::from_utf8_lossy(&body.bytes);
        // A worker that stops may stop in the middle of an event.
        let is_event = |it: &&str| it.contains("\"r\":") && it.ends_with('}');
        let events: Vec<&str> = text.split("\n\n").filter(is_event).collect();
        let number = request.number;
        for event in &events {
            if number_after(event, "\"r\":") != Some(number) {
                self.world.violate(&format!("r{number} gets another's answer: {event}"));
            }
        }
        let named = head.header("x-request-id");
        if request.id.is_some() && named != request.id.as_deref() {
            self.world.violate(&format!("r{number} gets another's answer: its id is {named:?}"));
        }
        if head.status() == 504 && text.contains(r#""code":"deadline""#) {
            return Received::Late;
        }
        if head.status() != 200 {
            return Received::Refused(head.status());
        }
        let indices: Vec<_> = events.iter().map(|it| number_after(it, "\"i\":")).collect();
        if indices.iter().enumerate().any(|(index, it)| *it != Some(index as u32)) {
            self.world.violate(&format!("r{number} gets events out of order, or twice: {indices:?}"));
        }
        if !body.is_complete {
            return Received::Broken;
        }
        let of = events.last().and_then(|it| number_after(it, "\"of\":"));
        let is_stream = head.header("content-type") == Some("text/event-stream");
        let has_end = !is_stream || text.trim_end().ends_with("data: [DONE]");
        match (text.contains("\"error\""), has_end && of == Some(events.len() as u32)) {
            (false, true) => Received::Whole,
            (true, _) if !text.contains("[DONE]") => Received::Broken,
            _ => {
                self.world.violate(&format!("r{number} gets a part of an answer that looks complete"));
                Received::Broken
            }
        }
    }
}
