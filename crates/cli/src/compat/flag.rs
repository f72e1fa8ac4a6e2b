//! A flag of another router, and what becomes of it here.

/// Whose flags are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Old {
    /// `sglang-router`, and `smg`, which it became: one set of flags, the newer with more of them.
    Sglang,
    VllmRouter,
}

impl Old {
    pub(super) fn name(self) -> &'static str {
        match self {
            Old::Sglang => "sglang-router",
            Old::VllmRouter => "vllm-router",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Flag {
    /// The first is the one that is shown; the others mean the same.
    pub(super) names: &'static [&'static str],
    pub(super) takes: Takes,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    Nothing,
    One,
    /// All that follow, up to the next flag.
    Several,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is the same here.
    Kept(Goal),
    /// It is nearly the same here; the difference.
    Changed(Goal, &'static str),
    /// It asks for what Maitre does anyway; how.
    Needless(&'static str),
    /// It has no counterpart; why.
    Left(&'static str),
    /// It has none either, and without it there is nothing that could serve; why.
    Essential(&'static str),
}

/// Which setting a flag becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// This one, by itself.
    Key(&'static str, ArgumentForm),
    /// This one, which `carry.rs` puts together from several flags or works out.
    Part(&'static str),
}

/// How the other router writes a value that has one setting to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArgumentForm {
    /// As we do.
    Plain,
    /// A number of seconds.
    Seconds,
    /// The same, and 0 for no limit at all.
    SecondsOrNever,
    /// A number of bytes.
    Bytes,
    /// No value: to give the flag is to set this.
    Word(&'static str),
}

impl Flag {
    pub(super) const fn new(names: &'static [&'static str], takes: Takes, fate: Fate) -> Flag {
        Flag { names, takes, fate }
    }

    pub(super) fn name(&self) -> &'static str {
        self.names.first().copied().unwrap_or_default()
    }

    pub(super) fn is_called(&self, name: &str) -> bool {
        self.names.contains(&name)
    }

    pub(super) fn fate(&self) -> Fate {
        self.fate
    }
}
