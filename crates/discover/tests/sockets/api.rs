//! A fake Kubernetes API: lists in pages, watches from a version, and faults on demand.
//!
//! HTTP is written by hand, so that a response can break off anywhere. The server keeps the objects that a
//! test puts there and returns them for any path, except that pools have a path of their own; a watch gets every event
//! after its version.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::follower::LIMIT;

/// A fault that replaces one good response.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    Status(u16),
    /// 200 and these bytes, as the whole body or as lines of a watch.
    Body(String),
    /// Nothing at all.
    Silence,
    /// A good start, then silence: for watches.
    Hang,
    /// A good start, half of the next event, and the end of the connection: for watches.
    CutMidLine,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    /// Each with the version it created, and whether it is about a pool.
    events: Vec<(u64, bool, String)>,
    version: u64,
    /// How often all watches have been cut.
    cuts: u64,
    lists: VecDeque<Fault>,
    watches: VecDeque<Fault>,
    token: Option<String>,
    requests: Vec<String>,
}

#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
    changed: watch::Sender<()>,
    _tasks: Arc<JoinSet<()>>,
}

/// Objects per page: few, so that there are several pages.
const PAGE: usize = 2;

impl Api {
    pub(crate) async fn start() -> Api {
        Api::serve(None).await
    }

    pub(crate) async fn over_tls(acceptor: TlsAcceptor) -> Api {
        Api::serve(Some(acceptor)).await
    }

    async fn serve(acceptor: Option<TlsAcceptor>) -> Api {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, state) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(State::default())));
        state.lock().unwrap().version = 100;
        let changed = watch::channel(()).0;
        let visitor = Visitor { state: state.clone(), changed: changed.clone() };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut visits = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (visitor, acceptor) = (visitor.clone(), acceptor.clone());
                visits.spawn(async move {
                    match acceptor {
                        None => _ = visitor.visit(stream).await,
                        Some(acceptor) => {
                            if let Ok(stream) = acceptor.accept(stream).await {
                                _ = visitor.visit(stream).await;
                            }
                        }
                    }
                });
            }
        });
        Api { address, state, changed, _tasks: Arc::new(tasks) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Creates or changes an object, and sends the event to all watches.
    pub(crate) fn put(&self, name: &str, object: Value) {
        let kind = if self.state().objects.contains_key(name) { "MODIFIED" } else { "ADDED" };
        self.happen(kind, name, object);
    }

    pub(crate) fn delete(&self, name: &str) {
        let object = self.state().objects[name].clone();
        self.happen("DELETED", name, object);
    }

    /// Changes an object without sending an event: its version has already expired.
    pub(crate) fn delete_in_silence(&self, name: &str) {
        let mut state = self.state();
        state.version += 1;
        state.objects.remove(name);
    }

    pub(crate) fn bookmark(&self) -> u64 {
        self.state().version += 10;
        self.happen("BOOKMARK", "", json!({}));
        self.state().version
    }

    fn happen(&self, kind: &str, name: &str, mut object: Value) {
        let mut state = self.state();
        state.version += 1;
        let version = state.version;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        if !name.is_empty() {
            object["metadata"]["name"] = name.into();
        }
        match kind {
            "DELETED" => _ = state.objects.remove(name),
            "BOOKMARK" => {}
            _ => _ = state.objects.insert(name.to_owned(), object.clone()),
        }
        let event = json!({"type": kind, "object": object}).to_string() + "\n";
        state.events.push((version, is_pool(&object), event));
        drop(state);
        self.changed.send_replace(());
    }

    /// Faults for the next lists, one each.
    pub(crate) fn spoil_lists(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state().lists.extend(faults);
    }

    pub(crate) fn spoil_watches(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state().watches.extend(faults);
    }

    /// Ends every watch, between two lines.
    pub(crate) fn cut(&self) {
        self.state().cuts += 1;
        self.changed.send_replace(());
    }

    /// Requires this token.
    pub(crate) fn want(&self, token: &str) {
        self.state().token = Some(token.to_owned());
    }

    pub(crate) fn version(&self) -> u64 {
        self.state().version
    }

    /// The requests so far: paths with their queries.
    pub(crate) fn lists(&self) -> Vec<String> {
        self.state().requests.iter().filter(|it| !it.contains("watch=1")).cloned().collect()
    }

    pub(crate) fn watches(&self) -> Vec<String> {
        self.state().requests.iter().filter(|it| it.contains("watch=1")).cloned().collect()
    }

    /// Waits until there have been this many watches.
    pub(crate) async fn until_watched(&self, times: usize) {
        let mut changed = self.changed.subscribe();
        let enough = changed.wait_for(|()| self.watches().len() >= times);
        timeout(LIMIT, enough).await.unwrap_or_else(|_| panic!("{:#?}", self.state().requests)).unwrap();
    }
}

#[derive(Clone)]
struct Visitor {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<()>,
}

impl Visitor {
    async fn visit(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<()> {
        let head = read_head(&mut stream).await?;
        let path = head.split(' ').nth(1).unwrap().to_owned();
        let is_watch = path.contains("watch=1");
        let (fault, is_welcome) = {
            let mut state = self.state.lock().unwrap();
            state.requests.push(path.clone());
            let queue = if is_watch { &mut state.watches } else { &mut state.lists };
            let fault = queue.pop_front();
            let has_token = |it: &String| head.contains(&format!("authorization: Bearer {it}\r\n"));
            (fault, state.token.as_ref().is_none_or(has_token))
        };
        self.changed.send_replace(());
        if !is_welcome {
            return write_whole(&mut stream, 401, &json!({"message": "Unauthorized"}).to_string()).await;
        }
        match fault {
            Some(Fault::Status(status)) => {
                write_whole(&mut stream, status, &json!({"message": "made to fail"}).to_string()).await
            }
            Some(Fault::Body(body)) => write_whole(&mut stream, 200, &body).await,
            Some(Fault::Silence) => std::future::pending().await,
            fault if is_watch => self.watch(&mut stream, &path, fault).await,
            _ => {
                let page = self.page(&path);
                write_whole(&mut stream, 200, &page.to_string()).await
            }
        }
    }

    fn page(&self, path: &str) -> Value {
        let state = self.state.lock().unwrap();
        let from: usize = parameter(path, "continue").and_then(|it| it.parse().ok()).unwrap_or(0);
        let all: Vec<&Value> =
            state.objects.values().filter(|it| is_pool(it) == path.contains("/inferencepools")).collect();
        let rest = if from + PAGE < all.len() { (from + PAGE).to_string() } else { String::new() };
        let items: Vec<&Value> = all.into_iter().skip(from).take(PAGE).collect();
        json!({"metadata": {"resourceVersion": state.version.to_string(), "continue": rest}, "items": items})
    }

    async fn watch(
        &self,
        stream: &mut (impl AsyncWrite + Unpin),
        path: &str,
        fault: Option<Fault>,
    ) -> std::io::Result<()> {
        let mut seen: u64 = parameter(path, "resourceVersion").unwrap().parse().unwrap();
        let (mut changed, cuts) = (self.changed.subscribe(), self.state.lock().unwrap().cuts);
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await?;
        if matches!(fault, Some(Fault::Hang)) {
            return std::future::pending().await;
        }
        loop {
            let news: Vec<(u64, String)> = {
                let state = self.state.lock().unwrap();
                if state.cuts != cuts {
                    return Ok(());
                }
                let pools = path.contains("/inferencepools");
                let new = state.events.iter().filter(|it| it.0 > seen && it.1 == pools);
                new.map(|it| (it.0, it.2.clone())).collect()
            };
            for (version, line) in news {
                if matches!(fault, Some(Fault::CutMidLine)) {
                    return write_chunk(stream, &line[..line.len() / 2]).await;
                }
                // Sent in two pieces: chunk boundaries of a stream mean nothing.
                let (one, other) = line.split_at(line.len() / 3);
                write_chunk(stream, one).await?;
                write_chunk(stream, other).await?;
                seen = version;
            }
            changed.changed().await.map_err(std::io::Error::other)?;
        }
    }
}

fn is_pool(object: &Value) -> bool {
    object["kind"] == "InferencePool"
}

fn parameter<'a>(path: &'a str, key: &str) -> Option<&'a str> {
    let query = path.split_once('?')?.1;
    query.split('&').find_map(|it| it.strip_prefix(key)?.strip_prefix('='))
}

async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8(head).unwrap())
}

async fn write_whole(stream: &mut (impl AsyncWrite + Unpin), status: u16, body: &str) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

async fn write_chunk(stream: &mut (impl AsyncWrite + Unpin), text: &str) -> std::io::Result<()> {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await?;
    stream.flush().await
}
