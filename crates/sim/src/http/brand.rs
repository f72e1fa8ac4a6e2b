//! Which engine is played, where brands differ.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Brand {
    #[default]
    Vllm,
    /// Its cards, and where its chat streams have the ids of the prompt. Its metrics are not played.
    Sglang,
}

impl Brand {
    /// The signature on the model cards.
    pub(super) const fn owner(self) -> &'static str {
        match self {
            Brand::Vllm => "vllm",
            Brand::Sglang => "sglang",
        }
    }
}
