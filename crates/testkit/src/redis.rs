//! A Redis server of a test's own, on a free port, which can be stopped and started again.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::folder::Folder;

/// Another process may take a free port before the server does.
const TRIES: u32 = 10;
/// A start or an answer takes some milliseconds.
const TIME_MAX: Duration = Duration::from_secs(30);

/// Killed when dropped.
pub struct Redis {
    pub address: SocketAddr,
    /// Beyond those that every server here has.
    pub arguments: Vec<String>,
    child: Option<Child>,
    folder: Folder,
}

impl Redis {
    pub async fn start(arguments: &[&str]) -> Redis {
        let arguments = arguments.iter().map(|&it| it.to_owned()).collect();
        let mut redis = Redis { address: free_address(), arguments, child: None, folder: Folder::new() };
        for _ in 0..TRIES {
            if redis.run().await {
                return redis;
            }
            redis.address = free_address();
        }
        panic!("redis-server does not start");
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Kills the server. It has stored nothing.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// On the same port. It accepts connections when this returns.
    pub async fn start_again(&mut self) {
        for _ in 0..TRIES {
            if self.run().await {
                return;
            }
        }
        panic!("redis-server does not start again at {}", self.address);
    }

    /// `STOP` suspends the process, `CONT` resumes it.
    pub fn signal(&self, name: &str) {
        let id = self.child.as_ref().expect("a running server").id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    /// Sends a command, word by word, and returns the response as it comes, which must be short.
    pub async fn send(&self, words: &[&[u8]]) -> String {
        let mut command = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            command.extend(format!("${}\r\n", word.len()).bytes());
            command.extend_from_slice(word);
            command.extend(b"\r\n");
        }
        let exchange = async {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(&command).await.unwrap();
            let mut buffer = [0; 1024];
            let read = stream.read(&mut buffer).await.unwrap();
            String::from_utf8_lossy(&buffer[..read]).into_owned()
        };
        timeout(TIME_MAX, exchange).await.expect("an answer of redis-server")
    }

    /// Whether it accepts connections; false if it ended instead.
    async fn run(&mut self) -> bool {
        let port = self.address.port().to_string();
        let fixed = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"];
        let mut command = Command::new("redis-server");
        command.args(fixed).arg(self.folder.path()).args(&self.arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = self.child.insert(command.spawn().expect("redis-server; scripts/test installs it"));
        let accepts = async {
            while TcpStream::connect(self.address).await.is_err() {
                if child.try_wait().unwrap().is_some() {
                    return false;
                }
                sleep(Duration::from_millis(10)).await;
            }
            // Another server may have the port.
            child.try_wait().unwrap().is_none()
        };
        timeout(TIME_MAX, accepts).await.expect("redis-server accepts connections")
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.stop();
    }
}

fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}
