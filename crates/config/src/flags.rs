//! The flags: one for each knob, and `--config`. `-h` lists the common ones with one sentence each, `--help` all of them.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, value_parser};

use crate::error::Origin;
use crate::form::ValueShape;
use crate::knob::{Assignment, Knob, RawValue, Section};
use crate::{SourceValues, table};

const CONFIG: &str = "config";

/// The flags of a command whose matches go to `load`.
pub fn args() -> Vec<Arg> {
    let config = Arg::new(CONFIG)
        .long(CONFIG)
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("Read settings from this TOML or YAML file.");
    let of = |section: &'static Section| section.knobs.iter().map(|knob| arg(section, knob));
    std::iter::once(config).chain(table::SECTIONS.iter().flat_map(of)).collect()
}

/// Clap does not check values: errors in them are reported together with all others.
fn arg(section: &Section, knob: &'static Knob) -> Arg {
    let default = Some(knob.default()).filter(|it| !it.is_empty());
    let default = default.map(|it| format!(" [default: {it}]")).unwrap_or_default();
    let arg = Arg::new(knob.key)
        .long(knob.flag().trim_start_matches('-').to_owned())
        .value_name(knob.form())
        .help(format!("{}{default}", if knob.is_common { knob.summary() } else { knob.help }))
        .long_help(format!("{}{default}", knob.help))
        .hide_short_help(!knob.is_common);
    // The short list is short enough without headings.
    let arg = match section.title {
        Some(title) if !knob.is_common => arg.help_heading(title),
        _ => arg,
    };
    match knob.field.shape() {
        // `--explain` alone means true. `--explain=false` needs its sign, or it would take the next argument.
        ValueShape::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        ValueShape::List(_) | ValueShape::Map(_) => arg.action(ArgAction::Append),
        ValueShape::Text | ValueShape::Number => arg,
    }
}

pub(super) fn file(matches: &ArgMatches) -> Option<PathBuf> {
    matches.get_one::<PathBuf>(CONFIG).cloned()
}

pub(super) fn read(matches: &ArgMatches) -> SourceValues {
    let given = |knob: &'static Knob| {
        let texts: Vec<&str> = matches.get_many::<String>(knob.key)?.map(String::as_str).collect();
        let (value, origin) = (RawValue::One(texts.join(",")), Origin::Flag(knob.flag()));
        Some(Assignment { knob, value, origin })
    };
    SourceValues { given: table::all().filter_map(given).collect(), errors: Vec::new() }
}
