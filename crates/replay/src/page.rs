//! The report as a page: one file that needs no network, no server and no other file.
//!
//! Text and charts are drawn here and are all there without scripts; a few lines of script let the reader sort
//! tables and hide lines. The same runs give the same bytes: nothing on it is of this machine or this hour.

mod axis;
mod chart;
mod charts;
mod finding;
mod tables;
mod view;
mod words;

use std::fmt::Write as _;
use std::time::Duration;

use maitre_sim::report::Row;
use maitre_sim::trace::Request;

use super::table::{seconds, talk};
use super::{Run, Study, knowledge_word};
use finding::Asked;
use tables::{By, Lead};
use view::View;
use words::{count, counted, escape, span};

const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// Nothing may be loaded, whatever finds its way onto the page.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

/// The whole page. `command` is what was typed, as `typed` gives it.
pub(super) fn draw(study: &Study, runs: &[Run], command: &str) -> String {
    let view = View::new(study, runs);
    let title = format!("Replay of {}", study.source);
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n<link rel=\"icon\" href=\"data:,\"/>\n\
         <title>{0}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n",
        escape(&title)
    );
    html.push_str(&facts(&view));
    let _ =
        writeln!(html, "<pre tabindex=\"0\" aria-label=\"Command\"><code>{}</code></pre>", escape(command));
    html.push_str(&found(&view));
    html.push_str(&numbers(&view));
    html.push_str(&pictures(&view));
    html.push_str(&apart(&view, "Parts of the trace", PART));
    html.push_str(&apart(&view, "Classes", CLASS));
    html.push_str(&apart(&view, "Tenants", TENANT));
    let _ = write!(
        html,
        "<footer><p>Made by <code>maitre replay --html</code>, version {}. Simulated engines, virtual time.</p>\
         </footer>\n</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION")
    );
    html
}

/// The command line as it could be typed again. Where the page went, and what changes no number, is left out.
pub(super) fn typed(args: impl Iterator<Item = String>) -> String {
    let mut line = vec!["maitre".to_owned()];
    let mut skip = false;
    for arg in args.skip(1) {
        let is_value = std::mem::take(&mut skip);
        match arg.as_str() {
            _ if is_value => {}
            "--html" | "--jobs" => skip = true,
            "--json" => {}
            _ if arg.starts_with("--html=") || arg.starts_with("--jobs=") => {}
            _ => line.push(words::quoted(&arg)),
        }
    }
    line.push("--html report.html".to_owned());
    line.join(" ")
}

fn facts(view: &View<'_>) -> String {
    let study = view.study;
    let requests = &study.trace.requests;
    let mean = |sum: u64| count((sum as f64 / requests.len().max(1) as f64).round() as u64);
    let prompts = mean(requests.iter().map(Request::prompt_tokens).sum());
    let answers = mean(requests.iter().map(|it| u64::from(it.answer_tokens)).sum());
    let number = counted(requests.len() as u64, "request");
    let length = seconds(study.trace.span().as_secs_f64());
    let speeds: Vec<String> = view.speeds.iter().map(|it| format!("{it}×")).collect();
    let facts = [
        (
            "Traffic",
            format!("{number} in {length}; {prompts} prompt and {answers} answer tokens in the mean"),
        ),
        ("Speed", words::listed(&speeds)),
        ("Fleet", fleet(study)),
        ("Knowledge", knowledge(study)),
        (
            "Targets",
            format!(
                "first token within {}, the others at most {} apart in the mean",
                span(study.targets.first_token.as_secs_f64()),
                span(study.targets.per_token.as_secs_f64())
            ),
        ),
        ("Seed", study.seed.to_string()),
    ];
    let mut html = String::from("<dl class=\"facts\">\n");
    for (name, fact) in facts {
        let _ = writeln!(html, "<dt>{name}</dt><dd>{}</dd>", escape(&fact));
    }
    html.push_str("</dl>\n");
    html
}

fn fleet(study: &Study) -> String {
    let mut kinds: Vec<(&str, u32)> = Vec::new();
    for profile in &study.fleet {
        match kinds.iter_mut().find(|it| it.0 == profile.name) {
            Some((_, number)) => *number += 1,
            None => kinds.push((profile.name, 1)),
        }
    }
    let kinds: Vec<String> = kinds.iter().map(|(name, number)| format!("{number} × {name}")).collect();
    let tokens = || study.fleet.iter().map(maitre_sim::profile::Profile::kv_tokens);
    let (least, most) = (tokens().min().unwrap_or(0), tokens().max().unwrap_or(0));
    format!(
        "{}; at each a KV cache of {}{} tokens, in blocks of {}",
        words::listed(&kinds),
        if least == most { "" } else { "at least " },
        count(least),
        study.block_tokens
    )
}

fn knowledge(study: &Study) -> String {
    let routers = match study.routers {
        1 => "1 router".to_owned(),
        number => format!("{number} routers{}", talk(study)),
    };
    format!(
        "{} caches{}; load read every {}{}; {routers}",
        knowledge_word(study.knowledge),
        late(study.event_delay),
        span(study.scrape_every.as_secs_f64()),
        late(study.scrape_delay)
    )
}

fn late(delay: Duration) -> String {
    match delay {
        Duration::ZERO => ", at once".to_owned(),
        _ => format!(", {} late", span(delay.as_secs_f64())),
    }
}

fn found(view: &View<'_>) -> String {
    let asked = Asked {
        tokens_per_s: view.offered(view.speed),
        first_token_s: view.study.targets.first_token.as_secs_f64(),
    };
    let mut text = finding::write(&view.rows(), asked);
    if view.sweeps() {
        let (text_here, leaders) = (words::uncapitalized(&text), finding::sweep(&view.by_speed()));
        text = format!("At speed {}×, {text_here} {leaders}", view.speed);
    }
    format!(
        "<section class=\"finding\">\n<h2>Finding</h2>\n<p>{}</p>\n</section>\n",
        escape(text.trim_end()).replace(" %", "\u{A0}%")
    )
}

fn numbers(view: &View<'_>) -> String {
    let rows: Vec<&Row> = view.all.iter().map(|it| &it.row).collect();
    let lead = Lead { speed: view.sweeps(), by: None };
    let table = tables::draw("All strategies; ★ is the best of a column", &rows, lead);
    format!("<section>\n<h2>Numbers</h2>\n{table}{}</section>\n", tables::meanings())
}

fn pictures(view: &View<'_>) -> String {
    let note = match view.sweeps() {
        false => String::new(),
        true => format!(
            "<p class=\"reading\">Charts that show one speed show {}×: the fastest at which a strategy still has half of \
             its answers within the targets, or else the slowest. Run another speed alone to see it.</p>\n",
            view.speed
        ),
    };
    [
        "<section>\n<h2>Charts</h2>\n".to_owned(),
        note,
        charts::legend(view),
        charts::first_tokens(view),
        charts::throughput(view),
        charts::loads(view),
        charts::hits(view),
        "</section>\n".to_owned(),
    ]
    .concat()
}

/// What rows of less than a run are told apart by, and where a run has them.
type Apart = (By, fn(&Run) -> &Vec<Row>);

const PART: Apart =
    (By { title: "part", cell: |it| format!("<td data-v=\"{0}\">{0}</td>", it.part.unwrap_or(0)) }, |it| {
        &it.parts
    });
const CLASS: Apart = (By { title: "class", cell: |it| name(it.class.as_ref()) }, |it| &it.classes);
const TENANT: Apart = (By { title: "tenant", cell: |it| name(it.tenant.as_ref()) }, |it| &it.tenants);

fn name(name: Option<&String>) -> String {
    format!("<th scope=\"row\">{}</th>", escape(name.map_or("", String::as_str)))
}

/// The rows of parts, classes or tenants; nothing if there is only one.
fn apart(view: &View<'_>, heading: &str, (by, rows): Apart) -> String {
    // Those that compete stand together, in the order in which a run has them.
    let mut placed: Vec<(usize, &Row)> = view.all.iter().flat_map(|it| rows(it).iter().enumerate()).collect();
    placed.sort_by(|one, other| one.1.speed.total_cmp(&other.1.speed).then(one.0.cmp(&other.0)));
    if placed.is_empty() {
        return String::new();
    }
    let rows: Vec<&Row> = placed.into_iter().map(|it| it.1).collect();
    let lead = Lead { speed: view.sweeps(), by: Some(by) };
    let table = tables::draw(&format!("Each {0}; ★ is the best of a {0}", by.title), &rows, lead);
    format!("<section>\n<h2>{heading}</h2>\n{table}</section>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_says_what_was_typed_and_not_where_it_went() {
        for (args, expected) in [
            (&["/opt/x/maitre", "replay", "--trace", "a b.jsonl"][..], "maitre replay --trace 'a b.jsonl'"),
            (&["maitre", "replay", "--html", "/x/y.html", "--json", "--seed", "7"], "maitre replay --seed 7"),
            (
                &["maitre", "replay", "--html=/x/y.html", "--jobs", "3", "--jobs=4", "--shared"],
                "maitre replay --shared",
            ),
        ] {
            let line = typed(args.iter().map(|&it| it.to_owned()));
            assert_eq!(line, format!("{expected} --html report.html"));
        }
    }
}
