//! Headers and bodies in, standings or refusals out.

use std::sync::Arc;

use http::header::HeaderName;
use maitre_dialect::route::Route;
use maitre_queue::{Tenant, Terms};

use super::*;
use crate::keys::ApiKey;

const AT: Instant = Instant::from_millis(1_000);

fn headers(rows: &[(&str, &str)]) -> HeaderMap {
    let row = |(name, value): &(&str, &str)| -> (HeaderName, HeaderValue) {
        (name.parse().unwrap(), value.parse().unwrap())
    };
    rows.iter().map(row).collect()
}

fn judge(
    (hints, queue): (&ClientHints, &queue::QueueSettings),
    rows: &[(&str, &str)],
    extra: &str,
) -> Result<Priority, Refused> {
    let body = format!(r#"{{"model":"m","messages":[{{}}]{extra}}}"#);
    let parsed = openai::parse(Route::Chat, body.as_bytes()).unwrap();
    priority(
        Rules { hints, queue, caller: &Caller::Anyone, is_carried: false },
        AT,
        &headers(rows),
        Some(&parsed),
    )
}

/// Under the defaults, which have three classes of which the second is the standard one.
#[track_caller]
fn check_class(rows: &[(&str, &str)], extra: &str, expected: u8) {
    let priority = judge((&ClientHints::default(), &queue::QueueSettings::default()), rows, extra).unwrap();
    assert_eq!(priority.class, ClassId(expected), "{rows:?} {extra}");
}

#[track_caller]
fn check_deadline(rows: &[(&str, &str)], expected_ms: Option<f64>) {
    let priority = judge((&ClientHints::default(), &queue::QueueSettings::default()), rows, "").unwrap();
    let expected = expected_ms.map(|it| AT + Duration::from_secs_f64(it / 1_000.0));
    assert_eq!(priority.deadline, expected, "{rows:?}");
}

#[track_caller]
fn check_refused(rows: &[(&str, &str)], expected: &str) {
    let refused = judge((&ClientHints::default(), &queue::QueueSettings::default()), rows, "").unwrap_err();
    assert_eq!((refused.code(), refused.to_string().as_str()), ("bad_header", expected));
}

#[test]
fn a_request_without_hints_has_the_default_class_and_no_tenant() {
    let priority =
        judge((&ClientHints::default(), &queue::QueueSettings::default()), &[("accept", "*/*")], "").unwrap();
    assert_eq!(priority, Priority { class: ClassId(1), tenant: TenantId(0), deadline: None });
}

#[test]
fn a_class_has_many_names() {
    for (name, value, expected) in [
        ("x-maitre-class", "interactive", 0),
        ("X-Maitre-Class", " BATCH ", 2),
        ("x-maitre-class", "2", 2),
        ("x-gateway-inference-objective", "batch", 2),
        ("x-llm-d-inference-objective", "batch", 2),
        ("x-smg-priority", "0", 0),
        ("x-request-priority", "batch", 2),
        ("priority", "u=0", 0),
        ("priority", "i, u=2;x=1", 0),
        ("priority", "u=3", 1),
        ("priority", "u=4,i", 2),
        ("priority", "u=1, u=7", 2),
    ] {
        check_class(&[(name, value)], "", expected);
    }
    for (extra, expected) in [
        (r#","priority":"batch""#, 2),
        (r#","priority":0"#, 1),
        (r#","priority":1"#, 2),
        (r#","priority":100"#, 2),
        (r#","priority":-1"#, 0),
        (r#","priority":-9223372036854775808"#, 0),
        (r#","service_tier":"priority""#, 0),
        (r#","service_tier":"flex""#, 2),
        (r#","service_tier":"default""#, 1),
        (r#","service_tier":"auto""#, 1),
    ] {
        check_class(&[], extra, expected);
    }
}

#[test]
fn the_first_hint_counts() {
    let body = r#","priority":"batch","service_tier":"priority""#;
    check_class(&[], body, 2);
    check_class(&[("priority", "u=0")], body, 0);
    check_class(&[("priority", "u=3")], body, 1);
    check_class(&[("x-request-priority", "2"), ("priority", "u=0")], "", 2);
    check_class(&[("x-request-priority", "2"), ("x-smg-priority", "0")], "", 0);
    check_class(&[("x-smg-priority", "0"), ("x-maitre-class", "batch")], "", 2);
    check_class(&[("x-maitre-class", "batch"), ("x-maitre-class", "interactive")], "", 2);
}

#[test]
fn unknown_priority_words_are_ignored() {
    for name in ["x-gateway-inference-objective", "x-llm-d-inference-objective", "x-smg-priority"] {
        check_class(&[(name, "gold"), ("x-request-priority", "batch")], "", 2);
    }
    for value in ["", "i", "u", "u=", "u=8", "u=-1", "u=x", "high"] {
        check_class(&[("priority", value)], r#","service_tier":"flex""#, 2);
    }
    check_class(&[], r#","priority":"gold","service_tier":"flex""#, 2);
    check_class(&[], r#","priority":null,"service_tier":"silver""#, 1);
}

#[test]
fn a_number_is_ordered_as_configured() {
    let hints = ClientHints { body_priority: PriorityOrder::HigherFirst, ..ClientHints::default() };
    for (number, expected) in [(1, 0), (0, 1), (-1, 2), (i64::MIN, 2), (i64::MAX, 0)] {
        let priority =
            judge((&hints, &queue::QueueSettings::default()), &[], &format!(r#","priority":{number}"#))
                .unwrap();
        assert_eq!(priority.class, ClassId(expected), "{number}");
    }
}

#[test]
fn a_deadline_counts_from_arrival() {
    check_deadline(&[("x-maitre-deadline-ms", "1500")], Some(1_500.0));
    check_deadline(&[("x-maitre-deadline-ms", "1500.5")], Some(1_500.5));
    check_deadline(&[("x-slo-ttft-ms", "1")], Some(1.0));
    check_deadline(&[("x-ttft-slo-ms", "86400000")], Some(86_400_000.0));
    check_deadline(&[("x-request-timeout-ms", "30000")], Some(30_000.0));
    check_deadline(&[("x-slo-ttft-ms", "10"), ("x-maitre-deadline-ms", "20")], Some(20.0));
    check_deadline(&[("x-slo-ttft-ms", "soon"), ("x-ttft-slo-ms", "20")], Some(20.0));
    for nonsense in ["", "0", "0.5", "-1", "+1", "1e3", "inf", "NaN", "1.2.3", ".", "86400001", "5s"] {
        check_deadline(&[("x-slo-ttft-ms", nonsense)], None);
        let refused = judge(
            (&ClientHints::default(), &queue::QueueSettings::default()),
            &[("x-maitre-deadline-ms", nonsense)],
            "",
        );
        assert_eq!(refused.map_err(|it| it.code()), Err("bad_header"), "{nonsense}");
    }
}

#[test]
fn an_invalid_header_of_ours_is_an_error() {
    check_refused(
        &[("x-maitre-class", "gold")],
        "the header x-maitre-class is \"gold\"; write one of the classes interactive, standard, batch, or its number, from 0",
    );
    check_refused(
        &[("x-maitre-deadline-ms", "5s")],
        "the header x-maitre-deadline-ms is \"5s\"; write milliseconds until the first token, 1 to 86400000",
    );
}

#[test]
fn a_tenant_is_identified_by_key_header_or_adapter() {
    let check = |hints: &ClientHints, rows: &[(&str, &str)], extra: &str, expected: Option<&str>| {
        let priority = judge((hints, &queue::QueueSettings::default()), rows, extra).unwrap();
        let expected = expected.map_or(TenantId(0), |it| tenant(it.as_bytes()));
        assert_eq!(priority.tenant, expected, "{rows:?} {extra}");
    };
    let hints = ClientHints::default();
    check(&hints, &[("authorization", "Bearer sk-1"), ("x-api-key", "sk-2")], "", Some("sk-1"));
    check(&hints, &[("authorization", "bEARER  sk-1 ")], "", Some("sk-1"));
    check(
        &hints,
        &[("authorization", "Basic abc"), ("x-api-key", "sk-2"), ("api-key", "sk-3")],
        "",
        Some("sk-2"),
    );
    check(&hints, &[("api-key", "sk-3")], "", Some("sk-3"));
    check(&hints, &[("authorization", "Bearer ")], "", None);
    check(&hints, &[("x-maitre-tenant", "a")], "", None);
    let hints = ClientHints { tenant_by: TenantBy::Header, ..ClientHints::default() };
    check(&hints, &[("x-maitre-tenant", "a"), ("authorization", "Bearer sk-1")], "", Some("a"));
    check(&hints, &[("authorization", "Bearer sk-1")], "", None);
    let hints = ClientHints { tenant_by: TenantBy::Adapter, ..ClientHints::default() };
    check(&hints, &[("authorization", "Bearer sk-1")], "", Some("m"));
    check(&hints, &[], r#","lora_path":"l""#, Some("l"));
}

#[test]
fn no_tenant_exceeds_its_terms() {
    let mut queue = queue::QueueSettings::default();
    queue.others.best = ClassId(1);
    let terms = Terms { usual: Some(ClassId(2)), ..Terms::default() };
    let team = Tenant { name: "sk-1".to_owned(), terms };
    queue.tenants.insert(team.id(), team);
    let hints = ClientHints::default();
    for (key, class, expected) in
        [("sk-1", None, 2), ("sk-1", Some("0"), 0), ("sk-2", None, 1), ("sk-2", Some("0"), 1)]
    {
        let bearer = format!("Bearer {key}");
        let mut rows = vec![("authorization", bearer.as_str())];
        rows.extend(class.map(|it| ("x-maitre-class", it)));
        assert_eq!(judge((&hints, &queue), &rows, "").unwrap().class, ClassId(expected), "{key} {class:?}");
    }
}

#[test]
fn without_a_body_only_headers_count() {
    let (hints, queue) = (ClientHints::default(), queue::QueueSettings::default());
    let rows = headers(&[("x-maitre-class", "batch"), ("x-api-key", "k"), ("x-slo-ttft-ms", "5")]);
    let actual = priority(
        Rules { hints: &hints, queue: &queue, caller: &Caller::Anyone, is_carried: false },
        AT,
        &rows,
        None,
    )
    .unwrap();
    let deadline = Some(AT + Duration::from_millis(5));
    assert_eq!(actual, Priority { class: ClassId(2), tenant: tenant(b"k"), deadline });
}

/// A caller with one of `acme`'s keys, with this class and tenant header.
fn known(trusted: bool, by: TenantBy, asked: &str, tenant: &str) -> Priority {
    let key = ApiKey { tenant: "acme".to_owned(), best: ClassId(1), models: Vec::new(), trusted };
    let caller = Caller::Known(Arc::new(key));
    let (hints, queue) =
        (ClientHints { tenant_by: by, ..ClientHints::default() }, queue::QueueSettings::default());
    let rows = headers(&[("x-maitre-class", asked), ("x-maitre-tenant", tenant), ("x-api-key", "the-key")]);
    priority(Rules { hints: &hints, queue: &queue, caller: &caller, is_carried: false }, AT, &rows, None)
        .unwrap()
}

#[test]
fn a_key_decides_the_tenant_and_the_best_class() {
    for (trusted, by, claimed, expected) in [
        (false, TenantBy::Key, "other", "acme"),
        (true, TenantBy::Key, "other", "acme"),
        (false, TenantBy::Header, "other", "acme"),
        (false, TenantBy::Adapter, "other", "acme"),
        // A trusted key may act for other tenants, but need not.
        (true, TenantBy::Header, "other", "other"),
        (true, TenantBy::Header, " ", "acme"),
    ] {
        let priority = known(trusted, by, "standard", claimed);
        assert_eq!(priority.tenant, tenant(expected.as_bytes()), "{trusted} {by:?} {claimed:?}");
    }
    for (asked, expected) in [("interactive", 1), ("standard", 1), ("batch", 2)] {
        assert_eq!(known(true, TenantBy::Key, asked, "").class, ClassId(expected), "{asked}");
    }
}
