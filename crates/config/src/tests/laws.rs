//! What holds for every knob, and for any input.

use std::collections::BTreeSet;

use proptest::prelude::{any, prop, prop_assert_eq, proptest};

use super::{Config, read, start};
use crate::form::{Form, Secrecy, Size, Time, ValueShape};
use crate::knob::Knob;
use crate::table;

const SECRET_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/secret.txt");

/// A value for the knob that is not its default.
fn sample(knob: &Knob) -> &'static str {
    let is_list = matches!(knob.field.shape(), ValueShape::List(_));
    match (knob.form(), is_list) {
        ("ADDRESS", false) => "127.0.0.1:9",
        ("ADDRESS", true) => "127.0.0.1:53,[::1]:53",
        ("URL", _) if knob.key == "workers" => "http://a:1,http://b:2",
        ("URL", true) => "http://10.0.0.*,https://a:1",
        ("URL", false) => "https://10.0.0.1:6443",
        ("STRATEGY", false) => "random",
        ("STRATEGY", true) => "random,least-work",
        ("MODEL", _) => "llama-3.1,qwen/qwen-3",
        ("MODEL=STRATEGY", _) => "llama-3.1=random,qwen=round-robin",
        ("MODEL=FOLDER", _) => "llama-3.1=/models/a,qwen=b",
        ("CLASS", _) => {
            "fast?deadline=2s&requests=5&tokens=9,standard?deadline=none&reserve=0.2&continue=on&hedge=off"
        }
        ("TENANT", _) => "sk-?&=1?weight=3&rpm=600&tpm=1000,team-b?usual=batch,*?best=standard",
        ("KEY", _) => {
            "correct-horse-battery?tenant=acme&best=standard&models=a|b*&rpm=5&tpm=7&trusted,other-horse-battery"
        }
        ("SECRET", _) => "correct-horse-battery",
        ("BY", _) => "adapter",
        ("ORDER", _) => "higher-first",
        ("RULE", _) => "always",
        ("MEMORY", _) => "working-set",
        ("STATE", _) => "on",
        ("AUTH", _) => "optional",
        ("SALT", _) => "tenant",
        ("VIA", _) => "mesh",
        ("SOURCE", _) => "file:/etc/workers,dns:workers:8000?events=5557",
        ("HOST:PORT", true) => "router-1:7946,[::1]:7946",
        ("HOST:PORT", false) => "router-1:7946",
        ("NAME=VALUE", _) => "authorization=Bearer a=b,x-team=c",
        ("NAME", _) if knob.key == "queue.standard" => "batch",
        ("NAME", _) => "x-user",
        ("TEXT", _) => "kv@",
        // The file is read at once; its content is valid for all of these knobs.
        ("FILE", _) if knob.key.ends_with("_file") => SECRET_FILE,
        ("FILE", _) => "a b/trace.jsonl",
        ("BOOL", _) if knob.default() == "true" => "false",
        ("BOOL", _) => "true",
        ("ORIGIN", _) => "https://a.example,http://localhost:3000",
        ("PATH", true) => "/a,/b/*",
        ("PATH", false) => "/ping",
        ("SIZE", _) => "4KiB",
        ("COUNT", _) => "7",
        ("NUMBER", _) if knob.field.set(&mut Config::default(), "0.7").is_ok() => "0.7",
        ("NUMBER", _) => "2.5",
        ("DURATION", _) => "7s",
        ("LEVEL", _) => "warn,hyper=debug",
        ("FORMAT", _) => "json",
        (form, _) => panic!("{}: no sample of the form {form}", knob.key),
    }
}

/// The knobs that this one needs: a certificate and its key, or a mesh and its key.
fn companions(knob: &Knob) -> impl Iterator<Item = &'static Knob> {
    let (section, name) = knob.key.split_once('.').unwrap_or(("", knob.key));
    if section == "cluster" {
        // A file, since what it holds is not shown, and it itself is.
        let needed = match name {
            "via" => ["cluster.key_file", ""],
            "peers" => ["cluster.via", "cluster.key_file"],
            _ => ["", ""],
        };
        return table::all().filter(|it| needed.contains(&it.key)).collect::<Vec<_>>().into_iter();
    }
    let needed = match (section.ends_with("tls"), name) {
        (true, "cert") => ["key", "key"],
        (true, "key") => ["cert", "cert"],
        (true, "client_ca") => ["cert", "key"],
        _ => ["", ""],
    };
    let others = table::all().filter(move |it| {
        let (other, name) = it.key.split_once('.').unwrap_or(("", it.key));
        other == section && !section.is_empty() && needed.contains(&name)
    });
    others.collect::<Vec<_>>().into_iter()
}

#[test]
fn every_knob_is_set_alike_by_flag_variable_toml_and_yaml() {
    let default = format!("{:?}", Config::default());
    for knob in table::all() {
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
        // Hidden values cannot be read back; the rest is unchanged.
        let read_back = if knob.field.secrecy(&flag) == Secrecy::Hidden { &default } else { &expected };
        assert_eq!(format!("{printed:?}"), *read_back, "{}", knob.key);
    }
}

#[test]
fn every_default_as_shown_gives_the_default() {
    let default = format!("{:?}", Config::default());
    for knob in table::all() {
        let config = start(&[&format!("{}={}", knob.flag(), knob.default())], &[]).unwrap();
        assert_eq!(format!("{config:?}"), default, "{}", knob.key);
    }
}

#[test]
fn no_two_knobs_share_a_name() {
    let names: BTreeSet<String> = table::all().flat_map(|knob| [knob.flag(), knob.variable()]).collect();
    assert_eq!(names.len(), 2 * table::all().count());
    assert!(!names.contains("--config") && !names.contains("MAITRE_CONFIG"));
}

proptest! {
    #[test]
    fn no_bytes_crash_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for name in ["m.toml", "m.yaml", "m"] {
            let _ = read(name, &bytes);
        }
    }

    #[test]
    fn no_text_that_resembles_a_file_crashes_the_reader(
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
        let form = Time(std::time::Duration::ZERO..=time);
        prop_assert_eq!(form.read(&form.show(&time)), Ok(time));
        let bytes = number as usize;
        let form = Size(0..=bytes);
        prop_assert_eq!(form.read(&form.show(&bytes)), Ok(bytes));
    }
}

#[test]
fn fuzz_config_file() {
    let toml = b"listen = \"127.0.0.1:8080\"\nworkers = [\"http://a:1\"]\n\n[timeouts]\nconnect = \"5s\"\n\n[[keys]]\nkey = \"k\"\ntenant = \"t\"\n";
    let yaml =
        b"listen: 127.0.0.1:8080\nworkers:\n  - http://a:1\nlimits:\n  body: 1MiB\nclasses: [fast, slow]\n";
    maitre_testkit::fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "config-file", &[toml, yaml], |input, dice| {
        let _ = read(["m.toml", "m.yaml", "m"][dice.below(3)], input);
    });
}
