//! Programs as operators see them, in front of an engine whose memory holds one.

use maitre_dispatch::programs::ProgramRule;
use maitre_policy::Name;
use maitre_proxy::Secret;
use maitre_sim::http::fault::{Fault, Injection};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::admin::{KEY, Operator};
use crate::fixture::{Fixture, chat, engine_settings, fixture_with, metric, post, settings, within};

const SECRET: &str = "the name of a program that nobody else may know";

/// One stalled engine with two blocks of KV cache.
async fn small(rule: ProgramRule) -> Fixture {
    let (mut engine, mut settings) = (engine_settings(), settings());
    engine.engine.profile.kv_blocks = 2;
    settings.admin_key = Some(Secret::of(KEY.as_bytes()));
    settings.brain.strategy = Name::LeastDelay;
    settings.brain.programs.rule = rule;
    let fixture = fixture_with(1, engine, settings).await;
    within(fixture.router.until(|brain| brain.fleet().workers().all(|it| it.capacity().is_some()))).await;
    fixture.engines[0].handle().inject(Injection::always(Fault::Stall));
    fixture
}

/// Sends a call of a program; dropping the set disconnects.
async fn call(fixture: &Fixture, program: &'static str, open: &mut JoinSet<()>) {
    let (mut client, before) = (fixture.client().await, fixture.router.look(|brain| brain.open()));
    let mut request = post("/v1/chat/completions", chat(60, true));
    request.headers_mut().insert("x-maitre-program", program.parse().unwrap());
    open.spawn(async move { drop(client.send(request).await) });
    within(fixture.router.until(move |brain| brain.open() == before + 1)).await;
}

#[tokio::test]
async fn operators_see_which_program_has_memory_and_why_the_other_is_held() {
    let fixture = small(ProgramRule::WorkingSet).await;
    let mut open = JoinSet::new();
    call(&fixture, "first", &mut open).await;
    call(&fixture, SECRET, &mut open).await;
    let mut operator = Operator::at(&fixture).await;
    let overview = operator.see("/admin/v1/overview").await;
    let programs = &overview["programs"];
    assert_eq!((&programs["rule"], &programs["resident"]), (&json!("working-set"), &json!(1)), "{programs}");
    assert_eq!((&programs["known"], &programs["calls_held"]), (&json!(2), &json!(1)));
    assert_eq!((&programs["kv_tokens"], &programs["workers"][0]["programs"]), (&json!(32), &json!(1)));
    let held = &programs["calls"][0];
    assert_eq!((&held["ahead"], &held["roomiest"], &held["calls"]), (&json!(0), &json!(0), &json!(1)));
    assert!(
        held["at_latest_ms"].as_f64().unwrap() > 500_000.0 && held["roomiest_usage"].as_f64().unwrap() > 0.4
    );
    let listed: Vec<&Value> =
        programs["programs"].as_array().unwrap().iter().map(|it| &it["state"]).collect();
    assert_eq!(listed, ["running", "held"]);
    assert!(!overview.to_string().contains(SECRET));
    let page = fixture.router.metrics();
    for (name, value) in [("programs_known", 2.0), ("programs_resident", 1.0), ("program_calls_held", 1.0)] {
        assert_eq!(metric(&page, &format!("maitre_{name}{{}}")), value, "{name}");
    }
    // A question says the same as the call that came; a request that is held has no decision yet.
    let body: Value = serde_json::from_str(&chat(60, true)).unwrap();
    let mut asked = body.clone();
    asked["session_id"] = json!("a third");
    let answer = operator.ask("POST", "/admin/v1/explain", &asked).await.json();
    assert_eq!((&answer["outcome"], &answer["hold"]["ahead"]), (&json!("would-wait"), &json!(1)), "{answer}");
    assert_eq!((&answer["program"]["calls"], &answer["program"]["last_worker"]), (&json!(1), &Value::Null));
    let id = held["id"].as_str().unwrap();
    let answer = operator.ask("GET", &format!("/admin/v1/decisions/{id}"), &Value::Null).await;
    assert!(answer.status == 404 && answer.text().contains("has been held for"), "{}", answer.text());
    drop(open);
    fixture.until_nothing_is_open().await;
    let ended = "maitre_program_holds_ended_total{reason=\"disconnected\"}";
    assert_eq!(metric(&fixture.router.metrics(), ended), 1.0);
}

#[tokio::test]
async fn nothing_is_shown_of_programs_while_they_are_off() {
    let fixture = small(ProgramRule::Off).await;
    let mut operator = Operator::at(&fixture).await;
    assert_eq!(operator.see("/admin/v1/overview").await["programs"], Value::Null);
    let page = fixture.router.metrics();
    let shown = page.lines().find(|it| !it.starts_with('#') && it.contains("maitre_program"));
    assert_eq!(shown, None);
}
