//! The other ways to hand KV cache over, in front of workers that answer by a script: what each leg gets, and what the client
//! gets.

use std::net::SocketAddr;
use std::sync::Arc;

use maitre_policy::split::SplitRule;
use maitre_proxy::Router;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::fixture::{ANYWHERE, Client, TestResponse, metric, settings, within};

/// A request as a worker got it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) head: String,
    pub(crate) body: Value,
}

impl Seen {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|it| it.split_once(": "));
        lines.find(|it| it.0.eq_ignore_ascii_case(name)).map(|it| it.1)
    }
}

/// A worker that answers every POST with what a function makes of its body, and GETs of one path with a text.
pub(crate) struct Scripted {
    pub(crate) addr: SocketAddr,
    pub(crate) seen: Arc<Mutex<Vec<Seen>>>,
    _task: JoinSet<()>,
}

#[derive(Clone, Copy)]
pub(crate) struct Script {
    pub(crate) reply: fn(&Value) -> (u16, String),
    pub(crate) query: &'static str,
}

impl Scripted {
    pub(crate) async fn start(script: Script) -> Scripted {
        let listener = TcpListener::bind(ANYWHERE).await.unwrap();
        let (addr, seen) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<Seen>>>::default());
        let (mut task, shared) = (JoinSet::new(), seen.clone());
        task.spawn(async move {
            let mut served = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                served.spawn(serve(stream, script, shared.clone()));
            }
        });
        Scripted { addr, seen, _task: task }
    }

    fn last(&self) -> Seen {
        self.seen.lock().last().unwrap().clone()
    }
}

async fn serve(mut stream: TcpStream, script: Script, seen: Arc<Mutex<Vec<Seen>>>) {
    let mut buffer = Vec::new();
    loop {
        let Some(end) = buffer.windows(4).position(|it| it == b"\r\n\r\n") else {
            if stream.read_buf(&mut buffer).await.unwrap_or(0) == 0 {
                return;
            }
            continue;
        };
        let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
        buffer.drain(..end + 4);
        let length = Seen { head: head.clone(), body: Value::Null };
        let length: usize = length.header("content-length").map_or(0, |it| it.parse().unwrap());
        while buffer.len() < length {
            if stream.read_buf(&mut buffer).await.unwrap_or(0) == 0 {
                return;
            }
        }
        let body: Vec<u8> = buffer.drain(..length).collect();
        let (status, text) = if head.starts_with("POST") {
            let body: Value = serde_json::from_slice(&body).unwrap();
            seen.lock().push(Seen { head, body: body.clone() });
            (script.reply)(&body)
        } else if head.starts_with("GET /query ") {
            (200, script.query.to_owned())
        } else if head.starts_with("GET /health ") {
            (200, String::new())
        } else if head.starts_with("GET /v1/models ") {
            (200, r#"{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm"}]}"#.to_owned())
        } else {
            (404, String::new())
        };
        let kind = if text.starts_with("data:") { "text/event-stream" } else { "application/json" };
        let answer = format!(
            "HTTP/1.1 {status} OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{text}",
            text.len()
        );
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

const CHAT: &str =
    r#"{"model":"m","messages":[{"role":"user","content":"Hi"}],"max_tokens":9,"unknown":{"kept":true}}"#;

const ANSWER: &str = r#"{"id":"d","choices":[{"index":0,"message":{"role":"assistant","content":"Hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":1}}"#;

fn decode(_: &Value) -> (u16, String) {
    (200, ANSWER.to_owned())
}

fn plain_prefill(_: &Value) -> (u16, String) {
    (200, ANSWER.replace("Hello", "He"))
}

/// A pair of scripted workers of one style, behind a router that splits all.
struct Pair {
    prefill: Scripted,
    decode: Scripted,
    router: Router,
}

impl Pair {
    async fn start(prefill: Script, options: impl Fn(SocketAddr) -> String, style: &str) -> Pair {
        let prefill = Scripted::start(prefill).await;
        let decode = Scripted::start(Script { reply: decode, query: "" }).await;
        let mut settings = settings();
        settings.brain.split = SplitRule::Always;
        settings.workers = vec![
            format!("http://{}?role=prefill&transfer={style}{}", prefill.addr, options(prefill.addr))
                .parse()
                .unwrap(),
            format!("http://{}?role=decode&transfer={style}", decode.addr).parse().unwrap(),
        ];
        let router = Router::start(settings).await.unwrap();
        within(router.until_all_ready()).await;
        Pair { prefill, decode, router }
    }

    async fn ask(&self, body: &str) -> TestResponse {
        let mut client = Client::connect(self.router.listen()).await;
        within(client.post("/v1/chat/completions", body.to_owned())).await
    }

    /// Asks, and returns what both legs got.
    async fn legs(&self) -> (Seen, Seen) {
        let answer = self.ask(CHAT).await;
        assert_eq!((answer.status.as_u16(), answer.text().as_str()), (200, ANSWER));
        (self.prefill.last(), self.decode.last())
    }
}

/// The client's body with one more field.
fn with(field: &str, value: &Value) -> Value {
    let mut body: Value = serde_json::from_str(CHAT).unwrap();
    body[field] = value.clone();
    body
}

/// The same, asking for one token.
fn one_token(params: &Value) -> Value {
    let mut body = with("kv_transfer_params", params);
    (body["max_tokens"], body["stream"]) = (json!(1), json!(false));
    body
}

#[tokio::test]
async fn a_mooncake_worker_is_asked_for_its_engine_and_both_legs_get_one_id() {
    let query = r#"{"0":{"engine_id":"e-7","worker_addr":{}}}"#;
    let script = Script { reply: plain_prefill, query };
    let pair = Pair::start(script, |addr| format!("&bootstrap={}", addr.port()), "mooncake").await;
    let (prefill, decode) = pair.legs().await;
    let id = prefill.body["kv_transfer_params"]["transfer_id"].clone();
    assert!(id.as_str().unwrap().starts_with("xfer-maitre-"), "{id}");
    let params = json!({"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": id});
    assert_eq!(prefill.body, one_token(&params));
    let params = json!({
        "do_remote_decode": false,
        "do_remote_prefill": true,
        "transfer_id": id,
        "remote_bootstrap_addr": format!("http://{}", pair.prefill.addr),
        "remote_engine_id": "e-7",
    });
    assert_eq!(decode.body, with("kv_transfer_params", &params));
    let (second, _) = pair.legs().await;
    assert_ne!(second.body["kv_transfer_params"]["transfer_id"], id);
}

#[tokio::test]
async fn a_worker_that_pushes_is_named_to_the_decode_worker_under_an_id_of_both() {
    let script = Script { reply: plain_prefill, query: "" };
    let pair =
        Pair::start(script, |_| "&bootstrap=5600&engine-id=prefill-1&tp=2".to_owned(), "nixl-push").await;
    let (prefill, decode) = pair.legs().await;
    let none = json!({
        "do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
        "remote_block_ids": null, "remote_host": null, "remote_port": null,
    });
    assert_eq!(prefill.body, one_token(&none));
    let id = decode.header("x-request-id").unwrap();
    assert_eq!(prefill.header("x-request-id"), Some(id));
    let params = json!({
        "do_remote_prefill": true, "do_remote_decode": false, "remote_engine_id": "prefill-1",
        "remote_host": "127.0.0.1", "remote_port": 5600, "tp_size": 2, "pp_size": 1, "remote_request_id": id,
    });
    assert_eq!(decode.body, with("kv_transfer_params", &params));
}

/// vLLM gives each data-parallel rank an id and a side channel of its own.
#[tokio::test]
async fn a_rank_that_pushes_is_named_as_vllm_names_it() {
    let script = Script { reply: plain_prefill, query: "" };
    let options = |_| "&bootstrap=5600&engine-id=prefill-1&ranks=2".to_owned();
    let pair = Pair::start(script, options, "nixl-push").await;
    for _ in 0..4 {
        let (prefill, decode) = pair.legs().await;
        let rank: u64 = prefill.header("x-data-parallel-rank").unwrap().parse().unwrap();
        let params = &decode.body["kv_transfer_params"];
        assert_eq!(params["remote_engine_id"], format!("prefill-1_dp{rank}"));
        assert_eq!(params["remote_port"], 5600 + rank);
    }
}

#[tokio::test]
async fn workers_that_share_a_store_need_no_parameters() {
    let script = Script { reply: plain_prefill, query: "" };
    let pair = Pair::start(script, |_| String::new(), "store").await;
    let (prefill, decode) = pair.legs().await;
    let mut expected = one_token(&Value::Null);
    expected.as_object_mut().unwrap().remove("kv_transfer_params");
    assert_eq!(prefill.body, expected);
    assert_eq!(decode.body, serde_json::from_str::<Value>(CHAT).unwrap());
}

/// A context worker, whose answer ends by itself if the prompt asks for that.
fn context(body: &Value) -> (u16, String) {
    let id = &body["disaggregated_params"]["disagg_request_id"];
    let reason = if body["messages"][0]["content"] == "End" { "stop" } else { "length" };
    let answer = json!({
        "id": "c", "object": "chat.completion",
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": "He"},
            "finish_reason": reason,
            "disaggregated_params": {
                "request_type": "context_only", "ctx_request_id": 3, "disagg_request_id": id,
                "encoded_opaque_state": "AAA=", "unknown": [1],
            },
        }],
        "prompt_token_ids": [1, 2, 3],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    });
    (200, answer.to_string())
}

#[tokio::test]
async fn a_context_worker_hands_its_state_and_the_tokens_over() {
    let pair = Pair::start(Script { reply: context, query: "" }, |_| String::new(), "tensorrt-llm").await;
    let (prefill, decode) = pair.legs().await;
    let id = prefill.body["disaggregated_params"]["disagg_request_id"].clone();
    assert!(id.as_i64().unwrap() >= 1 << 40);
    let mut expected =
        with("disaggregated_params", &json!({"request_type": "context_only", "disagg_request_id": id}));
    expected["stream"] = json!(false);
    assert_eq!(prefill.body, expected);
    let params = json!({
        "request_type": "generation_only", "ctx_request_id": 3, "disagg_request_id": id,
        "encoded_opaque_state": "AAA=", "unknown": [1],
    });
    let mut expected = with("disaggregated_params", &params);
    expected["prompt_token_ids"] = json!([1, 2, 3]);
    assert_eq!(decode.body, expected);
}

#[tokio::test]
async fn an_answer_that_the_context_worker_completes_is_the_clients() {
    let pair = Pair::start(Script { reply: context, query: "" }, |_| String::new(), "tensorrt-llm").await;
    let ending = CHAT.replace("Hi", "End");
    let whole = pair.ask(&ending).await;
    assert_eq!(whole.status, 200);
    let choice = &whole.json()["choices"][0];
    assert_eq!(
        (&choice["message"]["content"], &choice["disaggregated_params"]),
        (&json!("He"), &Value::Null)
    );
    let streaming = ending.replacen('{', r#"{"stream":true,"stream_options":{"include_usage":true},"#, 1);
    let stream = pair.ask(&streaming).await;
    assert_eq!(stream.header("content-type"), "text/event-stream; charset=utf-8");
    let events: Vec<String> = stream.text().split_terminator("\n\n").map(str::to_owned).collect();
    assert_eq!((events.len(), events[2].as_str()), (3, "data: [DONE]"), "{events:?}");
    assert!(events[0].contains(r#""content":"He""#) && events[1].contains(r#""usage":{"#), "{events:?}");
    assert!(pair.decode.seen.lock().is_empty());
}

#[tokio::test]
async fn a_prefill_worker_that_fails_leaves_the_request_to_the_other_alone() {
    let script = Script { reply: |_| (500, String::new()), query: r#"{"0":{"engine_id":"e"}}"# };
    for style in ["mooncake", "nixl-push", "tensorrt-llm", "store"] {
        let bootstrap = |addr: SocketAddr| match style {
            "mooncake" => format!("&bootstrap={}", addr.port()),
            "nixl-push" => "&engine-id=e".to_owned(),
            _ => String::new(),
        };
        let pair = Pair::start(script, bootstrap, style).await;
        let answer = pair.ask(CHAT).await;
        assert_eq!((answer.status.as_u16(), answer.text().as_str()), (200, ANSWER), "{style}");
        let page = pair.router.metrics();
        // Where both legs run at once, the other may have answered before.
        if matches!(style, "tensorrt-llm" | "store") {
            assert_eq!(metric(&page, r#"maitre_prefill_legs_total{outcome="failed"}"#), 1.0, "{style}");
        }
    }
}
