//! Bytes on which two servers could disagree, from clients and from workers, as data (`desync/*.txt`): nothing is smuggled past the
//! router, and no answer shifts to another request.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use maitre_fleet::HealthState;
use maitre_proxy::{Router, RouterSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::fixture::{ANYWHERE, Client, settings, within};

/// Name, what is expected, and the bytes.
fn cases(data: &str, replace: &[(&str, String)]) -> Vec<(String, String, Vec<u8>)> {
    let without_comments: String =
        data.lines().filter(|it| !it.starts_with('#')).map(|it| format!("{it}\n")).collect();
    let mut cases = Vec::new();
    for case in without_comments.split("== ").skip(1) {
        let (head, text) = case.split_once('\n').unwrap();
        let (name, expected) = head.split_once(" -> ").unwrap();
        let mut text = text.replace('\n', "");
        for (key, value) in replace {
            text = text.replace(&format!("{{{key}}}"), value);
        }
        cases.push((name.to_owned(), expected.to_owned(), unescape(&text)));
    }
    assert!(cases.len() > 10);
    cases
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.chars();
    while let Some(it) = rest.next() {
        match it {
            '\\' => bytes.push(match rest.next().unwrap() {
                'r' => b'\r',
                'n' => b'\n',
                '0' => 0,
                'x' => u8::from_str_radix(&rest.by_ref().take(2).collect::<String>(), 16).unwrap(),
                other => panic!("\\{other}"),
            }),
            it => bytes.extend_from_slice(it.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

fn body(prompt: &str) -> String {
    format!(r#"{{"model":"maitre-sim","prompt":"{prompt}"}}"#)
}

/// A request with escapes, as in the data.
fn request(prompt: &str, more: &str) -> String {
    let body = body(prompt);
    format!(
        "POST /v1/completions HTTP/1.1\\r\\nhost: m\\r\\n{more}content-length: {}\\r\\n\\r\\n{body}",
        body.len()
    )
}

/// One request off a connection: whether it is a POST, and its prompt.
async fn receive(stream: &mut TcpStream) -> Option<(bool, String)> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).await.ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).to_lowercase();
    assert!(!head.contains("transfer-encoding"), "bodies are sent with their length: {head}");
    let length = head.split("content-length: ").nth(1).and_then(|it| it.lines().next()?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    let body = String::from_utf8_lossy(&body).into_owned();
    let prompt = body.split(r#""prompt":""#).nth(1).and_then(|it| it.split('"').next());
    Some((head.starts_with("post"), prompt.unwrap_or(&body).to_owned()))
}

/// A router in front of one worker, which writes what `answer` returns for the prompt of each POST.
async fn router(
    mut settings: RouterSettings,
    answer: impl Fn(&str) -> Vec<u8> + Clone + Send + 'static,
) -> Router {
    let listener = TcpListener::bind(ANYWHERE).await.unwrap();
    settings.workers = vec![format!("http://{}", listener.local_addr().unwrap()).parse().unwrap()];
    let mut worker = JoinSet::new();
    worker.spawn(async move {
        let mut served = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = answer.clone();
            served.spawn(async move {
                while let Some((is_post, prompt)) = receive(&mut stream).await {
                    let bytes = if is_post {
                        answer(&prompt)
                    } else {
                        b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec()
                    };
                    let _ = stream.write_all(&bytes).await;
                }
            });
        }
    });
    worker.detach_all();
    let router = Router::start(settings).await.unwrap();
    let ready = |it: &maitre_fleet::Worker| it.health.state() == HealthState::Ready;
    within(router.until(|brain| brain.fleet().workers().all(ready))).await;
    router
}

fn ok(text: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len()).into_bytes()
}

#[tokio::test]
async fn no_request_is_smuggled_past_the_router() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let mut settings = settings();
    // A request that never completes is given up soon.
    settings.timeouts.client_body = Duration::from_millis(300);
    settings.timeouts.client_header = Duration::from_millis(300);
    let router = router(settings, move |prompt| {
        log.lock().unwrap().push(prompt.to_owned());
        ok("{}")
    })
    .await;
    let one = body("one");
    let replace = [
        ("length", one.len().to_string()),
        ("hex", format!("{:x}", one.len())),
        ("chunked", format!("{:x}\\r\\n{one}\\r\\n0\\r\\n\\r\\n", one.len())),
        ("smuggled", request("smuggled", "")),
        ("one", one),
    ];
    let mut wrong = Vec::new();
    for (name, expected, mut bytes) in cases(include_str!("desync/client.txt"), &replace) {
        bytes.extend_from_slice(&unescape(&request("ping", "connection: close\\r\\n")));
        let mut stream = TcpStream::connect(router.listen()).await.unwrap();
        let (mut answer, _) = (Vec::new(), stream.write_all(&bytes).await);
        // The router closes: after the last answer, or because it cannot go on.
        let _ = within(stream.read_to_end(&mut answer)).await;
        let prompts = std::mem::take(&mut *seen.lock().unwrap()).join(" ");
        let prompts = if prompts.is_empty() { "none".to_owned() } else { prompts };
        if prompts != expected {
            wrong.push(format!("{name}: {prompts}, not {expected}: {}", String::from_utf8_lossy(&answer)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn no_answer_shifts_to_another_request() {
    let replace = [("ok", "HTTP/1.1 200 OK\\r\\ncontent-length: 7\\r\\n\\r\\nshifted".to_owned())];
    for (name, expected, bytes) in cases(include_str!("desync/worker.txt"), &replace) {
        let router = router(settings(), move |prompt| match prompt {
            "one" => bytes.clone(),
            other => ok(other),
        })
        .await;
        let mut client = Client::connect(router.listen()).await;
        let first = within(client.post("/v1/completions", body("one"))).await;
        assert_eq!(first.status.as_u16().to_string(), expected, "{name}: {}", first.text());
        assert!(
            !first.text().contains("shifted") && !first.text().contains("more"),
            "{name}: {}",
            first.text()
        );
        for prompt in ["two", "three"] {
            let mut client = Client::connect(router.listen()).await;
            let next = within(client.post("/v1/completions", body(prompt))).await;
            if next.status == 200 {
                assert_eq!(next.text(), prompt, "{name}");
            }
        }
    }
}

/// One frame of HTTP/2 on stream `stream`.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    [&length.to_be_bytes()[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// A header as HPACK's literal without indexing, which says exactly these bytes.
fn literal(name: &[u8], value: &[u8]) -> Vec<u8> {
    assert!(name.len() < 127 && value.len() < 127);
    [&[0, name.len() as u8], name, &[value.len() as u8], value].concat()
}

/// Sends a request with these headers, and waits for a word about its stream or the connection.
async fn ask_http2(stream: &mut TcpStream, headers: &[(Vec<u8>, Vec<u8>)], body: &str) {
    const HEADERS: u8 = 1;
    const RESET: u8 = 3;
    const SETTINGS: u8 = 4;
    const GO_AWAY: u8 = 7;
    let block: Vec<u8> = headers.iter().flat_map(|(name, value)| literal(name, value)).collect();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    bytes.extend(frame(HEADERS, 4, 1, &block));
    bytes.extend(frame(0, 1, 1, body.as_bytes()));
    let _ = stream.write_all(&bytes).await;
    let mut head = [0; 9];
    while stream.read_exact(&mut head).await.is_ok() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        if stream.read_exact(&mut payload).await.is_err() || [HEADERS, RESET, GO_AWAY].contains(&head[3]) {
            return;
        }
    }
}

#[tokio::test]
async fn nothing_is_smuggled_from_http2_into_http1() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let router = router(settings(), move |prompt| {
        log.lock().unwrap().push(prompt.to_owned());
        ok("{}")
    })
    .await;
    let one = body("one");
    let plain = [(":method", "POST"), (":scheme", "http"), (":authority", "m"), (":path", "/v1/completions")];
    let mut wrong = Vec::new();
    for (name, expected, bytes) in
        cases(include_str!("desync/http2.txt"), &[("length", one.len().to_string()), ("one", one.clone())])
    {
        let mut headers: Vec<(Vec<u8>, Vec<u8>)> =
            plain.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect();
        for line in bytes.split(|&it| it == b'|') {
            let at = line.windows(2).rposition(|it| it == b": ").unwrap();
            // A value may contain a colon of its own; names of pseudo-headers begin with one.
            let at = line[1..].windows(2).position(|it| it == b": ").map_or(at, |it| it + 1);
            let added = (line[..at].to_vec(), line[at + 2..].to_vec());
            match headers.iter_mut().find(|it| it.0 == added.0 && it.0.starts_with(b":")) {
                Some(header) => *header = added,
                None => headers.push(added),
            }
        }
        let mut stream = TcpStream::connect(router.listen()).await.unwrap();
        within(ask_http2(&mut stream, &headers, &one)).await;
        let prompts = std::mem::take(&mut *seen.lock().unwrap()).join(" ");
        let prompts = if prompts.is_empty() { "none".to_owned() } else { prompts };
        if prompts != expected {
            wrong.push(format!("{name}: {prompts}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
