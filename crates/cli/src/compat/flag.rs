//! A flag of another router, and its outcome here.

/// The routers whose flags are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Old {
    /// `sglang-router` and its successor `smg`: one set of flags, the newer program with more of them.
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
    /// The first name is displayed; the others mean the same.
    pub(super) names: &'static [&'static str],
    pub(super) takes: Takes,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    Nothing,
    One,
    /// All words up to the next flag.
    Several,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The same here.
    Kept(Goal),
    /// Nearly the same here; the text gives the difference.
    Changed(Goal, &'static str),
    /// Maitre always does this; the text says how.
    Needless(&'static str),
    /// No counterpart; the text says why.
    Left(&'static str),
    /// No counterpart, and without it nothing can be served; the text says why.
    Essential(&'static str),
}

/// Which setting a flag becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// This setting alone.
    Key(&'static str, ArgumentForm),
    /// This setting, which `carry.rs` combines from several flags or computes.
    Part(&'static str),
}

/// The format of a value that has a setting of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArgumentForm {
    /// The same format as ours.
    Plain,
    /// A number of seconds.
    Seconds,
    /// Seconds, where 0 means no limit.
    SecondsOrNever,
    /// A number of bytes.
    Bytes,
    /// No value: giving the flag sets this.
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
