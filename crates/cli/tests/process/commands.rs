//! How commands react to bad arguments, and what `engine`, `check` and `generate` do with good ones.

use std::path::PathBuf;
use std::process::{Output, Stdio};

use maitre_sim::generate::Plan;
use maitre_sim::trace::Trace;

use crate::client::Client;
use crate::program::{Engine, Program, run};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Exits with this code, and prints all of these.
#[track_caller]
fn check(args: &[&str], code: i32, expected: &[&str]) {
    let output = run(args);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    for text in expected {
        assert!(said.contains(text), "{args:?}: no {text:?} in:\n{said}");
    }
}

/// A file of this name and content, for one test.
fn file(name: &str, content: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path
}

#[test]
fn check_lists_every_error_at_once() {
    let path = file(
        "bad.toml",
        "listen = \"nowhere\"\nstratgy = \"random\"\nworkers = [\"ftp://a\"]\n[timeouts]\ndrain = \"5\"\n",
    );
    let path = path.to_str().unwrap();
    check(
        &["check", path],
        1,
        &["bad.toml:1: listen", "bad.toml:2: stratgy", "bad.toml:3: workers", "bad.toml:5: timeouts.drain"],
    );
    let output = run(&["check", path]);
    assert_eq!(said(&output).lines().count(), 4, "{}", said(&output));
}

#[test]
fn check_accepts_a_good_file() {
    let path = file("good.toml", "workers = [\"http://127.0.0.1:9001\"]\nstrategy = \"round-robin\"\n");
    check(&["check", path.to_str().unwrap()], 0, &["ok", "1 worker,", "round-robin"]);
    check(&["check", "/nonexistent/maitre.toml"], 1, &["/nonexistent/maitre.toml"]);
}

/// The file may be for another machine, so this is no mistake in it.
#[test]
fn check_warns_of_named_files_that_serve_would_not_start_with() {
    let key = file("broken.key", "not a key");
    let text = format!(
        "workers = [\"https://127.0.0.1:9001\"]\n[tls]\ncert = \"/nonexistent/tls.crt\"\nkey = {key:?}\n\
         [worker_tls]\nca = \"/nonexistent/ca.crt\"\n[tokenizers]\none = \"/nonexistent/one\"\n\
         two = \"/nonexistent/two\"\n"
    );
    let path = file("named.toml", &text);
    let output = run(&["check", path.to_str().unwrap()]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    let named = ["/nonexistent/tls.crt", "/nonexistent/ca.crt", "/nonexistent/one", "/nonexistent/two"];
    assert_eq!(lines.len(), named.len() + 1, "{said}");
    for (line, name) in lines.iter().zip(named) {
        assert!(
            line.contains("warning: maitre serve does not start here: ") && line.contains(name),
            "{said}"
        );
    }
    assert!(said.contains("ok: 1 worker"), "{said}");
}

#[test]
fn an_unknown_strategy_is_answered_with_the_known_ones() {
    let known = [
        "round-robin",
        "random",
        "least-request",
        "least-work",
        "power-of-two",
        "sticky-session",
        "prefix-hash",
    ];
    check(&["serve", "--strategy", "nope"], 1, &[&["--strategy", "nope"][..], &known].concat());
    check(&["demo", "--strategy", "nope"], 2, &known);
}

#[test]
fn a_demo_has_one_router_at_least_and_eight_at_most() {
    for count in ["0", "9", "some"] {
        check(&["demo", "--routers", count], 2, &["--routers", count]);
    }
    check(&["demo", "--routers", "9"], 2, &["1..=8"]);
}

#[test]
fn a_listener_open_to_other_machines_must_be_requested() {
    for flag in ["--listen", "--admin"] {
        check(&["serve", flag, "0.0.0.0:0"], 1, &[flag, "other machines", "insecure"]);
        check(&["serve", flag, "[::]:0"], 1, &[flag, "insecure"]);
    }
}

#[test]
fn a_taken_port_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    check(&["serve", "--listen", &address, "--admin", "127.0.0.1:0"], 1, &["listen on", &address]);
    check(&["engine", "--listen", &address], 1, &["listen on", &address]);
}

/// A port with free ports after it, as far as can be known.
fn free_run(count: u16) -> u16 {
    let bind = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port));
    for _ in 0..100 {
        let first = bind(0).unwrap();
        let port = first.local_addr().unwrap().port();
        let rest: Vec<_> = (1..count).map_while(|it| bind(port.checked_add(it)?).ok()).collect();
        if rest.len() + 1 == usize::from(count) {
            return port;
        }
    }
    panic!("no {count} free ports in a row");
}

#[tokio::test]
async fn engines_take_consecutive_ports() {
    let port = free_run(3);
    let listen = format!("127.0.0.1:{port}");
    let mut engines = Program::start(&["engine", "--count", "3", "--listen", &listen, "--model", "soup"]);
    for number in 0..3 {
        let line = format!("engine {number}: http://127.0.0.1:{}", port + number);
        engines.until_says(|it| (it == line).then_some(())).await;
        let address = format!("127.0.0.1:{}", port + number).parse().unwrap();
        let models = Client::connect(address).await.get("/v1/models").await.json();
        assert_eq!(models["data"][0]["id"], "soup");
    }
}

#[tokio::test]
async fn an_engine_stops_on_sigint_and_sigterm() {
    for signal in ["INT", "TERM"] {
        let mut engine = Engine::start(&["--profile", "instant"]).await;
        engine.program.signal(signal);
        assert_eq!(engine.program.until_ends().await.code(), Some(0), "SIG{signal}");
    }
}

#[test]
fn generate_writes_a_trace_that_can_be_read() {
    let path = |name: &str| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let (plain, packed) = (path("hot.jsonl"), path("hot.jsonl.gz"));
    for path in [&plain, &packed] {
        let out = path.to_str().unwrap();
        check(
            &["generate", "hot:seconds=2", "--seed", "3", "--out", out],
            0,
            &[out, "requests in", "infinite"],
        );
    }
    let read = |path| Trace::read(std::fs::File::open(path).unwrap()).unwrap();
    let expected = "hot:seconds=2".parse::<Plan>().unwrap().generate(3);
    assert_eq!(read(&plain), expected);
    assert_eq!(read(&packed), expected);
    assert!(std::fs::metadata(&packed).unwrap().len() < std::fs::metadata(&plain).unwrap().len());
    let output = run(&["generate", "hot:seconds=2", "--seed", "3"]);
    assert_eq!(output.stdout, std::fs::read(&plain).unwrap());
    assert!(output.stderr.is_empty(), "{}", said(&output));
}

#[test]
fn generate_lists_its_workloads() {
    check(&["generate", "crowd"], 2, &["\"crowd\"", "groups", "noreuse"]);
    check(&["generate", "hot:speed=1"], 2, &["\"speed\"", "qps"]);
    check(&["generate", "hot", "--out", "/nonexistent/hot.jsonl"], 1, &["write /nonexistent/hot.jsonl"]);
    let help = String::from_utf8(run(&["generate", "--help"]).stdout).unwrap();
    assert!(help.contains("burst_prompt=8000"), "{help}");
}

#[test]
fn generate_stops_when_its_output_is_closed() {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_maitre"))
        .args(["generate", "hot"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), said(&output).as_str()), (Some(0), ""));
}

#[tokio::test]
async fn doctors_exit_code_reflects_its_findings() {
    let engine = Engine::start(&["--speedup", "10"]).await;
    let quiet = format!("{}?events=off", engine.url);
    let doctor = |worker: &str, more: &[&str]| {
        run(&[&["doctor", "--worker", worker, "--limits-connections", "16", "--threads", "1"], more].concat())
    };
    let well = doctor(&quiet, &[]);
    let shown = String::from_utf8_lossy(&well.stdout).into_owned();
    assert_eq!(
        (well.status.code(), shown.trim_end().lines().last()),
        (Some(0), Some("no findings")),
        "{shown}"
    );
    assert!(!shown.contains('\x1b'), "colours are for terminals: {shown}");
    let unhealthy = doctor(&engine.url, &["--json"]);
    let report: serde_json::Value = serde_json::from_slice(&unhealthy.stdout).unwrap();
    assert_eq!((unhealthy.status.code(), &report["healthy"]), (Some(1), &false.into()), "{report}");
    assert_eq!(report["findings"][0]["code"], "events-off", "{report}");
    assert_eq!(report["findings"][0]["worker"], engine.url, "{report}");
    assert_eq!(doctor(&engine.url, &["--ignore", "events-off"]).status.code(), Some(0));
}

#[test]
fn doctor_reports_why_it_could_not_check() {
    check(&["doctor"], 2, &["nothing to check", "--worker", "--admin-url"]);
    check(&["doctor", "--worker", "http://127.0.0.1:1/v1"], 2, &["has a path"]);
    check(&["doctor", "--admin-url", "http://127.0.0.1:1"], 2, &["no workers and no router", "refused"]);
    check(&["doctor", "--worker", "http://a", "--ignore", "slwo"], 2, &["slwo", "known: unreachable"]);
    check(&["doctor", "--worker", "http://a", "--timeout", "5"], 2, &["5s"]);
    check(&["doctor", "--worker", "http://a", "--key", "a\nb"], 2, &["--key"]);
}
