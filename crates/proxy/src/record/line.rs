//! One request as a line, in Mooncake's form: when it came, how long prompt and answer were, and a number
//! for each block of the prompt that names it and all before it.
//!
//! The numbers are prefix hashes under a secret that is drawn at the start and never written (SipHash with
//! 128 random bits): who has the file can tell that two prompts begin alike, but cannot try out texts.
//! Mixing a secret in with `hash::pair` would not do: that function can be run backwards, so one guessed
//! prompt gives the secret away. They have 53 bits, since many readers of JSON know no integers but those
//! that a double holds.
//!
//! Blocks of equal number must have equal lengths, or the prompts that share them part ways in a replay.
//! Where only bytes are known, a block is so many words, and how many tokens that makes differs from prompt
//! to prompt. So it is settled once for each model, by the first long prompt that an engine counted; in a
//! prompt that is denser than that one some tokens at the end have no number.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::Duration;

use maitre_base::Instant;
use maitre_dispatch::Form;
use maitre_index::prefix::Unit;

use super::{Ended, Note, Noted};

/// Tokens in a recorded block, about: fine enough for the caches of all engines, an eighth of what naming
/// each of vLLM's blocks would take.
const BLOCK_TOKENS: u32 = 128;
/// Numbers in a line, at 17 bytes each: the longest line that `maitre replay` reads has a megabyte.
const NUMBERS_MAX: usize = 32_768;
/// What `maitre replay` takes for a mistake, and an engine's count may be one.
const PROMPT_TOKENS_MAX: u64 = 16 << 20;
const ANSWER_TOKENS_MAX: u64 = 1 << 20;
const DEADLINE_MAX: Duration = Duration::from_secs(86_400);
/// Words of a prompt that is long enough to settle how many tokens a word is: in a shorter one the template
/// weighs too much.
const SAMPLE_WORDS: u64 = 512;
/// Models whose ratio is known. The fleet knows no more names than that.
const MODELS_MAX: usize = 4_096;
/// Bits of a number that are not written.
const BITS_CUT: u32 = 64 - 53;

/// What every line begins with.
pub(super) const BEGINNING: &str = "{\"timestamp\":";

pub(super) struct Scribe {
    secret: RandomState,
    /// The name of each class as a line has it; none for the standard one.
    classes: Vec<Option<String>>,
    /// Tokens in a word, by model.
    ratios: HashMap<Arc<str>, f64>,
}

/// What a number is for: equal inputs of different kinds get different numbers.
#[derive(Clone, Copy, Hash)]
enum Kind {
    Prefix,
    Session,
    Tenant,
}

/// A prompt's lengths in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lengths {
    prompt: u64,
    block: u64,
    /// Links of the chain in a block.
    step: usize,
}

impl Scribe {
    pub(super) fn new(queue: &maitre_queue::QueueSettings) -> Scribe {
        let name = |(number, class): (usize, &maitre_queue::Class)| {
            (number != queue.standard.index())
                .then(|| serde_json::Value::from(class.name.as_str()).to_string())
        };
        let classes = queue.classes.iter().enumerate().map(name).collect();
        Scribe { secret: RandomState::new(), classes, ratios: HashMap::new() }
    }

    pub(super) fn line(&mut self, note: &Note, ended: Ended, began: Instant) -> String {
        let counted = ended.usage.and_then(|it| it.prompt_tokens);
        let Lengths { prompt, block, step } = self.lengths(&note.noted, counted);
        let answer = ended.usage.and_then(|it| it.completion_tokens).unwrap_or(match note.form {
            Form::Stream => u64::from(ended.pieces),
            Form::Whole => 0,
        });
        // What came before this file began and ended after is as old as the file.
        let micros = ended.arrived.since(began).as_micros();
        let mut line = String::from(BEGINNING);
        // Writing to a string cannot fail.
        let _ = write!(line, "{}.{:03}", micros / 1_000, micros % 1_000);
        let _ = write!(line, ",\"input_length\":{prompt}");
        let _ = write!(line, ",\"output_length\":{}", answer.min(ANSWER_TOKENS_MAX));
        let most = usize::try_from(prompt.div_ceil(block)).unwrap_or(usize::MAX).min(NUMBERS_MAX);
        let mut comma = "";
        line.push_str(",\"hash_ids\":[");
        for prefix in note.noted.prompt.chain.iter().skip(step - 1).step_by(step).take(most) {
            let _ = write!(line, "{comma}{}", self.number(Kind::Prefix, prefix.0));
            comma = ",";
        }
        let _ = write!(line, "],\"block_size\":{block}");
        if let Some(session) = note.session {
            let _ = write!(line, ",\"session\":{}", self.number(Kind::Session, session));
        }
        self.write_asker(note, ended.arrived, &mut line);
        line.push_str("}\n");
        line
    }

    /// Who asks, and how soon an answer is wanted.
    fn write_asker(&self, note: &Note, arrived: Instant, line: &mut String) {
        if let Some(Some(class)) = self.classes.get(note.class.index()) {
            let _ = write!(line, ",\"class\":{class}");
        }
        if note.tenant.0 != 0 {
            let _ = write!(line, ",\"tenant\":{}", self.number(Kind::Tenant, note.tenant.0));
        }
        if let Some(deadline) = note.deadline {
            // One that was over when it came still had one, and what nobody reads is not written.
            let millis = deadline.since(arrived).min(DEADLINE_MAX).as_millis().max(1);
            let _ = write!(line, ",\"deadline_ms\":{millis}");
        }
    }

    fn number(&self, kind: Kind, value: u64) -> u64 {
        self.secret.hash_one((kind, value)) >> BITS_CUT
    }

    fn lengths(&mut self, noted: &Noted, counted: Option<u64>) -> Lengths {
        let Noted { model, prompt } = noted;
        let step = (BLOCK_TOKENS / prompt.block.max(1)).max(1);
        let units = u64::from(step) * u64::from(prompt.block.max(1));
        let ratio = match prompt.unit {
            Unit::Tokens => 1.0,
            Unit::Words => self.ratio(model, prompt.units, counted),
        };
        let tokens = |units: u64| (units as f64 * ratio).round() as u64;
        let told = counted.unwrap_or_else(|| tokens(prompt.units));
        Lengths { prompt: told.clamp(1, PROMPT_TOKENS_MAX), block: tokens(units).max(1), step: step as usize }
    }

    fn ratio(&mut self, model: &Arc<str>, words: u64, counted: Option<u64>) -> f64 {
        if let Some(&known) = self.ratios.get(model) {
            return known;
        }
        match counted {
            Some(counted @ 1..) if words >= SAMPLE_WORDS && self.ratios.len() < MODELS_MAX => {
                // Bounds as in `fleet::estimate`: an image or a wrong count must not turn it into nonsense.
                let ratio = (counted as f64 / words as f64).clamp(0.25, 8.0);
                self.ratios.insert(model.clone(), ratio);
                ratio
            }
            // What English has, nearly.
            _ => 1.0,
        }
    }
}
