//! How KV cache gets from the worker that prefills a prompt to the one that answers: the names of the styles, and
//! what a decision needs to know of one.

use std::fmt;
use std::str::FromStr;

crate::words! {
    /// The ways in which engines hand KV cache over.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum HandoffStyle {
        /// vLLM's `NixlConnector`: the prefill worker answers with the location of its blocks, and the decode worker
        /// reads them.
        NixlPull = "nixl",
        /// vLLM's `NixlPushConnector`: the prefill worker writes into the decode worker's blocks.
        NixlPush = "nixl-push",
        /// vLLM's `MooncakeConnector`.
        Mooncake = "mooncake",
        Sglang = "sglang",
        TensorRt = "tensorrt-llm",
        /// A store that both workers share and that finds blocks by their content: LMCache, Mooncake's store, FlexKV, a
        /// folder. It needs no parameters.
        Store = "store",
    }
}

/// The name of a style that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownStyle;

impl fmt::Display for HandoffStyle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

impl FromStr for HandoffStyle {
    type Err = UnknownStyle;

    fn from_str(name: &str) -> Result<HandoffStyle, UnknownStyle> {
        HandoffStyle::ALL.into_iter().find(|it| it.name() == name).ok_or(UnknownStyle)
    }
}

/// What a worker's style means for decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handoff {
    /// Workers of different styles cannot transfer to each other.
    pub style: HandoffStyle,
    pub answer: PrefillAnswer,
    /// It answers no request alone: another worker must prefill each one.
    pub needs_partner: bool,
    /// Whether it serves prompts faster that it has served before.
    pub caches_prefixes: bool,
}

/// When a worker that prefills for another answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefillAnswer {
    /// When the prompt is computed. The transfer follows.
    Computed,
    /// When the other worker has its KV cache.
    Fetched,
}

impl Default for Handoff {
    fn default() -> Handoff {
        Handoff {
            style: HandoffStyle::NixlPull,
            answer: PrefillAnswer::Computed,
            needs_partner: false,
            caches_prefixes: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_back_to_its_style() {
        for style in HandoffStyle::ALL {
            assert_eq!(style.to_string().parse(), Ok(style));
        }
        assert_eq!("Nixl".parse::<HandoffStyle>(), Err(UnknownStyle));
    }
}
