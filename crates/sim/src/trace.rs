//! Traces: the arrival time, prompt and answer length of each request.
//!
//! A prompt is a list of pieces, each a number of tokens of a text identified by a number. Equal numbers are equal
//! texts, so two prompts share as much as their lists do, and no text is needed. The answer has a number too: a later
//! prompt that contains it is the next turn of the conversation.
//!
//! A file has one JSON object per line. Two formats are read, in any mix:
//!
//! ```text
//! {"timestamp":27482,"input_length":6955,"output_length":52,"hash_ids":[46,47,2353,…]}
//! {"timestamp":12.5,"output_length":52,"prompt":[[7,2000],[31,155]],"answer":32}
//! ```
//!
//! The first is Mooncake's: each number identifies a block of 512 tokens (unless `block_size` differs) and all before
//! it. `maitre serve --record` writes it, too. The second is our own, for texts of any length. Timestamps are in
//! milliseconds. Either may have a class, a tenant and a deadline: `"class":"batch","tenant":17,"deadline_ms":900`.
//! A recorded one has what was observed: `"ttft_ms":812.1,"e2e_ms":2034.9,"cached_length":512`.
//! Gzip files are read as well.

pub mod curve;
mod reuse;
mod row;

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use maitre_base::{Instant, hash};

use crate::report::RequestLabel;
use crate::text;

use row::ClassNames;
pub use row::LineError;
pub(crate) use row::{ANSWER_TOKENS_MAX, CLASSES_MAX, DEADLINE_MAX, PROMPT_TOKENS_MAX, is_name};

/// Some tokens of a text, from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub text: u64,
    pub tokens: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub at: Instant,
    pub prompt: Box<[Piece]>,
    pub answer_tokens: u32,
    /// Identifies the text of the answer.
    pub answer: u64,
    pub session: Option<u64>,
    /// Parts of a trace, such as stages of rising load, are reported separately.
    pub part: u32,
    /// The class name; `None` is the standard class. Requests of a class share the string.
    pub class: Option<Arc<str>>,
    /// The tenant; zero is none.
    pub tenant: u64,
    /// From the arrival to the first token. Never zero.
    pub deadline: Option<Duration>,
    /// The answer that the recorded router gave; `None` if it was not recorded, or not complete.
    pub observed: Option<Box<ObservedAnswer>>,
}

/// An answer as it was in production. Times are from the arrival at the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedAnswer {
    /// `None` if it was not streamed.
    pub first_token: Option<Duration>,
    pub total: Duration,
    /// `None` if the engine did not report it.
    pub cached_tokens: Option<u32>,
}

impl Request {
    pub fn label(&self) -> RequestLabel {
        RequestLabel {
            part: self.part,
            class: self.class.clone(),
            tenant: self.tenant,
            deadline: self.deadline,
        }
    }

    pub fn prompt_tokens(&self) -> u64 {
        self.prompt.iter().map(|it| u64::from(it.tokens)).sum()
    }

    /// Writes out the tokens of the prompt.
    pub fn write_tokens(&self, tokens: &mut Vec<u32>) {
        tokens.clear();
        for piece in &self.prompt {
            tokens.extend((0..piece.tokens).map(|index| text::answer_token(piece.text, index)));
        }
    }

    /// The prompt as text for the simulated tokenizer, which encodes it to the same tokens.
    pub fn prompt_text(&self) -> String {
        self.prompt.iter().map(|it| text::answer_text(it.text, it.tokens)).collect()
    }
}

/// Requests in order of arrival; the first arrives at zero or later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    pub requests: Vec<Request>,
}

/// Maximum requests that are read.
pub const REQUESTS_MAX: usize = 10_000_000;
/// Maximum line length: a prompt of two million tokens in blocks of 64.
pub(crate) const LINE_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error(transparent)]
    Read(#[from] std::io::Error),
    #[error("its gzip data is cut off or damaged: {0}")]
    Packed(std::io::Error),
    #[error("line {line}: {wrong}")]
    Line { line: usize, wrong: LineError },
    #[error("line {line} is longer than {LINE_BYTES_MAX} bytes")]
    LongLine { line: usize },
    #[error("it contains no requests")]
    Empty,
    #[error("it has more than {REQUESTS_MAX} requests")]
    TooMany,
}

impl Trace {
    /// Reads a trace, compressed or not. Requests with equal timestamps are spread over the time until the next one:
    /// a service that logs every three seconds did not receive its requests in bursts.
    pub fn read(source: impl Read) -> Result<Trace, TraceError> {
        let mut source = BufReader::new(source);
        let compressed = source.fill_buf()?.starts_with(&[0x1F, 0x8B]);
        let mut requests =
            match compressed {
                true => read_lines(BufReader::new(flate2::bufread::MultiGzDecoder::new(source))).map_err(
                    |it| match it {
                        TraceError::Read(error) => TraceError::Packed(error),
                        other => other,
                    },
                )?,
                false => read_lines(source)?,
            };
        if requests.is_empty() {
            return Err(TraceError::Empty);
        }
        requests.sort_by_key(|it| it.at);
        spread(&mut requests);
        Ok(Trace { requests })
    }

    /// Writes it in our own format.
    pub fn write(&self, mut sink: impl Write) -> std::io::Result<()> {
        for request in &self.requests {
            row::write(request, &mut sink)?;
        }
        sink.flush()
    }

    /// Writes it in our own format, compressed with gzip.
    pub fn write_gzip(&self, sink: impl Write) -> std::io::Result<()> {
        let mut packed = flate2::write::GzEncoder::new(sink, flate2::Compression::default());
        self.write(&mut packed)?;
        packed.finish()?.flush()
    }

    /// Speeds the arrivals up by this factor.
    pub fn hasten(&mut self, speed: f64) {
        for request in &mut self.requests {
            request.at = Instant::ZERO + request.at.since(Instant::ZERO).div_f64(speed);
        }
    }

    /// From zero to the last arrival.
    pub fn span(&self) -> Duration {
        self.requests.last().map_or(Duration::ZERO, |it| it.at.since(Instant::ZERO))
    }
}

fn read_lines(mut source: impl BufRead) -> Result<Vec<Request>, TraceError> {
    let mut requests = Vec::new();
    let mut bytes = Vec::new();
    let mut classes = ClassNames::default();
    for line in 1.. {
        bytes.clear();
        if source.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        if bytes.len() as u64 == LINE_BYTES_MAX && bytes.last() != Some(&b'\n') {
            return Err(TraceError::LongLine { line });
        }
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        if requests.len() == REQUESTS_MAX {
            return Err(TraceError::TooMany);
        }
        // What a line leaves unnamed gets a unique number.
        let own = hash::pair(0x6F77_6E20_7465_7874, line as u64);
        let request =
            row::read(&bytes, own, &mut classes).map_err(|wrong| TraceError::Line { line, wrong })?;
        requests.push(request);
    }
    Ok(requests)
}

fn spread(requests: &mut [Request]) {
    let mut begin = 0;
    // The last batch has no successor; it gets the duration of the one before.
    let mut gap = Duration::ZERO;
    while begin < requests.len() {
        let at = requests[begin].at;
        let count = requests[begin..].iter().take_while(|it| it.at == at).count();
        if let Some(next) = requests.get(begin + count) {
            gap = next.at.since(at);
        }
        for (place, request) in requests[begin..begin + count].iter_mut().enumerate() {
            request.at = at + gap.mul_f64(place as f64 / count as f64);
        }
        begin += count;
    }
}

#[cfg(test)]
mod tests;
