//! Profiles: how long one step of a known engine takes, and how much its cache holds.
//!
//! A step reads the weights once, computes every scheduled prompt token, and for each decoding sequence
//! reads its KV back from memory. Each of these is linear in something we can count, so a step is a sum
//! of five products. One profile is fitted to measurements; the others are moved from it by the bytes
//! and FLOPs that differ, and say so.
//!
//! Not modelled: speculative decoding, CUDA-graph size classes (a decode step is really a staircase in
//! the batch), warm-up.

pub mod file;

use std::time::Duration;

/// What one step does, summed over its sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Prompt tokens computed (cached ones are not).
    pub prefill_tokens: u64,
    /// For each prompt token computed, the tokens before it that it attends to.
    pub attended_tokens: f64,
    pub decode_sequences: u64,
    /// KV tokens that the decoding sequences read back.
    pub context_tokens: u64,
}

/// Milliseconds per unit of `Work`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepModel {
    pub floor_ms: f64,
    pub prefill_token_ms: f64,
    pub attended_token_ms: f64,
    pub context_token_ms: f64,
    pub decode_sequence_ms: f64,
}

impl StepModel {
    pub fn duration(&self, work: &Work) -> Duration {
        let millis = self.floor_ms
            + self.prefill_token_ms * work.prefill_tokens as f64
            + self.attended_token_ms * work.attended_tokens
            + self.context_token_ms * work.context_tokens as f64
            + self.decode_sequence_ms * work.decode_sequences as f64;
        Duration::from_nanos((millis * 1e6) as u64)
    }
}

/// One engine on one kind of hardware. Every field may be changed: `Profile { kv_blocks: 512, ..A10G_8B }`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    pub name: &'static str,
    /// Tokens in a block of the KV cache (vLLM: `block_size`).
    pub block_tokens: u32,
    /// Blocks in the cache, one of them the null block (vLLM: `num_gpu_blocks`).
    pub kv_blocks: u32,
    /// Tokens computed in one step at most (vLLM: `max_num_batched_tokens`).
    pub batch_tokens_max: u32,
    /// Sequences in one step at most (vLLM: `max_num_seqs`).
    pub running_max: u32,
    /// Prompt and answer together at most (vLLM: `max_model_len`).
    pub context_tokens_max: u32,
    pub step: StepModel,
    /// Per-request overhead outside the steps: HTTP, template, tokenizer. It delays the request, not the engine, so
    /// the driver waits for it before `submit`.
    pub overhead: Duration,
}

/// vLLM's block on CUDA.
const BLOCK_TOKENS: u32 = 16;

/// Llama-3.1-8B in FP8 on one H200: the measured one.
///
/// Fitted to vLLM runs published with NVIDIA Dynamo's planner. First token by prompt length:
/// 16.50 + 0.015183·n + 4.21e-7·n² ms (100 to 16,372 tokens). Inter-token, contexts above 1,000 tokens:
/// 4.50 + 3.08e-5·ΣKV + 0.0274·batch ms (RMSE 0.94 ms). A step costs 4.50 whether it prefills or not, so
/// the other 12 ms of the prefill floor are the request's own overhead. The n² term is half of
/// `attended_token_ms`, because a prompt of n tokens attends to n²/2.
pub const H200_8B: Profile = Profile {
    name: "h200-8b",
    block_tokens: BLOCK_TOKENS,
    kv_blocks: 945_029 / BLOCK_TOKENS + 1, // 945,029 KV tokens in the same runs.
    batch_tokens_max: 8_192,               // vLLM's default for a GPU of 70 GiB or more.
    running_max: 1_024,                    // Likewise.
    context_tokens_max: 131_072,           // Llama-3.1.
    step: StepModel {
        floor_ms: 4.50,
        prefill_token_ms: 0.015_183,
        attended_token_ms: 8.42e-7,
        context_token_ms: 3.08e-5,
        decode_sequence_ms: 0.0274,
    },
    overhead: Duration::from_millis(12),
};

/// A dense 32B (64 layers, 40 heads, 8 KV heads of 128) in bf16 on two H100: derived, not measured.
///
/// - Floor: the H200's 4.50 ms are 8.0 GB of weights at 89 % of 4.8 TB/s (1.88 ms, the share its KV term
///   shows) and 2.62 ms of launch and scheduling. Here 32.8 GB a GPU at 89 % of 3.35 TB/s, plus the same.
/// - Prefill: 65.6 GFLOP a token on 2 × 989 TFLOP/s at 45 %, between the H200's 53 % on one GPU and the 43 %
///   that TensorRT-LLM publishes for a 70B over two.
/// - Attention: 4·64·5,120 FLOP a pair; the H200's constant means 6.2e14 FLOP/s a GPU.
/// - Context: 256 KiB a token over two GPUs, at the same 89 %.
/// - Sequence: the H200's 0.0274 less its own compute (0.0152), plus ours: one token's prefill.
///
/// 307,328 tokens of 256 KiB are 40.3 GB a GPU: with the weights, 92 % of 80 GB, vLLM's default.
pub const H100X2_32B: Profile = Profile {
    name: "h100x2-32b",
    kv_blocks: 307_328 / BLOCK_TOKENS + 1,
    context_tokens_max: 40_960, // Qwen3-32B without rope scaling.
    step: StepModel {
        floor_ms: 13.6,
        prefill_token_ms: 0.0737,
        attended_token_ms: 1.06e-6,
        context_token_ms: 4.40e-5,
        decode_sequence_ms: 0.0859,
    },
    ..H200_8B // The same limits of a step, and the same front end.
};

/// Llama-3.1-8B in bf16 on one A10G: estimated, there is no good published table.
///
/// - Floor: 16.06 GB of weights at 77 % of 600 GB/s (the share measured on an A100 for one stream).
/// - Prefill: 16 GFLOP a token on 70 TFLOP/s at 50 %: 2,200 tokens/s. Two of them together were reported
///   saturated at 2,204 prompt and 442 answer tokens/s, which this neither beats nor misses by much.
/// - Attention: 4·32·4,096 FLOP a pair at 63 % of peak, the share of the H200's constant.
/// - Context: 128 KiB a token at 89 % of bandwidth. Sequence: as for the 32B.
/// - Cache: 92 % of 24.1 GB, less weights and 1.4 GB of activations: 36 thousand tokens of 128 KiB.
pub const A10G_8B: Profile = Profile {
    name: "a10g-8b",
    kv_blocks: 36_160 / BLOCK_TOKENS + 1,
    batch_tokens_max: 2_048, // vLLM's default below 70 GiB.
    running_max: 256,        // Likewise.
    context_tokens_max: 32_768,
    step: StepModel {
        floor_ms: 34.8,
        prefill_token_ms: 0.4545,
        attended_token_ms: 1.19e-5,
        context_token_ms: 2.45e-4,
        decode_sequence_ms: 0.467,
    },
    ..H200_8B
};

/// Llama-3.1-70B (80 layers, 64 heads, 8 KV heads of 128) in bf16 on eight A100 of 80 GB: derived. The fleet of
/// the Mooncake paper, whose trace has contexts of up to 126 thousand tokens.
///
/// - Floor: 17.6 GB of weights a GPU at 89 % of 2.04 TB/s (9.7 ms), the H200's 2.62 ms of launch and
///   scheduling, and 160 all-reduces over eight GPUs at 15 µs.
/// - Prefill: 141 GFLOP a token on 8 × 312 TFLOP/s at 40 %: less than the 45 % over two GPUs.
/// - Attention: 4·80·8,192 FLOP a pair at 63 % of peak, the share of the H200's constant.
/// - Context: 320 KiB a token over eight GPUs, at the same 89 %. Sequence: as for the 32B.
/// - Cache: 92 % of 640 GB, less weights and 3 GB a GPU of activations: 1.29 million tokens of 320 KiB.
pub const A100X8_70B: Profile = Profile {
    name: "a100x8-70b",
    kv_blocks: 1_290_240 / BLOCK_TOKENS + 1,
    step: StepModel {
        floor_ms: 14.7,
        prefill_token_ms: 0.1413,
        attended_token_ms: 1.67e-6,
        context_token_ms: 2.26e-5,
        decode_sequence_ms: 0.1535,
    },
    ..H200_8B
};

/// No time at all: answers as fast as the machine can, for tests and as the upstream of a proxy benchmark.
pub const INSTANT: Profile = Profile {
    name: "instant",
    kv_blocks: 65_536, // A million tokens: chosen so that 1,000 ordinary requests never wait for room.
    step: StepModel {
        floor_ms: 0.0,
        prefill_token_ms: 0.0,
        attended_token_ms: 0.0,
        context_token_ms: 0.0,
        decode_sequence_ms: 0.0,
    },
    overhead: Duration::ZERO,
    ..H200_8B
};

pub const ALL: [Profile; 5] = [H200_8B, H100X2_32B, A100X8_70B, A10G_8B, INSTANT];

impl Profile {
    pub fn named(name: &str) -> Option<Profile> {
        ALL.into_iter().find(|it| it.name == name)
    }

    /// The same engine, slower by this factor.
    #[must_use]
    pub const fn slower(self, times: f64) -> Profile {
        let step = StepModel {
            floor_ms: self.step.floor_ms * times,
            prefill_token_ms: self.step.prefill_token_ms * times,
            attended_token_ms: self.step.attended_token_ms * times,
            context_token_ms: self.step.context_token_ms * times,
            decode_sequence_ms: self.step.decode_sequence_ms * times,
        };
        Profile { step, ..self }
    }

    /// The same engine with time running faster by this factor, as with `maitre engine --speedup`.
    #[must_use]
    pub fn faster(self, times: f64) -> Profile {
        Profile { overhead: self.overhead.div_f64(times), ..self.slower(1.0 / times) }
    }

    /// Bytes of KV for each token: those of the named model, and those of an 8B model for any other profile.
    pub fn kv_token_bytes(&self) -> u32 {
        match self.name {
            "h100x2-32b" => 256 << 10,
            "a100x8-70b" => 320 << 10,
            _ => 128 << 10,
        }
    }

    /// Whether its steps take no time at all.
    pub fn is_instant(&self) -> bool {
        self.step == INSTANT.step && self.overhead.is_zero()
    }

    pub fn kv_tokens(&self) -> u64 {
        u64::from(self.kv_blocks - 1) * u64::from(self.block_tokens)
    }

    /// The same engine with a cache of this many tokens, in blocks of this size.
    #[must_use]
    pub fn with_cache(self, kv_tokens: u64, block_tokens: u32) -> Profile {
        let blocks = (kv_tokens / u64::from(block_tokens.max(1))).max(1) + 1;
        Profile { block_tokens, kv_blocks: u32::try_from(blocks).unwrap_or(u32::MAX), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prefills one prompt alone, in chunks, and returns its first-token time in milliseconds.
    fn first_token_ms(profile: &Profile, prompt_tokens: u64) -> f64 {
        let mut millis = profile.overhead.as_secs_f64() * 1e3;
        let mut done = 0;
        while done < prompt_tokens {
            let chunk = (prompt_tokens - done).min(u64::from(profile.batch_tokens_max));
            let attended_tokens = chunk as f64 * (done as f64 + chunk as f64 / 2.0);
            let work = Work { prefill_tokens: chunk, attended_tokens, ..Work::default() };
            millis += profile.step.duration(&work).as_secs_f64() * 1e3;
            done += chunk;
        }
        millis
    }

    fn inter_token_ms(profile: &Profile, batch: u64, context: u64) -> f64 {
        let work = Work { decode_sequences: batch, context_tokens: batch * context, ..Work::default() };
        profile.step.duration(&work).as_secs_f64() * 1e3
    }

    #[track_caller]
    fn check(actual_ms: f64, measured_ms: f64, tolerance: f64) {
        let error = (actual_ms / measured_ms - 1.0).abs();
        assert!(error <= tolerance, "{actual_ms} ms, measured {measured_ms} ms");
    }

    #[test]
    fn h200_prefill_is_what_was_measured() {
        for (prompt_tokens, measured_ms) in
            [(100, 19.5), (1_117, 38.5), (2_134, 50.0), (4_168, 87.3), (8_236, 171.0), (16_372, 375.0)]
        {
            check(first_token_ms(&H200_8B, prompt_tokens), measured_ms, 0.12);
        }
    }

    #[test]
    fn h200_decode_is_what_was_measured() {
        for (batch, context, measured_ms) in
            [(1, 10_900, 4.70), (49, 3_000, 9.94), (241, 3_000, 31.8), (55, 8_300, 19.8), (67, 13_600, 36.2)]
        {
            check(inter_token_ms(&H200_8B, batch, context), measured_ms, 0.08);
        }
    }

    #[test]
    fn the_instant_profile_takes_no_time() {
        assert_eq!(first_token_ms(&INSTANT, 100_000), 0.0);
        assert_eq!(inter_token_ms(&INSTANT, 256, 10_000), 0.0);
    }

    #[test]
    fn a_profile_is_found_by_its_name() {
        for profile in ALL {
            assert_eq!(Profile::named(profile.name), Some(profile));
        }
        assert_eq!(Profile::named("abacus"), None);
    }
}
