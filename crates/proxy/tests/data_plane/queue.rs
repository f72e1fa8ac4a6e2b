//! Requests that stand in line, before a worker that takes one at a time and answers when it is told to.

use std::time::Duration;

use http::HeaderValue;
use maitre_base::ClassId;
use maitre_fleet::HealthState;
use maitre_proxy::{Router, Settings, Stopped};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::disorder::router_before;
use crate::table::{Answer, Client, metric, post, settings, within};

const INTERACTIVE: ClassId = ClassId(0);
const STANDARD: ClassId = ClassId(1);
const BATCH: ClassId = ClassId(2);

const SHORT: Duration = Duration::from_millis(150);
/// Less than the answers that engines usually give take: 256 tokens, half of them to come, at 10 ms each.
const SOON: Duration = Duration::from_millis(1_400);

/// A request at the worker, which does with it what the test wants.
struct Asked {
    name: String,
    streams: bool,
    stream: TcpStream,
}

impl Asked {
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

    /// Sends the head of an answer, and nothing more.
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

/// Reads until it has a whole body; none if it breaks off.
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

/// A client on a connection of its own. Dropped, it leaves.
struct Connection(JoinSet<Answer>);

impl Connection {
    async fn answer(mut self) -> Answer {
        within(self.0.join_next()).await.unwrap().unwrap()
    }
}

/// What a guest asks for.
#[derive(Clone, Copy)]
struct Wish {
    class: &'static str,
    stream: bool,
    tokens: u32,
    deadline: Option<Duration>,
}

const PLAIN: Wish = Wish { class: "standard", stream: false, tokens: 1, deadline: None };
const STREAM: Wish = Wish { stream: true, ..PLAIN };

struct Room {
    router: Router,
    asked: mpsc::UnboundedReceiver<Asked>,
}

/// A router before a worker that takes one request at a time.
async fn room(change: impl FnOnce(&mut Settings)) -> Room {
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
            // Whoever is not asked for any more needs no answer.
            let _ = sender.send(Asked { name, streams, stream });
        }
    };
    Room { router: router_before(reply, settings).await, asked }
}

impl Room {
    fn guest(&self, name: &str, wish: Wish) -> Connection {
        let Wish { class, stream, tokens, deadline } = wish;
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
    async fn asked(&mut self, name: &str) -> Asked {
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

fn waited_ms(answer: &Answer) -> u64 {
    answer.header("x-maitre-queue-ms").parse().unwrap()
}

#[track_caller]
fn check_refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["code"]), (status, &code.into()));
    assert!(answer.header("retry-after").parse::<u64>().unwrap() >= 1, "{:?}", answer.headers);
}

#[tokio::test]
async fn who_finds_the_worker_taken_is_answered_once_it_is_free() {
    let mut room = room(|_| {}).await;
    let first = room.guest("first", PLAIN);
    let taken = room.asked("first").await;
    let second = room.guest("second", STREAM);
    room.until_waiting(STANDARD, 1).await;
    assert_eq!(room.metric(r#"maitre_queue_requests{class="standard"}"#), 1.0);
    assert!(room.metric(r#"maitre_queue_tokens{class="standard"}"#) > 0.0);
    taken.answer().await;
    let first = first.answer().await;
    assert_eq!((first.status.as_u16(), waited_ms(&first)), (200, 0));
    room.asked("second").await.answer().await;
    let second = second.answer().await;
    assert_eq!(second.status, 200, "{}", second.text());
    assert!(waited_ms(&second) > 0);
    room.until_nothing_is_open().await;
    assert_eq!(room.metric(r#"maitre_queue_requests{class="standard"}"#), 0.0);
    assert_eq!(room.metric(r#"maitre_queue_seconds_count{class="standard"}"#), 1.0);
}

#[tokio::test]
async fn those_behind_a_client_that_leaves_the_line_move_up() {
    let mut room = room(|_| {}).await;
    let first = room.guest("first", PLAIN);
    let taken = room.asked("first").await;
    let second = room.guest("second", PLAIN);
    room.until_waiting(STANDARD, 1).await;
    let third = room.guest("third", PLAIN);
    room.until_waiting(STANDARD, 2).await;
    drop(second);
    room.until_waiting(STANDARD, 1).await;
    taken.answer().await;
    room.asked("third").await.answer().await;
    assert_eq!((first.answer().await.status.as_u16(), third.answer().await.status.as_u16()), (200, 200));
    room.until_nothing_is_open().await;
    assert_eq!(room.metric(r#"maitre_requests_total{route="chat",outcome="gone",code=""}"#), 1.0);
    assert_eq!(room.metric(r#"maitre_queue_seconds_count{class="standard"}"#), 2.0);
}

#[tokio::test]
async fn a_client_that_leaves_as_its_turn_comes_keeps_no_seat() {
    let mut room = room(|it| it.threads = 2).await;
    for _ in 0..50 {
        let first = room.guest("first", PLAIN);
        // The last one that left may have reached the worker all the same.
        let taken = loop {
            match within(room.asked.recv()).await.unwrap() {
                asked if asked.name == "first" => break asked,
                asked => assert_eq!(asked.name, "second"),
            }
        };
        let second = room.guest("second", PLAIN);
        room.until_waiting(STANDARD, 1).await;
        // Its placement and its leaving cross, now the one first and now the other.
        tokio::join!(taken.answer(), async { drop(second) });
        assert_eq!(first.answer().await.status, 200);
        room.until_nothing_is_open().await;
    }
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "how long a refusal takes is what it is about")]
async fn a_full_line_says_so_at_once_and_when_to_come_again() {
    let mut room = room(|it| it.brain.queue.classes[STANDARD.index()].requests_max = 1).await;
    let first = room.guest("first", PLAIN);
    let taken = room.asked("first").await;
    let second = room.guest("second", PLAIN);
    room.until_waiting(STANDARD, 1).await;
    let mut quickest = Duration::MAX;
    for _ in 0..10 {
        let begun = tokio::time::Instant::now();
        let third = room.guest("third", PLAIN).answer().await;
        quickest = quickest.min(begun.elapsed());
        check_refused(&third, 429, "queue_full");
    }
    // The quickest: others share these cores.
    assert!(quickest < Duration::from_millis(10), "{quickest:?}");
    taken.answer().await;
    room.asked("second").await.answer().await;
    assert_eq!((first.answer().await.status.as_u16(), second.answer().await.status.as_u16()), (200, 200));
    room.until_nothing_is_open().await;
    assert_eq!(room.metric(r#"maitre_queue_refusals_total{class="standard",reason="queue_full"}"#), 10.0);
}

#[tokio::test]
async fn a_deadline_that_passes_in_line_is_a_504_then_and_not_later() {
    let mut room = room(|it| it.brain.queue.classes[STANDARD.index()].deadline = Some(SHORT)).await;
    // Of a class without a deadline, and never answered meanwhile.
    let first = room.guest("first", Wish { class: "batch", ..PLAIN });
    let taken = room.asked("first").await;
    let second = room.guest("second", STREAM).answer().await;
    check_refused(&second, 504, "deadline");
    let waited = waited_ms(&second);
    assert!((1..400).contains(&waited), "it stood in line for {waited} ms");
    taken.answer().await;
    assert_eq!(first.answer().await.status, 200);
    room.until_nothing_is_open().await;
    assert_eq!(room.metric(r#"maitre_queue_refusals_total{class="standard",reason="deadline"}"#), 1.0);
}

#[tokio::test]
async fn an_interactive_request_goes_before_an_earlier_batch_one() {
    let mut room = room(|_| {}).await;
    let first = room.guest("first", PLAIN);
    let taken = room.asked("first").await;
    let batch = room.guest("batch", Wish { class: "batch", ..PLAIN });
    room.until_waiting(BATCH, 1).await;
    let interactive = room.guest("interactive", Wish { class: "interactive", ..PLAIN });
    room.until_waiting(INTERACTIVE, 1).await;
    taken.answer().await;
    room.asked("interactive").await.answer().await;
    room.asked("batch").await.answer().await;
    for guest in [first, interactive, batch] {
        assert_eq!(guest.answer().await.status, 200);
    }
    room.until_nothing_is_open().await;
}

#[tokio::test]
async fn those_in_line_are_answered_before_a_router_that_stops_is_gone() {
    let mut room = room(|it| it.timeouts.drain_grace = Duration::ZERO).await;
    let first = room.guest("first", PLAIN);
    let taken = room.asked("first").await;
    let second = room.guest("second", PLAIN);
    room.until_waiting(STANDARD, 1).await;
    let Room { router, mut asked } = room;
    let finish = async {
        taken.answer().await;
        within(asked.recv()).await.unwrap().answer().await;
        (first.answer().await.status.as_u16(), second.answer().await.status.as_u16())
    };
    let (stopped, statuses) = tokio::join!(within(router.stop()), finish);
    assert_eq!((stopped, statuses), (Stopped::Drained, (200, 200)));
}

#[tokio::test]
async fn a_router_that_stops_waits_for_its_line_no_longer_than_for_streams() {
    let mut room = room(|it| {
        it.timeouts.drain_grace = Duration::ZERO;
        it.timeouts.drain = SHORT;
    })
    .await;
    let _first = room.guest("first", PLAIN);
    let _taken = room.asked("first").await;
    let _second = room.guest("second", PLAIN);
    room.until_waiting(STANDARD, 1).await;
    assert_eq!(within(room.router.stop()).await, Stopped::Cut { open: 2 });
}

#[tokio::test]
async fn a_stream_without_its_first_token_at_its_deadline_is_a_504_and_its_worker_is_left() {
    let mut room = room(|_| {}).await;
    for has_head in [false, true] {
        let guest = room.guest("late", Wish { deadline: Some(SHORT), ..STREAM });
        let mut asked = room.asked("late").await;
        if has_head {
            asked.begin().await;
        }
        check_refused(&guest.answer().await, 504, "deadline");
        asked.until_closed().await;
        room.until_nothing_is_open().await;
    }
    assert_eq!(room.metric(r#"maitre_attempts_failed_total{failure="late"}"#), 2.0);
    let ready = |it: &maitre_fleet::Worker| it.health.state() == HealthState::Ready;
    assert!(room.router.look(|brain| brain.fleet().workers().all(ready)), "late is not broken");
}

#[tokio::test]
async fn a_batch_request_is_called_back_for_an_urgent_one_and_neither_notices() {
    let mut room = room(|it| it.brain.queue.recall = true).await;
    // Too long an answer for anybody to wait for.
    let batch = room.guest("batch", Wish { class: "batch", stream: true, tokens: 100_000, ..PLAIN });
    let recalled = room.asked("batch").await;
    let urgent = room.guest("urgent", Wish { class: "interactive", deadline: Some(SOON), ..STREAM });
    let taken = room.asked("urgent").await;
    recalled.until_closed().await;
    taken.answer().await;
    let urgent = urgent.answer().await;
    assert_eq!(urgent.status, 200, "{}", urgent.text());
    room.asked("batch").await.answer().await;
    let batch = batch.answer().await;
    assert_eq!(batch.status, 200, "{}", batch.text());
    assert!(waited_ms(&batch) > 0);
    room.until_nothing_is_open().await;
    assert_eq!(room.metric("maitre_recalls_total"), 1.0);
    assert!(!room.router.metrics().contains("maitre_attempts_failed_total{"), "a recall is no failure");
}

#[tokio::test]
async fn a_recall_that_crosses_the_answer_harms_neither() {
    for turn in 0..40 {
        // A new one each time: whoever has seen such short answers calls nobody back for them.
        let mut room = room(|it| {
            it.brain.queue.recall = true;
            it.threads = 2;
        })
        .await;
        let batch = room.guest("batch", Wish { class: "batch", stream: true, tokens: 100_000, ..PLAIN });
        let taken = room.asked("batch").await;
        let urgent = room.guest("urgent", Wish { class: "interactive", deadline: Some(SOON), ..STREAM });
        // Now the answer comes first, and now the recall.
        for _ in 0..turn {
            tokio::task::yield_now().await;
        }
        taken.answer().await;
        let worker = async {
            while let Some(asked) = room.asked.recv().await {
                asked.answer().await;
            }
        };
        let guests = async { [batch.answer().await, urgent.answer().await] };
        let answers = tokio::select! {
            () = worker => unreachable!("the worker is there as long as the room is"),
            answers = guests => answers,
        };
        for answer in answers {
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
        }
        room.until_nothing_is_open().await;
        assert!(!room.router.metrics().contains("maitre_attempts_failed_total{"), "a recall is no failure");
    }
}
