//! A Redis server, routers connected to it, and their log.

use bytes::Bytes;
use maitre_peer::redis::{RedisConfig, connect};
use maitre_peer::seal::ClusterKey;
use maitre_peer::{Incoming, Outgoing, Transport, TransportStatus};
use redis::{Cmd, FromRedisValue, ToRedisArgs};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Nothing here takes a tenth of it.
const LIMIT: Duration = Duration::from_secs(30);

/// Polls a condition.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Killed when dropped.
pub(crate) struct Server {
    pub(crate) port: u16,
    child: Child,
    folder: PathBuf,
    arguments: Vec<String>,
}

impl Server {
    pub(crate) async fn start(arguments: &[&str]) -> Server {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("maitre-redis-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut server = Server {
            port: free_port(),
            child: idle(),
            folder,
            arguments: arguments.iter().map(|&it| it.to_owned()).collect(),
        };
        // Another process may take the port before the server does.
        for _ in 0..10 {
            if server.run().await {
                return server;
            }
            server.port = free_port();
        }
        panic!("redis-server does not start");
    }

    /// With a certificate for localhost from its own authority.
    pub(crate) async fn start_with_tls() -> Server {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let folder = std::env::temp_dir().join(format!("maitre-redis-tls-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let [cert, key] = [cert, key].map(|it| it.to_str().unwrap().to_owned());
        let mut server = Server::start(&[]).await;
        server.stop();
        let port = server.port.to_string();
        let tls = ["--port", "0", "--tls-port", &port, "--tls-cert-file", &cert, "--tls-key-file", &key];
        server.arguments = tls.into_iter().chain(["--tls-auth-clients", "no"]).map(str::to_owned).collect();
        server.start_again().await;
        std::fs::remove_dir_all(folder).unwrap();
        server
    }

    pub(crate) fn stop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) async fn start_again(&mut self) {
        for _ in 0..10 {
            if self.run().await {
                return;
            }
        }
        panic!("redis-server does not start again");
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().unwrap();
        assert!(sent.success());
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn ask<T: FromRedisValue>(&self, command: &Cmd) -> T {
        self.ask_at(&self.url(), command)
    }

    pub(crate) fn add<F: ToRedisArgs>(&self, fields: &[F]) {
        let _: String = self.ask(redis::cmd("XADD").arg("maitre:g:stream").arg("*").arg(fields));
    }

    /// A number from INFO.
    pub(crate) fn info(&self, section: &str, name: &str) -> u64 {
        number(&self.ask::<String>(redis::cmd("INFO").arg(section)), name)
    }

    pub(crate) fn info_with(&self, password: &str, section: &str, name: &str) -> u64 {
        let url = format!("redis://:{password}@127.0.0.1:{}", self.port);
        number(&self.ask_at::<String>(&url, redis::cmd("INFO").arg(section)), name)
    }

    /// Calls per command, except those of this query.
    pub(crate) fn commands(&self) -> BTreeMap<String, u64> {
        let info: String = self.ask(redis::cmd("INFO").arg("commandstats"));
        let calls = info.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), rest.split(',').next()?.parse().unwrap()))
        });
        calls.filter(|(name, _)| name != "info" && !name.starts_with("client|setinfo")).collect()
    }

    fn ask_at<T: FromRedisValue>(&self, url: &str, command: &Cmd) -> T {
        let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        command.query(&mut connection).unwrap()
    }

    /// Whether it listens.
    async fn run(&mut self) -> bool {
        let port = self.port.to_string();
        let fixed = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        self.child = Command::new("redis-server")
            .args(fixed)
            .arg("--dir")
            .arg(&self.folder)
            .args(&self.arguments)
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is needed: apt-get install redis-server");
        let mut ended = false;
        until("redis-server", || {
            ended = self.child.try_wait().unwrap().is_some();
            ended || TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        })
        .await;
        !ended
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A child process that has ended.
fn idle() -> Child {
    Command::new("true").spawn().unwrap()
}

fn number(info: &str, name: &str) -> u64 {
    let line = info.lines().find_map(|it| it.strip_prefix(name)?.strip_prefix(':'));
    let value = line.unwrap_or_else(|| panic!("no {name} in {info}")).trim();
    value.strip_prefix("count=").unwrap_or(value).parse().unwrap()
}

/// Answers every client with the same bytes.
pub(crate) async fn stranger(words: &'static str) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = [0; 1024];
            let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut buffer).await;
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, words.as_bytes()).await;
        }
    });
    address
}

pub(crate) fn config(server: &Server, name: &str) -> RedisConfig {
    RedisConfig { url: server.url(), group: "g".into(), name: name.into(), key: None }
}

pub(crate) fn key(secret: &str) -> Option<ClusterKey> {
    Some(ClusterKey::new(secret.as_bytes()))
}

/// A router as this transport sees it.
pub(crate) struct Router {
    pub(crate) name: String,
    line: Transport,
    task: JoinHandle<()>,
}

impl Router {
    pub(crate) fn start(config: RedisConfig) -> Router {
        Log::listen();
        let name = config.name.clone();
        let (line, work) = connect(config);
        Router { name, line, task: tokio::spawn(work) }
    }

    /// Waits until it is connected.
    pub(crate) async fn join(config: RedisConfig) -> Router {
        let mut router = Router::start(config);
        router.connected().await;
        router
    }

    pub(crate) fn line(&self) -> &Transport {
        &self.line
    }

    pub(crate) async fn send_text(&self, frame: impl Into<String>) {
        self.send(Outgoing::Frame(Bytes::from(frame.into()))).await;
    }

    pub(crate) async fn leave(&self, frames: &[&'static str]) {
        self.send(Outgoing::Snapshot(frames.iter().map(|it| Bytes::from_static(it.as_bytes())).collect()))
            .await;
    }

    /// The next item is this frame.
    pub(crate) async fn receive(&mut self) -> String {
        match self.next().await {
            Incoming::Frame(frame) => String::from_utf8(frame.to_vec()).unwrap(),
            other => panic!("{other:?}, and not a frame"),
        }
    }

    /// The next item is this one.
    pub(crate) async fn connected(&mut self) {
        match self.next().await {
            Incoming::Connected => {}
            other => panic!("{other:?}, and not connected"),
        }
    }

    /// The next item is this stored frame.
    pub(crate) async fn recall(&mut self) -> String {
        match self.next().await {
            Incoming::Stored(frame) => String::from_utf8(frame.to_vec()).unwrap(),
            other => panic!("{other:?}, and not left by anybody"),
        }
    }

    pub(crate) async fn status(&mut self, holds: impl FnMut(&TransportStatus) -> bool) -> TransportStatus {
        wait(&mut self.line.status, holds).await
    }

    pub(crate) async fn clone_status(&self, holds: impl FnMut(&TransportStatus) -> bool) -> TransportStatus {
        wait(&mut self.line.status.clone(), holds).await
    }

    /// Drops the transport and waits for its future.
    pub(crate) async fn end(self) {
        drop(self.line);
        tokio::time::timeout(Duration::from_secs(2), self.task).await.expect("it ends").unwrap();
    }

    async fn send(&self, outgoing: Outgoing) {
        let sent = self.line.outgoing.send(outgoing);
        tokio::time::timeout(LIMIT, sent).await.expect("it is taken").unwrap();
    }

    async fn next(&mut self) -> Incoming {
        let next = tokio::time::timeout(LIMIT, self.line.incoming.recv()).await;
        let status = self.line.status.borrow().clone();
        next.unwrap_or_else(|_| panic!("{} hears nothing: {status:?}", self.name)).expect("it works")
    }
}

async fn wait(
    status: &mut tokio::sync::watch::Receiver<TransportStatus>,
    holds: impl FnMut(&TransportStatus) -> bool,
) -> TransportStatus {
    let waited = tokio::time::timeout(LIMIT, status.wait_for(holds)).await.map(|it| it.unwrap().clone());
    waited.unwrap_or_else(|_| panic!("waited in vain: {:?}", *status.borrow()))
}

thread_local! {
    static WRITTEN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Log lines of this thread, which belongs to one test.
pub(crate) struct Log;

impl Log {
    pub(crate) fn start() -> Log {
        Log::listen();
        Log
    }

    pub(crate) fn text(&self) -> String {
        WRITTEN.with_borrow(|it| String::from_utf8(it.clone()).unwrap())
    }

    /// Lines that contain a text.
    pub(crate) fn count(&self, words: &str) -> usize {
        self.text().lines().filter(|it| it.contains(words)).count()
    }

    /// One subscriber for all tests, installed before any of them logs: a thread that first logs while there is none
    /// may miss later subscribers.
    fn listen() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing_subscriber::fmt().with_ansi(false).with_writer(|| Page).init());
    }
}

struct Page;

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        WRITTEN.with_borrow_mut(|it| it.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
