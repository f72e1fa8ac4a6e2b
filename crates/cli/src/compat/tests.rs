//! Command lines of other routers, their conversion, and whether the table is complete.

mod docs;

use maitre_config as config;

use super::carry::{Carried, carry};
use super::flag::{Fate, Flag, Goal, Old, Takes};
use super::{policy, table, words};

/// The flags that each program lists, with the kind of value.
const LISTS: [(Old, &str); 3] = [
    (Old::Sglang, include_str!("tests/sglang-router-0.3.2.txt")),
    (Old::Sglang, include_str!("tests/smg-1.13.0.txt")),
    (Old::VllmRouter, include_str!("tests/vllm-router-0.1.16.txt")),
];

/// Long enough to be accepted, and easy to find where it must not be.
const KEY: &str = "sk-canary-sixteen-or-more";
/// Its hash, computed by sha256sum.
const HASH: &str = "sha256:0eb6b3a4c9400f5bf58f41d79c3fd5cdb50600046b2b255eccee8555ca67281f";

/// The setting that a flag becomes.
fn key(goal: Goal) -> &'static str {
    match goal {
        Goal::Key(key, _) | Goal::Part(key) => key,
    }
}

fn carried(old: Old, line: &str) -> Result<Carried, Vec<String>> {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    carry(old, &words::read(&words, &table::flags(old))?)
}

/// This command line gives these settings, among others.
#[track_caller]
fn check(old: Old, line: &str, expected: &[(&str, &str)]) -> Carried {
    let carried = carried(old, line).unwrap_or_else(|errors| panic!("{line}: {errors:?}"));
    let config =
        config::check_text("compat", &carried.toml).unwrap_or_else(|it| panic!("{it}\n{}", carried.toml));
    for (key, value) in expected {
        let actual = config::value(&config, key).unwrap_or_else(|| panic!("no key {key}"));
        assert_eq!(&actual, value, "{key} of {line}\n{}", carried.toml);
    }
    carried
}

#[track_caller]
fn check_wrong(old: Old, line: &str, expected: &[&str]) {
    let errors = carried(old, line).expect_err(line);
    assert_eq!(errors.len(), expected.len(), "{errors:?}");
    for (error, expected) in errors.iter().zip(expected) {
        assert!(error.contains(expected), "{error:?} has no {expected:?}");
    }
}

#[test]
fn every_listed_flag_is_known_with_its_kind_of_value() {
    for (old, list) in LISTS {
        let known = table::flags(old);
        for line in list.lines() {
            let (name, takes) = line.split_once(' ').unwrap();
            let flag =
                known.iter().find(|it| it.is_called(name)).unwrap_or_else(|| panic!("{name} is not known"));
            let expected = match takes {
                "nothing" => Takes::Nothing,
                "one" => Takes::One,
                _ => Takes::Several,
            };
            assert_eq!(flag.takes, expected, "{name}");
        }
    }
}

#[test]
fn every_known_flag_is_listed_by_a_program_and_once_in_the_table() {
    let listed: Vec<&str> =
        LISTS.iter().flat_map(|it| it.1.lines()).filter_map(|it| it.split(' ').next()).collect();
    for old in [Old::Sglang, Old::VllmRouter] {
        let names: Vec<&str> = table::flags(old).iter().flat_map(|it| it.names).copied().collect();
        for name in &names {
            assert!(listed.contains(name), "no program lists {name}");
            assert_eq!(names.iter().filter(|it| it == &name).count(), 1, "{name} is there twice");
        }
    }
}

#[test]
fn every_flag_becomes_an_existing_setting() {
    for flag in [Old::Sglang, Old::VllmRouter].into_iter().flat_map(table::flags) {
        if let Fate::Kept(goal) | Fate::Changed(goal, _) = flag.fate() {
            let value = config::value(&config::Config::default(), key(goal));
            assert!(value.is_some(), "{}: no key {}", flag.name(), key(goal));
        }
    }
}

/// A value that the other router would accept for the flag.
fn some_value(old: Old, flag: &Flag) -> String {
    let pairs = match old {
        Old::Sglang => "--pd-disaggregation",
        Old::VllmRouter => "--vllm-pd-disaggregation",
    };
    let value = match flag.name() {
        "--host" | "--prometheus-host" => "127.0.0.7",
        "--policy" | "--decode-policy" => "random",
        "--worker-urls" => "http://127.0.0.1:9001",
        "--log-level" => "debug",
        "--cache-threshold" => "0.5",
        "--health-check-endpoint" => "/ready",
        "--tenant-header-name" | "--routing-key-headers" => "x-team",
        "--model-path" | "--tokenizer-path" => "/models/llama",
        "--intra-node-data-parallel-size" => "4 --worker-urls http://127.0.0.1:9001",
        "--selector" => "app=vllm",
        "--service-discovery-namespace" => "ml",
        "--discovery-provider" => "kubernetes --service-discovery-namespace ml --selector app=vllm",
        "--api-key" => KEY,
        "--tenant-api-key" => "team-a:sk-canary-sixteen-or-more",
        "--control-plane-api-keys" => "1:ann:admin:sk-canary-sixteen-or-more",
        "--tls-cert-path" => "/c.pem --tls-key-path /k.pem",
        "--tls-key-path" => "/k.pem --tls-cert-path /c.pem",
        "--client-cert-path" => "/c.pem --client-key-path /k.pem",
        "--client-key-path" => "/k.pem --client-cert-path /c.pem",
        "--otlp-traces-endpoint" => "collector:4317",
        "--cors-allowed-origins" => "https://a.example http://localhost:3000",
        _ => "7",
    };
    match flag.takes {
        // Without both kinds of workers nothing would be served.
        Takes::Nothing if flag.name() == pairs => format!("{pairs} --prefill a:1 --decode b:1"),
        Takes::One | Takes::Several if matches!(flag.name(), "--prefill" | "--decode" | "--kv-connector") => {
            let connector = if flag.name() == "--kv-connector" { "--kv-connector mooncake" } else { "" };
            format!("{pairs} {connector} --prefill a:1 7 --decode b:1")
        }
        // Has an effect only together with another flag.
        Takes::Nothing if flag.name() == "--service-discovery" => {
            "--service-discovery --service-discovery-namespace ml".to_owned()
        }
        Takes::Nothing => flag.name().to_owned(),
        Takes::One | Takes::Several => format!("{} {value}", flag.name()),
    }
}

#[test]
fn every_flag_alone_gives_loadable_settings_or_a_reason() {
    for old in [Old::Sglang, Old::VllmRouter] {
        let plain = check(old, "", &[]).toml;
        for flag in table::flags(old) {
            let carried = check(old, &some_value(old, &flag), &[]);
            let told = carried.notes.iter().any(|it| it.contains(flag.name()));
            match flag.fate() {
                Fate::Left(_) | Fate::Needless(_) | Fate::Changed(..) => assert!(told, "{flag:?}"),
                Fate::Essential(_) => assert!(told && !carried.missing.is_empty(), "{flag:?}"),
                // Some have no effect by themselves: a tenant's header counts only once it is trusted.
                Fate::Kept(Goal::Part("tenant.header" | "discovery.from")) => {}
                Fate::Kept(goal) => assert!(
                    carried.toml != plain && carried.toml.contains(&format!("\n{} = ", key(goal))),
                    "{flag:?}:\n{}",
                    carried.toml
                ),
            }
        }
    }
}

#[test]
fn without_flags_the_defaults_are_those_of_the_other_router() {
    let expected = [
        ("listen", "\"0.0.0.0:30000\""),
        ("admin", "\"0.0.0.0:29000\""),
        ("insecure", "true"),
        ("strategy", "\"cache-aware\""),
        ("limits.body", "\"512MiB\""),
        ("timeouts.total", "\"30m\""),
        ("timeouts.drain", "\"3m\""),
        ("classes", r#"["interactive?deadline=none", "standard?deadline=none", "batch?deadline=none"]"#),
    ];
    check(Old::Sglang, "launch", &expected);
    let expected = [
        ("listen", "\"127.0.0.1:30000\""),
        ("admin", "\"127.0.0.1:29000\""),
        ("insecure", "false"),
        ("timeouts.drain", "\"30s\""),
    ];
    check(Old::VllmRouter, "", &expected);
}

#[test]
fn a_usual_command_line_is_carried_over() {
    let line = "--worker-urls http://a:8000 http://b:8000/ --policy cache_aware --cache-threshold 0.5 \
                --balance-abs-threshold=32 --balance-rel-threshold 1.1 --host 127.0.0.1 --port 8000 \
                --prometheus-host 127.0.0.1 --max-concurrent-requests 101 --queue-size 50 --queue-timeout-secs 20 \
                --retry-max-retries 3 --cb-failure-threshold 4 --cb-timeout-duration-secs 60 --log-level warn";
    let expected = [
        ("workers", r#"["http://a:8000", "http://b:8000"]"#),
        ("strategy", "\"cache-aware\""),
        ("cache_aware.cache_threshold", "0.5"),
        ("cache_aware.balance_abs_threshold", "32"),
        ("cache_aware.balance_rel_threshold", "1.1"),
        ("listen", "\"127.0.0.1:8000\""),
        ("admin", "\"127.0.0.1:29000\""),
        ("insecure", "false"),
        ("queue.sequences_max", "51"),
        ("classes", r#"["standard?requests=50&deadline=20s"]"#),
        ("retries.failovers_max", "2"),
        ("health.failures_max", "4"),
        ("health.back_off", "\"1m\""),
        ("health.back_off_max", "\"1m\""),
        ("log.level", "\"warn\""),
    ];
    check(Old::Sglang, line, &expected);
    check(Old::VllmRouter, line, &expected);
}

#[test]
fn every_policy_has_a_strategy() {
    for old in [Old::Sglang, Old::VllmRouter] {
        for (theirs, ours, _) in policy::rows(old) {
            check(old, &format!("--policy {theirs}"), &[("strategy", &format!("{ours:?}"))]);
        }
    }
    let sticky = [("strategy", "\"sticky-session\""), ("session.header", "\"x-smg-routing-key\"")];
    check(Old::Sglang, "--policy manual", &sticky);
    check(Old::Sglang, "--sticky-sessions --policy random", &sticky);
    check(Old::Sglang, "--policy manual --routing-key-headers x-a x-b", &[("session.header", "\"x-a\"")]);
    check(Old::VllmRouter, "--policy consistent_hash", &[("session.header", "\"x-session-id\"")]);
    check_wrong(Old::VllmRouter, "--policy manual", &["known: cache_aware, round_robin"]);
}

/// The same, including settings that are not printed, and checking that the key is not in anything printed.
#[track_caller]
fn check_kept(old: Old, line: &str, expected: &[(&str, &str)]) -> Carried {
    let carried = check(old, line, expected);
    let settings = carried.config().unwrap().settings;
    assert_eq!(settings.worker_key.is_some(), line.contains("--api-key"), "{line}");
    assert!(!format!("{carried:?}").contains("canary"), "{carried:?}");
    carried
}

#[test]
fn keys_are_kept_as_hashes_and_still_work() {
    let open = ("listen", "\"0.0.0.0:30000\"");
    let own = format!("[\"{HASH}\"]");
    let carried = check_kept(Old::Sglang, &format!("--api-key {KEY}"), &[open, ("keys", &own)]);
    assert!(carried.toml.contains("# not printed: worker_key"), "{}", carried.toml);
    assert_eq!(carried.config().unwrap().settings.keys.len(), 1);
    let tenants = format!("[\"{HASH}?tenant=a\"]");
    check_kept(Old::Sglang, &format!("--tenant-api-key a:{KEY}"), &[open, ("keys", &tenants)]);
    let both = format!("--api-key {KEY} --tenant-api-key a:{KEY}");
    check_kept(Old::Sglang, &both, &[("keys", &tenants)]);
    let gateway = format!("[\"{HASH}?trusted\"]");
    check_kept(Old::Sglang, &format!("--api-key {KEY} --trust-tenant-header"), &[("keys", &gateway)]);
}

#[test]
fn a_key_for_workers_only_requires_none_from_clients() {
    let line = format!("--api-key {KEY} --host 0.0.0.0");
    let carried = check_kept(Old::VllmRouter, &line, &[("keys", "[]"), ("insecure", "true")]);
    assert!(carried.config().unwrap().settings.keys.is_empty());
}

#[test]
fn an_unusable_key_does_not_leave_the_listener_open() {
    for flag in ["--api-key sk-canary", "--tenant-api-key a:sk-canary"] {
        let here = [("listen", "\"127.0.0.1:30000\""), ("keys", "[]")];
        let carried = check_kept(Old::Sglang, flag, &here);
        assert!(carried.notes.iter().any(|it| it.contains("loopback")), "{:?}", carried.notes);
        assert!(carried.notes.iter().any(|it| it.contains("at least 16")), "{:?}", carried.notes);
    }
    check(Old::Sglang, "--api-key x --host ::", &[("listen", "\"[::1]:30000\"")]);
    check_wrong(Old::Sglang, "--tenant-api-key sk-canary --api-key é", &["at most", "write TENANT:KEY"]);
    check_wrong(Old::Sglang, "--tenant-api-key a,b:sk-canary", &["no comma"]);
}

#[test]
fn one_operator_keeps_the_key() {
    let keys = format!("--control-plane-api-keys 1:ann:user:x 2:bob:admin:{KEY} 3:eve:admin:{KEY}");
    let hash = format!("\"{HASH}\"");
    let carried = check_kept(Old::Sglang, &keys, &[("admin_key", &hash), ("insecure", "true")]);
    for told in ["read-only users", "one admin key"] {
        assert!(carried.notes.iter().any(|it| it.contains(told)), "{:?}", carried.notes);
    }
    let both = format!("--api-key {KEY} --control-plane-api-keys 2:bob:admin:another-{KEY}");
    check_kept(Old::Sglang, &both, &[("insecure", "false")]);
    check_wrong(Old::Sglang, "--control-plane-api-keys sk-canary", &["write ID:NAME:ROLE:KEY"]);
}

#[test]
fn certificates_are_read_from_the_same_files() {
    let line = "--tls-cert-path /s.pem --tls-key-path /s.key --client-cert-path /c.pem --client-key-path /c.key \
                --ca-cert-paths /ca.pem";
    let expected = [
        ("tls.cert", "\"/s.pem\""),
        ("tls.key", "\"/s.key\""),
        ("worker_tls.cert", "\"/c.pem\""),
        ("worker_tls.key", "\"/c.key\""),
        ("worker_tls.ca", "\"/ca.pem\""),
    ];
    check(Old::Sglang, line, &expected);
    check_wrong(
        Old::Sglang,
        "--tls-cert-path /s.pem --client-key-path /c.key --ca-cert-paths /a.pem /b.pem",
        &[
            "--tls-cert-path: needs --tls-key-path",
            "--client-key-path: needs --client-cert-path",
            "join these",
        ],
    );
}

#[test]
fn spans_go_to_the_port_for_http() {
    for (line, expected) in [
        ("--enable-trace", "http://localhost:4318"),
        ("--enable-trace --otlp-traces-endpoint 10.0.0.9:4317", "http://10.0.0.9:4318"),
        ("--enable-trace --otlp-traces-endpoint 10.0.0.9:9999", "http://10.0.0.9:9999"),
        ("--enable-trace --otlp-traces-endpoint https://collector:4318", "https://collector:4318"),
        ("--otlp-traces-endpoint 10.0.0.9:4317", ""),
    ] {
        check(Old::Sglang, line, &[("traces.endpoint", &format!("{expected:?}"))]);
    }
}

#[test]
fn pods_are_found_by_their_labels_in_one_namespace() {
    let line = "--service-discovery --selector app=vllm tier=gpu --service-discovery-namespace ml";
    let found = r#"["kubernetes:ml?pods=app%3Dvllm%2Ctier%3Dgpu&port=80"]"#;
    check(Old::VllmRouter, line, &[("discovery.from", found)]);
    check(Old::Sglang, line, &[("discovery.from", found)]);
    let line = format!("{line} --service-discovery-port 8000 --intra-node-data-parallel-size 2");
    let found = r#"["kubernetes:ml?pods=app%3Dvllm%2Ctier%3Dgpu&port=8000&ranks=2"]"#;
    check(Old::VllmRouter, &line, &[("discovery.from", found)]);
    let provider = "--discovery-provider kubernetes --selector app=a --service-discovery-namespace ml";
    check(Old::Sglang, provider, &[("discovery.from", r#"["kubernetes:ml?pods=app%3Da&port=80"]"#)]);
    for (line, told) in [
        ("--service-discovery --service-discovery-namespace ml", "without --selector"),
        ("--discovery-provider file --discovery-file /w.json", "one per line"),
    ] {
        let carried = check(Old::Sglang, line, &[("discovery.from", "[]")]);
        assert!(carried.notes.iter().any(|it| it.contains(told)), "{:?}", carried.notes);
    }
    check_wrong(Old::Sglang, "--service-discovery --selector app=a", &["Maitre watches one: set it"]);
    check_wrong(
        Old::Sglang,
        "--service-discovery --selector app --service-discovery-namespace ml",
        &["write key=value"],
    );
    check_wrong(Old::Sglang, "--discovery-provider consul", &["write kubernetes or file"]);
}

/// This command line gives these workers, and a note with this text.
#[track_caller]
fn check_pairs(old: Old, line: &str, workers: &[&str], told: &str) -> Carried {
    let quoted: Vec<String> = workers.iter().map(|it| format!("{it:?}")).collect();
    let carried =
        check(old, line, &[("workers", &format!("[{}]", quoted.join(", "))), ("split", "\"always\"")]);
    assert_eq!(carried.missing, [""; 0], "{line}");
    assert!(carried.notes.iter().any(|it| it.contains(told)), "{line}: {:?}", carried.notes);
    carried
}

#[test]
fn prefill_and_decode_workers_keep_their_parts() {
    check_pairs(
        Old::Sglang,
        "--pd-disaggregation --prefill http://a:1 9000 --prefill b:1/ --prefill c:1 none --decode http://d:1 --decode e:1",
        &[
            "http://a:1?role=prefill&transfer=sglang&bootstrap=9000",
            "http://b:1?role=prefill&transfer=sglang",
            "http://c:1?role=prefill&transfer=sglang",
            "http://d:1?role=decode&transfer=sglang",
            "http://e:1?role=decode&transfer=sglang",
        ],
        "--pd-disaggregation: every prompt",
    );
    let nixl = ["http://a:1?role=prefill&transfer=nixl", "http://d:1?role=decode&transfer=nixl"];
    let line = "--vllm-pd-disaggregation --prefill http://a:1 9000 --decode http://d:1";
    check_pairs(Old::VllmRouter, line, &nixl, "9000: NIXL needs no bootstrap port");
    let line = format!("{line} --worker-urls http://x:1");
    check_pairs(
        Old::VllmRouter,
        &line,
        &nixl,
        "--worker-urls: with --vllm-pd-disaggregation it has no effect",
    );
    check_pairs(
        Old::VllmRouter,
        "--vllm-pd-disaggregation --kv-connector mooncake --prefill a:1 9000 --decode d:1 --intra-node-data-parallel-size 2",
        &[
            "http://a:1?ranks=2&role=prefill&transfer=mooncake&bootstrap=9000",
            "http://d:1?ranks=2&role=decode&transfer=mooncake",
        ],
        "--kv-connector: transfer=nixl or transfer=mooncake",
    );
}

#[test]
fn the_policy_of_decode_workers_is_the_strategy() {
    let line = "--pd-disaggregation --prefill a:1 --decode b:1 --decode c:1 --policy random \
                --decode-policy round_robin --prefill-policy bucket --max-concurrent-requests 10";
    let carried = check(Old::Sglang, line, &[("strategy", "\"round-robin\""), ("queue.sequences_max", "5")]);
    assert!(carried.notes.iter().any(|it| it.contains("lowest price")), "{:?}", carried.notes);
    check(Old::Sglang, "--policy random --decode-policy round_robin", &[("strategy", "\"random\"")]);
}

#[test]
fn pods_of_both_parts_are_found_by_their_labels() {
    let line = "--service-discovery --service-discovery-namespace ml --service-discovery-port 8000 \
                --prefill-selector app=p tier=gpu --decode-selector app=d";
    let found = r#"["kubernetes:ml?pods=app%3Dp%2Ctier%3Dgpu&port=8000&role=prefill&transfer=sglang", "kubernetes:ml?pods=app%3Dd&port=8000&role=decode&transfer=sglang"]"#;
    let carried = check(Old::Sglang, &format!("--pd-disaggregation {line}"), &[("discovery.from", found)]);
    assert_eq!(carried.missing, [""; 0]);
    let found = found.replace("sglang", "nixl");
    check(Old::VllmRouter, &format!("--vllm-pd-disaggregation {line}"), &[("discovery.from", &found)]);
}

#[test]
fn a_command_line_of_which_no_worker_is_left_cannot_be_started() {
    for (old, line, missing) in [
        (Old::Sglang, "--pd-disaggregation --decode a:1", Some("no prefill worker is left")),
        (Old::Sglang, "--pd-disaggregation --prefill a:1", Some("no decode worker is left")),
        (Old::Sglang, "--pd-disaggregation --prefill grpc://a:1 9 --decode b:1", Some("no prefill worker")),
        (Old::VllmRouter, "--vllm-pd-disaggregation --vllm-discovery-address 0.0.0.0:1", Some("no prefill")),
        (Old::VllmRouter, "--worker-urls grpc://a:1", Some("no worker is left")),
        (
            Old::Sglang,
            "--discovery-provider file --service-discovery-namespace ml",
            Some("no worker is left"),
        ),
        (Old::Sglang, "--epd-disaggregation --prefill a:1", Some("cannot start without it")),
        // Workers may be added later, over the admin API.
        (Old::Sglang, "--port 8000", None),
        (Old::Sglang, "--worker-urls", None),
    ] {
        let carried = check(old, line, &[]);
        assert_eq!(carried.missing.len(), usize::from(missing.is_some()), "{line}: {:?}", carried.missing);
        assert!(carried.missing.iter().all(|it| it.contains(missing.unwrap())), "{:?}", carried.missing);
    }
    check_wrong(
        Old::VllmRouter,
        "--vllm-pd-disaggregation --kv-connector moriio --prefill a:1 b:1 c:1 --prefill d:1 x --decode e:1",
        &["write nixl or mooncake", "write --prefill URL or", "bootstrap is \"x\"; write a port"],
    );
}

#[test]
fn programs_are_scheduled_by_their_working_sets() {
    let carried =
        check(Old::VllmRouter, "--enable-program-scheduling", &[("programs.rule", "\"working-set\"")]);
    assert!(carried.notes.iter().any(|it| it.contains("vllm_xargs")), "{:?}", carried.notes);
}

#[test]
fn ranks_apply_to_every_worker() {
    let line = "--worker-urls a:1 b:1 --intra-node-data-parallel-size 4";
    check(Old::VllmRouter, line, &[("workers", r#"["http://a:1?ranks=4", "http://b:1?ranks=4"]"#)]);
    let line = format!("{line} --max-concurrent-requests 80");
    check(Old::VllmRouter, &line, &[("queue.sequences_max", "10")]);
}

#[test]
fn workers_without_http_are_left_out_by_name() {
    let carried =
        check(Old::Sglang, "--worker-urls grpc://a:1 http://b:1", &[("workers", r#"["http://b:1"]"#)]);
    assert!(carried.notes.iter().any(|it| it.contains("grpc://a:1")), "{:?}", carried.notes);
}

#[test]
fn errors_are_reported_all_at_once_and_without_values() {
    check_wrong(
        Old::Sglang,
        "sk-canary --polcy random --port --cache-threshold 0.3 --disable-retries=yes --colour red",
        &[
            "word 1 belongs to no flag",
            "--polcy: no such flag; did you mean --policy?",
            "--port: needs a value",
            "--disable-retries: takes no value",
            "--colour: no such flag",
        ],
    );
    let errors = carried(Old::Sglang, "sk-canary --api-keys sk-canary").expect_err("two mistakes");
    assert!(!errors.join("\n").contains("canary"), "{errors:?}");
    check_wrong(
        Old::VllmRouter,
        "--cache-threshold 2 --port many --request-timeout-secs soon",
        &["--port", "--request-timeout-secs", "--cache-threshold: \"2\" is out of range"],
    );
}

#[test]
fn an_unambiguous_prefix_of_a_flag_is_accepted() {
    check(Old::VllmRouter, "--worker-u http://a:1", &[("workers", r#"["http://a:1"]"#)]);
    check_wrong(Old::VllmRouter, "--worker http://a:1", &["may be any of --worker-urls, --worker-startup"]);
    check_wrong(Old::VllmRouter, "-- a", &["no such flag"]);
}

#[test]
fn a_limit_that_cannot_be_divided_is_noted() {
    let carried = check(Old::Sglang, "--max-concurrent-requests 8", &[("queue.sequences_max", "0")]);
    assert!(carried.notes.iter().any(|it| it.contains("no workers are given")), "{:?}", carried.notes);
    check(Old::Sglang, "--max-concurrent-requests -1 --worker-urls a:1", &[("queue.sequences_max", "0")]);
    check(Old::Sglang, "--header-read-timeout-secs 0", &[("timeouts.client_header", "\"10s\"")]);
}
