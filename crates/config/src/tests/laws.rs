//! What holds for every knob, and for any input.

use std::collections::BTreeSet;

use proptest::prelude::{any, prop, prop_assert_eq, proptest};

use super::{Config, read, start};
use crate::field::Field;
use crate::form::{duration, show_duration, show_size, size};
use crate::knob::{self, Knob};

const SECRET_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/secret.txt");

/// A value for the knob that is not its default.
fn sample(knob: &Knob) -> &'static str {
    match &knob.field {
        Field::Socket(_) => "127.0.0.1:9",
        Field::Workers(_) => "http://a:1,http://b:2",
        Field::Strategy(_) => "random",
        Field::Strategies(_) => "llama-3.1=random,qwen=round-robin",
        Field::Names(_) => "random,least-work",
        Field::Classes(_) => "fast?deadline=2s&requests=5&tokens=9,standard?deadline=none&reserve=0.2",
        Field::ClassName(_) => "batch",
        Field::Tenants(_) => "sk-?&=1?weight=3&rpm=600&tpm=1000,team-b?usual=batch,*?best=standard",
        Field::By(_) => "adapter",
        Field::Sense(_) => "higher-first",
        Field::ClientAuth(_) => "optional",
        Field::Collector(_) => "https://otel.internal:4318/otlp",
        Field::Headers(_) => "authorization=Bearer a=b,x-team=c",
        Field::Folders(_) => "llama-3.1=/models/a,qwen=b",
        Field::Text(_) => "kv@",
        // Read when it is named; what it holds will do for any of them.
        Field::File(_) if knob.key.ends_with("_file") => SECRET_FILE,
        Field::File(_) => "a b/trace.jsonl",
        Field::Keys(_) => {
            "correct-horse-battery?tenant=acme&best=standard&models=a|b*&rpm=5&tpm=7&trusted,other-horse-battery"
        }
        Field::Secret(_) | Field::Hidden(_) => "correct-horse-battery",
        Field::SaltBy(_) => "tenant",
        Field::Via(_) => "mesh",
        Field::Addresses(_) => "router-1:7946,[::1]:7946",
        Field::Address(_) => "router-1:7946",
        Field::RouterName(_) => "router-1",
        Field::Switch(_) if knob.default() == "true" => "false",
        Field::Switch(_) => "true",
        Field::Sources(_) => "file:/etc/workers,dns:workers:8000?events=5557",
        Field::Sockets(_) => "127.0.0.1:53,[::1]:53",
        Field::Api(_) => "https://10.0.0.1:6443",
        Field::Paths(_) => "/a,/b/*",
        Field::Beginnings(_) => "http://10.0.0.*,https://a:1",
        Field::Path(_) => "/ping",
        Field::Header(_) => "x-user",
        Field::Cookie(_) => "sid",
        Field::Size(..) => "4KiB",
        Field::Count(..) | Field::Count32(..) | Field::Count64(..) => "7",
        Field::Ratio(_, range) if knob.default().starts_with("0.") || *range.end() <= 1.0 => "0.7",
        Field::Ratio(..) => "2.5",
        Field::Time(..) => "7s",
        Field::Level(_) => "warn,hyper=debug",
        Field::Format(_) => "json",
    }
}

/// Those it makes no sense without: a certificate and its key, or a mesh and its key.
fn companions(knob: &Knob) -> impl Iterator<Item = &'static Knob> {
    let (section, name) = knob.key.split_once('.').unwrap_or(("", knob.key));
    if section == "cluster" {
        // A file, since what it holds is not shown, and it itself is.
        let needed = match name {
            "via" => ["cluster.key_file", ""],
            "peers" => ["cluster.via", "cluster.key_file"],
            _ => ["", ""],
        };
        return knob::all().filter(|it| needed.contains(&it.key)).collect::<Vec<_>>().into_iter();
    }
    let needed = match (section.ends_with("tls"), name) {
        (true, "cert") => ["key", "key"],
        (true, "key") => ["cert", "cert"],
        (true, "client_ca") => ["cert", "key"],
        _ => ["", ""],
    };
    let others = knob::all().filter(move |it| {
        let (other, name) = it.key.split_once('.').unwrap_or(("", it.key));
        other == section && !section.is_empty() && needed.contains(&name)
    });
    others.collect::<Vec<_>>().into_iter()
}

#[test]
fn every_knob_is_set_alike_by_flag_variable_toml_and_yaml() {
    let default = format!("{:?}", Config::default());
    for knob in knob::all() {
        let knobs: Vec<&Knob> = std::iter::once(knob).chain(companions(knob)).collect();
        let each = |write: &dyn Fn(&Knob, &str) -> String| -> Vec<String> {
            knobs.iter().map(|it| write(it, sample(it))).collect()
        };
        let flags = each(&|it, value| format!("{}={value}", it.flag()));
        let flag = start(&flags.iter().map(String::as_str).collect::<Vec<_>>(), &[]).unwrap();
        let names = each(&|it, _| it.variable());
        let variables: Vec<_> =
            names.iter().zip(&knobs).map(|(name, it)| (name.as_str(), sample(it))).collect();
        let variable = start(&[], &variables).unwrap();
        let toml = each(&|it, value| format!("{} = \"{value}\"", it.key)).join("\n");
        let toml = read("m.toml", toml).unwrap();
        // The one itself by sections, its companions by their whole names.
        let whole = each(&|it, value| format!("{}: \"{value}\"", it.key))[1..].join("\n");
        let own = format!("{}: \"{}\"", knob.key.replace('.', ":\n  "), sample(knob));
        let yaml = read("m.yaml", format!("{own}\n{whole}")).unwrap();
        let printed = read("m.toml", flag.to_string()).unwrap();
        let expected = format!("{flag:?}");
        assert_ne!(expected, default, "{}", knob.key);
        for other in [variable, toml, yaml] {
            assert_eq!(format!("{other:?}"), expected, "{}", knob.key);
        }
        // What is not shown cannot be read back; the rest is as it was.
        let read_back = if knob.hides(&flag) { &default } else { &expected };
        assert_eq!(format!("{printed:?}"), *read_back, "{}", knob.key);
    }
}

#[test]
fn every_default_as_shown_gives_the_default() {
    let default = format!("{:?}", Config::default());
    for knob in knob::all() {
        let config = start(&[&format!("{}={}", knob.flag(), knob.default())], &[]).unwrap();
        assert_eq!(format!("{config:?}"), default, "{}", knob.key);
    }
}

#[test]
fn no_two_knobs_share_a_name() {
    let names: BTreeSet<String> = knob::all().flat_map(|knob| [knob.flag(), knob.variable()]).collect();
    assert_eq!(names.len(), 2 * knob::all().count());
    assert!(!names.contains("--config") && !names.contains("MAITRE_CONFIG"));
}

proptest! {
    #[test]
    fn no_bytes_can_hurt(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for name in ["m.toml", "m.yaml", "m"] {
            let _ = read(name, &bytes);
        }
    }

    #[test]
    fn no_text_that_resembles_a_file_can_hurt(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "workers", "classes", "tenants", "log", ".", "level", "strategies", ":", " ", "=", "\n", "\n  ", "- ", "[", "]", "[[", "]]",
                "{", "}", ",", "\"", "'", "#", "&a", "*a", "!t", "|", ">", "?", "---", "...", "5s", "1", "é", "\t",
            ]),
            0..40,
        ),
    ) {
        for name in ["m.toml", "m.yaml", "m"] {
            let _ = read(name, parts.concat());
        }
    }

    #[test]
    fn nesting_is_bounded(depth in 1usize..5_000) {
        for (name, open) in [("m.toml", "["), ("m.yaml", "["), ("m.toml", "{a="), ("m.yaml", "{a: "), ("m.yaml", "- ")] {
            let _ = read(name, format!("a{}{}", if name == "m.toml" { "=" } else { ":\n " }, open.repeat(depth)));
        }
    }

    #[test]
    fn a_duration_and_a_size_read_back_as_they_are_shown(number in 0u32..) {
        let time = std::time::Duration::from_millis(number.into());
        prop_assert_eq!(duration(&show_duration(time), &(std::time::Duration::ZERO..=time)), Ok(time));
        let bytes = number as usize;
        prop_assert_eq!(size(&show_size(bytes), &(0..=bytes)), Ok(bytes));
    }
}
