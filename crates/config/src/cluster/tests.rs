//! Accepted cluster settings, and the errors for the others.

use std::net::SocketAddr;

use maitre_proxy::cluster;

use super::{HOST_PORT, ROUTER_NAME, VIA, Via};
use crate::form::Form;
use crate::reload::change;
use crate::tests::{check, check_toml, read, start};
use crate::{Config, resolve, set, set_unresolved};

const KEY: &str = "correct-horse-battery";

#[test]
fn by_default_there_is_one_router() {
    assert!(start(&[], &[]).unwrap().settings.cluster.is_none());
    assert!(start(&["--cluster", "off", "--cluster-key", KEY], &[]).unwrap().settings.cluster.is_none());
}

#[test]
fn a_mesh_is_a_few_flags() {
    let flags = ["--cluster=mesh", "--cluster-key", KEY, "--peer", "a:7946", "--peer", "[::1]:9"];
    let config = start(&flags, &[]).unwrap();
    let settings = config.settings.cluster.unwrap();
    let listen: SocketAddr = "0.0.0.0:7946".parse().unwrap();
    let peers = vec!["a:7946".to_owned(), "[::1]:9".to_owned()];
    assert_eq!(settings.via, cluster::Via::Mesh { listen, advertise: None, peers });
    assert!(settings.key.is_some());
    assert_eq!(
        (settings.name.as_str(), settings.group.as_str(), settings.join_timeout),
        ("", "maitre", cluster::JOIN_TIMEOUT)
    );
}

#[test]
fn redis_is_a_url_and_needs_no_key() {
    let config = start(&[], &[("MAITRE_CLUSTER_VIA", "redis://cache:6379")]).unwrap();
    let settings = config.settings.cluster.unwrap();
    assert_eq!(settings.via, cluster::Via::Redis("redis://cache:6379".to_owned()));
    assert!(settings.key.is_none());
}

#[test]
fn errors_say_what_to_write() {
    let needs = "a mesh of routers needs a key that all of them share; set cluster.key or cluster.key_file (`maitre key` makes one)";
    check(start(&["--cluster", "mesh"], &[]), &[&format!("--cluster: {needs}")]);
    check_toml(
        "[cluster]\nvia = \"redis://a\"\npeers = [\"b:1\"]",
        &[
            "m.toml:3: cluster.peers: applies to a mesh only; through Redis routers find each other. Leave it out, or set cluster.via = \"mesh\"",
        ],
    );
    check_toml(
        "cluster.peers = [\"b:1\"]",
        &["m.toml:1: cluster.peers: names other routers, and cluster.via is off; set cluster.via = \"mesh\""],
    );
    check_toml(
        "[cluster]\npeers = [\"b\", \"c:0\"]\nname = \"a b\"\nadvertise = \"http://a:1\"\nkey = \"short\"",
        &[
            "m.toml:2: cluster.peers: \"b\" is not a host and a port; write \"10.0.0.7:7946\" or \"[::1]:7946\"",
            "m.toml:2: cluster.peers: \"c:0\" is not a host and a port; write \"10.0.0.7:7946\" or \"[::1]:7946\"",
            "m.toml:3: cluster.name: \"a b\" is not a name for routers; write up to 128 letters, digits and -_.: as in \"router-1\"",
            "m.toml:4: cluster.advertise: \"http://a:1\" is not a host and a port; write \"10.0.0.7:7946\" or \"[::1]:7946\"",
            "m.toml:5: cluster.key: a secret has at least 16 characters; `maitre key` makes one",
        ],
    );
    check(
        start(&["--cluster", "mesh", "--cluster-key", KEY, "--cluster-listen", "127.0.0.1:8081"], &[]),
        &["--cluster-listen: cluster.listen 127.0.0.1:8081 and admin 127.0.0.1:8081 collide; use two ports"],
    );
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/secret.txt");
    check(
        start(&["--cluster", "mesh", "--cluster-key", KEY, "--cluster-key-file", file], &[]),
        &["--cluster-key-file: cluster.key and cluster.key_file are both set; leave one of them out"],
    );
    let error =
        start(&["--cluster", "mesh", "--cluster-key-file", "/no/such/key"], &[]).unwrap_err().to_string();
    assert!(
        error.starts_with("--cluster-key-file: /no/such/key cannot be read") && error.lines().count() == 1,
        "{error}"
    );
}

#[test]
fn urls_addresses_and_names_are_checked() {
    let redis = [
        "redis://a",
        "redis://a:6379",
        "redis://a/0",
        "rediss://ann:p%40ss@a.b:6379/15",
        "redis://:pw@[::1]:6379",
    ];
    for url in redis {
        assert!(matches!(VIA.read(url), Ok(Via::Redis(_))), "{url}");
    }
    for bad in ["", "a", "a:", "a:b", ":1", "a:70000", "[::1]", "[::x]:1", "a b:1", "a/b:1"] {
        assert!(HOST_PORT.read(bad).unwrap_err().contains(bad), "{bad}");
    }
    for good in ["", "a", "a-b_c.d:8080", &"x".repeat(128)] {
        assert!(ROUTER_NAME.read(good).is_ok(), "{good}");
    }
    for bad in ["a b", "a\"b", "é", "{a}", &"x".repeat(129)] {
        assert!(ROUTER_NAME.read(bad).is_err(), "{bad}");
    }
    assert!(VIA.read("gossip").unwrap_err().starts_with("\"gossip\" is unknown; write off, mesh or"));
}

#[test]
fn a_password_is_never_shown() {
    let bad = [
        "redis://ann:sesame@",
        "redis://ann:sesame@a:x",
        "redis://ann:sesame@a/b",
        "http://ann:sesame@a",
        "redis://:sesame@a b",
    ];
    for url in bad {
        let what = VIA.read(url).unwrap_err();
        assert!(what.contains("write redis://") && !what.contains("sesame"), "{what}");
    }
    let text = format!("[cluster]\nvia = \"redis://ann:sesame@a:1/0\"\nkey = \"{KEY}\"");
    let config = read("m.toml", text).unwrap();
    for shown in [config.to_string(), config.for_showing(), format!("{config:?}")] {
        assert!(!shown.contains("sesame") && !shown.contains(KEY), "{shown}");
    }
    let shown = config.to_string();
    assert!(shown.contains("# cluster.via is set, and not shown"), "{shown}");
    assert!(shown.contains("# cluster.key is set, and not shown"), "{shown}");
    let plain = read("m.toml", "cluster.via = \"redis://ann@a:1\"").unwrap().to_string();
    assert!(plain.contains("cluster.via = \"redis://ann@a:1\""), "{plain}");
}

#[track_caller]
fn check_waits(before: &[(&str, &str)], after: &[(&str, &str)], waiting: &[&str]) {
    let made = |settings: &[(&str, &str)]| {
        let mut config = Config::default();
        settings.iter().for_each(|(key, text)| set_unresolved(&mut config, key, text).unwrap());
        resolve(&mut config).unwrap();
        config
    };
    let (old, mut new) = (made(before), made(after));
    let told = change(&old, &mut new).unwrap();
    assert_eq!((told.now, told.at_restart), (vec![], waiting.to_vec()));
    assert_eq!(format!("{:?}", new.settings.cluster), format!("{:?}", old.settings.cluster));
    assert_eq!(new.cluster, old.cluster);
}

#[test]
fn every_change_of_the_cluster_waits_for_a_restart() {
    let (mesh, key) = (("cluster.via", "mesh"), ("cluster.key", KEY));
    check_waits(&[mesh, key], &[mesh, key], &[]);
    check_waits(&[mesh, key], &[mesh, ("cluster.key", "another-horse-battery")], &["cluster.key"]);
    check_waits(
        &[],
        &[mesh, key, ("cluster.peers", "a:1")],
        &["cluster.via", "cluster.peers", "cluster.key"],
    );
    check_waits(&[mesh, key], &[], &["cluster.via", "cluster.key"]);
    let redis = |password: &'static str| [("cluster.via", password)];
    check_waits(&redis("redis://:one@a"), &redis("redis://:two@a"), &["cluster.via"]);
    check_waits(&redis("redis://:one@a"), &redis("redis://:one@a"), &[]);
}

#[test]
fn salts_that_routers_do_not_share_are_a_warning() {
    let mut config = Config::default();
    set(&mut config, "cluster.via", "redis://a").unwrap();
    assert!(config.warnings.is_empty());
    set(&mut config, "salt.by", "tenant").unwrap();
    assert!(config.warnings.iter().any(|it| it.contains("salt.secret")), "{:?}", config.warnings);
    set(&mut config, "salt.secret", KEY).unwrap();
    assert!(config.warnings.is_empty());
}
