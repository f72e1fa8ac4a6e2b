//! The two kinds of flag that commands have.

use clap::{Arg, ArgAction};

/// `--name VALUE`.
pub fn value(name: &'static str, value: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value)
}

/// `--name`, without a value.
pub fn switch(name: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue)
}
