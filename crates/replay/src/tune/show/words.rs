//! The result of a search as text and tables.

use std::fmt::Write as _;

use maitre_config::Config;
use maitre_sim::report::ReportRow;

use super::{Best, Report};
use crate::table::counted;
use crate::tune::count::Found;
use crate::tune::dials::{self, Setting};
use crate::tune::mix::RoleMix;
use crate::tune::player::{Trial, Tried};
use crate::tune::search::{MixFound, Quest, Turned};
use crate::tune::target::Field;
use crate::tune::traffic::WHOLE;
use crate::{knowledge_word, queue_word};

pub(super) fn draw(report: &Report<'_>) -> String {
    let mut text = title(report);
    text.push_str(&runs(report));
    text.push('\n');
    for quest in report.quests {
        text.push_str(&remarks(report, quest));
    }
    if report.quests.len() > 1 {
        text.push_str(&ranking(report));
    }
    match report.best() {
        Some(best) => text.push_str(&answer(report, best)),
        None => text.push_str(&regret(report)),
    }
    text
}

fn targets(report: &Report<'_>) -> String {
    let targets: Vec<String> = report.asked.goal.targets.iter().map(ToString::to_string).collect();
    targets.join(", ")
}

fn title(report: &Report<'_>) -> String {
    let (asked, study) = (report.asked, &report.asked.study);
    let trace = &report.split.traffics[WHOLE].trace;
    let faster = match asked.speed {
        1.0 => String::new(),
        speed => format!(" ({speed} times as fast as the trace)"),
    };
    format!(
        "{}: {} in {:.0} s{faster}; {} to {} workers ({}, {} KV tokens); {} caches; queue {}\n\
         Target: {}. Objective of knobs: {}.\n\n",
        study.source,
        counted(trace.requests.len(), "request"),
        trace.span().as_secs_f64(),
        asked.span.min,
        asked.span.max,
        report.player.profile.name,
        report.player.profile.kv_tokens(),
        knowledge_word(study.knowledge),
        queue_word(study),
        targets(report),
        asked.goal.objective.name,
    )
}

/// The numbers that matter: those with targets, and the objective.
fn fields(report: &Report<'_>) -> Vec<&'static Field> {
    let goal = &report.asked.goal;
    let mut fields: Vec<&'static Field> = Vec::new();
    for field in goal.targets.iter().map(|it| it.field).chain([goal.objective]) {
        if !fields.contains(&field) {
            fields.push(field);
        }
    }
    fields
}

/// One line per run.
fn runs(report: &Report<'_>) -> String {
    let fields = fields(report);
    let head = ["strategy", "workers", "traffic"].into_iter().chain(fields.iter().map(|it| it.name));
    let mut lines: Vec<Vec<String>> =
        vec![head.chain(["lost", "target", "knobs"]).map(str::to_owned).collect()];
    for quest in report.quests {
        let own = report.player.tried.iter().filter(|it| it.trial.name == quest.name);
        lines.extend(own.map(|it| run(report, (quest, it), &fields)));
    }
    align(&lines)
}

fn run(report: &Report<'_>, (quest, tried): (&Quest, &Tried), fields: &[&Field]) -> Vec<String> {
    let (trial, row) = (&tried.trial, &tried.row);
    let mut line = vec![
        trial.name.to_string(),
        trial.mix.show(trial.workers).to_string(),
        report.split.traffics[trial.traffic].what.clone(),
    ];
    line.extend(fields.iter().map(|it| it.show(it.of(row))));
    line.push((row.refused + row.failed).to_string());
    line.push(if report.asked.goal.is_met(row) { "met" } else { "missed" }.to_owned());
    line.push(knobs(&dials::differing(&trial.settings, &quest.start)));
    line
}

/// The key without its section, which is the strategy's.
fn knobs(settings: &[&Setting]) -> String {
    let short = |it: &&Setting| format!("{}={}", it.key.rsplit('.').next().unwrap_or(it.key), it.value);
    settings.iter().map(short).collect::<Vec<_>>().join(" ")
}

/// Names are aligned left and numbers right. Knobs are aligned left: they have any length.
fn align(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|it| it[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        for (place, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            let _ = match place {
                0 => write!(text, "{cell:<width$}"),
                _ if place + 1 == columns => write!(text, "  {cell}"),
                _ => write!(text, "  {cell:>width$}"),
            };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// Notes on one strategy: whether its boundary is regular, and what its knobs gain.
fn remarks(report: &Report<'_>, quest: &Quest) -> String {
    let name = quest.name;
    let mut text = wobble(name.as_str(), quest.answer().1);
    match &quest.turned {
        Some(it) => text.push_str(&turned(report, quest, it)),
        None if dials::of(name).is_empty() => text.push_str(&format!("{name} has no knobs to turn.\n")),
        None if report.asked.runs == 0 => text.push_str(&format!("{name}: knobs left alone (--runs 0).\n")),
        None => {
            text.push_str(&format!("{name}: no change of its knobs that was tried gains more than 1 %.\n"));
        }
    }
    if report.asked.seeks_roles {
        text.push_str(&match &quest.mixed {
            Some(it) => mixed(report, quest, it),
            None => format!("{name}: one worker has no roles to find.\n"),
        });
    }
    text
}

/// What the best mix of roles gains over a fleet without roles.
fn mixed(report: &Report<'_>, quest: &Quest, mixed: &MixFound) -> String {
    let objective = report.asked.goal.objective;
    let mut text = format!(
        "{}: best roles of {} workers: {}\n",
        quest.name,
        mixed.workers,
        mixed.mix.show(mixed.workers)
    );
    for (proof, seen) in [(&mixed.shown, "where they were found")]
        .into_iter()
        .chain(mixed.proofs.iter().map(|it| (it, "not seen before")))
    {
        let [before, after] = [proof.before, proof.after].map(|it| objective.show(it));
        let what = &report.split.traffics[proof.traffic].what;
        let gain = if proof.holds { "a gain" } else { "no gain" };
        let _ = writeln!(
            text,
            "  on {what}, {seen}: {} {before} without roles, {after} with: {gain}",
            objective.name
        );
    }
    text.push_str(match mixed.holds() {
        false if !mixed.shown.holds => {
            "  Do not split this fleet: no mix of roles that was played is better.\n"
        }
        false => "  Do not split this fleet: the gain does not hold on other traffic.\n",
        true if quest.mixed().is_none() => {
            "  With them the target is missed on the whole trace: do not split this fleet.\n"
        }
        true => "  Splitting pays.\n",
    });
    text
}

fn wobble(name: &str, found: Found) -> String {
    match (found.workers, found.steady) {
        (Some(least), Some(steady)) if steady > least => format!(
            "{name}: {least} workers are enough, but some larger fleets are not; from {steady} on all that were \
             played are. Chance decides in between.\n"
        ),
        (Some(least), None) => format!("{name}: {least} workers are enough, but the most are not.\n"),
        _ => String::new(),
    }
}

fn turned(report: &Report<'_>, quest: &Quest, turned: &Turned) -> String {
    let objective = report.asked.goal.objective;
    let changes = knobs(&dials::differing(&turned.settings, &quest.start));
    let mut text = format!(
        "{}: better knobs for {} with {} workers: {changes}\n",
        quest.name, objective.name, turned.workers
    );
    let shown = |settings: &[Setting]| {
        let (workers, traffic) = (turned.workers, report.split.shown);
        let (mix, settings) = (RoleMix::NONE, settings.to_vec());
        let trial = Trial { name: quest.name, workers, mix, settings, traffic };
        report.player.row(&trial).map_or_else(String::new, |it| objective.show(objective.of(it)))
    };
    let what = |traffic: usize| &report.split.traffics[traffic].what;
    let _ = writeln!(
        text,
        "  on {}, where they were found: {} before, {} after",
        what(report.split.shown),
        shown(&quest.start),
        shown(&turned.settings)
    );
    for proof in &turned.proofs {
        let [before, after] = [proof.before, proof.after].map(|it| objective.show(it));
        let holds = if proof.holds { "the gain holds" } else { "no gain" };
        let _ = writeln!(
            text,
            "  on {}, not seen before: {before} before, {after} after: {holds}",
            what(proof.traffic)
        );
    }
    text.push_str(&verdict(quest, turned));
    text
}

fn verdict(quest: &Quest, turned: &Turned) -> String {
    if !turned.holds() {
        let why = "they fit that traffic, not traffic in general, and are left as they were";
        return format!("  The gain does not hold: {why}.\n");
    }
    match (turned.found.and_then(|it| it.workers), quest.plain.workers) {
        (None, None) => "  With them the target is still missed.\n".to_owned(),
        (None, _) => {
            "  With them the target is missed on the whole trace; they are left as they were.\n".to_owned()
        }
        (Some(now), Some(before)) if now < before => {
            format!("  With them {now} workers are enough, not {before}.\n")
        }
        (Some(now), None) => format!("  With them {now} workers are enough; without, none were.\n"),
        (Some(now), Some(_)) => format!("  It takes {now} workers with them as well.\n"),
    }
}

/// Strategies by the workers they need.
fn ranking(report: &Report<'_>) -> String {
    let objective = report.asked.goal.objective;
    let mut ranks: Vec<(Option<Best<'_>>, &str)> =
        report.quests.iter().map(|it| (report.rank(it), it.name.as_str())).collect();
    ranks.sort_by(|(one, _), (other, _)| match (one, other) {
        (Some(one), Some(other)) => {
            let cost = |it: &Best<'_>| report.asked.goal.cost(it.row);
            one.workers.cmp(&other.workers).then(cost(one).total_cmp(&cost(other)))
        }
        (one, other) => other.is_some().cmp(&one.is_some()),
    });
    let line = |(best, name): &(Option<Best<'_>>, &str)| match best {
        Some(it) => {
            let knobs = knobs(&dials::differing(it.quest.answer().0, &it.quest.start));
            vec![(*name).to_owned(), it.workers.to_string(), objective.show(objective.of(it.row)), knobs]
        }
        None => {
            vec![(*name).to_owned(), format!("over {}", report.asked.span.max), String::new(), String::new()]
        }
    };
    let head = ["strategy", "workers", objective.name, "knobs"].map(str::to_owned).to_vec();
    let lines: Vec<Vec<String>> = [head].into_iter().chain(ranks.iter().map(line)).collect();
    format!("\n{}", align(&lines))
}

fn numbers(report: &Report<'_>, row: &ReportRow) -> String {
    let of = |it: &&Field| format!("{} {}", it.name, it.show(it.of(row)));
    let known: Vec<String> = fields(report).iter().map(of).collect();
    format!("{}, hit {:.3}, lost {}", known.join(", "), row.hit_ratio, row.refused + row.failed)
}

fn answer(report: &Report<'_>, best: Best<'_>) -> String {
    let Best { quest, workers, row } = best;
    let mut text =
        format!("\nSmallest fleet: {workers} × {} with {}\n", report.player.profile.name, quest.name);
    let mix = quest.mix(workers);
    if !mix.is_none() {
        let _ = writeln!(text, "  roles: {}", mix.show(workers));
    }
    let _ = writeln!(text, "  with {workers}: {}", numbers(report, row));
    let _ = match report.fewer(best) {
        Some(row) => writeln!(text, "  with {}: {}: missed", workers - 1, numbers(report, row)),
        None => writeln!(text, "  with fewer: not tried, --workers begins there"),
    };
    for (what, row) in report.fresh(best) {
        let met = if report.asked.goal.is_met(row) { "met" } else { "missed: leave some room" };
        let _ = writeln!(text, "  with {workers} on {what}: {}: {met}", numbers(report, row));
    }
    text + "\nConfig:\n\n" + &report.config(best)
}

fn regret(report: &Report<'_>) -> String {
    let (span, profile) = (report.asked.span, report.player.profile.name);
    let mut text =
        format!("\nNo fleet of {} to {} × {profile} keeps {}.\n", span.min, span.max, targets(report));
    if let Some(tried) = report.nearest() {
        let Tried { trial, row } = tried;
        let (numbers, Trial { name, workers, mix, settings, .. }) = (numbers(report, row), trial);
        let defaults = dials::settings(*name, &Config::default());
        let knobs = match dials::differing(settings, &defaults).as_slice() {
            [] => String::new(),
            changed => format!(" ({})", knobs(changed)),
        };
        let roles = match mix.is_none() {
            true => String::new(),
            false => format!(" as {}", mix.show(*workers)),
        };
        let _ = writeln!(text, "Nearest: {workers} × {profile}{roles} with {name}{knobs}: {numbers}");
        text.push_str(&plateau(report, tried));
    }
    text
}

/// Doubling the workers must reduce the miss to this part; otherwise workers are not what is missing. Chosen.
const PLATEAU: f64 = 0.9;

/// A note if more workers would hardly help: they do not shorten a prefill on an idle worker.
fn plateau(report: &Report<'_>, nearest: &Tried) -> String {
    let half = Trial { workers: nearest.trial.workers / 2, ..nearest.trial.clone() };
    let Some(row) = report.player.row(&half) else { return String::new() };
    let [before, after] = [row, &nearest.row].map(|it| report.asked.goal.reach(it));
    if after < before * PLATEAU {
        return String::new();
    }
    let numbers = numbers(report, row);
    format!("With {}: {numbers}. More workers hardly help; faster ones would.\n", half.workers)
}
