//! Tenants whose caches are kept apart: what the engine is told, and what nobody learns of anybody else.

use maitre_policy::Name;
use maitre_proxy::{Salter, Settings};

use crate::events::{believed_and_found, by_delay, prompt, publisher};
use crate::keys::{ACME, UMBRA, key, showing, with_keys};
use crate::table::{Client, Table, chat, engine_settings, post, table_with, within};

const CHAT: &str = "/v1/chat/completions";

fn salted(settings: Settings) -> Settings {
    Settings { salt: Some(Salter::of(b"the secret of this fleet")), ..settings }
}

async fn table(settings: Settings) -> Table {
    let engine = maitre_sim::http::Settings { bodies_max: 100, ..engine_settings() };
    let table = table_with(1, engine, settings).await;
    within(table.router.until(|brain| brain.fleet().workers().all(|it| it.report.is_some()))).await;
    table
}

/// The body that the engine gets of this one.
async fn received(table: &Table, client: &mut Client, path: &str, body: &str, key: &str) -> String {
    let answer = client.ask(showing(post(path, body.to_owned()), key)).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    String::from_utf8(table.engines[0].handle().bodies().last().unwrap().body.to_vec()).unwrap()
}

fn salt_of(body: &str) -> String {
    let (_, rest) = body.split_once("\"cache_salt\":\"").unwrap_or_else(|| panic!("no salt in {body}"));
    rest[..64].to_owned()
}

#[tokio::test]
async fn each_tenant_has_its_salt_and_no_other_byte_changes() {
    let table = table(salted(with_keys(key("acme")))).await;
    let mut client = table.client().await;
    let body = chat(1, false);
    let own = received(&table, &mut client, CHAT, &body, ACME).await;
    let salt = salt_of(&own);
    assert_eq!(own, body.replacen('{', &format!("{{\"cache_salt\":\"{salt}\","), 1));
    assert!(salt.bytes().all(|it| it.is_ascii_hexdigit()), "{salt}");
    assert_eq!(received(&table, &mut client, CHAT, &body, ACME).await, own, "the same each time");
    let others = salt_of(&received(&table, &mut client, CHAT, &body, UMBRA).await);
    assert_ne!(others, salt);
    // Even whoever knows another's salt gets no further with it.
    let stolen = body.replacen('{', &format!("{{ \"cache_salt\":\"{salt}\" , \"extra_key\" : \"x\", "), 1);
    let sent = received(&table, &mut client, CHAT, &stolen, UMBRA).await;
    let derived = salt_of(&sent);
    assert!(derived != salt && derived != others, "its own, within its tenant");
    assert_eq!(sent, stolen.replace(&salt, &derived).replace("\"x\"", "null"));
    // Where the engine has no such field there is none.
    let messages = body.replace("\"stream\":false", "\"stream\": false");
    assert_eq!(received(&table, &mut client, "/v1/messages", &messages, ACME).await, messages);
}

fn cached(answer: &crate::table::Answer) -> u64 {
    answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
}

#[tokio::test]
async fn the_same_prompt_of_two_tenants_shares_no_cache() {
    for is_salted in [false, true] {
        let mut settings = with_keys(key("acme"));
        settings.brain.strategy = Name::LeastDelay;
        let table = table(if is_salted { salted(settings) } else { settings }).await;
        let mut client = table.client().await;
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
async fn what_engines_report_of_salted_blocks_is_found_again() {
    let keys = with_keys(key("acme")).keys;
    let table = table_with(2, publisher(|_| {}), salted(Settings { keys, ..by_delay() })).await;
    table.until_all_is_known().await;
    let mut client = table.client().await;
    let mut found_in_all = 0;
    for number in 0..40 {
        let key = [ACME, UMBRA][number / 2 % 2];
        let answer = client.ask(showing(post(CHAT, prompt(number % 2, number)), key)).await.unwrap();
        let (believed, found) = believed_and_found(&answer);
        assert_eq!(believed, found, "request {number} of {key}");
        // The first of each tenant and group finds nothing, whatever the other tenant has asked.
        assert_eq!(found > 0, number >= 4, "request {number} of {key}");
        found_in_all += found;
        table.until_all_is_known().await;
    }
    assert!(found_in_all > 0);
}
