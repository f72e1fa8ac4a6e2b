//! One batch, as vLLM packs it: `[seconds, [event, ..], rank]`.
//!
//! Events keep the order in which they happened, so a removal stands before the store that it made room for. Blocks
//! stored one after the other, each the parent of the next, are one event with their tokens in a row.

use super::msgpack::Writer;
use super::{Form, PublishedModel};
use crate::kv::{Change, Medium, Stored};

pub(super) struct BatchEncoder<'a> {
    pub(super) unix_seconds: f64,
    pub(super) changes: &'a [Change],
    pub(super) form: Form,
    pub(super) model: &'a PublishedModel,
    pub(super) rank: u32,
}

enum BatchEvent<'a> {
    Stored(Vec<&'a Stored>),
    Removed { hash: u64, medium: Medium },
    Cleared,
}

impl BatchEncoder<'_> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let events = gather(self.changes);
        let mut out = Writer::default();
        out.array(3);
        out.float(self.unix_seconds);
        out.array(events.len());
        for event in &events {
            match event {
                BatchEvent::Stored(chain) => self.put_stored(chain, &mut out),
                BatchEvent::Removed { hash, medium } => self.put_removed(*hash, *medium, &mut out),
                BatchEvent::Cleared => EventFields::begin(self.form, "AllBlocksCleared", 0, &mut out).end(),
            }
        }
        out.uint(self.rank.into());
        out.into_bytes()
    }

    fn put_stored(&self, chain: &[&Stored], out: &mut Writer) {
        let adapter = chain[0].adapter.as_deref();
        let number = adapter.and_then(|name| self.model.adapters.iter().position(|it| it == name));
        // The arrays have a last field that maps leave out when it is nil.
        let medium = chain[0].medium;
        let count = if self.form == Form::Arrays { 11 } else { 10 + self.locality_count(medium) };
        let mut fields = EventFields::begin(self.form, "BlockStored", count, out);
        let hashes = fields.next("block_hashes");
        hashes.array(chain.len());
        chain.iter().for_each(|it| hashes.uint(it.hash));
        put_option(fields.next("parent_block_hash"), chain[0].parent, Writer::uint);
        let tokens = fields.next("token_ids");
        tokens.array(chain.iter().map(|it| it.tokens.len()).sum());
        chain.iter().flat_map(|it| &it.tokens).for_each(|&it| tokens.uint(u64::from(it)));
        fields.next("block_size").uint(u64::from(self.model.block_tokens));
        // Adapters are numbered from one.
        put_option(fields.next("lora_id"), number.map(|it| it as u64 + 1), Writer::uint);
        fields.next("medium").text(medium_name(medium));
        put_option(fields.next("lora_name"), adapter, Writer::text);
        let keys = fields.next("extra_keys");
        keys.array(chain.len());
        chain.iter().for_each(|it| put_extra_keys(it, keys));
        fields.next("group_idx").uint(0);
        fields.next("kv_cache_spec_kind").text("full_attention");
        if self.form == Form::Arrays {
            fields.next("kv_cache_spec_sliding_window").nil();
        }
        self.put_locality(medium, &mut fields);
        fields.end();
    }

    fn put_removed(&self, hash: u64, medium: Medium, out: &mut Writer) {
        let count = 3 + self.locality_count(medium);
        let mut fields = EventFields::begin(self.form, "BlockRemoved", count, out);
        let hashes = fields.next("block_hashes");
        hashes.array(1);
        hashes.uint(hash);
        fields.next("medium").text(medium_name(medium));
        fields.next("group_idx").uint(0);
        self.put_locality(medium, &mut fields);
        fields.end();
    }

    /// Only maps have a locality, and only blocks outside the engine need one.
    fn locality_count(&self, medium: Medium) -> u8 {
        u8::from(self.form == Form::Maps && medium == Medium::Store)
    }

    fn put_locality(&self, medium: Medium, fields: &mut EventFields<'_>) {
        if self.locality_count(medium) > 0 {
            fields.next("locality").text("REMOTE");
        }
    }
}

/// The name of a tier in vLLM.
fn medium_name(medium: Medium) -> &'static str {
    match medium {
        Medium::Gpu => "GPU",
        Medium::Store => "STORAGE",
    }
}

/// Turns changes into events, none dropped, none out of order.
fn gather(changes: &[Change]) -> Vec<BatchEvent<'_>> {
    let mut events: Vec<BatchEvent<'_>> = Vec::new();
    for change in changes {
        match (change, events.last_mut()) {
            (Change::Stored(stored), Some(BatchEvent::Stored(chain))) if continues(chain, stored) => {
                chain.push(stored);
            }
            (Change::Stored(stored), _) => events.push(BatchEvent::Stored(vec![stored])),
            (&Change::Removed { hash, medium }, _) => events.push(BatchEvent::Removed { hash, medium }),
            (Change::Cleared, _) => events.push(BatchEvent::Cleared),
        }
    }
    events
}

fn continues(chain: &[&Stored], stored: &Stored) -> bool {
    let last = chain.last();
    last.is_some_and(|it| {
        stored.parent == Some(it.hash) && stored.adapter == it.adapter && stored.medium == it.medium
    })
}

/// What identifies a block besides its tokens: the adapter's name and, for the first block, the salt.
fn put_extra_keys(stored: &Stored, out: &mut Writer) {
    let keys: Vec<&str> =
        [&stored.adapter, &stored.salt].into_iter().filter_map(|it| it.as_deref()).collect();
    if keys.is_empty() {
        return out.nil();
    }
    out.array(keys.len());
    keys.into_iter().for_each(|it| out.text(it));
}

fn put_option<T>(out: &mut Writer, value: Option<T>, put: impl FnOnce(&mut Writer, T)) {
    match value {
        Some(value) => put(out, value),
        None => out.nil(),
    }
}

/// The fields of one event in either form: named, or in order.
struct EventFields<'a> {
    out: &'a mut Writer,
    form: Form,
    left: u8,
}

impl<'a> EventFields<'a> {
    /// An event of this kind with `count` fields after that.
    fn begin(form: Form, kind: &str, count: u8, out: &'a mut Writer) -> EventFields<'a> {
        match form {
            Form::Maps => {
                out.map(count + 1);
                out.text("type");
            }
            Form::Arrays => out.array(usize::from(count) + 1),
        }
        out.text(kind);
        EventFields { out, form, left: count }
    }

    /// The caller writes one value.
    fn next(&mut self, name: &str) -> &mut Writer {
        debug_assert!(self.left > 0, "{name} is one field too many");
        self.left -= 1;
        if self.form == Form::Maps {
            self.out.text(name);
        }
        self.out
    }

    fn end(self) {
        debug_assert_eq!(self.left, 0, "fields are missing");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: u64 = 0x1819_1a1b_1c1d_1e1f;

    fn stored(hash: u64, parent: Option<u64>, tokens: [u32; 4]) -> Stored {
        Stored { medium: Medium::Gpu, hash, parent, tokens: Box::new(tokens), adapter: None, salt: None }
    }

    /// Against bytes that vLLM's own encoder produced.
    #[track_caller]
    fn check(form: Form, changes: &[Change], expected: &str) {
        let model = PublishedModel { block_tokens: 4, adapters: vec!["sql-lora".to_owned()] };
        let bytes = BatchEncoder { unix_seconds: 1.5, changes, form, model: &model, rank: 0 }.encode();
        let hex: String = bytes.iter().map(|it| format!("{it:02x}")).collect();
        assert_eq!(hex, expected);
    }

    #[test]
    fn maps_are_byte_for_byte_those_of_vllm_0_24_and_later() {
        let changes = [
            Change::Stored(stored(HASH, None, [100, 101, 102, 103])),
            Change::Removed { hash: HASH, medium: Medium::Gpu },
            Change::Cleared,
        ];
        check(
            Form::Maps,
            &changes,
            "93cb3ff8000000000000938ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf18191a1b1c1d\
             1e1fb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739464656667aa626c6f636b5f73697a6504a76c\
             6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797391c0a967726f75705f69\
             647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e84a474797065ac426c6f636b52\
             656d6f766564ac626c6f636b5f68617368657391cf18191a1b1c1d1e1fa66d656469756da3475055a967726f75705f696478\
             0081a474797065b0416c6c426c6f636b73436c656172656400",
        );
    }

    #[test]
    fn arrays_are_byte_for_byte_those_of_vllm_0_23() {
        check(
            Form::Arrays,
            &[Change::Stored(stored(HASH, None, [100, 101, 102, 103]))],
            "93cb3ff8000000000000919cab426c6f636b53746f72656491cf18191a1b1c1d1e1fc0946465666704c0a3475055c091c000\
             ae66756c6c5f617474656e74696f6ec000",
        );
        check(
            Form::Arrays,
            &[Change::Removed { hash: HASH, medium: Medium::Gpu }],
            "93cb3ff80000000000009194ac426c6f636b52656d6f76656491cf18191a1b1c1d1e1fa34750550000",
        );
        check(
            Form::Arrays,
            &[Change::Cleared],
            "93cb3ff80000000000009191b0416c6c426c6f636b73436c656172656400",
        );
    }

    #[test]
    fn an_adapter_is_on_every_block_and_a_salt_on_the_first() {
        let adapter = Some("sql-lora".into());
        let first =
            Stored { adapter: adapter.clone(), salt: Some("salt".into()), ..stored(1, None, [1, 2, 3, 4]) };
        let second = Stored { adapter, ..stored(2, Some(1), [5, 6, 7, 8]) };
        let changes = [Change::Stored(first), Change::Stored(second)];
        let lora = "a873716c2d6c6f7261";
        check(
            Form::Arrays,
            &changes,
            &format!(
                "93cb3ff8000000000000919cab426c6f636b53746f726564920102c098010203040506070804\
                 01a3475055{lora}9292{lora}a473616c7491{lora}00ae66756c6c5f617474656e74696f6ec000"
            ),
        );
    }

    #[test]
    fn a_block_in_a_shared_store_is_remote() {
        let kept = Stored { medium: Medium::Store, ..stored(2, None, [1, 2, 3, 4]) };
        let removed = Change::Removed { hash: 2, medium: Medium::Store };
        let model = PublishedModel { block_tokens: 4, adapters: Vec::new() };
        let texts = |form| {
            let changes = [Change::Stored(kept.clone()), removed.clone()];
            let bytes =
                BatchEncoder { unix_seconds: 1.5, changes: &changes, form, model: &model, rank: 0 }.encode();
            ["STORAGE", "locality", "REMOTE", "GPU"]
                .map(|text| bytes.windows(text.len()).filter(|it| *it == text.as_bytes()).count())
        };
        assert_eq!(texts(Form::Maps), [2, 2, 2, 0]);
        assert_eq!(texts(Form::Arrays), [2, 0, 0, 0]);
    }

    #[test]
    fn blocks_of_different_media_are_different_events() {
        let one = Stored { medium: Medium::Store, ..stored(1, None, [0; 4]) };
        let changes = [Change::Stored(one), Change::Stored(stored(2, Some(1), [0; 4]))];
        assert_eq!(gather(&changes).len(), 2);
    }

    #[test]
    fn only_blocks_that_follow_each_other_are_one_event() {
        let block = |hash, parent| Change::Stored(stored(hash, parent, [0; 4]));
        let changes = [
            block(1, None),
            block(2, Some(1)),
            block(3, Some(1)),
            Change::Removed { hash: 9, medium: Medium::Gpu },
            block(4, Some(3)),
        ];
        let lengths = gather(&changes).into_iter().map(|it| match it {
            BatchEvent::Stored(chain) => chain.len(),
            BatchEvent::Removed { .. } | BatchEvent::Cleared => 0,
        });
        assert_eq!(lengths.collect::<Vec<_>>(), [2, 1, 0, 1]);
    }
}
