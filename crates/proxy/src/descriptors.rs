//! File descriptors: raised to the hard limit, and some of them kept for probes.
//!
//! Every connection takes one. If clients and workers could take them all, nothing would be left for the admin listener, its
//! probes would fail, and the process would be restarted in the middle of its streams. So clients get half of what remains
//! after a reserve: the other half is for the connections to workers that their requests need.

use std::fs::File;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that clients and their upstream connections do not count on: for the admin listener, probes, KV events, files
/// and the runtime. A quarter of all, where there are few.
const RESERVED_MAX: usize = 256;

/// Descriptors that the admin listener holds in reserve. Chosen: more probes than arrive at the same time.
const SPARE: usize = 8;

/// Raises the soft limit on descriptors to the hard one. Systems set a low soft limit for programs that use `select`, which
/// cannot handle more than 1,024; this one does not.
pub fn raise_limit() -> io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

/// How many client connections this process has descriptors for.
pub(crate) fn client_connections_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |it| for_clients(usize::try_from(it).unwrap_or(usize::MAX)))
}

fn for_clients(limit: usize) -> usize {
    ((limit - RESERVED_MAX.min(limit / 4)) / 2).max(1)
}

/// Open files that are good for nothing but being closed, when a descriptor is needed and there is no other.
#[derive(Default)]
pub(crate) struct SpareDescriptors(Vec<File>);

impl SpareDescriptors {
    /// Opens what is missing, if possible.
    pub(crate) fn fill(&mut self) {
        while self.0.len() < SPARE {
            let Ok(file) = File::open("/dev/null") else { return };
            self.0.push(file);
        }
    }

    /// Closes one; false if there is none.
    pub(crate) fn release(&mut self) -> bool {
        self.0.pop().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_descriptors_for_workers_and_for_the_admin_listener() {
        for (limit, clients) in [(4, 1), (256, 96), (1_024, 384), (65_536, 32_640)] {
            assert_eq!(for_clients(limit), clients, "of {limit}");
        }
    }

    #[test]
    fn spare_descriptors_are_used_once_and_filled_again() {
        let mut spare = SpareDescriptors::default();
        assert!(!spare.release());
        spare.fill();
        assert_eq!((0..=SPARE).filter(|_| spare.release()).count(), SPARE);
        spare.fill();
        assert!(spare.release());
    }
}
