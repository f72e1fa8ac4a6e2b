//! Prompts that begin alike go to the same worker, until it has more than its share of the work.
//!
//! The head of the prompt (tools, system prompt, first messages) names a home by rendezvous hashing. Load is bounded:
//! past `load_factor` times the mean the prompt spills over to the next worker in the key's own order. So a popular
//! head spreads over as many workers as it needs, always the same ones. The rule does not see whether the home still
//! has the prefix cached, nor anything past the head.

use crate::{Ask, Candidate, Pick, Why, choose};

/// Work below which no worker counts as busy, whatever the mean: about one step's token budget of an engine on a
/// large GPU (8,192 in vLLM). Without it, two requests at once in an idle fleet would separate a prompt from its
/// cache.
pub const SLACK_TOKENS: f64 = 8_192.0;

/// `load_factor` is how far above the mean the home's work may be.
pub fn pick(ask: &Ask, candidates: &[Candidate], load_factor: f64) -> Option<Pick> {
    let head = ask.head?;
    let total: f64 = candidates.iter().map(Candidate::work).sum();
    let bound = (load_factor * total / candidates.len() as f64).max(SLACK_TOKENS);
    let home = choose::home(candidates, head, |_| true)?;
    if candidates[home].work() <= bound {
        return Some(Pick { index: home, why: Why::Home });
    }
    // With a factor of at least one some worker is always within the bound.
    let index = choose::home(candidates, head, |it| it.work() <= bound)?;
    Some(Pick { index, why: Why::Spilled })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::tests::fleet;

    fn place(head: u64, candidates: &[Candidate]) -> Pick {
        pick(&Ask { head: Some(head), ..Ask::default() }, candidates, 1.25).unwrap()
    }

    #[test]
    fn equal_heads_meet_and_different_heads_spread() {
        let candidates = fleet(&[(0, 0); 8]);
        let mut seen = [0u32; 8];
        for head in 0..800 {
            let first = place(head, &candidates);
            assert_eq!((first, first.why), (place(head, &candidates), Why::Home));
            seen[first.index] += 1;
        }
        assert!(seen.iter().all(|&count| (60..140).contains(&count)), "{seen:?}");
    }

    #[test]
    fn a_busy_home_spills_to_the_same_neighbour_every_time() {
        let mut candidates = fleet(&[(1, 10_000); 4]);
        let home = place(7, &candidates).index;
        candidates[home].promised.prefill.tokens.0 = 60_000;
        let spilled = place(7, &candidates);
        assert_eq!(spilled.why, Why::Spilled);
        assert_ne!(spilled.index, home);
        assert_eq!(place(7, &candidates), spilled);
    }

    #[test]
    fn an_idle_fleet_keeps_heads_together() {
        let mut candidates = fleet(&[(0, 0); 4]);
        let home = place(7, &candidates).index;
        candidates[home].promised.prefill.tokens.0 = 5_000;
        assert_eq!(place(7, &candidates).why, Why::Home);
    }
}
