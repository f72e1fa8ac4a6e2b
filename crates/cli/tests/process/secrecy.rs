//! No prompt, answer or key leaves the process except to the worker: not in the log, the metrics or the
//! recording.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use http::header::AUTHORIZATION;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::client::{CHAT, Client, chat, chat_stream, post, within};
use crate::program::{Engine, Serve, run};

const PROMPT: &str = "canary-prompt-5f1e";
const KEY: &str = "canary-key-77ab";

#[tokio::test]
async fn neither_prompt_nor_key_is_in_the_log_the_metrics_or_the_recording() {
    let record = std::env::temp_dir().join(format!("maitre-secrecy-{}.jsonl", std::process::id()));
    let file = record.to_str().unwrap();
    let mut engines = Engine::start_some(1, &["--profile", "instant"]).await;
    let mut serve = Serve::start(&engines, &["--log-level", "trace", "--record", file]).await;
    let mut client = serve.client().await;
    let mut answers = Vec::new();
    let whole = with_canary(chat(20));
    // We refuse a body that is not JSON, the engine one with a bad field; neither may be quoted.
    let bodies = [
        whole.to_string(),
        with_canary(chat_stream(20)).to_string(),
        format!("{{\"model\": \"maitre-sim\", {PROMPT}"),
        format!("{{\"model\": \"maitre-sim\", \"messages\": \"{PROMPT}\"}}"),
        whole.to_string().replace("\"max_tokens\":20", "\"max_tokens\":0"),
    ];
    for body in bodies {
        let mut request = post(CHAT, &serde_json::Value::Null);
        *request.body_mut() = body.into_bytes().into();
        request.headers_mut().insert(AUTHORIZATION, format!("Bearer {KEY}").parse().unwrap());
        let answer = client.begin(request).await.rest().await;
        answers.push(answer.status.as_u16());
    }
    assert_eq!(answers, [200, 200, 400, 400, 400]);
    // And once where no worker answers.
    let mut gone = engines.remove(0);
    gone.program.signal("KILL");
    gone.program.until_ends().await;
    assert_eq!(client.post(CHAT, &whole).await.status, 502);

    let page = serve.metrics().await;
    assert!(page.contains("maitre_requests_total"), "{page}");
    serve.program.signal("TERM");
    serve.program.until_ends().await;
    let log = serve.program.said();
    assert_eq!(log.matches("DEBUG").count().min(6), 6, "at least a line for each request: {log}");
    let record =
        std::fs::read_to_string(&record).inspect(|_| std::fs::remove_file(&record).unwrap()).unwrap();
    assert_eq!(record.lines().count(), 3, "the answered and the failed, not the mistaken: {record}");
    for canary in [PROMPT, KEY] {
        assert!(!record.contains(canary), "{canary} in the record:\n{record}");
        assert!(!log.contains(canary), "{canary} in the log:\n{log}");
        assert!(!page.contains(canary), "{canary} in the metrics:\n{page}");
    }
}

const CLIENT_KEY: &str = "canary-client-key-9c21";
const WRONG_KEY: &str = "canary-wrong-key-4417";
const WORKER_KEY: &str = "canary-worker-key-d05e";
const SALT_SECRET: &str = "canary-salt-secret-8b36";
const ADMIN_KEY: &str = "canary-admin-key-61fa";
/// A token id that differs from every count and time.
const TOKEN: &str = "987654321";

#[tokio::test]
async fn no_key_is_ever_repeated() {
    let engines = Engine::start_some(1, &["--profile", "instant"]).await;
    let keys = format!("{CLIENT_KEY}?tenant=acme&models=maitre-sim");
    let flags =
        ["--keys", &keys, "--worker-key", WORKER_KEY, "--salt-by", "tenant", "--salt-secret", SALT_SECRET];
    let more = ["--admin-key", ADMIN_KEY, "--shadow-strategies", "round-robin", "--log-level", "trace"];
    let mut serve = Serve::start(&engines, &[&flags[..], &more].concat()).await;
    let mut client = serve.client().await;
    let mut said = String::new();
    let mut statuses = Vec::new();
    let tokens = format!("{{\"model\":\"maitre-sim\",\"prompt\":[{TOKEN},{TOKEN}],\"max_tokens\":1}}");
    let whole = with_canary(chat(3)).to_string();
    for (key, path, body) in [
        (CLIENT_KEY, CHAT, whole.clone()),
        (CLIENT_KEY, "/v1/completions", tokens.clone()),
        (CLIENT_KEY, CHAT, whole.replace("maitre-sim", "another")),
        (WRONG_KEY, CHAT, whole.clone()),
        (WRONG_KEY, "/v1/completions", tokens),
        ("", CHAT, whole.clone()),
    ] {
        let answer = client.begin(asking(path, &body, key)).await.rest().await;
        statuses.push(answer.status.as_u16());
        if !answer.status.is_success() {
            said.push_str(&answer.text());
        }
    }
    assert_eq!(statuses, [200, 200, 404, 401, 401, 401]);
    // HTTP/2 uses another library, which could log by itself.
    assert_eq!(over_http2(serve.listen, &whole, CLIENT_KEY).await, 200);
    assert_eq!(over_http2(serve.listen, &whole, WRONG_KEY).await, 401);
    said.push_str(&serve.metrics().await);
    said.push_str(&shown_on_the_page(serve.admin, &whole).await);
    serve.program.signal("TERM");
    serve.program.until_ends().await;
    said.push_str(&serve.program.said());
    assert!(said.contains("TRACE") && said.contains("invalid_api_key"), "{said}");
    check_silent(&said);
}

/// Everything that the page, or any other holder of the admin key, can read.
async fn shown_on_the_page(admin: SocketAddr, body: &str) -> String {
    let mut operator = Client::connect(admin).await;
    let mut shown = String::new();
    let paths = ["overview", "history", "workers", "decisions", "decisions/1", "config", "index", "nothing"];
    for path in paths {
        let request = Request::get(format!("/admin/v1/{path}")).header("host", "maitre");
        let request = request.header(AUTHORIZATION, format!("Bearer {ADMIN_KEY}"));
        let answer = operator.begin(request.body(Full::default()).unwrap()).await.rest().await;
        assert_eq!(answer.status.is_success(), path != "nothing", "{path}");
        shown.push_str(&answer.text());
    }
    let answer = operator.begin(asking("/admin/v1/explain", body, ADMIN_KEY)).await.rest().await;
    assert!(answer.status.is_success(), "{}", answer.text());
    shown.push_str(&answer.text());
    let request = Request::get("/admin/v1/live").header("host", "maitre");
    let request = request.header(AUTHORIZATION, format!("Bearer {ADMIN_KEY}"));
    let mut live = operator.begin(request.body(Full::default()).unwrap()).await;
    let first = live.piece().await.unwrap();
    shown + std::str::from_utf8(&first).unwrap()
}

fn asking(path: &str, body: &str, key: &str) -> Request<Full<Bytes>> {
    let mut request = post(path, &serde_json::Value::Null);
    *request.body_mut() = Full::from(body.to_owned());
    if !key.is_empty() {
        request.headers_mut().insert(AUTHORIZATION, format!("Bearer {key}").parse().unwrap());
    }
    request
}

async fn over_http2(listen: SocketAddr, body: &str, key: &str) -> u16 {
    let stream = within(TcpStream::connect(listen)).await.unwrap();
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let mut driver = JoinSet::new();
    driver.spawn(async move { drop(connection.await) });
    let mut request = asking(&format!("http://maitre{CHAT}"), body, key);
    request.headers_mut().remove("host");
    let answer = within(sender.send_request(request)).await.unwrap();
    let status = answer.status().as_u16();
    within(answer.into_body().collect()).await.unwrap();
    status
}

#[track_caller]
fn check_silent(said: &str) {
    for canary in [PROMPT, CLIENT_KEY, WRONG_KEY, WORKER_KEY, SALT_SECRET, ADMIN_KEY, TOKEN] {
        assert!(!said.contains(canary), "{canary} in:\n{said}");
    }
}

#[test]
fn check_prints_no_secret_of_a_file() {
    let good = format!(
        "keys = [\"{CLIENT_KEY}?tenant=acme\"]\nworker_key = \"{WORKER_KEY}\"\nadmin_key = \"{ADMIN_KEY}\"\n[salt]\nby = \"tenant\"\nsecret = \"{SALT_SECRET}\"\n"
    );
    let file = |text: &str| {
        let path = std::env::temp_dir().join(format!("maitre-secrecy-{}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let output = run(&["check", path.to_str().unwrap()]);
        std::fs::remove_file(&path).unwrap();
        let said = [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
        (output.status.success(), said.concat())
    };
    let (is_fine, said) = file(&good);
    assert!(is_fine, "{said}");
    check_silent(&said);
    // Nor if each of them has an error.
    let bad = good
        .replace("?tenant=acme", "?tenant=acme&colour=1")
        .replace(WORKER_KEY, &format!("{WORKER_KEY} and more"))
        .replace(ADMIN_KEY, &format!("sha256:{ADMIN_KEY}"))
        .replace("keys = [", "keys = [[], ");
    let (is_fine, said) = file(&bad);
    assert!(!is_fine && said.lines().count() >= 3, "{said}");
    check_silent(&said);
}

fn with_canary(mut body: serde_json::Value) -> serde_json::Value {
    body["messages"][0]["content"] = PROMPT.into();
    body["user"] = PROMPT.into();
    body
}
