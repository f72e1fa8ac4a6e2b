//! A Redis server of a scene's own, on a free port, which can be stopped and started again.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::client::within;
use crate::watch;

/// How often a port is tried that somebody else may have taken meanwhile.
const TRIES: u32 = 10;

/// For a server to answer; it takes some milliseconds.
const START: Duration = Duration::from_secs(20);

/// Ended when dropped.
pub(crate) struct Redis {
    address: SocketAddr,
    child: Option<Child>,
    folder: PathBuf,
}

impl Redis {
    pub(crate) async fn start() -> Redis {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("maitre-cluster-redis-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut redis = Redis { address: free(), child: None, folder };
        for _ in 0..TRIES {
            if redis.is_started().await {
                return redis;
            }
            redis.address = free();
        }
        panic!("redis-server does not start");
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// At once, as if its machine were gone. It kept nothing.
    pub(crate) fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// It lives, and answers nobody.
    pub(crate) fn hang(&self) {
        self.signal("STOP");
    }

    /// As if nothing had been.
    pub(crate) fn go_on(&self) {
        self.signal("CONT");
    }

    /// Answers when this returns.
    pub(crate) async fn start_again(&mut self) {
        assert!(self.is_started().await, "redis-server does not start again at {}", self.address);
    }

    /// Asks, in words, and returns the answer as it comes.
    pub(crate) async fn ask(&self, words: &[&[u8]]) -> String {
        answer(self.address, words).await.unwrap()
    }

    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.as_ref().unwrap().id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success(), "{kill}");
    }

    /// Whether it answers; else it has ended.
    async fn is_started(&mut self) -> bool {
        let port = self.address.port().to_string();
        let fixed = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"];
        let mut command = Command::new("redis-server");
        command.args(fixed).arg(&self.folder).stdout(Stdio::null()).stderr(Stdio::null());
        let address = self.address;
        let child = self.child.insert(command.spawn().expect("redis-server; scripts/test installs it"));
        let (is_up, _) = watch::until("redis-server answers", watch::now(), START, async || {
            match child.try_wait().unwrap() {
                Some(_) => Ok(false),
                None => answer(address, &[b"PING"]).await.map(|_| true).map_err(|it| it.to_string()),
            }
        })
        .await;
        is_up && child.try_wait().unwrap().is_none()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Both fail only if it is gone already.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn free() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

/// One question and its answer, which must be short.
async fn answer(address: SocketAddr, words: &[&[u8]]) -> std::io::Result<String> {
    let mut question = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        question.extend(format!("${}\r\n", word.len()).bytes());
        question.extend_from_slice(word);
        question.extend(b"\r\n");
    }
    within(async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(&question).await?;
        let mut buffer = [0; 1024];
        let read = stream.read(&mut buffer).await?;
        Ok(String::from_utf8_lossy(&buffer[..read]).into_owned())
    })
    .await
}
