//! One decision as text: where the request went or would go, why, the other candidates, and the shadows' choices.

use maitre_views::decision::{
    CandidateView, DecisionDetail, DecisionSummary, FetchView, PrefillView, PriceTerms, ShadowChoice,
};

use super::format::{self, UNKNOWN, bare_millis, count, millis, worker_name};
use super::programs;
use super::table::{Column, TextTable, wrap};

/// Terms below this are shown as zero.
const ZERO_MS: f64 = 0.05;

/// A part of a price.
#[derive(Clone, Copy)]
struct Term {
    name: &'static str,
    /// What it is, as the page and docs/explain.md say.
    says: &'static str,
    /// In a narrow table, columns of the highest rank are left out first.
    rank: u8,
    read: fn(&PriceTerms) -> f64,
}

impl Term {
    const fn new(name: &'static str, says: &'static str, rank: u8, read: fn(&PriceTerms) -> f64) -> Term {
        Term { name, says, rank, read }
    }
}

const TERMS: [Term; 10] = [
    Term::new("wait", "time until the work already promised to the worker is prefilled", 3, |it| it.wait),
    Term::new("floor", "minimum TTFT there, however short the prompt", 7, |it| it.floor),
    Term::new("prefill", "computing the part of the prompt that is not cached", 1, |it| it.prefill),
    Term::new("fetch", "fetching KV cache that another worker or a store holds", 10, |it| it.fetch),
    Term::new("behind", "delay for requests that arrive there during this prefill", 5, |it| it.behind),
    Term::new("pushed", "recomputing what this prompt evicts from a full cache", 6, |it| it.pushed),
    Term::new("others", "delay for requests that stream there", 2, |it| it.others),
    Term::new("answer", "decode time of its own answer, at that batch size", 4, |it| it.answer),
    Term::new("room", "waiting for KV memory, and what its blocks cost others", 8, |it| it.room),
    Term::new("adapter", "loading the LoRA adapter", 9, |it| it.adapter),
];

/// The decision in lines of at most `width` cells, where the narrowest table allows that.
pub(crate) fn lines(decision: &DecisionDetail, width: usize) -> Vec<String> {
    let mut lines = sentences(decision).iter().flat_map(|it| wrap(it, width)).collect::<Vec<_>>();
    if !decision.candidates.is_empty() {
        lines.push(String::new());
        lines.extend(wrap(&heading(decision), width));
        lines.extend(candidates(&decision.candidates, width));
        lines.extend(legend(&decision.candidates, width));
        lines.extend(notes(decision).iter().flat_map(|it| wrap(it, width)));
    }
    if !decision.shadows.is_empty() {
        lines.push(String::new());
        lines.extend(wrap("what other strategies would have done", width));
        lines.extend(shadows(&decision.shadows).lines(width));
    }
    lines
}

fn sentences(decision: &DecisionDetail) -> Vec<String> {
    let it = &decision.summary;
    let place = it.url.as_deref().map_or_else(|| format!("worker {}", it.worker), str::to_owned);
    let why = match meaning(&it.why) {
        "" => it.why.to_string(),
        meaning => format!("{} ({meaning})", it.why),
    };
    let is_question = it.number.is_none();
    let went = match (is_question, decision.would_wait) {
        (false, _) => format!("went to {place}: {why}"),
        (true, false) => format!("would go to {place}: {why}"),
        (true, true) if let Some(hold) = &decision.hold => {
            let why_held = programs::hold(hold);
            format!("held: {why_held}; if placed now, it would go to {place}: {why}")
        }
        (true, true) => format!("would wait in the queue; if placed now, it would go to {place}: {why}"),
    };
    let mut sentences = vec![went];
    sentences.extend(decision.program.as_ref().map(|step| programs::step(step, it.worker)));
    sentences.extend(decision.prefill.as_ref().map(prefill));
    sentences.extend(decision.fetch.as_ref().map(fetch));
    sentences.push(request(it));
    sentences.extend(decision.candidates.iter().find(|it| it.chosen).and_then(chunks));
    let expected = it.predicted_ttft_ms.map(millis);
    sentences.push(match (expected, it.actual_ttft_ms.map(millis)) {
        (Some(expected), Some(actual)) => format!("first token after {actual}; expected after {expected}"),
        (None, Some(actual)) => format!("first token after {actual}; it was not predicted"),
        (Some(expected), None) => format!("first token expected after {expected}"),
        (None, None) => "the time of the first token is unknown".to_owned(),
    });
    if !is_question {
        sentences.push(ending(decision));
    }
    sentences
}

/// The worker that prefills for the chosen one.
fn prefill(it: &PrefillView) -> String {
    let place = it.url.as_deref().map_or_else(|| format!("worker {}", it.worker), str::to_owned);
    let elsewhere = millis(it.price_elsewhere_ms);
    let here = match it.price_here_ms {
        Some(here) => format!("without it {}", millis(here)),
        None => "and the worker cannot answer alone".to_owned(),
    };
    format!(
        "prefilled by {place}, and {} tokens fetched from there: costs {elsewhere}, {here}",
        it.fetched_tokens
    )
}

/// What the chosen worker fetches, and from where.
fn fetch(it: &FetchView) -> String {
    let (tokens, expected) = (it.tokens, millis(it.expected_ms));
    match it.worker {
        Some(worker) => {
            let place = it.url.as_deref().map_or_else(|| format!("worker {worker}"), str::to_owned);
            format!("pulls the KV cache of {tokens} tokens from {place}, expected within {expected}")
        }
        None => format!("loads the KV cache of {tokens} tokens from its store, expected within {expected}"),
    }
}

/// What the worker reuses after its cached prefix.
fn chunks(it: &CandidateView) -> Option<String> {
    (it.chunk_tokens > 0).then(|| {
        let (reused, again) = (it.chunk_tokens, it.chunk_recomputed_tokens);
        format!(
            "{reused} of the cached tokens are chunks from other places, of which it computes {again} again"
        )
    })
}

/// The request.
fn request(decision: &DecisionSummary) -> String {
    let mut parts = vec![format!("strategy {}", decision.strategy)];
    let named = [("model", &decision.model), ("class", &decision.class), ("tenant", &decision.tenant)];
    parts.extend(named.iter().filter_map(|(what, name)| Some(format!("{what} {}", name.as_ref()?))));
    let cached = decision.expected_cached_tokens.map(|it| format!(", {it} of them cached there"));
    parts.push(format!("{} prompt tokens{}", decision.prompt_tokens, cached.unwrap_or_default()));
    parts.push(format!("{} answer tokens expected", decision.answer_tokens));
    parts.join("; ")
}

/// Its number and id, and how the request ended.
fn ending(decision: &DecisionDetail) -> String {
    let it = &decision.summary;
    let number = it.number.map(|it| format!("decision {it}"));
    let id = it.id.as_ref().map(|it| format!("request {it}"));
    let at = Some(format!("at {} UTC", format::time_of_day(it.at_ms)));
    let attempt = (it.attempt > 0).then(|| format!("attempt {}", it.attempt + 1));
    let waited = (it.waited_ms > 0.0).then(|| format!("waited {}", millis(it.waited_ms)));
    let total = it.total_ms.map(|it| format!(" after {}", millis(it))).unwrap_or_default();
    let outcome = Some(format!("{}{total}", outcome(&it.outcome)));
    let answer = decision.actual_answer_tokens.map(|it| format!("{it} answer tokens"));
    let cached = it.cached_tokens.map(|it| format!("{it} prompt tokens were cached"));
    [number, id, at, attempt, waited, outcome, answer, cached]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join("; ")
}

fn heading(decision: &DecisionDetail) -> String {
    let (shown, all) = (decision.candidates.len() as u64, decision.candidates_total);
    let of = if all > shown {
        format!("the {shown} cheapest of {all} candidates")
    } else {
        "candidates, cheapest first".to_owned()
    };
    format!("{of}; times in ms, * marks the chosen one")
}

/// One table, or two where that would be too wide: the second has the terms of each price.
fn candidates(all: &[CandidateView], width: usize) -> Vec<String> {
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

/// The columns that name the candidate.
const NAMES: usize = 2;

fn outside(all: &[CandidateView]) -> TextTable {
    let shares = all.iter().any(|it| it.share != 1.0);
    let mut columns = vec![
        Column::words("", 0, 1),
        Column::address("worker", 12),
        Column::number("price", 0),
        Column::number("TTFT", 1),
        Column::number("cached", 2),
        Column::number("requests", 4),
        Column::words("can start", 3, 9),
    ];
    if shares {
        columns.push(Column::number("share", 5));
    }
    let row = |it: &CandidateView| {
        let mut row = vec![
            if it.chosen { "*" } else { "" }.to_owned(),
            worker_name(it.url.as_deref(), it.worker),
            bare_millis(it.price_ms),
            it.ttft_ms.map_or_else(|| UNKNOWN.to_owned(), bare_millis),
            count(it.cached_tokens as f64),
            it.requests.to_string(),
            it.can_start.to_string(),
        ];
        if shares {
            row.push(format!("{:.2}", it.share.clamp(0.0, 1e6)));
        }
        row
    };
    TextTable { rows: all.iter().map(row).collect(), columns }
}

fn inside(all: &[CandidateView]) -> TextTable {
    let terms = shown_terms(all);
    let row = |it: &CandidateView| terms.iter().map(|term| bare_millis((term.read)(&it.terms_ms))).collect();
    let rows = all.iter().map(row).collect();
    let columns = terms.iter().map(|it| Column::number(it.name, it.rank)).collect();
    TextTable { rows, columns }
}

/// Terms that are not zero for every candidate.
fn shown_terms(all: &[CandidateView]) -> Vec<Term> {
    let counts = |read: fn(&PriceTerms) -> f64| all.iter().any(|it| read(&it.terms_ms).abs() >= ZERO_MS);
    TERMS.into_iter().filter(|it| counts(it.read)).collect()
}

/// What the terms in the table mean.
fn legend(all: &[CandidateView], width: usize) -> Vec<String> {
    let shown = shown_terms(all);
    let widest = shown.iter().map(|it| it.name.len()).max().unwrap_or(0);
    shown.iter().flat_map(|it| wrap(&format!("{:<widest$}  {}", it.name, it.says), width)).collect()
}

fn notes(decision: &DecisionDetail) -> Vec<String> {
    let shown = shown_terms(&decision.candidates);
    let is_shown = |name: &str| shown.iter().any(|it| it.name == name);
    let rest: Vec<&str> = TERMS.iter().map(|it| it.name).filter(|it| !is_shown(it)).collect();
    let mut notes = Vec::new();
    if !rest.is_empty() {
        notes.push(format!("zero for every worker: {}", rest.join(", ")));
    }
    let strategy = &decision.summary.strategy;
    if &**strategy != "least-delay" {
        notes.push(format!("prices are those of least-delay; {strategy} does not use them"));
    }
    if decision.candidates.iter().any(|it| it.share != 1.0) {
        notes.push("the terms sum to the price times the worker's share".to_owned());
    }
    notes
}

fn shadows(all: &[ShadowChoice]) -> TextTable {
    let columns = vec![
        Column::words("strategy", 0, 10),
        Column::address("worker", 12),
        Column::words("", 1, 5),
        Column::number("price", 2),
        Column::number("TTFT", 3),
        Column::words("why", 4, 6),
    ];
    let known = |ms: Option<f64>| ms.map_or_else(|| UNKNOWN.to_owned(), bare_millis);
    let row = |it: &ShadowChoice| {
        let same = if it.differs { "other" } else { "same" };
        let place = worker_name(it.url.as_deref(), it.worker);
        vec![
            it.strategy.to_string(),
            place,
            same.to_owned(),
            known(it.price_ms),
            known(it.ttft_ms),
            it.why.to_string(),
        ]
    };
    TextTable { columns, rows: all.iter().map(row).collect() }
}

/// What a reason means; empty for one that this version does not know.
fn meaning(why: &str) -> &'static str {
    match why {
        "only" => "no other worker could take it",
        "turn" => "it is this worker's turn",
        "dice" => "picked at random",
        "fewest-requests" => "it has the fewest requests",
        "least-work" => "it has the least work promised",
        "better-of-two" => "of two workers picked at random, it has less work",
        "session" => "the session is bound to this worker",
        "session-moved" => "the worker of this session is gone",
        "home" => "the prefix of the prompt is assigned to this worker",
        "spilled" => "the worker assigned to this prefix is overloaded",
        "cached" => "longest cached prefix, and not too busy",
        "cache-too-busy" => {
            "another worker has a longer cached prefix, but waiting for it costs more than it saves"
        }
        "least-delay" => "no worker has the prompt cached; this one adds the least delay",
        "least-cost" => "no worker has the prompt cached; this one costs least",
        _ => "",
    }
}

/// How a request ended, in words.
pub(crate) fn outcome(word: &str) -> &str {
    match word {
        "in-flight" => "in flight",
        "disconnected" => "client disconnected",
        "broke-off" => "cut off",
        "continued" => "continued elsewhere",
        "handed-over" => "handed over",
        _ => word,
    }
}

#[cfg(test)]
mod tests {
    use maitre_policy::Why;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_worker_that_cannot_answer_alone_has_no_price_of_its_own() {
        let text =
            r#"{"worker":1,"url":null,"fetched_tokens":9,"price_here_ms":null,"price_elsewhere_ms":2.0}"#;
        let sentence = prefill(&serde_json::from_str(text).unwrap());
        assert!(sentence.ends_with(", and the worker cannot answer alone"), "{sentence}");
    }

    const ASKED: &str = r#"{
        "number": null, "id": null, "at_ms": 1763215000123, "model": "m\u001b[2J", "strategy": "least-delay",
        "class": "standard", "tenant": null, "worker": 2, "url": "http://10.0.0.2:8000", "why": "cached",
        "attempt": 0, "waited_ms": 0.0, "prompt_tokens": 2048, "answer_tokens": 128, "expected_cached_tokens": 1536,
        "predicted_ttft_ms": 61.2, "actual_ttft_ms": null, "cached_tokens": null, "outcome": "asked",
        "total_ms": null, "would_wait": false, "candidates_total": 2,
        "candidates": [
            {"worker": 2, "url": "http://10.0.0.2:8000", "chosen": true, "cached_tokens": 1536, "requests": 3,
             "share": 1.0, "can_start": "now", "ttft_ms": 61.2, "price_ms": 96.0,
             "terms_ms": {"wait": 5.0, "floor": 12.0, "prefill": 21.0, "behind": 7.3, "others": 30.1,
                          "answer": 18.0, "room": 2.6}},
            {"worker": 0, "url": null, "cached_tokens": 0, "requests": 1, "share": 1.0, "can_start": "later",
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
    fn reused_chunks_have_a_sentence() {
        let mut decision = asked();
        assert!(!text(decision.clone(), 100).contains("chunks"));
        decision["candidates"][0]["chunk_tokens"] = json!(1_000);
        decision["candidates"][0]["chunk_recomputed_tokens"] = json!(150);
        let said = "1000 of the cached tokens are chunks from other places, of which it computes 150 again";
        assert!(text(decision, 100).contains(said));
    }

    #[test]
    fn an_explanation_has_sentences_and_two_tables() {
        let expected = "\
would go to http://10.0.0.2:8000: cached (longest cached prefix, and not too busy)
strategy least-delay; model m\u{fffd}[2J; class standard; 2048 prompt tokens, 1536 of them cached there; 128 answer tokens expected
first token expected after 61 ms

candidates, cheapest first; times in ms, * marks the chosen one
   worker          price  TTFT  cached  requests  can start  wait  floor  prefill  behind  others  answer  room
*  10.0.0.2:8000    96.0  61.2    1536         3  now         5.0   12.0     21.0     7.3    30.1    18.0   2.6
   worker 0       1210.5     -       0         1  later       1.0    0.0   1209.5     0.0     0.0     0.0   0.0
wait     time until the work already promised to the worker is prefilled
floor    minimum TTFT there, however short the prompt
prefill  computing the part of the prompt that is not cached
behind   delay for requests that arrive there during this prefill
others   delay for requests that stream there
answer   decode time of its own answer, at that batch size
room     waiting for KV memory, and what its blocks cost others
zero for every worker: fetch, pushed, adapter

what other strategies would have done
strategy     worker                price   TTFT  why
round-robin  10.0.0.9:8000  other  300.0  210.0  turn";
        assert_eq!(text(asked(), 140), expected);
    }

    #[test]
    fn on_a_narrow_terminal_columns_are_dropped_and_no_line_is_wider() {
        for width in 40..140 {
            let text = text(asked(), width);
            assert!(text.lines().all(|it| super::super::table::cells(it) <= width), "{width}:\n{text}");
            assert!(text.contains("96.0") && text.contains("1210.5"), "{text}");
            // In two tables if need be.
            assert!(text.contains("prefill") && text.contains("1209.5"), "{text}");
        }
    }

    #[test]
    fn a_decision_says_how_the_request_ended() {
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
        let shown = text(decision, 200);
        for part in [
            "went to http://10.0.0.2:8000: cached (",
            "first token after 59 ms; expected after 61 ms",
            "decision 17; request req-7; at 13:56:40 UTC; attempt 2; waited 12 ms; answered after 900 ms",
            "the 2 cheapest of 64 candidates",
            "lmetric does not use them",
            "share",
        ] {
            assert!(shown.contains(part), "{part}:\n{shown}");
        }
    }

    #[test]
    fn a_request_that_would_wait_says_so_first() {
        let mut waits = asked();
        waits["would_wait"] = json!(true);
        assert!(
            text(waits, 200).starts_with("would wait in the queue; if placed now, it would go to http://")
        );
    }

    #[test]
    fn the_page_explains_terms_in_the_same_words() {
        let page = include_str!("../../../proxy/src/page/words.js");
        for term in TERMS {
            assert!(page.contains(&format!("[\"{}\", \"{}\"]", term.name, term.says)), "{}", term.name);
        }
    }

    #[test]
    fn every_reason_has_a_meaning() {
        let missing: Vec<&str> =
            Why::ALL.iter().map(|it| it.name()).filter(|it| meaning(it).is_empty()).collect();
        assert!(missing.is_empty(), "no sentence for {missing:?}");
    }
}
