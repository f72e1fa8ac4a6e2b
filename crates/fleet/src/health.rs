//! Whether a worker is fit for new requests: a state machine fed by real traffic first and by probes second.
//!
//! ```text
//!  Probing ──answer──▶ Ready ──silence, a broken answer──▶ Suspect ──silence again──▶ Ejected
//!                        ▲ ╰──refused, failures or broken answers in a row────────▶   │
//!                        │◀─────────answer───────────────────╯                        │
//!                        ╰──ramp over──── Warming ◀──probe answered, back-off over────╯
//! ```
//! A suspect gets no new requests while others are fit, and is probed at once. So one failed attempt is enough to
//! eject a dead worker, while one broken connection does not eject a live one. Ejection lasts until the worker
//! answers a probe; after a run of failures also until a back-off is over.
//!
//! A probe clears the suspicion of a broken answer, but not the count of them: an engine that breaks every answer often
//! has a fine `/health`, and begins each answer well. Only a complete answer starts that count again.

use std::time::Duration;

use maitre_base::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthState {
    /// The worker has never answered.
    Probing,
    Ready,
    /// No new requests unless there is no better worker.
    Suspect {
        refused: bool,
    },
    /// No new requests.
    Ejected {
        until: Instant,
    },
    /// Back again: it gets one request at a time until it answers the first, then a ramp.
    Warming {
        since: Instant,
        proven: bool,
    },
}

impl HealthState {
    pub const NAMES: [&'static str; 5] = ["probing", "ready", "suspect", "ejected", "warming"];

    /// Whether it is out of service: the router should retry its requests without a first byte on another worker.
    pub const fn is_out(self) -> bool {
        matches!(self, HealthState::Ejected { .. } | HealthState::Suspect { refused: true })
    }

    pub const fn name(self) -> &'static str {
        match self {
            HealthState::Probing => HealthState::NAMES[0],
            HealthState::Ready => HealthState::NAMES[1],
            HealthState::Suspect { .. } => HealthState::NAMES[2],
            HealthState::Ejected { .. } => HealthState::NAMES[3],
            HealthState::Warming { .. } => HealthState::NAMES[4],
        }
    }
}

/// One observation of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The worker answered a probe: it is fit.
    ProbeAnswered,
    /// The worker began to answer a request, without a failure of its own.
    Answered,
    /// The worker refused a connection, or its health check says that it is unfit.
    Refused,
    /// A probe or a connection attempt timed out, and nothing else arrived meanwhile.
    Silent,
    /// A connection broke, or an answer stalled, before it was complete.
    Broke,
    /// The worker answered a request with a failure of its own, such as a 500.
    Failed,
}

impl Evidence {
    /// Whether the worker has answered. Only other evidence can eject it.
    pub(crate) const fn is_answer(self) -> bool {
        matches!(self, Evidence::ProbeAnswered | Evidence::Answered)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HealthSettings {
    /// Failures, or broken answers, in a row before the worker is ejected.
    pub failures_max: u32,
    /// First back-off after a run of failures; doubles each time up to `back_off_max`.
    pub back_off: Duration,
    pub back_off_max: Duration,
    /// How long a returned worker's share takes to grow from a tenth to the whole.
    pub slow_start: Duration,
}

impl Default for HealthSettings {
    fn default() -> HealthSettings {
        HealthSettings {
            failures_max: 5,
            back_off: Duration::from_secs(1),
            back_off_max: Duration::from_secs(30),
            slow_start: Duration::from_secs(10),
        }
    }
}

/// The share at the start of the ramp.
const SHARE_MIN: f64 = 0.1;

#[derive(Clone, Debug)]
pub struct Health {
    state: HealthState,
    failures: u32,
    /// Broken answers since the last complete one.
    breaks: u32,
    /// Ejections for failures since the worker was last healthy: the exponent of the back-off.
    relapses: u32,
}

impl Default for Health {
    fn default() -> Health {
        Health { state: HealthState::Probing, failures: 0, breaks: 0, relapses: 0 }
    }
}

/// Whether the fleet can do without one more worker; if not, a worker that would be ejected stays suspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MayEject {
    Yes,
    No,
}

impl Health {
    pub fn state(&self) -> HealthState {
        self.state
    }

    /// The part of its weight that the worker should get now, in (0, 1].
    pub fn share(&self, now: Instant, settings: &HealthSettings) -> f64 {
        match self.state {
            HealthState::Warming { since, .. } => {
                let ramp = settings.slow_start.as_secs_f64().max(f64::MIN_POSITIVE);
                (now.since(since).as_secs_f64() / ramp).clamp(SHARE_MIN, 1.0)
            }
            _ => 1.0,
        }
    }

    pub fn see(&mut self, now: Instant, evidence: Evidence, spare: MayEject, settings: &HealthSettings) {
        self.failures = match evidence {
            Evidence::Failed => self.failures + 1,
            Evidence::Answered => 0,
            _ => self.failures,
        };
        self.breaks = match (self.state, evidence) {
            // An engine that is gone breaks all its answers at once: that is one failure.
            (HealthState::Ejected { .. }, _) => 0,
            (_, Evidence::Broke) => self.breaks + 1,
            _ => self.breaks,
        };
        self.settle(now, settings);
        self.state = match (self.state, evidence) {
            (HealthState::Ejected { until }, Evidence::ProbeAnswered) if until <= now => {
                HealthState::Warming { since: now, proven: false }
            }
            (HealthState::Ejected { .. } | HealthState::Probing, Evidence::Refused | Evidence::Silent) => {
                self.state
            }
            (HealthState::Ejected { .. }, _) => self.state,
            (HealthState::Warming { since, .. }, Evidence::Answered) => {
                HealthState::Warming { since, proven: true }
            }
            (HealthState::Warming { .. }, Evidence::ProbeAnswered) => self.state,
            (_, Evidence::ProbeAnswered | Evidence::Answered) => HealthState::Ready,
            (_, Evidence::Failed) if self.failures >= settings.failures_max => {
                self.relapse(now, spare, settings)
            }
            (_, Evidence::Failed) => self.state,
            (_, Evidence::Refused) => out(now, spare),
            (_, Evidence::Broke) if self.breaks >= settings.failures_max => {
                self.relapse(now, spare, settings)
            }
            // It was ejected for failures, and fails again.
            (HealthState::Warming { .. }, Evidence::Broke) if self.relapses > 0 => {
                self.relapse(now, spare, settings)
            }
            (HealthState::Suspect { .. }, Evidence::Silent | Evidence::Broke) => out(now, spare),
            (HealthState::Warming { .. }, Evidence::Silent | Evidence::Broke) => out(now, spare),
            (_, Evidence::Silent | Evidence::Broke) => HealthState::Suspect { refused: false },
        };
    }

    /// An answer is complete: those that broke before it are no run. Changes no state.
    pub fn answer_completed(&mut self) {
        self.breaks = 0;
    }

    /// Ends a ramp that is over.
    pub fn settle(&mut self, now: Instant, settings: &HealthSettings) {
        if let HealthState::Warming { since, proven: true } = self.state
            && now.since(since) >= settings.slow_start
        {
            self.state = HealthState::Ready;
            self.relapses = 0;
        }
    }

    fn relapse(&mut self, now: Instant, spare: MayEject, settings: &HealthSettings) -> HealthState {
        (self.failures, self.breaks) = (0, 0);
        let back_off = settings.back_off.saturating_mul(1 << self.relapses.min(16));
        self.relapses += 1;
        out(now + back_off.min(settings.back_off_max), spare)
    }
}

fn out(until: Instant, spare: MayEject) -> HealthState {
    match spare {
        MayEject::Yes => HealthState::Ejected { until },
        MayEject::No => HealthState::Suspect { refused: true },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Evidence::{Answered, Broke, Failed, ProbeAnswered, Refused, Silent};

    const SETTINGS: HealthSettings = HealthSettings {
        failures_max: 3,
        back_off: Duration::from_secs(1),
        back_off_max: Duration::from_secs(4),
        slow_start: Duration::from_secs(10),
    };

    /// A script of `(second, evidence, expected state's name)`.
    #[track_caller]
    fn check(script: &[(u64, Evidence, &str)]) {
        go_on(&mut Health::default(), script);
    }

    #[track_caller]
    fn go_on(health: &mut Health, script: &[(u64, Evidence, &str)]) {
        for (step, &(second, evidence, expected)) in script.iter().enumerate() {
            health.see(Instant::from_millis(second * 1_000), evidence, MayEject::Yes, &SETTINGS);
            assert_eq!(health.state().name(), expected, "step {step} of {script:?}");
        }
    }

    #[test]
    fn a_refusal_takes_a_worker_out_at_once() {
        check(&[(0, ProbeAnswered, "ready"), (1, Refused, "ejected")]);
    }

    #[test]
    fn silence_makes_a_suspect_and_silence_again_ejects() {
        check(&[(0, ProbeAnswered, "ready"), (1, Silent, "suspect"), (2, Silent, "ejected")]);
        check(&[(0, ProbeAnswered, "ready"), (1, Silent, "suspect"), (2, Answered, "ready")]);
    }

    #[test]
    fn one_broken_connection_costs_a_live_worker_only_a_probe() {
        check(&[(0, ProbeAnswered, "ready"), (1, Broke, "suspect"), (1, ProbeAnswered, "ready")]);
        check(&[(0, ProbeAnswered, "ready"), (1, Broke, "suspect"), (1, Refused, "ejected")]);
    }

    #[test]
    fn failures_in_a_row_eject_and_an_answer_between_them_forgives() {
        check(&[
            (0, ProbeAnswered, "ready"),
            (1, Failed, "ready"),
            (1, Failed, "ready"),
            (1, Answered, "ready"),
            (2, Failed, "ready"),
            (2, Failed, "ready"),
            (2, Failed, "ejected"),
        ]);
    }

    /// An answer that begins and breaks off, and the probe that follows at once.
    const BREAK: [(Evidence, &str); 3] = [(Answered, "ready"), (Broke, "suspect"), (ProbeAnswered, "ready")];

    #[test]
    fn broken_answers_in_a_row_eject_although_each_begins_well_and_every_probe_is_fine() {
        let twice = [BREAK, BREAK].concat().into_iter().map(|it| (1, it.0, it.1));
        let start = [(0, ProbeAnswered, "ready")].into_iter().chain(twice);
        let third = [(1, Answered, "ready"), (1, Broke, "ejected"), (1, ProbeAnswered, "ejected")];
        // Back after a second, and for two seconds out if its first answer breaks off again.
        let again = [(2, ProbeAnswered, "warming"), (3, Answered, "warming"), (3, Broke, "ejected")];
        let longer = [(4, ProbeAnswered, "ejected"), (5, ProbeAnswered, "warming")];
        let third = third.into_iter().chain(again).chain(longer);
        check(&start.clone().chain(third).collect::<Vec<_>>());
        let mut health = Health::default();
        go_on(&mut health, &start.collect::<Vec<_>>());
        health.answer_completed();
        go_on(&mut health, &[(1, Answered, "ready"), (1, Broke, "suspect")]);
    }

    #[test]
    fn an_engine_that_dies_with_many_answers_returns_without_a_back_off() {
        let mut script = vec![(0, ProbeAnswered, "ready"), (1, Broke, "suspect")];
        script.extend([(1, Broke, "ejected"); 20]);
        script.extend([(1, ProbeAnswered, "warming"), (1, Answered, "warming")]);
        check(&script);
    }

    #[test]
    fn a_worker_that_fails_serves_its_back_off_although_its_probe_is_fine() {
        let down = [(1, Failed, "ready"), (1, Failed, "ready"), (1, Failed, "ejected")];
        let first = [(0, ProbeAnswered, "ready")].into_iter().chain(down);
        let again = [(1, ProbeAnswered, "ejected"), (2, ProbeAnswered, "warming")];
        let relapse = [(3, Failed, "warming"), (3, Failed, "warming"), (3, Failed, "ejected")];
        let longer = [(4, ProbeAnswered, "ejected"), (5, ProbeAnswered, "warming")];
        check(&first.chain(again).chain(relapse).chain(longer).collect::<Vec<_>>());
    }

    #[test]
    fn a_returning_worker_proves_itself_then_ramps_then_is_ready() {
        let mut health = Health::default();
        let at = |second: u64| Instant::from_millis(second * 1_000);
        health.see(at(0), ProbeAnswered, MayEject::Yes, &SETTINGS);
        health.see(at(1), Refused, MayEject::Yes, &SETTINGS);
        health.see(at(5), ProbeAnswered, MayEject::Yes, &SETTINGS);
        assert_eq!(health.state(), HealthState::Warming { since: at(5), proven: false });
        assert_eq!(health.share(at(5), &SETTINGS), 0.1);
        health.see(at(6), Answered, MayEject::Yes, &SETTINGS);
        assert_eq!(health.share(at(10), &SETTINGS), 0.5);
        health.settle(at(15), &SETTINGS);
        assert_eq!((health.state(), health.share(at(15), &SETTINGS)), (HealthState::Ready, 1.0));
    }

    #[test]
    fn when_no_more_workers_may_be_ejected_it_stays_a_suspect() {
        let mut health = Health::default();
        health.see(Instant::ZERO, ProbeAnswered, MayEject::Yes, &SETTINGS);
        health.see(Instant::ZERO, Refused, MayEject::No, &SETTINGS);
        assert_eq!(health.state(), HealthState::Suspect { refused: true });
        health.see(Instant::ZERO, ProbeAnswered, MayEject::No, &SETTINGS);
        assert_eq!(health.state(), HealthState::Ready);
    }

    #[test]
    fn a_worker_that_never_answered_is_neither_ejected_nor_ready() {
        check(&[(0, Refused, "probing"), (9, Silent, "probing"), (10, ProbeAnswered, "ready")]);
    }
}
