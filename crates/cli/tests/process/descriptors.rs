//! File descriptors: the limit is raised, and clients cannot take those of the admin listener.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;

use crate::client::Client;
use crate::program::{Program, Serve};

const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// After this long without a connection, the kernel's queue is full for good: it takes a second attempt after one second.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(4);

async fn serve_under(limit: &str) -> Serve {
    Serve::of(Program::start_after(limit, &["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]))
        .await
}

/// As many idle connections as the listener and the kernel's queue take, at most `count`.
async fn idle(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut idle = Vec::new();
    while idle.len() < count {
        let connecting = TcpStream::connect(address);
        let Ok(connected) = tokio::time::timeout(QUEUE_TIMEOUT, connecting).await else { break };
        idle.push(connected.unwrap());
    }
    idle
}

async fn probe(serve: &Serve, path: &str) -> String {
    let probe = async { Client::connect(serve.admin).await.get(path).await.text() };
    let text = tokio::time::timeout(PROBE_TIMEOUT, probe).await;
    text.unwrap_or_else(|_| panic!("{path} is silent; it said:\n{}", serve.program.said()))
}

#[tokio::test]
async fn the_soft_limit_is_raised_to_the_hard_one() {
    let serve = serve_under("ulimit -Sn 200 && ulimit -Hn 600").await;
    assert!(probe(&serve, "/metrics").await.contains("\nprocess_max_fds 600"));
}

#[tokio::test]
async fn idle_connections_of_clients_leave_descriptors_for_probes() {
    let serve = serve_under("ulimit -n 300").await;
    let _clients = idle(serve.listen, 400).await;
    let _strangers = idle(serve.admin, 100).await;
    // The router accepts clients between two probes: after so many it has all that it takes.
    for _ in 0..200 {
        assert_eq!(probe(&serve, "/healthz").await, "alive\n");
    }
    assert_eq!(probe(&serve, "/readyz").await, "no worker is ready\n");
    assert!(probe(&serve, "/metrics").await.contains("\nprocess_max_fds 300"));
    assert!(serve.program.said().contains("limits.connections"), "{}", serve.program.said());
}
