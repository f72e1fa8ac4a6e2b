//! What holds for any body: members that are not named stay byte for byte and in order, and no key is doubled.

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::json::Cursor;

/// Every field that a leg may change.
const CHANGED: [&str; 14] = [
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "min_tokens",
    "min_completion_tokens",
    "kv_transfer_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "disaggregated_params",
    "prompt_token_ids",
    "prompt",
];

const ROUTES: [Route; 4] = [Route::Chat, Route::Completions, Route::Responses, Route::Messages];

/// Keys as they are decoded, values as they are written.
fn members(body: &[u8]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut cursor = Cursor::new(std::str::from_utf8(body).unwrap());
    cursor.members(|key, value| found.push((key.into_owned(), value.text.to_owned()))).unwrap();
    cursor.end().unwrap();
    found
}

fn others(body: &[u8]) -> Vec<(String, String)> {
    members(body).into_iter().filter(|it| !CHANGED.contains(&&*it.0)).collect()
}

/// A body: some members, of which some are among those that change, with or without whitespace.
fn body() -> impl Strategy<Value = String> {
    let key = prop_oneof![prop::sample::select(&CHANGED[..]).prop_map(String::from), ".{0,6}"];
    let value = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        Just(serde_json::json!(["a", {"stream": [1]}])),
    ];
    (prop::collection::vec((key, value), 0..8), any::<bool>()).prop_map(|(members, has_space)| {
        let (colon, comma) = if has_space { (" : ", " ,\n ") } else { (":", ",") };
        let members = members.iter().map(|(key, value)| format!("{}{colon}{value}", Value::from(&**key)));
        let space = &colon[..usize::from(has_space)];
        format!("{{{space}{}{space}}}", members.collect::<Vec<_>>().join(comma))
    })
}

fn check(client: &str, made: &[u8]) {
    assert_eq!(others(made), others(client.as_bytes()), "{client}");
    let keys: Vec<_> =
        members(made).into_iter().map(|it| it.0).filter(|it| CHANGED.contains(&&**it)).collect();
    for key in ["kv_transfer_params", "stream", "max_tokens", "bootstrap_room", "disaggregated_params"] {
        let before = members(client.as_bytes()).iter().filter(|it| it.0 == key).count();
        let after = keys.iter().filter(|it| **it == key).count();
        assert!(after <= before.max(1), "{key} of {client} in {}", String::from_utf8_lossy(made));
    }
    serde_json::from_slice::<Value>(made).unwrap();
}

proptest! {
    #[test]
    fn both_legs_keep_what_they_do_not_name(client in body(), route in 0..ROUTES.len()) {
        for transfer in TRANSFERS {
            let prefill = transfer.prefill(ROUTES[route], client.as_bytes()).unwrap();
            check(&client, &prefill);
            let decode = transfer.decode(ROUTES[route], client.as_bytes()).unwrap();
            check(&client, &decode);
            let has = |made: &[u8], key: &str, value: &str| {
                members(made).iter().filter(|it| it.0 == key).map(|it| &*it.1).eq([value])
            };
            let is_sglang = transfer.style() == HandoffStyle::Sglang;
            prop_assert!(is_sglang || has(&prefill, "stream", "false"));
            let is_limited = !matches!(transfer.style(), HandoffStyle::Sglang | HandoffStyle::TensorRt);
            let limit = if ROUTES[route] == Route::Responses { "max_output_tokens" } else { "max_tokens" };
            prop_assert!(!is_limited || has(&prefill, limit, "1"));
        }
    }

    #[test]
    fn a_decode_leg_has_the_answers_own_parameters(client in body(), extra in ".{0,9}") {
        let extra = Value::from(extra);
        let params = format!(r#"{{ "do_remote_prefill":true,"remote_block_ids":[[1]], "remote_engine_id":"e","remote_host":"h","remote_port":1.0,"later":{extra} }}"#);
        let answer = format!(r#"{{"kv_transfer_params":{params},"choices":[]}}"#);
        let answer = Answer::read(HandoffStyle::NixlPull, answer.as_bytes()).unwrap();
        let made = answer.decode(Route::Chat, client.as_bytes()).unwrap();
        check(&client, &made);
        let found: Vec<_> = members(&made).into_iter().filter(|it| it.0 == "kv_transfer_params").collect();
        prop_assert_eq!(found, [("kv_transfer_params".to_owned(), params)]);
    }

    #[test]
    fn arbitrary_bytes_never_panic(body: Vec<u8>) {
        for transfer in TRANSFERS {
            let _ = transfer.prefill(Route::Completions, &body);
            let _ = transfer.decode(Route::Generate, &body);
            let _ = obstacle(transfer.style(), Route::Generate, &body);
            let _ = Answer::read(transfer.style(), &body);
        }
        let _ = mooncake::engines(&body);
    }
}
