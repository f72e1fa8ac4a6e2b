//! The charts of the report: headings and sentences as HTML, lines as JSON that `page.js` draws with uPlot.
//!
//! A plot is `{id, x, y, at, series, summary}`. `at` are positions on the x axis; every series has one value, or null,
//! for each. `summary` says what the numbers beside the names are until the reader points at a position. An axis has a
//! `title`, a `unit` to write numbers in, and perhaps `log`, an `end`, or a `target` to mark. A series with a `strategy`
//! gets its colour. The `look` of a series is one of those in `page.js`.

use std::fmt::Write as _;

use maitre_sim::report::ReportRow;
use serde_json::{Value, json};

use super::view::View;
use super::words::{count, escape, span};
use crate::Run;
use crate::series::{self, Buckets, WorkerLoads, mean};
use crate::table::{lost, seconds};

/// Points of a distribution: one for every four pixels of a wide chart.
const SHARE_POINTS: usize = 200;
/// Buckets of a run in charts over time.
const BUCKETS: usize = 60;
/// Points of a worker's load: half of the samples, as many as a small chart can show.
const LOAD_POINTS: usize = 120;
/// More workers than this are drawn as a band from the least to the most loaded.
const WORKERS_APART: usize = 16;
/// Axes of times begin here at the lowest.
const TTFT_MIN_S: f64 = 0.001;

/// All charts: markup to place, and data for the script.
#[derive(Debug, Default)]
pub(super) struct Charts {
    pub(super) html: String,
    plots: Vec<Value>,
}

impl Charts {
    pub(super) fn new(view: &View<'_>) -> Charts {
        let mut charts = Charts::default();
        charts.first_tokens(view);
        let requested: Option<Vec<f64>> = view.speeds.iter().map(|&it| view.requested(it)).collect();
        match requested {
            Some(requested) if view.sweeps() => charts.by_load(view, &requested),
            Some(_) => charts.throughput(view),
            // All requests arrive at one moment: there is no rate.
            None => {}
        }
        charts.loads(view);
        charts.hits(view);
        charts
    }

    /// JSON that may stand inside a `script` element.
    pub(super) fn data(&self) -> String {
        let mut plots = json!(self.plots);
        shorten(&mut plots);
        plots.to_string().replace('<', "\\u003c")
    }

    fn figure(&mut self, heading: &str, reading: &str, plot: Value) {
        let _ = write!(
            self.html,
            "<figure>\n<h3>{heading}</h3>\n<p class=\"reading\">{reading}</p>\n<div class=\"chart\">\
             <div class=\"plot\" id={} role=\"img\" aria-label=\"{heading}. {reading}\"></div></div>\n</figure>\n",
            plot["id"]
        );
        self.plots.push(plot);
    }

    fn first_tokens(&mut self, view: &View<'_>) {
        let target = view.study.targets.first_token.as_secs_f64();
        let sorted: Vec<Vec<f64>> = view.runs.iter().map(|it| sorted_first_tokens(it)).collect();
        let ends = || sorted.iter().flat_map(|it| it.first().into_iter().chain(it.last())).copied();
        let low = ends().fold(target, f64::min).max(TTFT_MIN_S);
        let high = ends().fold(target, f64::max).max(low * 2.0);
        let step = |it: usize| low * (high / low).powf(it as f64 / (SHARE_POINTS - 1) as f64);
        // The last is exact: rounding must not leave out the slowest request.
        let at: Vec<f64> = (0..SHARE_POINTS - 1).map(step).chain([high]).collect();
        let series = strategies(view, "line", |strategy, run| {
            let sorted = &sorted[strategy];
            let under = |value| series::share_under(sorted, sorted.len() + lost(&run.row) as usize, value);
            (json!(at.iter().map(|&it| under(it)).collect::<Vec<f64>>()), Some(under(target)))
        });
        let reading = "The share of requests whose first token came within the time on the x axis. Further left is \
                       faster. A request without an answer counts as slower than any other.";
        let plot = json!({
            "id": "ttft", "at": at, "series": series, "summary": format!("within {}", span(target)),
            "x": {"title": "time to first token (log scale)", "unit": "seconds", "log": true, "target": target},
            "y": {"title": "share of requests", "unit": "share", "end": 1.0},
        });
        self.figure("Time to first token", reading, plot);
    }

    fn throughput(&mut self, view: &View<'_>) {
        let buckets = Buckets::over(view.end_s(), BUCKETS);
        let requested = series::requested(view.arrivals(), &buckets);
        let mut series = vec![json!({"name": "requested", "look": "area", "values": requested})];
        series.extend(strategies(view, "line", |_, run| {
            let served = series::served(run.outcome.answers.iter().map(|it| &it.metrics), &buckets);
            (json!(served), Some(run.row.output_tokens_per_s))
        }));
        let plot = json!({
            "id": "tokens", "at": buckets.middles(), "series": series, "summary": "whole run",
            "x": {"title": "time since start", "unit": "clock", "end": view.end_s()},
            "y": {"title": "output tokens per second", "unit": "count"},
        });
        let reading = format!(
            "Shaded: tokens that arriving requests ask for, counted on arrival. Lines: tokens served, in intervals of \
             {}. A line that continues after the shade ends is working off a backlog.",
            seconds(buckets.seconds)
        );
        self.figure("Output tokens, requested and served", &reading, plot);
    }

    /// Two charts with one point for each speed and strategy.
    fn by_load(&mut self, view: &View<'_>, requested: &[f64]) {
        let at: Vec<f64> = [0.0].into_iter().chain(requested.iter().copied()).collect();
        let by_speed = view.by_speed();
        let series = |value: fn(&ReportRow) -> f64| {
            strategies(view, "dots", |_, run| {
                let has_answers = |it: &&&ReportRow| it.strategy == run.row.strategy && it.requests > 0;
                let points = by_speed.iter().map(|it| it.1.iter().find(has_answers).map(|it| value(it)));
                let values: Vec<Option<f64>> = [None].into_iter().chain(points).collect();
                (json!(values), values.last().copied().flatten())
            })
        };
        let plot = |id: &str, series: Vec<Value>, y: Value| {
            let summary = format!("at {}×", view.speeds.last().unwrap_or(&view.speed));
            let x = json!({"title": "output tokens requested per second", "unit": "count", "end": at.last()});
            json!({"id": id, "at": at, "series": series, "summary": summary, "x": x, "y": y})
        };
        let mut served = series(|it| it.output_tokens_per_s);
        served.push(json!({"name": "all requested", "look": "reference", "values": at}));
        let end = view.all.iter().map(|it| it.row.output_tokens_per_s).fold(1.0, f64::max);
        let y = json!({"title": "output tokens served per second", "unit": "count", "end": end * 1.05});
        let reading = "One point for each speed. On the dashed line the fleet serves all requested tokens; a line below \
                       it has reached a limit. On a short trace all lines bend a little, because the last answers end \
                       after the last arrival.";
        self.figure("Output tokens served, by load", reading, plot("served", served, y));
        let delay = series(|it| it.ttft_mean_s.max(TTFT_MIN_S));
        let y = json!({"title": "mean TTFT (log scale)", "unit": "seconds", "log": true});
        let reading = "One point for each speed. Lower is better.";
        self.figure("Mean time to first token, by load", reading, plot("delay", delay, y));
    }

    fn hits(&mut self, view: &View<'_>) {
        let buckets = Buckets::over(view.span_s(), BUCKETS);
        let series = strategies(view, "line", |_, run| {
            let hits = series::hits(run.outcome.answers.iter().map(|it| &it.metrics), &buckets);
            (json!(hits), Some(run.row.hit_ratio))
        });
        let plot = json!({
            "id": "hits", "at": buckets.middles(), "series": series, "summary": "whole run",
            "x": {"title": "time since start", "unit": "clock", "end": view.span_s()},
            "y": {"title": "share of prompt tokens found in a cache", "unit": "share"},
        });
        let reading = format!("By arrival time, in intervals of {}.", seconds(buckets.seconds));
        self.figure("Hit ratio over time", &reading, plot);
    }

    /// A small chart for each strategy, all on the same axes.
    fn loads(&mut self, view: &View<'_>) {
        let loads = view.runs.iter().map(|it| WorkerLoads::new(&it.outcome.samples, LOAD_POINTS));
        let loads: Vec<WorkerLoads> = loads.collect();
        let apart = loads.iter().all(|it| it.workers.len() <= WORKERS_APART);
        let reading = match apart {
            true => "One line for each worker. Lines close together mean an even load.",
            false => "Shaded: least to most loaded worker. Line: the mean. A narrow band means an even load.",
        };
        let _ = write!(
            self.html,
            "<figure>\n<h3>Load of the workers over time</h3>\n<p class=\"reading\">Requests at each worker, running \
             and waiting; all strategies on the same axes. {reading}</p>\n<div class=\"many\">\n"
        );
        let end_s = loads.iter().filter_map(|it| it.at_s.last().copied()).fold(1.0, f64::max);
        let most =
            loads.iter().flat_map(|it| it.workers.iter().flatten().flatten().copied()).fold(1.0, f64::max);
        for (strategy, (run, loads)) in view.runs.iter().zip(&loads).enumerate() {
            let (name, summary) = (escape(&run.row.strategy), load_in_words(run));
            let _ = writeln!(
                self.html,
                "<div data-strategy=\"{strategy}\"><h4>{name}</h4>\n<div class=\"plot\" id=\"load{strategy}\" \
                 role=\"img\" aria-label=\"Load of the workers under {name}. {summary}\"></div><p>{summary}</p></div>"
            );
            self.plots.push(json!({
                "id": format!("load{strategy}"), "at": loads.at_s, "summary": summary,
                "series": if apart { each_worker(loads) } else { band(loads) },
                "x": {"unit": "clock", "end": end_s}, "y": {"unit": "count", "end": most * 1.05},
            }));
        }
        self.html.push_str("</div>\n</figure>\n");
    }
}

/// One series for each strategy, from its values and the number beside its name.
fn strategies(view: &View<'_>, look: &str, line: impl Fn(usize, &Run) -> (Value, Option<f64>)) -> Vec<Value> {
    let series = |(strategy, run): (usize, &&Run)| {
        let (values, summary) = line(strategy, run);
        let name = &run.row.strategy;
        json!({"name": name, "look": look, "strategy": strategy, "values": values, "summary": summary})
    };
    view.runs.iter().enumerate().map(series).collect()
}

fn sorted_first_tokens(run: &Run) -> Vec<f64> {
    let answers = run.outcome.answers.iter();
    let mut values: Vec<f64> = answers.map(|it| it.metrics.first_token.as_secs_f64()).collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

fn each_worker(loads: &WorkerLoads) -> Vec<Value> {
    let workers = loads.workers.iter().enumerate();
    workers.map(|(at, it)| json!({"name": format!("worker {at}"), "look": "thin", "values": it})).collect()
}

fn band(loads: &WorkerLoads) -> Vec<Value> {
    let known = |at: usize| loads.workers.iter().filter_map(move |it| it[at]);
    let values = |of: fn(&mut dyn Iterator<Item = f64>) -> Option<f64>| -> Vec<Option<f64>> {
        (0..loads.at_s.len()).map(|at| of(&mut known(at))).collect()
    };
    vec![
        json!({"name": "most loaded worker", "look": "edge", "values": values(|it| it.reduce(f64::max))}),
        json!({"name": "least loaded worker", "look": "edge", "values": values(|it| it.reduce(f64::min))}),
        json!({"name": "mean", "look": "thin", "values": values(|it| mean(it))}),
    ]
}

fn load_in_words(run: &Run) -> String {
    let all = || run.outcome.samples.iter().flat_map(|it| it.loads.iter().copied().enumerate());
    let most = all().max_by_key(|&(worker, load)| (load, std::cmp::Reverse(worker)));
    match (most, mean(all().map(|it| f64::from(it.1)))) {
        (Some((worker, most)), Some(mean)) => {
            format!("Mean {mean:.1} per worker; at most {}, at worker {worker}.", count(u64::from(most)))
        }
        _ => "No samples were taken.".to_owned(),
    }
}

/// Keeps five digits of every number: more cannot be seen, and would triple the file.
fn shorten(value: &mut Value) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(shorten),
        Value::Object(all) => all.values_mut().for_each(shorten),
        Value::Number(number) if number.is_f64() => {
            let short = number.as_f64().and_then(|it| format!("{it:.4e}").parse::<f64>().ok());
            *value = short.map_or(Value::Null, Value::from);
        }
        _ => {}
    }
}
