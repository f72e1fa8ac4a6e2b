//! Sessions as they are read, and one of them alone.

use super::*;
use crate::lab::{self, LabConfig, PreparedTrace};
use crate::profile::A100X8_70B;
use maitre_base::Instant;

fn read(lines: &str) -> Result<SessionTrace, SessionTraceError> {
    SessionTrace::read(lines.as_bytes())
}

/// Two sessions of a kind with 128 shared tokens; the second has a sub-agent that its last call waits for.
const TWO: &str = concat!(
    r#"{"block_size":64,"hash_id_scope":"local","tool_tokens":100,"system_tokens":30,"requests":["#,
    r#"{"t":0,"in":300,"out":5,"runs":[[1,4]],"api_time":1,"think_time":0},"#,
    r#"{"t":9,"in":400,"out":7,"runs":[[1,3],[9,3]],"api_time":2,"think_time":8}]}"#,
    "\n",
    r#"{"block_size":64,"tool_tokens":100,"system_tokens":30,"requests":["#,
    r#"{"t":0,"in":200,"out":5,"runs":[[1,3]],"api_time":1},"#,
    r#"{"t":7,"duration_ms":5000,"requests":[{"t":0,"in":64,"out":1,"runs":[[50,1]],"api_time":1,"think_time":0}]},"#,
    r#"{"t":10,"in":260,"out":7,"runs":[[1,4]],"api_time":2,"think_time":9}]}"#,
);

#[test]
fn runs_become_texts_that_sessions_of_a_kind_share() {
    let trace = read(TWO).unwrap().trace;
    let pieces = |number: usize| -> Vec<(u64, u32)> {
        trace.requests[number].prompt.iter().map(|it| (it.text, it.tokens)).collect()
    };
    let (first, second, other) = (pieces(0), pieces(1), pieces(2));
    // Cut after the shared blocks, after block 3, and after the last whole block.
    assert_eq!(first.iter().map(|it| it.1).collect::<Vec<_>>(), [128, 64, 64, 44]);
    assert_eq!(second[..2], first[..2]);
    assert_eq!(second[2].1, 192);
    assert_eq!(other[0], first[0], "sessions of a kind begin alike");
    assert_ne!(other[1], first[1], "block ids are local to a session");
    assert_eq!(trace.requests[1].prompt_tokens(), 400);
}

#[test]
fn calls_come_after_answers_and_sub_agents() {
    let trace = read(TWO).unwrap();
    let seconds = |it: &[(u32, Duration)]| it.iter().map(|it| (it.0, it.1.as_secs_f64())).collect::<Vec<_>>();
    assert_eq!(trace.sessions[1].threads, [2..4, 4..5]);
    assert_eq!(trace.calls[1].think, Duration::from_secs(8));
    assert_eq!(seconds(&trace.calls[2].starts), [(1, 1.0)], "it began at 2, and the answer came at 1");
    assert_eq!(seconds(&trace.calls[3].waits_for), [(1, 3.0)], "it ended at 7, and the call came at 10");
    let kept = trace.filtered(|it| it == 1);
    assert_eq!((kept.sessions[0].threads.clone(), kept.calls[0].session), (vec![0..2, 2..3], 0));
}

#[track_caller]
fn check_error(line: &str, expected: &str) {
    let error = read(line).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_broken_session_is_an_error_that_says_where() {
    let with = |request: &str| format!(r#"{{"block_size":64,"requests":[{request}]}}"#);
    check_error("", "no sessions");
    check_error("{}", "line 1: not a session: missing field `block_size`");
    check_error(&format!("\n{}", with("")), "line 2: `requests` is empty");
    check_error(r#"{"block_size":0,"requests":[]}"#, "`block_size` is 0");
    check_error(r#"{"block_size":64,"hash_id_scope":"global","requests":[]}"#, "\"global\"; only \"local\"");
    check_error(&with(r#"{"t":0}"#), "request 0: neither `in` nor `requests`");
    check_error(&with(r#"{"in":0,"out":1,"runs":[]}"#), "`in` is 0");
    check_error(&with(r#"{"in":9,"runs":[]}"#), "`out` is missing");
    check_error(&with(r#"{"in":100,"out":1,"runs":[[1,2]]}"#), "2 blocks of 64 tokens, but `in` is 100");
    check_error(&with(r#"{"in":100,"out":1,"runs":[[18446744073709551615,1]]}"#), "`runs`");
    check_error(&with(r#"{"in":9,"out":1,"runs":[],"think_time":-1}"#), "`think_time` is -1");
    check_error(&with(r#"{"t":1,"duration_ms":1,"requests":[]}"#), "at least one call");
}

#[test]
fn a_session_alone_is_as_fast_as_in_an_empty_fleet() {
    let trace = read(TWO).unwrap();
    let profile = crate::profile::Profile { block_tokens: 64, ..A100X8_70B };
    let prepared = PreparedTrace::of_sessions(&trace, 64, &profile);
    let brain = maitre_dispatch::BrainSettings::default();
    let config = LabConfig { sessions: vec![1], ..LabConfig::new(vec![profile; 2], brain) };
    let outcome = lab::play(&config, &prepared, &mut ());
    assert_eq!(outcome.sessions.len(), 2);
    for session in &outcome.sessions {
        let ratio = session.took.as_secs_f64() / session.alone.unwrap().as_secs_f64();
        assert!(session.is_complete && (0.97..1.03).contains(&ratio), "{ratio}: {session:?}");
    }
    // The second session begins when the first has ended.
    assert_eq!(outcome.sessions[1].began, Instant::ZERO + outcome.sessions[0].took);
}
