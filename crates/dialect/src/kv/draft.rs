//! One event while it is decoded. Fields come in the engine's order; only after the last one is it known
//! whether the event counts and what its extra keys mean.
//!
//! Names and tokens go straight into the batch, and are removed again if the event is skipped.

use std::fmt::{self, Write as _};

use maitre_base::{Tier, hash};

use crate::kv::msgpack::{Head, Reader};
use crate::kv::{EventBatch, EventRecord, Groups, Layout, Malformed, Span, StoredRecord};

pub(super) struct Draft<'a> {
    /// Where this event's part of each vector begins.
    names_start: usize,
    tokens_start: usize,
    extras_start: usize,
    has: Has,
    parent: Option<u64>,
    block_tokens: u32,
    lora_id: Option<u64>,
    lora_name: Option<&'a str>,
    salt: Option<&'a str>,
    /// Where the extra keys begin. They are read last, because they depend on the adapter and the parent.
    extra_keys: Option<Reader<'a>>,
    group: Option<u64>,
    kind: Option<&'a [u8]>,
    tier: Tier,
}

/// Which of the mandatory fields have been seen.
#[derive(Clone, Copy, Default)]
struct Has {
    names: bool,
    tokens: bool,
}

#[derive(Clone, Copy)]
enum Field {
    Names,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    ExtraKeys,
    Group,
    Kind,
    Locality,
    Salt,
    Other,
}

/// The field order of vLLM 0.23; earlier versions had fewer fields. In SGLang the seventh is a map.
const STORED: [Field; 10] = [
    Field::Names,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraName,
    Field::ExtraKeys,
    Field::Group,
    Field::Kind,
];

const REMOVED: [Field; 3] = [Field::Names, Field::Medium, Field::Group];

impl<'a> Draft<'a> {
    pub(super) fn read_stored(
        reader: &mut Reader<'a>,
        layout: Layout,
        batch: &mut EventBatch,
    ) -> Result<Draft<'a>, Malformed> {
        let draft = Draft::read(reader, layout, &STORED, batch)?;
        if !draft.has.names || !draft.has.tokens {
            return Err(reader.malformed("blocks stored without names or tokens"));
        }
        Ok(draft)
    }

    pub(super) fn read_removed(
        reader: &mut Reader<'a>,
        layout: Layout,
        batch: &mut EventBatch,
    ) -> Result<Draft<'a>, Malformed> {
        let draft = Draft::read(reader, layout, &REMOVED, batch)?;
        if !draft.has.names {
            return Err(reader.malformed("blocks removed without names"));
        }
        Ok(draft)
    }

    fn read(
        reader: &mut Reader<'a>,
        layout: Layout,
        order: &[Field],
        batch: &mut EventBatch,
    ) -> Result<Draft<'a>, Malformed> {
        let mut draft = Draft::new(batch);
        match layout {
            Layout::Array(count) => {
                for position in 0..count {
                    let field = order.get(position).copied().unwrap_or(Field::Other);
                    draft.read_field(field, reader, batch)?;
                }
            }
            Layout::Map(count) => {
                for _ in 0..count {
                    let field = Field::of_key(reader.text()?);
                    draft.read_field(field, reader, batch)?;
                }
            }
        }
        Ok(draft)
    }

    fn new(batch: &EventBatch) -> Draft<'a> {
        Draft {
            names_start: batch.names.len(),
            tokens_start: batch.tokens.len(),
            extras_start: batch.extras.len(),
            has: Has::default(),
            parent: None,
            block_tokens: 0,
            lora_id: None,
            lora_name: None,
            salt: None,
            extra_keys: None,
            group: None,
            kind: None,
            tier: Tier::Gpu,
        }
    }

    #[inline]
    fn read_field(
        &mut self,
        field: Field,
        reader: &mut Reader<'a>,
        batch: &mut EventBatch,
    ) -> Result<(), Malformed> {
        match field {
            Field::Names => {
                // A repeated field counts once; otherwise one event could hold more than its bytes.
                batch.names.truncate(self.names_start);
                self.has.names = true;
                return read_names(reader, &mut batch.names);
            }
            Field::Tokens => {
                batch.tokens.truncate(self.tokens_start);
                self.has.tokens = true;
                return read_tokens(reader, &mut batch.tokens);
            }
            Field::Other => return reader.skip(1),
            _ if reader.nil() => return Ok(()),
            Field::Parent => self.parent = Some(read_name(reader)?),
            Field::BlockSize => self.block_tokens = reader.u32()?,
            Field::LoraId => self.lora_id = Some(read_name(reader)?),
            Field::Medium => self.tier = self.tier.max(medium_tier(reader.text()?)),
            Field::Locality => self.tier = self.tier.max(locality_tier(reader.text()?)),
            Field::LoraName => self.read_name_or_metadata(reader)?,
            Field::Salt => self.salt = Some(read_text(reader)?),
            Field::ExtraKeys => {
                self.extra_keys = Some(*reader);
                reader.skip(1)?;
            }
            Field::Group => self.group = Some(reader.u32()?.into()),
            Field::Kind => self.kind = Some(reader.text()?),
        }
        Ok(())
    }

    /// Where vLLM writes the adapter's name, SGLang writes a map that contains the salt.
    fn read_name_or_metadata(&mut self, reader: &mut Reader<'a>) -> Result<(), Malformed> {
        let start = *reader;
        let Head::Map(count) = reader.head()? else {
            *reader = start;
            self.lora_name = Some(read_text(reader)?);
            return Ok(());
        };
        for _ in 0..count {
            match reader.text()? {
                b"cache_salt" if !reader.nil() => self.salt = Some(read_text(reader)?),
                b"cache_salt" => {}
                _ => reader.skip(1)?,
            }
        }
        Ok(())
    }

    pub(super) fn finish_stored(
        mut self,
        groups: &mut Groups,
        batch: &mut EventBatch,
    ) -> Result<(), Malformed> {
        match (self.group, self.kind) {
            (Some(group), Some(kind)) => groups.declare(group, kind),
            (Some(group), None) if self.leaves_out(batch) => groups.leaves_out(group),
            _ => {}
        }
        let Some(tier) = self.counted(groups, batch) else { return Ok(()) };
        if let Some(extra_keys) = self.extra_keys {
            self.read_extras(extra_keys, batch)?;
        }
        // Before 0.14 vLLM numbered adapters. Such a name matches nothing, which is better than matching the
        // base model.
        let adapter = match (self.lora_name, self.lora_id) {
            (Some(name), _) => Some(add_text(batch, format_args!("{name}"))),
            (None, Some(id)) => Some(add_text(batch, format_args!("lora_id:{id}"))),
            (None, None) => None,
        };
        // vLLM treats an empty salt as none.
        let salt = self.salt.filter(|it| !it.is_empty()).map(|it| add_text(batch, format_args!("{it}")));
        batch.records.push(EventRecord::Stored(StoredRecord {
            names: Span::new(self.names_start, batch.names.len()),
            tokens: Span::new(self.tokens_start, batch.tokens.len()),
            extras: Span::new(self.extras_start, batch.extras.len()),
            adapter,
            salt,
            parent: self.parent,
            block_tokens: self.block_tokens,
            tier,
        }));
        Ok(())
    }

    /// Whether it names fewer blocks than it has tokens for.
    fn leaves_out(&self, batch: &EventBatch) -> bool {
        let (names, tokens) = (batch.names.len() - self.names_start, batch.tokens.len() - self.tokens_start);
        (tokens as u64) > (names as u64).saturating_mul(self.block_tokens.into())
    }

    pub(super) fn finish_removed(self, groups: &Groups, batch: &mut EventBatch) {
        if let Some(tier) = self.counted(groups, batch) {
            let names = Span::new(self.names_start, batch.names.len());
            batch.records.push(EventRecord::Removed { names, tier });
        }
    }

    /// The tier. None if the event is skipped: then its names and tokens are removed from the batch.
    fn counted(&self, groups: &Groups, batch: &mut EventBatch) -> Option<Tier> {
        let is_full = match (self.group, self.kind) {
            (Some(group), _) => groups.is_full(group),
            (None, Some(kind)) => {
                // A kind without a group number tells nothing about later events.
                let mut alone = Groups::default();
                alone.declare(0, kind);
                alone.is_full(0)
            }
            (None, None) => true,
        };
        if is_full {
            return Some(self.tier);
        }
        batch.skipped.groups += 1;
        batch.names.truncate(self.names_start);
        batch.tokens.truncate(self.tokens_start);
        None
    }

    /// One list per block: the adapter's name, pairs of an image and its offset, the salt if the block begins
    /// the prompt, digests of embeddings. The adapter and the salt are separate fields too; the rest is
    /// hashed.
    fn read_extras(&mut self, mut reader: Reader<'a>, batch: &mut EventBatch) -> Result<(), Malformed> {
        let blocks = reader.count()?;
        if reader.are_nil(blocks) {
            return Ok(());
        }
        let names = batch.names.len() - self.names_start;
        for block in 0..blocks.min(names) {
            let extra = match reader.nil() {
                true => 0,
                false => self.read_extra(&mut reader, block == 0 && self.parent.is_none())?,
            };
            batch.extras.push(extra);
        }
        match batch.extras[self.extras_start..].iter().all(|&it| it == 0) {
            true => batch.extras.truncate(self.extras_start),
            false => batch.extras.resize(self.extras_start + names, 0),
        }
        Ok(())
    }

    fn read_extra(&mut self, reader: &mut Reader<'a>, begins_prompt: bool) -> Result<u64, Malformed> {
        let keys = reader.count()?;
        let salt_at = if begins_prompt { self.find_salt(*reader, keys)? } else { None };
        let mut extra = 0;
        for key in 0..keys {
            let before = *reader;
            let raw = reader.raw()?;
            let is_adapter = key == 0 && self.is_adapter(before);
            if !is_adapter && salt_at != Some(key) {
                extra = hash::pair(extra, hash::bytes(0, raw)).max(1);
            }
        }
        Ok(extra)
    }

    /// Removes and returns the salt: the last plain string of a prompt's first block, after the adapter's
    /// name.
    fn find_salt(&mut self, mut reader: Reader<'a>, keys: usize) -> Result<Option<usize>, Malformed> {
        let mut found = None;
        for key in 0..keys {
            let before = reader;
            let is_adapter = key == 0 && self.is_adapter(before);
            let mut text = before;
            if !is_adapter && matches!(text.head(), Ok(Head::Text(_))) {
                found = Some((key, before));
            }
            reader.skip(1)?;
        }
        let Some((key, mut at)) = found else { return Ok(None) };
        self.salt = Some(read_text(&mut at)?);
        Ok(Some(key))
    }

    fn is_adapter(&self, mut reader: Reader<'a>) -> bool {
        let Some(name) = self.lora_name else { return false };
        matches!(reader.head(), Ok(Head::Text(text)) if text == name.as_bytes())
    }
}

impl Field {
    fn of_key(key: &[u8]) -> Field {
        match key {
            b"block_hashes" => Field::Names,
            b"parent_block_hash" => Field::Parent,
            b"token_ids" => Field::Tokens,
            b"block_size" => Field::BlockSize,
            b"lora_id" => Field::LoraId,
            b"medium" => Field::Medium,
            b"lora_name" => Field::LoraName,
            b"extra_keys" => Field::ExtraKeys,
            b"group_idx" => Field::Group,
            b"kv_cache_spec_kind" => Field::Kind,
            b"locality" => Field::Locality,
            b"cache_salt" => Field::Salt,
            _ => Field::Other,
        }
    }
}

/// Connectors invent names, so parts of the name decide. An unknown name counts as the slowest tier of a worker's own, so
/// that it is never preferred to a tier known to be near.
fn medium_tier(name: &[u8]) -> Tier {
    match name {
        b"GPU" => return Tier::Gpu,
        b"CPU" | b"CPU_PINNED" => return Tier::Cpu,
        b"STORAGE" | b"DISK" => return Tier::Disk,
        _ => {}
    }
    let name = name.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|it| memchr::memmem::find(&name, it.as_bytes()).is_some());
    match () {
        () if has(&["external", "remote"]) => Tier::Shared,
        () if has(&["gpu", "cuda", "hbm"]) => Tier::Gpu,
        () if has(&["cpu", "host", "ram"]) => Tier::Cpu,
        () => Tier::Disk,
    }
}

/// Whether blocks are shared. A locality names no medium: the farther tier of both counts.
fn locality_tier(name: &[u8]) -> Tier {
    if name.eq_ignore_ascii_case(b"remote") { Tier::Shared } else { Tier::Gpu }
}

fn read_names(reader: &mut Reader<'_>, names: &mut Vec<u64>) -> Result<(), Malformed> {
    let count = reader.count()?;
    names.reserve(count);
    for _ in 0..count {
        names.push(read_name(reader)?);
    }
    Ok(())
}

/// A name as 64 bits. A negative number keeps its bit pattern; of a digest the last eight bytes count, as in
/// vLLM where it writes numbers.
fn read_name(reader: &mut Reader<'_>) -> Result<u64, Malformed> {
    match reader.head()? {
        Head::Unsigned(name) => Ok(name),
        Head::Negative(name) => Ok(name as u64),
        Head::Bytes(digest) => {
            let tail = &digest[digest.len().saturating_sub(8)..];
            Ok(tail.iter().fold(0, |name, &byte| name << 8 | u64::from(byte)))
        }
        _ => Err(reader.malformed("no name of a block")),
    }
}

fn read_tokens(reader: &mut Reader<'_>, tokens: &mut Vec<u32>) -> Result<(), Malformed> {
    let count = reader.count()?;
    let mut first = *reader;
    if count > 0 && first.head()? == Head::Array(2) {
        return read_pairs(reader, count, tokens);
    }
    reader.u32s(count, tokens)
}

/// SGLang with EAGLE caches each token together with the one after it. Only the first of each pair is kept:
/// these are the prompt's own tokens, in the same blocks as in any other engine. The second token of the last
/// pair begins the next block. The engine requires it to match too, so for a prefix that ends exactly there
/// we expect one block too many. Keeping it would shift every block by one.
fn read_pairs(reader: &mut Reader<'_>, count: usize, tokens: &mut Vec<u32>) -> Result<(), Malformed> {
    for _ in 0..count {
        if reader.count()? != 2 {
            return Err(reader.malformed("no pair of tokens"));
        }
        tokens.push(reader.u32()?);
        reader.u32()?;
    }
    Ok(())
}

fn read_text<'a>(reader: &mut Reader<'a>) -> Result<&'a str, Malformed> {
    let text = reader.text()?;
    simdutf8::basic::from_utf8(text).map_err(|_| reader.malformed("text that is not UTF-8"))
}

fn add_text(batch: &mut EventBatch, text: fmt::Arguments<'_>) -> Span {
    let start = batch.texts.len();
    // Writing to a string cannot fail.
    let _ = batch.texts.write_fmt(text);
    Span::new(start, batch.texts.len())
}
