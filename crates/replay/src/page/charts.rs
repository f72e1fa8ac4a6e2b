//! The charts of the page, one function each.

use std::fmt::Write as _;

use maitre_sim::report::Row;

use super::axis::Axis;
use super::chart::{About, Chart, Label, SMALL, WIDE, class, letter};
use super::view::View;
use super::words::{count, escape, percent, span};
use crate::Run;
use crate::series::{self, Load, Stretches};
use crate::table::{lost, seconds};

/// Points of a distribution; more cannot be seen.
const SHARE_POINTS: usize = 121;
/// Stretches of a run in charts over time.
const STRETCHES: usize = 60;
/// Points of a worker's load: half of the samples, as wide as a small chart can show.
const LOAD_POINTS: usize = 120;
/// More workers than this are drawn as a band.
const WORKERS_APART: usize = 16;
/// What no axis of times goes below.
const TTFT_MIN_S: f64 = 0.001;

/// A chart with a heading and a sentence on how to read it; a phone scrolls it sideways.
fn figure(heading: &str, reading: &str, svg: &str) -> String {
    format!(
        "<figure>\n<h3>{0}</h3>\n<p class=\"reading\">{1}</p>\n\
         <div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{0}\">\n{svg}</div>\n</figure>\n",
        escape(heading),
        escape(reading)
    )
}

/// Names, letters, colours and dashes of all series.
pub(super) fn legend(view: &View<'_>) -> String {
    let mut html =
        String::from("<div class=\"legend\" role=\"group\" aria-label=\"Strategies in the charts\">\n");
    for (number, run) in view.runs.iter().enumerate() {
        let _ = writeln!(
            html,
            "<button type=\"button\" aria-pressed=\"true\" data-s=\"{number}\"><svg viewBox=\"0 0 30 8\" \
             aria-hidden=\"true\"><path class=\"line {}\" d=\"M1 4h28\"/></svg><b>{}</b> {}</button>",
            class(number),
            letter(number),
            escape(&run.row.strategy)
        );
    }
    html.push_str("</div>\n");
    html
}

pub(super) fn first_tokens(view: &View<'_>) -> String {
    let sorted: Vec<Vec<f64>> = view.runs.iter().map(|it| sorted_first_tokens(it)).collect();
    let (low, high) = (
        sorted.iter().filter_map(|it| it.first().copied()).fold(f64::INFINITY, f64::min),
        sorted.iter().filter_map(|it| it.last().copied()).fold(0.0, f64::max),
    );
    let target = view.study.targets.first_token.as_secs_f64();
    let low = low.min(target).max(TTFT_MIN_S);
    let about = About {
        id: "ttft",
        title: "Distribution of the time to the first token",
        text: "For each strategy, the share of requests whose first token came within the time on the x axis.",
    };
    let x = Axis::log_seconds("time to the first token (log scale)", low, high.max(target));
    let mut chart = Chart::begin(WIDE, &about, x, Axis::part("share of requests"));
    chart.upright(target, &format!("target {}", span(target)));
    let (mut labels, mut marks) = (Vec::new(), Vec::new());
    for (number, (run, sorted)) in view.runs.iter().zip(&sorted).enumerate() {
        let all = sorted.len() + lost(&run.row) as usize;
        let points = series::shares(sorted, all, SHARE_POINTS);
        let line: Vec<(f64, Option<f64>)> = points.iter().map(|&(x, y)| (x, Some(y))).collect();
        chart.line(number, &run.row.strategy, &line);
        let share = series::share_under(sorted, all, target);
        labels.push(Label {
            series: number,
            text: format!("{} {}", run.row.strategy, percent(share)),
            value: share,
        });
        // Each letter at a height of its own, so that none lies on another.
        let height = 0.9 - 0.75 * (number as f64 + 0.5) / view.runs.len() as f64;
        if let Some(&point) = points.iter().find(|it| it.1 >= height) {
            marks.push((number, point));
        }
    }
    // On top of all lines.
    marks.into_iter().for_each(|(number, point)| chart.mark(number, point));
    chart.labels(labels);
    let reading = "The further left, the sooner. Beside each name: the share within the target. Requests without an \
                   answer count as never.";
    figure("Time to the first token", reading, &chart.finish())
}

fn sorted_first_tokens(run: &Run) -> Vec<f64> {
    let mut values: Vec<f64> =
        run.outcome.answers.iter().map(|it| it.seen.first_token.as_secs_f64()).collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

/// Over speeds if there are several, else over time.
pub(super) fn throughput(view: &View<'_>) -> String {
    let offered: Option<Vec<f64>> = view.speeds.iter().map(|&it| view.offered(it)).collect();
    match offered {
        Some(offered) if view.sweeps() => by_speed(view, &offered),
        Some(_) => over_time(view),
        None => figure(
            "Output tokens, asked for and served",
            "Not shown: all requests come at the same moment, so nothing is asked for by the second.",
            "",
        ),
    }
}

fn over_time(view: &View<'_>) -> String {
    let stretches = Stretches::over(view.end_s(), STRETCHES);
    let places: Vec<f64> = (0..stretches.count).map(|it| stretches.middle(it)).collect();
    let offered = series::offered(view.arrivals(), &stretches);
    let served: Vec<Vec<f64>> = view
        .runs
        .iter()
        .map(|it| series::served(it.outcome.answers.iter().map(|it| &it.seen), &stretches))
        .collect();
    let high = served.iter().flatten().chain(&offered).copied().fold(0.0, f64::max);
    let about = About {
        id: "tokens",
        title: "Output tokens asked for and served over time",
        text: "A shaded area for the output tokens a second that arriving requests ask for, and a line for each \
               strategy with those it delivers.",
    };
    let (x, y) = (Axis::time(view.end_s(), 8), Axis::linear("output tokens a second", high, 5));
    let mut chart = Chart::begin(WIDE, &about, x, y);
    let top: Vec<(f64, f64)> = places.iter().copied().zip(offered).collect();
    let ground: Vec<(f64, f64)> = places.iter().map(|&it| (it, 0.0)).collect();
    chart.band(&ground, &top, "asked for");
    let mut labels = Vec::new();
    for (number, (run, served)) in view.runs.iter().zip(&served).enumerate() {
        let line: Vec<(f64, Option<f64>)> =
            places.iter().copied().zip(served.iter().copied().map(Some)).collect();
        let name = &run.row.strategy;
        chart.line(number, name, &line);
        labels.push(Label {
            series: number,
            text: name.clone(),
            value: served.last().copied().unwrap_or(0.0),
        });
    }
    chart.labels(labels);
    let reading = format!(
        "Shaded: what arriving requests ask for, counted when they come. Lines: what is delivered, in stretches \
         of {}. Lines that go on after the shade has ended work off a queue.",
        seconds(stretches.seconds)
    );
    figure("Output tokens, asked for and served", &reading, &chart.finish())
}

/// One point for each speed of one strategy.
fn sweep_of(view: &View<'_>, strategy: &str, offered: &[f64], value: fn(&Row) -> f64) -> Vec<(f64, f64)> {
    let by_speed = view.by_speed();
    let points = by_speed.iter().zip(offered).filter_map(|((_, rows), &offered)| {
        let row = rows.iter().find(|it| it.strategy == strategy && it.requests > 0)?;
        Some((offered, value(row)))
    });
    points.collect()
}

fn by_speed(view: &View<'_>, offered: &[f64]) -> String {
    let most = offered.iter().copied().fold(0.0, f64::max);
    let rows = || view.all.iter().map(|it| &it.row).filter(|it| it.requests > 0);
    let served_most = rows().map(|it| it.output_tokens_per_s).fold(0.0, f64::max);
    let x = || Axis::up_to("output tokens asked for, a second", most, 6);
    let about = About {
        id: "served",
        title: "Output tokens served against output tokens asked for",
        text: "One point for each speed and strategy. On the slanted line all that is asked for is served.",
    };
    let mut served =
        Chart::begin(WIDE, &about, x(), Axis::linear("output tokens served, a second", served_most, 5));
    let end = most.min(served_most);
    served.rule((0.0, 0.0), (end, end));
    sweep_lines(view, &mut served, offered, |it| it.output_tokens_per_s);
    let low = rows().map(|it| it.ttft_mean_s).fold(f64::INFINITY, f64::min).clamp(TTFT_MIN_S, 1e6);
    let high = rows().map(|it| it.ttft_mean_s).fold(0.0, f64::max);
    let about = About {
        id: "delay",
        title: "Mean time to the first token against output tokens asked for",
        text: "One point for each speed and strategy; the y axis is logarithmic.",
    };
    let y = Axis::log_seconds("mean TTFT (log scale)", low, high);
    let mut delay = Chart::begin(WIDE, &about, x(), y);
    sweep_lines(view, &mut delay, offered, |it| it.ttft_mean_s);
    let reading = "One point for each speed. On the slanted line all that is asked for is served; a line that turns \
                   away from it has found its limit. A short trace bends all lines a little, for the last answers \
                   end after the last request has come.";
    figure("Output tokens served, by load", reading, &served.finish())
        + &figure("Mean time to the first token, by load", "The lower, the better.", &delay.finish())
}

fn sweep_lines(view: &View<'_>, chart: &mut Chart, offered: &[f64], value: fn(&Row) -> f64) {
    let mut labels = Vec::new();
    for (number, run) in view.runs.iter().enumerate() {
        let name = &run.row.strategy;
        let points = sweep_of(view, name, offered, value);
        let line: Vec<(f64, Option<f64>)> = points.iter().map(|&(x, y)| (x, Some(y))).collect();
        chart.line(number, name, &line);
        chart.dots(number, &points);
        if let Some(last) = points.last() {
            labels.push(Label { series: number, text: name.clone(), value: last.1 });
        }
    }
    chart.labels(labels);
}

pub(super) fn hits(view: &View<'_>) -> String {
    let stretches = Stretches::over(view.span_s(), STRETCHES);
    let about = About {
        id: "hits",
        title: "Hit ratio over time",
        text: "For each strategy, the part of prompt tokens that was cached, by when the request came.",
    };
    let lines: Vec<Vec<Option<f64>>> = view
        .runs
        .iter()
        .map(|it| series::hits(it.outcome.answers.iter().map(|it| &it.seen), &stretches))
        .collect();
    let high = lines.iter().flatten().flatten().copied().fold(0.0, f64::max);
    let (x, y) =
        (Axis::time(view.span_s(), 8), Axis::linear("part of prompt tokens that was cached", high, 5));
    let mut chart = Chart::begin(WIDE, &about, x, y);
    let mut labels = Vec::new();
    for (number, (run, hits)) in view.runs.iter().zip(&lines).enumerate() {
        let line: Vec<(f64, Option<f64>)> =
            hits.iter().enumerate().map(|(index, &hit)| (stretches.middle(index), hit)).collect();
        chart.line(number, &run.row.strategy, &line);
        let last = hits.iter().rev().flatten().next().copied().unwrap_or(0.0);
        labels.push(Label { series: number, text: run.row.strategy.clone(), value: last });
    }
    chart.labels(labels);
    let reading = format!("By when requests came, in stretches of {}.", seconds(stretches.seconds));
    figure("Hit ratio over time", &reading, &chart.finish())
}

/// A small chart for each strategy, all on the same axes.
pub(super) fn loads(view: &View<'_>) -> String {
    let lines: Vec<Vec<Load>> =
        view.runs.iter().map(|it| series::loads(&it.outcome.samples, LOAD_POINTS)).collect();
    let points = || lines.iter().flatten().flatten();
    let end = points().map(|it| it.0).fold(1.0, f64::max);
    let high = points().map(|it| it.1).fold(0.0, f64::max);
    let apart = lines.iter().all(|it| it.len() <= WORKERS_APART);
    let reading = match apart {
        true => "A line for each worker. Lines that lie together are an even load.",
        false => {
            "Shaded: from the least to the most loaded worker. Line: their mean. A narrow band is an even load."
        }
    };
    let mut html = format!(
        "<figure>\n<h3>Load of the workers over time</h3>\n<p class=\"reading\">Requests at each worker, running and \
         waiting; all strategies on the same axes. {reading}</p>\n<div class=\"many\">\n"
    );
    for (number, (run, lines)) in view.runs.iter().zip(&lines).enumerate() {
        let name = escape(&run.row.strategy);
        let about = About {
            id: &format!("load{number}"),
            title: &format!("Load of the workers under {}", run.row.strategy),
            text: &load_in_words(run),
        };
        let (x, y) = (Axis::time(end, 4), Axis::linear("", high, 3));
        let mut chart = Chart::begin(SMALL, &about, x, y);
        match apart {
            true => lines
                .iter()
                .enumerate()
                .for_each(|(worker, line)| chart.thin(worker, &format!("worker {worker}"), line)),
            false => band(&mut chart, lines),
        }
        let _ = write!(
            html,
            "<div data-s=\"{number}\"><h4><b class=\"{}\">{}</b> {name}</h4>\n{}<p>{}</p></div>\n",
            class(number),
            letter(number),
            chart.finish(),
            escape(&load_in_words(run))
        );
    }
    html.push_str("</div>\n</figure>\n");
    html
}

fn load_in_words(run: &Run) -> String {
    let samples = &run.outcome.samples;
    let all = || samples.iter().flat_map(|it| it.loads.iter().copied().enumerate());
    let Some((worker, most)) = all().max_by_key(|&(worker, load)| (load, std::cmp::Reverse(worker))) else {
        return "No samples were taken.".to_owned();
    };
    let (sum, number) =
        all().fold((0u64, 0u64), |(sum, number), (_, load)| (sum + u64::from(load), number + 1));
    format!(
        "Mean {:.1} at a worker; at most {}, at worker {worker}.",
        sum as f64 / number.max(1) as f64,
        count(u64::from(most))
    )
}

fn band(chart: &mut Chart, lines: &[Load]) {
    let mut times: Vec<f64> = lines.iter().flatten().map(|it| it.0).collect();
    times.sort_unstable_by(f64::total_cmp);
    times.dedup();
    let (mut low, mut mean, mut high) = (Load::new(), Load::new(), Load::new());
    for time in times {
        let find = |it: &Load| it.binary_search_by(|it| it.0.total_cmp(&time)).ok().map(|at| it[at].1);
        let values: Vec<f64> = lines.iter().filter_map(find).collect();
        low.push((time, values.iter().copied().fold(f64::INFINITY, f64::min)));
        mean.push((time, values.iter().sum::<f64>() / values.len().max(1) as f64));
        high.push((time, values.iter().copied().fold(0.0, f64::max)));
    }
    chart.band(&low, &high, "from the least to the most loaded worker");
    chart.thin(0, "mean", &mean);
}
