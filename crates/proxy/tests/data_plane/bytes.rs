//! Requests and responses pass unchanged, byte for byte.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use maitre_base::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::fixture::{ANYWHERE, Client, chat, engine_settings, fixture_with, post, settings, within};
use maitre_proxy::Router;

/// A valid chat request as no serializer writes it: spaces everywhere, unknown fields, numbers that fit no machine type,
/// repeated keys that only the engine reads, every way to escape a character.
fn odd_request(rng: &mut Rng) -> String {
    let space = |rng: &mut Rng| ["", " ", "\n", "\t ", "\r\n"][rng.below(5)].to_owned();
    let content =
        ["\\u00e9\\n\\\"quoted\\\"", "日本語 \\ud83d\\ude00", "a/b\\/c", "", "\\t tab"][rng.below(5)];
    let mut fields = vec![
        "\"model\":\"maitre-sim\"".to_owned(),
        format!("\"messages\":[{{\"content\":\"{content} {}\",\"role\":\"user\"}}]", rng.next_u64()),
        format!("\"max_tokens\":{}", 1 + rng.below(3)),
    ];
    let oddities = [
        "\"temperature\":0.70000000000000000000001",
        "\"seed\":123456789012345678901234567890",
        "\"unknown\":{\"deep\":[[[{\"a\":null}]]],\"b\":[true,false]}",
        "\"logit_bias\":{\"50256\":-1e2}",
        "\"min_tokens\":1",
        "\"label\":\"\\u0000\"",
        "\"labels\":{\"k\":\"v\",\"k\":\"w\"}",
        "\"stop\":[]",
        "\"top_p\":1E0",
    ];
    for _ in 0..rng.below(5) {
        fields.push(oddities[rng.below(oddities.len())].to_owned());
    }
    for index in (1..fields.len()).rev() {
        fields.swap(index, rng.below(index + 1));
    }
    let separator = format!("{},{}", space(rng), space(rng));
    format!("{}{{{}{}{}}}{}", space(rng), space(rng), fields.join(&separator), space(rng), space(rng))
}

#[tokio::test]
async fn a_thousand_odd_bodies_reach_the_worker_unchanged() {
    let engine = maitre_sim::http::HostConfig { bodies_max: 1_000, ..engine_settings() };
    let fixture = fixture_with(1, engine, settings()).await;
    let mut client = fixture.client().await;
    let mut rng = Rng::new(2);
    let mut sent = Vec::new();
    for _ in 0..1_000 {
        let body = odd_request(&mut rng);
        let answer = client.post("/v1/chat/completions", body.clone()).await;
        assert_eq!(answer.status, 200, "{body}: {}", answer.text());
        sent.push(body);
    }
    let received = fixture.engines[0].handle().bodies();
    assert_eq!(received.len(), 1_000);
    for (sent, received) in sent.iter().zip(&received) {
        assert_eq!(sent.as_bytes(), &received.body[..]);
    }
}

/// A worker that answers every POST with one script: the head, then these chunks, each in its own write.
pub(crate) async fn scripted(head: &'static str, pieces: Vec<Vec<u8>>) -> std::net::SocketAddr {
    let listener = TcpListener::bind(ANYWHERE).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let mut connections = tokio::task::JoinSet::new();
    connections.spawn(async move {
        let mut served = tokio::task::JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let pieces = pieces.clone();
            served.spawn(async move {
                let mut seen = Vec::new();
                while stream.read_buf(&mut seen).await.is_ok_and(|count| count > 0) {
                    let Some(end) = seen.windows(4).position(|it| it == b"\r\n\r\n") else { continue };
                    let text = String::from_utf8_lossy(&seen[..end]).to_lowercase();
                    let length = text
                        .split("content-length: ")
                        .nth(1)
                        .map_or(0, |it| it.lines().next().unwrap().trim().parse::<usize>().unwrap());
                    if seen.len() < end + 4 + length {
                        continue;
                    }
                    seen.drain(..end + 4 + length);
                    let written = if text.starts_with("get") {
                        stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await
                    } else {
                        play(&mut stream, head, &pieces).await
                    };
                    if written.is_err() {
                        return;
                    }
                }
            });
        }
    });
    // Lives as long as the test's runtime.
    connections.detach_all();
    addr
}

async fn play(stream: &mut tokio::net::TcpStream, head: &str, pieces: &[Vec<u8>]) -> std::io::Result<()> {
    stream.write_all(head.as_bytes()).await?;
    for piece in pieces {
        stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await?;
        stream.write_all(piece).await?;
        stream.write_all(b"\r\n").await?;
        tokio::task::yield_now().await;
    }
    stream.write_all(b"0\r\n\r\n").await
}

/// A router before one such worker, ready.
async fn router_in_front_of(worker: std::net::SocketAddr) -> Router {
    let mut settings = settings();
    settings.workers = vec![format!("http://{worker}").parse().unwrap()];
    let router = Router::start(settings).await.unwrap();
    within(router.until(|brain| brain.fleet().workers().all(is_ready))).await;
    router
}

fn is_ready(worker: &maitre_fleet::Worker) -> bool {
    worker.health.state() == maitre_fleet::HealthState::Ready
}

fn head(path: &str) -> Request<Full<Bytes>> {
    Request::head(path).header("host", "maitre").body(Full::default()).unwrap()
}

const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\nx-odd: kept\r\n\r\n";

#[tokio::test]
async fn streams_cut_anywhere_reach_the_client_unchanged() {
    let mut rng = Rng::new(3);
    for round in 0..40 {
        let mut whole = Vec::new();
        for event in 0..rng.below(60) {
            let text: String =
                (0..rng.below(200)).map(|_| ['x', '"', 'é', '{', '日'][rng.below(5)]).collect();
            whole.extend_from_slice(
                format!(": note\ndata: {{\"n\":{event},\"t\":{text:?}}}\r\n\r\n").as_bytes(),
            );
        }
        whole.extend_from_slice(b"data: [DONE]\n\n");
        let mut pieces = Vec::new();
        let mut rest = &whole[..];
        while !rest.is_empty() {
            let (piece, left) = rest.split_at(1 + rng.below(rest.len().min(300)));
            pieces.push(piece.to_vec());
            rest = left;
        }
        let router = router_in_front_of(scripted(STREAM, pieces).await).await;
        let mut client = Client::connect(router.listen()).await;
        for _ in 0..3 {
            let answer = client.post("/v1/chat/completions", chat(1, true)).await;
            assert_eq!((answer.status.as_u16(), answer.header("x-odd")), (200, "kept"));
            assert_eq!(answer.body, whole, "round {round}");
        }
    }
}

#[tokio::test]
async fn a_stream_without_its_end_mark_is_incomplete() {
    let event = b"data: {\"n\":1}\n\n".to_vec();
    for pieces in [vec![event.clone()], vec![event.clone(), event.clone()], vec![b"data: {\"n\"".to_vec()]] {
        let sent = pieces.concat();
        let router = router_in_front_of(scripted(STREAM, pieces).await).await;
        let answer = Client::connect(router.listen()).await.post("/v1/chat/completions", chat(1, true)).await;
        let error = answer.text().split_off(sent.len());
        assert!(answer.body.starts_with(&sent) && error.contains("worker_failed"), "{}", answer.text());
    }
}

#[tokio::test]
async fn a_stream_of_nothing_is_a_failure_before_the_first_byte() {
    let router = router_in_front_of(scripted(STREAM, Vec::new()).await).await;
    let answer = Client::connect(router.listen()).await.post("/v1/chat/completions", chat(1, true)).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["code"]), (502, &"worker_failed".into()));
}

#[tokio::test]
async fn a_workers_own_error_event_is_not_doubled() {
    let event = b"data: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\n".to_vec();
    let router = router_in_front_of(scripted(STREAM, vec![event.clone()]).await).await;
    let answer = Client::connect(router.listen()).await.post("/v1/chat/completions", chat(1, true)).await;
    assert_eq!(answer.body, event);
}

#[tokio::test]
async fn an_error_in_the_form_of_events_is_passed_on_as_it_came() {
    const REFUSED: &str =
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let event = b"data: {\"error\":{\"message\":\"no\"}}\n\ndata: {}\n\n".to_vec();
    let router = router_in_front_of(scripted(REFUSED, vec![event.clone()]).await).await;
    let answer = Client::connect(router.listen()).await.post("/v1/chat/completions", chat(1, true)).await;
    assert_eq!((answer.status.as_u16(), answer.body), (400, event.into()));
    let state = router.look(|brain| brain.fleet().workers().next().unwrap().health.state());
    assert_eq!(state, maitre_fleet::HealthState::Ready);
}

#[tokio::test]
async fn an_error_without_events_and_a_response_to_head_are_no_broken_streams() {
    let refused =
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    for (request, head, expected) in
        [(post("/v1/chat/completions", chat(1, true)), refused, 400), (head("/events"), STREAM, 200)]
    {
        let mut settings = settings();
        settings.passthrough = vec!["/events".to_owned()];
        settings.workers = vec![format!("http://{}", scripted(head, Vec::new()).await).parse().unwrap()];
        let router = Router::start(settings).await.unwrap();
        within(router.until(|brain| brain.fleet().workers().all(is_ready))).await;
        let answer = Client::connect(router.listen()).await.ask(request).await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.body.len()), (expected, 0));
        assert!(router.look(|brain| brain.fleet().workers().all(is_ready)), "{expected}");
    }
}

#[tokio::test]
async fn a_stream_is_known_however_its_type_is_written() {
    const SHOUTED: &str =
        "HTTP/1.1 200 OK\r\ncontent-type: Text/Event-Stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let router = router_in_front_of(scripted(SHOUTED, vec![b"data: {}\n\n".to_vec()]).await).await;
    let answer = Client::connect(router.listen()).await.post("/v1/chat/completions", chat(1, true)).await;
    assert!(answer.text().contains("worker_failed"), "{}", answer.text());
}

#[tokio::test]
async fn a_large_response_keeps_its_length_and_its_bytes() {
    let fixture = fixture_with(1, engine_settings(), settings()).await;
    let body = r#"{"model":"maitre-sim","prompt":"long","max_tokens":4000,"ignore_eos":true}"#;
    let mut direct = Client::connect(fixture.engines[0].addr()).await;
    let (through, straight) = (
        fixture.client().await.post("/v1/completions", body).await,
        direct.post("/v1/completions", body).await,
    );
    assert_eq!(through.header("content-length"), straight.header("content-length"));
    assert_eq!(through.json()["choices"], straight.json()["choices"]);
}
