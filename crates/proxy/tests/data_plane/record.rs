//! The record of requests, read as `maitre replay` reads it.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use maitre_policy::Name;
use maitre_proxy::{Router, RouterSettings, Stopped};
use maitre_sim::trace::{Request, Trace};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{Fixture, TestResponse, engine_settings, fixture_with, metric, settings, within};

const CHAT: &str = "/v1/chat/completions";

/// A folder for one record, deleted when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("maitre-record-{}-{name}", std::process::id()));
        drop(fs::remove_dir_all(&path));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("trace.jsonl")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.file()).unwrap()
    }

    fn read(&self) -> Vec<Request> {
        Trace::read(File::open(self.file()).unwrap()).unwrap().requests
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn recording(strategy: Name, file: PathBuf) -> RouterSettings {
    let mut settings = settings();
    settings.brain.strategy = strategy;
    settings.record.file = Some(file);
    settings
}

/// Messages with alternating roles, the first from the system.
fn chat(turns: &[&str], more: &Value) -> String {
    let role = |number: usize| match number {
        0 => "system",
        _ if number % 2 == 1 => "user",
        _ => "assistant",
    };
    let messages: Vec<Value> = turns
        .iter()
        .enumerate()
        .map(|(number, text)| json!({"role": role(number), "content": text}))
        .collect();
    let mut body = json!({"model": "maitre-sim", "messages": messages, "max_tokens": 20});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body.to_string()
}

/// Sentences unique to this seed.
fn prose(seed: &str, sentences: usize) -> String {
    (0..sentences)
        .map(|number| format!("{seed} says canary sentence number {number} to the guests. "))
        .collect()
}

fn usage(answer: &TestResponse) -> (u64, u32) {
    let usage = &answer.json()["usage"];
    let length = |key: &str| usage[key].as_u64().unwrap();
    (length("prompt_tokens"), length("completion_tokens") as u32)
}

fn names(request: &Request) -> Vec<u64> {
    request.prompt.iter().map(|it| it.text).collect()
}

fn shared(one: &Request, other: &Request) -> usize {
    one.prompt.iter().zip(&other.prompt).take_while(|(one, other)| one == other).count()
}

async fn stop(fixture: Fixture) {
    assert_eq!(within(fixture.router.stop()).await, Stopped::Drained);
}

/// A conversation of three turns and one of another client, with one strategy.
async fn check_conversation(strategy: Name) {
    let folder = Folder::new(strategy.as_str());
    let fixture = fixture_with(2, engine_settings(), recording(strategy, folder.file())).await;
    let mut client = fixture.client().await;
    let (system, question) = (prose("garden", 80), prose("visitor", 20));
    let first = client.post(CHAT, chat(&[&system, &question], &json!({"user": "canary-user"}))).await;
    let said = first.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let turns = [&system, &question, said.as_str(), &prose("again", 20)];
    let second = client.post(CHAT, chat(&turns, &json!({"user": "canary-user"}))).await;
    let other = client.post(CHAT, chat(&[&prose("stranger", 100)], &json!({}))).await;
    stop(fixture).await;

    let text = folder.text();
    for secret in ["canary", "visitor", "garden", "maitre-sim", "system"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    let requests = folder.read();
    let answers = [&first, &second, &other];
    let lengths: Vec<_> = requests.iter().map(|it| (it.prompt_tokens(), it.answer_tokens)).collect();
    assert_eq!(lengths, answers.map(usage), "{text}");
    let [one, two, three] = &requests[..] else { panic!("three requests") };
    let blocks = one.prompt.len() - 1;
    assert!(blocks > 5 && shared(one, two) == blocks, "{:?}\n{:?}", names(one), names(two));
    assert_eq!(shared(one, three), 0);
    assert!(one.session.is_some() && one.session == two.session && three.session.is_none());
    assert!(one.at < two.at && two.at < three.at);
    for (request, answer) in requests.iter().zip(answers) {
        let observed = request.observed.as_deref().unwrap();
        let cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        assert_eq!((observed.first_token, observed.cached_tokens.map(u64::from)), (None, cached), "{text}");
        assert!(observed.total > Duration::ZERO, "{text}");
    }
}

#[tokio::test]
async fn a_conversation_is_recorded_by_lengths_and_shared_blocks() {
    check_conversation(Name::LeastDelay).await;
}

#[tokio::test]
async fn strategies_without_prompts_are_recorded_too_and_pick_as_before() {
    check_conversation(Name::RoundRobin).await;
    check_conversation(Name::LeastWork).await;
    let folder = Folder::new("picks");
    let fixture = fixture_with(2, engine_settings(), recording(Name::LeastWork, folder.file())).await;
    let answer = fixture.client().await.post(CHAT, chat(&[&prose("a", 50)], &json!({}))).await;
    assert_eq!(answer.header("x-maitre-cached-tokens"), "", "this strategy does not look at caches");
    assert!(!fixture.router.metrics().contains("maitre_prompts_read_total{"));
    stop(fixture).await;
    assert_eq!(folder.read().len(), 1);
}

#[tokio::test]
async fn output_length_is_the_reported_usage_or_else_the_chunks() {
    let folder = Folder::new("stream");
    let fixture = fixture_with(1, engine_settings(), recording(Name::RoundRobin, folder.file())).await;
    let mut client = fixture.client().await;
    let counted = json!({"stream": true, "stream_options": {"include_usage": true}, "ignore_eos": true});
    let turns = [prose("a", 50)];
    client.post(CHAT, chat(&[&turns[0]], &counted)).await;
    client.post(CHAT, chat(&[&turns[0]], &json!({"stream": true, "ignore_eos": true}))).await;
    stop(fixture).await;
    let requests = folder.read();
    assert_eq!(requests[0].answer_tokens, 20);
    // A chunk is one read: there are never more than tokens and their frame.
    assert!((1..=24).contains(&requests[1].answer_tokens), "{requests:?}");
    // Its prompt was not counted, but a similar one was.
    let [one, other] = [&requests[0], &requests[1]].map(Request::prompt_tokens);
    assert!(one.abs_diff(other) <= 1, "{one} and {other} tokens");
}

#[tokio::test]
async fn client_errors_are_not_recorded_and_lack_of_capacity_is() {
    let folder = Folder::new("mistakes");
    let mut fixture = fixture_with(1, engine_settings(), recording(Name::RoundRobin, folder.file())).await;
    let mut client = fixture.client().await;
    let turn = prose("a", 50);
    let unknown = json!({"model": "unknown"});
    let bad = json!({"max_tokens": 0});
    for more in [&unknown, &bad] {
        let answer = client.post(CHAT, chat(&[&turn], more)).await;
        assert!(answer.status.is_client_error(), "{}", answer.text());
    }
    let embeddings = json!({"model": "maitre-sim", "input": turn}).to_string();
    client.post("/v1/embeddings", embeddings).await;
    fixture.engines.clear();
    let refused = client.post(CHAT, chat(&[&turn], &json!({}))).await;
    assert!(refused.status.is_server_error(), "{}", refused.text());
    stop(fixture).await;
    let requests = folder.read();
    assert_eq!(requests.len(), 1, "{}", folder.text());
    assert!(folder.text().contains("\"output_length\":0,"));
}

#[tokio::test]
async fn a_client_that_disconnects_is_recorded_with_what_it_received() {
    let folder = Folder::new("left");
    let mut engine = engine_settings();
    engine.engine.profile = maitre_sim::profile::Profile::named("h200-8b").unwrap();
    let fixture = fixture_with(1, engine, recording(Name::RoundRobin, folder.file())).await;
    let more = json!({"stream": true, "max_tokens": 2_000, "ignore_eos": true});
    let body = chat(&[&prose("a", 50)], &more);
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: m\r\ncontent-length: {}\r\n\r\n", body.len());
    let mut socket = TcpStream::connect(fixture.router.listen()).await.unwrap();
    socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    socket.read_exact(&mut [0; 3_000]).await.unwrap();
    drop(socket);
    stop(fixture).await;
    let requests = folder.read();
    assert!(requests.len() == 1 && (2..2_000).contains(&requests[0].answer_tokens), "{requests:?}");
    assert_eq!(requests[0].observed, None, "the answer was not complete");
}

#[tokio::test]
async fn files_stay_within_their_limits_and_each_is_a_trace() {
    let folder = Folder::new("bounds");
    let mut settings = recording(Name::RoundRobin, folder.file());
    (settings.record.bytes_max, settings.record.files) = (4_000, 3);
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let mut client = fixture.client().await;
    let turn = prose("a", 60);
    for _ in 0..80 {
        client.post(CHAT, chat(&[&turn], &json!({}))).await;
    }
    stop(fixture).await;
    let mut files: Vec<_> = fs::read_dir(&folder.0).unwrap().map(|it| it.unwrap().path()).collect();
    files.sort();
    assert_eq!(files, ["", ".1", ".2"].map(|it| folder.0.join(format!("trace.jsonl{it}"))));
    for file in files {
        assert!(fs::metadata(&file).unwrap().len() <= 4_000, "{file:?}");
        let trace = Trace::read(File::open(&file).unwrap()).unwrap();
        assert!(trace.span() < Duration::from_secs(60), "{file:?}");
    }
}

#[tokio::test]
async fn a_new_run_rotates_the_old_record() {
    let folder = Folder::new("again");
    for _ in 0..2 {
        let fixture = fixture_with(1, engine_settings(), recording(Name::RoundRobin, folder.file())).await;
        fixture.client().await.post(CHAT, chat(&[&prose("a", 60)], &json!({}))).await;
        stop(fixture).await;
    }
    let old = Trace::read(File::open(folder.0.join("trace.jsonl.1")).unwrap()).unwrap().requests;
    let new = folder.read();
    assert_eq!((old.len(), new.len()), (1, 1));
    assert_ne!(names(&old[0])[0], names(&new[0])[0], "each run has its own secret");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_disk_costs_lines_and_no_request() {
    let fixture = fixture_with(1, engine_settings(), recording(Name::RoundRobin, "/dev/full".into())).await;
    let mut client = fixture.client().await;
    for _ in 0..5 {
        let answer = client.post(CHAT, chat(&[&prose("a", 60)], &json!({}))).await;
        assert!(answer.status.is_success(), "{}", answer.text());
    }
    let dropped = async || {
        while metric(&fixture.router.metrics(), "maitre_record_dropped_total") < 5.0 {
            tokio::task::yield_now().await;
        }
    };
    within(dropped()).await;
    assert_eq!(metric(&fixture.router.metrics(), "maitre_record_requests_total"), 0.0);
    stop(fixture).await;
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_an_error_at_the_start() {
    let folder = Folder::new("nowhere");
    let file = folder.0.join("no/such/folder/trace.jsonl");
    let error = Router::start(recording(Name::RoundRobin, file)).await.err().expect("no such folder");
    let error = error.to_string();
    assert!(error.starts_with("record to ") && error.contains("No such file"), "{error}");
}
