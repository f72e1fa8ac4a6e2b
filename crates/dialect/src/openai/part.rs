//! The fields of a request body that make up its prompt, under the names of each API.

/// One field that is part of the prompt. Declared in the order templates render them, tools first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Tools,
    System,
    Instructions,
    Messages,
    Prompt,
    Input,
    Text,
    /// Already tokens, under any of the engines' field names.
    TokenIds,
    /// Already vectors: prefilled, but neither text nor tokens.
    Embeds,
    Query,
    Documents,
}

impl Part {
    pub const ALL: [Part; 11] = [
        Part::Tools,
        Part::System,
        Part::Instructions,
        Part::Messages,
        Part::Prompt,
        Part::Input,
        Part::Text,
        Part::TokenIds,
        Part::Embeds,
        Part::Query,
        Part::Documents,
    ];

    /// The field's usual name, for error messages.
    pub const fn name(self) -> &'static str {
        match self {
            Part::Tools => "tools",
            Part::System => "system",
            Part::Instructions => "instructions",
            Part::Messages => "messages",
            Part::Prompt => "prompt",
            Part::Input => "input",
            Part::Text => "text",
            Part::TokenIds => "input_ids",
            Part::Embeds => "prompt_embeds",
            Part::Query => "query",
            Part::Documents => "documents",
        }
    }
}

/// Every name of each part.
pub(crate) const NAMES: [(&str, Part); 19] = [
    ("messages", Part::Messages),
    ("tools", Part::Tools),
    ("system", Part::System),
    ("instructions", Part::Instructions),
    ("prompt", Part::Prompt),
    ("input", Part::Input),
    ("text", Part::Text),
    // llama.cpp's `/tokenize` uses `content`.
    ("content", Part::Text),
    ("input_ids", Part::TokenIds),
    ("prompt_token_ids", Part::TokenIds),
    ("tokens", Part::TokenIds),
    ("prompt_embeds", Part::Embeds),
    ("input_embeds", Part::Embeds),
    ("query", Part::Query),
    ("queries", Part::Query),
    ("text_1", Part::Query),
    ("documents", Part::Documents),
    ("items", Part::Documents),
    ("text_2", Part::Documents),
];
