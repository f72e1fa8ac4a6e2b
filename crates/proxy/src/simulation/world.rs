//! Everything that a run shares: the router, the workers, the script, and the laws that were broken.

use std::sync::Arc;
use std::time::Duration;

use maitre_base::Rng;
use maitre_dispatch::BrainSettings;
use maitre_net::simulated::ConnectionHandle;
use maitre_queue::QueueSettings;
use parking_lot::Mutex;

use super::SeedReport;
use super::host::Host;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::request_ids::RequestIds;
use crate::settings::{KvEventSettings, RouterSettings, Timeouts};
use crate::state::{Parts, RouterState};
use crate::tls::Tls;
use crate::tokenize::{EngineTokenizers, LocalTokenizers};

pub(super) struct World {
    pub(super) state: Arc<RouterState>,
    pub(super) hosts: Vec<Arc<Host>>,
    /// Of a hundred things that a worker does, so many go wrong.
    pub(super) faults_percent: usize,
    /// Answers that workers are giving now.
    pub(super) exchanges: Mutex<Vec<Exchange>>,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    script: Vec<String>,
    violations: Vec<String>,
}

/// A worker answers a request.
pub(super) struct Exchange {
    pub(super) request: u32,
    /// From the worker's end.
    pub(super) connection: ConnectionHandle,
    /// How often in a row the brain did not know of it.
    pub(super) misses: u32,
}

impl World {
    pub(super) fn new(rng: &mut Rng) -> World {
        let hosts: Vec<_> = (0..1 + rng.below(3)).map(|it| Arc::new(Host::new(it, rng))).collect();
        let faults_percent = [0, 5, 20, 60][rng.below(4)];
        let settings = settings(&hosts, rng);
        let parts = Parts {
            clock: Clock::start(),
            metrics: Arc::new(Metrics::new(&settings.brain.queue.classes)),
            tokenizers: LocalTokenizers::load(&settings.tokenizers).unwrap(),
            tls: Tls::load(&settings).unwrap(),
            traces: None,
        };
        let mut state = RouterState::new(settings, parts).unwrap();
        // Random in production.
        let mut request_ids = RequestIds::default();
        request_ids.instance_nonce = rng.next_u64();
        state.tokenizer.engines = EngineTokenizers::new(request_ids.instance_nonce);
        state.request_ids = Arc::new(request_ids);
        World {
            state: Arc::new(state),
            hosts,
            faults_percent,
            exchanges: Mutex::default(),
            log: Mutex::default(),
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.state.clock.now().as_nanos() / 1_000_000
    }

    pub(super) fn say(&self, event: &str) {
        let now = self.now_ms();
        self.log.lock().script.push(format!("{now:>7} ms  {event}"));
    }

    /// A law is broken.
    pub(super) fn violate(&self, law: &str) {
        self.say(&format!("VIOLATION: {law}"));
        self.log.lock().violations.push(law.to_owned());
    }

    pub(super) fn report(&self) -> SeedReport {
        let Log { script, violations } = std::mem::take(&mut *self.log.lock());
        SeedReport { script, violations, recalls: self.state.metrics.queue.recalls.get() }
    }
}

/// Limits so short that runs reach them, and so that a request has ended after `LIMIT` by any of them but `total`.
fn settings(hosts: &[Arc<Host>], rng: &mut Rng) -> RouterSettings {
    let seconds = Duration::from_secs;
    let mut queue = QueueSettings {
        sequences_max: [0, 1, 2, 4][rng.below(4)],
        recall: rng.below(3) > 0,
        ..QueueSettings::default()
    };
    for (class, limit) in queue.classes.iter_mut().zip([20, 30, 40]) {
        class.deadline = Some(seconds(limit));
    }
    RouterSettings {
        workers: hosts.iter().map(|it| format!("http://{}:8000", it.name).parse().unwrap()).collect(),
        brain: BrainSettings { queue, seed: rng.next_u64(), ..BrainSettings::default() },
        events: KvEventSettings { enabled: false, ..KvEventSettings::default() },
        timeouts: Timeouts {
            client_header: seconds(4),
            client_body: seconds(4),
            client_stalled: seconds(4),
            client_idle: seconds(10),
            connect: Duration::from_millis(500),
            headers: seconds(6),
            first_token: seconds(6),
            inter_token: seconds(3),
            total: seconds(900),
            ..Timeouts::default()
        },
        ..RouterSettings::default()
    }
}
