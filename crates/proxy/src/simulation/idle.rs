//! A large fleet without traffic, in virtual time: how often its workers are probed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use maitre_base::Rng;
use maitre_net::simulated::{self, Dialed, SimulatedStream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::sleep;

use super::router::state;
use crate::roster::{By, Roster};
use crate::router::watcher;
use crate::settings::RouterSettings;
use crate::watch::IDLE_WORKERS_PROBED;

/// A worker that has no path at all, which counts as healthy.
async fn serve(mut stream: SimulatedStream, probes: Arc<AtomicUsize>) {
    let mut request = Vec::new();
    while stream.read_buf(&mut request).await.is_ok_and(|it| it > 0) {
        if request.ends_with(b"\r\n\r\n") {
            probes.fetch_add(usize::from(request.starts_with(b"GET /health")), Relaxed);
            request.clear();
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await;
        }
    }
}

/// Probes in a minute.
#[expect(clippy::disallowed_methods, reason = "workers end with the test")]
async fn probes(workers: usize) -> usize {
    let probes = Arc::new(AtomicUsize::new(0));
    let counted = probes.clone();
    simulated::set_network(Some(Box::new(move |_| {
        let (ours, theirs) = simulated::pair(Rng::new(1), 4_096);
        tokio::spawn(serve(theirs, counted.clone()));
        Dialed::Open(ours)
    })));
    let state = state(RouterSettings::default(), 1, 1);
    let roster = Roster::new(watcher(&state));
    let urls: Vec<_> = (0..workers).map(|it| format!("http://w{it}:1").parse().unwrap()).collect();
    roster.set(By::Settings, &urls);
    sleep(Duration::from_secs(10)).await;
    probes.store(0, Relaxed);
    sleep(Duration::from_secs(60)).await;
    roster.stop();
    simulated::set_network(None);
    probes.load(Relaxed)
}

#[tokio::test(start_paused = true)]
async fn a_large_idle_fleet_is_probed_no_more_often_in_total() {
    for (workers, as_often_as) in [(20, 20), (3 * IDLE_WORKERS_PROBED, IDLE_WORKERS_PROBED)] {
        let probes = probes(workers).await;
        assert!((54 * as_often_as..=66 * as_often_as).contains(&probes), "{workers} workers: {probes}");
    }
}
