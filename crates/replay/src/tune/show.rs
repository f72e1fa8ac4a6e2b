//! The result of a search, as text and as JSON.

mod words;

use maitre_sim::report::ReportRow;
use serde_json::{Map, Value, json};

use super::Asked;
use super::dials::{self, Setting};
use super::mix::RoleMix;
use super::player::{Player, Trial, Tried};
use super::search::{MixFound, Proof, Quest};
use super::traffic::{Split, WHOLE};
use crate::{knowledge_word, queue_word};

pub(super) struct Report<'a> {
    asked: &'a Asked,
    split: &'a Split,
    player: &'a Player<'a>,
    quests: &'a [Quest],
}

/// The best strategy.
#[derive(Clone, Copy)]
struct Best<'a> {
    quest: &'a Quest,
    workers: u32,
    row: &'a ReportRow,
}

impl<'a> Report<'a> {
    pub(super) fn new(
        asked: &'a Asked,
        split: &'a Split,
        player: &'a Player<'a>,
        quests: &'a [Quest],
    ) -> Report<'a> {
        Report { asked, split, player, quests }
    }

    pub(super) fn is_found(&self) -> bool {
        self.best().is_some()
    }

    pub(super) fn text(&self) -> String {
        words::draw(self)
    }

    /// The fewest workers; among equals the better objective.
    fn best(&self) -> Option<Best<'a>> {
        let ranks = self.quests.iter().filter_map(|it| self.rank(it));
        ranks.min_by(|one, other| {
            let cost = |it: &Best<'_>| self.asked.goal.cost(it.row);
            one.workers.cmp(&other.workers).then(cost(one).total_cmp(&cost(other)))
        })
    }

    /// A strategy with its smallest fleet; none if it has none.
    fn rank(&self, quest: &'a Quest) -> Option<Best<'a>> {
        let workers = quest.answer().1.workers?;
        Some(Best { quest, workers, row: self.player.row(&quest.trial(workers))? })
    }

    /// The run with one worker fewer than the best; none below the allowed minimum.
    fn fewer(&self, best: Best<'_>) -> Option<&'a ReportRow> {
        self.player.row(&best.quest.trial(best.workers.checked_sub(1)?))
    }

    /// The best strategy on other traffic of the same kind.
    fn fresh(&self, best: Best<'_>) -> Vec<(&'a str, &'a ReportRow)> {
        let row = |&it: &usize| {
            let row = self.player.row(&best.quest.trial_on(it, best.workers))?;
            Some((self.split.traffics[it].what.as_str(), row))
        };
        self.split.fresh.iter().filter_map(row).collect()
    }

    /// The run of the whole trace that misses its targets by least.
    fn nearest(&self) -> Option<&'a Tried> {
        let whole = self.player.tried.iter().filter(|it| it.trial.traffic == WHOLE);
        whole.min_by(|one, other| {
            let reach = |it: &Tried| self.asked.goal.reach(&it.row);
            reach(one).total_cmp(&reach(other)).then(one.trial.workers.cmp(&other.trial.workers))
        })
    }

    /// Lines for a config file.
    fn config(&self, best: Best<'_>) -> String {
        let text = dials::toml(best.quest.name, best.quest.answer().0, &self.asked.study.config);
        let mix = best.quest.mix(best.workers);
        if mix.is_none() { text } else { text + &workers_toml(mix, best.workers) }
    }

    /// All runs, strategy by strategy.
    fn tried(&self) -> Vec<&'a Tried> {
        let of = |quest: &'a Quest| self.player.tried.iter().filter(|it| it.trial.name == quest.name);
        self.quests.iter().flat_map(of).collect()
    }

    pub(super) fn json(&self) -> Value {
        let (asked, study) = (self.asked, &self.asked.study);
        let best = self.best();
        json!({
            "trace": {
                "source": study.source,
                "requests": study.trace.requests.len(),
                "seconds": self.split.traffics[WHOLE].trace.span().as_secs_f64(),
                "speed": asked.speed,
                "seed": study.seed,
            },
            "profile": self.player.profile.name,
            "kv_tokens": self.player.profile.kv_tokens(),
            "block_tokens": study.block_tokens,
            "knowledge": knowledge_word(study.knowledge),
            "queue": queue_word(study),
            "routers": study.routers,
            "workers": {"min": asked.span.min, "max": asked.span.max},
            "targets": asked.goal.targets.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "objective": asked.goal.objective.name,
            "tried": self.tried().iter().map(|it| self.tried_json(it)).collect::<Vec<_>>(),
            "strategies": self.quests.iter().map(|it| self.quest_json(it)).collect::<Vec<_>>(),
            "best": best.map(|it| self.best_json(it)),
            "nearest": match best {
                Some(_) => None,
                None => self.nearest().map(|it| self.tried_json(it)),
            },
        })
    }

    fn tried_json(&self, Tried { trial, row }: &Tried) -> Value {
        let Trial { name, workers, mix, settings, traffic } = trial;
        json!({
            "strategy": name.as_str(),
            "workers": workers,
            "roles": mix_json(*mix, *workers),
            "knobs": knobs_json(settings),
            "traffic": self.split.traffics[*traffic].what,
            "met": self.asked.goal.is_met(row),
            "row": row,
        })
    }

    fn quest_json(&self, quest: &Quest) -> Value {
        let (settings, found) = quest.answer();
        let turned = quest.turned.as_ref().map(|it| {
            json!({
                "knobs": knobs_json(&it.settings),
                "workers": it.workers,
                "proofs": it.proofs.iter().map(|it| self.proof_json(it)).collect::<Vec<_>>(),
                "holds": it.holds(),
                "enough": it.found.and_then(|it| it.workers),
            })
        });
        json!({
            "strategy": quest.name.as_str(),
            "workers": found.workers,
            "steady_from": found.steady,
            "knobs": knobs_json(settings),
            "untuned": {"workers": quest.plain.workers, "knobs": knobs_json(&quest.start)},
            "tuned": turned,
            "roles": quest.mixed.as_ref().map(|it| self.mixed_json(it)),
        })
    }

    fn mixed_json(&self, mixed: &MixFound) -> Value {
        json!({
            "best": mix_json(mixed.mix, mixed.workers),
            "workers": mixed.workers,
            "shown": self.proof_json(&mixed.shown),
            "proofs": mixed.proofs.iter().map(|it| self.proof_json(it)).collect::<Vec<_>>(),
            "holds": mixed.holds(),
            "enough": mixed.found.and_then(|it| it.workers),
        })
    }

    fn proof_json(&self, proof: &Proof) -> Value {
        let what = &self.split.traffics[proof.traffic].what;
        json!({"traffic": what, "before": proof.before, "after": proof.after, "holds": proof.holds})
    }

    fn best_json(&self, best: Best<'_>) -> Value {
        json!({
            "strategy": best.quest.name.as_str(),
            "workers": best.workers,
            "roles": mix_json(best.quest.mix(best.workers), best.workers),
            "knobs": knobs_json(best.quest.answer().0),
            "row": best.row,
            "one_fewer": self.fewer(best),
            "elsewhere": self.fresh(best).iter().map(|&(what, row)| {
                json!({"traffic": what, "met": self.asked.goal.is_met(row), "row": row})
            }).collect::<Vec<_>>(),
            "config": self.config(best),
        })
    }
}

/// A list of workers that has these roles, as a comment: only the operator knows the addresses.
fn workers_toml(mix: RoleMix, workers: u32) -> String {
    let part = |(count, role): (u32, &str)| (count > 0).then(|| format!("{count} with {role}"));
    let counts =
        [(mix.prefill, "?role=prefill"), (mix.decode, "?role=decode"), (mix.both(workers), "no role")];
    let parts: Vec<String> = counts.into_iter().filter_map(part).collect();
    format!("# workers: {}\n", parts.join(", "))
}

/// Null without roles.
fn mix_json(mix: RoleMix, workers: u32) -> Value {
    if mix.is_none() {
        return Value::Null;
    }
    json!({"prefill": mix.prefill, "decode": mix.decode, "both": mix.both(workers)})
}

fn knobs_json(settings: &[Setting]) -> Value {
    let number = |text: &str| text.parse::<f64>().map_or(Value::Null, Value::from);
    let pairs = settings.iter().map(|it| (it.key.to_owned(), number(&it.value)));
    Value::Object(pairs.collect::<Map<String, Value>>())
}
