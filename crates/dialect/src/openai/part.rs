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

    pub(crate) fn of(key: &str) -> Option<Part> {
        Some(match key {
            "tools" => Part::Tools,
            "system" => Part::System,
            "instructions" => Part::Instructions,
            "messages" => Part::Messages,
            "prompt" => Part::Prompt,
            "input" => Part::Input,
            // llama.cpp's `/tokenize` uses `content`.
            "text" | "content" => Part::Text,
            "input_ids" | "prompt_token_ids" | "tokens" => Part::TokenIds,
            "prompt_embeds" | "input_embeds" => Part::Embeds,
            "query" | "queries" | "text_1" => Part::Query,
            "documents" | "items" | "text_2" => Part::Documents,
            _ => return None,
        })
    }

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
