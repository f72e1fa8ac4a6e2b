//! Settings change under load: whatever is written into the file, no request is affected.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::client::{Answer, CHAT, Client, chat, chat_stream, post, within};
use crate::program::{Engine, Program, Serve};

const KEY: &str = "a-key-for-the-operator";

/// Reloads that are requested.
const RELOADS: u32 = 1_000;

struct File(PathBuf);

impl File {
    fn new(name: &str) -> File {
        let folder = std::env::temp_dir().join(format!("maitre-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        File(folder.join("maitre.toml"))
    }

    fn path(&self) -> &Path {
        &self.0
    }

    fn write(&self, text: &str) {
        fs::write(&self.0, text).unwrap();
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0.parent().unwrap());
    }
}

async fn serve(file: &File, engines: &[Engine]) -> Serve {
    let args = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"];
    let serve = Serve::of(Program::start(&[&args[..], &[file.path().to_str().unwrap()]].concat())).await;
    for engine in engines {
        serve.until_worker(&engine.url, "ready").await;
    }
    serve
}

async fn operate(operator: &mut Client, method: &str, path: &str) -> Answer {
    let request = Request::builder().method(method).uri(path).header("host", "maitre");
    let request = request.header("authorization", format!("Bearer {KEY}"));
    operator.begin(request.body(Full::<Bytes>::default()).unwrap()).await.rest().await
}

/// A valid file that differs for each number.
fn valid(engines: &[Engine], number: u32) -> String {
    let strategies = ["least-delay", "round-robin", "cache-aware", "least-work", "prefix-hash"];
    let strategy = strategies[number as usize % strategies.len()];
    // One of the workers comes and goes; the others stay.
    let away = (number / 7) as usize % (engines.len() + 1);
    let workers: Vec<String> = engines
        .iter()
        .enumerate()
        .filter(|(place, _)| *place == 0 || *place != away)
        .map(|(_, it)| format!("{:?}", it.url))
        .collect();
    format!(
        "admin_key = \"{KEY}\"\nworkers = [{}]\nstrategy = \"{strategy}\"\nqueue.enabled = {}\n\
         timeouts.total = \"{}s\"\nshadow.strategies = [\"random\"]\ndecisions.kept = {}\n",
        workers.join(", "),
        !number.is_multiple_of(5),
        600 + number % 10,
        100 + number % 3,
    )
}

/// An invalid file.
fn invalid(engines: &[Engine], number: u32) -> String {
    let valid = valid(engines, number);
    match number % 4 {
        0 => valid.replace("strategy", "stratgy"),
        1 => valid.replace("s\"\nshadow", "\"\nshadow"),
        2 => format!("{valid}workers = [[[\n"),
        // Cut in the middle of a string.
        _ => valid[..valid.find("http").unwrap() + 9].to_owned(),
    }
}

#[tokio::test]
async fn a_thousand_reloads_under_load_affect_no_request() {
    let engines = Engine::start_some(3, &["--profile", "instant"]).await;
    let file = File::new("reload");
    file.write(&valid(&engines, 0));
    let mut serve = serve(&file, &engines).await;
    let (over, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut clients = JoinSet::new();
    for client_number in 0..4 {
        let (over, served, listen) = (over.clone(), served.clone(), serve.listen);
        clients.spawn(async move {
            let mut client = Client::connect(listen).await;
            while !over.load(Ordering::Relaxed) {
                let body = if client_number % 2 == 0 { chat(3) } else { chat_stream(30) };
                let answer = client.begin(post(CHAT, &body)).await.rest().await;
                assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
                assert!(client_number % 2 == 0 || answer.text().trim_end().ends_with("[DONE]"), "cut short");
                served.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let mut operator = Client::connect(serve.admin).await;
    let (mut refused, mut taken) = (0, 0);
    for number in 0..RELOADS {
        let is_valid = !number.is_multiple_of(3);
        file.write(&if is_valid { valid(&engines, number) } else { invalid(&engines, number) });
        if number.is_multiple_of(10) {
            // A signal has no answer; the next reload comes after it.
            serve.program.signal("HUP");
        }
        let answer = operate(&mut operator, "POST", "/admin/v1/reload").await;
        match is_valid {
            true => {
                assert_eq!(answer.status, StatusCode::OK, "{number}: {}", answer.text());
                taken += 1;
            }
            false => {
                assert_eq!(answer.status, StatusCode::CONFLICT, "{number}: {}", answer.text());
                let said = answer.json()["error"]["message"].as_str().unwrap().to_owned();
                assert!(said.contains("maitre.toml:"), "names file and line: {said}");
                refused += 1;
            }
        }
    }
    assert_eq!((refused, taken), (334, 666));
    over.store(true, Ordering::Relaxed);
    while let Some(client_number) = within(clients.join_next()).await {
        client_number.unwrap();
    }
    assert!(served.load(Ordering::Relaxed) > 100, "there was load");
    let page = serve.metrics().await;
    assert!(page.contains("maitre_requests_in_flight 0"), "{page}");
    let other = |it: &&str| it.starts_with("maitre_requests_total") && !it.contains("outcome=\"answered\"");
    assert_eq!(page.lines().filter(other).collect::<Vec<_>>(), Vec::<&str>::new());
    serve.program.signal("TERM");
    assert!(serve.program.until_ends().await.success());
}

#[tokio::test]
async fn a_changed_file_is_read_again_and_an_invalid_one_is_reported() {
    let engines = Engine::start_some(2, &["--profile", "instant"]).await;
    let file = File::new("watched");
    file.write(&valid(&engines[..1], 0));
    let mut serve = serve(&file, &engines[..1]).await;
    let mut operator = Client::connect(serve.admin).await;
    file.write(&invalid(&engines, 0));
    let said = serve.program.until_says(|it| it.contains("stay as they were").then(|| it.to_owned())).await;
    assert!(said.contains("stratgy") && said.contains("maitre.toml:3"), "{said}");
    assert_eq!(workers(&mut operator).await.len(), 1);
    // By renaming, as editors and Kubernetes do.
    let beside = file.path().with_extension("new");
    fs::write(&beside, valid(&engines, 0)).unwrap();
    fs::rename(&beside, file.path()).unwrap();
    serve.until_worker(&engines[1].url, "ready").await;
    assert_eq!(workers(&mut operator).await.len(), 2);
    // Settings that need a restart are kept, and reported.
    file.write(&format!("{}listen = \"127.0.0.1:1\"\nthreads = 1\n", valid(&engines, 0)));
    let answer = operate(&mut operator, "POST", "/admin/v1/reload").await.json();
    assert_eq!(answer["restart"], serde_json::json!(["threads"]), "the flag for listen overrules the file");
}

async fn workers(operator: &mut Client) -> Vec<Value> {
    operate(operator, "GET", "/admin/v1/workers").await.json()["workers"].as_array().unwrap().clone()
}

#[tokio::test]
async fn the_log_level_can_be_changed() {
    let engines = Engine::start_some(1, &["--profile", "instant"]).await;
    let file = File::new("log");
    file.write(&valid(&engines, 0));
    let mut serve = serve(&file, &engines).await;
    let mut operator = Client::connect(serve.admin).await;
    let request = Request::put("/admin/v1/log").header("host", "maitre");
    let request = request.header("authorization", format!("Bearer {KEY}"));
    let request = request.body(Full::from(r#"{"level":"debug"}"#)).unwrap();
    let answer = operator.begin(request).await.rest().await;
    assert_eq!(answer.json()["level"], "debug");
    serve.client().await.post(CHAT, &chat(2)).await;
    serve.program.until_says(|it| it.contains("outcome").then_some(())).await;
    // A typo is reported, and does not silence the log.
    let request = Request::put("/admin/v1/log").header("host", "maitre");
    let request = request.header("authorization", format!("Bearer {KEY}"));
    let answer = operator.begin(request.body(Full::from(r#"{"level":"inof"}"#)).unwrap()).await.rest().await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text());
    let config = operate(&mut operator, "GET", "/admin/v1/config").await.json();
    let shown = config["toml"].as_str().unwrap();
    assert!(shown.contains("strategy = \"least-delay\"") && !shown.contains(KEY), "{shown}");
    assert!(shown.contains("# admin_key is set, and not shown") && !shown.contains("sha256:"), "{shown}");
}

#[tokio::test]
async fn an_admin_key_removed_from_the_settings_stops_working() {
    let engines = Engine::start_some(1, &["--profile", "instant"]).await;
    let file = File::new("revoked");
    file.write(&valid(&engines, 0));
    let serve = serve(&file, &engines).await;
    let mut operator = Client::connect(serve.admin).await;
    file.write(&valid(&engines, 0).replace("admin_key", "# admin_key"));
    let answer = operate(&mut operator, "POST", "/admin/v1/reload").await;
    assert_eq!(answer.json()["changed"], serde_json::json!(["admin_key"]), "{}", answer.text());
    let answer = operate(&mut operator, "GET", "/admin/v1/overview").await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{}", answer.text());
}

#[tokio::test]
async fn a_reload_during_shutdown_is_refused() {
    let engines = Engine::start_some(1, &["--profile", "instant"]).await;
    let file = File::new("late");
    file.write(&format!("{}timeouts.drain_grace = \"60s\"\n", valid(&engines, 0)));
    let mut serve = serve(&file, &engines).await;
    let mut operator = Client::connect(serve.admin).await;
    serve.program.signal("TERM");
    serve.program.until_says(|it| it.contains("draining").then_some(())).await;
    let answer = within(operate(&mut operator, "POST", "/admin/v1/reload")).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.text());
    assert!(answer.text().contains("on its way out"), "{}", answer.text());
}
