//! A Redis server of a test's own, on a free port.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::net::TcpStream;

/// Ended when dropped.
pub(super) struct Redis {
    port: u16,
    child: Child,
    folder: PathBuf,
}

/// How often a port is tried that somebody else may have taken meanwhile.
const TRIES: u32 = 10;

impl Redis {
    pub(super) async fn start() -> Redis {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("maitre-proxy-redis-{}-{number}", std::process::id()));
        for _ in 0..TRIES {
            std::fs::create_dir_all(&folder).unwrap();
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let port_text = port.to_string();
            let arguments = ["--port", &port_text, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
            let mut command = Command::new("redis-server");
            command.args(arguments).arg("--dir").arg(&folder).stdout(Stdio::null()).stderr(Stdio::null());
            let child = command.spawn().expect("redis-server; scripts/test installs it");
            let mut redis = Redis { port, child, folder: folder.clone() };
            if redis.is_up().await {
                return redis;
            }
        }
        panic!("redis-server does not start");
    }

    /// False if it ended instead.
    async fn is_up(&mut self) -> bool {
        while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // It may be somebody else's port that answered.
        self.child.try_wait().unwrap().is_none()
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
