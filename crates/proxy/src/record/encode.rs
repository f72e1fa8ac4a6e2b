//! One request as a line in Mooncake's format: its arrival time, the lengths of prompt and output, and for each block of
//! the prompt a number that identifies the block and all before it.
//!
//! The numbers are prefix hashes under a secret that is random and never written (SipHash with 128 random bits). A reader
//! of the file can tell that two prompts begin alike, but cannot test guessed texts. Mixing a secret in with `hash::pair`
//! would not do: that function is invertible, so one guessed prompt would reveal the secret. The numbers have 53 bits,
//! because many JSON readers only support integers that fit a double.
//!
//! Blocks of equal number must have equal lengths, or prompts that share them would diverge in a replay. Where only bytes
//! are known, a block is a number of words, and how many tokens these are differs from prompt to prompt. So the ratio is
//! fixed once for each model, by the first long prompt that an engine counted. In a prompt with more tokens to a word,
//! some tokens at the end have no number.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::Duration;

use maitre_base::Instant;
use maitre_dispatch::Form;
use maitre_index::prefix::Unit;

use super::{RecordEnding, RecordEntry, RecordedPrompt};

/// Tokens in a recorded block, about. Fine enough for the caches of all engines, at an eighth of the size that vLLM's
/// blocks of 16 would take.
const BLOCK_TOKENS: u32 = 128;
/// Numbers in a line, at 17 bytes each: `maitre replay` reads lines of up to a megabyte.
const NUMBERS_MAX: usize = 32_768;
/// `maitre replay` rejects larger numbers, and an engine's count may be wrong.
const PROMPT_TOKENS_MAX: u64 = 16 << 20;
const OUTPUT_TOKENS_MAX: u64 = 1 << 20;
const DEADLINE_MAX: Duration = Duration::from_secs(86_400);
/// Words of a prompt that is long enough to fix the ratio of tokens to words: in a shorter one the template weighs too
/// much.
const SAMPLE_WORDS: u64 = 512;
/// Models whose ratio is kept. The fleet has no more names than that.
const MODELS_MAX: usize = 4_096;
/// Bits of a hash that are not written.
const BITS_CUT: u32 = 64 - 53;

/// The start of every line.
pub(super) const LINE_START: &str = "{\"timestamp\":";

pub(super) struct LineEncoder {
    secret: RandomState,
    /// The JSON name of each class; None for the standard class, which is not written.
    classes: Vec<Option<String>>,
    /// Tokens to a word, by model.
    ratios: HashMap<Arc<str>, f64>,
}

/// What a number identifies: equal inputs of different kinds get different numbers.
#[derive(Clone, Copy, Hash)]
enum NumberKind {
    Prefix,
    Session,
    Tenant,
}

/// A prompt's lengths in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lengths {
    prompt: u64,
    block: u64,
    /// Hashes of the chain in a block.
    step: usize,
}

impl LineEncoder {
    pub(super) fn new(queue: &maitre_queue::QueueSettings) -> LineEncoder {
        let name = |(number, class): (usize, &maitre_queue::Class)| {
            (number != queue.standard.index())
                .then(|| serde_json::Value::from(class.name.as_str()).to_string())
        };
        let classes = queue.classes.iter().enumerate().map(name).collect();
        LineEncoder { secret: RandomState::new(), classes, ratios: HashMap::new() }
    }

    pub(super) fn line(&mut self, entry: &RecordEntry, ending: RecordEnding, began: Instant) -> String {
        let counted = ending.usage.and_then(|it| it.prompt_tokens);
        let Lengths { prompt, block, step } = self.lengths(&entry.prompt, counted);
        let output = ending.usage.and_then(|it| it.completion_tokens).unwrap_or(match entry.form {
            Form::Stream => u64::from(ending.chunks),
            Form::Whole => 0,
        });
        // A request that arrived before this file began counts as arriving at its beginning.
        let mut line = String::from(LINE_START);
        write_millis(ending.arrived.since(began), &mut line);
        // Writing to a string cannot fail.
        let _ = write!(line, ",\"input_length\":{prompt}");
        let _ = write!(line, ",\"output_length\":{}", output.min(OUTPUT_TOKENS_MAX));
        let most = usize::try_from(prompt.div_ceil(block)).unwrap_or(usize::MAX).min(NUMBERS_MAX);
        let mut comma = "";
        line.push_str(",\"hash_ids\":[");
        for prefix in entry.prompt.prompt.chain.iter().skip(step - 1).step_by(step).take(most) {
            let _ = write!(line, "{comma}{}", self.number(NumberKind::Prefix, prefix.0));
            comma = ",";
        }
        let _ = write!(line, "],\"block_size\":{block}");
        if let Some(session) = entry.session {
            let _ = write!(line, ",\"session\":{}", self.number(NumberKind::Session, session));
        }
        self.write_tenant(entry, ending.arrived, &mut line);
        write_observed(entry.form, ending, prompt, &mut line);
        line.push_str("}\n");
        line
    }

    /// The class, the tenant and the deadline.
    fn write_tenant(&self, entry: &RecordEntry, arrived: Instant, line: &mut String) {
        if let Some(Some(class)) = self.classes.get(entry.class.index()) {
            let _ = write!(line, ",\"class\":{class}");
        }
        if entry.tenant.0 != 0 {
            let _ = write!(line, ",\"tenant\":{}", self.number(NumberKind::Tenant, entry.tenant.0));
        }
        if let Some(deadline) = entry.deadline {
            // A deadline in the past is written as 1 ms: the request had one. `maitre replay` reads at most a day.
            let millis = deadline.since(arrived).min(DEADLINE_MAX).as_millis().max(1);
            let _ = write!(line, ",\"deadline_ms\":{millis}");
        }
    }

    fn number(&self, kind: NumberKind, value: u64) -> u64 {
        self.secret.hash_one((kind, value)) >> BITS_CUT
    }

    fn lengths(&mut self, recorded: &RecordedPrompt, counted: Option<u64>) -> Lengths {
        let RecordedPrompt { model, prompt } = recorded;
        let step = (BLOCK_TOKENS / prompt.block.max(1)).max(1);
        let units = u64::from(step) * u64::from(prompt.block.max(1));
        let ratio = match prompt.unit {
            Unit::Tokens => 1.0,
            Unit::Words => self.ratio(model, prompt.units, counted),
        };
        let tokens = |units: u64| (units as f64 * ratio).round() as u64;
        let total = counted.unwrap_or_else(|| tokens(prompt.units));
        Lengths {
            prompt: total.clamp(1, PROMPT_TOKENS_MAX),
            block: tokens(units).max(1),
            step: step as usize,
        }
    }

    fn ratio(&mut self, model: &Arc<str>, words: u64, counted: Option<u64>) -> f64 {
        if let Some(&known) = self.ratios.get(model) {
            return known;
        }
        match counted {
            Some(counted @ 1..) if words >= SAMPLE_WORDS && self.ratios.len() < MODELS_MAX => {
                // Bounds as in `fleet::estimate`: an image or a wrong count must not distort the ratio.
                let ratio = (counted as f64 / words as f64).clamp(0.25, 8.0);
                self.ratios.insert(model.clone(), ratio);
                ratio
            }
            // About right for English.
            _ => 1.0,
        }
    }
}

/// What was observed of a complete answer. Only a stream shows when the first token came.
fn write_observed(form: Form, ending: RecordEnding, prompt_tokens: u64, line: &mut String) {
    let Some(times) = ending.times else { return };
    if form == Form::Stream {
        line.push_str(",\"ttft_ms\":");
        write_millis(times.first_chunk, line);
    }
    line.push_str(",\"e2e_ms\":");
    write_millis(times.last_chunk, line);
    if let Some(cached) = ending.usage.and_then(|it| it.cached_tokens) {
        // An engine's count may be wrong, and `maitre replay` rejects a prompt that is more than cached.
        let _ = write!(line, ",\"cached_length\":{}", cached.min(prompt_tokens));
    }
}

/// To the microsecond.
fn write_millis(time: Duration, line: &mut String) {
    let micros = time.as_micros();
    let _ = write!(line, "{}.{:03}", micros / 1_000, micros % 1_000);
}
