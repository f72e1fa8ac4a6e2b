//! Prompt to token ids: tokenizer, chat template, the cache over turns.
