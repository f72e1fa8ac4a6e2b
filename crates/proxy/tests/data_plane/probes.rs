//! Probes are answered however many connections are open.

use std::time::Duration;

use tokio::net::TcpStream;

use crate::fixture::{Client, Fixture, fixture, get};

/// How long a kubelet waits is a second by default; machines that run tests are slower.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

async fn check_probes(fixture: &Fixture) {
    for path in ["/healthz", "/readyz", "/metrics"] {
        let probe =
            async { Client::connect(fixture.router.admin()).await.ask(get(path)).await.unwrap().status };
        let status = tokio::time::timeout(PROBE_TIMEOUT, probe).await;
        assert_eq!(status.unwrap_or_else(|_| panic!("{path} is silent")), 200, "{path}");
    }
}

#[tokio::test]
async fn strangers_on_the_admin_listener_keep_no_probe_out() {
    let fixture = fixture(1).await;
    let mut strangers = Vec::new();
    for round in 0..3 {
        for _ in 0..140 {
            strangers.push(TcpStream::connect(fixture.router.admin()).await.unwrap());
        }
        check_probes(&fixture).await;
        assert_eq!(strangers.len(), 140 * (round + 1));
    }
}
