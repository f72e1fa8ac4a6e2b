//! Where requests went and why: a summary each, or one with every candidate.

use crate::programs::{HoldView, ProgramStepView};
use crate::schema::view;
use crate::text::Text;
use crate::worker::Rates;

view! {
    /// The last decisions, newest first.
    DecisionList {
        decisions: Vec<DecisionSummary>,
    }

    /// Decisions that were made, or whose request ended, since the last event.
    DecisionEvent {
        decisions: Vec<DecisionSummary>,
        ..
        /// How many more decisions there were than one event holds.
        skipped: u64,
    }

    /// One attempt of one request: where it went, why, and how it ended.
    DecisionSummary {
        /// Counts from 1; null for a dry run.
        number: Option<u64>,
        /// In milliseconds since 1970.
        at_ms: u64,
        worker: u32,
        /// The strategy's reason, as in `x-maitre-why`.
        why: Text,
        ..
        /// The request's id.
        id: Option<Text>,
        model: Option<Text>,
        strategy: Text,
        class: Option<Text>,
        /// Masked: a tenant's name may be a key.
        tenant: Option<Text>,
        /// Null once the worker has left.
        url: Option<Text>,
        /// Attempts before this one.
        attempt: u32,
        /// Time in the queue, over all attempts.
        waited_ms: f64,
        prompt_tokens: u64,
        /// Expected length of the answer.
        answer_tokens: u64,
        /// Prompt tokens that the worker was expected to have cached; null if that was not looked up.
        expected_cached_tokens: Option<u64>,
        predicted_ttft_ms: Option<f64>,
        /// Since the placement. Null for an answer in one piece, and until the first token.
        actual_ttft_ms: Option<f64>,
        /// From the placement to the end.
        total_ms: Option<f64>,
        /// Prompt tokens that the worker had cached, as its answer says.
        cached_tokens: Option<u64>,
        /// `in-flight`, `answered`, `failed`, `broke-off`, `continued`, `handed-over`, `outpaced`, `disconnected`, `declined`, `recalled`; of a question `asked`
        /// or `would-wait`.
        outcome: Text,
    }

    /// One decision with its candidates and what shadow strategies would have done.
    DecisionDetail(summary: DecisionSummary) {
        ..
        actual_answer_tokens: Option<u64>,
        actual_prompt_tokens: Option<u64>,
        /// For a dry run: the request would wait in the queue first.
        would_wait: bool,
        candidates_total: u64,
        /// The worker that prefills for the chosen one, if another does.
        prefill: Option<PrefillView>,
        /// What the chosen worker fetches of the prompt's KV cache, if anything.
        fetch: Option<FetchView>,
        /// The program that the request belongs to, if any.
        program: Option<ProgramStepView>,
        /// For a dry run: why the call would be held first, if it would.
        hold: Option<HoldView>,
        /// The cheapest candidates, at most 16, with the chosen one.
        candidates: Vec<CandidateView>,
        shadows: Vec<ShadowChoice>,
    }

    /// A worker that prefills for another, and the price of both ways.
    PrefillView {
        worker: u32,
        url: Option<Text>,
        /// Prompt tokens whose KV cache the chosen worker fetches.
        fetched_tokens: u64,
        /// Null if the chosen worker cannot answer alone.
        price_here_ms: Option<f64>,
        price_elsewhere_ms: f64,
    }

    /// KV cache that a worker pulls from another, or loads from a store that it shares.
    FetchView {
        ..
        /// Null for a store.
        worker: Option<u32>,
        url: Option<Text>,
        /// Prompt tokens that are fetched.
        tokens: u64,
        /// How long that should take.
        expected_ms: f64,
    }

    /// A worker that could have taken the request, with its state at that time.
    CandidateView {
        worker: u32,
        price_ms: f64,
        /// Its weight, less while it warms up. The terms sum to price times share.
        share: f64,
        ..
        url: Option<Text>,
        chosen: bool,
        /// Prompt tokens it was expected to have cached.
        cached_tokens: u64,
        /// More of them, in slower memory.
        cached_slow_tokens: u64,
        /// More of them, which it would fetch from another worker or a store.
        fetched_tokens: u64,
        /// Those of `cached_tokens` after the cached prefix, which its engine reuses as chunks.
        chunk_tokens: u64,
        /// The part of these that it computes again.
        chunk_recomputed_tokens: u64,
        prefill_tokens: u64,
        decode_tokens: u64,
        requests: u32,
        prefilling: u32,
        /// `now`, `later`, `disturbs` or `too-late`.
        can_start: Text,
        rates: Rates,
        ttft_ms: Option<f64>,
        terms_ms: PriceTerms,
    }

    /// What a price is made of, in weighted milliseconds of delay.
    PriceTerms {
        ..
        wait: f64,
        floor: f64,
        prefill: f64,
        fetch: f64,
        behind: f64,
        pushed: f64,
        others: f64,
        answer: f64,
        room: f64,
        adapter: f64,
    }

    /// What another strategy would have done with the request.
    ShadowChoice {
        strategy: Text,
        worker: u32,
        ..
        url: Option<Text>,
        why: Text,
        /// Whether it picked another worker.
        differs: bool,
        price_ms: Option<f64>,
        ttft_ms: Option<f64>,
    }

    /// The body of a request, as a client would send it.
    ClientRequest {}
}
