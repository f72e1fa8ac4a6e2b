//! Fault injection: which fault an engine shows, and how often.
//!
//! One fault at a time, set through the handle or with `POST /sim/fault`, for instance
//! `{"kind":"close_after_chunks","chunks":3,"times":1}`; `DELETE /sim/fault` ends it.

use parking_lot::Mutex;
use serde::Deserialize;

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fault {
    /// New connections are reset at once; open ones live on.
    RefuseConnections,
    /// The request is read and the connection closed without an answer.
    CloseBeforeHeaders,
    /// The connection closes after the status line and headers.
    CloseAfterHeaders,
    /// The connection closes after this many events of a stream.
    CloseAfterChunks { chunks: u32 },
    /// The connection closes after this many bytes of a response's body, in the middle of an event or not.
    CloseAfterBytes { bytes: usize },
    /// The request is read and never answered.
    Stall,
    /// The stream falls silent after this many events, and stays open.
    StallAfterChunks { chunks: u32 },
    /// An error with this status instead of an answer.
    Status { status: u16 },
    /// Every step takes this many times as long; not counted in `times`.
    Slow { factor: f64 },
    /// KV takes this many times as long to arrive here; not counted in `times`.
    SlowLink { factor: f64 },
    /// New connections to the side channel are accepted and never answered: a lost peer.
    SilentSideChannel,
}

impl Fault {
    fn is_of_requests(self) -> bool {
        !matches!(
            self,
            Fault::RefuseConnections | Fault::Slow { .. } | Fault::SlowLink { .. } | Fault::SilentSideChannel
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Injection {
    #[serde(flatten)]
    pub fault: Fault,
    /// How often it strikes; without it, until cleared.
    #[serde(default)]
    pub times: Option<u64>,
    #[serde(default)]
    pub scope: Scope,
}

impl Injection {
    /// Strikes every request until cleared.
    pub fn always(fault: Fault) -> Injection {
        Injection { fault, times: None, scope: Scope::Requests }
    }

    pub fn times(fault: Fault, times: u64) -> Injection {
        Injection { fault, times: Some(times), scope: Scope::Requests }
    }
}

/// Which requests a fault strikes. Faults of connections strike all of them, faults of the link every transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Requests for work: `POST`s. Probes and scrapes are not affected, so that counts are predictable.
    #[default]
    Requests,
    /// Everything but `/sim`: a process that hangs does not answer probes either.
    All,
}

#[derive(Debug, Default)]
pub(super) struct Faults {
    present: Mutex<Option<Injection>>,
}

impl Faults {
    pub(super) fn inject(&self, injection: Injection) {
        *self.present.lock() = Some(injection);
    }

    pub(super) fn clear(&self) {
        *self.present.lock() = None;
    }

    /// Whether to refuse this new connection.
    pub(super) fn take_connection(&self) -> bool {
        self.take(|it| it.fault == Fault::RefuseConnections).is_some()
    }

    /// Whether this new connection to the side channel gets no answers.
    pub(super) fn take_side_channel(&self) -> bool {
        self.take(|it| it.fault == Fault::SilentSideChannel).is_some()
    }

    /// The fault for this request.
    pub(super) fn take_request(&self, is_work: bool) -> Option<Fault> {
        self.take(|it| it.fault.is_of_requests() && (is_work || it.scope == Scope::All))
    }

    pub(super) fn slow_factor(&self) -> f64 {
        match *self.present.lock() {
            Some(Injection { fault: Fault::Slow { factor }, .. }) => factor,
            _ => 1.0,
        }
    }

    pub(super) fn link_slowness(&self) -> f64 {
        match *self.present.lock() {
            Some(Injection { fault: Fault::SlowLink { factor }, .. }) => factor,
            _ => 1.0,
        }
    }

    fn take(&self, strikes: impl FnOnce(&Injection) -> bool) -> Option<Fault> {
        let mut present = self.present.lock();
        let injection = present.as_mut().filter(|it| strikes(it))?;
        let fault = injection.fault;
        let left = injection.times.map(|times| times.saturating_sub(1));
        injection.times = left;
        if left == Some(0) {
            *present = None;
        }
        Some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, expected: Injection) {
        assert_eq!(serde_json::from_str::<Injection>(json).unwrap(), expected);
    }

    #[test]
    fn faults_are_read_from_json() {
        check(r#"{"kind":"stall"}"#, Injection::always(Fault::Stall));
        check(
            r#"{"kind":"close_after_chunks","chunks":3,"times":2}"#,
            Injection::times(Fault::CloseAfterChunks { chunks: 3 }, 2),
        );
        check(
            r#"{"kind":"status","status":503,"scope":"all"}"#,
            Injection { scope: Scope::All, ..Injection::always(Fault::Status { status: 503 }) },
        );
    }

    #[test]
    fn a_counted_fault_applies_that_often_and_spares_probes() {
        let faults = Faults::default();
        faults.inject(Injection::times(Fault::Stall, 2));
        assert_eq!(faults.take_request(false), None);
        assert!(!faults.take_connection());
        assert_eq!(faults.take_request(true), Some(Fault::Stall));
        assert_eq!(faults.take_request(true), Some(Fault::Stall));
        assert_eq!(faults.take_request(true), None);
    }

    #[test]
    fn slowness_lasts_until_cleared() {
        let faults = Faults::default();
        faults.inject(Injection::times(Fault::Slow { factor: 3.0 }, 1));
        assert_eq!(faults.take_request(true), None);
        assert_eq!(faults.slow_factor(), 3.0);
        faults.clear();
        assert_eq!(faults.slow_factor(), 1.0);
        faults.inject(Injection::always(Fault::SlowLink { factor: 9.0 }));
        assert_eq!(
            (faults.take_request(true), faults.slow_factor(), faults.link_slowness()),
            (None, 1.0, 9.0)
        );
    }
}
