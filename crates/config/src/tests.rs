//! What is accepted, what is refused and how that reads.

mod docs;
mod laws;

use clap::Command;
use maitre_testkit::folder::Folder;

use super::{Config, Draft, Errors, args, check_file, conflicts, environment, file, load, near, table};

/// What a file called `name` that holds `text` gives by itself.
pub(super) fn read(name: &str, text: impl AsRef<[u8]>) -> Result<Config, Errors> {
    let mut draft = Draft::default();
    draft.take(file::parse(&name.into(), text.as_ref()));
    draft.finish()
}

pub(super) fn start(flags: &[&str], variables: &[(&str, &str)]) -> Result<Config, Errors> {
    let command = Command::new("maitre").no_binary_name(true).args(args());
    load(&command.try_get_matches_from(flags).unwrap(), variables.iter().copied())
}

#[track_caller]
pub(super) fn check(result: Result<Config, Errors>, expected: &[&str]) {
    let actual = result.err().map(|it| it.to_string()).unwrap_or_default();
    assert_eq!(actual, expected.join("\n"));
}

#[track_caller]
pub(super) fn check_toml(text: &str, expected: &[&str]) {
    check(read("m.toml", text), expected);
}

#[track_caller]
pub(super) fn check_yaml(text: &str, expected: &[&str]) {
    check(read("m.yaml", text), expected);
}

#[test]
fn all_errors_are_reported_at_once_with_their_lines() {
    let text = "listen = \"nowhere\"\n\n[limits]\nbodyy = \"1MiB\"\n\n[timeouts]\nconnect = \"5\"\n";
    check_toml(
        text,
        &[
            "m.toml:1: listen: \"nowhere\" is not an address; write an IP and a port, as in \"127.0.0.1:8080\"",
            "m.toml:4: limits.bodyy: no such key; did you mean limits.body?",
            "m.toml:7: timeouts.connect: \"5\" has no unit; write \"5s\"",
        ],
    );
    let text = "listen: nowhere\n\nlimits:\n  bodyy: 1MiB\n\ntimeouts:\n  connect: 5\n";
    check_yaml(
        text,
        &[
            "m.yaml:1: listen: \"nowhere\" is not an address; write an IP and a port, as in \"127.0.0.1:8080\"",
            "m.yaml:4: limits.bodyy: no such key; did you mean limits.body?",
            "m.yaml:7: timeouts.connect: \"5\" has no unit; write \"5s\"",
        ],
    );
}

#[test]
fn a_number_without_its_quotes_is_the_same_text() {
    check_toml("timeouts.connect = 5", &["m.toml:1: timeouts.connect: \"5\" has no unit; write \"5s\""]);
    assert_eq!(read("m.toml", "threads = 4").unwrap().settings.threads, 4);
    assert_eq!(read("m.toml", "threads = \"4\"").unwrap().settings.threads, 4);
    assert_eq!(read("m.yaml", "threads: '4'").unwrap().settings.threads, 4);
    assert_eq!(read("m.toml", "limits.connections = 20_000").unwrap().settings.limits.connections, 20_000);
}

#[test]
fn an_unknown_key_says_where_the_known_ones_are() {
    check_toml("colour = 1", &["m.toml:1: colour: no such key; `maitre serve --help` lists all settings"]);
}

#[test]
fn an_old_name_is_answered_with_the_new_one() {
    for (old, new) in near::RENAMED {
        assert!(table::all().any(|it| it.key == new), "{new}");
        assert!(!table::all().any(|it| it.key == old), "{old}");
    }
    check_toml("pass = [\"/x\"]", &["m.toml:1: pass: no such key; it is called passthrough now"]);
    check_toml(
        "[cluster]\nwait = \"5s\"",
        &["m.toml:2: cluster.wait: no such key; it is called cluster.join_timeout now"],
    );
    let found = environment::read([("MAITRE_ASK_PATIENCE", "1s")]).found;
    assert_eq!(
        found.errors[0].to_string(),
        "MAITRE_ASK_PATIENCE: no such variable; it is called MAITRE_TOKENIZE_TIMEOUT now"
    );
}

#[test]
fn a_key_below_the_header_of_a_table_is_told_where_it_belongs() {
    check_toml(
        "[session]\nworkers = []\n",
        &["m.toml:2: session.workers: no such key; did you mean workers? It belongs to no table"],
    );
}

#[test]
fn an_unknown_key_of_a_table_lists_those_of_the_table() {
    check_toml(
        "[session]\nanimal = \"cat\"\n",
        &["m.toml:2: session.animal: no such key; known: session.header, session.cookie"],
    );
}

#[test]
fn a_list_with_a_mistake_hides_no_other_mistake() {
    let own = "m.toml:1: classes: interactive: unknown option \"deadlin\"; known: requests, tokens, deadline, reserve, continue and hedge";
    let mesh = "m.toml:4: cluster.via: a mesh of routers needs a key that all of them share; set cluster.key or cluster.key_file (`maitre key` makes one)";
    // What names a class is not judged: the list of classes is not known.
    let text =
        "[classes.interactive]\ndeadlin = \"10s\"\n[cluster]\nvia = \"mesh\"\n[queue]\nstandard = \"x\"\n";
    check_toml(text, &[own, mesh]);
}

#[test]
fn an_unknown_table_names_the_known_ones() {
    let unknown = "m.toml:1: timeout: no such key; did you mean timeouts?";
    check_toml("[timeout]\nconnect = \"5s\"\n", &[unknown]);
    check_toml(
        "[colours]\nred = 1\n",
        &["m.toml:1: colours: no such key; `maitre serve --help` lists all settings"],
    );
}

#[test]
fn shapes_are_checked() {
    check_toml("threads = [1]", &["m.toml:1: threads: takes one value, not a list"]);
    check_toml("threads = {}", &["m.toml:1: threads: takes a value, not a table"]);
    check_toml(
        "session = 1",
        &["m.toml:1: session: takes no value itself; it holds session.header, session.cookie"],
    );
    check_toml("workers = [[1]]", &["m.toml:1: workers: an item of this list is one text"]);
    check_toml(
        "workers = [{ url = \"http://a:1\", weight = 2 }]",
        &[
            "m.toml:1: workers: \"http://a:1?weight=2\": no option is called \"weight\"; known: events, replay, ranks, role, transfer, bootstrap, engine-id, tp, pull, store and chunks",
        ],
    );
    check_toml(
        "workers = [{ events = 5557 }]",
        &["m.toml:1: workers: a worker has no url; write url = \"…\""],
    );
    check_toml("[strategies]\nm = []", &["m.toml:2: strategies: m: takes the name of a strategy"]);
    check_yaml("- listen", &["m.yaml:1: is not a mapping; write \"key: value\""]);
    check_yaml("passthrough:\n- /a\n-", &["m.yaml:3: passthrough: an item of this list is one text"]);
}

#[test]
fn a_key_is_set_once() {
    check_yaml("threads: 1\n\nthreads: 2", &["m.yaml:3: threads: is set on line 1 already"]);
    check_yaml("log.level: info\nlog:\n  level: info", &["m.yaml:3: log.level: is set on line 1 already"]);
    check_toml("threads = 1\nthreads = 2", &["m.toml:2: is not TOML: duplicate key"]);
    let unquoted = "m.toml:1: is not TOML: invalid float, expected nothing; quote texts: \"127.0.0.1:8080\"";
    check_toml("listen = 127.0.0.1:8080", &[unquoted]);
}

#[test]
fn workers_are_texts_or_tables_and_each_has_its_line() {
    let expected = ["http://a:1", "http://b:2"];
    for (name, text) in [
        ("m.toml", "workers = [\"http://a:1\", { url = \"http://b:2\" }]"),
        ("m.toml", "[[workers]]\nurl = \"http://a:1\"\n[[workers]]\nurl = \"http://b:2\""),
        ("m.toml", "workers = \"http://a:1, http://b:2\""),
        ("m.yaml", "workers:\n- http://a:1\n- url: http://b:2"),
        ("m.yaml", "workers: [http://a:1, http://b:2]"),
        ("m.toml", "workers = [\"a:1\", \"b:2\"]"),
    ] {
        let workers = read(name, text).unwrap().settings.workers;
        assert_eq!(workers.iter().map(ToString::to_string).collect::<Vec<_>>(), expected, "{text}");
    }
    check_toml(
        "workers = [\n  \"http://a:80\",\n  \"http://a\",\n  \"b\",\n  { url = \"https://a:80\" },\n]",
        &[
            "m.toml:3: workers: \"http://a\" is there twice",
            "m.toml:4: workers: \"b\": it has no scheme and no port; write \"http://host:port\" or \"https://host:port\"",
            "m.toml:5: workers: \"https://a:80\" is there twice",
        ],
    );
}

#[test]
fn strategies_are_checked_by_model() {
    let known = "round-robin, random, least-request, least-work, power-of-two, sticky-session, prefix-hash, cache-aware, least-delay, dynamo-cost, weighted, sticky-until-saturated, preble, lmetric, dualmap";
    let unknown = |it: &str| format!("no strategy is called \"{it}\"; known: {known}");
    check_toml("strategy = \"x\"", &[&format!("m.toml:1: strategy: {}", unknown("x"))]);
    check_toml(
        "[strategies]\na = \"random\"\n\"b.c\" = \"y\"",
        &[&format!("m.toml:3: strategies: b.c: {}", unknown("y"))],
    );
    check(
        start(&["--strategies", "a"], &[]),
        &["--strategies: \"a\" names no model and strategy; write \"llama-3=prefix-hash\""],
    );
    check_yaml("strategies:\n  m: random\n  m: random", &["m.yaml:3: strategies: \"m\" is there twice"]);
    let named = read("m.yaml", "strategies:\n  a=b.c: random").unwrap().settings.brain.strategies;
    assert_eq!(named.keys().collect::<Vec<_>>(), ["a=b.c"]);
}

#[test]
fn an_error_about_a_range_names_the_range() {
    for (text, what) in [
        ("threads = 2000", "threads: \"2000\" is out of range; write 0 to 1024"),
        ("threads = -1", "threads: \"-1\" is out of range; write 0 to 1024"),
        ("threads = 1.5", "threads: \"1.5\" is not a whole number; write 0 to 1024"),
        ("limits.connections = 0", "limits.connections: \"0\" is out of range; write 1 to 1000000"),
        ("limits.body = \"2GiB\"", "limits.body: \"2GiB\" is out of range; write \"1B\" to \"1GiB\""),
        ("timeouts.connect = \"0s\"", "timeouts.connect: \"0s\" is out of range; write \"1ms\" to \"24h\""),
        (
            "prefix_hash.load_factor = 0.9",
            "prefix_hash.load_factor: \"0.9\" is out of range; write 1 to 1000",
        ),
        (
            "prefix_hash.load_factor = nan",
            "prefix_hash.load_factor: \"nan\" is out of range; write 1 to 1000",
        ),
        ("explain = \"yes\"", "explain: \"yes\" is neither true nor false"),
    ] {
        check_toml(text, &[&format!("m.toml:1: {what}")]);
    }
}

#[test]
fn a_listener_for_other_machines_needs_a_key_or_insecure() {
    let fix = "(`maitre key` makes one), use 127.0.0.1, or set insecure = true";
    let open = format!("accepts other machines without a key; set keys {fix}");
    check(start(&["--listen", "0.0.0.0:80"], &[]), &[&format!("--listen: 0.0.0.0:80 {open}")]);
    let open = format!("accepts other machines without a key; set admin_key {fix}");
    check_toml("admin = \"10.0.0.1:80\"", &[&format!("m.toml:1: admin: 10.0.0.1:80 {open}")]);
    check(start(&["--listen", "0.0.0.0:80", "--insecure"], &[]), &[]);
    check(start(&["--listen", "[::1]:80", "--admin", "[::ffff:127.0.0.1]:80"], &[]), &[]);
}

#[test]
fn a_listener_that_requires_client_certificates_needs_no_key() {
    let tls = ["--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "a"];
    let open = |more: &[&str]| start(&[&["--listen", "0.0.0.0:80"], more].concat(), &[]).is_ok();
    assert!(open(&tls));
    assert!(!open(&[&tls[..], &["--tls-client-auth", "optional"]].concat()));
    assert!(!open(&tls[..4]), "a certificate of ours keeps nobody out");
}

#[test]
fn incomplete_tls_settings_are_errors() {
    check_toml("tls.cert = \"c\"", &["m.toml:1: tls.cert: tls.cert needs tls.key; set both"]);
    check_toml(
        "[admin_tls]\nclient_ca = \"a\"\n[worker_tls]\nkey = \"k\"\nverify = false\nca = \"a\"",
        &[
            "m.toml:2: admin_tls.client_ca: admin_tls.client_ca needs TLS, which is off; set admin_tls.cert, too",
            "m.toml:4: worker_tls.key: worker_tls.key needs worker_tls.cert; set both",
            "m.toml:5: worker_tls.verify: worker_tls.ca has no effect with worker_tls.verify = false; leave one of them out",
        ],
    );
}

#[test]
fn two_listeners_need_two_ports() {
    let collide = |listen: &str, admin: &str| {
        start(&["--insecure", "--listen", listen, "--admin", admin], &[]).is_err()
    };
    assert!(collide("127.0.0.1:80", "127.0.0.1:80"));
    assert!(collide("0.0.0.0:80", "127.0.0.1:80"));
    assert!(!collide("127.0.0.1:0", "127.0.0.1:0"));
    assert!(!collide("127.0.0.1:80", "127.0.0.2:80"));
    check(
        start(&[], &[("MAITRE_ADMIN", "127.0.0.1:8080")]),
        &["MAITRE_ADMIN: listen 127.0.0.1:8080 and admin 127.0.0.1:8080 collide; use two ports"],
    );
}

#[test]
fn a_router_is_not_its_own_worker() {
    for (listen, worker, is_own) in [
        ("127.0.0.1:80", "http://127.0.0.1:80", true),
        ("127.0.0.1:80", "http://localhost:80?role=decode", true),
        ("0.0.0.0:80", "http://127.0.0.2:80", true),
        ("[::]:80", "http://[::1]", true),
        ("127.0.0.1:1", "http://127.0.0.1:8081", true),
        ("127.0.0.1:80", "http://127.0.0.1:81", false),
        ("0.0.0.0:80", "http://10.0.0.1:80", false),
        ("10.0.0.2:80", "http://localhost:80", false),
        ("127.0.0.1:80", "http://engine:80", false),
    ] {
        let read = start(&["--insecure", "--listen", listen, "--worker", worker], &[]);
        let said = read.err().map(|it| it.to_string()).unwrap_or_default();
        assert_eq!(
            said.contains("is this router itself, which listens on "),
            is_own,
            "{listen} {worker}: {said}"
        );
    }
}

#[test]
fn the_first_back_off_is_not_longer_than_the_longest() {
    check_toml(
        "health.back_off = \"1m\"",
        &["m.toml:1: health.back_off: health.back_off 1m is longer than health.back_off_max 30s"],
    );
}

#[test]
fn the_defaults_do_not_conflict() {
    assert_eq!(conflicts(&Config::default()), []);
}

#[test]
fn flags_override_variables_and_variables_override_the_file() {
    let folder = Folder::new();
    let file = folder.write(
        "precedence.toml",
        "threads = 1\nseed = 1\nworkers = [\"http://a\", \"http://b\"]\nlog.level = \"warn\"",
    );
    let path = file.to_str().unwrap();
    let variables =
        [("MAITRE_CONFIG", path), ("MAITRE_THREADS", "2"), ("MAITRE_SEED", "2"), ("MAITRE_LOG_LEVEL", "")];
    let config =
        start(&["--threads", "3", "--worker", "http://c", "--worker", "http://d"], &variables).unwrap();
    let workers: Vec<String> = config.settings.workers.iter().map(ToString::to_string).collect();
    assert_eq!((config.settings.threads, config.settings.brain.seed), (3, 2));
    assert_eq!((workers.join(" ").as_str(), config.log.level.as_str()), ("http://c:80 http://d:80", "warn"));
    // The flag names a file too, and wins.
    let config = start(&["--config", path], &[("MAITRE_CONFIG", "/no/such/file")]).unwrap();
    assert_eq!(config.settings.threads, 1);
}

#[test]
fn an_overridden_value_is_checked() {
    check(
        start(&["--threads", "1"], &[("MAITRE_THREADS", "x")]),
        &["MAITRE_THREADS: \"x\" is not a whole number; write 0 to 1024"],
    );
}

#[test]
fn an_unknown_variable_is_an_error() {
    check(
        start(
            &[],
            &[("MAITRE_TIMEOUTS_CONECT", "5s"), ("PATH", "/bin"), ("MAITRE_SERVICE_HOST", "10.0.0.1")],
        ),
        &["MAITRE_TIMEOUTS_CONECT: no such variable; did you mean MAITRE_TIMEOUTS_CONNECT?"],
    );
}

#[test]
fn a_switch_alone_means_true() {
    assert!(start(&["--insecure"], &[]).unwrap().insecure);
    assert!(!start(&["--explain=false"], &[]).unwrap().settings.explain);
    check(start(&["--explain=maybe"], &[]), &["--explain: \"maybe\" is neither true nor false"]);
}

#[test]
fn a_syntax_error_has_its_line() {
    let error = |name: &str, text: &str| read(name, text).unwrap_err().to_string();
    let toml = error("m.toml", "listen = \"127.0.0.1:80\"\nthreads = \n");
    assert!(toml.starts_with("m.toml:2: is not TOML: "), "{toml}");
    let yaml = error("m.yaml", "threads: 1\nlisten: [\n");
    assert!(yaml.starts_with("m.yaml:2: is not YAML: "), "{yaml}");
    assert_eq!(read("m.toml", b"a = 1\n\xff").unwrap_err().to_string(), "m.toml:2: is not UTF-8");
    check_yaml("threads: 1\n---\nthreads: 2", &["m.yaml:2: a second document begins; one is enough"]);
    let written_out = "m.yaml:1: anchors, aliases and tags are not supported; write the value out";
    check_yaml("threads: &a 1", &[written_out]);
    check_yaml("threads: !!int 1", &[written_out]);
    check_yaml("[a]: 1", &["m.yaml:1: a key is one plain text"]);
}

#[test]
fn an_empty_file_and_empty_sections_leave_the_defaults() {
    let default = format!("{:?}", Config::default());
    for (name, text) in
        [("m.toml", ""), ("m.yaml", ""), ("m.yaml", "# just this\ntimeouts:\nworkers: ~\n"), ("m", "")]
    {
        assert_eq!(format!("{:?}", read(name, text).unwrap()), default, "{text}");
    }
}

#[test]
fn without_an_extension_the_first_line_decides_the_language() {
    for text in [
        "# a\n\nthreads = 4",
        "[log]\nlevel = 'info'\n[x]",
        "threads: 4",
        "---\nthreads: 4",
        "workers: ['http://a?b=c']",
    ] {
        let result = read("m", text).map_err(|it| it.to_string());
        assert!(!result.is_err_and(|it| it.contains("is not TOML") || it.contains("is not YAML")), "{text}");
    }
}

#[test]
fn a_file_that_is_missing_or_too_large_says_so() {
    let error = check_file("/no/such/m.toml".as_ref()).unwrap_err().to_string();
    assert!(error.starts_with("/no/such/m.toml: cannot be read: No such file"), "{error}");
    let folder = Folder::new();
    let file = folder.write("large.toml", "#".repeat((1 << 20) + 1));
    let error = check_file(&file).unwrap_err().to_string();
    assert!(error.ends_with("large.toml: is larger than 1024 KiB"), "{error}");
}

#[test]
fn an_empty_file_is_an_error_and_one_with_comments_is_not() {
    let folder = Folder::new();
    let error = check_file(&folder.write("empty.toml", " \n")).unwrap_err().to_string();
    assert!(error.ends_with("empty.toml: is empty"), "{error}");
    assert!(check_file(&folder.write("comments.toml", "# nothing yet\n")).is_ok());
}
