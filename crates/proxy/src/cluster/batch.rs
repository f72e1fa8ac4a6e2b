//! How much news the brain is told at once.
//!
//! All of one frame behind one lock would be simplest, and mostly is what happens. But who joins is told of tens of
//! thousands of prompts, each of up to thousands of blocks, and meanwhile requests want their decisions.

use maitre_cluster::PeerUpdate;

/// Chosen: at about twenty nanoseconds a block, half a millisecond.
const WEIGHT_MAX: usize = 16_384;

/// What a piece of news weighs beside the blocks of a prompt.
const PIECE: usize = 32;

/// The news in pieces that may each be told behind one lock; none is empty.
pub(super) fn batches(mut news: &[PeerUpdate]) -> impl Iterator<Item = &[PeerUpdate]> {
    std::iter::from_fn(move || {
        if news.is_empty() {
            return None;
        }
        let (batch, rest) = news.split_at(first(news));
        news = rest;
        Some(batch)
    })
}

fn first(news: &[PeerUpdate]) -> usize {
    let mut weight = 0;
    let fits = |it: &&PeerUpdate| {
        let links = if let PeerUpdate::Placed(seated) = it { seated.links.len() } else { 0 };
        weight += PIECE + links;
        weight <= WEIGHT_MAX
    };
    // One that is too heavy by itself is told by itself.
    news.iter().take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests {
    use maitre_cluster::{PeerPlacement, Unit};

    use super::*;

    fn seated(links: usize) -> PeerUpdate {
        PeerUpdate::Placed(PeerPlacement {
            worker: 1,
            unit: Unit::Tokens,
            block: 16,
            units: 0,
            links: vec![1; links],
        })
    }

    #[track_caller]
    fn check(news: &[PeerUpdate], sizes: &[usize]) {
        assert_eq!(batches(news).map(<[PeerUpdate]>::len).collect::<Vec<_>>(), sizes);
    }

    #[test]
    fn nothing_is_left_out_and_no_batch_is_heavy() {
        check(&[], &[]);
        let light = PeerUpdate::Routers { live: 1, known: 1 };
        check(&vec![light; 512], &[512]);
        check(&[seated(8_000), seated(8_000), seated(8_000)], &[2, 1]);
        check(&[seated(100_000), seated(100_000)], &[1, 1]);
    }
}
