//! Socket types, and which of them may be connected.

use std::fmt;

/// The socket types on our side. Peers may have others.
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

    /// The compatible socket types, from the protocol's table.
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
