//! Says a thing once a minute: for each address and cause, so that whoever knocks again and again fills no log.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

const AGAIN: Duration = Duration::from_secs(60);
/// More addresses than a fleet has; a scan of a network must not grow it.
const NOTICES_MAX: usize = 1024;

/// Why somebody was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Cause {
    Stranger,
    Version,
    Key,
    Late,
    Nonsense,
    SameName,
    Full,
    Unreachable,
}

#[derive(Debug, Default)]
pub(super) struct Notices {
    said: HashMap<(SocketAddr, Cause), Instant>,
}

impl Notices {
    /// Whether it should be said now; if so it is taken as said. Beyond the limit nothing is, until a minute is over.
    /// Whoever dials us comes from another port each time: there the port is zero.
    pub(super) fn is_due(&mut self, address: SocketAddr, cause: Cause, now: Instant) -> bool {
        if self.said.get(&(address, cause)).is_some_and(|&said| now < said + AGAIN) {
            return false;
        }
        if self.said.len() >= NOTICES_MAX {
            self.said.retain(|_, said| now < *said + AGAIN);
        }
        let has_room = self.said.len() < NOTICES_MAX;
        if has_room {
            self.said.insert((address, cause), now);
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
    fn a_cause_is_told_once_a_minute_for_each_address() {
        let (mut notices, now) = (Notices::default(), clock::now());
        assert!(notices.is_due(address(1), Cause::Key, now));
        assert!(!notices.is_due(address(1), Cause::Key, now + AGAIN / 2));
        assert!(notices.is_due(address(1), Cause::Version, now));
        assert!(notices.is_due(address(2), Cause::Key, now));
        assert!(notices.is_due(address(1), Cause::Key, now + AGAIN));
    }

    #[test]
    fn a_scan_of_a_network_is_cut_off() {
        let (mut notices, now) = (Notices::default(), clock::now());
        let said = (0..5_000).filter(|&it| notices.is_due(address(it), Cause::Stranger, now)).count();
        assert_eq!((said, notices.said.len()), (NOTICES_MAX, NOTICES_MAX));
        assert!(notices.is_due(address(9_999), Cause::Stranger, now + AGAIN));
    }
}
