//! Which prompts go to workers that only prefill: our rule, and those of other routers to compare it with.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use maitre_base::Tokens;

use super::deflection;
use super::edpp::{self, LateSplits};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SplitRule {
    /// Splits the requests for which it is cheaper.
    #[default]
    Price,
    /// Splits every request that can be split.
    Always,
    /// Splits none.
    Never,
    /// Splits as another router does, in replays.
    Published(PublishedRule),
}

/// The rules of other routers. Each has thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishedRule {
    /// llm-d: prompts of which the decode worker lacks at least this many tokens.
    Threshold(u32),
    /// Dynamo `isl_bounding`: all prompts except those of which the decode worker lacks few tokens and a small part.
    IslBounding,
    /// Dynamo `prefill_load`: while fewer tokens than this wait at the prefill worker.
    PrefillLoad(u32),
    /// Dynamo `isl_or_load`: if both of these say so.
    IslOrLoad(u32),
    /// TensorRT-LLM: if the decode worker holds nothing, or lacks more tokens than this.
    Unmatched(u32),
    /// llm-d's research: while it shrinks the queues. The number is the TTFT deadline in milliseconds.
    Edpp(u32),
    /// If the decode worker would be later, with chunks so small that its answers wait at most this many milliseconds for
    /// a token.
    Deflection(u32),
}

/// Dynamo's defaults: a prompt stays if the worker lacks fewer tokens than this, and a smaller part of it.
const ISL_TOKENS: u64 = 2_048;
const ISL_RATIO: f64 = 0.7;

/// A request that can be split, as a rule sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prospect {
    /// What both ways cost, in seconds.
    pub here: f64,
    pub elsewhere: f64,
    pub prompt: Tokens,
    /// Tokens that the decode worker lacks.
    pub lacks: Tokens,
    /// Tokens to prefill at the prefill worker before this request's.
    pub prefill_ahead: u64,
    pub decode: DecodeSide,
    pub prefill: PrefillSide,
    /// Seconds until the KV cache has arrived.
    pub transfer: f64,
    pub late: LateSplits,
}

/// The worker that would answer, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct DecodeSide {
    /// The promised prefill there.
    pub wait: f64,
    pub requests: u32,
    /// A step with those requests, and each token prefilled in it.
    pub step: f64,
    pub step_token: f64,
    /// The part of the prompt that it lacks.
    pub prefill: f64,
}

/// The worker that would prefill, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct PrefillSide {
    pub wait: f64,
    pub prefill: f64,
}

impl SplitRule {
    /// When a first token of a split request counts as late, if the rule uses that.
    pub fn first_token_deadline(self) -> Option<Duration> {
        match self {
            SplitRule::Published(PublishedRule::Edpp(millis)) => Some(Duration::from_millis(millis.into())),
            _ => None,
        }
    }

    pub fn splits(self, prospect: &Prospect) -> bool {
        match self {
            SplitRule::Price => prospect.elsewhere < prospect.here,
            SplitRule::Always => true,
            SplitRule::Never => false,
            SplitRule::Published(rule) => rule.splits(prospect),
        }
    }
}

impl PublishedRule {
    fn splits(self, prospect: &Prospect) -> bool {
        let (prompt, lacks) = (prospect.prompt.0, prospect.lacks.0);
        let is_long = lacks >= ISL_TOKENS || lacks as f64 >= ISL_RATIO * prompt as f64;
        let is_free = |busy: u32| prospect.prefill_ahead < u64::from(busy);
        match self {
            PublishedRule::Threshold(tokens) => lacks >= u64::from(tokens),
            PublishedRule::IslBounding => is_long,
            PublishedRule::PrefillLoad(busy) => is_free(busy),
            PublishedRule::IslOrLoad(busy) => is_long && is_free(busy),
            PublishedRule::Unmatched(tokens) => lacks == prompt || lacks > u64::from(tokens),
            PublishedRule::Edpp(_) => edpp::splits(prospect),
            PublishedRule::Deflection(millis) => {
                deflection::splits(prospect, Duration::from_millis(millis.into()))
            }
        }
    }
}

impl fmt::Display for SplitRule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        use PublishedRule::{Deflection, Edpp, IslBounding, IslOrLoad, PrefillLoad, Threshold, Unmatched};
        match self {
            SplitRule::Price => out.pad("price"),
            SplitRule::Always => out.pad("always"),
            SplitRule::Never => out.pad("never"),
            SplitRule::Published(IslBounding) => out.pad("isl-bounding"),
            SplitRule::Published(Threshold(tokens)) => write!(out, "threshold-{tokens}"),
            SplitRule::Published(PrefillLoad(tokens)) => write!(out, "prefill-load-{tokens}"),
            SplitRule::Published(IslOrLoad(tokens)) => write!(out, "isl-or-load-{tokens}"),
            SplitRule::Published(Unmatched(tokens)) => write!(out, "unmatched-{tokens}"),
            SplitRule::Published(Edpp(millis)) => write!(out, "edpp-{millis}"),
            SplitRule::Published(Deflection(millis)) => write!(out, "deflection-{millis}"),
        }
    }
}

impl FromStr for SplitRule {
    type Err = String;

    fn from_str(text: &str) -> Result<SplitRule, String> {
        let numbered = text.rsplit_once('-').and_then(|(name, tokens)| Some((name, tokens.parse().ok()?)));
        Ok(match (text, numbered) {
            ("price", _) => SplitRule::Price,
            ("always", _) => SplitRule::Always,
            ("never", _) => SplitRule::Never,
            ("isl-bounding", _) => SplitRule::Published(PublishedRule::IslBounding),
            (_, Some(("threshold", tokens))) => SplitRule::Published(PublishedRule::Threshold(tokens)),
            (_, Some(("prefill-load", tokens))) => SplitRule::Published(PublishedRule::PrefillLoad(tokens)),
            (_, Some(("isl-or-load", tokens))) => SplitRule::Published(PublishedRule::IslOrLoad(tokens)),
            (_, Some(("unmatched", tokens))) => SplitRule::Published(PublishedRule::Unmatched(tokens)),
            (_, Some(("edpp", millis))) => SplitRule::Published(PublishedRule::Edpp(millis)),
            (_, Some(("deflection", millis))) => SplitRule::Published(PublishedRule::Deflection(millis)),
            _ => {
                return Err(format!(
                    "no rule is called \"{text}\"; known: price, always, never, threshold-TOKENS, isl-bounding, \
                     prefill-load-TOKENS, isl-or-load-TOKENS, unmatched-TOKENS, edpp-MILLISECONDS, \
                     deflection-MILLISECONDS"
                ));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the rule splits prompts of `(prompt, lacking, ahead at the prefill worker)` tokens.
    #[track_caller]
    fn check(rule: &str, rows: &[((u64, u64, u64), bool)]) {
        let rule: SplitRule = rule.parse().unwrap();
        for &((prompt, lacks, prefill_ahead), expected) in rows {
            let (prompt, lacks) = (Tokens(prompt), Tokens(lacks));
            let (here, elsewhere) = (1.0, 2.0);
            let prospect = Prospect { here, elsewhere, prompt, lacks, prefill_ahead, ..Prospect::default() };
            assert_eq!(rule.splits(&prospect), expected, "{rule}: {prospect:?}");
        }
    }

    #[test]
    fn each_rule_goes_by_its_own_numbers() {
        check("price", &[((9_000, 9_000, 0), false)]);
        check("threshold-512", &[((9_000, 511, 0), false), ((9_000, 512, 0), true)]);
        check(
            "isl-bounding",
            &[
                ((9_000, 2_047, 0), false),
                ((9_000, 2_048, 0), true),
                ((100, 69, 0), false),
                ((100, 70, 0), true),
            ],
        );
        check("prefill-load-1000", &[((10, 0, 999), true), ((10, 10, 1_000), false)]);
        check(
            "isl-or-load-1000",
            &[((9_000, 9_000, 999), true), ((9_000, 9_000, 1_000), false), ((9_000, 9, 0), false)],
        );
        check("unmatched-500", &[((100, 100, 0), true), ((900, 500, 0), false), ((900, 501, 0), true)]);
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in [
            "price",
            "always",
            "never",
            "isl-bounding",
            "threshold-16",
            "prefill-load-9",
            "isl-or-load-9",
            "unmatched-0",
            "edpp-1000",
            "deflection-50",
        ] {
            assert_eq!(name.parse::<SplitRule>().unwrap().to_string(), name);
        }
        for name in ["", "threshold", "threshold-", "threshold--1", "Price"] {
            assert!(name.parse::<SplitRule>().unwrap_err().contains("threshold-TOKENS"), "{name}");
        }
    }
}
