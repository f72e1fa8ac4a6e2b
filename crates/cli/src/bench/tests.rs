//! The bench against simulated engines in this process.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use maitre_base::Instant;
use maitre_config::environment::BENCH_KEY;
use maitre_console::dial;
use maitre_sim::http::fault::{Fault, Injection};
use maitre_sim::http::{Host, HostConfig};
use maitre_sim::profile::{INSTANT, Profile, StepModel};
use maitre_sim::report::Targets;
use maitre_sim::sessions::SessionTrace;
use maitre_sim::trace::{Piece, Request, Trace};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::play::{first_model, play, play_until};
use super::played::Played;
use super::sessions::{Sessions, play_sessions_until};

use super::{Api, Plan, command, read_address, read_plan};

/// Timeout of everything here.
const PATIENCE: Duration = Duration::from_secs(60);

/// One millisecond per token, so that answers overlap.
const SLOW: Profile = Profile { step: StepModel { floor_ms: 1.0, ..INSTANT.step }, ..INSTANT };

async fn host(profile: Profile) -> Host {
    Host::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), HostConfig::new(profile)).await.unwrap()
}

fn plan(host: &Host) -> Plan {
    let address = format!("http://{}", host.addr()).parse().unwrap();
    Plan { api: Api::Completions, ..Plan::new(address, "maitre-sim") }
}

/// Pause between two turns: even on a busy machine, an engine that takes no time has answered long before.
const TURN_MS: u64 = 200;

/// Conversations of four turns that all share their beginning.
fn conversations(count: u64) -> Trace {
    let mut requests = Vec::new();
    for turn in 0..4 {
        for session in 0..count {
            let name = |what: u64, turn: u64| 1_000 * session + 10 * turn + what;
            let mut prompt = vec![Piece { text: 1, tokens: 100 }];
            for before in 0..turn {
                prompt.push(Piece { text: name(2, before), tokens: 40 });
                prompt.push(Piece { text: name(3, before), tokens: 24 });
            }
            prompt.push(Piece { text: name(2, turn), tokens: 40 });
            requests.push(Request {
                at: Instant::from_millis(90_000 + TURN_MS * turn + TURN_MS * session / count),
                prompt: prompt.into(),
                answer_tokens: 24,
                answer: name(3, turn),
                session: Some(session),
                part: turn as u32 / 2,
                ..Request::default()
            });
        }
    }
    Trace { requests }
}

async fn played(plan: &Plan, trace: &Trace) -> Played {
    tokio::time::timeout(PATIENCE, play(plan, trace)).await.expect("the bench hangs")
}

#[tokio::test]
async fn an_engine_receives_the_trace_tokens_and_its_own_answers() {
    let (host, trace) = (host(INSTANT).await, conversations(10));
    let played = played(&plan(&host), &trace).await;
    assert_eq!((played.troubles.count(), played.sent, played.unfinished()), (0, 40, 0), "{played:?}");
    let lengths: Vec<_> =
        played.seen.iter().map(|it| (u64::from(it.prompt_tokens), it.answer_tokens)).collect();
    let expected: Vec<_> = trace.requests.iter().map(|it| (it.prompt_tokens(), it.answer_tokens)).collect();
    assert_eq!(lengths, expected);
    // The third turn begins with 228 tokens that the engine read or wrote; it did not cache the last one.
    for (seen, request) in played.seen.iter().zip(&trace.requests).skip(10) {
        let before = u32::try_from(request.prompt_tokens()).unwrap() - 40;
        assert_eq!(seen.cached_tokens, (before - 1) / 16 * 16, "{request:?}");
    }
    let rows = played.rows("x", &Targets::default());
    let counts: Vec<_> = rows.iter().map(|it| (it.part, it.requests, it.hit_ratio > 0.0)).collect();
    assert_eq!(counts, [(None, 40, true), (Some(0), 20, true), (Some(1), 20, true)]);
    assert!(played.hit_ratio_known() && played.missing_answers == 0);
    assert!(host.handle().stats().connections_open < 20, "connections are used again");
}

#[tokio::test]
async fn a_chat_continues_with_the_assistants_words() {
    let (host, trace) = (host(INSTANT).await, conversations(1));
    let played = played(&Plan { api: Api::Chat, ..plan(&host) }, &trace).await;
    assert_eq!(played.seen.len(), 4, "{played:?}");
    for pair in played.seen.windows(2) {
        let before = pair[0].prompt_tokens + pair[0].answer_tokens;
        assert_eq!(pair[1].cached_tokens, (before - 1) / 16 * 16, "{pair:?}");
    }
}

#[tokio::test]
async fn limits_shorten_the_trace_and_speed_compresses_it() {
    let (host, trace) = (host(INSTANT).await, conversations(10));
    let few = played(&Plan { limit: 7, ..plan(&host) }, &trace).await;
    assert_eq!((few.seen.len(), few.planned), (7, 7));
    // Ten milliseconds apart at twice the speed: eight are due before the eightieth millisecond.
    let short = Plan { speed: 2.0, span: Duration::from_millis(80), ..plan(&host) };
    let short = played(&short, &trace).await;
    assert_eq!(short.seen.len(), 8);
    assert_eq!(short.seen[7].at, Instant::from_millis(70));
}

#[tokio::test]
async fn requests_over_the_cap_wait_and_are_timed_from_when_they_were_due() {
    let (host, trace) = (host(SLOW).await, conversations(5));
    let played = played(&Plan { concurrency: 1, speed: 100.0, ..plan(&host) }, &trace).await;
    assert_eq!((played.seen.len(), played.troubles.count()), (20, 0), "{played:?}");
    // Each answer takes 24 milliseconds or more, one after the other.
    assert!(played.late.capped > 10 && played.late.requests > 10, "{:?}", played.late);
    let last = played.seen.last().unwrap();
    assert!(last.at + last.first_token > Instant::from_millis(19 * 24), "the wait is part of it: {last:?}");
    assert!(played.notes().iter().any(|it| it.contains("could not keep up")));
}

#[tokio::test]
async fn unanswered_requests_are_counted_by_kind() {
    let (host, trace) = (host(INSTANT).await, conversations(1));
    for (fault, kind, refused) in [
        (Fault::Status { status: 503 }, "status 503", 4),
        (Fault::CloseBeforeHeaders, "broke off", 0),
        (Fault::CloseAfterChunks { chunks: 3 }, "broke off", 0),
        (Fault::Stall, "timeout", 0),
    ] {
        host.handle().inject(Injection::always(fault));
        // Only an endless answer may reach the timeout, however busy the machine.
        let timeout = Duration::from_millis(if fault == Fault::Stall { 50 } else { 30_000 });
        let played = played(&Plan { timeout, speed: 50.0, ..plan(&host) }, &trace).await;
        assert_eq!((played.seen.len(), played.refused, played.failed), (0, refused, 4 - refused));
        let kinds: Vec<_> = played.troubles.iter().map(|(kind, it)| (kind.to_string(), it.count)).collect();
        assert_eq!(kinds, [(kind.to_owned(), 4)], "{:?}", played.troubles);
    }
    host.handle().clear_fault();
    let address = plan(&host).address;
    host.stop().await;
    let played = played(&Plan::new(address.clone(), "m"), &trace).await;
    assert_eq!(
        (played.failed, played.main_trouble().map(|it| it.0.to_string())),
        (4, Some("connect".into()))
    );
    let error = first_model(&Plan::new(address.clone(), "")).await.unwrap_err();
    assert!(format!("{error:#}").contains(&address.to_string()), "{error:#}");
}

/// Answers each connection's single request with the next of these, then returns the requests it received.
async fn scripted(replies: &'static [&'static str]) -> (Plan, JoinSet<Vec<String>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let mut server = JoinSet::new();
    server.spawn(async move {
        let mut heads = Vec::new();
        for reply in replies {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut bytes, mut piece) = (Vec::new(), [0; 4_096]);
            // A body is one object, and short enough to arrive together with its last brace.
            while !bytes.ends_with(b"}") || !bytes.windows(4).any(|it| it == b"\r\n\r\n") {
                let count = stream.read(&mut piece).await.unwrap();
                bytes.extend(&piece[..count]);
            }
            let text = String::from_utf8(bytes).unwrap().to_ascii_lowercase();
            heads.push(text.split("\r\n\r\n").next().unwrap().to_owned());
            stream.write_all(reply.as_bytes()).await.unwrap();
        }
        heads
    });
    (Plan { api: Api::Completions, ..Plan::new(address, "m") }, server)
}

const LATER: &str =
    "HTTP/1.1 429 Too Many Requests\r\nretry-after: 0\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
const NEVER: &str = "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
const DONE: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n\
    data: {\"choices\":[{\"text\":\"ab\"}]}\n\ndata: [DONE]\n\n";

#[tokio::test]
async fn tenant_class_and_deadline_are_sent() {
    let (plan, mut server) = scripted(&[DONE]).await;
    let mut trace = conversations(1);
    trace.requests.truncate(1);
    let request = &mut trace.requests[0];
    (request.class, request.tenant) = (Some("batch".into()), 0xABC);
    request.deadline = Some(Duration::from_millis(1_500));
    let played = played(&plan, &trace).await;
    let heads = server.join_next().await.unwrap().unwrap();
    for header in ["x-maitre-class: batch", "x-maitre-tenant: abc", "x-maitre-deadline-ms: 1500"] {
        assert!(heads[0].contains(header), "{}", heads[0]);
    }
    assert_eq!(played.rows("x", &Targets::default())[0].deadlines_met_ratio, Some(1.0));
}

#[tokio::test]
async fn a_request_without_them_sends_no_extra_header() {
    let (plan, mut server) = scripted(&[DONE]).await;
    let mut trace = conversations(1);
    trace.requests.truncate(1);
    played(&plan, &trace).await;
    let heads = server.join_next().await.unwrap().unwrap();
    assert!(!heads[0].contains("x-maitre"), "{}", heads[0]);
}

/// The result of one request: answers, refused, refusals, those with Retry-After, and answers by the number
/// of attempts.
async fn check_refusals(
    replies: &'static [&'static str],
    tries: u32,
    expected: (usize, u64, u64, u64, &[(u32, u64)]),
) {
    let (plan, mut server) = scripted(replies).await;
    let mut trace = conversations(1);
    trace.requests.truncate(1);
    let played = played(&Plan { tries, ..plan }, &trace).await;
    assert_eq!(server.join_next().await.unwrap().unwrap().len(), replies.len(), "all were asked for");
    let refusals = &played.refusals;
    let after: Vec<(u32, u64)> =
        refusals.answered_after_tries.iter().map(|(&tries, &it)| (tries, it)).collect();
    let found = (played.seen.len(), played.refused, refusals.count, refusals.with_retry_after, &after[..]);
    assert_eq!(found, expected, "{played:?}");
    assert_eq!(refusals.slowest_ms > 0.0, refusals.count > 0);
}

#[tokio::test]
async fn refusals_are_counted_and_retried_after_retry_after() {
    check_refusals(&[DONE], 6, (1, 0, 0, 0, &[(1, 1)])).await;
    check_refusals(&[LATER], 1, (0, 1, 1, 1, &[])).await;
    check_refusals(&[LATER, LATER, DONE], 6, (1, 0, 2, 2, &[(3, 1)])).await;
    // No `Retry-After`.
    check_refusals(&[LATER, NEVER], 6, (0, 1, 2, 1, &[])).await;
    check_refusals(&[LATER; 6], 6, (0, 1, 6, 6, &[])).await;
}

#[tokio::test]
async fn a_run_that_is_ended_early_says_so() {
    let (host, trace) = (host(INSTANT).await, conversations(10));
    host.handle().inject(Injection::always(Fault::Stall));
    let handle = host.handle();
    let ended = async {
        handle.until(|it| it.requests_open == 5).await;
    };
    let plan = plan(&host);
    let played = play_until(&plan, &trace, ended, |_, _| {});
    let played = tokio::time::timeout(PATIENCE, played).await.unwrap();
    assert!(played.seen.is_empty() && played.unfinished() >= 5 && played.sent < 40, "{played:?}");
    assert!(played.notes()[0].starts_with("ended early"));
    handle.until(|it| it.requests_open == 0).await;
}

#[tokio::test]
async fn the_first_model_is_requested() {
    let host = host(INSTANT).await;
    assert_eq!(first_model(&plan(&host)).await.unwrap(), "maitre-sim");
}

fn matches(args: &[&str]) -> clap::ArgMatches {
    let base = ["bench", "--trace", "t", "--url"];
    command().try_get_matches_from(base.iter().chain(args)).unwrap()
}

#[test]
fn addresses_are_a_scheme_and_a_host() {
    for (url, expected) in [
        ("ftp://host", "scheme ftp is not supported; use http or https"),
        ("host", "has no scheme"),
        ("http://host/v1", "has a path"),
        ("", "has no scheme"),
    ] {
        let error = format!("{:#}", read_address(&matches(&[url])).unwrap_err());
        assert!(error.contains(expected) && error.contains("--url"), "{error}");
    }
}

#[test]
fn a_key_is_never_shown() {
    let url = "http://host";
    let key = |args: &[&str], variable: Option<&str>| {
        dial::key(&matches(&[&[url], args].concat()), variable.map(Into::into), BENCH_KEY)
    };
    assert_eq!(key(&[], Some("")).unwrap(), None);
    assert_eq!(key(&[], Some("a")).unwrap().unwrap(), "Bearer a");
    assert_eq!(key(&["--key", "b"], Some("a")).unwrap().unwrap(), "Bearer b");
    let error = format!("{:#}", key(&["--key", "canary\n"], None).unwrap_err());
    assert!(error.contains("--key") && !error.contains("canary"), "{error}");
    let plan = read_plan(&matches(&[url, "--key", "canary"]), None).unwrap();
    assert!(!format!("{plan:?}").contains("canary"));
}

#[test]
fn flags_become_the_plan() {
    let args = "http://host --speed 2.5 --limit 9 --seconds 3 --api completions --plain --concurrency 7 --timeout 5s --retry";
    let plan = read_plan(&matches(&args.split(' ').collect::<Vec<_>>()), None).unwrap();
    assert_eq!((plan.speed, plan.limit, plan.span), (2.5, 9, Duration::from_secs(3)));
    assert_eq!((plan.api, plan.plain, plan.concurrency), (Api::Completions, true, 7));
    assert_eq!((plan.timeout, plan.model.as_str(), plan.tries), (Duration::from_secs(5), "", 6));
}

/// Two sessions of a kind with 128 shared tokens; the second has a sub-agent that its last call waits for.
const SESSIONS: &str = concat!(
    r#"{"block_size":64,"tool_tokens":100,"system_tokens":30,"requests":["#,
    r#"{"t":0,"in":300,"out":5,"runs":[[1,4]],"api_time":1,"think_time":0},"#,
    r#"{"t":9,"in":420,"out":7,"runs":[[1,3],[9,3]],"api_time":2,"think_time":0.08}]}"#,
    "\n",
    r#"{"block_size":64,"tool_tokens":100,"system_tokens":30,"requests":["#,
    r#"{"t":0,"in":200,"out":5,"runs":[[1,3]],"api_time":1},"#,
    r#"{"t":1.05,"duration_ms":20,"requests":[{"t":0,"in":64,"out":3,"runs":[[50,1]],"api_time":1,"think_time":0}]},"#,
    r#"{"t":1.1,"in":260,"out":7,"runs":[[1,4]],"api_time":2,"think_time":9}]}"#,
);

fn sessions(open: Vec<u32>) -> Sessions {
    let trace = SessionTrace::read(SESSIONS.as_bytes()).unwrap();
    let alone = vec![Duration::from_millis(50); 2];
    Sessions { trace, open, alone }
}

async fn played_sessions(plan: &Plan, sessions: &Sessions) -> Played {
    let played = play_sessions_until(plan, sessions, std::future::pending(), |_, _| {});
    tokio::time::timeout(PATIENCE, played).await.expect("the bench hangs")
}

#[tokio::test]
async fn sessions_are_closed_loops() {
    let (host, sessions) = (host(SLOW).await, sessions(vec![1]));
    let played = played_sessions(&plan(&host), &sessions).await;
    assert_eq!((played.seen.len(), played.planned, played.sent), (5, 5, 5), "{played:?}");
    let lengths: Vec<u32> = played.seen.iter().map(|it| it.prompt_tokens).collect();
    assert_eq!(lengths, [300, 420, 200, 64, 260], "in the order of one session after the other");
    // The second call finds the first 192 tokens of the first, the second session those that all share.
    let cached: Vec<u32> = played.seen.iter().map(|it| it.cached_tokens).collect();
    assert_eq!(cached, [0, 192, 128, 0, 192]);
    let ends: Vec<Instant> = played.seen.iter().map(|it| it.at + it.total).collect();
    let think = played.seen[1].at.since(ends[0]);
    assert_eq!(think, Duration::from_millis(80), "from the answer on");
    assert_eq!(played.seen[2].at, ends[1], "the next session begins when one ends");
    let (agent, last) = (&played.seen[3], &played.seen[4]);
    assert_eq!(agent.at.since(ends[2]), Duration::from_millis(30), "it began 30 ms after the answer");
    assert_eq!(last.at.since(ends[3]), Duration::from_millis(50), "and its parent waited for it");
    let row = &played.rows("x", &Targets::default())[0];
    assert_eq!((row.sessions, row.sessions_lost), (Some(2), Some(0)));
    let took = played.sessions.iter().map(|it| it.took.as_secs_f64()).sum::<f64>() / 2.0;
    assert!((row.task_mean_s.unwrap() - took).abs() < 1e-5);
    assert!((row.slowdown_mean.unwrap() - took / 0.05).abs() < 1e-3, "{row:?}");
}

#[tokio::test]
async fn sessions_run_beside_each_other_and_keep_their_shares() {
    let (host, mut sessions) = (host(SLOW).await, sessions(vec![1, 1]));
    sessions.trace.deal(2);
    sessions.alone.clear();
    sessions.trace.hasten(2.0);
    let played = played_sessions(&plan(&host), &sessions).await;
    assert_eq!(played.seen.iter().filter(|it| it.at < Instant::from_millis(5)).count(), 2, "{played:?}");
    let rows = played.rows("x", &Targets::default());
    let tasks: Vec<_> = rows.iter().map(|it| (it.tenant.as_deref(), it.sessions, it.slowdown_mean)).collect();
    assert_eq!(tasks, [(None, Some(2), None), (Some("2"), Some(1), None), (Some("1"), Some(1), None)]);
}

#[tokio::test]
async fn a_session_that_loses_a_call_is_over() {
    let (host, sessions) = (host(INSTANT).await, sessions(vec![1]));
    host.handle().inject(Injection::always(Fault::Status { status: 503 }));
    let played = played_sessions(&plan(&host), &sessions).await;
    assert_eq!((played.refused, played.planned, played.unfinished()), (2, 2, 0), "{played:?}");
    let row = &played.rows("x", &Targets::default())[0];
    assert_eq!((row.sessions, row.sessions_lost), (Some(0), Some(2)));
}

#[tokio::test]
async fn the_waits_of_a_lost_session_do_not_keep_the_run() {
    // The sub-agent's call is too long for the engine, and its parent's next one is due in a day.
    let trace = concat!(
        r#"{"block_size":64,"tool_tokens":100,"system_tokens":30,"requests":["#,
        r#"{"t":0,"in":200,"out":5,"runs":[[1,3]],"api_time":1},"#,
        r#"{"t":1.05,"requests":[{"t":0,"in":1280,"out":3,"runs":[[50,20]],"api_time":1,"think_time":0}]},"#,
        r#"{"t":1.1,"in":260,"out":7,"runs":[[1,4]],"api_time":2,"think_time":86400}]}"#,
    );
    let host = host(Profile { context_tokens_max: 1_000, ..INSTANT }).await;
    let trace = SessionTrace::read(trace.as_bytes()).unwrap();
    let sessions = Sessions { trace, open: vec![1], alone: Vec::new() };
    let played = played_sessions(&plan(&host), &sessions).await;
    let row = &played.rows("x", &Targets::default())[0];
    assert_eq!((row.sessions, row.sessions_lost), (Some(0), Some(1)), "{played:?}");
}

#[test]
fn sessions_are_asked_for_by_a_flag() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/claude-code-sessions.jsonl.gz");
    let read = |args: &str| {
        let args =
            ["bench", "--url", "http://host", "--trace", file].into_iter().chain(args.split_whitespace());
        let matches = command().try_get_matches_from(args).map_err(|it| it.to_string())?;
        let plan = read_plan(&matches, None).unwrap();
        match super::read_traffic(&matches, &plan, file).map_err(|it| format!("{it:#}"))? {
            super::Traffic::Sessions(sessions) => Ok((sessions, plan.hides_sessions)),
            super::Traffic::Open(_) => Err("open".to_owned()),
        }
    };
    let (sessions, hidden) =
        read("--sessions 3,4 --limit 4 --session-tokens-max 45000 --sessions-hidden").unwrap();
    assert_eq!((sessions.trace.sessions.len(), sessions.open.as_slice(), hidden), (4, &[3, 4][..], true));
    assert!(sessions.alone.is_empty());
    let flags =
        "--sessions 2 --limit 1 --session-tokens-max 45000 --think-max 5s --profile a100x8-70b --speed";
    let (slow, fast) = (read(&format!("{flags} 1")).unwrap().0, read(&format!("{flags} 4")).unwrap().0);
    let ratio = slow.alone[0].as_secs_f64() / fast.alone[0].as_secs_f64();
    assert!((ratio - 4.0).abs() < 0.01, "time runs four times as fast: {ratio}");
    assert!(read("").unwrap_err().contains("add --sessions"));
    assert!(read("--sessions 2 --seconds 5").unwrap_err().contains("--seconds"));
    assert!(read("--profile a100x8-70b").unwrap_err().contains("--sessions"));
}
