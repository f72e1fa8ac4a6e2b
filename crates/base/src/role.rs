//! Which part of a request a worker does.

use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Whole requests.
    #[default]
    Both,
    /// Only prompts, for workers that decode. Such a worker never answers a client.
    Prefill,
    /// Whole requests, and those whose prompt another worker has prefilled.
    Decode,
}

impl Role {
    pub const ALL: [Role; 3] = [Role::Both, Role::Prefill, Role::Decode];

    /// The name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Both => "both",
            Role::Prefill => "prefill",
            Role::Decode => "decode",
        }
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
