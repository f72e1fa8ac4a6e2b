//! Lines in, traces out: what is shared, how often it comes, and what a bad line says.

use std::collections::{HashMap, HashSet};

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
const LINES: [&str; 7] = [
    "groups:seconds=5",
    "chat:seconds=30",
    "rag:seconds=5",
    "agents:seconds=30",
    "hot:seconds=5",
    "noreuse:seconds=5",
    "bursts:seconds=5,every=2",
];

#[test]
fn same_seed_same_bytes() {
    for line in LINES {
        assert_eq!(bytes(line, 7), bytes(line, 7), "{line}");
        assert_ne!(bytes(line, 7), bytes(line, 8), "{line}");
    }
}

#[test]
fn a_file_is_read_back_as_the_same_trace() {
    for line in LINES.into_iter().chain(["bursts:within=0,seconds=40", "groups:stages=5:3;9:2,pause=100000"])
    {
        let trace = trace(line);
        let mut packed = Vec::new();
        trace.write_gzip(&mut packed).unwrap();
        assert!(Trace::read(&packed[..]).unwrap() == trace, "{line}");
    }
}

#[test]
fn even_the_thinnest_traffic_brings_a_request() {
    for workload in &WORKLOADS {
        let rate = if workload.keys.iter().any(|it| it.name == "qps") { "qps" } else { "rate" };
        let trace = trace(&format!("{}:{rate}=0.001,seconds=0.1", workload.name));
        assert!(!trace.requests.is_empty(), "{}", workload.name);
        assert!(trace.span().as_secs_f64() < 0.1, "{}", workload.name);
    }
}

#[test]
fn good_lines_come_back_as_they_were() {
    for (line, shown) in [
        ("groups", "groups"),
        ("groups:", "groups"),
        ("rag:zipf=0.8", "rag:zipf=0.8"),
        ("rag:seconds=9,qps=20", "rag:qps=20,seconds=9"),
        ("groups:stages=15:50;3:20,pause=60", "groups:stages=15:50;3:20,pause=60"),
        ("groups:stages=", "groups:stages="),
    ] {
        assert_eq!(plan(line).to_string(), shown);
        assert_eq!(plan(shown).generate(1), plan(line).generate(1), "{line}");
        assert_eq!(plan(&plan(line).describe()).generate(1), plan(line).generate(1), "{line}");
    }
    assert_eq!(plan("hot:qps=9").describe(), "hot:shared=8000,own=200,out=200,qps=9,seconds=120");
    assert_eq!(plan("hot:qps=9").workload().name, "hot");
}

#[test]
fn a_bad_line_says_what_is_wanted() {
    for (line, expected) in [
        ("", "no workload is called \"\"; there are groups, chat, rag, agents, hot, noreuse, bursts"),
        ("crowd:qps=1", "no workload is called \"crowd\"; there are groups, chat"),
        ("hot:speed=1", "hot has no key \"speed\"; it has shared, own, out, qps, seconds"),
        ("hot:qps", "\"qps\" is not of the form key=value"),
        ("hot:qps=1,qps=1", "`qps` is given twice"),
        ("hot:qps=fast", "`qps` is \"fast\"; a number from 0.001 to 100000 is wanted"),
        ("hot:qps=0", "`qps` is \"0\"; a number"),
        ("hot:qps=NaN", "`qps` is \"NaN\"; a number"),
        ("hot:own=0", "`own` is \"0\"; a whole number from 1 to 1000000 is wanted"),
        ("hot:own=1.5", "`own` is \"1.5\"; a whole number"),
        ("hot:seconds=1e9", "`seconds` is \"1e9\"; a number from 0.1 to 1000000 is wanted"),
        ("rag:zipf=-1", "`zipf` is \"-1\"; a number from 0 to 10 is wanted"),
        ("rag:per_prompt=9,documents=8", "`per_prompt` is 9, but there are 8 `documents`"),
        ("groups:stages=3", "`stages` is \"3\"; up to 1000 of QPS:SECONDS are wanted, such as 3:20;10:20"),
        ("groups:stages=3:20;0:20", "`stages` is \"3:20;0:20\"; up to"),
        ("groups:stages=3:20,qps=5", "`stages` take the place of `qps`"),
        ("groups:stages=3:20;3:900000,pause=100000", "it takes 1000020 s; at most 1000000 s are wanted"),
        ("hot:qps=100000,seconds=1000", "it makes about 100000000 requests; at most 5000000 are wanted"),
        ("bursts:every=0.1,burst=1000000", "requests; at most 5000000"),
        ("agents:steps=1000,rate=100,seconds=30,observation=9,out=9", "at most 50000000 are wanted"),
        ("chat:question=1000000", "a prompt may get 120"),
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
        // Turns of longer conversations count more, so there the mean is not worth working out.
        if !line.starts_with("chat") {
            about(mean(trace.requests.iter().map(|it| it.prompt_tokens() as f64)), prompt_tokens);
        }
        let seconds: f64 = plan(line).values.real("seconds");
        assert!((0.95..=1.0).contains(&(trace.span().as_secs_f64() / seconds)), "{line}");
    }
}

#[test]
fn groups_have_so_many_prompts_and_share_their_beginnings() {
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
fn zipf_makes_the_first_group_the_most_wanted() {
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
fn each_stage_is_a_part_with_silence_before_it() {
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
fn documents_are_wanted_by_their_rank_and_none_twice_in_a_prompt() {
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
fn an_opening_of_no_tokens_is_left_out() {
    assert!(trace("hot:shared=0,seconds=5").requests.iter().all(|it| it.prompt.len() == 1));
    assert!(trace("chat:system=0,turns=1,seconds=30").requests.iter().all(|it| it.prompt.len() == 1));
}

/// The section on a workload as `docs/replay.md` is to have it.
fn section(workload: &Workload) -> String {
    let mut text =
        format!("### `{}`\n\n{}\n\n| key | default | |\n|---|---|---|\n", workload.name, workload.about);
    for key in workload.keys {
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
    let help = help();
    for key in WORKLOADS.iter().flat_map(|it| it.keys) {
        assert!(help.contains(&format!("{}={}", key.name, key.default)), "{}", key.name);
    }
}
