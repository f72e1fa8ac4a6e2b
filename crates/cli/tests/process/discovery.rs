//! A running router finds workers in a file.

use std::fs;

use crate::client::{CHAT, chat};
use crate::program::{Engine, Program, Serve};

#[tokio::test]
async fn workers_in_a_file_come_and_go_with_their_lines() {
    let engines = Engine::start_some(2, &["--profile", "instant"]).await;
    let folder = std::env::temp_dir().join(format!("maitre-found-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("workers");
    fs::write(&file, format!("# ours\n{}\n", engines[0].url)).unwrap();
    let source = format!("file:{}", file.display());
    let args = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--discovery-gone-after", "0s"];
    let serve = [&args[..], &["--discovery-from", &source]].concat();
    let mut serve = Serve::of(Program::start(&serve)).await;
    serve.until_worker(&engines[0].url, "ready").await;
    let mut client = serve.client().await;
    assert_eq!(client.post(CHAT, &chat(2)).await.worker(), engines[0].url);
    // A bad file changes nothing, and is reported.
    fs::write(&file, "http//nonsense\n").unwrap();
    serve
        .program
        .until_says(|it| (it.contains("cannot find workers") && it.contains(":1")).then_some(()))
        .await;
    assert_eq!(client.post(CHAT, &chat(2)).await.worker(), engines[0].url);
    fs::write(&file, format!("{}\n", engines[1].url)).unwrap();
    serve.until_worker(&engines[1].url, "ready").await;
    serve.program.until_says(|it| it.contains("worker removed").then_some(())).await;
    assert_eq!(client.post(CHAT, &chat(2)).await.worker(), engines[1].url);
    fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn a_source_without_workers_is_a_warning_said_once() {
    let args = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let source = ["--discovery-from", "file:/nonexistent/workers"];
    let mut serve = Serve::of(Program::start(&[&args[..], &source].concat())).await;
    let missing = "/nonexistent/workers: there is no such file";
    let line = |said: &str| said.lines().find(|it| it.contains(missing)).map(str::to_owned);
    let line = serve.program.until_says(line).await;
    assert!(line.contains("WARN no workers found"), "{line}");
    serve.program.signal("TERM");
    serve.program.until_ends().await;
    assert_eq!(serve.program.said().matches(missing).count(), 1, "{}", serve.program.said());
}

#[tokio::test]
async fn a_source_that_fails_after_a_reload_keeps_its_workers() {
    let engines = Engine::start_some(1, &["--profile", "instant"]).await;
    let folder = std::env::temp_dir().join(format!("maitre-found-anew-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (file, config) = (folder.join("workers"), folder.join("maitre.toml"));
    fs::write(&file, format!("{}\n", engines[0].url)).unwrap();
    let write = |seconds: u32| {
        let text = format!(
            "discovery.from = [\"file:{}\"]\ndiscovery.gone_after = \"{seconds}s\"\n",
            file.display()
        );
        fs::write(&config, text).unwrap();
    };
    write(1);
    let args = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"];
    let mut serve = Serve::of(Program::start(&[&args[..], &[config.to_str().unwrap()]].concat())).await;
    serve.until_worker(&engines[0].url, "ready").await;
    fs::write(&file, "http//nonsense\n").unwrap();
    serve
        .program
        .until_says(|it| (it.contains("cannot find workers") && it.contains(":1")).then_some(()))
        .await;
    write(2);
    serve.program.until_says(|it| it.contains("settings reloaded").then_some(())).await;
    serve
        .program
        .until_says(|it| (it.contains("cannot find workers") && it.contains(":1")).then_some(()))
        .await;
    assert_eq!(serve.client().await.post(CHAT, &chat(2)).await.worker(), engines[0].url);
    fs::remove_dir_all(&folder).unwrap();
}
