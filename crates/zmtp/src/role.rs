//! What kind of socket an end of a connection is, and which kinds may talk to each other.

use std::fmt;

/// The kinds we are. Peers may be of more kinds than these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Pub,
    Sub,
    Dealer,
    Router,
}

impl Role {
    /// Its name in a `READY` command.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Pub => "PUB",
            Role::Sub => "SUB",
            Role::Dealer => "DEALER",
            Role::Router => "ROUTER",
        }
    }

    /// The names of those it may talk to, by the protocol's table.
    pub(crate) const fn partners(self) -> &'static [&'static str] {
        match self {
            Role::Pub => &["SUB", "XSUB"],
            Role::Sub => &["PUB", "XPUB"],
            Role::Dealer => &["ROUTER", "DEALER", "REP"],
            Role::Router => &["DEALER", "ROUTER", "REQ"],
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
