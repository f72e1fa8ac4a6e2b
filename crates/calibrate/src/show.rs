//! What a calibration found, as a table for people and as the comment of the profile's file.

use std::fmt::Write as _;

use maitre_sim::profile::Profile;

use crate::facts::{EngineFacts, Fact, FactSource};
use crate::fit::RepeatSeen;
use crate::held_out::{Agreement, agreement, hit_ratio};
use crate::session::Calibration;

/// Which engine was measured.
pub(crate) struct Subject<'a> {
    pub(crate) address: &'a str,
    pub(crate) model: &'a str,
    pub(crate) facts: &'a EngineFacts,
}

/// Errors of a quiet engine stay below this.
const DISTURBED: f64 = 0.2;

/// The whole report.
pub(crate) fn report(subject: &Subject<'_>, found: &Calibration) -> String {
    let mut text = format!("{}\n\n", title(subject));
    sizes(&mut text, found);
    constants(&mut text, &found.profile);
    let fit = &found.fit;
    let _ = writeln!(
        text,
        "\nFitted to {} first tokens and {} decode windows: half within {:.1} %, nine tenths within {:.1} %.",
        found.measured.firsts.len(),
        found.measured.windows.len(),
        fit.error_half * 100.0,
        fit.error_most * 100.0
    );
    if fit.error_most > DISTURBED {
        let _ = writeln!(
            text,
            "Equal requests took unequal times: something else uses this engine or its machine. Measure again when it is idle."
        );
    }
    if found.skipped > 0 {
        let _ = writeln!(text, "No time for {} of the plan's rounds; give more with --time.", found.skipped);
    }
    held_out(&mut text, found);
    cache(&mut text, subject, found);
    text
}

/// What the file says of itself.
pub(crate) fn comment(subject: &Subject<'_>, found: &Calibration) -> String {
    let mut text = format!("Written by maitre calibrate. {}.\n", title(subject));
    for (name, compared) in [("single prompts", &found.singles), ("mixed traffic", &found.mixed)] {
        if let Some(first) = agreement(compared, |it| it.first) {
            let _ = writeln!(
                text,
                "Mean TTFT error on {} requests that were not fitted ({name}): {:+.1} %.",
                first.requests,
                first.mean.error() * 100.0
            );
        }
    }
    text
}

fn title(subject: &Subject<'_>) -> String {
    let version = subject.facts.version.as_deref().unwrap_or("unknown engine");
    format!("{}: model {}, {version}", subject.address, subject.model)
}

fn sizes(text: &mut String, found: &Calibration) {
    let (sizes, measured) = (&found.sizes, &found.measured);
    let kv_blocks = Fact { value: found.profile.kv_blocks.into(), source: sizes.kv_tokens.source };
    let budget = match (sizes.batch_tokens_max.source, found.fit.batch_tokens) {
        (FactSource::Measured, Some(tokens)) => format!("{tokens:.0} in a full step"),
        (FactSource::Assumed, _) if measured.joined_tokens_max == 0 => "no probe showed it".to_owned(),
        (FactSource::Assumed, _) => {
            format!("not reached by {} prompt tokens at once", measured.joined_tokens_max)
        }
        _ => String::new(),
    };
    let running = match sizes.running_max.source {
        FactSource::Assumed => format!("not reached by {} requests at once", measured.width_max),
        _ => String::new(),
    };
    let rows = [
        ("block_tokens", sizes.block_tokens, String::new()),
        ("kv_blocks", kv_blocks, format!("{} tokens", found.profile.kv_tokens())),
        ("batch_tokens_max", sizes.batch_tokens_max, budget),
        ("running_max", sizes.running_max, running),
        ("context_tokens_max", sizes.context_tokens_max, String::new()),
    ];
    for (name, fact, note) in rows {
        let _ = writeln!(
            text,
            "{}",
            format!("{name:<22}{:>12}  {:<13}{note}", fact.value, fact.source).trim_end()
        );
    }
}

fn constants(text: &mut String, profile: &Profile) {
    let step = &profile.step;
    let rows = [
        ("overhead_ms", profile.overhead.as_secs_f64() * 1e3, "each request, outside the steps"),
        ("floor_ms", step.floor_ms, "each step"),
        ("prefill_token_ms", step.prefill_token_ms, "each prompt token"),
        ("attended_token_ms", step.attended_token_ms, "each pair of tokens in a prompt"),
        ("context_token_ms", step.context_token_ms, "each KV token that a decoding sequence reads"),
        ("decode_sequence_ms", step.decode_sequence_ms, "each decoding sequence"),
    ];
    for (name, value, what) in rows {
        let _ = writeln!(text, "{name:<22}{:>12}  fitted       {what}", digits(value));
    }
}

/// Four digits, however small.
fn digits(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value >= 0.001 => {
            let places = (3 - value.log10().floor() as i32).clamp(0, 6) as usize;
            format!("{value:.places$}")
        }
        value => format!("{value:.3e}"),
    }
}

fn held_out(text: &mut String, found: &Calibration) {
    let _ = writeln!(
        text,
        "\n{:<34}{:>9}{:>12}{:>12}{:>9}{:>9}{:>14}",
        "Not fitted", "requests", "mean seen", "predicted", "error", "p90", "half within"
    );
    for (name, compared) in [("single prompts", &found.singles), ("mixed traffic", &found.mixed)] {
        for (field, agreed) in
            [("TTFT", agreement(compared, |it| it.first)), ("end to end", agreement(compared, |it| it.total))]
        {
            if let Some(agreed) = agreed {
                row(text, &format!("{name}, {field}"), &agreed);
            }
        }
    }
    if let Some(hits) = hit_ratio(&found.mixed) {
        let _ = writeln!(
            text,
            "{:<43}{:>12.3}{:>12.3}{:>+9.3}",
            "mixed traffic, hit ratio",
            hits.seen,
            hits.predicted,
            hits.predicted - hits.seen
        );
    }
}

fn row(text: &mut String, name: &str, agreed: &Agreement) {
    let _ = writeln!(
        text,
        "{name:<34}{:>9}{:>12}{:>12}{:>9}{:>9}{:>14}",
        agreed.requests,
        span(agreed.mean.seen),
        span(agreed.mean.predicted),
        percent(agreed.mean.error()),
        percent(agreed.p90.error()),
        format!("{:.1} %", agreed.error_half * 100.0)
    );
}

fn percent(part: f64) -> String {
    format!("{:+.1} %", part * 100.0)
}

fn span(millis: f64) -> String {
    match millis {
        millis if millis < 1_000.0 => format!("{millis:.1} ms"),
        millis => format!("{:.2} s", millis / 1e3),
    }
}

fn cache(text: &mut String, subject: &Subject<'_>, found: &Calibration) {
    let Some(repeat) = found.measured.repeats.iter().max_by_key(|it| it.prompt_tokens) else { return };
    let cached = repeat.cached_tokens.map(|it| format!("found {it} of its tokens, "));
    let _ = writeln!(
        text,
        "\nA repeated prompt of {} tokens: {}first token after {} instead of {}.",
        repeat.prompt_tokens,
        cached.unwrap_or_default(),
        span(repeat.again_ms),
        span(repeat.first_ms)
    );
    if subject.facts.prefix_caching == Some(false) || !is_cached(found, &found.measured.repeats) {
        let _ = writeln!(
            text,
            "The engine does not cache prefixes; a replay with this profile would hit where it does not."
        );
    }
}

fn is_cached(found: &Calibration, repeats: &[RepeatSeen]) -> bool {
    // A prompt shorter than a block is never cached.
    let long = |tokens: u32| tokens > found.profile.block_tokens;
    let mut tried = repeats.iter().filter(|it| long(it.prompt_tokens)).peekable();
    let found = |it: &RepeatSeen| match it.cached_tokens {
        Some(cached) => cached > 0,
        None => it.again_ms < 0.8 * it.first_ms,
    };
    tried.peek().is_none() || tried.any(found)
}
