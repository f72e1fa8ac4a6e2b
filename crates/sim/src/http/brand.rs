//! Which engine is simulated, in the respects in which brands differ.

use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Brand {
    #[default]
    Vllm,
    /// Differs in the model cards, in the health check, and in where its chat streams have the ids of the prompt. Its
    /// metrics are not simulated.
    Sglang,
}

impl Brand {
    /// How long a healthy engine takes to answer a health check. SGLang generates a token, and looks for it once a second.
    pub(super) const fn health_delay(self) -> Option<Duration> {
        match self {
            Brand::Vllm => None,
            Brand::Sglang => Some(Duration::from_secs(1)),
        }
    }

    /// The signature on the model cards.
    pub(super) const fn owner(self) -> &'static str {
        match self {
            Brand::Vllm => "vllm",
            Brand::Sglang => "sglang",
        }
    }
}
