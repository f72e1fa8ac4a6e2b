//! Workers: they answer each request with its own number, and do wrong what the seed says.

use std::sync::Arc;
use std::time::Duration;

use maitre_base::Rng;
use maitre_net::simulated::{self, Dialed, SimulatedStream};
use maitre_net::worker_url::WorkerUrl;
use tokio::time::sleep;

use super::host::Host;
use super::message::{MessageHead, Peer, chunk, number_after};
use super::world::{Exchange, World};
use crate::roster::By;

/// Added to the number of a request in an answer that nobody asked for.
const SURPLUS: u32 = 900_000;

/// What a worker does wrong with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Misdeed {
    /// The answer ends after this part of it, in percent.
    Stops(usize, Ending),
    Declines(u16),
    /// An answer that nobody asked for follows, at once or a little later.
    Surplus {
        is_late: bool,
    },
    /// The response names the id of another request.
    WrongId,
}

/// What becomes of the connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Keep,
    Close,
    Reset,
    Hang,
}

fn millis(rng: &mut Rng, below: usize) -> Duration {
    Duration::from_millis(rng.below(below) as u64)
}

/// The router connects to a worker.
#[expect(clippy::disallowed_methods, reason = "the simulation's runtime ends all its tasks")]
pub(super) fn dial(world: &Arc<World>, host: &Arc<Host>) -> Dialed {
    if !host.is_up() {
        return Dialed::Refused;
    }
    let mut rng = Rng::new(host.next_seed());
    if host.is_frozen(world.now_ms()) && rng.below(2) == 0 {
        return Dialed::Silent;
    }
    let bytes_max = [100, 1_000, 20_000][rng.below(3)];
    let (ours, theirs) = simulated::pair(Rng::new(rng.next_u64()), bytes_max);
    host.connected(theirs.handle());
    tokio::spawn(serve(world.clone(), host.clone(), theirs, rng));
    Dialed::Open(ours)
}

async fn thawed(world: &World, host: &Host) {
    while let Some(left) = host.frozen_for(world.now_ms()) {
        sleep(left).await;
    }
}

/// Within a timeout, past the timeouts of workers and clients, and past all deadlines.
const JUMPS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(7), Duration::from_secs(45)];

/// Crashes, hangs, restarts, workers that leave the fleet and return, and time that jumps, until the run ends.
pub(super) async fn disturb(world: &World, seed: u64) {
    let mut rng = Rng::new(seed);
    if world.faults_percent == 0 {
        return;
    }
    for _ in 0..rng.below(6) {
        if !world.goes_on_after(millis(&mut rng, 3_000)).await {
            return;
        }
        let host = &world.hosts[rng.below(world.hosts.len())];
        let (name, lasts) = (&host.name, millis(&mut rng, 5_000));
        match rng.below(5) {
            0 => {
                world.say(&format!("{name} crashes for {lasts:?}"));
                host.crash();
                world.goes_on_after(lasts).await;
                world.say(&format!("{name} is back"));
                host.restart();
            }
            1 => {
                world.say(&format!("{name} hangs for {lasts:?}"));
                host.freeze_until(world.now_ms() + lasts.as_millis() as u64);
            }
            2 => {
                world.say(&format!("{name} reports to be unhealthy for {lasts:?}"));
                host.set_unhealthy(true);
                world.goes_on_after(lasts).await;
                host.set_unhealthy(false);
            }
            3 => {
                // As after a suspended machine: whatever was due in the meantime is due at once.
                let jump = JUMPS[rng.below(JUMPS.len())];
                world.say(&format!("the clock jumps by {jump:?}"));
                tokio::time::advance(jump).await;
            }
            _ => remove(world, name, lasts, rng.below(world.routers.len() + 1)).await,
        }
    }
}

/// Removes a worker from the settings for a while: at one router, or at all where there is none of this number.
async fn remove(world: &World, name: &str, lasts: Duration, at: usize) {
    let others: Vec<_> = world.workers.iter().filter(|it| it.address.host() != name).cloned().collect();
    let at = world.routers.get(at);
    let set = |workers: &[WorkerUrl]| {
        let meant = world.running().into_iter().filter(|it| at.is_none_or(|at| at.index == it.0.index));
        meant.for_each(|it| drop(it.1.roster.set(By::Settings, workers)));
    };
    let place = at.map_or("all routers", |it| &it.name);
    world.say(&format!("{name} is removed from the settings of {place} for {lasts:?}"));
    set(&others);
    world.goes_on_after(lasts).await;
    set(&world.workers);
}

/// One connection from the router.
async fn serve(world: Arc<World>, host: Arc<Host>, stream: SimulatedStream, mut rng: Rng) {
    let mut peer = Peer::new(stream);
    let mut surplus = None;
    let mut is_used = false;
    loop {
        let Some(head) = next(&mut peer, &mut rng, is_used, surplus.take()).await else { return };
        is_used = true;
        let body = peer.body(&head).await;
        thawed(&world, &host).await;
        if !body.is_complete {
            return;
        }
        let path = head.start.split(' ').nth(1).unwrap_or_default();
        if head.start.starts_with("GET") {
            if !peer.write(page(&host, path).as_bytes()).await {
                return;
            }
            continue;
        }
        let body = String::from_utf8_lossy(&body.bytes).into_owned();
        let Some(request) = number_after(&body, "request r") else { return };
        let mut answer = Answer::new(&world, &host, &mut rng, (request, &head, &body));
        world.say(&format!("{} gets r{request}: {:?}, then {:?}", host.name, answer.misdeed, answer.ending));
        match answer.give(&world, &host, &mut peer).await {
            Ending::Keep => surplus = answer.surplus.take(),
            Ending::Close => return,
            Ending::Reset => return peer.stream.handle().reset(),
            Ending::Hang => {
                while peer.stream.handle().is_peer_open() {
                    sleep(Duration::from_millis(500)).await;
                }
                return;
            }
        }
    }
}

/// The head of the next request. Meanwhile the worker may send bytes that nobody asked for, or close as idle, if
/// the connection was used before.
async fn next(
    peer: &mut Peer,
    rng: &mut Rng,
    is_used: bool,
    surplus: Option<(Duration, String)>,
) -> Option<MessageHead> {
    if let Some((after, surplus)) = surplus {
        tokio::select! {
            biased;
            head = peer.head() => return head,
            () = sleep(after) => {}
        }
        // Of bytes that come after the next request was begun nothing tells that they are no answer to it.
        let is_quiet = peer.unused.is_empty() && peer.stream.handle().is_quiet();
        if is_quiet && !peer.write(surplus.as_bytes()).await {
            return None;
        }
    }
    let closes = is_used && rng.below(4) == 0;
    let idle = if closes { millis(rng, 3_000) } else { Duration::from_secs(60) };
    tokio::select! {
        biased;
        head = peer.head() => head,
        () = sleep(idle) => None,
    }
}

fn page(host: &Host, path: &str) -> String {
    let (status, body) = match path {
        "/health" if host.is_unhealthy() => ("503 Service Unavailable", ""),
        "/health" => ("200 OK", ""),
        "/v1/models" => ("200 OK", r#"{"object":"list","data":[{"id":"m","object":"model"}]}"#),
        _ => ("404 Not Found", ""),
    };
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// An answer to come: its bytes, and the pauses before them.
struct Answer {
    request: u32,
    /// As the router named the request.
    id: Option<String>,
    misdeed: Option<Misdeed>,
    parts: Vec<(Duration, String)>,
    ending: Ending,
    /// What follows uninvited, and when.
    surplus: Option<(Duration, String)>,
}

impl Answer {
    fn new(
        world: &World,
        host: &Host,
        rng: &mut Rng,
        (request, head, body): (u32, &MessageHead, &str),
    ) -> Answer {
        let misdeed = (rng.below(100) < world.faults_percent).then(|| misdeed(rng));
        let mut ending = if rng.below(8) == 0 { Ending::Close } else { Ending::Keep };
        let id = match (misdeed, head.header("x-request-id")) {
            (Some(Misdeed::WrongId), Some(_)) => "x-request-id: c999999\r\n".to_owned(),
            (_, Some(id)) if host.repeats_ids => format!("x-request-id: {id}\r\n"),
            _ => String::new(),
        };
        let close = if ending == Ending::Close { "connection: close\r\n" } else { "" };
        let extra = format!("{id}{close}");
        let mut parts = match misdeed {
            Some(Misdeed::Declines(status)) => {
                let body = format!(r#"{{"error":{{"message":"no"}},"r":{request}}}"#);
                vec![(millis(rng, 500), whole(status, &extra, &body))]
            }
            _ if body.contains(r#""stream":true"#) => events(rng, request, &extra),
            _ => {
                let text = "x".repeat(rng.below(1_500));
                let body = format!(r#"{{"r":{request},"i":0,"of":1,"text":"{text}"}}"#);
                vec![(thinking(rng), whole(200, &extra, &body))]
            }
        };
        let mut surplus = None;
        match misdeed {
            Some(Misdeed::Stops(percent, end)) => {
                cut(&mut parts, percent);
                ending = end;
            }
            Some(Misdeed::Surplus { is_late }) => {
                let body = format!(r#"{{"r":{},"i":0,"of":1}}"#, request + SURPLUS);
                let after = if is_late { millis(rng, 1_500) } else { Duration::ZERO };
                surplus = Some((after, whole(200, "", &body)));
            }
            _ => {}
        }
        let id = head.header("x-request-id").map(str::to_owned);
        Answer { request, id, misdeed, parts, ending, surplus }
    }

    /// Writes the answer. Returns what becomes of the connection.
    async fn give(&self, world: &World, host: &Host, peer: &mut Peer) -> Ending {
        let connection = peer.stream.handle();
        if !matches!(self.misdeed, Some(Misdeed::Declines(_))) {
            let exchange =
                Exchange { request: self.request, id: self.id.clone(), number: None, connection, misses: 0 };
            world.exchanges.lock().push(exchange);
        }
        let mut is_open = true;
        for (pause, bytes) in &self.parts {
            sleep(*pause).await;
            thawed(world, host).await;
            is_open = peer.write(bytes.as_bytes()).await;
            if !is_open {
                break;
            }
        }
        world
            .exchanges
            .lock()
            .retain(|it| it.request != self.request || !it.connection.is_same(&peer.stream.handle()));
        if is_open { self.ending } else { Ending::Close }
    }
}

fn misdeed(rng: &mut Rng) -> Misdeed {
    match rng.below(10) {
        0..5 => {
            let ending = [Ending::Close, Ending::Reset, Ending::Hang][rng.below(3)];
            // Often before the first byte, where the router may still retry.
            Misdeed::Stops([0, 0, rng.below(100), rng.below(100)][rng.below(4)], ending)
        }
        5 => Misdeed::Declines([400, 429, 500, 503][rng.below(4)]),
        6..9 => Misdeed::Surplus { is_late: rng.below(2) == 0 },
        _ => Misdeed::WrongId,
    }
}

fn thinking(rng: &mut Rng) -> Duration {
    match rng.below(4) {
        0 => Duration::ZERO,
        1 => millis(rng, 4_000),
        _ => millis(rng, 300),
    }
}

fn whole(status: u16, extra: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{extra}content-length: {length}\r\n\r\n{body}"
    )
}

/// A stream of events.
fn events(rng: &mut Rng, request: u32, extra: &str) -> Vec<(Duration, String)> {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{extra}transfer-encoding: chunked\r\n\r\n"
    );
    let mut parts = vec![(thinking(rng), head)];
    if rng.below(4) == 0 {
        parts.push((millis(rng, 200), chunk(": ping\n\n")));
    }
    let (of, gap) = (1 + rng.below(8), 1 + rng.below(600));
    for i in 0..of {
        let pause = if i == 0 { thinking(rng) / 2 } else { millis(rng, gap) };
        parts.push((pause, chunk(&format!("data: {{\"r\":{request},\"i\":{i},\"of\":{of}}}\n\n"))));
    }
    parts.push((Duration::ZERO, chunk("data: [DONE]\n\n")));
    parts.push((millis(rng, 20), chunk("")));
    parts
}

/// Leaves this part of the bytes, in percent.
fn cut(parts: &mut Vec<(Duration, String)>, percent: usize) {
    let all: usize = parts.iter().map(|it| it.1.len()).sum();
    let mut left = all * percent / 100;
    for (_, bytes) in parts.iter_mut() {
        bytes.truncate(left);
        left -= bytes.len();
    }
    // The pause before the cut stays.
    let kept = parts.iter().position(|it| it.1.is_empty()).map_or(parts.len(), |it| it + 1);
    parts.truncate(kept);
}
