//! One fixed 64-bit hash for keys that routers must agree on: sessions, prompt heads, rings.
//!
//! Fixed on purpose: two routers, or one router twice, give the same worker to the same key. Do not use it for tables
//! whose keys an attacker may choose; those need a seeded hasher.

/// Finaliser of splitmix64: every input bit moves about half of the output bits.
pub const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// Hashes two numbers into one. The order matters.
pub const fn pair(a: u64, b: u64) -> u64 {
    mix(a.rotate_left(32) ^ mix(b.wrapping_add(0x9E37_79B9_7F4A_7C15)))
}

/// Hashes bytes given in pieces; where the pieces are cut makes no difference.
#[derive(Clone, Debug)]
pub struct Hasher {
    state: u64,
    word: u64,
    length: u64,
}

impl Hasher {
    pub const fn new(seed: u64) -> Hasher {
        Hasher { state: mix(seed ^ 0x6D61_6974_7265_2121), word: 0, length: 0 }
    }

    pub fn write(&mut self, mut bytes: &[u8]) {
        while !self.length.is_multiple_of(8) && !bytes.is_empty() {
            self.push(bytes[0]);
            bytes = &bytes[1..];
        }
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.absorb(u64::from_le_bytes(*word));
        }
        self.length += 8 * words.len() as u64;
        for &byte in rest {
            self.push(byte);
        }
    }

    pub fn finish(&self) -> u64 {
        let mut last = self.clone();
        last.absorb(self.word);
        mix(last.state ^ self.length)
    }

    fn push(&mut self, byte: u8) {
        self.word |= u64::from(byte) << (8 * (self.length % 8));
        self.length += 1;
        if self.length.is_multiple_of(8) {
            self.absorb(self.word);
            self.word = 0;
        }
    }

    fn absorb(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * 0x9FB2_1C65_1E98_DF25;
        self.state = (product as u64) ^ ((product >> 64) as u64);
        self.state = self.state.rotate_left(23) ^ word;
    }
}

pub fn bytes(seed: u64, bytes: &[u8]) -> u64 {
    let mut hasher = Hasher::new(seed);
    hasher.write(bytes);
    hasher.finish()
}

/// A map keyed by numbers that are hashes or counters already. Never iterated where order could show.
pub type NumberMap<V> = std::collections::HashMap<u64, V, std::hash::BuildHasherDefault<NumberHasher>>;

#[derive(Clone, Debug, Default)]
pub struct NumberHasher(u64);

impl std::hash::Hasher for NumberHasher {
    fn write_u64(&mut self, value: u64) {
        self.0 = mix(value);
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = self::bytes(self.0, bytes);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_boundaries_make_no_difference() {
        let text: Vec<u8> = (0..=255).collect();
        for cut in 0..text.len() {
            let mut hasher = Hasher::new(5);
            hasher.write(&text[..cut]);
            hasher.write(&text[cut..]);
            assert_eq!(hasher.finish(), bytes(5, &text), "cut at {cut}");
        }
    }

    #[test]
    fn length_seed_and_every_byte_matter() {
        let mut seen = std::collections::HashSet::new();
        for length in 0..40 {
            assert!(seen.insert(bytes(0, &vec![0; length])), "zeros of length {length}");
        }
        for position in 0..40 {
            let mut text = vec![0; 40];
            text[position] = 1;
            assert!(seen.insert(bytes(0, &text)), "bit at {position}");
        }
        assert!(seen.insert(bytes(1, b"")));
    }

    #[test]
    fn the_function_never_changes() {
        // Routers of different versions must agree: these values are a contract.
        assert_eq!(bytes(0, b"table for two"), 9_531_514_261_744_632_465);
        assert_eq!(mix(1), 0x5692_161D_100B_05E5);
    }
}
