//! Queued requests, in front of a worker that takes one at a time and responds when the test lets it.

use std::time::Duration;

use http::HeaderValue;
use maitre_base::ClassId;
use maitre_fleet::HealthState;
use maitre_proxy::{Router, RouterSettings, Stopped};
use maitre_queue::Terms;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::fixture::{Client, TestResponse, metric, post, settings, within};
use crate::misbehaviour::router_in_front_of;

const INTERACTIVE: ClassId = ClassId(0);
const STANDARD: ClassId = ClassId(1);
const BATCH: ClassId = ClassId(2);

const SHORT: Duration = Duration::from_millis(150);
/// Less than a usual response takes: 256 tokens, half of them to come, at 10 ms each.
const SOON: Duration = Duration::from_millis(1_400);

/// A request at the worker, which the test answers.
struct WorkerRequest {
    name: String,
    streams: bool,
    stream: TcpStream,
}

impl WorkerRequest {
    async fn answer(mut self) {
        let (kind, body) = match self.streams {
            true => ("text/event-stream", "data: {}\n\ndata: [DONE]\n\n"),
            false => ("application/json", "{}"),
        };
        let length = body.len();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n");
        // The router may have hung up meanwhile.
        let _ = self.stream.write_all(format!("{head}connection: close\r\n\r\n{body}").as_bytes()).await;
    }

    /// Sends the head of a response, and nothing more.
    async fn begin(&mut self) {
        let head =
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        self.stream.write_all(head).await.unwrap();
    }

    /// Waits until the router has closed the connection.
    async fn until_closed(mut self) {
        let mut rest = Vec::new();
        // Reset or ended, it is closed.
        let _ = within(self.stream.read_to_end(&mut rest)).await;
    }
}

/// Reads until the body is complete; None if the connection ends.
async fn body_of(stream: &mut TcpStream) -> Option<Value> {
    let mut seen = Vec::new();
    loop {
        let mut more = [0; 4096];
        let length = stream.read(&mut more).await.ok().filter(|&it| it > 0)?;
        seen.extend_from_slice(&more[..length]);
        if let Ok(body) = serde_json::from_slice(&seen) {
            return Some(body);
        }
    }
}

/// A client on a connection of its own. Dropping it disconnects.
struct Connection(JoinSet<TestResponse>);

impl Connection {
    async fn answer(mut self) -> TestResponse {
        within(self.0.join_next()).await.unwrap().unwrap()
    }
}

/// What a client sends.
#[derive(Clone, Copy)]
struct RequestSpec {
    class: &'static str,
    stream: bool,
    tokens: u32,
    deadline: Option<Duration>,
}

const PLAIN: RequestSpec = RequestSpec { class: "standard", stream: false, tokens: 1, deadline: None };
const STREAM: RequestSpec = RequestSpec { stream: true, ..PLAIN };

struct QueueFixture {
    router: Router,
    asked: mpsc::UnboundedReceiver<WorkerRequest>,
}

/// A router in front of a worker that takes one request at a time.
async fn queue_fixture(change: impl FnOnce(&mut RouterSettings)) -> QueueFixture {
    let mut settings = settings();
    settings.brain.queue.sequences_max = 1;
    change(&mut settings);
    let (sender, asked) = mpsc::unbounded_channel();
    let reply = move |mut stream: TcpStream| {
        let sender = sender.clone();
        async move {
            let Some(body) = body_of(&mut stream).await else { return };
            let name = body["messages"][0]["content"].as_str().unwrap().to_owned();
            let streams = body["stream"].as_bool().unwrap();
            // After the end of the test no response is needed.
            let _ = sender.send(WorkerRequest { name, streams, stream });
        }
    };
    QueueFixture { router: router_in_front_of(reply, settings).await, asked }
}

impl QueueFixture {
    fn client(&self, name: &str, wish: RequestSpec) -> Connection {
        let RequestSpec { class, stream, tokens, deadline } = wish;
        let body = serde_json::json!({
            "model": "m",
            "messages": [{"role": "user", "content": name}],
            "max_tokens": tokens,
            "stream": stream,
            "priority": class,
        });
        let (listen, body) = (self.router.listen(), body.to_string());
        let mut task = JoinSet::new();
        let mut request = post("/v1/chat/completions", body);
        if let Some(deadline) = deadline {
            let millis = HeaderValue::from(deadline.as_millis() as u64);
            request.headers_mut().insert("x-maitre-deadline-ms", millis);
        }
        task.spawn(async move { Client::connect(listen).await.ask(request).await.unwrap() });
        Connection(task)
    }

    /// The next request that reaches the worker, which must be this one.
    async fn asked(&mut self, name: &str) -> WorkerRequest {
        let asked = within(self.asked.recv()).await.unwrap();
        assert_eq!(asked.name, name);
        asked
    }

    async fn until_waiting(&self, class: ClassId, requests: u32) {
        within(self.router.until(|brain| brain.waiting(class).requests == requests)).await;
    }

    async fn until_nothing_is_open(&self) {
        within(self.router.until(|brain| brain.open() == 0)).await;
        let idle = |it: &maitre_fleet::Worker| it.promised == maitre_fleet::backlog::Backlog::default();
        assert!(self.router.look(|brain| brain.fleet().workers().all(idle)), "{}", self.router.metrics());
    }

    fn metric(&self, line: &str) -> f64 {
        metric(&self.router.metrics(), line)
    }
}

fn waited_ms(answer: &TestResponse) -> u64 {
    answer.header("x-maitre-queue-ms").parse().unwrap()
}

#[track_caller]
fn check_refused(answer: &TestResponse, status: u16, code: &str) {
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["code"]), (status, &code.into()));
    assert!(answer.header("retry-after").parse::<u64>().unwrap() >= 1, "{:?}", answer.headers);
}

#[tokio::test]
async fn a_queued_request_is_answered_once_the_worker_is_free() {
    let mut queue_fixture = queue_fixture(|_| {}).await;
    let first = queue_fixture.client("first", PLAIN);
    let taken = queue_fixture.asked("first").await;
    let second = queue_fixture.client("second", STREAM);
    queue_fixture.until_waiting(STANDARD, 1).await;
    assert_eq!(queue_fixture.metric(r#"maitre_queue_requests{class="standard"}"#), 1.0);
    assert!(queue_fixture.metric(r#"maitre_queue_tokens{class="standard"}"#) > 0.0);
    taken.answer().await;
    let first = first.answer().await;
    assert_eq!((first.status.as_u16(), waited_ms(&first)), (200, 0));
    queue_fixture.asked("second").await.answer().await;
    let second = second.answer().await;
    assert_eq!(second.status, 200, "{}", second.text());
    assert!(waited_ms(&second) > 0);
    queue_fixture.until_nothing_is_open().await;
    assert_eq!(queue_fixture.metric(r#"maitre_queue_requests{class="standard"}"#), 0.0);
    assert_eq!(queue_fixture.metric(r#"maitre_queue_seconds_count{class="standard"}"#), 1.0);
}

/// No worker has seen it, so its tenant may send another.
#[tokio::test]
async fn a_request_whose_time_ends_in_the_queue_spends_no_allowance() {
    let mut settings = settings();
    settings.timeouts.total = SHORT;
    settings.brain.queue.others = Terms { requests_per_minute: Some(2), ..Terms::default() };
    // It waits for the first worker of its model, which never comes.
    settings.brain.scaling.idle = Duration::from_mins(1);
    settings.brain.expected_models = vec!["m".to_owned()];
    let router = Router::start(settings).await.unwrap();
    let mut client = Client::connect(router.listen()).await;
    for _ in 0..3 {
        let mut request = post("/v1/completions", r#"{"model":"m","prompt":"x"}"#);
        request.headers_mut().insert("authorization", HeaderValue::from_static("Bearer acme"));
        let answer = client.ask(request).await.unwrap();
        assert_eq!(answer.status, 504, "{}", answer.text());
    }
    assert!(router.look(|brain| brain.open() == 0));
}

#[tokio::test]
async fn requests_behind_a_client_that_disconnects_move_up() {
    let mut queue_fixture = queue_fixture(|_| {}).await;
    let first = queue_fixture.client("first", PLAIN);
    let taken = queue_fixture.asked("first").await;
    let second = queue_fixture.client("second", PLAIN);
    queue_fixture.until_waiting(STANDARD, 1).await;
    let third = queue_fixture.client("third", PLAIN);
    queue_fixture.until_waiting(STANDARD, 2).await;
    drop(second);
    queue_fixture.until_waiting(STANDARD, 1).await;
    taken.answer().await;
    queue_fixture.asked("third").await.answer().await;
    assert_eq!((first.answer().await.status.as_u16(), third.answer().await.status.as_u16()), (200, 200));
    queue_fixture.until_nothing_is_open().await;
    assert_eq!(queue_fixture.metric(r#"maitre_requests_total{route="chat",outcome="gone",code=""}"#), 1.0);
    assert_eq!(queue_fixture.metric(r#"maitre_queue_seconds_count{class="standard"}"#), 2.0);
}

#[tokio::test]
async fn a_client_that_disconnects_as_it_is_placed_keeps_no_placement() {
    let mut queue_fixture = queue_fixture(|it| it.threads = 2).await;
    for _ in 0..50 {
        let first = queue_fixture.client("first", PLAIN);
        // A request whose client disconnected last may still have reached the worker.
        let taken = loop {
            match within(queue_fixture.asked.recv()).await.unwrap() {
                asked if asked.name == "first" => break asked,
                asked => assert_eq!(asked.name, "second"),
            }
        };
        let second = queue_fixture.client("second", PLAIN);
        queue_fixture.until_waiting(STANDARD, 1).await;
        // Placement and disconnect race, in both orders.
        tokio::join!(taken.answer(), async { drop(second) });
        assert_eq!(first.answer().await.status, 200);
        queue_fixture.until_nothing_is_open().await;
    }
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "how long a refusal takes is what it is about")]
async fn a_full_queue_refuses_at_once_with_retry_after() {
    let mut queue_fixture =
        queue_fixture(|it| it.brain.queue.classes[STANDARD.index()].requests_max = 1).await;
    let first = queue_fixture.client("first", PLAIN);
    let taken = queue_fixture.asked("first").await;
    let second = queue_fixture.client("second", PLAIN);
    queue_fixture.until_waiting(STANDARD, 1).await;
    let mut quickest = Duration::MAX;
    for _ in 0..10 {
        let begun = tokio::time::Instant::now();
        let third = queue_fixture.client("third", PLAIN).answer().await;
        quickest = quickest.min(begun.elapsed());
        check_refused(&third, 429, "queue_full");
    }
    // The fastest counts: other tests share these cores.
    assert!(quickest < Duration::from_millis(10), "{quickest:?}");
    taken.answer().await;
    queue_fixture.asked("second").await.answer().await;
    assert_eq!((first.answer().await.status.as_u16(), second.answer().await.status.as_u16()), (200, 200));
    queue_fixture.until_nothing_is_open().await;
    assert_eq!(
        queue_fixture.metric(r#"maitre_queue_refusals_total{class="standard",reason="queue_full"}"#),
        10.0
    );
}

#[tokio::test]
async fn a_deadline_that_passes_in_the_queue_is_a_504_at_once() {
    let mut queue_fixture =
        queue_fixture(|it| it.brain.queue.classes[STANDARD.index()].deadline = Some(SHORT)).await;
    // Its class has no deadline, and it is not answered meanwhile.
    let first = queue_fixture.client("first", RequestSpec { class: "batch", ..PLAIN });
    let taken = queue_fixture.asked("first").await;
    let second = queue_fixture.client("second", STREAM).answer().await;
    check_refused(&second, 504, "deadline");
    let waited = waited_ms(&second);
    assert!((1..400).contains(&waited), "it was queued for {waited} ms");
    taken.answer().await;
    assert_eq!(first.answer().await.status, 200);
    queue_fixture.until_nothing_is_open().await;
    assert_eq!(
        queue_fixture.metric(r#"maitre_queue_refusals_total{class="standard",reason="deadline"}"#),
        1.0
    );
}

#[tokio::test]
async fn an_interactive_request_goes_before_an_earlier_batch_one() {
    let mut queue_fixture = queue_fixture(|_| {}).await;
    let first = queue_fixture.client("first", PLAIN);
    let taken = queue_fixture.asked("first").await;
    let batch = queue_fixture.client("batch", RequestSpec { class: "batch", ..PLAIN });
    queue_fixture.until_waiting(BATCH, 1).await;
    let interactive = queue_fixture.client("interactive", RequestSpec { class: "interactive", ..PLAIN });
    queue_fixture.until_waiting(INTERACTIVE, 1).await;
    taken.answer().await;
    queue_fixture.asked("interactive").await.answer().await;
    queue_fixture.asked("batch").await.answer().await;
    for client in [first, interactive, batch] {
        assert_eq!(client.answer().await.status, 200);
    }
    queue_fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn queued_requests_are_answered_before_a_stopping_router_ends() {
    let mut queue_fixture = queue_fixture(|it| it.timeouts.drain_grace = Duration::ZERO).await;
    let first = queue_fixture.client("first", PLAIN);
    let taken = queue_fixture.asked("first").await;
    let second = queue_fixture.client("second", PLAIN);
    queue_fixture.until_waiting(STANDARD, 1).await;
    let QueueFixture { router, mut asked } = queue_fixture;
    let finish = async {
        taken.answer().await;
        within(asked.recv()).await.unwrap().answer().await;
        (first.answer().await.status.as_u16(), second.answer().await.status.as_u16())
    };
    let (stopped, statuses) = tokio::join!(within(router.stop()), finish);
    assert_eq!((stopped, statuses), (Stopped::Drained, (200, 200)));
}

#[tokio::test]
async fn a_stopping_router_waits_for_its_queue_no_longer_than_for_streams() {
    let mut queue_fixture = queue_fixture(|it| {
        it.timeouts.drain_grace = Duration::ZERO;
        it.timeouts.drain = SHORT;
    })
    .await;
    let _first = queue_fixture.client("first", PLAIN);
    let _taken = queue_fixture.asked("first").await;
    let _second = queue_fixture.client("second", PLAIN);
    queue_fixture.until_waiting(STANDARD, 1).await;
    assert_eq!(within(queue_fixture.router.stop()).await, Stopped::Cut { open: 2 });
}

#[tokio::test]
async fn a_stream_without_its_first_token_at_its_deadline_is_a_504_and_is_aborted() {
    let mut queue_fixture = queue_fixture(|_| {}).await;
    for has_head in [false, true] {
        let client = queue_fixture.client("late", RequestSpec { deadline: Some(SHORT), ..STREAM });
        let mut asked = queue_fixture.asked("late").await;
        if has_head {
            asked.begin().await;
        }
        check_refused(&client.answer().await, 504, "deadline");
        asked.until_closed().await;
        queue_fixture.until_nothing_is_open().await;
    }
    assert_eq!(queue_fixture.metric(r#"maitre_attempts_failed_total{failure="late"}"#), 2.0);
    let ready = |it: &maitre_fleet::Worker| it.health.state() == HealthState::Ready;
    assert!(queue_fixture.router.look(|brain| brain.fleet().workers().all(ready)), "late is not broken");
}

#[tokio::test]
async fn a_batch_request_is_recalled_for_an_urgent_one_and_neither_client_notices() {
    let mut queue_fixture = queue_fixture(|it| it.brain.queue.recall = true).await;
    // A response too long to wait for.
    let batch =
        queue_fixture.client("batch", RequestSpec { class: "batch", stream: true, tokens: 100_000, ..PLAIN });
    let recalled = queue_fixture.asked("batch").await;
    let urgent =
        queue_fixture.client("urgent", RequestSpec { class: "interactive", deadline: Some(SOON), ..STREAM });
    let taken = queue_fixture.asked("urgent").await;
    recalled.until_closed().await;
    taken.answer().await;
    let urgent = urgent.answer().await;
    assert_eq!(urgent.status, 200, "{}", urgent.text());
    queue_fixture.asked("batch").await.answer().await;
    let batch = batch.answer().await;
    assert_eq!(batch.status, 200, "{}", batch.text());
    assert!(waited_ms(&batch) > 0);
    queue_fixture.until_nothing_is_open().await;
    assert_eq!(queue_fixture.metric("maitre_recalls_total"), 1.0);
    assert!(
        !queue_fixture.router.metrics().contains("maitre_attempts_failed_total{"),
        "a recall is no failure"
    );
}

#[tokio::test]
async fn a_recall_during_the_first_byte_harms_no_request() {
    for turn in 0..40 {
        // A new router each time: one that has seen such short responses recalls no request for them.
        let mut queue_fixture = queue_fixture(|it| {
            it.brain.queue.recall = true;
            it.threads = 2;
        })
        .await;
        let batch = queue_fixture
            .client("batch", RequestSpec { class: "batch", stream: true, tokens: 100_000, ..PLAIN });
        let taken = queue_fixture.asked("batch").await;
        let urgent = queue_fixture
            .client("urgent", RequestSpec { class: "interactive", deadline: Some(SOON), ..STREAM });
        // Response and recall race, in both orders.
        for _ in 0..turn {
            tokio::task::yield_now().await;
        }
        taken.answer().await;
        let worker = async {
            while let Some(asked) = queue_fixture.asked.recv().await {
                asked.answer().await;
            }
        };
        let clients = async { [batch.answer().await, urgent.answer().await] };
        let answers = tokio::select! {
            () = worker => unreachable!("the worker is there as long as the queue_fixture is"),
            answers = clients => answers,
        };
        for answer in answers {
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
        }
        queue_fixture.until_nothing_is_open().await;
        assert!(
            !queue_fixture.router.metrics().contains("maitre_attempts_failed_total{"),
            "a recall is no failure"
        );
    }
}
