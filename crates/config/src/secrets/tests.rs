//! Keys and secrets, from any source: what is accepted, what is refused and how that reads, without a secret in it.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::form::Form as _;
use crate::tests::{check, check_toml, read, start};

const PLAIN: &str = "correct-horse-battery";
/// SHA-256 of `abc`.
const HASH: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

/// A file on disk that only its owner reads, gone when dropped.
struct Kept(PathBuf);

impl Kept {
    fn new(name: &str, text: &str, mode: u32) -> Kept {
        use std::os::unix::fs::PermissionsExt as _;
        let path = std::env::temp_dir().join(format!("maitre-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        Kept(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn shown(config: &Config) -> Vec<String> {
    config.secrets.keys.iter().map(|it| key::KEY_LIST.item.show(it)).collect()
}

#[test]
fn keys_are_texts_or_tables() {
    let full = format!("{HASH}?tenant=acme&best=standard&models=llama-8b|qwen*&rpm=5&tpm=7&trusted");
    for (name, text) in [
        ("m.toml", format!("keys = [\"{full}\", \"{PLAIN}\"]")),
        ("m.toml", format!("keys = \"{full},{PLAIN}\"")),
        (
            "m.toml",
            format!(
                "[[keys]]\nkey = \"{HASH}\"\ntenant = \"acme\"\nbest = \"standard\"\nmodels = \"llama-8b|qwen*\"\nrpm = 5\ntpm = 7\ntrusted = true\n[[keys]]\nkey = \"{PLAIN}\""
            ),
        ),
        ("m.yaml", format!("keys:\n- '{full}'\n- key: {PLAIN}")),
    ] {
        let config = read(name, text).unwrap();
        // Of a plain key only the hash is left.
        assert_eq!(shown(&config), [full.clone(), Secret::of(PLAIN.as_bytes()).to_string()]);
        assert_eq!(config.settings.keys.len(), 2);
        let again = read("m.toml", config.to_string()).unwrap();
        assert_eq!(shown(&again), shown(&config));
    }
}

#[test]
fn a_file_adds_to_the_keys_in_the_settings() {
    let file = Kept::new("keys", &format!("# for acme\n\n  {HASH}?tenant=acme  \n"), 0o640);
    let config = read("m.toml", format!("keys_file = \"{}\"\nkeys = \"{PLAIN}\"", file.path())).unwrap();
    assert_eq!((config.settings.keys.len(), config.warnings.len()), (2, 0));
    let config = start(&["--keys-file", file.path(), "--listen", "0.0.0.0:80"], &[]).unwrap();
    assert_eq!(config.settings.keys.len(), 1);
}

#[test]
fn errors_about_keys_do_not_show_them() {
    check_toml(
        "keys = [\n\"short?rpm=0\",\n\"sha256:12\",\n\"plain-secret-of-somebody?colour=1&trusted=maybe&models=a||b&models=*a\",\n\"another-plain-secret?tenant=*&best=a b\",\n]",
        &[
            "m.toml:2: keys: sho…: a key has at least 16 characters; `maitre key` makes one; rpm: \"0\" is out of range; write 1 to 1000000000",
            "m.toml:3: keys: sha…: a hash has 64 digits from 0 to f after \"sha256:\"; `maitre key` makes one",
            "m.toml:4: keys: pla…: unknown option \"col…\"; known: tenant, best, models, rpm, tpm and trusted; trusted: \"maybe\" is neither true nor false; models: \"a||b\" names no models; write up to 256, as in \"llama-8b|qwen*\"; models: \"*a\" names no models; write up to 256, as in \"llama-8b|qwen*\"",
            "m.toml:5: keys: ano…: tenant: names no tenant; write it as in \"tenant=team-a\"; best: \"a b\" is not the name of a class; write letters, digits and -_. but not a number alone, as in \"interactive\"",
        ],
    );
    check_toml(
        &format!("keys = [\"{HASH}?best=gold\", \"{PLAIN}\", \"{PLAIN}\"]"),
        &[
            &format!("m.toml:1: keys: {} is there twice", read_shown(PLAIN)),
            "m.toml:1: keys: sha256:ba7816bf…: best: unknown class \"gold\"; known: interactive, standard, batch",
        ],
    );
    check_toml("[keys]\na = 1", &["m.toml:1: keys: takes a value, not a table"]);
    check_toml("[[keys]]\ntenant = \"a\"", &["m.toml:1: keys: a key has no key; write key = \"…\""]);
}

fn read_shown(plain: &str) -> String {
    key::read(plain).unwrap().shown()
}

#[test]
fn errors_in_a_key_file_have_their_line() {
    let file = Kept::new("bad-keys", &format!("{PLAIN}\n{PLAIN}?tenant=b\nsecret\n"), 0o600);
    let path = file.path();
    check(
        start(&["--keys-file", path], &[]),
        &[
            &format!("--keys-file: {path}:3: sec…: a key has at least 16 characters; `maitre key` makes one"),
            &format!("--keys-file: {path}:2: {} is there twice", read_shown(PLAIN)),
        ],
    );
    let file = Kept::new("no-keys", "# none yet\n", 0o600);
    let path = file.path();
    check(
        start(&["--keys-file", path], &[]),
        &[&format!("--keys-file: {path} holds no key; without any, requests would need none")],
    );
    let error = start(&["--keys-file", "/no/such/keys"], &[]).unwrap_err().to_string();
    assert!(error.starts_with("--keys-file: /no/such/keys cannot be read: No such file"), "{error}");
}

#[test]
fn a_file_that_others_can_read_is_a_warning() {
    for (mode, expected) in [(0o600, 0), (0o400, 0), (0o640, 0), (0o644, 1), (0o660, 1), (0o604, 1)] {
        let file = Kept::new(&format!("mode-{mode:o}"), PLAIN, mode);
        let config = start(&["--worker-key-file", file.path()], &[]).unwrap();
        assert_eq!(config.warnings.len(), expected, "{mode:o}: {:?}", config.warnings);
        assert!(config.settings.worker_key.is_some());
    }
}

#[test]
fn limits_of_a_key_are_its_tenants() {
    let limits = |config: &Config, name: &str| {
        let terms = config.settings.brain.queue.terms(tenant(name.as_bytes()));
        (terms.weight, terms.requests_per_minute, terms.tokens_per_minute)
    };
    let config = read(
        "m.toml",
        format!("keys = [\"{HASH}?tenant=acme&rpm=5\", \"{PLAIN}?tenant=acme\"]\ntenants = [\"acme?weight=3\", \"*?rpm=1&weight=2\"]"),
    )
    .unwrap();
    assert_eq!(limits(&config, "acme"), (3.0, Some(5), None));
    // A tenant without terms of its own has the common ones, except for what is set here.
    let config =
        read("m.toml", format!("keys = [\"{HASH}?tpm=9\"]\ntenants = [\"*?rpm=1&weight=2\"]")).unwrap();
    assert_eq!(limits(&config, HASH), (2.0, None, Some(9)));
    check_toml(
        &format!("keys = [\"{HASH}?tenant=acme&rpm=5\"]\ntenants = [\"acme?rpm=6\"]"),
        &["m.toml:1: keys: acm… has limits under tenants; set them in one place"],
    );
    check_toml(
        &format!("keys = [\"{HASH}?tenant=acme&rpm=5\", \"{PLAIN}?tenant=acme&rpm=6\"]"),
        &["m.toml:1: keys: another key of acm… has other limits; set rpm and tpm once, under tenants"],
    );
}

#[test]
fn a_secret_is_set_in_one_place_and_never_shown() {
    let secret = "the-secret-of-workers";
    let config =
        start(&["--worker-key", secret, "--salt-secret", secret, "--salt-by", "tenant"], &[]).unwrap();
    let all = format!("{config} {config:?}");
    assert!(!all.contains(secret), "{all}");
    assert!(all.contains("# worker_key is set, and not shown\n"), "{all}");
    // The printed settings are the same except for those.
    let again = read("m.toml", config.to_string()).unwrap();
    assert!(again.settings.worker_key.is_none() && again.settings.salt.is_some());
    let file = Kept::new("both", PLAIN, 0o600);
    for (knob, flag) in
        [("worker_key", "--worker-key"), ("admin_key", "--admin-key"), ("salt.secret", "--salt-secret")]
    {
        let file_flag = format!("{flag}-file");
        check(
            start(&[flag, secret, &file_flag, file.path()], &[]),
            &[&format!("{file_flag}: {knob} and {knob}_file are both set; leave one of them out")],
        );
    }
}

#[test]
fn an_invalid_secret_is_not_repeated() {
    check(
        start(&["--admin-key", "tiny"], &[]),
        &["--admin-key: a key has at least 16 characters; `maitre key` makes one"],
    );
    check(
        start(&["--worker-key", "two words"], &[]),
        &["--worker-key: a key has at most 4096 letters, digits and signs, and no space"],
    );
    check(
        start(&["--salt-secret", "tiny"], &[]),
        &["--salt-secret: a secret has at least 16 characters; `maitre key` makes one"],
    );
    check(start(&["--salt-by", "user"], &[]), &["--salt-by: \"user\" is unknown; write off or tenant"]);
    let rules = "--programs-rule: \"x\" is unknown; write off, working-set, thunder-agent or cache-ttl";
    check(start(&["--programs-rule", "x"], &[]), &[rules]);
}

#[test]
fn a_key_guards_only_its_own_listener() {
    let listen = ["--listen", "0.0.0.0:80", "--keys", PLAIN];
    check(start(&listen, &[]), &[]);
    check(start(&["--admin", "0.0.0.0:81", "--admin-key", PLAIN], &[]), &[]);
    assert!(start(&["--listen", "0.0.0.0:80", "--admin-key", PLAIN], &[]).is_err());
    assert!(start(&["--admin", "0.0.0.0:81", "--keys", PLAIN], &[]).is_err());
}

#[test]
fn keys_name_the_tenant_of_a_request() {
    check(
        start(&["--keys", PLAIN, "--tenant-by", "adapter"], &[]),
        &["--tenant-by: keys name the tenant of a request; leave tenant.by = \"adapter\" out"],
    );
    let config = start(&["--keys", PLAIN, "--tenant-by", "header"], &[]).unwrap();
    assert_eq!(config.warnings, ["tenant.by: \"header\" applies only to keys that are trusted, and none is"]);
    let trusted = format!("{PLAIN}?trusted");
    assert_eq!(
        start(&["--keys", &trusted, "--tenant-by", "header"], &[]).unwrap().warnings,
        Vec::<String>::new()
    );
}

#[test]
fn there_can_be_thousands_of_keys_but_not_more() {
    let rows = |count: usize| (0..count).map(|it| format!("plain-key-number-{it}\n")).collect::<String>();
    let file = Kept::new("many", &rows(KEYS_MAX), 0o600);
    assert_eq!(start(&["--keys-file", file.path()], &[]).unwrap().settings.keys.len(), KEYS_MAX);
    let file = Kept::new("too-many", &rows(KEYS_MAX + 1), 0o600);
    check(
        start(&["--keys-file", file.path()], &[]),
        &["--keys-file: there are 10001 keys; there can be 10000"],
    );
}

#[test]
fn a_drawn_secret_survives_a_reload() {
    let salter = || start(&["--salt-by", "tenant"], &[]).unwrap().settings.salt.unwrap();
    assert!(salter() == salter());
}
