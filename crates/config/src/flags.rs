//! The flags: one for each knob, and `--config`.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, value_parser};

use super::error::Place;
use super::field::Field;
use super::knob::{self, Given, Knob, Section, Written};
use super::{Found, table};

const CONFIG: &str = "config";

/// The flags of a command whose matches go to `load`.
pub fn args() -> Vec<Arg> {
    let config = Arg::new(CONFIG)
        .long(CONFIG)
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("Read settings from this TOML or YAML file.");
    let of = |section: &'static Section| section.knobs.iter().map(|knob| arg(section, knob));
    std::iter::once(config).chain(table().iter().flat_map(of)).collect()
}

/// Values stay text here: what is wrong with them is told with all the rest, not one at a time by clap.
fn arg(section: &Section, knob: &'static Knob) -> Arg {
    let default = Some(knob.default()).filter(|it| !it.is_empty());
    let default = default.map(|it| format!(" [default: {it}]")).unwrap_or_default();
    let arg = Arg::new(knob.key)
        .long(knob.flag().trim_start_matches('-').to_owned())
        .value_name(knob.form())
        .help(format!("{}{default}", knob.help));
    let arg = match section.title {
        Some(title) => arg.help_heading(title),
        None => arg,
    };
    match knob.field {
        // `--explain` alone means yes; `--explain=false` must hold together, lest it eat what follows.
        Field::Switch(_) => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        _ if knob.field.is_list() => arg.action(ArgAction::Append),
        _ => arg,
    }
}

pub(super) fn file(matches: &ArgMatches) -> Option<PathBuf> {
    matches.get_one::<PathBuf>(CONFIG).cloned()
}

pub(super) fn read(matches: &ArgMatches) -> Found {
    let given = |knob: &'static Knob| {
        let texts: Vec<&str> = matches.get_many::<String>(knob.key)?.map(String::as_str).collect();
        Some(Given { knob, written: Written::One(texts.join(",")), place: Place::Flag(knob.flag()) })
    };
    Found { given: knob::all().filter_map(given).collect(), errors: Vec::new() }
}
