//! Limits log lines to one per minute for each address and cause, so that a repeated refusal does not fill the log.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

const AGAIN: Duration = Duration::from_secs(60);
/// More addresses than a fleet has; a network scan must not grow the map.
const ENTRIES_MAX: usize = 1024;

/// Why a connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RefusalCause {
    NotARouter,
    Version,
    Key,
    Timeout,
    Malformed,
    SameName,
    Full,
    Unreachable,
}

#[derive(Debug, Default)]
pub(super) struct LogLimiter {
    logged: HashMap<(SocketAddr, RefusalCause), Instant>,
}

impl LogLimiter {
    /// Whether to log now; records it if so. At the limit nothing is logged until a minute is over. Incoming
    /// connections use port zero, because their source port varies.
    pub(super) fn is_due(&mut self, address: SocketAddr, cause: RefusalCause, now: Instant) -> bool {
        if self.logged.get(&(address, cause)).is_some_and(|&logged| now < logged + AGAIN) {
            return false;
        }
        if self.logged.len() >= ENTRIES_MAX {
            self.logged.retain(|_, logged| now < *logged + AGAIN);
        }
        let has_room = self.logged.len() < ENTRIES_MAX;
        if has_room {
            self.logged.insert((address, cause), now);
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::mesh::clock;

    fn address(number: u32) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::from(number).into(), 0)
    }

    #[test]
    fn a_cause_is_logged_once_a_minute_per_address() {
        let (mut log_limiter, now) = (LogLimiter::default(), clock::now());
        assert!(log_limiter.is_due(address(1), RefusalCause::Key, now));
        assert!(!log_limiter.is_due(address(1), RefusalCause::Key, now + AGAIN / 2));
        assert!(log_limiter.is_due(address(1), RefusalCause::Version, now));
        assert!(log_limiter.is_due(address(2), RefusalCause::Key, now));
        assert!(log_limiter.is_due(address(1), RefusalCause::Key, now + AGAIN));
    }

    #[test]
    fn a_network_scan_does_not_fill_the_log() {
        let (mut log_limiter, now) = (LogLimiter::default(), clock::now());
        let logged =
            (0..5_000).filter(|&it| log_limiter.is_due(address(it), RefusalCause::NotARouter, now)).count();
        assert_eq!((logged, log_limiter.logged.len()), (ENTRIES_MAX, ENTRIES_MAX));
        assert!(log_limiter.is_due(address(9_999), RefusalCause::NotARouter, now + AGAIN));
    }
}
