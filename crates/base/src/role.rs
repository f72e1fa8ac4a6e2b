//! Which part of a request a worker does.

use std::fmt;
use std::str::FromStr;

crate::words! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum Role {
        /// Whole requests.
        #[default]
        Both = "both",
        /// Only prompts, for workers that decode. Such a worker never answers a client.
        Prefill = "prefill",
        /// Whole requests, and those whose prompt another worker has prefilled.
        Decode = "decode",
    }
}

impl fmt::Display for Role {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

impl FromStr for Role {
    type Err = ();

    fn from_str(name: &str) -> Result<Role, ()> {
        Role::ALL.into_iter().find(|it| it.name() == name).ok_or(())
    }
}
