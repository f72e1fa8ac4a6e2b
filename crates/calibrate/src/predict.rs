//! What a profile predicts: the engine model answers the same requests in virtual time.
//!
//! It starts with an empty cache and keeps it between rounds, as the live engine does.

use std::time::Duration;

use maitre_base::Instant;
use maitre_sim::engine::{Engine, EngineConfig, Finish, Job, TokenOutput};
use maitre_sim::kv::{Names, Root};
use maitre_sim::profile::Profile;

use crate::probe::{ProbeAnswer, ProbeRequest};

/// An engine of this profile that has seen nothing but what was played.
pub(crate) struct VirtualEngine {
    engine: Engine,
    overhead: Duration,
    pub(crate) now: Instant,
    /// The request of each job, by its slot.
    owners: Vec<usize>,
}

impl VirtualEngine {
    pub(crate) fn new(profile: &Profile) -> VirtualEngine {
        VirtualEngine {
            engine: Engine::new(EngineConfig::new(*profile)),
            overhead: profile.overhead,
            now: Instant::ZERO,
            owners: Vec::new(),
        }
    }

    /// Answers the requests; one that can never fit gets no tokens. Returns when all are answered.
    pub(crate) fn play(&mut self, requests: &[ProbeRequest]) -> Vec<ProbeAnswer> {
        let begun = self.now;
        let mut answers: Vec<ProbeAnswer> =
            requests.iter().map(|it| ProbeAnswer { sent: it.at, ..ProbeAnswer::default() }).collect();
        let mut order: Vec<usize> = (0..requests.len()).collect();
        order.sort_by_key(|&index| requests[index].at);
        let mut waiting = order.into_iter().peekable();
        let arrival = |index: usize| begun + requests[index].at + self.overhead;
        let mut outputs = Vec::new();
        loop {
            while let Some(index) = waiting.next_if(|&it| arrival(it) <= self.now) {
                submit(&mut self.engine, &mut self.owners, index, &requests[index]);
            }
            match (self.engine.begin_step(), waiting.peek()) {
                (Some(span), _) => {
                    self.now = self.now + span;
                    self.engine.finish_step(self.now, &mut outputs);
                    let at = self.now.since(begun);
                    outputs.drain(..).for_each(|it| deliver(&mut answers, &self.owners, &it, at));
                }
                (None, Some(&next)) => self.now = arrival(next),
                (None, None) => return answers,
            }
        }
    }
}

fn submit(engine: &mut Engine, owners: &mut Vec<usize>, index: usize, request: &ProbeRequest) {
    let job = Job {
        prompt: request.prompt(),
        root: Root::new(Names { model: "", adapter: None, salt: "" }),
        seed: index as u64,
        answer_tokens: request.answer_tokens,
        finish: Finish::Length,
    };
    let Ok(id) = engine.submit(Instant::ZERO, job) else { return };
    let slot = id.slot as usize;
    if owners.len() <= slot {
        owners.resize(slot + 1, 0);
    }
    owners[slot] = index;
}

fn deliver(answers: &mut [ProbeAnswer], owners: &[usize], output: &TokenOutput, at: Duration) {
    let owner = owners.get(output.job.slot as usize);
    if let Some(answer) = owner.and_then(|&it| answers.get_mut(it)) {
        answer.tokens.push(at);
        answer.cached_tokens = Some(output.cached_tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::millis;
    use maitre_sim::profile::H200_8B;

    #[test]
    fn one_prompt_takes_what_the_profile_says() {
        let answers = VirtualEngine::new(&H200_8B).play(&[ProbeRequest::new(1, 4_000, 3)]);
        let first = millis(answers[0].first_token().unwrap());
        assert!((first - (16.5 + 0.015_183 * 4_000.0 + 4.21e-7 * 16e6)).abs() < 0.01, "{first}");
        assert_eq!(answers[0].tokens.len(), 3);
    }

    #[test]
    fn the_cache_lasts_from_round_to_round() {
        let mut engine = VirtualEngine::new(&H200_8B);
        let cached =
            |engine: &mut VirtualEngine| engine.play(&[ProbeRequest::new(1, 1_000, 1)])[0].cached_tokens;
        assert_eq!((cached(&mut engine), cached(&mut engine)), (Some(0), Some(992)));
    }

    #[test]
    fn a_later_request_waits_for_its_time() {
        let late = ProbeRequest { at: Duration::from_secs(2), ..ProbeRequest::new(2, 100, 1) };
        let answers = VirtualEngine::new(&H200_8B).play(&[late, ProbeRequest::new(1, 100, 1)]);
        assert_eq!(answers[0].first_token(), answers[1].first_token());
        let too_long = ProbeRequest::new(1, H200_8B.context_tokens_max, 1);
        assert_eq!(VirtualEngine::new(&H200_8B).play(&[too_long])[0].tokens.len(), 0);
    }
}
