//! A fuzzer for parsers of foreign bytes, as a plain test beside each parser.
//!
//! Inputs are mutants of a corpus: the seeds that a test gives, and the files of its crate in `fuzz/NAME`. There is no
//! feedback by coverage, which needs another toolchain. Instead mutants are mutated further, and pieces of the corpus serve
//! as a dictionary.
//!
//! `MAITRE_FUZZ_EXECUTIONS` and `MAITRE_FUZZ_SEED` make runs longer and other ones (`scripts/fuzz`). An input on which a check
//! panics is printed and kept in `target/fuzz`; once mended, it belongs into the corpus.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the environment sets how long to run, and the output shows what was run"
)]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

/// Executions of one target in an ordinary run of the tests.
const EXECUTIONS: u64 = 2_000;
/// Largest input. Limits of parsers are far above it, and are tested as such.
const BYTES_MAX: usize = 4_096;
/// Mutants that are kept to be mutated further.
const KEPT_MAX: usize = 256;
/// Mutations of one input at most.
const MUTATIONS_MAX: u64 = 6;

/// Bytes at which parsers decide something.
const INTERESTING: [&[u8]; 24] = [
    b"\0",
    b"\x01",
    b"\x7f",
    b"\x80",
    b"\xc0",
    b"\xff",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\r\n",
    b"\n",
    b"\r",
    b"\n\n",
    b" ",
    b"\"",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"0",
    b"-1",
    b"18446744073709551616",
    b"\xf0\x9f\x98\x80",
];

/// Random numbers that depend on the seed alone.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// splitmix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; zero if that is zero.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.next() % end as u64) as usize }
    }

    /// The bytes in pieces, as reads from a socket would give them.
    pub fn cut<'a>(&mut self, mut bytes: &'a [u8]) -> Vec<&'a [u8]> {
        let mut pieces = Vec::new();
        let most = [1, 3, 16, 64, bytes.len()][self.below(5)];
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at((1 + self.below(most)).min(bytes.len()));
            pieces.push(piece);
            bytes = rest;
        }
        pieces
    }
}

/// Runs `check` on mutants of the seeds and of the files in `fuzz/NAME` of the crate whose folder is `manifest`
/// (`env!("CARGO_MANIFEST_DIR")`). Fails if it panics.
pub fn fuzz(manifest: &str, name: &str, seeds: &[&[u8]], mut check: impl FnMut(&[u8], &mut Dice)) {
    let number =
        |key: &str, otherwise: u64| std::env::var(key).map_or(otherwise, |it| it.parse().expect(key));
    let executions = number("MAITRE_FUZZ_EXECUTIONS", EXECUTIONS);
    let corpus = corpus(manifest, name, seeds);
    let mut run = |input: &[u8], dice: &Dice| {
        let outcome = catch_unwind(AssertUnwindSafe(|| check(input, &mut dice.clone())));
        if let Err(panic) = outcome {
            let kept = keep(manifest, name, input);
            eprintln!("{name}: fails on {:?}, kept in {}", String::from_utf8_lossy(input), kept.display());
            resume_unwind(panic);
        }
    };
    let mut dice = Dice::new(number("MAITRE_FUZZ_SEED", 1));
    corpus.iter().for_each(|it| run(it, &dice));
    let mut pool = corpus.clone();
    for _ in 0..executions {
        let mut input = pool[dice.below(pool.len())].clone();
        for _ in 0..=dice.next() % MUTATIONS_MAX {
            mutate(&mut input, &corpus, &mut dice);
        }
        input.truncate(BYTES_MAX);
        run(&input, &dice);
        if dice.below(16) == 0 {
            match pool.len() - corpus.len() {
                KEPT_MAX.. => {
                    let place = corpus.len() + dice.below(KEPT_MAX);
                    pool[place] = input;
                }
                _ => pool.push(input),
            }
        }
    }
    println!("{name}: {executions} executions of mutants of {} seeds", corpus.len());
}

fn corpus(manifest: &str, name: &str, seeds: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut corpus: Vec<Vec<u8>> = seeds.iter().map(|it| it.to_vec()).collect();
    let folder = Path::new(manifest).join("fuzz").join(name);
    if let Ok(files) = std::fs::read_dir(&folder) {
        let mut paths: Vec<PathBuf> = files.map(|it| it.unwrap().path()).collect();
        paths.sort();
        corpus.extend(paths.iter().map(|it| std::fs::read(it).unwrap()));
    }
    assert!(!corpus.is_empty(), "{name} has no seeds");
    corpus
}

fn mutate(input: &mut Vec<u8>, corpus: &[Vec<u8>], dice: &mut Dice) {
    let at = dice.below(input.len() + 1);
    let length = dice.below((input.len() - at).min(32) + 1);
    match dice.below(9) {
        0 if at < input.len() => input[at] ^= 1 << dice.below(8),
        1 if at < input.len() => input[at] = dice.next() as u8,
        2 => drop(input.drain(at..at + length)),
        3 => input.truncate(at),
        4 => {
            let again = input[at..at + length].to_vec();
            let to = dice.below(input.len() + 1);
            drop(input.splice(to..to, again));
        }
        5 => insert(input, at, INTERESTING[dice.below(INTERESTING.len())]),
        6 => insert(input, at, dice.next().wrapping_shr(dice.below(64) as u32).to_string().as_bytes()),
        7 => {
            let other = &corpus[dice.below(corpus.len())];
            let from = dice.below(other.len() + 1);
            let to = from + dice.below((other.len() - from).min(64) + 1);
            insert(input, at, &other[from..to]);
        }
        _ => {
            // The front of one and the back of another.
            let other = &corpus[dice.below(corpus.len())];
            input.truncate(at);
            input.extend_from_slice(&other[dice.below(other.len() + 1)..]);
        }
    }
}

fn insert(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    drop(input.splice(at..at, bytes.iter().copied()));
}

/// Writes an input that fails to a file in the workspace's `target`, which git ignores. Tests run in the folder of their
/// crate.
fn keep(manifest: &str, name: &str, input: &[u8]) -> PathBuf {
    let folder = Path::new(manifest).join("../../target/fuzz");
    let sum = input.iter().fold(0_u64, |sum, it| Dice(sum ^ u64::from(*it)).next());
    let path = folder.join(format!("{name}-{sum:016x}"));
    let _ = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, input));
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parser_that_fails_on_one_odd_input_is_found() {
        let found = catch_unwind(|| {
            fuzz(env!("CARGO_MANIFEST_DIR"), "planted", &[b"length: 12\r\n"], |input, _| {
                assert!(!input.windows(3).any(|it| it == b"\r\r\n"), "two carriage returns");
            });
        });
        assert!(found.is_err());
    }

    #[test]
    fn pieces_are_the_whole_in_order() {
        let mut dice = Dice::new(3);
        let whole: Vec<u8> = (0..200).collect();
        for _ in 0..50 {
            assert_eq!(dice.cut(&whole).concat(), whole);
        }
        assert!(dice.cut(b"").is_empty());
    }
}
