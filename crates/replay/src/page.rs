//! The HTML report: one file that needs no network, no server and no other file.
//!
//! Text and tables are written here and are complete without scripts. Charts are data in the page, which its script
//! draws with uPlot. The same runs give the same bytes: the report names neither this machine nor this hour.

mod charts;
mod finding;
mod tables;
mod view;
mod words;

use std::time::Duration;

use maitre_sim::lab::Knowledge;
use maitre_sim::profile::Profile;
use maitre_sim::report::ReportRow;
use maitre_sim::trace::Request;

use super::table::{seconds, talk};
use super::{Run, Study, roles};
use charts::Charts;
use finding::Demand;
use tables::Lead;
use view::View;
use words::{count, counted, escape, span};

const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// The browser may load nothing, whatever text the page contains.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

/// The whole page. `command` is the command line, as `typed` returns it.
pub(super) fn draw(study: &Study, runs: &[Run], command: &str) -> String {
    let view = View::new(study, runs);
    let charts = Charts::new(&view);
    let title = escape(&format!("Replay of {}", study.source));
    [
        head(&title),
        format!("<body>\n<main>\n<h1>{title}</h1>\n"),
        facts(&view),
        format!("<pre tabindex=\"0\" aria-label=\"Command\"><code>{}</code></pre>\n", escape(command)),
        found(&view),
        numbers(&view),
        format!("<section>\n<h2>Charts</h2>\n{}{}</section>\n", notes(&view), charts.html),
        apart(&view, ("Parts of the trace", "part"), |it| &it.parts),
        apart(&view, ("Classes", "class"), |it| &it.classes),
        apart(&view, ("Tenants", "tenant"), |it| &it.tenants),
        format!(
            "<footer><p>Made by <code>maitre replay --html</code>, version {}. Simulated engines, virtual time.</p>\
             </footer>\n</main>\n",
            env!("CARGO_PKG_VERSION")
        ),
        scripts(&charts),
        "</body>\n</html>\n".to_owned(),
    ]
    .concat()
}

fn head(title: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n<link rel=\"icon\" href=\"data:,\"/>\n\
         <title>{title}</title>\n<style>\n{}\n{}{STYLE}</style>\n</head>\n",
        maitre_charts::UPLOT_STYLE,
        maitre_charts::PLOT_STYLE
    )
}

fn scripts(charts: &Charts) -> String {
    format!(
        "<script type=\"application/json\" id=\"plots\">{}</script>\n<script>\n/*\n{}*/\n{}</script>\n\
         <script>\n{}{SCRIPT}</script>\n",
        charts.data(),
        maitre_charts::UPLOT_LICENSE,
        maitre_charts::UPLOT_SCRIPT,
        maitre_charts::PLOT_SCRIPT
    )
}

/// The command line to type again, without the report's path and without options that change no number.
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
    let targets = [study.targets.first_token, study.targets.per_token].map(|it| span(it.as_secs_f64()));
    let facts = [
        ("Traffic", format!("{number} in {length}; on average {prompts} prompt and {answers} answer tokens")),
        ("Speed", words::listed(&speeds)),
        ("Fleet", fleet(study)),
        ("Router", router(study)),
        ("Targets", format!("TTFT within {}, TPOT within {}", targets[0], targets[1])),
        ("Seed", study.seed.to_string()),
    ];
    let fact = |(name, fact): &(&str, String)| format!("<dt>{name}</dt><dd>{}</dd>\n", escape(fact));
    format!("<dl class=\"facts\">\n{}</dl>\n", facts.iter().map(fact).collect::<String>())
}

fn fleet(study: &Study) -> String {
    let mut kinds: Vec<(String, u32)> = Vec::new();
    for (profile, &role) in study.fleet.iter().zip(&study.roles) {
        let kind = roles::kind(profile.name, role);
        match kinds.iter_mut().find(|it| it.0 == kind) {
            Some((_, number)) => *number += 1,
            None => kinds.push((kind, 1)),
        }
    }
    let kinds: Vec<String> = kinds.iter().map(|(name, number)| format!("{number} × {name}")).collect();
    let tokens = || study.fleet.iter().map(Profile::kv_tokens);
    let (least, most) = (tokens().min().unwrap_or(0), tokens().max().unwrap_or(0));
    format!(
        "{}; each with a KV cache of {}{} tokens in blocks of {}",
        words::listed(&kinds),
        if least == most { "" } else { "at least " },
        count(least),
        study.block_tokens
    )
}

fn router(study: &Study) -> String {
    let routers = match study.routers {
        1 => "1 router".to_owned(),
        number => format!("{number} routers{}", talk(study)),
    };
    let caches = match study.knowledge {
        Knowledge::Reported => format!("KV events {}", late(study.event_delay)),
        Knowledge::Predicted => "cache contents predicted from routed requests".to_owned(),
        Knowledge::None => "cache contents unknown".to_owned(),
    };
    let every = span(study.scrape_every.as_secs_f64());
    format!("{routers}; {caches}; load scraped every {every} {}", late(study.scrape_delay))
}

fn late(delay: Duration) -> String {
    match delay {
        Duration::ZERO => "without delay".to_owned(),
        _ => format!("with a delay of {}", span(delay.as_secs_f64())),
    }
}

fn found(view: &View<'_>) -> String {
    let demand = Demand {
        tokens_per_s: view.requested(view.speed),
        first_token_s: view.study.targets.first_token.as_secs_f64(),
    };
    let mut text = finding::write(&view.rows(), demand);
    if view.sweeps() {
        let (text_here, leaders) = (words::uncapitalized(&text), finding::sweep(&view.by_speed()));
        text = format!("At speed {}×, {text_here} {leaders}", view.speed);
    }
    let text = escape(text.trim_end()).replace(" %", "\u{A0}%");
    format!("<section class=\"finding\">\n<h2>Finding</h2>\n<p>{text}</p>\n</section>\n")
}

fn numbers(view: &View<'_>) -> String {
    let rows: Vec<&ReportRow> = view.all.iter().map(|it| &it.row).collect();
    let lead = Lead { speed: view.sweeps(), part: None };
    let table = tables::draw("All strategies; ★ is the best of a column", &rows, lead);
    format!("<section>\n<h2>Numbers</h2>\n{table}{}</section>\n", tables::meanings())
}

/// What applies to all charts.
fn notes(view: &View<'_>) -> String {
    let speed = match view.sweeps() {
        false => String::new(),
        true => format!(
            "Charts of one speed show {}×: the fastest at which some strategy answers half of the requests within the \
             targets, or else the slowest. ",
            view.speed
        ),
    };
    format!(
        "<p class=\"reading\">{speed}Point at a chart to read its values; click a name to hide its lines.</p>\n\
         <noscript><p>The charts need JavaScript, which is turned off. The tables are complete without it.</p>\
         </noscript>\n"
    )
}

/// The rows of parts, classes or tenants; nothing if there is only one.
fn apart(
    view: &View<'_>,
    (heading, part): (&str, &'static str),
    rows: fn(&Run) -> &Vec<ReportRow>,
) -> String {
    // Rows that are compared stand together, in the order of the runs.
    let mut placed: Vec<(usize, &ReportRow)> =
        view.all.iter().flat_map(|it| rows(it).iter().enumerate()).collect();
    placed.sort_by(|one, other| one.1.speed.total_cmp(&other.1.speed).then(one.0.cmp(&other.0)));
    if placed.is_empty() {
        return String::new();
    }
    let rows: Vec<&ReportRow> = placed.into_iter().map(|it| it.1).collect();
    let lead = Lead { speed: view.sweeps(), part: Some(part) };
    let table = tables::draw(&format!("Each {part}; ★ is the best of a {part}"), &rows, lead);
    format!("<section>\n<h2>{heading}</h2>\n{table}</section>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_omits_the_report_path() {
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
