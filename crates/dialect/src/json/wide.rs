//! The two loops that go through every byte of a body, 32 bytes at a time where the CPU has AVX2: whether it is ASCII, and how
//! far a string goes on without a quote or a backslash, and with or without a control byte. Most of a body is one such run.
//!
//! `plain` says what a run is, in two passes: memchr's search for both marks, and a minimum over what is before them. The
//! second pass is vectorised only if the compiler chooses to. When it chose not to, because a profile asked for small code, a
//! body of 64 KB took 558,000 instructions instead of 108,000, and no test noticed. One pass with AVX2 takes 12,500
//! instructions for 64 KB, and 0.91 µs instead of 1.17 for both. `plain` is its oracle in the tests. ASCII takes 3,900
//! instead of the 9,400 with which simdutf8 says the same, 0.32 µs instead of 0.57.
//!
//! One lookup finds both marks. The low half of a byte selects what the byte is compared with: the quote is the only
//! candidate for bytes that end in 2, the backslash for those that end in C, and for all others there is none.
//!
//! This is the only file with unsafe code, and each place says why it is sound. None of them trusts the text: two call functions
//! after a check that the CPU has their instructions, one reads the 32 bytes of an array of 32, and one is that ASCII is UTF-8.
#![allow(unsafe_code, reason = "AVX2 is not in every x86-64 CPU, and ASCII is not checked twice: see above")]

use memchr::memchr2;

use super::is_control;

/// The part of a text before its first quote or backslash, or before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlainRun {
    pub(super) bytes: usize,
    pub(super) has_control: bool,
}

/// The bytes as text, if all of them are ASCII.
pub(crate) fn ascii(bytes: &[u8]) -> Option<&str> {
    // SAFETY: each byte is below 128, and so a whole character of UTF-8.
    is_ascii(bytes).then(|| unsafe { str::from_utf8_unchecked(bytes) })
}

fn is_ascii(bytes: &[u8]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: it needs AVX2, which this CPU has, and nothing else.
        return unsafe { avx2::is_ascii(bytes) };
    }
    bytes.is_ascii()
}

/// The run that this text begins with.
#[inline]
pub(super) fn run(text: &[u8]) -> PlainRun {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: as above.
        return unsafe { avx2::run(text) };
    }
    plain(text)
}

fn plain(text: &[u8]) -> PlainRun {
    let bytes = memchr2(b'"', b'\\', text).unwrap_or(text.len());
    // Without an early exit, so that it can be vectorised.
    let least = text[..bytes].iter().fold(u8::MAX, |least, &byte| least.min(byte));
    PlainRun { bytes, has_control: is_control(least) }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm_setr_epi8, _mm256_broadcastsi128_si256, _mm256_cmpeq_epi8, _mm256_loadu_si256,
        _mm256_max_epu8, _mm256_min_epu8, _mm256_movemask_epi8, _mm256_or_si256, _mm256_set1_epi8,
        _mm256_shuffle_epi8, _mm256_testz_si256,
    };

    use super::{PlainRun, plain};

    /// Bytes of a vector.
    const LANE: usize = 32;
    /// Bytes that a step of a long run takes at once: a branch for eight vectors.
    const STRIDE: usize = 8 * LANE;
    /// Vectors that are taken one by one before that: names and short values end in them.
    const SHORT_LANES: usize = 2;
    /// The last control byte.
    const CONTROL_MAX: i8 = 0x1f;

    #[target_feature(enable = "avx2")]
    pub(super) fn is_ascii(text: &[u8]) -> bool {
        let (strides, rest) = text.as_chunks::<STRIDE>();
        for stride in strides {
            let (lanes, _) = stride.as_chunks::<LANE>();
            let any = lanes.iter().fold(_mm256_set1_epi8(0), |any, it| _mm256_or_si256(any, load(it)));
            if bits(any) != 0 {
                return false;
            }
        }
        let (lanes, rest) = rest.as_chunks::<LANE>();
        lanes.iter().all(|it| bits(load(it)) == 0) && rest.is_ascii()
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn run(text: &[u8]) -> PlainRun {
        let marks = marks();
        let (lanes, _) = text.as_chunks::<LANE>();
        let short = &lanes[..lanes.len().min(SHORT_LANES)];
        let mut so_far = PlainRun { bytes: 0, has_control: false };
        if let Some(found) = by_lanes(short, marks, &mut so_far) {
            return found;
        }
        skip_strides(&text[so_far.bytes..], marks, &mut so_far);
        let (lanes, _) = text[so_far.bytes..].as_chunks::<LANE>();
        if let Some(found) = by_lanes(lanes, marks, &mut so_far) {
            return found;
        }
        let rest = plain(&text[so_far.bytes..]);
        PlainRun { bytes: so_far.bytes + rest.bytes, has_control: so_far.has_control || rest.has_control }
    }

    /// Goes on vector by vector. The whole run, if it ends in one of them.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn by_lanes(lanes: &[[u8; LANE]], marks: __m256i, so_far: &mut PlainRun) -> Option<PlainRun> {
        for lane in lanes {
            let bytes = load(lane);
            let (ends, controls) = (bits(ends(bytes, marks)), controls(bytes));
            if ends != 0 {
                // Only what is before the first mark counts.
                let before = ends ^ (ends - 1);
                return Some(PlainRun {
                    bytes: so_far.bytes + ends.trailing_zeros() as usize,
                    has_control: so_far.has_control || controls & before != 0,
                });
            }
            so_far.bytes += LANE;
            so_far.has_control |= controls != 0;
        }
        None
    }

    /// Goes on as long as there is no mark in a whole stride.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn skip_strides(text: &[u8], marks: __m256i, so_far: &mut PlainRun) {
        let mut least = _mm256_set1_epi8(-1);
        for stride in text.as_chunks::<STRIDE>().0 {
            let (lanes, _) = stride.as_chunks::<LANE>();
            let (mut any_end, mut least_here) = (_mm256_set1_epi8(0), least);
            for lane in lanes {
                let bytes = load(lane);
                any_end = _mm256_or_si256(any_end, ends(bytes, marks));
                least_here = _mm256_min_epu8(least_here, bytes);
            }
            if _mm256_testz_si256(any_end, any_end) == 0 {
                break;
            }
            least = least_here;
            so_far.bytes += STRIDE;
        }
        so_far.has_control |= controls(least) != 0;
    }

    /// What a byte is compared with, by its low half. Minus one stands for nothing: no byte that ends in 0 to E equals it,
    /// and zero is the same for those that end in F.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn marks() -> __m256i {
        let (quote, backslash) = (b'"' as i8, b'\\' as i8);
        let row = _mm_setr_epi8(-1, -1, quote, -1, -1, -1, -1, -1, -1, -1, -1, -1, backslash, -1, -1, 0);
        _mm256_broadcastsi128_si256(row)
    }

    /// Which bytes are quotes or backslashes. The lookup is zero for bytes above 127, and no such byte is zero.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn ends(bytes: __m256i, marks: __m256i) -> __m256i {
        _mm256_cmpeq_epi8(bytes, _mm256_shuffle_epi8(marks, bytes))
    }

    /// Which bytes are control bytes, one bit each.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn controls(bytes: __m256i) -> u32 {
        let highest = _mm256_set1_epi8(CONTROL_MAX);
        bits(_mm256_cmpeq_epi8(_mm256_max_epu8(bytes, highest), highest))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn bits(bytes: __m256i) -> u32 {
        _mm256_movemask_epi8(bytes).cast_unsigned()
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(lane: &[u8; LANE]) -> __m256i {
        // SAFETY: it reads 32 bytes, at any alignment, and the array has 32.
        unsafe { _mm256_loadu_si256(lane.as_ptr().cast()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, a byte at a time.
    fn by_bytes(text: &[u8]) -> PlainRun {
        let bytes = text.iter().position(|it| b"\"\\".contains(it)).unwrap_or(text.len());
        PlainRun { bytes, has_control: text[..bytes].iter().copied().any(is_control) }
    }

    #[track_caller]
    fn check(text: &[u8]) {
        assert_eq!(plain(text), by_bytes(text), "{text:?}");
        assert_eq!(run(text), by_bytes(text), "{text:?}");
        assert_eq!(is_ascii(text), text.iter().all(|&it| it < 128), "{text:?}");
        assert_eq!(ascii(text), str::from_utf8(text).ok().filter(|it| it.is_ascii()), "{text:?}");
    }

    #[test]
    fn every_byte_at_every_place_of_a_stride_is_seen_for_what_it_is() {
        for length in [1, 31, 32, 33, 64, 65, 96, 320, 321, 352, 600] {
            for at in (0..length).step_by(if length > 100 { 7 } else { 1 }) {
                for byte in 0..=u8::MAX {
                    let mut text = vec![b'a'; length];
                    text[at] = byte;
                    check(&text);
                }
            }
        }
    }

    #[test]
    fn a_control_byte_after_the_mark_is_not_of_the_run() {
        for end in 0..700 {
            let mut text = vec![b'a'; 1_000];
            (text[end], text[end + 1]) = (b'"', b'\n');
            check(&text);
            text[end / 2] = 0;
            check(&text);
        }
    }

    proptest! {
        #[test]
        fn runs_are_the_same_as_byte_by_byte(
            texts in prop::collection::vec(("[a-z]{0,400}", 0u8..=255), 0..4),
        ) {
            let text: Vec<u8> = texts.into_iter().flat_map(|(text, last)| {
                let mut text = text.into_bytes();
                text.push(last);
                text
            }).collect();
            check(&text);
        }
    }
}
