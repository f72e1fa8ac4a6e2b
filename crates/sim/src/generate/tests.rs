//! Lines in, traces out: sharing, rates, and messages for bad lines.

use std::collections::{HashMap, HashSet};

use maitre_base::hash;

use super::*;
use crate::trace::Piece;

fn plan(line: &str) -> Plan {
    line.parse().unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn trace(line: &str) -> Trace {
    plan(line).generate(7)
}

fn bytes(line: &str, seed: u64) -> Vec<u8> {
    let mut written = Vec::new();
    plan(line).generate(seed).write(&mut written).unwrap();
    written
}

fn mean(numbers: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = numbers.fold((0.0, 0), |(sum, count), it| (sum + it, count + 1));
    sum / f64::from(count)
}

#[track_caller]
fn about(actual: f64, expected: f64) {
    assert!((actual - expected).abs() < 0.05 * expected, "{actual}, expected about {expected}");
}

/// The requests of each session, in order.
fn sessions(trace: &Trace) -> HashMap<u64, Vec<&Request>> {
    let mut sessions: HashMap<u64, Vec<&Request>> = HashMap::new();
    for request in &trace.requests {
        sessions.entry(request.session.unwrap()).or_default().push(request);
    }
    sessions
}

/// Short forms of all workloads.
const LINES: [&str; 8] = [
    "groups:seconds=5",
    "chat:seconds=30",
    "rag:seconds=5",
    "agents:seconds=30",
    "coding:rate=1,seconds=30",
    "hot:seconds=5",
    "noreuse:seconds=5",
    "bursts:seconds=5,every=2",
];

/// Digests of the traces of each line with seed 7.
const MADE: [&str; 8] = [
    "66181ec9dc70034b",
    "4155b96cc63ed46a",
    "e6afbda5deaa86e6",
    "f99c4725517895c1",
    "6ef2b1d9c9e18a6a",
    "71bfb2bb4ee8405f",
    "360e4cfff3ffd92b",
    "bbb26dd278bf152c",
];

#[test]
fn same_seed_same_bytes() {
    for line in LINES {
        assert_eq!(bytes(line, 7), bytes(line, 7), "{line}");
        assert_ne!(bytes(line, 7), bytes(line, 8), "{line}");
    }
}

/// Published results name workloads and seeds: a change here would falsify them.
#[test]
fn traces_of_a_seed_never_change() {
    let hashes: Vec<String> =
        LINES.iter().map(|it| format!("{:016x}", hash::bytes(0, &bytes(it, 7)))).collect();
    assert_eq!(hashes, MADE, "of {LINES:?}");
}

#[test]
fn labels_do_not_change_the_prompts() {
    for line in LINES {
        let plain = trace(line);
        let mut labelled = trace(&format!("{line},classes=a:1;b:2,tenants=x:1;y:1,deadline=1-5"));
        assert_ne!(labelled, plain, "{line}");
        for request in &mut labelled.requests {
            assert!(request.class.is_some() && request.tenant != 0 && request.deadline.is_some(), "{line}");
            (request.class, request.tenant, request.deadline) = (None, 0, None);
        }
        assert!(labelled == plain, "{line}");
    }
}

#[test]
fn shares_are_as_given_and_keys_draw_independently() {
    let line = "noreuse:seconds=1000,classes=interactive:0.2;standard:0.5;batch:0.3";
    let alone = trace(line);
    let both = trace(&format!("{line},tenants=a:10;b:1"));
    let share = |what: &dyn Fn(&Request) -> bool| {
        both.requests.iter().filter(|it| what(it)).count() as f64 / both.requests.len() as f64
    };
    for (class, expected) in [("interactive", 0.2), ("standard", 0.5), ("batch", 0.3)] {
        about(share(&|it| it.class.as_deref() == Some(class)), expected);
    }
    about(share(&|it| it.tenant == hash::bytes(0, b"a")), 10.0 / 11.0);
    about(share(&|it| it.tenant == hash::bytes(0, b"b") && it.class.as_deref() == Some("batch")), 0.3 / 11.0);
    assert!(alone.requests.iter().zip(&both.requests).all(|(one, other)| one.class == other.class));
}

#[test]
fn a_conversation_has_one_label() {
    let trace = trace("chat:seconds=300,classes=a:1;b:1,tenants=x:1;y:1;z:1,deadline=1-5");
    let sessions = sessions(&trace);
    assert!(sessions.values().all(|turns| turns.iter().all(|it| it.label() == turns[0].label())));
    about(mean(sessions.values().map(|it| f64::from(u8::from(it[0].class.as_deref() == Some("a"))))), 0.5);
}

#[test]
fn deadlines_are_for_all_or_by_class_and_drawn_between_bounds() {
    let seconds = |line: &str, class: Option<&str>| -> Vec<f64> {
        let requests = trace(line).requests.into_iter().filter(|it| it.class.as_deref() == class);
        requests.map(|it| it.deadline.map_or(0.0, |it| it.as_secs_f64())).collect()
    };
    assert!(seconds("hot:seconds=5,deadline=0.25", None).iter().all(|&it| it == 0.25));
    let drawn = seconds("hot:seconds=100,deadline=0.5-3", None);
    assert!(drawn.iter().all(|it| (0.5..=3.0).contains(it)));
    about(mean(drawn.into_iter()), 1.75);
    let line = "hot:seconds=5,classes=a:1;b:1;c:1,deadline=a:1;b:2";
    for (class, expected) in [("a", 1.0), ("b", 2.0), ("c", 0.0)] {
        let found = seconds(line, Some(class));
        assert!(!found.is_empty() && found.iter().all(|&it| it == expected), "{class}: {found:?}");
    }
    let others = seconds("hot:seconds=5,classes=a:1;b:1,deadline=a:1;7", Some("b"));
    assert!(others.iter().all(|&it| it == 7.0));
}

#[test]
fn a_file_is_read_back_as_the_same_trace() {
    for line in LINES.into_iter().chain([
        "bursts:within=0,seconds=40,classes=a:1;b:1,tenants=x:2;y:1,deadline=0.5-3,class=c",
        "groups:stages=5:3;9:2,pause=100000",
    ]) {
        let trace = trace(line);
        let mut packed = Vec::new();
        trace.write_gzip(&mut packed).unwrap();
        assert!(Trace::read(&packed[..]).unwrap() == trace, "{line}");
    }
}

#[test]
fn the_lowest_rate_still_gives_a_request() {
    for workload in &WORKLOADS {
        let rate = if workload.keys.iter().any(|it| it.name == "qps") { "qps" } else { "rate" };
        let trace = trace(&format!("{}:{rate}=0.001,seconds=0.1", workload.name));
        assert!(!trace.requests.is_empty(), "{}", workload.name);
        assert!(trace.span().as_secs_f64() < 0.1, "{}", workload.name);
    }
}

#[test]
fn valid_lines_round_trip() {
    for (line, shown) in [
        ("groups", "groups"),
        ("groups:", "groups"),
        ("rag:zipf=0.8", "rag:zipf=0.8"),
        ("rag:seconds=9,qps=20", "rag:qps=20,seconds=9"),
        ("groups:stages=15:50;3:20,pause=60", "groups:stages=15:50;3:20,pause=60"),
        ("groups:stages=", "groups:stages="),
        (
            "bursts:deadline=batch:9;0.5-3,tenants=a:10;b:1,burst_class=batch",
            "bursts:burst_class=batch,tenants=a:10;b:1,deadline=batch:9;0.5-3",
        ),
    ] {
        assert_eq!(plan(line).to_string(), shown);
        assert_eq!(plan(shown).generate(1), plan(line).generate(1), "{line}");
        assert_eq!(plan(&plan(line).describe()).generate(1), plan(line).generate(1), "{line}");
    }
    assert_eq!(plan("hot:qps=9").describe(), "hot:shared=8000,own=200,out=200,qps=9,seconds=120");
    assert_eq!(plan("hot:qps=9").workload().name, "hot");
}

#[test]
fn an_invalid_line_says_what_is_expected() {
    for (line, expected) in [
        ("", "no workload is called \"\"; there are groups, chat, rag, agents, coding, hot, noreuse, bursts"),
        ("crowd:qps=1", "no workload is called \"crowd\"; there are groups, chat"),
        ("hot:speed=1", "hot has no key \"speed\"; it has shared, own, out, qps, seconds"),
        ("hot:qps", "\"qps\" is not of the form key=value"),
        ("hot:qps=1,qps=1", "`qps` is given twice"),
        ("hot:qps=fast", "`qps` is \"fast\"; a number from 0.001 to 100000 is expected"),
        ("hot:qps=0", "`qps` is \"0\"; a number"),
        ("hot:qps=NaN", "`qps` is \"NaN\"; a number"),
        ("hot:own=0", "`own` is \"0\"; a whole number from 1 to 1000000 is expected"),
        ("hot:own=1.5", "`own` is \"1.5\"; a whole number"),
        ("hot:seconds=1e9", "`seconds` is \"1e9\"; a number from 0.1 to 1000000 is expected"),
        ("rag:zipf=-1", "`zipf` is \"-1\"; a number from 0 to 10 is expected"),
        ("rag:per_prompt=9,documents=8", "`per_prompt` is 9, but there are 8 `documents`"),
        ("groups:stages=3", "`stages` is \"3\"; up to 1000 of QPS:SECONDS are expected, such as 3:20;10:20"),
        ("groups:stages=3:20;0:20", "`stages` is \"3:20;0:20\"; up to"),
        ("groups:stages=3:20,qps=5", "`stages` take the place of `qps`"),
        ("groups:stages=3:20;3:900000,pause=100000", "it takes 1000020 s; at most 1000000 s are expected"),
        ("hot:qps=100000,seconds=1000", "it makes about 100000000 requests; at most 5000000 are expected"),
        ("bursts:every=0.1,burst=1000000", "requests; at most 5000000"),
        ("agents:steps=1000,rate=100,seconds=30,observation=9,out=9", "at most 50000000 are expected"),
        ("chat:question=1000000", "a prompt may get 120"),
        ("hot:speed=1", "out, qps, seconds, classes, tenants, deadline"),
        ("hot:class=batch", "hot has no key \"class\""),
        ("hot:classes=batch", "up to 32 of NAME:SHARE are expected, each share above 0, such as a:0.2;b:0.8"),
        ("hot:classes=a:0", "`classes` is \"a:0\"; up to 32"),
        ("hot:classes=:1", "`classes` is \":1\"; up to 32"),
        ("hot:tenants=a:1;b:NaN", "`tenants` is \"a:1;b:NaN\"; up to 10000 of NAME:SHARE"),
        (
            "hot:deadline=0",
            "`deadline` is \"0\"; seconds from 0.001 to 86400 are expected, such as 2, 0.5-3 or",
        ),
        ("hot:deadline=3-2", "`deadline` is \"3-2\""),
        ("hot:deadline=:2", "`deadline` is \":2\""),
        ("hot:deadline=90000", "`deadline` is \"90000\""),
    ] {
        let error = line.parse::<Plan>().map(|it| it.to_string()).unwrap_err().to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
}

#[test]
fn requests_come_at_their_rate_and_size() {
    for (line, requests, prompt_tokens, answer_tokens) in [
        ("groups:seconds=300", 6_000.0, 7_200.0, 1_000.0),
        ("rag", 3_000.0, 12_600.0, 200.0),
        ("hot", 3_600.0, 8_200.0, 200.0),
        ("noreuse:seconds=300", 6_000.0, 4_000.0, 200.0),
        // Three bursts of a hundred in twelve hundred short ones.
        ("bursts", 1_500.0, (1_200.0 * 1_500.0 + 300.0 * 8_000.0) / 1_500.0, 180.0),
        // Long enough for few conversations to be cut.
        ("chat:seconds=5000", 80_000.0, 5_000.0, 250.0),
    ] {
        let trace = trace(line);
        about(trace.requests.len() as f64, requests);
        about(mean(trace.requests.iter().map(|it| f64::from(it.answer_tokens))), answer_tokens);
        // Turns of longer conversations count more, so the mean is not checked there.
        if !line.starts_with("chat") {
            about(mean(trace.requests.iter().map(|it| it.prompt_tokens() as f64)), prompt_tokens);
        }
        let seconds: f64 = plan(line).values.real("seconds");
        assert!((0.95..=1.0).contains(&(trace.span().as_secs_f64() / seconds)), "{line}");
    }
}

#[test]
fn groups_have_their_number_of_prompts_and_share_prefixes() {
    let trace = trace("groups:groups=10,prompts=3,seconds=60");
    let prompts: HashSet<Vec<u64>> =
        trace.requests.iter().map(|it| it.prompt.iter().map(|it| it.text).collect()).collect();
    let shared: HashSet<u64> = prompts.iter().map(|it| it[0]).collect();
    let own: HashSet<u64> = prompts.iter().map(|it| it[1]).collect();
    assert_eq!((shared.len(), own.len(), prompts.len()), (10, 30, 30));
    let sizes: HashSet<Vec<u32>> =
        trace.requests.iter().map(|it| it.prompt.iter().map(|it| it.tokens).collect()).collect();
    assert_eq!(sizes, HashSet::from([vec![6_000, 1_200]]));
    let first_seen = 10.0 * 6_000.0 + 30.0 * 1_200.0;
    let all = trace.requests.len() as f64 * 7_200.0;
    assert!((trace.reuse() - (1.0 - first_seen / all)).abs() < 1e-9);
}

#[test]
fn zipf_makes_the_first_group_the_most_popular() {
    let count = |line: &str| {
        let trace = trace(line);
        let first = Dice::new(7).shared(dice::Shared::Opening, 0);
        trace.requests.iter().filter(|it| it.prompt[0].text == first).count() as f64
            / trace.requests.len() as f64
    };
    about(count("groups:groups=4,seconds=1000"), 0.25);
    about(count("groups:groups=4,seconds=1000,zipf=1"), 12.0 / 25.0);
}

#[test]
fn each_stage_is_a_part_after_a_pause() {
    let trace = trace("groups:stages=15:50;3:20;10:20,pause=100");
    let part = |part: u32| -> Vec<f64> {
        trace.requests.iter().filter(|it| it.part == part).map(|it| it.at.as_secs_f64()).collect()
    };
    for (number, begin, end, rate) in [(0, 0.0, 50.0, 15.0), (1, 150.0, 170.0, 3.0), (2, 270.0, 290.0, 10.0)]
    {
        let at = part(number);
        assert!(at.iter().all(|it| (begin..end).contains(it)), "part {number}: {at:?}");
        let expected = rate * (end - begin);
        assert!((at.len() as f64 - expected).abs() < 3.0 * expected.sqrt(), "part {number}: {}", at.len());
    }
    assert!(part(3).is_empty());
}

/// Every prompt begins with the one before it and its answer, and adds one piece.
#[track_caller]
fn check_growth(line: &str, turns_mean: f64) {
    let trace = trace(line);
    let sessions = sessions(&trace);
    for turns in sessions.values() {
        for pair in turns.windows(2) {
            let answer = Piece { text: pair[0].answer, tokens: pair[0].answer_tokens };
            let before = [&pair[0].prompt[..], &[answer]].concat();
            assert!(pair[1].prompt.starts_with(&before) && pair[1].prompt.len() == before.len() + 1);
            assert!(pair[0].at < pair[1].at);
        }
        assert_eq!(turns[0].prompt.len(), 2);
        assert!(turns.len() as f64 <= 2.0 * turns_mean - 1.0);
    }
    about(mean(sessions.values().map(|it| it.len() as f64)), turns_mean);
}

#[test]
fn a_turn_repeats_all_before_it() {
    check_growth("chat:seconds=5000", 8.0);
    check_growth("agents:seconds=8000", 20.0);
}

#[test]
fn a_coding_session_repeats_all_before_it_up_to_the_longest_context() {
    let trace = trace("coding:rate=0.005,seconds=100000");
    let sessions = sessions(&trace);
    for calls in sessions.values() {
        for pair in calls.windows(2) {
            let answer = Piece { text: pair[0].answer, tokens: pair[0].answer_tokens };
            assert!(pair[1].prompt.starts_with(&[&pair[0].prompt[..], &[answer]].concat()));
        }
        assert!(calls.iter().all(|it| it.prompt_tokens() <= 300_000));
        assert!(calls.len() <= 330);
    }
    // As in the recording, to within what 500 draws allow.
    let first = mean(sessions.values().map(|it| it[0].prompt_tokens() as f64));
    assert!((62_000.0..76_000.0).contains(&first), "{first}");
}

#[test]
fn a_chat_takes_its_time() {
    let trace = trace("chat:seconds=5000");
    let waits: Vec<f64> = sessions(&trace)
        .values()
        .flat_map(|turns| turns.windows(2).map(|it| it[1].at.since(it[0].at).as_secs_f64()))
        .collect();
    about(mean(waits.into_iter()), 20.0 + 250.0 * 0.03);
}

#[test]
fn agents_of_a_kind_share_their_system_prompt() {
    let trace = trace("agents:seconds=1000");
    let first: Vec<Piece> = sessions(&trace).values().map(|it| it[0].prompt[0]).collect();
    assert!(first.iter().all(|it| it.tokens == 4_000));
    assert_eq!(first.iter().map(|it| it.text).collect::<HashSet<_>>().len(), 4);
    let tasks: HashSet<u64> = sessions(&trace).values().map(|it| it[0].prompt[1].text).collect();
    assert_eq!(tasks.len(), first.len());
}

#[test]
fn documents_are_popular_by_rank_and_unique_in_a_prompt() {
    let trace = trace("rag:per_prompt=1,seconds=3000,document=10");
    let mut asked: HashMap<u64, f64> = HashMap::new();
    for request in &trace.requests {
        *asked.entry(request.prompt[1].text).or_default() += 1.0;
    }
    let rank = |rank: u64| asked[&Dice::new(7).shared(dice::Shared::Document, rank)];
    assert!((8.5..11.5).contains(&(rank(0) / rank(9))), "{} and {}", rank(0), rank(9));

    for line in ["rag:per_prompt=4,documents=4,zipf=10", "rag:per_prompt=5,documents=50"] {
        for request in self::trace(line).requests {
            let texts: HashSet<u64> = request.prompt.iter().map(|it| it.text).collect();
            assert_eq!(texts.len(), request.prompt.len(), "{line}");
            assert_eq!(request.prompt.len() as u32, 2 + plan(line).values.whole("per_prompt"), "{line}");
        }
    }
}

#[test]
fn reuse_is_what_the_shape_promises() {
    for (line, least, most) in [
        ("hot", 0.97, 8_000.0 / 8_200.0),
        ("noreuse", 0.0, 0.0),
        ("hot:shared=0", 0.0, 0.0),
        ("agents", 0.75, 0.95),
        // The recording itself: 0.96.
        ("coding:rate=0.005", 0.93, 0.98),
        ("chat", 0.75, 0.95),
        ("rag", 0.3, 0.7),
    ] {
        let reuse = trace(line).reuse();
        assert!((least..=most).contains(&reuse), "{line}: {reuse}");
    }
}

#[test]
fn bursts_come_on_time_and_all_at_once() {
    let trace = trace("bursts");
    let (long, short): (Vec<&Request>, Vec<&Request>) = trace.requests.iter().partition(|it| it.part == 1);
    assert_eq!(long.len(), 300);
    for request in long {
        let at = request.at.as_secs_f64() % 30.0;
        assert!(at < 1.0 && request.prompt_tokens() == 8_000 && request.answer_tokens == 100, "{at}");
    }
    assert!(short.iter().all(|it| it.prompt[0] == short[0].prompt[0] && it.prompt_tokens() == 1_500));
}

#[test]
fn one_burst_of_another_class_hits_steady_chats() {
    let line = "bursts:qps=20,system=0,prompt=500,class=interactive,seconds=60,every=31,\
        burst=200,burst_prompt=10000,within=0,burst_class=batch,deadline=interactive:2";
    let trace = trace(line);
    let (long, short): (Vec<&Request>, Vec<&Request>) =
        trace.requests.iter().partition(|it| it.class.as_deref() == Some("batch"));
    assert_eq!(long.len(), 200);
    assert!(long.iter().all(|it| it.prompt_tokens() == 10_000 && it.deadline.is_none()));
    // A microsecond apart, so that a file keeps them there.
    assert!(long[199].at.since(long[0].at).as_millis() < 1 && long[0].at.as_secs_f64() >= 31.0);
    let is_chat = |it: &&Request| {
        it.class.as_deref() == Some("interactive") && it.prompt_tokens() == 500 && it.deadline.is_some()
    };
    assert!(short.iter().all(is_chat));
    about(short.len() as f64, 1_200.0);
}

#[test]
fn an_empty_prefix_is_left_out() {
    assert!(trace("hot:shared=0,seconds=5").requests.iter().all(|it| it.prompt.len() == 1));
    assert!(trace("chat:system=0,turns=1,seconds=30").requests.iter().all(|it| it.prompt.len() == 1));
}

/// The section on a workload as `docs/replay.md` must have it.
fn section(workload: &Workload) -> String {
    let mut text =
        format!("### `{}`\n\n{}\n\n| key | default | |\n|---|---|---|\n", workload.name, workload.about);
    text.push_str(&rows(workload.keys));
    text
}

fn rows(keys: &[WorkloadKey]) -> String {
    let mut text = String::new();
    for key in keys {
        let default = if key.default.is_empty() { "none".to_owned() } else { format!("`{}`", key.default) };
        text.push_str(&format!("| `{}` | {default} | {} |\n", key.name, key.about));
    }
    text
}

#[test]
fn the_documentation_has_every_workload_and_key() {
    let docs = include_str!("../../../../docs/replay.md");
    let missing: Vec<String> = WORKLOADS.iter().map(section).filter(|it| !docs.contains(it)).collect();
    assert!(missing.is_empty(), "docs/replay.md lacks:\n\n{}", missing.join("\n"));
    assert!(docs.contains(&rows(&COMMON)), "docs/replay.md lacks:\n\n{}", rows(&COMMON));
    let help = help();
    for key in WORKLOADS.iter().flat_map(|it| it.keys).chain(&COMMON) {
        assert!(help.contains(&format!("{}={}", key.name, key.default)), "{}", key.name);
    }
}
