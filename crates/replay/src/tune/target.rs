//! A target that a fleet must meet: `ttft_p99<2s`, or in words, "p99 TTFT under 2 s".
//!
//! One rule parses both forms: the words of a field in any order, the side of the limit, the limit with its
//! unit. Anything else is an error that lists the accepted forms.

use std::fmt;
use std::str::FromStr;

use maitre_sim::report::ReportRow;

/// A number of a row that a target can use.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    unit: Unit,
    value: fn(&ReportRow) -> f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Seconds,
    /// From zero to one; the only unit where more is better.
    Ratio,
    Requests,
}

static FIELDS: [Field; 10] = [
    field("ttft_mean", Unit::Seconds, |it| it.ttft_mean_s),
    field("ttft_p50", Unit::Seconds, |it| it.ttft_p50_s),
    field("ttft_p90", Unit::Seconds, |it| it.ttft_p90_s),
    field("ttft_p99", Unit::Seconds, |it| it.ttft_p99_s),
    field("tpot_mean", Unit::Seconds, |it| it.tpot_mean_s),
    field("tpot_p99", Unit::Seconds, |it| it.tpot_p99_s),
    field("e2e_mean", Unit::Seconds, |it| it.e2e_mean_s),
    field("e2e_p99", Unit::Seconds, |it| it.e2e_p99_s),
    field("goodput_ratio", Unit::Ratio, |it| it.goodput_ratio),
    field("refused", Unit::Requests, |it| lost(it) as f64),
];

const fn field(name: &'static str, unit: Unit, value: fn(&ReportRow) -> f64) -> Field {
    Field { name, unit, value }
}

/// Refused or broken off, as the column `refused` of a replay counts them.
fn lost(row: &ReportRow) -> u64 {
    row.refused + row.failed
}

impl PartialEq for Field {
    fn eq(&self, other: &Field) -> bool {
        self.name == other.name
    }
}

impl Field {
    pub(super) fn of(&self, row: &ReportRow) -> f64 {
        (self.value)(row)
    }

    /// Lower is better.
    fn cost(&self, row: &ReportRow) -> f64 {
        match self.unit {
            Unit::Ratio => 1.0 - self.of(row),
            Unit::Seconds | Unit::Requests => self.of(row),
        }
    }

    pub(super) fn show(&self, value: f64) -> String {
        match self.unit {
            Unit::Ratio => format!("{value:.4}"),
            Unit::Requests => format!("{value:.0}"),
            Unit::Seconds if value >= 99.95 => format!("{value:.0} s"),
            Unit::Seconds if value >= 9.995 => format!("{value:.1} s"),
            Unit::Seconds if value >= 0.995 => format!("{value:.2} s"),
            Unit::Seconds if value >= 0.0995 => format!("{:.0} ms", value * 1e3),
            Unit::Seconds => format!("{:.1} ms", value * 1e3),
        }
    }

    fn sign(&self) -> char {
        if self.unit == Unit::Ratio { '>' } else { '<' }
    }

    fn has_words(&self, words: &[&str]) -> bool {
        // Goodput has only one number, so its last word may be left out.
        if words == ["goodput"] {
            return self.name == "goodput_ratio";
        }
        let own: Vec<&str> = self.name.split('_').collect();
        own.len() == words.len() && own.iter().all(|it| words.contains(it))
    }
}

/// A field by its name, for the objective.
pub(super) fn find(name: &str) -> Result<&'static Field, String> {
    let found = FIELDS.iter().find(|it| it.name == name);
    found.ok_or_else(|| format!("{name:?} is none of {}", names()))
}

fn names() -> String {
    FIELDS.iter().map(|it| it.name).collect::<Vec<_>>().join(", ")
}

/// A field and the limit it must stay within.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Target {
    pub(super) field: &'static Field,
    pub(super) limit: f64,
}

impl Target {
    pub(super) fn is_met(&self, row: &ReportRow) -> bool {
        match self.field.unit {
            Unit::Ratio => self.field.of(row) > self.limit,
            Unit::Seconds | Unit::Requests => self.field.of(row) < self.limit,
        }
    }

    /// How many times over its limit a row is; below one if it is within the limit.
    fn reach(&self, row: &ReportRow) -> f64 {
        match self.field.unit {
            Unit::Ratio => self.limit / self.field.of(row),
            Unit::Seconds | Unit::Requests => self.field.of(row) / self.limit,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, unit) = match self.field.unit {
            // In whole microseconds: 0.08 s are 80 ms.
            Unit::Seconds if self.limit < 1.0 => ((self.limit * 1e6).round() / 1e3, "ms"),
            Unit::Seconds => (self.limit, "s"),
            Unit::Ratio | Unit::Requests => (self.limit, ""),
        };
        write!(f, "{}{}{limit}{unit}", self.field.name, self.field.sign())
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        read(text).map_err(|wrong| {
            format!(
                "{wrong}; write FIELD<LIMIT or FIELD>LIMIT, as in ttft_p99<2s, tpot_mean<80ms, \
                 goodput_ratio>0.99, refused<1, or \"p99 TTFT under 2 s\"; fields: {}",
                names()
            )
        })
    }
}

fn read(text: &str) -> Result<Target, String> {
    let spaced = text.to_lowercase().replace('_', " ").replace('<', " < ").replace('>', " > ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let (place, sign) = words
        .iter()
        .enumerate()
        .find_map(|(place, word)| Some((place, sign(word)?)))
        .ok_or_else(|| format!("{text:?} has no limit"))?;
    let (name, value) = (&words[..place], words[place + 1..].concat());
    let field = FIELDS
        .iter()
        .find(|it| it.has_words(name))
        .ok_or_else(|| format!("{:?} in {text:?} is not a field", name.join(" ")))?;
    if field.sign() != sign {
        return Err(format!("{} can only be asked to be {} something", field.name, field.sign()));
    }
    Ok(Target { field, limit: limit(field, &value)? })
}

fn sign(word: &str) -> Option<char> {
    match word {
        "<" | "under" | "below" => Some('<'),
        ">" | "over" | "above" => Some('>'),
        _ => None,
    }
}

fn limit(field: &Field, text: &str) -> Result<f64, String> {
    let end = text.find(|it: char| !it.is_ascii_digit() && it != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().map_err(|_| format!("{text:?} is not a limit"))?;
    let limit = match (field.unit, unit) {
        (Unit::Seconds, "ms") => number / 1e3,
        (Unit::Seconds, "s") | (Unit::Ratio | Unit::Requests, "") => number,
        (Unit::Seconds, "m") => number * 60.0,
        (Unit::Seconds, "") => {
            return Err(format!("{text:?} has no unit; write \"{text}s\" or \"{text}ms\""));
        }
        (Unit::Ratio, "%") => number / 100.0,
        _ => return Err(format!("{} is not counted in {unit:?}", field.name)),
    };
    match field.unit {
        Unit::Ratio if !(limit > 0.0 && limit < 1.0) => {
            Err(format!("{text:?} is out of range; between 0 and 1 is possible"))
        }
        _ if limit > 0.0 => Ok(limit),
        _ => Err(format!("nothing is less than {text:?}")),
    }
}

/// The share of requests that may be lost if no target limits it. Rows summarise answered requests, so a
/// fleet that refuses most requests would look fast. Chosen: what a p99 does not see either.
const LOST_MAX: f64 = 0.01;

/// Minimum relative gain of a change of knobs: less is noise.
const GAIN_MIN: f64 = 0.01;

/// All targets of a fleet, and the objective to improve once they are met.
#[derive(Clone, Debug)]
pub(super) struct Goal {
    pub(super) targets: Vec<Target>,
    pub(super) objective: &'static Field,
}

impl Goal {
    pub(super) fn is_met(&self, row: &ReportRow) -> bool {
        row.requests > 0 && self.targets.iter().all(|it| it.is_met(row)) && self.lost(row) <= 1.0
    }

    /// How many times over its limit the worst target is; at most one if all are met.
    pub(super) fn reach(&self, row: &ReportRow) -> f64 {
        if row.requests == 0 {
            return f64::INFINITY;
        }
        self.targets.iter().map(|it| it.reach(row)).fold(self.lost(row), f64::max)
    }

    /// Lost requests, relative to the allowed number.
    fn lost(&self, row: &ReportRow) -> f64 {
        if self.targets.iter().any(|it| it.field.unit == Unit::Requests) {
            return 0.0;
        }
        let lost = lost(row) as f64;
        lost / ((row.requests as f64 + lost) * LOST_MAX).max(1e-9)
    }

    pub(super) fn cost(&self, row: &ReportRow) -> f64 {
        self.objective.cost(row)
    }

    /// Whether `to` is better than `from` by more than noise. Targets come first: no gain makes up for a
    /// target that is missed by more than before.
    pub(super) fn is_gain(&self, from: &ReportRow, to: &ReportRow) -> bool {
        let [before, after] = [from, to].map(|it| self.reach(it).max(1.0));
        if after < before * (1.0 - GAIN_MIN) {
            return true;
        }
        after <= before && self.cost(to) < self.cost(from) * (1.0 - GAIN_MIN)
    }

    /// Orders two rows by targets first.
    pub(super) fn order(&self, one: &ReportRow, other: &ReportRow) -> std::cmp::Ordering {
        let [first, second] = [one, other].map(|it| self.reach(it).max(1.0));
        first.total_cmp(&second).then(self.cost(one).total_cmp(&self.cost(other)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        match (text.parse::<Target>(), expected) {
            (Ok(target), Ok(shown)) => {
                assert_eq!(target.to_string(), shown, "{text}");
                assert_eq!(shown.parse(), Ok(target), "{text}: what is shown is read again");
            }
            (Err(error), Err(part)) => {
                assert!(error.contains(part), "{text}: {error}");
                assert!(error.contains("fields: ttft_mean, "), "{text}: {error}");
            }
            (actual, expected) => panic!("{text}: {actual:?}, not {expected:?}"),
        }
    }

    #[test]
    fn targets_are_read_as_symbols_and_as_words() {
        for (text, shown) in [
            ("ttft_p99<2s", "ttft_p99<2s"),
            ("p99 TTFT under 2 s", "ttft_p99<2s"),
            ("TTFT p99 below 1500ms", "ttft_p99<1.5s"),
            ("tpot_mean < 80ms", "tpot_mean<80ms"),
            ("mean TPOT under 80 ms", "tpot_mean<80ms"),
            ("e2e_p99<2m", "e2e_p99<120s"),
            ("e2e_mean<0.5s", "e2e_mean<500ms"),
            ("goodput_ratio>0.99", "goodput_ratio>0.99"),
            ("goodput over 99 %", "goodput_ratio>0.99"),
            ("refused<1", "refused<1"),
            ("refused under 10", "refused<10"),
        ] {
            check(text, Ok(shown));
        }
    }

    #[test]
    fn errors_list_the_accepted_targets() {
        for (text, part) in [
            ("", "has no limit"),
            ("ttft_p99", "has no limit"),
            ("ttft<2s", "\"ttft\" in \"ttft<2s\" is not a field"),
            ("e2e_p90<2s", "is not a field"),
            ("ttft_p99_p99<2s", "is not a field"),
            ("fast ttft_p99<2s", "is not a field"),
            ("ttft_p99<2", "has no unit; write \"2s\""),
            ("ttft_p99<2 hours", "not counted in \"hours\""),
            ("ttft_p99<=2s", "is not a limit"),
            ("ttft_p99<", "\"\" is not a limit"),
            ("ttft_p99<1.2.3s", "is not a limit"),
            ("ttft_p99<0s", "nothing is less"),
            ("ttft_p99>2s", "can only be asked to be <"),
            ("goodput_ratio<0.9", "can only be asked to be >"),
            ("goodput_ratio>1", "out of range"),
            ("refused<1%", "not counted in \"%\""),
        ] {
            check(text, Err(part));
        }
        assert!(find("speed").unwrap_err().contains("ttft_mean"));
    }

    fn goal(targets: &[&str]) -> Goal {
        let targets = targets.iter().map(|it| it.parse().unwrap()).collect();
        Goal { targets, objective: find("ttft_mean").unwrap() }
    }

    fn row(ttft_p99_s: f64, ttft_mean_s: f64, refused: u64) -> ReportRow {
        ReportRow { requests: 1_000 - refused, refused, ttft_p99_s, ttft_mean_s, ..ReportRow::default() }
    }

    #[test]
    fn a_fleet_that_refuses_most_requests_meets_no_target() {
        let plain = goal(&["ttft_p99<2s"]);
        assert!(plain.is_met(&row(1.9, 0.2, 10)));
        assert!(!plain.is_met(&row(2.0, 0.2, 0)));
        assert!(!plain.is_met(&row(0.1, 0.1, 11)) && plain.reach(&row(0.1, 0.1, 20)) == 2.0);
        assert!(goal(&["ttft_p99<2s", "refused<100"]).is_met(&row(0.1, 0.1, 99)));
        assert!(!plain.is_met(&ReportRow::default()));
    }

    #[test]
    fn no_gain_makes_up_for_a_missed_target() {
        let goal = goal(&["ttft_p99<2s"]);
        for (from, to, expected) in [
            (row(1.0, 0.5, 0), row(1.9, 0.4, 0), true),
            (row(1.0, 0.5, 0), row(1.0, 0.496, 0), false),
            (row(1.0, 0.5, 0), row(2.1, 0.1, 0), false),
            (row(4.0, 0.5, 0), row(3.0, 0.6, 0), true),
        ] {
            assert_eq!(goal.is_gain(&from, &to), expected, "{from:?} {to:?}");
        }
    }
}
