//! Splits updates from peers into batches that the brain applies under one lock.
//!
//! Mostly one frame is one batch. But a router that joins receives tens of thousands of prompts, each of up to thousands
//! of blocks, and requests need their decisions meanwhile.

use maitre_cluster::PeerUpdate;

/// Chosen: at about twenty nanoseconds a block, half a millisecond.
const WEIGHT_MAX: usize = 16_384;

/// The weight of an update besides the blocks of its prompt.
const UPDATE_WEIGHT: usize = 32;

/// The updates in batches, none of them empty.
pub(super) fn batches(mut updates: &[PeerUpdate]) -> impl Iterator<Item = &[PeerUpdate]> {
    std::iter::from_fn(move || {
        if updates.is_empty() {
            return None;
        }
        let (batch, rest) = updates.split_at(first(updates));
        updates = rest;
        Some(batch)
    })
}

fn first(updates: &[PeerUpdate]) -> usize {
    let mut weight = 0;
    let fits = |it: &&PeerUpdate| {
        let links = if let PeerUpdate::Placed(placed) = it { placed.links.len() } else { 0 };
        weight += UPDATE_WEIGHT + links;
        weight <= WEIGHT_MAX
    };
    // An update that is too heavy is a batch of its own.
    updates.iter().take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests {
    use maitre_cluster::{PeerPlacement, Unit};

    use super::*;

    fn placed(links: usize) -> PeerUpdate {
        PeerUpdate::Placed(PeerPlacement {
            worker: 1,
            unit: Unit::Tokens,
            block: 16,
            units: 0,
            links: vec![1; links],
        })
    }

    #[track_caller]
    fn check(updates: &[PeerUpdate], sizes: &[usize]) {
        assert_eq!(batches(updates).map(<[PeerUpdate]>::len).collect::<Vec<_>>(), sizes);
    }

    #[test]
    fn every_update_is_in_one_batch_and_no_batch_is_heavy() {
        check(&[], &[]);
        let light = PeerUpdate::Routers { live: 1, known: 1 };
        check(&vec![light; 512], &[512]);
        check(&[placed(8_000), placed(8_000), placed(8_000)], &[2, 1]);
        check(&[placed(100_000), placed(100_000)], &[1, 1]);
    }
}
