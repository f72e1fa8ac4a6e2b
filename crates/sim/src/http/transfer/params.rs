//! `kv_transfer_params`: what a router passes from one engine to the other.

use serde::Deserialize;
use serde_json::Value;

use super::{Leg, Source};
use crate::engine::transfer::HoldId;
use crate::http::answer::escape;
use crate::http::error::ApiError;
use crate::http::request::TransferFields;
use crate::kv::BlockId;

/// SGLang's default, for a null port.
const BOOTSTRAP_PORT: u16 = 8998;

const ROOMS: u64 = 1 << 63;

/// Digits of a hold at the end of a request id; in vLLM they are random.
const HOLD_DIGITS: usize = 8;

/// The blocks that a prefill leg left behind, as its answer describes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::http) struct RemoteBlocks {
    pub(super) engine_id: String,
    pub(super) request_id: String,
    pub(super) host: String,
    pub(super) port: u16,
    /// What the prefill engine found in its own cache, if it says so.
    pub(super) cached_tokens: Option<u32>,
}

/// An engine that may have the blocks of a prompt in its cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::http) struct PeerAddress {
    pub(super) host: String,
    pub(super) port: u16,
}

/// The room of a prefill engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::http) struct RoomAddress {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) room: u64,
}

/// What a prefill leg's answer says.
pub(super) struct HandOver {
    pub(super) engine_id: String,
    pub(super) request_id: String,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) blocks: Vec<BlockId>,
    pub(super) num_tokens: u32,
    pub(super) cached_tokens: u32,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NixlFields {
    do_remote_decode: Option<bool>,
    do_remote_prefill: Option<bool>,
    remote_block_ids: Option<Value>,
    remote_engine_id: Option<String>,
    remote_request_id: Option<String>,
    remote_host: Option<String>,
    remote_port: Option<u16>,
    remote_prefill_cached_tokens: Option<u32>,
}

/// Which leg the parameters make of a request. As in vLLM, a decode leg without blocks kills the engine.
pub(super) fn nixl_leg(text: &str) -> Result<Leg, ApiError> {
    let fields: Option<NixlFields> =
        serde_json::from_str(text).map_err(|it| refusal(&format!("not what we expect: {it}")))?;
    let Some(fields) = fields else { return Ok(Leg::Plain) };
    if fields.do_remote_prefill != Some(true) {
        return Ok(if fields.do_remote_decode == Some(true) { Leg::Prefill } else { Leg::Plain });
    }
    let is_empty = |it: &Value| it.as_array().is_none_or(Vec::is_empty);
    if fields.remote_block_ids.as_ref().is_none_or(is_empty) {
        return Ok(Leg::Fatal);
    }
    let missing = |key: &str| refusal(&format!("{key} is missing"));
    Ok(Leg::Decode(Source::Nixl(RemoteBlocks {
        engine_id: fields.remote_engine_id.ok_or_else(|| missing("remote_engine_id"))?,
        request_id: fields.remote_request_id.ok_or_else(|| missing("remote_request_id"))?,
        host: fields.remote_host.ok_or_else(|| missing("remote_host"))?,
        port: fields.remote_port.ok_or_else(|| missing("remote_port"))?,
        cached_tokens: fields.remote_prefill_cached_tokens,
    })))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PeerFields {
    remote_kv_source: Option<SourceFields>,
    remote_decoder: Option<Value>,
    remote_prefiller: Option<Value>,
}

#[derive(Deserialize)]
struct SourceFields {
    remote_host: String,
    remote_port: u16,
}

/// Which leg the parameters make of a request to an engine with peers.
pub(super) fn peer_leg(text: &str) -> Result<Leg, ApiError> {
    let fields: Option<PeerFields> =
        serde_json::from_str(text).map_err(|it| refusal(&format!("not what we expect: {it}")))?;
    let Some(fields) = fields else { return Ok(Leg::Plain) };
    if fields.remote_decoder.is_some() || fields.remote_prefiller.is_some() {
        return Err(refusal("remote_decoder and remote_prefiller are not simulated"));
    }
    Ok(fields.remote_kv_source.map_or(Leg::Plain, |it| {
        Leg::Decode(Source::Peer(PeerAddress { host: it.remote_host, port: it.remote_port }))
    }))
}

/// The room of a request to an engine that only prefills or only decodes.
pub(super) fn room(fields: &TransferFields) -> Result<RoomAddress, ApiError> {
    let invalid = |key: &str, what: &str| ApiError::bad_request(format!("{key}: {what} is expected"));
    let given = |it: &Option<String>| it.clone().filter(|it| it != "null");
    let Some(room) = given(&fields.bootstrap_room) else {
        return Err(ApiError::bad_request(
            "Invalid request: Disaggregated request received without bootstrap room id.",
        ));
    };
    let room = room.parse().ok().filter(|it| *it < ROOMS);
    let host = given(&fields.bootstrap_host).and_then(|it| serde_json::from_str(&it).ok());
    let port = match given(&fields.bootstrap_port) {
        None => Some(BOOTSTRAP_PORT),
        Some(port) => port.parse().ok(),
    };
    Ok(RoomAddress {
        room: room.ok_or_else(|| invalid("bootstrap_room", "one number below 2^63"))?,
        host: host.ok_or_else(|| invalid("bootstrap_host", "one name"))?,
        port: port.ok_or_else(|| invalid("bootstrap_port", "one port or null"))?,
    })
}

fn refusal(about: &str) -> ApiError {
    ApiError::bad_request(format!("kv_transfer_params: {about}"))
}

/// The engine's own name of a request, with its hold.
pub(super) fn request_id(answer_id: &str, hold: HoldId) -> String {
    format!("{answer_id}-{:08x}", hold.0)
}

/// The hold that a request id names.
pub(super) fn hold_of(request_id: &str) -> Option<HoldId> {
    let digits = request_id.rsplit('-').next().filter(|it| it.len() >= HOLD_DIGITS)?;
    u64::from_str_radix(digits, 16).ok().map(HoldId)
}

/// Keys and their order are those of vLLM 0.32.
pub(super) fn render(hand_over: &HandOver) -> String {
    let blocks = hand_over.blocks.iter().map(BlockId::to_string).collect::<Vec<_>>().join(",");
    format!(
        r#"{{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[{blocks}]],"remote_engine_id":"{}","remote_request_id":"{}","remote_host":"{}","remote_port":{},"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":{},"remote_blocks_expiry_time":null,"transfer_mode":"pull","remote_prefill_cached_tokens":{}}}"#,
        hand_over.engine_id,
        // The id of an answer is escaped already.
        hand_over.request_id,
        escape(&hand_over.host),
        hand_over.port,
        hand_over.num_tokens,
        hand_over.cached_tokens
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        check_leg(nixl_leg(text), text, expected);
    }

    #[track_caller]
    fn check_leg(leg: Result<Leg, ApiError>, text: &str, expected: &str) {
        let actual = match leg {
            Ok(Leg::Plain) => "plain".to_owned(),
            Ok(Leg::Prefill) => "prefill".to_owned(),
            Ok(Leg::Decode(Source::Nixl(remote))) => format!("decode from {}:{}", remote.host, remote.port),
            Ok(Leg::Fatal) => "fatal".to_owned(),
            Ok(Leg::Room(room) | Leg::Decode(Source::Room(room))) => format!("room {}", room.room),
            Ok(Leg::Decode(Source::Peer(peer))) => format!("pull from {}:{}", peer.host, peer.port),
            Err(refusal) => refusal.to_json(),
        };
        assert!(actual.contains(expected), "{text}: {actual}");
    }

    #[test]
    fn the_parameters_say_which_leg_it_is() {
        check("null", "plain");
        check("{}", "plain");
        check(r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_host":null}"#, "prefill");
        check(r#"{"do_remote_prefill":true}"#, "fatal");
        check(r#"{"do_remote_prefill":true,"remote_block_ids":[]}"#, "fatal");
        check(r#"{"do_remote_prefill":true,"remote_block_ids":[[1]]}"#, "remote_engine_id is missing");
        check(r#"{"do_remote_prefill":true,"remote_port":"x"}"#, "not what we expect");
        check("[1]", "not what we expect");
    }

    #[test]
    fn a_source_makes_a_pull() {
        let check = |text: &str, expected: &str| check_leg(peer_leg(text), text, expected);
        check("{}", "plain");
        check(
            r#"{"remote_kv_source":{"kv_request_id":"1","remote_host":"h","remote_port":5710}}"#,
            "pull from h:5710",
        );
        check(r#"{"remote_kv_source":{"remote_host":"h"}}"#, "missing field `remote_port`");
        check(r#"{"remote_decoder":{"kv_request_id":"1"}}"#, "not simulated");
    }

    #[track_caller]
    fn check_room(host: &str, port: &str, number: &str, expected: Result<(&str, u16, u64), &str>) {
        let field = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let fields = TransferFields {
            bootstrap_host: field(host),
            bootstrap_port: field(port),
            bootstrap_room: field(number),
            ..TransferFields::default()
        };
        match (room(&fields), expected) {
            (Ok(actual), Ok((host, port, room))) => {
                assert_eq!(actual, RoomAddress { host: host.to_owned(), port, room });
            }
            (Err(refusal), Err(part)) => assert!(refusal.to_json().contains(part), "{}", refusal.to_json()),
            (actual, expected) => panic!("{actual:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn a_room_has_an_address() {
        check_room(r#""h""#, "7", "5", Ok(("h", 7, 5)));
        check_room(r#""h""#, "null", "9223372036854775807", Ok(("h", 8998, (1 << 63) - 1)));
        check_room(r#""h""#, "7", "9223372036854775808", Err("bootstrap_room: "));
        check_room(r#""h""#, "7", "[5]", Err("bootstrap_room: "));
        check_room(r#""h""#, "7", "", Err("without bootstrap room id"));
        check_room("", "7", "5", Err("bootstrap_host: "));
        check_room(r#""h""#, "\"x\"", "5", Err("bootstrap_port: "));
    }

    #[test]
    fn what_a_prefill_leg_answers_is_a_decode_leg() {
        let hand_over = HandOver {
            engine_id: "e".to_owned(),
            request_id: request_id("chatcmpl-r1", HoldId(0x1f)),
            host: "127.0.0.1".to_owned(),
            port: 5600,
            blocks: vec![1, 2],
            num_tokens: 20,
            cached_tokens: 16,
        };
        check(&render(&hand_over), "decode from 127.0.0.1:5600");
        assert_eq!(hold_of(&hand_over.request_id), Some(HoldId(0x1f)));
    }

    #[test]
    fn a_foreign_request_id_names_no_hold() {
        for id in ["", "chatcmpl-r1", "chatcmpl-r1-xyzxyzxy", "1f"] {
            assert_eq!(hold_of(id), None, "{id}");
        }
    }
}
