//! Each row is a fleet with one change and the exact findings it must give.

use std::time::Duration;

use maitre_base::{EngineLoad, Role};
use maitre_dialect::engine::{About, EngineKind};
use maitre_dialect::models::Model;
use maitre_dialect::usage::Usage;
use maitre_net::tls::TlsFailure;

use super::{judge, odd_ones};
use crate::code::Code;
use crate::facts::{
    Admin, Answered, Asked, Compared, Comparison, Events, Fleet, Handoff, Here, Listed, Metered, OpenAdmin,
    Published, Reach, Replay, Router, Salted, Stream, Unanswered, Worker,
};
use crate::report::Finding;

fn model(id: &str) -> Model {
    Model { id: id.to_owned(), parent: None, max_model_len: Some(8_192) }
}

fn usage(cached: u64) -> Usage {
    Usage { prompt_tokens: Some(100), completion_tokens: Some(1), cached_tokens: Some(cached) }
}

fn published() -> Published {
    Published {
        place: "10.0.0.1:5557".to_owned(),
        is_configured: false,
        dialled: None,
        ranks: 1,
        topic: String::new(),
        stream: Stream::Heard { topic: "kv".to_owned(), block_tokens: 16 },
        replay: Replay::Answers,
        unreachable_ranks: Vec::new(),
    }
}

/// A healthy engine.
fn worker(number: usize) -> Worker {
    let reach = Reach::Answers { path: "/health".to_owned(), status: 200 };
    Worker {
        kind: EngineKind::Vllm,
        listed: Listed::Models(vec![model("llama")]),
        about: About {
            version: Some("0.32.0".to_owned()),
            kv_dtype: Some("auto".to_owned()),
            prefix_caching: Some(true),
            ..About::default()
        },
        metered: Metered::Read(EngineLoad { block_size: Some(16), ..EngineLoad::default() }),
        events: Events::At(published()),
        asked: Asked::Answered(Answered {
            first: usage(0),
            second: usage(96),
            salted: Salted::Answered(usage(0)),
        }),
        compared: vec![Compared { model: "llama".to_owned(), outcome: Comparison::Same { tokens: 9 } }],
        first_token: Some(Duration::from_millis(20)),
        clock_ahead: Some(0.3),
        ..Worker::unknown(format!("http://w{number}:1"), reach)
    }
}

fn fleet() -> Fleet {
    let here = Here {
        descriptors: Some(65_536),
        connections: 1_000,
        idle_per_worker: 64,
        threads: 4,
        open_admin: None,
        unusable: Vec::new(),
    };
    Fleet { workers: (0..3).map(worker).collect(), router: None, here }
}

fn with_events(worker: &mut Worker, change: impl FnOnce(&mut Published)) {
    let mut published = published();
    change(&mut published);
    worker.events = Events::At(published);
}

#[track_caller]
fn check(change: impl FnOnce(&mut Fleet), expected: &[(Code, Option<usize>)]) -> Vec<Finding> {
    let mut fleet = fleet();
    change(&mut fleet);
    let findings = judge(&fleet).findings;
    let url = |number: usize| fleet.workers[number].url.clone();
    let actual: Vec<(Code, Option<String>)> =
        findings.iter().map(|it| (it.code, it.worker.clone())).collect();
    let expected: Vec<(Code, Option<String>)> = expected.iter().map(|it| (it.0, it.1.map(url))).collect();
    assert_eq!(actual, expected, "{findings:#?}");
    findings
}

/// Exactly this finding for the second of three workers, and words of its text.
#[track_caller]
fn check_second(change: impl FnOnce(&mut Worker), code: Code, what: &str, fix: &str) {
    let findings = check(|fleet| change(&mut fleet.workers[1]), &[(code, Some(1))]);
    assert!(findings[0].what.contains(what), "{}", findings[0].what);
    assert!(findings[0].fix.contains(fix), "{}", findings[0].fix);
}

#[test]
fn a_role_needs_its_counterpart() {
    let roles = |roles: [Role; 3]| {
        move |fleet: &mut Fleet| fleet.workers.iter_mut().zip(roles).for_each(|(it, role)| it.role = role)
    };
    use Role::{Both, Decode, Prefill};
    check(roles([Prefill, Decode, Both]), &[]);
    check(roles([Both, Both, Both]), &[]);
    let found = check(roles([Prefill, Both, Both]), &[(Code::RolesUnpaired, Some(0))]);
    assert!(found[0].fix.contains("?role=decode"), "{found:?}");
    check(roles([Both, Decode, Decode]), &[(Code::RolesUnpaired, Some(1)), (Code::RolesUnpaired, Some(2))]);
}

#[test]
fn what_a_prefill_worker_hands_over_must_be_reachable() {
    let pair = |handoff: Handoff, urls: [&'static str; 2]| {
        move |fleet: &mut Fleet| {
            fleet.workers.truncate(2);
            for (worker, (url, role)) in
                fleet.workers.iter_mut().zip(urls.iter().zip([Role::Prefill, Role::Decode]))
            {
                (worker.url, worker.role) = ((*url).to_owned(), role);
            }
            fleet.workers[0].handoff = handoff;
        }
    };
    let (near, far) =
        (["http://10.0.0.1:1", "http://10.0.0.1:2"], ["http://10.0.0.1:1", "http://10.0.0.2:1"]);
    let at = |host: &str| Handoff::At(host.to_owned());
    check(pair(at("localhost"), near), &[]);
    check(pair(at("10.0.0.1"), far), &[]);
    check(pair(Handoff::Unasked, far), &[]);
    for host in ["localhost", "127.0.0.1", "[::1]"] {
        let found = check(pair(at(host), far), &[(Code::HandoffHost, Some(0))]);
        assert!(found[0].fix.contains("VLLM_NIXL_SIDE_CHANNEL_HOST=10.0.0.1,"), "{found:?}");
    }
    check(pair(Handoff::None, near), &[(Code::HandoffMissing, Some(0))]);
    let expired = |fleet: &mut Fleet| {
        pair(at("10.0.0.1"), far)(fleet);
        fleet.workers[0].expired_handoffs = 3;
    };
    let found = check(expired, &[(Code::HandoffsExpired, Some(0))]);
    assert!(found[0].what.contains("3 prompts"), "{found:?}");
}

#[test]
fn a_healthy_fleet_has_no_finding_and_a_line_for_each_check() {
    check(|_| {}, &[]);
    let report = judge(&fleet());
    assert_eq!(report.checks.len(), 17);
    assert!(report.checks.iter().all(|it| !it.said.is_empty()), "{:#?}", report.checks);
    let mut away = fleet();
    for worker in &mut away.workers {
        worker.reach = Reach::Router;
    }
    // Nothing is said of engines if none answers.
    let checks: Vec<&str> = judge(&away).checks.iter().map(|it| it.name).collect();
    assert_eq!(checks, ["reach", "roles", "this machine", "router"]);
    // An unexamined worker is not healthy, but has no fault either.
    check(
        |fleet| {
            for worker in &mut fleet.workers {
                (worker.events, worker.asked) = (Events::Off, Asked::No("--no-requests"));
                (worker.first_token, worker.clock_ahead) = (None, None);
                worker.compared.clear();
            }
        },
        &[],
    );
    check(|fleet| fleet.workers.clear(), &[]);
}

#[test]
fn an_unreachable_worker_has_no_other_finding() {
    let gone = |reach: Reach| move |it: &mut Worker| *it = Worker::unknown(it.url.clone(), reach);
    let refused = Reach::Not(Unanswered::Refused("connect: Connection refused".to_owned()));
    check_second(gone(refused), Code::Unreachable, "Connection refused", "start the engine");
    let unresolved = Reach::Not(Unanswered::Unresolved("no such host".to_owned()));
    check_second(gone(unresolved), Code::Unreachable, "does not resolve", "fix the host");
    check_second(
        gone(Reach::Not(Unanswered::TimedOut(Duration::from_secs(5)))),
        Code::Unreachable,
        "within 5s",
        "--timeout",
    );
    let broke = || Reach::Not(Unanswered::Broke("invalid HTTP version parsed".to_owned()));
    check_second(gone(broke()), Code::Unreachable, "in plain HTTP/1.1: invalid HTTP", "fix the port");
    let broke_in_tls = |it: &mut Worker| *it = Worker::unknown("https://w1:1".to_owned(), broke());
    check_second(broke_in_tls, Code::Unreachable, "uses TLS", "worker_tls.cert");
    let lost = |it: &mut Worker| {
        let reach = Reach::Answers { path: "/health".to_owned(), status: 404 };
        *it = Worker::unknown(it.url.clone(), reach);
        it.listed = Listed::Unreadable { status: 404, why: "not a success".to_owned() };
    };
    check_second(lost, Code::NotAnEngine, "/health answers 404", "without /v1");
    let router = |it: &mut Worker| it.reach = Reach::Router;
    check_second(router, Code::NotAnEngine, "this is a Maitre router", "--admin-url");
    let sick = |it: &mut Worker| it.reach = Reach::Answers { path: "/health".to_owned(), status: 503 };
    check_second(sick, Code::Unreachable, "503", "log");
}

#[test]
fn tls_findings_name_the_setting_that_fixes_them() {
    let word = || "Word".to_owned();
    for (why, what, fix) in [
        (TlsFailure::UntrustedIssuer, "not signed by anyone we trust", "worker_tls.ca"),
        (
            TlsFailure::WrongName("w1".to_owned(), vec!["w2".to_owned()]),
            "not for w1, but for w2",
            "worker_tls.server_name",
        ),
        (TlsFailure::Expired, "has expired", "renew"),
        (TlsFailure::NotYetValid, "not valid yet", "clock"),
        (TlsFailure::InvalidCertificate(word()), "cannot be accepted: Word", "replace the certificate"),
        (
            TlsFailure::ClientRejected(word()),
            "does not accept who we are (Word)",
            "worker_tls.cert and worker_tls.key",
        ),
        (TlsFailure::NotTls, "does not speak TLS", "write http:// in its URL"),
        (TlsFailure::Alert(word()), "ended the TLS connection: Word", "version 1.2"),
        (TlsFailure::Closed, "in the middle of the TLS handshake", "write http://"),
        (TlsFailure::Other(word()), "handshake failed: Word", "log"),
    ] {
        let lost =
            |it: &mut Worker| *it = Worker::unknown(it.url.clone(), Reach::Not(Unanswered::NoTls(why)));
        check_second(lost, Code::Unreachable, what, fix);
    }
    let lost = |it: &mut Worker| *it = Worker::unknown(it.url.clone(), Reach::Not(Unanswered::SpeaksTls));
    check_second(lost, Code::Unreachable, "plain HTTP, but it uses TLS", "write https:// in its URL");
}

#[test]
fn models_are_listed_and_the_same() {
    check_second(
        |it| it.listed = Listed::Models(vec![model("qwen")]),
        Code::ModelsDiffer,
        "serves qwen, while 2 of 3 serve llama",
        "--served-model-name",
    );
    check_second(|it| it.listed = Listed::Models(Vec::new()), Code::NoModels, "lists nothing", "loaded");
    let locked = |with_key| move |it: &mut Worker| it.listed = Listed::Locked { status: 401, with_key };
    check_second(locked(false), Code::KeyWanted, "requires a key", "MAITRE_DOCTOR_KEY");
    check_second(locked(true), Code::KeyWanted, "to the given key", "without --api-key");
    let unread =
        |it: &mut Worker| it.listed = Listed::Unreadable { status: 200, why: "expected value".to_owned() };
    check_second(unread, Code::NoModels, "expected value", "OpenAI");
    // An additional or missing adapter is no fault.
    let adapter = Model { parent: Some("llama".to_owned()), ..model("sql") };
    check(|fleet| fleet.workers[1].listed = Listed::Models(vec![model("llama"), adapter]), &[]);
}

#[test]
fn workers_of_one_model_are_alike() {
    let blocks = |it: &mut Worker| {
        it.metered = Metered::Read(EngineLoad { block_size: Some(32), ..EngineLoad::default() });
        it.events = Events::Off;
    };
    check_second(
        blocks,
        Code::BlockSizesDiffer,
        "blocks of 32 tokens, 2 of its peers have 16",
        "--block-size",
    );
    let version = |it: &mut Worker| it.about.version = Some("0.31.0".to_owned());
    check_second(version, Code::VersionsDiffer, "0.31.0, 2 of its peers are 0.32.0", "update it to 0.32.0");
    let short = Model { max_model_len: Some(4_096), ..model("llama") };
    check_second(
        |it| it.listed = Listed::Models(vec![short]),
        Code::ContextsDiffer,
        "4096",
        "--max-model-len",
    );
    let fp8 = |it: &mut Worker| it.about.kv_dtype = Some("fp8".to_owned());
    check_second(fp8, Code::TypesDiffer, "fp8", "--kv-cache-dtype");
    // Workers of different models need not be alike; the difference in the model is another matter.
    check(
        |fleet| {
            let second = &mut fleet.workers[1];
            second.listed = Listed::Models(vec![Model { max_model_len: Some(1), ..model("qwen") }]);
            second.about.version = Some("0.1".to_owned());
        },
        &[(Code::ModelsDiffer, Some(1))],
    );
}

#[test]
fn the_usual_value_is_the_most_frequent_and_then_the_first() {
    let workers: Vec<Worker> = (0..3).map(worker).collect();
    let values = |numbers: [u64; 3]| workers.iter().zip(numbers).collect::<Vec<_>>();
    for (numbers, usual, odd) in [([1, 2, 2], 2, 1), ([1, 2, 3], 1, 2), ([1, 1, 1], 1, 0)] {
        let found = odd_ones(&values(numbers)).unwrap();
        assert_eq!((found.usual, found.others.len()), (usual, odd), "{numbers:?}");
    }
    assert!(odd_ones::<u64>(&[]).is_none());
}

#[test]
fn requests_reveal_caching_faults() {
    let asked = |first, second| {
        move |it: &mut Worker| {
            it.asked = Asked::Answered(Answered { first, second, salted: Salted::Unasked });
        }
    };
    let hidden = Usage { cached_tokens: None, ..usage(0) };
    check_second(
        asked(hidden, hidden),
        Code::CachedTokensHidden,
        "cached_tokens",
        "--enable-prompt-tokens-details",
    );
    // vLLM reports nothing on a miss.
    check(|fleet| asked(hidden, usage(96))(&mut fleet.workers[1]), &[]);
    check_second(
        asked(usage(0), usage(0)),
        Code::PrefixCachingOff,
        "found nothing",
        "--enable-prefix-caching",
    );
    let off = |it: &mut Worker| {
        it.about.prefix_caching = Some(false);
        (it.events, it.asked) = (Events::None, Asked::No("--no-requests"));
    };
    check_second(off, Code::PrefixCachingOff, "reports that", "--enable-prefix-caching");
    // A prompt of one block proves nothing.
    let short = Usage { prompt_tokens: Some(20), ..usage(0) };
    check(|fleet| asked(short, short)(&mut fleet.workers[1]), &[]);
    let failed =
        |it: &mut Worker| it.asked = Asked::Failed { path: "/v1/completions", why: "status 500".to_owned() };
    check_second(failed, Code::RequestsFail, "status 500", "log");
}

#[test]
fn salts_keep_prompts_apart() {
    let salted = |salted: Salted| {
        move |it: &mut Worker| {
            it.asked = Asked::Answered(Answered { first: usage(0), second: usage(96), salted });
        }
    };
    check_second(salted(Salted::Refused { status: 400 }), Code::SaltRefused, "answers 400", "cache_salt");
    check_second(salted(Salted::Answered(usage(96))), Code::SaltIgnored, "96 cached tokens", "tenants");
    check(|fleet| salted(Salted::Unasked)(&mut fleet.workers[1]), &[]);
}

/// Exactly this finding for a second worker that publishes like this.
#[track_caller]
fn check_events(change: impl FnOnce(&mut Published), code: Code, what: &str, fix: &str) {
    check_second(|it| with_events(it, change), code, what, fix);
}

#[test]
fn events_are_published() {
    check_second(|it| it.events = Events::None, Code::EventsOff, "publishes none", "tcp://*:5557");
    let untold = Events::UnknownPlace { path: "/kv_event_sources", status: 404 };
    check_second(|it| it.events = untold, Code::EventsOff, "answers 404", "?events=5557&replay=5558");
    check(|fleet| fleet.workers[1].events = Events::Unheard, &[]);
}

#[test]
fn events_can_be_reached() {
    let lose = |it: &mut Published, on_loopback: bool| {
        it.stream = Stream::Unreachable { why: "refused".to_owned(), on_loopback };
        it.replay = Replay::Unasked;
    };
    let code = Code::EventsUnreachable;
    check_events(|it| lose(it, false), code, "reports that it publishes at 10.0.0.1:5557", "open port 5557");
    check_events(|it| lose(it, true), code, "loopback only", "tcp://*:5557");
    let named = |it: &mut Published| {
        it.is_configured = true;
        lose(it, false);
    };
    check_events(named, code, "no publisher at the configured address", "events.endpoint");
    let dials = |it: &mut Published| {
        it.dialled = Some("tcp://0.0.0.0:5557".to_owned());
        lose(it, false);
    };
    check_events(dials, code, "connects instead of listening", "tcp://*:5557");
    let unreachable_ranks = vec![(3, "a:4".to_owned(), "refused".to_owned())];
    check_events(|it| it.unreachable_ranks = unreachable_ranks, code, "rank 3", "ports after the first");
}

#[test]
fn events_must_arrive_and_be_readable() {
    let silent = Stream::Silent { prompt_tokens: 99 };
    check_events(|it| it.stream = silent.clone(), Code::EventsSilent, "99 tokens", "belongs to this engine");
    let unreadable = Stream::Unreadable { why: "at byte 3".to_owned() };
    check_events(|it| it.stream = unreadable, Code::EventsUnreadable, "at byte 3", "newer");
    check_events(
        |it| it.topic = "kv@".to_owned(),
        Code::EventsTopic,
        "topic \"kv\"",
        "events.topic to \"kv\"",
    );
    check_events(|it| it.replay = Replay::Absent, Code::EventsReplay, "offers no replay", "replay_endpoint");
    let fails = Replay::Fails { place: "a:1".to_owned(), why: "late".to_owned() };
    check_events(|it| it.replay = fails, Code::EventsReplay, "a:1 does not answer: late", "open");
    // It is unknown which of four ranks received the prompt.
    let hidden = |it: &mut Published| (it.ranks, it.stream) = (4, silent);
    check_events(hidden, Code::RanksHidden, "4 data-parallel ranks", "?ranks=4");
    let told = |it: &mut Worker| {
        it.ranks = 4;
        with_events(it, |it| it.ranks = 4);
    };
    check(|fleet| told(&mut fleet.workers[1]), &[]);
}

#[test]
fn findings_on_events_depend_on_the_brand() {
    let sglang = |version: &'static str, models: Vec<Model>| {
        move |fleet: &mut Fleet| {
            for worker in &mut fleet.workers {
                worker.kind = EngineKind::Sglang;
                worker.about.version = Some(version.to_owned());
                worker.listed = Listed::Models(models.clone());
            }
            fleet.workers.truncate(1);
        }
    };
    check(sglang("0.5.18", vec![model("llama")]), &[]);
    check(sglang("0.5.5", vec![model("llama")]), &[(Code::EventsUnusable, Some(0))]);
    let adapter = Model { parent: Some("llama".to_owned()), ..model("sql") };
    check(sglang("0.5.18", vec![model("llama"), adapter.clone()]), &[(Code::AdaptersAlias, Some(0))]);
    check(sglang("0.5.22", vec![model("llama"), adapter]), &[]);
}

#[test]
fn tokens_must_match_the_engines() {
    let compared = |outcome| {
        move |it: &mut Worker| {
            // Three chats give one finding.
            it.compared = vec![Compared { model: "llama".to_owned(), outcome }; 3];
        }
    };
    let differ = Comparison::Differ { ours: 12, theirs: 14, at: 0 };
    check_second(compared(differ), Code::TokensDiffer, "12 tokens here and 14", "chat template");
    let unrendered = Comparison::Unrendered("no template".to_owned());
    check_second(compared(unrendered), Code::TokensDiffer, "no template", "chat template");
    check(|fleet| compared(Comparison::Unanswered("404".to_owned()))(&mut fleet.workers[1]), &[]);
    let unusable =
        |fleet: &mut Fleet| fleet.here.unusable = vec![("llama".to_owned(), "no such file".to_owned())];
    check(unusable, &[(Code::TokenizerUnusable, None)]);
}

#[test]
fn metrics_speed_clocks_and_descriptors() {
    let missing = Metered::Missing { path: "/metrics", status: 404 };
    check_second(
        |it| it.metered = missing,
        Code::MetricsMissing,
        "/metrics answers 404",
        "--disable-log-stats",
    );
    check_second(
        |it| it.metered = Metered::Foreign("none of the 3".to_owned()),
        Code::MetricsMissing,
        "none of the 3",
        "start it",
    );
    let slow =
        |milliseconds| move |it: &mut Worker| it.first_token = Some(Duration::from_millis(milliseconds));
    check_second(slow(90), Code::Slow, "90 ms to the first token of a tiny prompt, its peers 20 ms", "GPU");
    // Three times as long, but too little to notice; and longer, but not by much.
    check(|fleet| slow(65)(&mut fleet.workers[1]), &[]);
    check(
        |fleet| {
            fleet.workers.iter_mut().for_each(slow(400));
            slow(1_000)(&mut fleet.workers[1]);
        },
        &[],
    );
    check_second(|it| it.clock_ahead = Some(-40.4), Code::ClockOff, "40 s behind", "NTP");
    check(|fleet| fleet.workers[1].clock_ahead = Some(1.9), &[]);
    check(|fleet| fleet.here.descriptors = Some(1_024), &[(Code::Descriptors, None)]);
    check(|fleet| fleet.here.descriptors = None, &[]);
    for (with_key, what, fix) in [
        (false, "without a key and without TLS", "set admin to 127.0.0.1:8081, or put it behind a firewall"),
        (true, "the admin key crosses the network in clear text", "set admin_tls.cert and admin_tls.key, or"),
    ] {
        let open = OpenAdmin { at: "0.0.0.0:8081".parse().unwrap(), with_key };
        let findings = check(|fleet| fleet.here.open_admin = Some(open), &[(Code::AdminOpen, None)]);
        assert!(findings[0].what.contains(what) && findings[0].fix.contains(fix), "{findings:#?}");
    }
}

/// A router's metrics page: three workers ready and trusted, plus the given lines.
fn page(added: &str) -> Router {
    let mut page = added.to_owned();
    for number in 0..3 {
        page.push_str(&format!(
            "\nmaitre_worker_state{{worker=\"http://w{number}:1\",state=\"ready\"}} 1\
             \nmaitre_worker_state{{worker=\"http://w{number}:1\",state=\"ejected\"}} 0\
             \nmaitre_worker_trust{{worker=\"http://w{number}:1\",trust=\"fresh\"}} 1\n"
        ));
    }
    let admin = Admin {
        url: "http://r:8081".to_owned(),
        is_ready: true,
        said: "ready".to_owned(),
        page: page.into(),
        read_at: 1_000_000.0,
    };
    Router { admin: Some(Ok(admin)), front: Some(Ok(vec!["llama".to_owned()])) }
}

#[track_caller]
fn check_router(added: &str, expected: &[(Code, Option<usize>)]) {
    check(|fleet| fleet.router = Some(page(added)), expected);
}

#[test]
fn a_routers_metrics_reveal_faults() {
    check_router("", &[]);
    check_router("maitre_worker_report_stale{worker=\"http://w2:1\"} 1", &[(Code::MetricsStale, Some(2))]);
    check_router(
        "maitre_events_unreadable_total{worker=\"http://w0:1\"} 3",
        &[(Code::EventsUnreadable, Some(0))],
    );
    check_router(
        "maitre_queue_refusals_total{class=\"batch\",reason=\"queue_full\"} 7",
        &[(Code::QueueFull, None)],
    );
    check_router("maitre_queue_refusals_total{class=\"batch\",reason=\"deadline\"} 7", &[]);
    let overload = |waiting, longest| {
        format!(
            "maitre_queue_requests{{class=\"standard\"}} {waiting}\nmaitre_first_token_longest_wait_seconds {longest}"
        )
    };
    check_router(&overload(432, 32.7), &[(Code::Overloaded, None)]);
    check_router(&overload(432, 0.4), &[]);
    // A long prompt at a worker, and nothing waits.
    check_router(&overload(0, 32.7), &[]);
    let drained =
        "maitre_worker_drained{worker=\"http://w0:1\"} 0\nmaitre_worker_drained{worker=\"http://w1:1\"} 1";
    check_router(drained, &[(Code::WorkerDrained, Some(1))]);
    let others = |connected, lost| {
        format!("maitre_cluster_connected{{}} {connected}\nmaitre_cluster_routers{{state=\"lost\"}} {lost}")
    };
    check_router(&others(1, 0), &[]);
    check_router(&others(1, 1), &[(Code::RoutersLost, None)]);
    // Lost routers are forgotten after ten minutes, and the server between them is still down.
    check_router(&others(0, 0), &[(Code::RoutersLost, None)]);
    let expires =
        |at: u32| format!("maitre_tls_certificate_expires_timestamp_seconds{{section=\"tls\"}} {at}");
    check_router(&expires(1_000_000 + 3 * 86_400), &[]);
    check_router(&expires(1_000_000 + 86_400), &[(Code::CertificateExpires, None)]);
    check_router(&expires(999_999), &[(Code::CertificateExpires, None)]);
    // One of a day, of which a tenth is left or not.
    let daily = |left: u32| {
        let (ends, section) = (1_000_000 + left, "{section=\"tls\"}");
        let begins = format!("maitre_tls_certificate_begins_timestamp_seconds{section} {}", ends - 86_400);
        format!("{begins}\n{}", expires(ends))
    };
    check_router(&daily(9_000), &[]);
    check_router(&daily(8_000), &[(Code::CertificateExpires, None)]);
    let tokens = |prompt, cached, held| {
        format!(
            "maitre_prompt_tokens_total {prompt}\nmaitre_cached_tokens_total {cached}\nmaitre_expected_cached_tokens_total {held}"
        )
    };
    check_router(&tokens(1_000_000, 500_000, 450_000), &[]);
    check_router(&tokens(1_000_000, 500_000, 10_000), &[(Code::BeliefsWrong, None)]);
    check_router(&tokens(1_000_000, 10_000, 500_000), &[(Code::BeliefsWrong, None)]);
    check_router(&tokens(1_000, 10, 900), &[]);
    let read = |words, exact| {
        let of = |level, count| {
            format!("maitre_prompts_read_total{{model=\"llama\",level=\"{level}\"}} {count}\n")
        };
        of("words", words) + &of("exact", exact)
    };
    check_router(&read(500, 0), &[(Code::PromptsUnread, None)]);
    check_router(&read(500, 9_000), &[]);
}

#[test]
fn a_router_may_see_workers_differently() {
    let with = |change: fn(String) -> String| {
        let mut router = page("");
        if let Some(Ok(admin)) = &mut router.admin {
            let text = String::from_utf8(admin.page.to_vec()).unwrap();
            admin.page = change(text).into();
        }
        router
    };
    let ejected = with(|it| it.replacen("state=\"ready\"", "state=\"ejected\"", 1));
    check(|fleet| fleet.router = Some(ejected.clone()), &[(Code::WorkerEjected, Some(0))]);
    // It fails, and was ejected for that: one finding, and not one that blames the network.
    let fails = |fleet: &mut Fleet| {
        fleet.router = Some(ejected);
        let why = "status 500".to_owned();
        fleet.workers[0].asked = Asked::Failed { path: "/v1/completions", why };
    };
    check(fails, &[(Code::RequestsFail, Some(0))]);
    let blind = with(|it| it.replacen("trust=\"fresh\"", "trust=\"none\"", 1));
    check(|fleet| fleet.router = Some(blind), &[(Code::EventsUntrusted, Some(0))]);
    let cold = || {
        with(|it| {
            let numbers = "maitre_worker_unplaced_ratio{worker=\"http://w0:1\"} 0.37\n\
                 maitre_worker_cached_blocks{worker=\"http://w0:1\"} 812\n\
                 maitre_worker_engine_blocks{worker=\"http://w0:1\"} 8192\n";
            it.replacen("trust=\"fresh\"", "trust=\"cold\"", 1) + numbers
        })
    };
    let findings = check(|fleet| fleet.router = Some(cold()), &[(Code::EventsCold, Some(0))]);
    let (what, fix) = (&findings[0].what, &findings[0].fix);
    assert!(what.contains("its replay does not reach back; it knows 812 of 8192 blocks. 37 % of"), "{what}");
    assert!(fix.contains("by itself") && fix.contains("buffer_steps"), "{fix}");
    let no_replay = |fleet: &mut Fleet| {
        fleet.router = Some(cold());
        with_events(&mut fleet.workers[0], |it| it.replay = Replay::Absent);
    };
    let findings = check(no_replay, &[(Code::EventsReplay, Some(0)), (Code::EventsCold, Some(0))]);
    assert!(findings[1].fix.contains("replay_endpoint"), "{findings:#?}");
    let absent = with(|it| it.replace("http://w1:1", "http://elsewhere:1"));
    check(|fleet| fleet.router = Some(absent), &[(Code::WorkerUnknown, Some(1))]);
    let ranked = with(|it| it.replace("http://w1:1", "http://w1:1#0"));
    check(|fleet| fleet.router = Some(ranked), &[]);
    let cold = with(|it| {
        it.replace("trust=\"fresh\"", "trust=\"none\"")
            + "maitre_prompt_tokens_total 1000000\nmaitre_cached_tokens_total 20\nmaitre_expected_cached_tokens_total 0\n"
    });
    check(
        |fleet| {
            fleet.router = Some(cold);
            fleet.workers.iter_mut().for_each(|it| it.events = Events::Off);
        },
        &[(Code::HitsNone, None)],
    );
}

#[test]
fn a_router_must_be_reachable_ready_and_offer_the_workers_models() {
    let unready = |fleet: &mut Fleet| {
        let mut router = page("");
        if let Some(Ok(admin)) = &mut router.admin {
            (admin.is_ready, admin.said) = (false, "draining".to_owned());
        }
        fleet.router = Some(router);
    };
    let findings = check(unready, &[(Code::RouterNotReady, None)]);
    assert!(findings[0].what.contains("draining"), "{findings:?}");
    let gone = Router { admin: Some(Err("http://r:8081: refused".to_owned())), front: None };
    check(|fleet| fleet.router = Some(gone), &[(Code::RouterUnreachable, None)]);
    let gone = Router { admin: None, front: Some(Err("http://r:8080: refused".to_owned())) };
    check(|fleet| fleet.router = Some(gone), &[(Code::RouterUnreachable, None)]);
    let poor = Router { front: Some(Ok(Vec::new())), ..page("") };
    check(
        |fleet| fleet.router = Some(poor),
        &[(Code::RouterModels, Some(0)), (Code::RouterModels, Some(1)), (Code::RouterModels, Some(2))],
    );
}

#[test]
fn a_routers_numbers_replace_ours() {
    // The router's limit on files counts, not this process's; without a reported limit it is unknown.
    check_router("process_max_fds 1024", &[(Code::Descriptors, None)]);
    check(
        |fleet| {
            fleet.here.descriptors = Some(10);
            fleet.router = Some(page(""));
        },
        &[],
    );
    let floor = |number, seconds| {
        format!("maitre_worker_first_token_floor_seconds{{worker=\"http://w{number}:1\"}} {seconds}\n")
    };
    let learned = floor(0, 0.02) + &floor(1, 0.5) + &floor(2, 0.02);
    // A measured value takes precedence over a learned one.
    check_router(&learned, &[]);
    check(
        |fleet| {
            fleet.router = Some(page(&learned));
            fleet.workers.iter_mut().for_each(|it| it.first_token = None);
        },
        &[(Code::Slow, Some(1))],
    );
}

#[test]
fn the_worst_comes_first() {
    check(
        |fleet| {
            fleet.workers[0].clock_ahead = Some(60.0);
            fleet.workers[1].about.prefix_caching = Some(false);
            let url = fleet.workers[2].url.clone();
            fleet.workers[2] = Worker::unknown(url, Reach::Not(Unanswered::Refused("refused".to_owned())));
        },
        &[(Code::Unreachable, Some(2)), (Code::PrefixCachingOff, Some(1)), (Code::ClockOff, Some(0))],
    );
}
