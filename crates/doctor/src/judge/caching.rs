//! Judges what a few small requests show: whether engines answer, cache prefixes, report cached tokens, and
//! separate salts.

use maitre_dialect::engine::Need;
use maitre_dialect::usage::Usage;

use super::workers;
use crate::code::Code;
use crate::facts::{Answered, Asked, Fleet, Salted, Worker};
use crate::report::{Finding, Outcome};

/// Blocks that a prompt must fill so that sending it again is certainly a hit.
const BLOCKS_MIN: u64 = 2;
/// Tokens per block where the engine does not report it: the largest common size.
const BLOCK_TOKENS: u64 = 128;

pub(super) fn requests(fleet: &Fleet) -> Outcome {
    let mut outcome = Outcome::default();
    let (mut answered, mut asked) = (0, 0);
    let mut why = "no worker is reachable";
    for worker in fleet.present() {
        match &worker.asked {
            Asked::No(reason) => why = reason,
            Asked::Answered(_) => (answered, asked) = (answered + 1, asked + 1),
            Asked::Failed { path, why } => {
                asked += 1;
                outcome.find(Finding::at(
                    &worker.url,
                    Code::RequestsFail,
                    format!("{path} with one answer token failed: {why}"),
                    "read the engine's own log; --no-requests leaves this out for engines that generate nothing",
                ));
            }
        }
    }
    outcome.said = match asked {
        0 => format!("none sent: {why}"),
        _ => format!("{} them", super::answering(answered, asked)),
    };
    outcome
}

fn answers(worker: &Worker) -> Option<&Answered> {
    match &worker.asked {
        Asked::Answered(answered) => Some(answered),
        _ => None,
    }
}

/// Whether the prompt that was sent twice is long enough to be a hit, as far as is known.
fn is_long_enough(worker: &Worker, usage: &Usage) -> bool {
    let block = worker.block_tokens().unwrap_or(BLOCK_TOKENS);
    usage.prompt_tokens.is_some_and(|it| it >= BLOCKS_MIN * block)
}

/// Why prefix caching is off, if it is.
pub(super) fn is_off(worker: &Worker) -> Option<&'static str> {
    if worker.about.prefix_caching == Some(false) {
        return Some("reports that its prefix cache is off");
    }
    // With several ranks behind one address, the second request may have reached another rank.
    let answered = answers(worker).filter(|_| worker.hidden_ranks().is_none())?;
    let is_missed = answered.second.cached_tokens == Some(0) && is_long_enough(worker, &answered.second);
    is_missed.then_some("received the same prompt twice and found nothing of it in its cache")
}

pub(super) fn prefix_caching(fleet: &Fleet) -> Outcome {
    let mut outcome = Outcome::default();
    let mut known = 0;
    for worker in fleet.present() {
        let hit = answers(worker).and_then(|it| it.second.cached_tokens).is_some_and(|it| it > 0);
        match is_off(worker) {
            Some(why) => outcome.find(Finding::at(
                &worker.url,
                Code::PrefixCachingOff,
                why,
                format!("start it {}", worker.kind.advice(Need::PrefixCaching)),
            )),
            None if hit || worker.about.prefix_caching.is_some() => known += 1,
            None => {}
        }
    }
    outcome.said = match known + outcome.findings.len() {
        0 => "not checked: no engine reports it".to_owned(),
        _ => format!("on at {}", workers(known)),
    };
    outcome
}

pub(super) fn cached_tokens(fleet: &Fleet) -> Outcome {
    let mut outcome = Outcome::default();
    let (mut told, mut looked) = (0, 0);
    for worker in fleet.present().filter(|it| is_off(it).is_none() && it.hidden_ranks().is_none()) {
        let Some(answered) = answers(worker).filter(|it| is_long_enough(worker, &it.second)) else {
            continue;
        };
        looked += 1;
        match answered.first.cached_tokens.or(answered.second.cached_tokens) {
            Some(_) => told += 1,
            None => outcome.find(Finding::at(
                &worker.url,
                Code::CachedTokensHidden,
                "usage does not report cached_tokens, not even for a prompt that was just sent",
                format!(
                    "start it {}; if it already is, its prefix cache is off: start it {}",
                    worker.kind.advice(Need::CachedTokens),
                    worker.kind.advice(Need::PrefixCaching)
                ),
            )),
        }
    }
    outcome.said = match looked {
        0 => "not checked: no prompt was sent twice".to_owned(),
        _ => format!("reported by {told} of {}", workers(looked)),
    };
    outcome
}

pub(super) fn salts(fleet: &Fleet) -> Outcome {
    let mut outcome = Outcome::default();
    let mut kept = 0;
    for worker in fleet.present().filter(|it| is_off(it).is_none()) {
        let Some(answered) = answers(worker) else { continue };
        match &answered.salted {
            Salted::Unasked => {}
            Salted::Refused { status } => outcome.find(Finding::at(
                &worker.url,
                Code::SaltRefused,
                format!("answers {status} to a request with a cache_salt"),
                "update the engine to a version that supports cache_salt, or have clients send none",
            )),
            Salted::Answered(usage) if usage.cached_tokens.is_some_and(|it| it > 0) => outcome.find(Finding::at(
                &worker.url,
                Code::SaltIgnored,
                format!(
                    "found {} cached tokens of a prompt under a new cache_salt",
                    usage.cached_tokens.unwrap_or_default()
                ),
                "update the engine to a version that separates salts; until then tenants can find out from its speed what \
                 others asked, and the router takes salted prompts for cold that are not",
            )),
            // If a plain hit is not reported, a salted one proves nothing.
            Salted::Answered(_) => {
                kept += usize::from(answered.second.cached_tokens.is_some_and(|it| it > 0));
            }
        }
    }
    outcome.said = match kept + outcome.findings.len() {
        0 => "not checked".to_owned(),
        looked => format!("separated by {kept} of {}", workers(looked)),
    };
    outcome
}
