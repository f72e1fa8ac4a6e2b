//! Payloads in, events out: payloads of every version as its own encoder wrote them, then payloads that no
//! encoder writes.

use maitre_base::Rng;
use proptest::prelude::*;

use super::*;

/// A value to encode.
#[derive(Clone, Debug)]
enum Value {
    Nil,
    Float(f64),
    Int(i128),
    Text(String),
    Bytes(Vec<u8>),
    Array(Vec<Value>),
    Map(Vec<(&'static str, Value)>),
}

use Value::{Array, Bytes, Float, Int, Map, Nil};

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

fn ints(numbers: &[i128]) -> Value {
    Array(numbers.iter().map(|&it| Int(it)).collect())
}

fn encode(value: &Value, out: &mut Vec<u8>) {
    let long = |out: &mut Vec<u8>, marker, length: usize| {
        out.push(marker);
        out.extend_from_slice(&(length as u32).to_be_bytes());
    };
    match value {
        Nil => out.push(0xc0),
        Float(number) => {
            out.push(0xcb);
            out.extend_from_slice(&number.to_be_bytes());
        }
        &Int(number) => encode_int(number, out),
        Value::Text(text) => {
            long(out, 0xdb, text.len());
            out.extend_from_slice(text.as_bytes());
        }
        Bytes(bytes) => {
            long(out, 0xc6, bytes.len());
            out.extend_from_slice(bytes);
        }
        Array(values) => {
            long(out, 0xdd, values.len());
            values.iter().for_each(|it| encode(it, out));
        }
        Map(pairs) => {
            long(out, 0xdf, pairs.len());
            for (key, value) in pairs {
                encode(&text(key), out);
                encode(value, out);
            }
        }
    }
}

fn encode_int(number: i128, out: &mut Vec<u8>) {
    match number {
        0..=0x7f => out.push(number as u8),
        -32..=-1 => out.push(number as i8 as u8),
        0x80..=0xff => out.extend_from_slice(&[0xcc, number as u8]),
        0x100..=0xffff => {
            out.push(0xcd);
            out.extend_from_slice(&(number as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(0xce);
            out.extend_from_slice(&(number as u32).to_be_bytes());
        }
        0x1_0000_0000.. => {
            out.push(0xcf);
            out.extend_from_slice(&(number as u64).to_be_bytes());
        }
        _ => {
            out.push(0xd3);
            out.extend_from_slice(&(number as i64).to_be_bytes());
        }
    }
}

fn payload(events: Vec<Value>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&Array(vec![Float(1.5), Array(events), Int(0)]), &mut bytes);
    bytes
}

fn hex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

fn decoded(payload: &[u8]) -> EventBatch {
    let mut batch = EventBatch::default();
    decode(payload, &mut Groups::default(), &mut batch).unwrap();
    batch
}

#[track_caller]
fn check(payload: &[u8], expected: &[KvEvent<'_>]) {
    let batch = decoded(payload);
    assert_eq!(batch.events().collect::<Vec<_>>(), expected);
}

#[track_caller]
fn check_skipped(events: Vec<Value>, expected: Skipped) {
    let batch = decoded(&payload(events));
    assert_eq!((batch.events().count(), batch.skipped()), (0, expected));
    assert!(batch.names.is_empty() && batch.tokens.is_empty() && batch.extras.is_empty());
}

#[track_caller]
fn check_malformed(payload: &[u8], what: &str) {
    let mut batch = decoded(&payload_of_one());
    let malformed = decode(payload, &mut Groups::default(), &mut batch).unwrap_err();
    assert_eq!(malformed.what, what);
    assert_eq!(batch.events().count(), 0, "nothing is left of the batch before");
}

fn payload_of_one() -> Vec<u8> {
    payload(vec![Array(vec![text("AllBlocksCleared")])])
}

const NAME: u64 = 0x1819_1a1b_1c1d_1e1f;
const PARENT: u64 = 0x3839_3a3b_3c3d_3e3f;
const MINUS_FIVE: u64 = u64::MAX - 4;

/// The event that most examples contain.
const ONE: StoredBlocks<'_> = StoredBlocks {
    names: &[NAME],
    parent: None,
    tokens: &[100, 101, 102, 103],
    block_tokens: 4,
    adapter: None,
    salt: None,
    extras: &[],
    tier: Tier::Gpu,
};

const GONE: KvEvent<'_> = KvEvent::Removed { names: &[NAME], tier: Tier::Gpu };

#[test]
fn arrays_of_every_vllm_are_read() {
    let stored = "ab426c6f636b53746f72656491cf18191a1b1c1d1e1fc0946465666704";
    for (head, tail) in [
        ("92cb3ff80000000000009196", "c0"),
        ("93cb3ff80000000000009196", "c000"),
        ("93cb3ff8000000000000919a", "c0a3475055c091c00000"),
        ("93cb3ff8000000000000919c", "c0a3475055c091c000ae66756c6c5f617474656e74696f6ec000"),
    ] {
        check(&hex(&format!("{head}{stored}{tail}")), &[KvEvent::Stored(ONE)]);
    }
    check(
        &hex(&format!("93cb3ff80000000000009198{stored}01a3475055a873716c2d6c6f726100")),
        &[KvEvent::Stored(StoredBlocks { adapter: Some("sql-lora"), ..ONE })],
    );
    check(
        &hex(&format!("93cb3ff80000000000009199{stored}c0a3475055c09191a473616c7400")),
        &[KvEvent::Stored(StoredBlocks { salt: Some("salt"), ..ONE })],
    );
    let with_parent = "93cb3ff80000000000009197ab426c6f636b53746f72656491cf18191a1b1c1d1e1fcf38393a3b3c3d3e3f946465666704c0a347505500";
    check(&hex(with_parent), &[KvEvent::Stored(StoredBlocks { parent: Some(PARENT), ..ONE })]);
    let digest = "93cb3ff80000000000009197ab426c6f636b53746f72656491c420000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fc0946465666704c0a347505500";
    check(&hex(digest), &[KvEvent::Stored(ONE)]);
}

#[test]
fn arrays_of_removals_and_clears_are_read() {
    let removed = "ac426c6f636b52656d6f76656491cf18191a1b1c1d1e1f";
    for (head, tail) in [("9192", "00"), ("9193", "a347505500"), ("9194", "a34750550000")] {
        check(&hex(&format!("93cb3ff8000000000000{head}{removed}{tail}")), &[GONE]);
    }
    check(&hex("93cb3ff80000000000009191b0416c6c426c6f636b73436c656172656400"), &[KvEvent::Cleared]);
    check(&hex("93cb3ff800000000000090c0"), &[]);
}

#[test]
fn maps_of_newer_vllm_are_read() {
    let three = "93cb3ff8000000000000938ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf18191a1b1c1d1e1fb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739464656667aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797391c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cf18191a1b1c1d1e1fa66d656469756da3475055a967726f75705f6964780081a474797065b0416c6c426c6f636b73436c656172656400";
    check(&hex(three), &[KvEvent::Stored(ONE), GONE, KvEvent::Cleared]);
    let adapted = "93cb3ff8000000000000918ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391c420000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fb1706172656e745f626c6f636b5f68617368c420202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3fa9746f6b656e5f6964739464656667aa626c6f636b5f73697a6504a76c6f72615f696401a66d656469756da3475055a96c6f72615f6e616d65a873716c2d6c6f7261aa65787472615f6b6579739192a873716c2d6c6f7261a473616c74a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e00";
    // With a parent this is not a first block, so its last string is not a salt.
    let extra = maitre_base::hash::pair(0, maitre_base::hash::bytes(0, b"\xa4salt"));
    check(
        &hex(adapted),
        &[KvEvent::Stored(StoredBlocks {
            parent: Some(PARENT),
            adapter: Some("sql-lora"),
            extras: &[extra],
            ..ONE
        })],
    );
}

#[test]
fn arrays_of_sglang_are_read() {
    let stored = StoredBlocks { names: &[MINUS_FIVE], ..ONE };
    check(
        &hex(
            "93cb3ff80000000000009397ab426c6f636b53746f72656491fbc0946465666704c0a347505593ac426c6f636b52656d6f76656491fba347505591b0416c6c426c6f636b73436c656172656400",
        ),
        &[
            KvEvent::Stored(stored),
            KvEvent::Removed { names: &[MINUS_FIVE], tier: Tier::Gpu },
            KvEvent::Cleared,
        ],
    );
    check(
        &hex(
            "93cb3ff80000000000009198ab426c6f636b53746f72656491fbc0946465666704c0a347505581aa63616368655f73616c74a874656e616e742d6100",
        ),
        &[KvEvent::Stored(StoredBlocks { salt: Some("tenant-a"), ..stored })],
    );
    check(
        &hex("93cb3ff80000000000009196ab426c6f636b53746f72656491fbc0946465666704c000"),
        &[KvEvent::Stored(stored)],
    );
}

#[test]
fn time_and_rank_are_read_if_present() {
    for (bytes, seconds, rank) in [
        ("93cb3ff800000000000090c0", 1.5, None),
        ("93cb3ff80000000000009007", 1.5, Some(7)),
        ("92cb3ff800000000000090", 1.5, None),
        ("93ca3fc000009007", 1.5, Some(7)),
        ("95039007c0c0", 3.0, Some(7)),
    ] {
        let batch = decoded(&hex(bytes));
        assert_eq!((batch.unix_seconds(), batch.rank()), (seconds, rank), "{bytes}");
    }
}

/// The fields of a store as a map, with some replaced by `others`.
fn stored(others: &[(&'static str, Value)]) -> Value {
    let mut pairs = vec![
        ("type", text("BlockStored")),
        ("block_hashes", ints(&[1, 2])),
        ("parent_block_hash", Nil),
        ("token_ids", ints(&[10, 20, 30, 40])),
        ("block_size", Int(2)),
    ];
    pairs.retain(|pair| !others.iter().any(|it| it.0 == pair.0));
    // The last field of the declaration comes first here: the order must not matter.
    pairs.extend(others.iter().cloned());
    pairs.reverse();
    Map(pairs)
}

const TWO: StoredBlocks<'_> =
    StoredBlocks { names: &[1, 2], tokens: &[10, 20, 30, 40], block_tokens: 2, ..ONE };

#[track_caller]
fn check_stored(others: &[(&'static str, Value)], expected: StoredBlocks<'_>) {
    check(&payload(vec![stored(others)]), &[KvEvent::Stored(expected)]);
}

#[test]
fn key_order_and_unknown_keys_do_not_matter() {
    check_stored(&[], TWO);
    let nested = Map(vec![("block_hashes", ints(&[9])), ("x", Array(vec![Map(vec![])]))]);
    check_stored(&[("session_id", text("s")), ("ownership", Nil), ("news", nested)], TWO);
    let long = [text("BlockStored"), ints(&[1, 2]), Nil, ints(&[10, 20, 30, 40]), Int(2)];
    let more = std::iter::repeat_n(Nil, 8).chain([text("LOCAL"), Map(vec![]), ints(&[1])]);
    check(&payload(vec![Array(long.into_iter().chain(more).collect())]), &[KvEvent::Stored(TWO)]);
}

#[test]
fn unknown_events_are_counted_and_skipped() {
    let odd = Map(vec![("block_hashes", text("of another shape")), ("type", text("BlockMoved"))]);
    let odd_array = Array(vec![text("BlockPinned"), Map(vec![("x", ints(&[1]))])]);
    let clear = Array(vec![text("AllBlocksCleared"), Nil]);
    let batch = decoded(&payload(vec![odd, odd_array, clear]));
    assert_eq!(batch.events().collect::<Vec<_>>(), [KvEvent::Cleared]);
    assert_eq!(batch.skipped(), Skipped { unknown: 2, ..Skipped::default() });
}

#[test]
fn media_of_any_name_map_to_a_tier() {
    for (name, medium) in [
        ("GPU", Tier::Gpu),
        ("CPU", Tier::Cpu),
        ("CPU_PINNED", Tier::Cpu),
        ("LocalCPUBackend", Tier::Cpu),
        ("DISK", Tier::Disk),
        ("STORAGE", Tier::Disk),
        ("nvme0", Tier::Disk),
        ("", Tier::Disk),
    ] {
        check_stored(&[("medium", text(name))], StoredBlocks { tier: medium, ..TWO });
        check_stored(
            &[("locality", text("LOCAL")), ("medium", text(name))],
            StoredBlocks { tier: medium, ..TWO },
        );
    }
}

#[test]
fn a_store_shared_by_all_workers_is_a_tier_of_its_own() {
    for (key, value) in [("medium", "EXTERNAL"), ("medium", "RemoteBackend"), ("locality", "REMOTE")] {
        let pair = (key, text(value));
        check_stored(std::slice::from_ref(&pair), StoredBlocks { tier: Tier::Shared, ..TWO });
        check_stored(
            &[("medium", text("STORAGE")), pair.clone()],
            StoredBlocks { tier: Tier::Shared, ..TWO },
        );
        let removed = Map(vec![("type", text("BlockRemoved")), ("block_hashes", ints(&[1])), pair]);
        check(&payload(vec![removed]), &[KvEvent::Removed { names: &[1], tier: Tier::Shared }]);
    }
}

fn removed(group: Value) -> Value {
    Map(vec![("type", text("BlockRemoved")), ("block_hashes", ints(&[1])), ("group_idx", group)])
}

#[test]
fn only_blocks_that_form_a_prefix_count() {
    let of = |kind: &str| vec![stored(&[("kv_cache_spec_kind", text(kind)), ("group_idx", Int(1))])];
    for kind in ["full_attention", "mla_attention", "sink_full_attention"] {
        check(&payload(of(kind)), &[KvEvent::Stored(TWO)]);
    }
    let groups = Skipped { groups: 1, ..Skipped::default() };
    for kind in ["sliding_window", "sliding_window_mla", "mamba", "chunked_local_attention", "unknown", "new"]
    {
        check_skipped(of(kind), groups);
    }
    check_skipped(vec![stored(&[("kv_cache_spec_kind", text("mamba"))])], groups);
    check_stored(&[("group_idx", Int(0))], TWO);
    check_stored(&[("group_idx", Int(0)), ("kv_cache_spec_kind", text("unknown"))], TWO);
}

/// vLLM 0.20 and 0.21 number groups, in the order of their first layers, and declare no kinds: gpt-oss has its window first.
#[test]
fn groups_of_engines_that_declare_no_kinds_all_count_unless_they_leave_blocks_out() {
    for group in [0, 1, 1_000_000] {
        check_stored(&[("group_idx", Int(group))], TWO);
    }
    let (mut groups, mut batch) = (Groups::default(), EventBatch::default());
    let removes = |groups: &mut Groups, group| {
        let mut batch = EventBatch::default();
        decode(&payload(vec![removed(Int(group))]), groups, &mut batch).unwrap();
        batch.events().count() == 1
    };
    assert!(removes(&mut groups, 1));
    // Two blocks of which only one is named: whose tokens it has cannot be known.
    let masked = stored(&[("group_idx", Int(1)), ("block_hashes", ints(&[1]))]);
    decode(&payload(vec![masked, stored(&[("group_idx", Int(0))])]), &mut groups, &mut batch).unwrap();
    assert_eq!(batch.events().collect::<Vec<_>>(), [KvEvent::Stored(TWO)]);
    assert_eq!(batch.skipped().groups, 1);
    assert_eq!([0, 1].map(|it| removes(&mut groups, it)), [true, false]);
    // Once an engine declares kinds, groups without one are not full attention, but the first.
    decode(
        &payload(vec![stored(&[("group_idx", Int(3)), ("kv_cache_spec_kind", text("mamba"))])]),
        &mut groups,
        &mut batch,
    )
    .unwrap();
    assert_eq!([0, 2].map(|it| removes(&mut groups, it)), [true, false]);
}

#[test]
fn removals_count_only_for_groups_whose_stores_counted() {
    // A model whose first group has a window, and whose second group is the one to index.
    let of = |group, kind| stored(&[("group_idx", Int(group)), ("kv_cache_spec_kind", text(kind))]);
    let (mut groups, mut batch) = (Groups::default(), EventBatch::default());
    let first = payload(vec![of(0, "sliding_window"), of(1, "full_attention")]);
    decode(&first, &mut groups, &mut batch).unwrap();
    assert_eq!(batch.events().collect::<Vec<_>>(), [KvEvent::Stored(TWO)]);
    let gone = KvEvent::Removed { names: &[1], tier: Tier::Gpu };
    for (group, expected) in [(Int(0), None), (Int(1), Some(gone)), (Int(2), None), (Nil, Some(gone))] {
        decode(&payload(vec![removed(group.clone())]), &mut groups, &mut batch).unwrap();
        assert_eq!(batch.events().next(), expected, "{group:?}");
    }
}

#[test]
fn counts_of_names_and_tokens_need_not_agree() {
    check_stored(&[("block_hashes", ints(&[2]))], StoredBlocks { names: &[2], ..TWO });
    check_stored(
        &[("token_ids", Array(vec![])), ("block_size", Int(0)), ("medium", text("CPU"))],
        StoredBlocks { tokens: &[], block_tokens: 0, tier: Tier::Cpu, ..TWO },
    );
}

#[test]
fn the_first_token_of_a_pair_is_kept() {
    let pairs = Array([(10, 20), (20, 30), (30, 40), (40, 50)].map(|(a, b)| ints(&[a, b])).to_vec());
    check_stored(&[("token_ids", pairs)], TWO);
    for odd in [vec![ints(&[1, 2]), Int(3)], vec![ints(&[1, 2]), ints(&[2, 3, 4])]] {
        check_malformed(
            &payload(vec![stored(&[("token_ids", Array(odd.clone()))])]),
            if matches!(odd[1], Int(_)) { "not an array" } else { "no pair of tokens" },
        );
    }
}

#[test]
fn an_adapter_without_a_name_is_still_not_the_model_itself() {
    check_stored(&[("lora_id", Int(3))], StoredBlocks { adapter: Some("lora_id:3"), ..TWO });
    check_stored(
        &[("lora_id", Int(3)), ("lora_name", text("a"))],
        StoredBlocks { adapter: Some("a"), ..TWO },
    );
}

fn extra(keys: &[Value]) -> u64 {
    keys.iter().fold(0, |extra, key| {
        let mut raw = Vec::new();
        encode(key, &mut raw);
        maitre_base::hash::pair(extra, maitre_base::hash::bytes(0, &raw)).max(1)
    })
}

#[test]
fn adapters_salts_and_other_extra_keys_are_distinguished() {
    let image = Array(vec![text("image"), Int(3)]);
    let embedding = Bytes(vec![7; 32]);
    let keys = |blocks: &[Value]| ("extra_keys", Array(blocks.to_vec()));
    let salted = StoredBlocks { salt: Some("salt"), ..TWO };
    check_stored(&[keys(&[Nil, Nil])], TWO);
    check_stored(&[keys(&[Array(vec![text("salt")]), Nil])], salted);
    check_stored(&[keys(&[Array(vec![text("")])])], TWO);
    let adapted = StoredBlocks { adapter: Some("a"), ..TWO };
    let of_adapter = [("lora_name", text("a")), keys(&[Array(vec![text("a")]), Array(vec![text("a")])])];
    check_stored(&of_adapter, adapted);
    // An adapter and a salt of the same name: the first string is the adapter, the last the salt.
    check_stored(
        &[("lora_name", text("a")), keys(&[Array(vec![text("a"), text("a")])])],
        StoredBlocks { salt: Some("a"), ..adapted },
    );
    let all = Array(vec![text("a"), image.clone(), text("salt"), embedding.clone()]);
    check_stored(
        &[("lora_name", text("a")), keys(&[all, Array(vec![text("a"), image.clone()])])],
        StoredBlocks {
            adapter: Some("a"),
            extras: &[extra(&[image.clone(), embedding]), extra(std::slice::from_ref(&image))],
            ..salted
        },
    );
    // In the middle of a prompt no string is a salt. The number of lists may differ from the number of
    // blocks.
    check_stored(
        &[("parent_block_hash", Int(9)), keys(&[Array(vec![text("b")])])],
        StoredBlocks { parent: Some(9), extras: &[extra(&[text("b")]), 0], ..TWO },
    );
    check_stored(
        &[keys(&[Nil, Array(vec![image.clone()]), Array(vec![image.clone()])])],
        StoredBlocks { extras: &[0, extra(&[image])], ..TWO },
    );
}

#[test]
fn a_repeated_field_counts_once() {
    let Map(mut pairs) = stored(&[]) else { unreachable!() };
    pairs.extend([("block_hashes", ints(&[1, 2])), ("token_ids", ints(&[10, 20, 30, 40]))]);
    check(&payload(vec![Map(pairs)]), &[KvEvent::Stored(TWO)]);
}

#[test]
fn malformed_payloads_say_what_is_wrong() {
    let event = |event| payload(vec![event]);
    check_malformed(b"", "cut short");
    check_malformed(b"\xc1", "a marker that means nothing");
    check_malformed(b"\xc0", "not an array");
    check_malformed(b"\x91\x00", "fewer than two fields in a batch");
    check_malformed(b"\x92\xc0\x90", "no time of a batch");
    check_malformed(b"\x92\x00\x90\x00", "more after the end");
    check_malformed(b"\x93\x00\x90\xff", "not a number of 32 bits");
    check_malformed(&event(Nil), "no event");
    check_malformed(&event(Array(vec![])), "no event");
    check_malformed(&event(Array(vec![Int(1)])), "not a string");
    check_malformed(&event(Map(vec![])), "an event without a type");
    check_malformed(&event(Array(vec![text("BlockRemoved")])), "blocks removed without names");
    let nameless = Array(vec![text("BlockStored"), ints(&[1]), Nil]);
    check_malformed(&event(nameless), "blocks stored without names or tokens");
    check_malformed(&event(stored(&[("block_hashes", Array(vec![text("1")]))])), "no name of a block");
    for number in [-1, 1 << 32] {
        check_malformed(&event(stored(&[("token_ids", ints(&[number]))])), "not a number of 32 bits");
    }
    let mut not_utf8 = event(stored(&[("lora_name", text("?"))]));
    not_utf8.iter_mut().filter(|it| **it == b'?').for_each(|it| *it = 0xff);
    check_malformed(&not_utf8, "text that is not UTF-8");
    let error = decode(b"\x92\xc0\x90", &mut Groups::default(), &mut EventBatch::default()).unwrap_err();
    assert_eq!(error.to_string(), "decode kv events: no time of a batch at byte 2");
    check_malformed(&vec![0; PAYLOAD_BYTES_MAX + 1], "a payload past its bound");
}

#[test]
fn a_length_of_four_billion_reserves_nothing() {
    let before = payload(vec![]);
    for marker in [0xc6, 0xc9, 0xdb, 0xdd, 0xdf] {
        for prefix in
            [&b"\x92\x00"[..], b"\x92\x00\x91\x94\xabBlockStored", b"\x92\x00\x91\x94\xabBlockStored\x90\xc0"]
        {
            let mut bytes = prefix.to_vec();
            bytes.push(marker);
            bytes.extend_from_slice(&[0xff; 4]);
            bytes.extend_from_slice(&before);
            let mut batch = EventBatch::default();
            assert!(decode(&bytes, &mut Groups::default(), &mut batch).is_err());
            assert!(batch.names.capacity() < 64 && batch.tokens.capacity() < 64);
        }
    }
}

#[test]
fn deep_nesting_is_skipped_without_recursion() {
    let mut bytes = b"\x92\x00\x91\x92\xa1x".to_vec();
    bytes.extend(std::iter::repeat_n(0x91, 5_000_000));
    check_malformed(&bytes, "cut short");
    bytes.push(0xc0);
    assert_eq!(decoded(&bytes).skipped().unknown, 1);
}

#[test]
fn a_batch_filled_again_allocates_nothing() {
    let (mut groups, mut batch) = (Groups::default(), EventBatch::default());
    let keys = ("extra_keys", Array(vec![Array(vec![text("a"), Int(3)]), Nil]));
    let bytes = payload(vec![stored(&[("lora_name", text("a")), keys]), removed(Nil), stored(&[])]);
    let room = |batch: &EventBatch| {
        let lists = [batch.names.capacity(), batch.tokens.capacity(), batch.extras.capacity()];
        (lists, batch.records.capacity(), batch.texts.capacity())
    };
    decode(&bytes, &mut groups, &mut batch).unwrap();
    let before = room(&batch);
    for _ in 0..3 {
        decode(&bytes, &mut groups, &mut batch).unwrap();
        assert_eq!(room(&batch), before);
    }
    let large = payload(vec![stored(&[("token_ids", Array(vec![Int(1); 2 * KEPT_MAX]))])]);
    decode(&large, &mut groups, &mut batch).unwrap();
    decode(&bytes, &mut groups, &mut batch).unwrap();
    assert!(batch.tokens.capacity() <= KEPT_MAX, "what a large payload took is given back");
}

/// Events of all kinds and encodings.
fn event() -> impl Strategy<Value = Value> {
    let number = prop_oneof![0i128..40, 0..=i128::from(u64::MAX), i128::from(i64::MIN)..0];
    let name = prop_oneof![number.prop_map(Int), prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes)];
    let names = prop::collection::vec(name.clone(), 0..5).prop_map(Array);
    let token = prop_oneof![0i128..300, 0..=i128::from(u32::MAX)];
    let tokens = prop::collection::vec(token.prop_map(Int), 0..40).prop_map(Array);
    let medium = prop::sample::select(vec!["GPU", "CPU", "DISK", "EXTERNAL"]).prop_map(text);
    let keys =
        prop::collection::vec(prop_oneof![Just(Nil), Just(Array(vec![text("s")]))], 0..5).prop_map(Array);
    (any::<[bool; 3]>(), names, prop::option::of(name), tokens, medium, keys).prop_map(
        |([is_map, is_stored, is_known], names, parent, tokens, medium, keys)| {
            let parent = parent.unwrap_or(Nil);
            let tag = match (is_known, is_stored) {
                (true, true) => "BlockStored",
                (true, false) => "BlockRemoved",
                _ => "AllBlocksCleared",
            };
            match (is_map, is_stored) {
                (true, true) => Map(vec![
                    ("type", text(tag)),
                    ("block_hashes", names),
                    ("parent_block_hash", parent),
                    ("token_ids", tokens),
                    ("block_size", Int(16)),
                    ("medium", medium),
                    ("extra_keys", keys),
                ]),
                (false, true) => {
                    Array(vec![text(tag), names, parent, tokens, Int(16), Nil, medium, Nil, keys])
                }
                (true, false) => Map(vec![("type", text(tag)), ("block_hashes", names), ("medium", medium)]),
                (false, false) => Array(vec![text(tag), names, medium]),
            }
        },
    )
}

/// Invariants of every batch.
fn exercise(bytes: &[u8], groups: &mut Groups, batch: &mut EventBatch) -> bool {
    let is_read = decode(bytes, groups, batch).is_ok();
    for event in batch.events() {
        if let KvEvent::Stored(stored) = event {
            assert!(stored.extras.is_empty() || stored.extras.len() == stored.names.len());
        }
    }
    assert!(batch.names.len() <= bytes.len() && batch.tokens.len() <= bytes.len());
    assert!(
        batch.names.capacity() <= 2 * bytes.len() + 64 && batch.tokens.capacity() <= 2 * bytes.len() + 64
    );
    assert!(batch.records.len() <= bytes.len());
    is_read
}

proptest! {
    #[test]
    fn every_encoded_event_is_decoded(events in prop::collection::vec(event(), 0..6)) {
        let batch = decoded(&payload(events.clone()));
        let names: usize = events.iter().map(written_names).sum();
        let tokens: usize = events.iter().map(written_tokens).sum();
        prop_assert_eq!((batch.names.len(), batch.tokens.len()), (names, tokens));
        prop_assert_eq!(batch.records.len(), events.len());
    }

    #[test]
    fn every_truncated_payload_is_malformed(events in prop::collection::vec(event(), 0..4)) {
        let bytes = payload(events);
        let (mut groups, mut batch) = (Groups::default(), EventBatch::default());
        for length in 0..bytes.len() {
            prop_assert!(!exercise(&bytes[..length], &mut groups, &mut batch), "{} bytes", length);
        }
        prop_assert!(exercise(&bytes, &mut groups, &mut batch));
    }

    #[test]
    fn changed_bytes_never_panic(events in prop::collection::vec(event(), 1..4), seed: u64) {
        let (original, mut rng) = (payload(events), Rng::new(seed));
        let mut groups = Groups::default();
        for _ in 0..50 {
            let mut bytes = original.clone();
            for _ in 0..=rng.below(4) {
                let at = rng.below(bytes.len());
                bytes[at] = rng.next_u64() as u8;
            }
            exercise(&bytes, &mut groups, &mut EventBatch::default());
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
        exercise(&bytes, &mut Groups::default(), &mut EventBatch::default());
        let inside = [&b"\x92\x00\x91\x9c\xabBlockStored"[..], &bytes].concat();
        exercise(&inside, &mut Groups::default(), &mut EventBatch::default());
    }
}

/// The names and tokens that an event should add to a batch.
fn counted(event: &Value, key: &str, position: usize) -> usize {
    let (tag, field) = match event {
        Map(pairs) => {
            let of = |key: &str| pairs.iter().find(|it| it.0 == key).map(|it| &it.1);
            (of("type"), of(key))
        }
        Array(values) => (values.first(), values.get(position)),
        _ => unreachable!(),
    };
    let is_cleared = matches!(tag, Some(Value::Text(it)) if it == "AllBlocksCleared");
    match field {
        Some(Array(values)) if !is_cleared => values.len(),
        _ => 0,
    }
}

fn written_names(event: &Value) -> usize {
    counted(event, "block_hashes", 1)
}

fn written_tokens(event: &Value) -> usize {
    counted(event, "token_ids", 3)
}
