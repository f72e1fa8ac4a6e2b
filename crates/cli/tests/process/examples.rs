//! Every example configuration passes `check`, and starts.

use std::path::{Path, PathBuf};

use crate::program::{Engine, Program, address, run};

fn examples() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let entries = std::fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
    let mut found: Vec<PathBuf> =
        entries.filter(|it| it.extension().is_some_and(|it| it == "toml")).collect();
    found.sort();
    found
}

#[tokio::test]
async fn every_example_is_checked_and_started() {
    let examples = examples();
    assert!(examples.len() >= 8, "{examples:?}");
    let engine = Engine::start(&["--profile", "instant"]).await;
    for path in examples {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# "), "{}: say first what it is for", path.display());
        let name = path.to_str().unwrap();
        let output = run(&["check", name]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {said}");
        assert_eq!(said.contains("and 1 source of workers"), text.contains("[discovery]"), "{said}");
        // On ports of its own, with workers and peers only on this machine, recording into an existing
        // folder. Everything else stays as written.
        let record = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("examples.jsonl");
        let mut args = vec!["serve", "--config", name, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        args.extend(["--worker", &engine.url]);
        if text.contains("[record]") {
            args.extend(["--record", record.to_str().unwrap()]);
        }
        if text.contains("[cluster]") {
            args.extend(["--cluster", "redis://127.0.0.1:1"]);
        }
        let mut program = Program::start(&args);
        program.until_says(|it| address(it, "listen=")).await;
        program.signal("TERM");
        assert_eq!(program.until_ends().await.code(), Some(0), "{name}: {}", program.said());
    }
}
