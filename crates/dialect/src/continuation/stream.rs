//! Follows a stream from one worker to the next, and gives the client one stream.
//!
//! Only whole events are passed on, and an event whose tokens have no text yet (part of a character) waits for the next
//! one with text. So the client's text and the kept ids agree at every moment, and a break loses nothing: what was not
//! passed on is generated again.
//!
//! An event costs one walk over its JSON, or a comparison with the one before it (`pattern`), and one copy.

use crate::continuation::as_messages::MessagesWriter;
use crate::continuation::chunk::{self, StreamChunk, StreamEvent, event_end};
use crate::continuation::id_list::{ID_BYTES_MAX, count_of};
use crate::continuation::obstacle::Obstacle;
use crate::continuation::pattern::{EventPattern, OrdinaryEvent};
use crate::continuation::splice::{Splices, Value};
use crate::continuation::stop::{Piece, StopMatcher};
use crate::continuation::terms::{StreamTerms, with_ids};
use crate::continuation::transcript::Transcript;
use crate::engine::EngineKind;
use crate::json::Raw;
use crate::json::edit::Quoted;
use crate::openai::BadRequest;

/// The longest event: one with the ids of a whole prompt.
const EVENT_BYTES_MAX: usize = ID_BYTES_MAX + (64 << 10);

/// The most that waits for text. Chosen: hundreds of events, where a character has four tokens at most.
const HELD_BYTES_MAX: usize = 64 << 10;

/// Tokens that are looked at for a character that is not complete. It has three at most, and decoding wants some before them.
const END_TOKENS: usize = 8;

/// A stream whose tokens are kept, so that another worker can go on with it.
#[derive(Clone, Debug)]
pub struct ContinuableStream {
    terms: StreamTerms,
    /// Why it cannot be continued any more, if it cannot.
    obstacle: Option<Obstacle>,
    transcript: Transcript,
    source: Source,
    /// The beginning of an event, and up to where no end of it was found.
    partial: Vec<u8>,
    searched: usize,
    /// Whole events without text.
    held: Vec<u8>,
    /// An event was too long to be read: all that follows passes as it is.
    passes_all: bool,
    /// Where the router matches stop strings.
    stop: Option<StopMatcher>,
    /// Where the client gets the events as messages.
    messages: Option<MessagesWriter>,
    /// The client has got an event.
    has_passed: bool,
    /// How the first worker's events look.
    pattern: EventPattern,
}

/// Whose events come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    First,
    /// A worker that goes on after this many tokens.
    Rest {
        after: u64,
        /// It has confirmed that its prompt is what it was sent.
        is_confirmed: bool,
    },
}

/// The text of an event where stop strings are matched: as JSON and as it is, and what ended it.
struct StopText {
    text: String,
    plain: String,
    /// JSON: the string, and what takes the place of the finish reason.
    stop: Option<String>,
    finish: Option<String>,
}

/// What came of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    On,
    /// The engine reported a failure, or does not go on where it should: nothing more of it is passed on.
    Broken,
    /// The answer ended at a stop string: all of it is passed on, and the engine can be left.
    Ended,
    /// The engine separates more than text from its output, where stop strings are matched before that, or a message has
    /// blocks for it. Nothing was passed on: the request is to be sent again as the client wrote it.
    Unfit,
}

/// What a stream lacks that broke off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Break {
    /// Another worker must generate the rest; this many tokens are delivered.
    Rest {
        tokens: u64,
    },
    /// Nothing but these events.
    Ending(String),
    Lost(Obstacle),
}

impl ContinuableStream {
    pub fn new(terms: StreamTerms) -> ContinuableStream {
        ContinuableStream {
            stop: terms.stop.clone().map(StopMatcher::new),
            messages: terms.is_messages().then(MessagesWriter::default),
            has_passed: false,
            terms,
            obstacle: None,
            transcript: Transcript::default(),
            source: Source::First,
            partial: Vec::new(),
            searched: 0,
            held: Vec::new(),
            passes_all: false,
            pattern: EventPattern::default(),
        }
    }

    /// Why the stream cannot be continued; none if it can.
    pub fn obstacle(&self) -> Option<Obstacle> {
        self.obstacle
    }

    /// From now on the stream passes without being kept.
    pub fn give_up(&mut self, obstacle: Obstacle) {
        self.obstacle.get_or_insert(obstacle);
        self.transcript.ids = Default::default();
        self.pattern.clear();
    }

    /// Memory that the stream takes.
    pub fn kept_bytes(&self) -> usize {
        let stop = self.stop.as_ref().map_or(0, StopMatcher::kept_bytes);
        let kept = self.partial.len() + self.held.len() + self.pattern.kept_bytes();
        self.transcript.ids.text().len() + kept + stop
    }

    /// Takes a chunk of a worker's stream, and appends to `out` what the client gets of it.
    pub fn feed(&mut self, chunk: &[u8], out: &mut Vec<u8>) -> Flow {
        if self.messages.is_none() {
            return self.feed_events(chunk, out);
        }
        let mut events = Vec::new();
        let flow = self.feed_events(chunk, &mut events);
        out.extend_from_slice(self.converted(String::from_utf8_lossy(&events).into_owned()).as_bytes());
        flow
    }

    /// Events as the client gets them.
    fn converted(&mut self, events: String) -> String {
        let Some(messages) = &mut self.messages else { return events };
        let mut converted = String::new();
        messages.write(&events, &mut converted);
        converted
    }

    fn feed_events(&mut self, chunk: &[u8], out: &mut Vec<u8>) -> Flow {
        if self.passes_all {
            out.extend_from_slice(chunk);
            return Flow::On;
        }
        if self.partial.is_empty() {
            let (flow, read) = self.read_events(chunk, 0, out);
            self.partial.extend_from_slice(&chunk[read..]);
            self.searched = self.partial.len().saturating_sub(2);
            return flow;
        }
        let mut buffer = std::mem::take(&mut self.partial);
        let from = self.searched;
        buffer.extend_from_slice(chunk);
        let (flow, read) = self.read_events(&buffer, from, out);
        buffer.drain(..read);
        self.partial = buffer;
        self.searched = self.partial.len().saturating_sub(2);
        if self.partial.len() > EVENT_BYTES_MAX {
            self.give_up(Obstacle::TooLong);
            if self.terms.needs_text() {
                // It would run past its stop strings, or is no message.
                return Flow::Broken;
            }
            // The client may see ids that it did not ask for.
            self.passes_all = true;
            out.append(&mut self.held);
            out.append(&mut self.partial);
        }
        flow
    }

    /// Reads the whole events of a text, which is known to have no end of one before `from`. Returns how much was read.
    fn read_events(&mut self, text: &[u8], from: usize, out: &mut Vec<u8>) -> (Flow, usize) {
        let (mut start, mut searched) = (0, from);
        while let Some(end) = event_end(text, searched) {
            match self.read_event(&text[start..end], out) {
                Flow::On => {}
                flow => return (flow, text.len()),
            }
            (start, searched) = (end, end);
        }
        (Flow::On, start)
    }

    fn read_event(&mut self, event: &[u8], out: &mut Vec<u8>) -> Flow {
        if let Some(ordinary) = self.pattern.read(event)
            && self.pass_ordinary(event, &ordinary, out)
        {
            return Flow::On;
        }
        let Ok(text) = simdutf8::basic::from_utf8(event) else {
            return match self.source {
                Source::First => self.pass_unknown(event, out),
                Source::Rest { .. } => self.refuse(),
            };
        };
        let mut chunk = StreamChunk::default();
        match chunk::read(text, &mut chunk) {
            StreamEvent::Comment => out.extend_from_slice(event),
            // A rest that ends without a reason is cut short, whatever its worker says.
            StreamEvent::Done if self.source != Source::First && !self.transcript.is_finished => {
                return Flow::Broken;
            }
            StreamEvent::Done => {
                self.has_passed = true;
                self.pass_held(out);
                out.extend_from_slice(event);
            }
            StreamEvent::Failed if self.obstacle.is_none() => return Flow::Broken,
            // Of a rest only what is understood is passed on: the client takes it for the first worker's.
            StreamEvent::Unknown if self.source != Source::First => return self.refuse(),
            StreamEvent::Failed | StreamEvent::Unknown => return self.pass_unknown(event, out),
            StreamEvent::Chunk if chunk.is_aborted() && self.obstacle.is_none() => return Flow::Broken,
            StreamEvent::Chunk => match self.source {
                Source::First => return self.read_first(text, &chunk, out),
                Source::Rest { after, is_confirmed } => {
                    return self.read_rest(text, &chunk, (after, is_confirmed), out);
                }
            },
        }
        Flow::On
    }

    /// Passes an event of the known form on, unless its ids are too many to be kept.
    fn pass_ordinary(&mut self, event: &[u8], ordinary: &OrdinaryEvent, out: &mut Vec<u8>) -> bool {
        let OrdinaryEvent { ids, tokens } = ordinary;
        let (before, inside, after) = (&event[..ids.start], &event[ids.clone()], &event[ids.end..]);
        let is_kept = std::str::from_utf8(inside).is_ok_and(|it| self.transcript.ids.push(it, *tokens));
        if !is_kept {
            return false;
        }
        self.transcript.answer_tokens += tokens;
        out.append(&mut self.held);
        if self.terms.wants_ids {
            out.extend_from_slice(event);
        } else {
            // With the brackets around them.
            out.extend_from_slice(&before[..before.len() - 1]);
            out.extend_from_slice(b"null");
            out.extend_from_slice(&after[1..]);
        }
        self.transcript.deliver();
        true
    }

    fn pass_unknown(&mut self, event: &[u8], out: &mut Vec<u8>) -> Flow {
        self.give_up(Obstacle::NoIds);
        self.has_passed = true;
        self.pass_held(out);
        out.extend_from_slice(event);
        Flow::On
    }

    /// Passes on all that was held back: events, and text in which a stop string might have begun. What comes next ends the stream
    /// without a reason or is not understood, so it may neither swallow that text nor overtake it.
    fn pass_held(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.held);
        let text = self.stop.as_mut().map(StopMatcher::rest).unwrap_or_default();
        if !text.is_empty() {
            out.extend_from_slice(self.transcript.text_event(&self.terms, &text, "null").as_bytes());
        }
    }

    fn read_first(&mut self, event: &str, chunk: &StreamChunk<'_>, out: &mut Vec<u8>) -> Flow {
        self.transcript.note_head(chunk);
        if let Some(obstacle) = self.keep(chunk) {
            self.give_up(obstacle);
            let is_more_than_text = matches!(obstacle, Obstacle::Reasoning | Obstacle::Tools);
            if self.terms.needs_text() && is_more_than_text && !self.has_passed {
                return Flow::Unfit;
            }
        }
        if self.obstacle.is_none() && self.stop.is_none() && self.transcript.prompt_tokens.is_some() {
            self.pattern.learn(event, chunk);
        }
        let passed = self.match_stop(chunk);
        let mut splices = Splices::new(event);
        if !self.terms.wants_ids {
            self.hide_ids(&mut splices, chunk);
        }
        self.pass(splices, (chunk, passed.as_ref()), out)
    }

    fn hide_ids<'a>(&self, splices: &mut Splices<'a>, chunk: &StreamChunk<'a>) {
        for ids in [chunk.prompt_ids, chunk.ids].into_iter().flatten() {
            splices.replace(ids, Value::Null);
        }
    }

    /// Keeps the ids of a chunk, or says why the stream cannot be continued from here.
    fn keep(&mut self, chunk: &StreamChunk<'_>) -> Option<Obstacle> {
        let transcript = &mut self.transcript;
        let counted = chunk.ids.and_then(count_of).filter(|&it| it > 0);
        transcript.answer_tokens += counted.unwrap_or(u64::from(chunk.has_text));
        if self.obstacle.is_some() {
            return None;
        }
        if let (Some(ids), None) = (chunk.prompt_ids, transcript.prompt_tokens) {
            transcript.prompt_tokens = count_of(ids);
            if !transcript.ids.extend(ids) {
                return Some(Obstacle::TooLong);
            }
        }
        if let Some(ids) = chunk.ids
            && !transcript.ids.extend(ids)
        {
            return Some(Obstacle::TooLong);
        }
        let has_no_ids = chunk.ids.is_none_or(Raw::is_empty);
        let has_answer = chunk.has_text || !has_no_ids;
        match () {
            () if chunk.obstacle.is_some() => chunk.obstacle,
            () if chunk.choices > 1 => Some(Obstacle::Several),
            () if has_answer && transcript.prompt_tokens.is_none() => Some(Obstacle::NoIds),
            () if chunk.has_text && has_no_ids && !chunk.is_finished => Some(Obstacle::NoIds),
            () => None,
        }
    }

    fn read_rest(
        &mut self,
        event: &str,
        chunk: &StreamChunk<'_>,
        (after, is_confirmed): (u64, bool),
        out: &mut Vec<u8>,
    ) -> Flow {
        let is_confirmed = is_confirmed || self.confirm(chunk, after);
        if chunk.is_announcement() && (is_confirmed || chunk.prompt_ids.is_none()) {
            return match self.keep(chunk) {
                None => Flow::On,
                Some(_) => self.refuse(),
            };
        }
        if !is_confirmed || self.keep(chunk).is_some() {
            return self.refuse();
        }
        let passed = self.match_stop(chunk);
        // Copied for the time of one event; there are few of these.
        let head = self.transcript.head().cloned();
        let mut splices = Splices::new(event);
        if let Some(head) = &head {
            let named = [(chunk.id, &head.id), (chunk.created, &head.created), (chunk.model, &head.model)];
            for (value, first) in named.into_iter().filter_map(|(value, first)| Some((value?, first))) {
                splices.replace(value, Value::Text(first));
            }
        }
        if let Some(role) = chunk.role {
            splices.replace(role, Value::Null);
        }
        match (self.terms.wants_ids, chunk.prompt_ids) {
            (false, _) => self.hide_ids(&mut splices, chunk),
            (true, Some(ids)) => splices.replace(ids, Value::Null),
            (true, None) => {}
        }
        if let Some(usage) = chunk.usage {
            self.correct_usage(&mut splices, usage, after);
        }
        self.pass(splices, (chunk, passed.as_ref()), out)
    }

    fn refuse(&mut self) -> Flow {
        self.give_up(Obstacle::Refused);
        Flow::Broken
    }

    /// Whether the worker's prompt is what it was sent, where it says so first. An engine that ignores the ids would begin
    /// the answer again.
    fn confirm(&mut self, chunk: &StreamChunk<'_>, after: u64) -> bool {
        let is_confirmed = chunk.prompt_ids.is_some_and(|it| self.transcript.ids.equals(it));
        self.source = Source::Rest { after, is_confirmed };
        is_confirmed
    }

    /// The tokens that were delivered before are the answer's, not the prompt's.
    fn correct_usage<'a>(&self, splices: &mut Splices<'a>, usage: Raw<'a>, after: u64) {
        let prompt_tokens = self.transcript.prompt_tokens.unwrap_or(0);
        let count = |it: Raw<'_>| it.text.parse::<u64>().ok();
        // Of a field that comes twice the last one counts, as everywhere.
        let (mut prompt, mut answer, mut details) = (None, None, None);
        usage.members(|key, value| match &*key {
            "prompt_tokens" => prompt = Some(value),
            "completion_tokens" => answer = Some(value),
            "prompt_tokens_details" => details = Some(value),
            _ => {}
        });
        if let Some(value) = prompt.filter(|it| count(*it).is_some()) {
            splices.replace(value, Value::Number(prompt_tokens));
        }
        if let Some((value, tokens)) = answer.and_then(|it| Some((it, count(it)?))) {
            splices.replace(value, Value::Number(tokens.saturating_add(after)));
        }
        let mut cached = None;
        if let Some(details) = details {
            details.members(|key, value| {
                if key == "cached_tokens" {
                    cached = Some(value);
                }
            });
        }
        if let Some(value) = cached.filter(|it| count(*it).is_some_and(|it| it > prompt_tokens)) {
            splices.replace(value, Value::Number(prompt_tokens));
        }
    }

    /// What of the chunk's text the client gets, where the router matches stop strings.
    fn match_stop(&mut self, chunk: &StreamChunk<'_>) -> Option<StopText> {
        let matcher = self.stop.as_mut().filter(|_| chunk.has_text || chunk.is_finished)?;
        let text = chunk.text.and_then(Raw::string).unwrap_or_default();
        let is_one_token = chunk.ids.and_then(count_of).is_none_or(|it| it <= 1);
        let passed = matcher.feed(&text, Piece { is_one_token, is_last: chunk.is_finished });
        let stop = passed.stop.map(|it| Quoted(&it).to_string());
        Some(StopText {
            text: Quoted(&passed.text).to_string(),
            // The event may have no field yet for the string that ends it.
            finish: stop.as_ref().map(|it| match chunk.stop_reason {
                None => format!("\"stop\",\"stop_reason\":{it}"),
                Some(_) => "\"stop\"".to_owned(),
            }),
            stop,
            plain: passed.text,
        })
    }

    /// Passes an event on, or lets it wait for text.
    fn pass<'a>(
        &mut self,
        mut splices: Splices<'a>,
        (chunk, passed): (&StreamChunk<'a>, Option<&'a StopText>),
        out: &mut Vec<u8>,
    ) -> Flow {
        let has_ids = chunk.ids.is_some_and(|it| !it.is_empty());
        let waits = has_ids && !chunk.has_text && !chunk.is_finished && self.obstacle.is_none();
        // The role waits as well, if the engine may prove unfit.
        let waits = waits || (self.terms.needs_text() && !self.has_passed && chunk.is_announcement());
        if waits && self.held.len() < HELD_BYTES_MAX {
            splices.write(&mut self.held);
            return Flow::On;
        }
        out.append(&mut self.held);
        if let Some(passed) = passed {
            self.splice_stop(&mut splices, chunk, passed, out);
        }
        splices.write(out);
        self.has_passed = true;
        self.transcript.deliver();
        self.transcript.is_finished |= chunk.is_finished;
        self.transcript.has_usage |= chunk.choices == 0 && chunk.usage.is_some();
        match passed.is_some_and(|it| it.stop.is_some()) {
            false => Flow::On,
            true => {
                self.transcript.is_finished = true;
                out.extend_from_slice(self.transcript.ending(&self.terms, "").as_bytes());
                Flow::Ended
            }
        }
    }

    /// Puts the text into the event, and why the answer ends here, if it does.
    fn splice_stop<'a>(
        &self,
        splices: &mut Splices<'a>,
        chunk: &StreamChunk<'a>,
        passed: &'a StopText,
        out: &mut Vec<u8>,
    ) {
        match chunk.text {
            Some(text) => splices.replace(text, Value::Text(&passed.text)),
            // An event that only ends the answer has no place for the text that was held back.
            None if !passed.plain.is_empty() => {
                out.extend_from_slice(
                    self.transcript.text_event(&self.terms, &passed.plain, "null").as_bytes(),
                );
            }
            None => {}
        }
        let Some((stop, finish)) = passed.stop.as_ref().zip(passed.finish.as_ref()) else { return };
        if let Some(reason) = chunk.finish_reason {
            splices.replace(reason, Value::Text(finish));
        }
        if let Some(reason) = chunk.stop_reason {
            splices.replace(reason, Value::Text(stop));
        }
    }

    /// The worker has failed. What it sent and the client does not have is forgotten; events of another worker may follow.
    pub fn break_off(&mut self) -> Break {
        self.partial.clear();
        self.held.clear();
        self.pattern.clear();
        if let Some(obstacle) = self.obstacle {
            return Break::Lost(obstacle);
        }
        self.transcript.rewind();
        let tokens = self.transcript.tokens();
        if self.transcript.is_finished || self.transcript.tokens_left(&self.terms) == Some(0) {
            let text = self.stop.as_mut().map(StopMatcher::rest).unwrap_or_default();
            let ending = self.transcript.ending(&self.terms, &text);
            return Break::Ending(self.converted(ending));
        }
        if !self.has_passed {
            self.transcript = Transcript::default();
        }
        if tokens == 0 {
            // From the beginning. The client may have the role.
            self.transcript.forget_prompt();
        }
        if self.transcript.head().is_some() {
            self.source = Source::Rest { after: tokens, is_confirmed: tokens == 0 };
        }
        Break::Rest { tokens }
    }

    /// The ids before the break, if the client may lack the last character that they are of: only the end of them. An event of
    /// several tokens has the text of whole characters, and the ids of them all. SGLang also gives the space out of a token that
    /// is a space and half a character.
    pub fn doubtful_end(&self, kind: EngineKind) -> Option<Vec<&str>> {
        let tokens = usize::try_from(self.transcript.tokens()).unwrap_or(usize::MAX);
        let is_doubtful = self.transcript.last_event() > 1 || kind == EngineKind::Sglang;
        (tokens > 1 && is_doubtful).then(|| self.transcript.ids.last(tokens.min(END_TOKENS)))
    }

    /// The last tokens have no text yet, and are to be generated again. Returns false if they cannot be: the client has the ids,
    /// or there is nothing before them.
    #[must_use]
    pub fn take_back(&mut self, tokens: usize) -> bool {
        if self.terms.wants_ids || tokens as u64 >= self.transcript.tokens() {
            return tokens == 0;
        }
        (0..tokens).for_each(|_| self.transcript.take_back());
        if let Source::Rest { after, .. } = &mut self.source {
            *after = self.transcript.tokens();
        }
        true
    }

    /// The request for the rest, to an engine of this kind, made of the body of the first one (a chat's, for messages).
    pub fn request(&self, kind: EngineKind, body: &[u8]) -> Result<Vec<u8>, BadRequest> {
        match self.transcript.tokens() {
            0 => with_ids(body),
            _ => self.transcript.request(&self.terms, kind, body),
        }
    }
}
