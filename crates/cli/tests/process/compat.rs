//! `maitre compat` with the command line of another router: it serves, or prints a config file.

use std::path::PathBuf;

use crate::client::{CHAT, Client, chat};
use crate::program::{Engine, Program, address, run};

#[tokio::test]
async fn an_old_command_line_serves_after_listing_the_differences() {
    let engine = Engine::start(&["--profile", "instant"]).await;
    let old = ["--worker-urls", &engine.url, "--host", "127.0.0.1", "--port", "0", "--policy", "round_robin"];
    let own = ["--prometheus-host", "127.0.0.1", "--prometheus-port", "0", "--retry-jitter-factor", "0.1"];
    for router in ["sglang", "smg", "vllm-router"] {
        let mut program = Program::start(&[&["compat", router, "--"], &old[..], &own].concat());
        let listen = program.until_says(|it| address(it, "listen=")).await;
        let said = program.said();
        let told = said.find("not carried over: --retry-jitter-factor: ").expect("a line for it");
        assert!(told < said.find("serving").unwrap(), "before it serves:\n{said}");
        let mut client = Client::connect(listen).await;
        // It listens before it has found the worker, and then a request would fail.
        let mut looks = tokio::time::interval(crate::program::LOOK_AGAIN);
        let answer = crate::client::within(async {
            loop {
                let answer = client.post(CHAT, &chat(1)).await;
                if answer.status == 200 {
                    return answer;
                }
                looks.tick().await;
            }
        })
        .await;
        assert_eq!(answer.worker(), engine.url);
        for path in ["/health", "/liveness", "/readiness", "/health_generate", "/metrics"] {
            assert_eq!(client.get(path).await.status, 200, "{router}: {path}");
        }
    }
}

#[test]
fn the_printed_file_passes_check() {
    let output = run(&["compat", "sglang", "--print", "--", "--worker-urls", "http://127.0.0.1:9001"]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("workers = [\"http://127.0.0.1:9001\"]"), "{text}");
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compat.toml");
    std::fs::write(&path, &text).unwrap();
    let output = run(&["check", path.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("strategy cache-aware"), "{said}");
}

#[test]
fn help_among_the_old_flags_starts_nothing() {
    for old in ["--help", "-h"] {
        let output =
            run(&["compat", "sglang", "--print", "--", "--worker-urls", "http://127.0.0.1:9001", old]);
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && said.starts_with("docs/compat.md lists"), "{said}");
    }
}

#[test]
fn printed_prefill_and_decode_workers_pass_check() {
    let output = run(&[
        "compat",
        "sglang",
        "--print",
        "--",
        "--pd-disaggregation",
        "--prefill",
        "http://127.0.0.1:1",
        "8998",
        "--decode",
        "http://127.0.0.1:2",
    ]);
    assert_eq!(output.status.code(), Some(0));
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compat-pairs.toml");
    std::fs::write(&path, &output.stdout).unwrap();
    let output = run(&["check", path.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("2 workers"), "{said}");
}

#[test]
fn unknown_flags_and_unsupported_modes_start_nothing() {
    for (flags, said) in [
        (&["--worker-url", "http://127.0.0.1:9001", "--polcy", "random"][..], "did you mean --policy?"),
        (&["--epd-disaggregation", "--encode", "http://127.0.0.1:9001"], "cannot start without it"),
        (&["--pd-disaggregation", "--decode", "http://127.0.0.1:9001"], "no prefill worker is left"),
    ] {
        for command in [&["compat", "sglang", "--"][..], &["compat", "sglang", "--print", "--"]] {
            let output = run(&[command, flags].concat());
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{text}");
            assert!(text.contains(said), "{text}");
        }
    }
}

/// It is called vllm-router too.
#[test]
fn flags_of_the_production_stack_are_named_as_such() {
    let flags = [
        "--service-discovery",
        "static",
        "--static-backends=http://127.0.0.1:9001",
        "--routing-logic",
        "session",
    ];
    let output = run(&[&["compat", "vllm-router", "--print", "--"], &flags[..]].concat());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{text}");
    assert!(text.starts_with("these flags are of the router of vLLM's production stack"), "{text}");
    assert!(text.contains("--strategy sticky-session --session-header NAME"), "{text}");
}

#[test]
fn there_is_a_page_for_every_command() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("man");
    let output = run(&["man", "--out", folder.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let mut commands: Vec<String> = maitre_cli::commands::command()
        .get_subcommands()
        .map(|it| format!("maitre-{}", it.get_name()))
        .collect();
    commands.extend(["maitre", "maitre-compat-sglang"].map(str::to_owned));
    for name in commands {
        let page = std::fs::read_to_string(folder.join(format!("{name}.1")))
            .unwrap_or_else(|it| panic!("{name}: {it}"));
        assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{name}: {page}");
    }
    let output = run(&["man", "--out", "/dev/null/man"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("write manual pages to /dev/null/man"), "{said}");
}
