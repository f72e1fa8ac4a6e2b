//! The content of a message: one text or a list of parts, depending on the template.

use minijinja::Value;
use minijinja::value::ValueKind;

use crate::conversation::{items, member, pairs};
use crate::options::ContentFormat;

/// Stands for an image or a sound while we locate it in a prompt. If a client types it, fewer tokens of that client's
/// own prompt are known.
const MARK: &str = "\u{f8ff}\u{e123}maitre\u{e321}";

/// Claude Code puts a header that changes with every request before its system prompt; vLLM drops it.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

pub(super) enum Content {
    /// One text. The engine puts images and sounds, if any, at its front.
    Text(String),
    Marked(String),
    /// Parts, for a template that iterates over them.
    Parts(Vec<ContentPart>),
}

pub(super) enum ContentPart {
    /// With the client's additional members of the part.
    Text {
        text: String,
        beside: Vec<(String, Value)>,
    },
    /// The name of a tool, which the template describes.
    Tool(Value),
    Media {
        kind: &'static str,
        beside: Vec<(String, Value)>,
    },
}

pub(super) fn read(message: &Value, role: &str, format: ContentFormat) -> Result<Content, &'static str> {
    let mut parts = Vec::new();
    match member(message, "content") {
        None => {}
        Some(content) if content.kind() == ValueKind::String => parts.extend(text(&content)?),
        Some(content) => {
            for part in items(&content).ok_or("content is neither text nor an array of parts")? {
                parts.extend(read_part(&part)?);
            }
        }
    }
    if role == "system" {
        parts = parts.into_iter().filter_map(without_billing_header).collect();
    }
    Ok(match format {
        ContentFormat::Parts => Content::Parts(parts),
        ContentFormat::Text => join(parts),
    })
}

/// The text of a system prompt given as parts, or `None` if one of them is something else.
pub(super) fn system_text(parts: &[Value]) -> Option<String> {
    let mut joined = String::new();
    for part in parts {
        let Some(ContentPart::Text { text, .. }) = read_part(part).ok()? else { return None };
        if !text.starts_with(BILLING_HEADER) {
            joined.push_str(&text);
        }
    }
    Some(joined)
}

impl Content {
    pub(super) fn has_media(&self) -> bool {
        match self {
            Content::Text(_) => false,
            Content::Marked(_) => true,
            Content::Parts(parts) => parts.iter().any(|it| matches!(it, ContentPart::Media { .. })),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Content::Text(text) | Content::Marked(text) => text.is_empty(),
            Content::Parts(parts) => parts.is_empty(),
        }
    }

    /// Joins parts that are all text into one text, as vLLM does for tool results.
    pub(super) fn flatten(&mut self) {
        let Content::Parts(parts) = self else { return };
        if parts.iter().all(|it| matches!(it, ContentPart::Text { .. })) {
            *self = Content::Text(self.text());
        }
    }

    /// The text of it, one part per line.
    pub(super) fn text(&self) -> String {
        match self {
            Content::Text(text) | Content::Marked(text) => text.clone(),
            Content::Parts(parts) => {
                let texts = parts.iter().filter_map(|it| match it {
                    ContentPart::Text { text, .. } => Some(text.as_str()),
                    ContentPart::Tool(_) | ContentPart::Media { .. } => None,
                });
                texts.collect::<Vec<_>>().join("\n")
            }
        }
    }

    pub(super) fn value(&self) -> Value {
        match self {
            Content::Text(text) | Content::Marked(text) => Value::from(text.as_str()),
            Content::Parts(parts) => parts.iter().map(ContentPart::value).collect(),
        }
    }

    /// The same with a mark in place of the first image or sound.
    pub(super) fn marked(&self) -> Value {
        match self {
            Content::Text(text) | Content::Marked(text) => Value::from(format!("{MARK}{text}")),
            Content::Parts(parts) => {
                let first = parts.iter().position(|it| matches!(it, ContentPart::Media { .. }));
                let value = |(at, part): (usize, &ContentPart)| match Some(at) == first {
                    true => Value::from_pairs([("type", "text"), ("text", MARK)]),
                    false => part.value(),
                };
                parts.iter().enumerate().map(value).collect()
            }
        }
    }
}

impl ContentPart {
    fn value(&self) -> Value {
        let (head, beside) = match self {
            ContentPart::Text { text, beside } => {
                (vec![("type", Value::from("text")), ("text", Value::from(text.as_str()))], &beside[..])
            }
            ContentPart::Tool(name) => {
                (vec![("type", Value::from("tool_reference")), ("name", name.clone())], &[][..])
            }
            ContentPart::Media { kind, beside } => (vec![("type", Value::from(*kind))], &beside[..]),
        };
        Value::from_pairs(
            head.into_iter().chain(beside.iter().map(|(key, value)| (key.as_str(), value.clone()))),
        )
    }
}

/// One text, one line per part; empty parts add no line.
fn join(parts: Vec<ContentPart>) -> Content {
    let mut lines: Vec<String> = Vec::with_capacity(parts.len());
    let mut media = false;
    for part in parts {
        match part {
            ContentPart::Text { text, .. } => lines.push(text),
            ContentPart::Tool(name) => lines.extend(name.as_str().map(str::to_owned)),
            ContentPart::Media { .. } => media = true,
        }
    }
    lines.retain(|it| !it.is_empty());
    let text = if lines.len() == 1 { lines.swap_remove(0) } else { lines.join("\n") };
    if media { Content::Marked(text) } else { Content::Text(text) }
}

/// `None` is a part without content, which vLLM skips.
fn read_part(part: &Value) -> Result<Option<ContentPart>, &'static str> {
    match part.kind() {
        ValueKind::String => return text(part),
        ValueKind::Map => {}
        _ => return Err("a part is neither text nor an object"),
    }
    let kind = match part.get_attr("type") {
        Ok(kind) if kind.is_undefined() || kind.is_none() => return untyped(part).map(Some),
        Ok(kind) => kind.as_str().map(str::to_owned).ok_or("a part's type is no text")?,
        Err(_) => return Err("a part has no type"),
    };
    match kind.as_str() {
        "text" | "refusal" => match member(part, &kind) {
            Some(content) => text_part(part, &content),
            None => Ok(None),
        },
        "input_text" | "output_text" => text_part(part, &member(part, "text").ok_or("a part has no text")?),
        "thinking" => text_part(part, &member(part, "thinking").ok_or("a part has no text")?),
        "tool_reference" => Ok(member(part, "name").map(ContentPart::Tool)),
        kind => media_kind(kind)
            .ok_or("a part is of a type vLLM does not know")
            .map(|kind| Some(media(part, kind))),
    }
}

/// vLLM infers the type of an untyped part from its key.
fn untyped(part: &Value) -> Result<ContentPart, &'static str> {
    const KEYS: [&str; 9] = [
        "image_url",
        "image_pil",
        "image_embeds",
        "audio_embeds",
        "video_embeds",
        "prompt_embeds",
        "audio_url",
        "input_audio",
        "video_url",
    ];
    let has = |key: &&str| part.get_attr(key).is_ok_and(|it| !it.is_undefined());
    let kind = KEYS.into_iter().find(has).and_then(media_kind);
    kind.map(|it| media(part, it)).ok_or("a part has no type")
}

fn media_kind(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "image_url" | "input_image" | "image_embeds" | "image_pil" => "image",
        "audio_url" | "input_audio" | "audio_embeds" => "audio",
        "video_url" | "video_embeds" => "video",
        "prompt_embeds" => "prompt_embeds",
        _ => return None,
    })
}

fn media(part: &Value, kind: &'static str) -> ContentPart {
    ContentPart::Media { kind, beside: beside(part) }
}

fn text(content: &Value) -> Result<Option<ContentPart>, &'static str> {
    let text = content.as_str().ok_or("a part's text is no text")?.to_owned();
    Ok(Some(ContentPart::Text { text, beside: Vec::new() }))
}

fn text_part(part: &Value, content: &Value) -> Result<Option<ContentPart>, &'static str> {
    let text = content.as_str().ok_or("a part's text is no text")?.to_owned();
    Ok(Some(ContentPart::Text { text, beside: beside(part) }))
}

/// The members of a part that no API defines; vLLM leaves them for the template.
fn beside(part: &Value) -> Vec<(String, Value)> {
    const DEFINED: [&str; 18] = [
        "audio_embeds",
        "audio_url",
        "closed",
        "data",
        "file",
        "image_embeds",
        "image_pil",
        "image_url",
        "input_audio",
        "name",
        "prompt_cache_breakpoint",
        "refusal",
        "text",
        "thinking",
        "type",
        "uuid",
        "video_embeds",
        "video_url",
    ];
    pairs(part).filter(|(key, _)| !DEFINED.contains(&key.as_str())).collect()
}

fn without_billing_header(part: ContentPart) -> Option<ContentPart> {
    let ContentPart::Text { text, beside } = part else { return Some(part) };
    if !text.starts_with(BILLING_HEADER) {
        return Some(ContentPart::Text { text, beside });
    }
    let rest = text.split_once('\n').map(|it| it.1).filter(|it| !it.is_empty())?;
    Some(ContentPart::Text { text: rest.to_owned(), beside })
}
