//! One line of a trace.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use maitre_base::{Instant, hash};
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

use super::{ObservedAnswer, Piece, Request};

/// Tokens per block in Mooncake's format.
const MOONCAKE_BLOCK: u32 = 512;
/// A year: a larger timestamp is probably a time of day.
const MILLIS_MAX: f64 = 366.0 * 86_400_000.0;
/// Longer than any context, and small enough to write out.
pub(crate) const PROMPT_TOKENS_MAX: u64 = 16 << 20;
pub(crate) const ANSWER_TOKENS_MAX: u32 = 1 << 20;
/// Longer deadlines are rejected.
pub(crate) const DEADLINE_MAX: Duration = Duration::from_secs(86_400);
/// No request takes longer.
const OBSERVED_MAX: Duration = Duration::from_secs(86_400);
const NAME_CHARS_MAX: usize = 64;
/// Maximum classes per trace: each is a row in every report. A router has at most eight.
pub(crate) const CLASSES_MAX: usize = 64;

/// Shown if a file is no trace at all, such as a table with commas or one large array.
const EXAMPLE: &str = r#"{"timestamp":0,"input_length":9,"output_length":5,"hash_ids":[]}"#;

/// What is wrong with a line.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    #[error("not a JSON object; a trace has one on each line, such as {EXAMPLE}")]
    NotObject,
    #[error("not a request: {}", with_column(.0))]
    Json(#[from] serde_json::Error),
    #[error("`timestamp` is {0}; milliseconds from the beginning of the trace are expected, up to a year")]
    Timestamp(f64),
    #[error("a prompt of {0} tokens; 1 to {PROMPT_TOKENS_MAX} are expected")]
    PromptTokens(u64),
    #[error("an answer of {0} tokens; at most {ANSWER_TOKENS_MAX} are expected")]
    AnswerTokens(u32),
    #[error("`block_size` is zero")]
    BlockSize,
    #[error("`hash_ids` names {ids} blocks of {block} tokens, but `input_length` is {tokens}")]
    Blocks { ids: usize, block: u32, tokens: u64 },
    #[error("`input_length` is {told}, but the pieces of `prompt` have {found} tokens")]
    Length { told: u64, found: u64 },
    #[error("neither `input_length` nor `prompt`")]
    NoPrompt,
    #[error("`class` is {0:?}; a name of 1 to {NAME_CHARS_MAX} characters is expected")]
    Class(String),
    #[error("`class` is {0:?}, and {CLASSES_MAX} others came before; no more are allowed")]
    TooManyClasses(String),
    #[error("`tenant` is {0}; a whole number from 0 on or a name is expected")]
    Tenant(Value),
    #[error("`deadline_ms` is {0}; milliseconds above 0 and up to a day are expected")]
    Deadline(Number),
    #[error("`{key}` is {millis}; milliseconds from 0 and up to a day are expected")]
    Observed { key: &'static str, millis: f64 },
    #[error("`ttft_ms` is {first} and `e2e_ms` {total}: the first token cannot come after the last")]
    ObservedOrder { first: f64, total: f64 },
    #[error("`cached_length` is {cached}, but the prompt has {tokens} tokens")]
    Cached { cached: u64, tokens: u64 },
}

/// The error with its column. Serde counts lines within the row, so its line number is dropped.
fn with_column(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column", ", column")
}

#[derive(Deserialize, Serialize)]
struct TraceLine {
    timestamp: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_length: Option<u64>,
    output_length: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash_ids: Option<Vec<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<Vec<(u64, u32)>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<u64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    part: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_ms: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttft_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    e2e_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_length: Option<u64>,
}

/// The class names so far, so that requests share them.
#[derive(Debug, Default)]
pub(super) struct ClassNames(Vec<Arc<str>>);

impl ClassNames {
    fn name(&mut self, class: String) -> Result<Arc<str>, LineError> {
        if let Some(known) = self.0.iter().find(|it| ***it == *class) {
            return Ok(known.clone());
        }
        if !is_name(&class) {
            return Err(LineError::Class(class));
        }
        if self.0.len() == CLASSES_MAX {
            return Err(LineError::TooManyClasses(class));
        }
        let name: Arc<str> = class.into();
        self.0.push(name.clone());
        Ok(name)
    }
}

/// Whether this is a valid name for a class or a tenant: a header must be able to carry it.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=NAME_CHARS_MAX).contains(&name.chars().count()) && !name.chars().any(char::is_control)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(part: &u32) -> bool {
    *part == 0
}

/// `own` identifies what the line leaves unnamed.
pub(super) fn read(line: &[u8], own: u64, classes: &mut ClassNames) -> Result<Request, LineError> {
    if line.trim_ascii().first() != Some(&b'{') {
        return Err(LineError::NotObject);
    }
    let mut row: TraceLine = serde_json::from_slice(line)?;
    if !(0.0..=MILLIS_MAX).contains(&row.timestamp) {
        return Err(LineError::Timestamp(row.timestamp));
    }
    if row.output_length > ANSWER_TOKENS_MAX {
        return Err(LineError::AnswerTokens(row.output_length));
    }
    let prompt = match (&row.prompt, row.input_length) {
        (Some(pieces), told) => {
            let pieces: Vec<Piece> = pieces.iter().map(|&(text, tokens)| Piece { text, tokens }).collect();
            let found = pieces.iter().map(|it| u64::from(it.tokens)).sum();
            match told {
                Some(told) if told != found => return Err(LineError::Length { told, found }),
                _ => pieces,
            }
        }
        (None, Some(tokens)) => blocks(&row, tokens, own)?,
        (None, None) => return Err(LineError::NoPrompt),
    };
    let prompt_tokens = match prompt.iter().map(|it| u64::from(it.tokens)).sum() {
        tokens @ 1..=PROMPT_TOKENS_MAX => tokens,
        other => return Err(LineError::PromptTokens(other)),
    };
    Ok(Request {
        at: Instant::ZERO + Duration::from_secs_f64(row.timestamp / 1e3),
        prompt: prompt.into(),
        answer_tokens: row.output_length.max(1),
        answer: row.answer.unwrap_or_else(|| hash::pair(own, 1)),
        session: row.session,
        part: row.part,
        class: row.class.take().map(|it| classes.name(it)).transpose()?,
        tenant: row.tenant.take().map_or(Ok(0), tenant)?,
        deadline: row.deadline_ms.take().map(deadline).transpose()?,
        observed: observed(&row, prompt_tokens)?.map(Box::new),
    })
}

/// `None` without `e2e_ms`: the answer was not complete.
fn observed(row: &TraceLine, prompt_tokens: u64) -> Result<Option<ObservedAnswer>, LineError> {
    let Some(e2e_ms) = row.e2e_ms else { return Ok(None) };
    let total = observed_time("e2e_ms", e2e_ms)?;
    let first_token = row.ttft_ms.map(|it| observed_time("ttft_ms", it)).transpose()?;
    if let (Some(first), Some(time)) = (row.ttft_ms, first_token)
        && time > total
    {
        return Err(LineError::ObservedOrder { first, total: e2e_ms });
    }
    match row.cached_length {
        Some(cached) if cached > prompt_tokens => Err(LineError::Cached { cached, tokens: prompt_tokens }),
        cached => Ok(Some(ObservedAnswer { first_token, total, cached_tokens: cached.map(|it| it as u32) })),
    }
}

fn observed_time(key: &'static str, millis: f64) -> Result<Duration, LineError> {
    let time = Duration::try_from_secs_f64(millis / 1e3).ok();
    time.filter(|it| *it <= OBSERVED_MAX).ok_or(LineError::Observed { key, millis })
}

fn tenant(value: Value) -> Result<u64, LineError> {
    match &value {
        Value::Number(number) => number.as_u64().ok_or(LineError::Tenant(value)),
        Value::String(name) if !name.is_empty() => Ok(hash::bytes(0, name.as_bytes())),
        _ => Err(LineError::Tenant(value)),
    }
}

fn deadline(millis: Number) -> Result<Duration, LineError> {
    let number = millis.as_f64().unwrap_or(f64::NAN);
    let deadline = Duration::try_from_secs_f64(number / 1e3).unwrap_or_default();
    match (Duration::from_nanos(1)..=DEADLINE_MAX).contains(&deadline) {
        true => Ok(deadline),
        false => Err(LineError::Deadline(millis)),
    }
}

/// The blocks of a prompt as pieces. An unnamed tail belongs to this request alone.
fn blocks(row: &TraceLine, tokens: u64, own: u64) -> Result<Vec<Piece>, LineError> {
    let ids = row.hash_ids.as_deref().unwrap_or_default();
    let block = row.block_size.unwrap_or(MOONCAKE_BLOCK);
    if block == 0 {
        return Err(LineError::BlockSize);
    }
    if tokens > PROMPT_TOKENS_MAX {
        return Err(LineError::PromptTokens(tokens));
    }
    if ids.len() as u64 > tokens.div_ceil(u64::from(block)) {
        return Err(LineError::Blocks { ids: ids.len(), block, tokens });
    }
    let mut pieces = Vec::with_capacity(ids.len() + 1);
    let mut left = tokens as u32;
    for &text in ids {
        let tokens = left.min(block);
        pieces.push(Piece { text, tokens });
        left -= tokens;
    }
    if left > 0 {
        pieces.push(Piece { text: own, tokens: left });
    }
    Ok(pieces)
}

pub(super) fn write(request: &Request, sink: &mut impl Write) -> std::io::Result<()> {
    let row = TraceLine {
        // Rounded to the microsecond.
        timestamp: (request.at.as_secs_f64() * 1e6).round() / 1e3,
        input_length: Some(request.prompt_tokens()),
        output_length: request.answer_tokens,
        hash_ids: None,
        block_size: None,
        prompt: Some(request.prompt.iter().map(|it| (it.text, it.tokens)).collect()),
        answer: Some(request.answer),
        session: request.session,
        part: request.part,
        class: request.class.as_deref().map(str::to_owned),
        tenant: (request.tenant != 0).then(|| request.tenant.into()),
        deadline_ms: request.deadline.and_then(millis),
        ttft_ms: request.observed.as_ref().and_then(|it| it.first_token).map(observed_millis),
        e2e_ms: request.observed.as_ref().map(|it| observed_millis(it.total)),
        cached_length: request.observed.as_ref().and_then(|it| it.cached_tokens).map(u64::from),
    };
    serde_json::to_writer(&mut *sink, &row)?;
    sink.write_all(b"\n")
}

/// Rounded to the microsecond.
fn observed_millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// An integer where possible.
fn millis(deadline: Duration) -> Option<Number> {
    match deadline.subsec_nanos() % 1_000_000 {
        0 => Some(Number::from(deadline.as_millis() as u64)),
        _ => Number::from_f64(deadline.as_secs_f64() * 1e3),
    }
}
