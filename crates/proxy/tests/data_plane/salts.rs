//! Cache salts: what the engine gets, and that no tenant learns of another's prompts.

use maitre_policy::Name;
use maitre_proxy::{RouterSettings, Salter};

use crate::events::{believed_and_found, by_delay, prompt, publisher};
use crate::fixture::{Client, Fixture, chat, engine_settings, fixture_with, post, within};
use crate::keys::{ACME, UMBRA, key, showing, with_keys};

const CHAT: &str = "/v1/chat/completions";

fn salted(settings: RouterSettings) -> RouterSettings {
    RouterSettings { salt: Some(Salter::of(b"the secret of this fleet")), ..settings }
}

async fn fixture(settings: RouterSettings) -> Fixture {
    let engine = maitre_sim::http::HostConfig { bodies_max: 100, ..engine_settings() };
    let fixture = fixture_with(1, engine, settings).await;
    within(fixture.router.until(|brain| brain.fleet().workers().all(|it| it.report.is_some()))).await;
    fixture
}

/// The body that the engine gets for this one.
async fn received(fixture: &Fixture, client: &mut Client, path: &str, body: &str, key: &str) -> String {
    let answer = client.ask(showing(post(path, body.to_owned()), key)).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    String::from_utf8(fixture.engines[0].handle().bodies().last().unwrap().body.to_vec()).unwrap()
}

fn salt_of(body: &str) -> String {
    let (_, rest) = body.split_once("\"cache_salt\":\"").unwrap_or_else(|| panic!("no salt in {body}"));
    rest[..64].to_owned()
}

#[tokio::test]
async fn each_tenant_has_its_salt_and_no_other_byte_changes() {
    let fixture = fixture(salted(with_keys(key("acme")))).await;
    let mut client = fixture.client().await;
    let body = chat(1, false);
    let own = received(&fixture, &mut client, CHAT, &body, ACME).await;
    let salt = salt_of(&own);
    assert_eq!(own, body.replacen('{', &format!("{{\"cache_salt\":\"{salt}\","), 1));
    assert!(salt.bytes().all(|it| it.is_ascii_hexdigit()), "{salt}");
    assert_eq!(received(&fixture, &mut client, CHAT, &body, ACME).await, own, "the same each time");
    let others = salt_of(&received(&fixture, &mut client, CHAT, &body, UMBRA).await);
    assert_ne!(others, salt);
    // Even a client that knows another tenant's salt cannot use it.
    let stolen = body.replacen('{', &format!("{{ \"cache_salt\":\"{salt}\" , \"extra_key\" : \"x\", "), 1);
    let sent = received(&fixture, &mut client, CHAT, &stolen, UMBRA).await;
    let derived = salt_of(&sent);
    assert!(derived != salt && derived != others, "its own, within its tenant");
    assert_eq!(sent, stolen.replace(&salt, &derived).replace("\"x\"", "null"));
    // A route without such a field in the engine gets none.
    let messages = body.replace("\"stream\":false", "\"stream\": false");
    assert_eq!(received(&fixture, &mut client, "/v1/messages", &messages, ACME).await, messages);
}

fn cached(answer: &crate::fixture::TestResponse) -> u64 {
    answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
}

#[tokio::test]
async fn the_same_prompt_of_two_tenants_shares_no_cache() {
    for is_salted in [false, true] {
        let mut settings = with_keys(key("acme"));
        settings.brain.strategy = Name::LeastDelay;
        let fixture = fixture(if is_salted { salted(settings) } else { settings }).await;
        let mut client = fixture.client().await;
        let body = chat(1, false).replace("a table for two", &"a long story of a table for two ".repeat(50));
        let mut ask = async |key| {
            let answer = client.ask(showing(post(CHAT, body.clone()), key)).await.unwrap();
            assert_eq!(answer.status, 200, "{}", answer.text());
            let held: u64 = answer.header("x-maitre-cached-tokens").parse().unwrap();
            (cached(&answer) > 0, held > 0)
        };
        assert_eq!(ask(ACME).await, (false, false));
        assert_eq!(ask(ACME).await, (true, true), "its own is there");
        assert_eq!(ask(UMBRA).await, (!is_salted, !is_salted), "what the other has asked is not");
        assert_eq!(ask(UMBRA).await, (true, true));
    }
}

#[tokio::test]
async fn events_of_salted_blocks_match_salted_prompts() {
    let keys = with_keys(key("acme")).keys;
    let fixture = fixture_with(2, publisher(|_| {}), salted(RouterSettings { keys, ..by_delay() })).await;
    fixture.until_all_is_known().await;
    let mut client = fixture.client().await;
    let mut found_in_all = 0;
    for number in 0..40 {
        let key = [ACME, UMBRA][number / 2 % 2];
        let answer = client.ask(showing(post(CHAT, prompt(number % 2, number)), key)).await.unwrap();
        let (believed, found) = believed_and_found(&answer);
        assert_eq!(believed, found, "request {number} of {key}");
        // The first request of each tenant and group finds nothing cached, whatever the other tenant sent.
        assert_eq!(found > 0, number >= 4, "request {number} of {key}");
        found_in_all += found;
        fixture.until_all_is_known().await;
    }
    assert!(found_in_all > 0);
}
