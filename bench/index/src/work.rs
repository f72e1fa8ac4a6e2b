//! The work: what a fleet's engines would report, and the prompts that would be looked up.
//!
//! Conversations begin with a system prompt, some of them common to many workers, and grow by turns: one store for
//! the user's text, one for the answer. A worker serves a few at a time, so their stores are interleaved. Shared
//! blocks are stored once per worker. Removals take the oldest conversations, tails first.

use maitre_base::Rng;
use maitre_base::hash::{mix, pair};
use std::collections::BTreeSet;

pub const BLOCK_TOKENS: usize = 16;

const SYSTEM_PROMPTS: usize = 48;
/// How many of them one worker gets.
const SYSTEM_PROMPTS_PER_WORKER: usize = 12;
const CONCURRENT: usize = 8;
const REMOVED_NAMES_MAX: usize = 8;

/// One conversation on one worker. A block is a number that stands for its tokens.
pub struct Session {
    pub worker: usize,
    pub blocks: Vec<u64>,
    pub names: Vec<u64>,
    /// How many blocks belong to the system prompt.
    pub system: usize,
}

#[derive(Clone, Copy)]
pub struct Change {
    pub session: usize,
    pub from: usize,
    pub to: usize,
}

pub struct Workload {
    pub workers: usize,
    pub sessions: Vec<Session>,
    pub stores: Vec<Change>,
    /// Blocks per worker, summed.
    pub stored_blocks: usize,
    pub removals: Vec<Change>,
    pub removed_blocks: usize,
}

/// The tokens of a block.
pub fn tokens(block: u64, out: &mut Vec<u32>) {
    out.extend((0..BLOCK_TOKENS as u64).map(|it| (mix(block ^ it << 40) % 150_000) as u32));
}

impl Workload {
    pub fn new(workers: usize, blocks_per_worker: usize, seed: u64) -> Workload {
        let mut rng = Rng::new(seed);
        let systems: Vec<Vec<u64>> =
            (0..SYSTEM_PROMPTS).map(|_| (0..8 + rng.below(60)).map(|_| rng.next_u64()).collect()).collect();
        let mut work = Workload {
            workers,
            sessions: Vec::new(),
            stores: Vec::new(),
            stored_blocks: 0,
            removals: Vec::new(),
            removed_blocks: 0,
        };
        let mut streams: Vec<Vec<Change>> = Vec::new();
        for worker in 0..workers {
            streams.push(work.serve(worker, blocks_per_worker, &systems, &mut rng));
        }
        work.interleave(&streams);
        work.evict();
        work
    }

    /// A prompt of this many blocks: half of them continue a conversation, at some depth; some share only a system
    /// prompt; some are new.
    pub fn prompt(&self, blocks: usize, rng: &mut Rng) -> Vec<u64> {
        let kind = rng.below(10);
        let mut prompt = Vec::with_capacity(blocks);
        if kind < 8 {
            let long: Vec<usize> = (0..64)
                .map(|_| rng.below(self.sessions.len()))
                .filter(|&it| self.sessions[it].blocks.len() >= blocks)
                .take(1)
                .collect();
            let session = &self.sessions[long.first().copied().unwrap_or(rng.below(self.sessions.len()))];
            let most = session.blocks.len().min(blocks);
            let depth = match kind {
                0..3 => most,
                3..5 => session.system.min(most) + rng.below(most - session.system.min(most) + 1),
                _ => session.system.min(most),
            };
            prompt.extend(&session.blocks[..depth]);
        }
        prompt.resize_with(blocks, || rng.next_u64());
        prompt
    }

    /// One worker's conversations, and its stores in order.
    fn serve(&mut self, worker: usize, blocks: usize, systems: &[Vec<u64>], rng: &mut Rng) -> Vec<Change> {
        let (mut stream, mut stored, mut known) = (Vec::new(), 0, BTreeSet::new());
        let mut open: Vec<(usize, usize, usize)> = Vec::new();
        while stored < blocks {
            while open.len() < CONCURRENT {
                let choice = (worker * 5 + rng.below(SYSTEM_PROMPTS_PER_WORKER)) % SYSTEM_PROMPTS;
                open.push((self.sessions.len(), 0, choice));
                self.sessions.push(session(worker, &systems[choice], rng));
            }
            let at = rng.below(open.len());
            let (session, mut done, choice) = open[at];
            if done == 0 && !known.insert(choice) {
                // Blocks that another conversation has stored are not stored again.
                done = self.sessions[session].system;
            }
            let length = self.sessions[session].blocks.len();
            let system = self.sessions[session].system;
            let turn = if done < system { system + 4 + rng.below(40) } else { 2 + rng.below(40) };
            let to = (done + turn).min(length);
            stream.push(Change { session, from: done, to });
            stored += to - done;
            open[at].1 = to;
            if to == length {
                open.swap_remove(at);
            }
        }
        // A conversation that was cut off has only its stored blocks.
        for (session, done, _) in open {
            self.sessions[session].blocks.truncate(done);
            self.sessions[session].names.truncate(done);
        }
        self.stored_blocks += stored;
        stream
    }

    fn interleave(&mut self, streams: &[Vec<Change>]) {
        let longest = streams.iter().map(Vec::len).max().unwrap_or(0);
        for at in 0..longest {
            self.stores.extend(streams.iter().filter_map(|it| it.get(at)));
        }
    }

    fn evict(&mut self) {
        let mut left = vec![self.stored_blocks / self.workers / 4; self.workers];
        for (at, session) in self.sessions.iter().enumerate() {
            let mut to = session.blocks.len();
            while to > session.system && left[session.worker] > 0 {
                let from = to.saturating_sub(REMOVED_NAMES_MAX).max(session.system);
                self.removals.push(Change { session: at, from, to });
                self.removed_blocks += to - from;
                left[session.worker] = left[session.worker].saturating_sub(to - from);
                to = from;
            }
        }
    }
}

fn session(worker: usize, system: &[u64], rng: &mut Rng) -> Session {
    let length = match rng.below(20) {
        0..12 => 100 + rng.below(150),
        12..18 => 512 + rng.below(200),
        _ => 2_048 + rng.below(400),
    };
    let mut blocks = system.to_vec();
    blocks.resize_with(length.max(system.len() + 1), || rng.next_u64());
    // One seed for the whole fleet, so that a block has the same name on every worker: Dynamo's tree needs it.
    let names = blocks
        .iter()
        .scan(1, |prefix, &block| {
            *prefix = pair(*prefix, block);
            Some(*prefix)
        })
        .collect();
    Session { worker, blocks, names, system: system.len() }
}
