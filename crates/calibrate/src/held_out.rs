//! How far the fitted profile is from requests that it was not fitted to.

use maitre_sim::profile::Profile;

use crate::predict::VirtualEngine;
use crate::probe::{ProbeAnswer, ProbeRequest, ProbeRound, millis};
use crate::solve::quantile;

/// One request, seen and predicted, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Compared {
    pub(crate) first: Pair,
    pub(crate) total: Pair,
    pub(crate) cached_tokens: Option<Pair>,
    pub(crate) prompt_tokens: u32,
}

/// A number as it was seen and as the profile predicts it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pair {
    pub(crate) seen: f64,
    pub(crate) predicted: f64,
}

/// A group of requests: means, 90th percentiles, and the error of a single one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Agreement {
    pub(crate) requests: usize,
    pub(crate) mean: Pair,
    pub p90: Pair,
    /// The relative error of half of the requests is at most this.
    pub(crate) error_half: f64,
}

impl Pair {
    /// As a part of what was seen.
    pub(crate) fn error(&self) -> f64 {
        (self.predicted - self.seen) / self.seen.max(1e-6)
    }
}

/// Plays the round with the profile, each request when it really left.
pub(crate) fn compare(profile: &Profile, round: &ProbeRound, answers: &[ProbeAnswer]) -> Vec<Compared> {
    let sent = |(request, answer): (&ProbeRequest, &ProbeAnswer)| ProbeRequest {
        at: answer.sent,
        ..request.clone()
    };
    let requests: Vec<ProbeRequest> = round.requests.iter().zip(answers).map(sent).collect();
    let predicted = VirtualEngine::new(profile).play(&requests);
    let pairs = requests.iter().zip(answers.iter().zip(&predicted));
    pairs.filter_map(|(request, (seen, predicted))| compared(request, seen, predicted)).collect()
}

fn compared(request: &ProbeRequest, seen: &ProbeAnswer, predicted: &ProbeAnswer) -> Option<Compared> {
    let cached = seen.cached_tokens.zip(predicted.cached_tokens);
    Some(Compared {
        first: Pair { seen: millis(seen.first_token()?), predicted: millis(predicted.first_token()?) },
        total: Pair { seen: millis(seen.total()?), predicted: millis(predicted.total()?) },
        cached_tokens: cached
            .map(|(seen, predicted)| Pair { seen: f64::from(seen), predicted: f64::from(predicted) }),
        prompt_tokens: request.prompt_tokens(),
    })
}

/// Sums up a field of the requests; none if there are none.
pub(crate) fn agreement(compared: &[Compared], field: impl Fn(&Compared) -> Pair) -> Option<Agreement> {
    let pairs: Vec<Pair> = compared.iter().map(field).collect();
    let seen: Vec<f64> = pairs.iter().map(|it| it.seen).collect();
    let predicted: Vec<f64> = pairs.iter().map(|it| it.predicted).collect();
    let errors: Vec<f64> = pairs.iter().map(|it| it.error().abs()).collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    (!pairs.is_empty()).then(|| Agreement {
        requests: pairs.len(),
        mean: Pair { seen: mean(&seen), predicted: mean(&predicted) },
        p90: Pair { seen: quantile(&seen, 0.9), predicted: quantile(&predicted, 0.9) },
        error_half: quantile(&errors, 0.5),
    })
}

/// Cached tokens by prompt tokens, seen and predicted; none if the engine does not say.
pub(crate) fn hit_ratio(compared: &[Compared]) -> Option<Pair> {
    let told = || compared.iter().filter_map(|it| Some((it.cached_tokens?, f64::from(it.prompt_tokens))));
    let prompts: f64 = told().map(|it| it.1).sum();
    let part = |field: fn(&Pair) -> f64| told().map(|it| field(&it.0)).sum::<f64>() / prompts;
    (prompts > 0.0).then(|| Pair { seen: part(|it| it.seen), predicted: part(|it| it.predicted) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{PromptPart, RoundKind};
    use maitre_sim::profile::H200_8B;
    use std::time::Duration;

    /// Two prompts with one prefix.
    fn round() -> ProbeRound {
        let request = |seed, at| ProbeRequest {
            at: Duration::from_millis(at),
            parts: vec![PromptPart { seed: 7, tokens: 800 }, PromptPart { seed, tokens: 200 }],
            answer_tokens: 5,
        };
        ProbeRound { kind: RoundKind::HeldOut, requests: vec![request(1, 0), request(2, 500)] }
    }

    #[test]
    fn the_true_profile_is_never_wrong() {
        let round = round();
        let seen = VirtualEngine::new(&H200_8B).play(&round.requests);
        let compared = compare(&H200_8B, &round, &seen);
        let first = agreement(&compared, |it| it.first).unwrap();
        assert_eq!(
            (first.requests, first.mean.error(), first.p90.error(), first.error_half),
            (2, 0.0, 0.0, 0.0)
        );
        assert_eq!(hit_ratio(&compared), Some(Pair { seen: 0.4, predicted: 0.4 }));
    }

    #[test]
    fn a_slower_engine_shows() {
        let round = round();
        let seen = VirtualEngine::new(&H200_8B.slower(2.0)).play(&round.requests);
        let compared = compare(&H200_8B, &round, &seen);
        let total = agreement(&compared, |it| it.total).unwrap();
        assert!((-0.5..-0.35).contains(&total.mean.error()), "{total:?}");
        assert_eq!(agreement(&[], |it| it.first), None);
        assert_eq!(hit_ratio(&[]), None);
    }
}
