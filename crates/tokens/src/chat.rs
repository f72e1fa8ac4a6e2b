//! One chat as a client sent it, and its rendered and tokenized forms.

use crate::date::Date;

/// The parts of a chat request that decide its prompt. All texts are JSON, as the client sent them.
#[derive(Clone, Copy, Debug)]
pub struct Chat<'a> {
    /// An array of messages.
    pub messages: &'a str,
    /// An array of tools; `null` is none.
    pub tools: Option<&'a str>,
    /// An array of documents; `null` is none.
    pub documents: Option<&'a str>,
    /// A system prompt outside the messages: a string, or an array of text parts. It precedes them.
    pub system: Option<&'a str>,
    /// `chat_template_kwargs`: an object of extra variables for the template.
    pub arguments: Option<&'a str>,
    /// `reasoning_effort`: a string.
    pub reasoning_effort: Option<&'a str>,
    pub ending: Ending,
    /// For templates that print the date.
    pub today: Date,
}

/// What follows the last message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// The head of an answer, which the model continues (`add_generation_prompt`).
    #[default]
    Answer,
    /// Nothing: the last message stays open, and the model finishes it (`continue_final_message`).
    Continue,
    /// Only what the template puts after a finished message.
    Nothing,
}

impl<'a> Chat<'a> {
    /// A chat of these messages and nothing else.
    pub fn new(messages: &'a str, today: Date) -> Chat<'a> {
        Chat {
            messages,
            tools: None,
            documents: None,
            system: None,
            arguments: None,
            reasoning_effort: None,
            ending: Ending::Answer,
            today,
        }
    }
}

/// A chat rendered: the text the engine will tokenize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedChat {
    pub(crate) text: String,
    /// Byte offset up to which the text alone decides the ids. After it they depend on how the engine expands an
    /// image or a sound. The text may be cut there.
    pub(crate) media: Option<usize>,
}

impl RenderedChat {
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// The ids of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    pub tokens: Vec<u32>,
    /// If the prompt contains an image or a sound, how many leading tokens are certain. The rest is only its text,
    /// good enough to estimate its length. `None`: there is neither, and all tokens are certain.
    pub media: Option<usize>,
}
