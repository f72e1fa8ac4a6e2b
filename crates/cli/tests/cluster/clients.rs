//! Steady traffic as a load balancer spreads it: to each open router in turn, and to another one if the
//! router of a request is killed.
//!
//! No failure is silent: a request that a live router does not answer well is recorded, and fails the test.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::client::{CHAT, post};
use crate::stage::{PATIENCE, Router};
use crate::watch;

/// The interval between two requests.
const GUESTS: usize = 4;
const PACE: Duration = Duration::from_millis(50);

/// How many different prompt beginnings there are. Chosen: a router that knew none of them would meet most
/// for the first time within the period in which it must be as good as before.
pub(crate) const BOOKS: u64 = 48;

pub(crate) struct Clients {
    plan: Arc<Plan>,
    tasks: JoinSet<()>,
}

struct Plan {
    doors: Vec<Door>,
    turn: AtomicUsize,
    asked: AtomicU64,
    is_over: AtomicBool,
    is_paused: AtomicBool,
    served: Mutex<Vec<Served>>,
    failed: Mutex<Vec<String>>,
}

struct Door {
    name: String,
    address: Mutex<SocketAddr>,
    is_open: AtomicBool,
    /// Increments when the router is killed: what breaks then is not its fault.
    deaths: AtomicU64,
}

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    pub(crate) router: usize,
    /// When it was sent.
    pub(crate) at: Instant,
    prompt: u64,
    cached: u64,
}

impl Clients {
    pub(crate) fn come(routers: &[Router]) -> Clients {
        let door = |it: &Router| Door {
            name: it.name.clone(),
            address: Mutex::new(it.listen),
            is_open: AtomicBool::new(true),
            deaths: AtomicU64::new(0),
        };
        let plan = Arc::new(Plan {
            doors: routers.iter().map(door).collect(),
            turn: AtomicUsize::new(0),
            asked: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            is_paused: AtomicBool::new(false),
            served: Mutex::default(),
            failed: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        for _ in 0..GUESTS {
            let plan = plan.clone();
            tasks.spawn(async move { plan.visit().await });
        }
        Clients { plan, tasks }
    }

    /// Sends no new requests to this router. Those in flight may finish.
    pub(crate) fn close(&self, router: usize) {
        self.plan.doors[router].is_open.store(false, Ordering::SeqCst);
    }

    /// The router is about to be killed.
    pub(crate) fn give_up(&self, router: usize) {
        self.close(router);
        self.plan.doors[router].deaths.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn open(&self, router: usize, address: SocketAddr) {
        let door = &self.plan.doors[router];
        *door.address.lock().unwrap() = address;
        door.is_open.store(true, Ordering::SeqCst);
    }

    /// Waits until this many requests sent since then are answered, by one router or by all.
    pub(crate) async fn until_served(&self, router: Option<usize>, count: usize, since: Instant) -> Duration {
        let looked = watch::until("clients are served", since, PATIENCE, async || {
            assert_eq!(*self.plan.failed.lock().unwrap(), [""; 0]);
            let served = self.since(router, since).len();
            (served >= count).then_some(()).ok_or(format!("{served} of {count}"))
        });
        looked.await.1
    }

    fn since(&self, router: Option<usize>, since: Instant) -> Vec<Served> {
        let is_meant = |it: &&Served| it.at >= since && router.is_none_or(|router| it.router == router);
        self.plan.served.lock().unwrap().iter().filter(is_meant).copied().collect()
    }

    /// The share of prompt tokens since then that engines found in their caches.
    pub(crate) fn hit_ratio(&self, router: Option<usize>, since: Instant) -> f64 {
        let served = self.since(router, since);
        let sum = |read: fn(&Served) -> u64| served.iter().map(read).sum::<u64>();
        sum(|it| it.cached) as f64 / sum(|it| it.prompt) as f64
    }

    /// Sends no new requests until resumed.
    pub(crate) fn pause(&self) {
        self.plan.is_paused.store(true, Ordering::SeqCst);
    }

    pub(crate) fn go_on(&self) {
        self.plan.is_paused.store(false, Ordering::SeqCst);
    }

    /// Waits for the last answers. None may have failed.
    pub(crate) async fn leave(mut self) -> usize {
        self.plan.is_over.store(true, Ordering::SeqCst);
        let all = async { while self.tasks.join_next().await.is_some() {} };
        tokio::time::timeout(PATIENCE, all).await.expect("clients leave");
        assert_eq!(*self.plan.failed.lock().unwrap(), [""; 0]);
        self.plan.served.lock().unwrap().len()
    }
}

impl Plan {
    async fn visit(&self) {
        let mut paces = tokio::time::interval(PACE);
        paces.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.is_over.load(Ordering::SeqCst) {
            paces.tick().await;
            if self.is_paused.load(Ordering::SeqCst) {
                continue;
            }
            let number = self.asked.fetch_add(1, Ordering::SeqCst);
            self.ask(&question(number)).await;
        }
    }

    /// Sends to the first open router that does not close in the meantime.
    async fn ask(&self, body: &Value) {
        loop {
            let Some(router) = self.next() else {
                return self.failed.lock().unwrap().push("no router is open".to_owned());
            };
            let door = &self.doors[router];
            let (deaths, at) = (door.deaths.load(Ordering::SeqCst), watch::now());
            let address = *door.address.lock().unwrap();
            let said = tokio::time::timeout(PATIENCE, send(address, post(CHAT, body))).await;
            let usage = said.map_err(|_| "no answer".to_owned()).and_then(|it| usage(&it?));
            match usage {
                Ok((prompt, cached)) => {
                    return self.served.lock().unwrap().push(Served { router, at, prompt, cached });
                }
                Err(_) if door.deaths.load(Ordering::SeqCst) > deaths => {}
                Err(why) => return self.failed.lock().unwrap().push(format!("at {}: {why}", door.name)),
            }
        }
    }

    fn next(&self) -> Option<usize> {
        let turn = self.turn.fetch_add(1, Ordering::SeqCst);
        let all = self.doors.len();
        (0..all).map(|it| (turn + it) % all).find(|&it| self.doors[it].is_open.load(Ordering::SeqCst))
    }
}

/// A prompt about one of the books; all its prompts begin with the book.
fn question(number: u64) -> Value {
    // In an order that is independent of the router's turn.
    let book = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let book = book % BOOKS;
    let text: String = (0..150).map(|line| format!("Line {line} of book {book}. ")).collect();
    json!({
        "model": "maitre-sim",
        "messages": [{"role": "system", "content": text}, {"role": "user", "content": format!("Question {number}.")}],
        "max_tokens": 3,
        "ignore_eos": true,
        "stream": true,
        "stream_options": {"include_usage": true},
    })
}

/// A whole answer, over a connection of its own.
async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Result<String, String> {
    let stream = TcpStream::connect(address).await.map_err(|it| format!("connect: {it}"))?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|it| format!("handshake: {it}"))?;
    let mut driver = JoinSet::new();
    driver.spawn(async move { drop(connection.await) });
    let answer = sender.send_request(request).await.map_err(|it| format!("ask: {it}"))?;
    let status = answer.status();
    let body = answer.into_body().collect().await.map_err(|it| format!("read: {it}"))?.to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    if status.is_success() { Ok(text) } else { Err(format!("{status}: {text}")) }
}

/// Prompt tokens, and how many of them were cached, of a stream that ended well.
fn usage(text: &str) -> Result<(u64, u64), String> {
    let broken = || format!("no good end: {text}");
    text.trim_end().ends_with("data: [DONE]").then_some(()).ok_or_else(broken)?;
    let events = text.lines().filter_map(|it| it.strip_prefix("data: "));
    let usage = events.rev().find(|it| it.contains("\"usage\":{")).ok_or_else(broken)?;
    let usage: Value = serde_json::from_str(usage).map_err(|it| it.to_string())?;
    let usage = &usage["usage"];
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
    Ok((usage["prompt_tokens"].as_u64().ok_or_else(broken)?, cached))
}
