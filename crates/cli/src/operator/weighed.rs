//! One decision as text: where it went or would go, why, who else was weighed, and what others would have done.

use super::api::{Candidate, Decision, Shadow, Terms};
use super::grid::{Column, Grid};
use super::show::{self, UNKNOWN, bare_millis, count, millis};

/// Less than this is shown as nothing.
const NOTHING_MS: f64 = 0.05;

/// A part of a price.
#[derive(Clone, Copy)]
struct Term {
    name: &'static str,
    /// Which go first where there is no room for all: the highest, as everywhere.
    rank: u8,
    read: fn(&Terms) -> f64,
}

const fn term(name: &'static str, rank: u8, read: fn(&Terms) -> f64) -> Term {
    Term { name, rank, read }
}

const TERMS: [Term; 9] = [
    term("wait", 3, |it| it.wait),
    term("floor", 7, |it| it.floor),
    term("prefill", 1, |it| it.prefill),
    term("behind", 5, |it| it.behind),
    term("pushed", 6, |it| it.pushed),
    term("others", 2, |it| it.others),
    term("answer", 4, |it| it.answer),
    term("room", 8, |it| it.room),
    term("adapter", 9, |it| it.adapter),
];

/// The whole of it, in lines of at most so many cells where that can be done.
pub(crate) fn lines(decision: &Decision, width: usize) -> Vec<String> {
    let mut lines = sentences(decision).iter().flat_map(|it| wrap(it, width)).collect::<Vec<_>>();
    if !decision.candidates.is_empty() {
        lines.push(String::new());
        lines.extend(wrap(&heading(decision), width));
        lines.extend(candidates(&decision.candidates, width));
        lines.extend(notes(decision).iter().flat_map(|it| wrap(it, width)));
    }
    if !decision.shadows.is_empty() {
        lines.push(String::new());
        lines.extend(wrap("what other strategies would have done", width));
        lines.extend(shadows(&decision.shadows).lines(width));
    }
    lines
}

/// A worker as it is called in a table: its address without what all have, or its number once it is gone.
pub(crate) fn name(url: Option<&str>, worker: u32) -> String {
    url.map_or_else(|| format!("worker {worker}"), |it| it.trim_start_matches("http://").to_owned())
}

fn sentences(decision: &Decision) -> Vec<String> {
    let place = decision.url.as_deref().map_or_else(|| format!("worker {}", decision.worker), str::to_owned);
    let why = match meaning(&decision.why) {
        "" => decision.why.to_string(),
        meaning => format!("{} ({meaning})", decision.why),
    };
    let is_asked = decision.number.is_none();
    let went = match (is_asked, decision.would_wait) {
        (false, _) => format!("went to {place}: {why}"),
        (true, false) => format!("would go to {place}: {why}"),
        (true, true) => format!("would stand in line; if it had to go now, to {place}: {why}"),
    };
    let mut sentences = vec![went, request(decision)];
    let expected = decision.predicted_ttft_ms.map(millis);
    sentences.push(match (expected, decision.actual_ttft_ms.map(millis)) {
        (Some(expected), Some(actual)) => format!("first token after {actual}; expected after {expected}"),
        (None, Some(actual)) => format!("first token after {actual}; no forecast was made"),
        (Some(expected), None) => format!("first token expected after {expected}"),
        (None, None) => "when the first token comes is not known".to_owned(),
    });
    if !is_asked {
        sentences.push(fate(decision));
    }
    sentences
}

/// What it was that was decided about.
fn request(decision: &Decision) -> String {
    let mut parts = vec![format!("strategy {}", decision.strategy)];
    let named = [("model", &decision.model), ("class", &decision.class), ("tenant", &decision.tenant)];
    parts.extend(named.iter().filter_map(|(what, name)| Some(format!("{what} {}", name.as_ref()?))));
    let held = decision.held_tokens.map(|it| format!(", {it} of them held there")).unwrap_or_default();
    parts.push(format!("{} prompt tokens{held}", decision.prompt_tokens));
    parts.push(format!("{} expected in the answer", decision.answer_tokens));
    parts.join("; ")
}

/// Which one it is, and what became of it.
fn fate(decision: &Decision) -> String {
    let number = decision.number.map(|it| format!("decision {it}"));
    let id = decision.id.as_ref().map(|it| format!("request {it}"));
    let at = Some(format!("at {} UTC", show::time_of_day(decision.at_ms)));
    let attempt = (decision.attempt > 0).then(|| format!("attempt {}", decision.attempt + 1));
    let waited = (decision.waited_ms > 0.0).then(|| format!("waited {}", millis(decision.waited_ms)));
    let total = decision.total_ms.map(|it| format!(" after {}", millis(it))).unwrap_or_default();
    let outcome = Some(format!("{}{total}", decision.outcome));
    let answer = decision.actual_answer_tokens.map(|it| format!("{it} tokens answered"));
    let cached = decision.cached_tokens.map(|it| format!("{it} tokens were cached"));
    [number, id, at, attempt, waited, outcome, answer, cached]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join("; ")
}

fn heading(decision: &Decision) -> String {
    let (shown, all) = (decision.candidates.len() as u64, decision.candidates_total);
    let of = if all > shown {
        format!("the {shown} cheapest of {all} candidates")
    } else {
        "candidates, cheapest first".to_owned()
    };
    format!("{of}; times in ms, * marks the chosen one")
}

/// One table, or two where that would be too wide: what a price is made of then has its own.
fn candidates(all: &[Candidate], width: usize) -> Vec<String> {
    let (outside, inside) = (outside(all), inside(all));
    let whole = outside.clone().beside(inside.clone());
    if whole.fits(width) {
        return whole.lines(width);
    }
    let mut names = outside.clone();
    names.columns.truncate(NAMES);
    names.rows.iter_mut().for_each(|it| it.truncate(NAMES));
    [outside.lines(width), names.beside(inside).lines(width)].concat()
}

/// The columns that say who it is.
const NAMES: usize = 2;

fn outside(all: &[Candidate]) -> Grid {
    let shares = all.iter().any(|it| it.share != 1.0);
    let mut columns = vec![
        Column::words("", 0, 1),
        Column::address("worker", 12),
        Column::number("price", 0),
        Column::number("TTFT", 1),
        Column::number("held", 2),
        Column::number("requests", 4),
        Column::words("takes it", 3, 8),
    ];
    if shares {
        columns.push(Column::number("share", 5));
    }
    let row = |it: &Candidate| {
        let mut row = vec![
            if it.chosen { "*" } else { "" }.to_owned(),
            name(it.url.as_deref(), it.worker),
            bare_millis(it.price_ms),
            it.ttft_ms.map_or_else(|| UNKNOWN.to_owned(), bare_millis),
            count(it.held_tokens as f64),
            it.requests.to_string(),
            it.opening.to_string(),
        ];
        if shares {
            row.push(format!("{:.2}", it.share.clamp(0.0, 1e6)));
        }
        row
    };
    Grid { rows: all.iter().map(row).collect(), columns }
}

fn inside(all: &[Candidate]) -> Grid {
    let terms = shown_terms(all);
    let row = |it: &Candidate| terms.iter().map(|term| bare_millis((term.read)(&it.terms_ms))).collect();
    let rows = all.iter().map(row).collect();
    let columns = terms.iter().map(|it| Column::number(it.name, it.rank)).collect();
    Grid { rows, columns }
}

/// Those that are something to anybody.
fn shown_terms(all: &[Candidate]) -> Vec<Term> {
    let counts = |read: fn(&Terms) -> f64| all.iter().any(|it| read(&it.terms_ms).abs() >= NOTHING_MS);
    TERMS.into_iter().filter(|it| counts(it.read)).collect()
}

fn notes(decision: &Decision) -> Vec<String> {
    let shown = shown_terms(&decision.candidates);
    let is_shown = |name: &str| shown.iter().any(|it| it.name == name);
    let rest: Vec<&str> = TERMS.iter().map(|it| it.name).filter(|it| !is_shown(it)).collect();
    let mut notes = Vec::new();
    if !rest.is_empty() {
        notes.push(format!("nothing for anybody: {}", rest.join(", ")));
    }
    if &*decision.strategy != "least-delay" {
        notes
            .push(format!("prices are what least-delay would go by; {} has its own rule", decision.strategy));
    }
    if decision.candidates.iter().any(|it| it.share != 1.0) {
        notes.push("the parts sum to the price times the worker's share".to_owned());
    }
    notes
}

fn shadows(all: &[Shadow]) -> Grid {
    let columns = vec![
        Column::words("strategy", 0, 10),
        Column::address("worker", 12),
        Column::words("", 1, 5),
        Column::number("price", 2),
        Column::number("TTFT", 3),
        Column::words("why", 4, 6),
    ];
    let known = |ms: Option<f64>| ms.map_or_else(|| UNKNOWN.to_owned(), bare_millis);
    let row = |it: &Shadow| {
        let same = if it.differs { "other" } else { "same" };
        let place = name(it.url.as_deref(), it.worker);
        vec![
            it.strategy.to_string(),
            place,
            same.to_owned(),
            known(it.price_ms),
            known(it.ttft_ms),
            it.why.to_string(),
        ]
    };
    Grid { columns, rows: all.iter().map(row).collect() }
}

/// What a reason means; nothing for one that we do not know.
fn meaning(why: &str) -> &'static str {
    match why {
        "only" => "nobody else could take it",
        "turn" => "it is this worker's turn",
        "dice" => "the dice say so",
        "fewest-requests" => "nobody has fewer requests",
        "least-work" => "nobody has less work promised",
        "better-of-two" => "it has less work than the other one the dice named",
        "session" => "this session sits there",
        "session-moved" => "this session's worker is gone",
        "home" => "the head of the prompt belongs there",
        "spilled" => "the worker that the head of the prompt belongs to has more than its part",
        "cached" => "nobody holds more of the prompt, and it is not too busy",
        "cache-too-busy" => "another holds more of the prompt, but to wait for it costs more than it saves",
        "least-delay" => "nobody holds any of the prompt, and it delays everyone least there",
        "most-room" => "nobody holds enough of the prompt, and this cache has the most room",
        "least-cost" => "nobody holds any of the prompt, and it costs least there",
        _ => "",
    }
}

/// Breaks a sentence between words.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if super::grid::cells(line) + 1 + super::grid::cells(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use maitre_policy::Why;
    use serde_json::{Value, json};

    use super::*;

    const ASKED: &str = r#"{
        "number": null, "id": null, "at_ms": 1763215000123, "model": "m\u001b[2J", "strategy": "least-delay",
        "class": "standard", "tenant": null, "worker": 2, "url": "http://10.0.0.2:8000", "why": "cached",
        "attempt": 0, "waited_ms": 0.0, "prompt_tokens": 2048, "answer_tokens": 128, "held_tokens": 1536,
        "predicted_ttft_ms": 61.2, "actual_ttft_ms": null, "cached_tokens": null, "outcome": "asked",
        "total_ms": null, "would_wait": false, "candidates_total": 2,
        "candidates": [
            {"worker": 2, "url": "http://10.0.0.2:8000", "chosen": true, "held_tokens": 1536, "requests": 3,
             "share": 1.0, "opening": "now", "ttft_ms": 61.2, "price_ms": 96.0,
             "terms_ms": {"wait": 5.0, "floor": 12.0, "prefill": 21.0, "behind": 7.3, "others": 30.1,
                          "answer": 18.0, "room": 2.6}},
            {"worker": 0, "url": null, "held_tokens": 0, "requests": 1, "share": 1.0, "opening": "later",
             "ttft_ms": null, "price_ms": 1210.55, "terms_ms": {"wait": 1.0, "prefill": 1209.55}}
        ],
        "shadows": [{"strategy": "round-robin", "worker": 0, "url": "http://10.0.0.9:8000", "why": "turn",
                     "differs": true, "price_ms": 300.0, "ttft_ms": 210.0}]
    }"#;

    fn asked() -> Value {
        serde_json::from_str(ASKED).unwrap()
    }

    fn text(value: Value, width: usize) -> String {
        lines(&serde_json::from_value(value).unwrap(), width).join("\n")
    }

    #[test]
    fn a_question_is_answered_in_a_sentence_and_two_tables() {
        let expected = "\
would go to http://10.0.0.2:8000: cached (nobody holds more of the prompt, and it is not too busy)
strategy least-delay; model m\u{fffd}[2J; class standard; 2048 prompt tokens, 1536 of them held there; 128 expected in the answer
first token expected after 61 ms

candidates, cheapest first; times in ms, * marks the chosen one
   worker          price  TTFT  held  requests  takes it  wait  floor  prefill  behind  others  answer  room
*  10.0.0.2:8000    96.0  61.2  1536         3  now        5.0   12.0     21.0     7.3    30.1    18.0   2.6
   worker 0       1210.5     -     0         1  later      1.0    0.0   1209.5     0.0     0.0     0.0   0.0
nothing for anybody: pushed, adapter

what other strategies would have done
strategy     worker                price   TTFT  why
round-robin  10.0.0.9:8000  other  300.0  210.0  turn";
        assert_eq!(text(asked(), 140), expected);
    }

    #[test]
    fn a_narrow_place_loses_columns_and_no_line_is_wider() {
        for width in 40..140 {
            let text = text(asked(), width);
            assert!(text.lines().all(|it| super::super::grid::cells(it) <= width), "{width}:\n{text}");
            assert!(text.contains("96.0") && text.contains("1210.5"), "{text}");
            // In two tables if need be.
            assert!(text.contains("prefill") && text.contains("1209.5"), "{text}");
        }
    }

    #[test]
    fn a_decision_tells_what_became_of_it() {
        let mut decision = asked();
        for (key, value) in [
            ("number", json!(17)),
            ("id", json!("req-7")),
            ("attempt", json!(1)),
            ("waited_ms", json!(12.0)),
            ("outcome", json!("answered")),
            ("actual_ttft_ms", json!(58.9)),
            ("total_ms", json!(900.0)),
            ("strategy", json!("lmetric")),
            ("candidates_total", json!(64)),
        ] {
            decision[key] = value;
        }
        decision["candidates"][0]["share"] = json!(0.5);
        let told = text(decision, 200);
        for part in [
            "went to http://10.0.0.2:8000: cached (",
            "first token after 59 ms; expected after 61 ms",
            "decision 17; request req-7; at 13:56:40 UTC; attempt 2; waited 12 ms; answered after 900 ms",
            "the 2 cheapest of 64 candidates",
            "lmetric has its own rule",
            "share",
        ] {
            assert!(told.contains(part), "{part}:\n{told}");
        }
    }

    #[test]
    fn to_wait_is_told_first() {
        let mut waits = asked();
        waits["would_wait"] = json!(true);
        assert!(text(waits, 200).starts_with("would stand in line; if it had to go now, to http://"));
    }

    #[test]
    fn every_reason_has_its_meaning() {
        let silent: Vec<&str> =
            Why::ALL.iter().map(|it| it.name()).filter(|it| meaning(it).is_empty()).collect();
        assert!(silent.is_empty(), "no sentence for {silent:?}");
    }
}
