// Six charts over the same minutes, with one cursor: pointing at one reads all of them.
//
// Samples come a second apart: those the router kept, then one with each overview. An unknown value is a gap.

import { byId, el, setText } from "./dom.js";
import * as format from "./format.js";

// As many as the router keeps.
const SAMPLES_MAX = 900;
// Two samples nearer than this are one: the last of the history and the first of the stream.
const NEAR_MS = 500;
const HEIGHT = 118;
const SPANS = [["1 min", 60], ["5 min", 300], ["15 min", 900]];
const CLASSES_MAX = 6;
// Seconds between two times of the axis.
const TIME_STEPS = [5, 10, 15, 30, 60, 120, 300];

const CHARTS = [
  { title: "Time to first token", say: format.ms, axis: format.ms, series: [["p50", "ttft_p50_ms", "--c1"], ["p99", "ttft_p99_ms", "--c2"]] },
  { title: "Requests a second", say: format.rate, axis: format.tenths, series: [["", "requests_per_s", "--c1"]] },
  { title: "Answer tokens a second", say: format.short, axis: format.short, wholes: true, series: [["", "answer_tokens_per_s", "--c1"]] },
  { title: "Prompt tokens a second", say: format.short, axis: format.short, wholes: true, series: [["", "prompt_tokens_per_s", "--c1"]] },
  { title: "Hit ratio", say: format.percent, axis: format.percent, top: 1, series: [["", "hit_ratio", "--c1"]] },
  { title: "Queue", say: format.count, axis: format.count, wholes: true, byClass: true, series: [] },
];

const COLOURS = ["--c2", "--c1", "--c3", "--c4", "--c5", "--c6"];

let samples = [];
let span_s = SPANS[1][1];
let drawn = [];
let drawnClasses = "";

export function start() {
  for (const [text, seconds] of SPANS) {
    const input = el("input", { type: "radio", name: "span", value: seconds });
    input.checked = seconds === span_s;
    input.addEventListener("change", () => { span_s = seconds; draw(); });
    byId("span").append(el("label", {}, input, el("span", {}, text)));
  }
  addEventListener("maitre:theme", () => { if (drawn.length > 0) build(); });
  new ResizeObserver(() => {
    for (const { plot, box } of drawn) if (box.clientWidth > 0) plot.setSize({ width: box.clientWidth, height: HEIGHT });
  }).observe(byId("charts"));
}

/** The router's history replaces ours: after a lost connection it has what we missed. */
export function load(history) {
  samples = history.at_ms.map((at_ms, index) => ({
    at_ms,
    values: Object.fromEntries(Object.entries(history)
      .filter(([key, values]) => key !== "at_ms" && Array.isArray(values))
      .map(([key, values]) => [key, values[index]])),
    waiting: Object.fromEntries(Object.entries(history.waiting ?? {}).map(([name, values]) => [name, values[index]])),
  })).slice(-SAMPLES_MAX);
  draw();
}

export function add(overview) {
  const last = samples.at(-1);
  if (last !== undefined && overview.at_ms - last.at_ms < NEAR_MS) return;
  const classes = overview.queue?.classes ?? [];
  samples.push({
    at_ms: overview.at_ms,
    values: overview.now,
    waiting: Object.fromEntries(classes.map((it) => [it.class, it.waiting])),
  });
  if (samples.length > SAMPLES_MAX) samples.shift();
  draw();
}

function classes() {
  return Object.keys(samples.at(-1)?.waiting ?? {}).slice(0, CLASSES_MAX);
}

function build() {
  for (const { plot } of drawn) plot.destroy();
  const names = classes();
  drawnClasses = names.join("\n");
  drawn = [];
  const figures = CHARTS.map((chart) => {
    const series = chart.byClass
      ? names.map((name, index) => [name, (it) => it.waiting[name], COLOURS[index]])
      : chart.series.map(([label, key, colour]) => [label, (it) => it.values[key], colour]);
    return figure(chart, series);
  });
  byId("charts").replaceChildren(...figures.map((it) => it.element));
  for (const it of figures) {
    const plot = new window.uPlot(options(it, it.box.clientWidth), data(it.series), it.box);
    drawn.push({ ...it, plot });
  }
}

function figure(chart, series) {
  const readings = series.map(([label, , colour]) => ({ label, colour, value: el("b") }));
  const legend = el("p.legend", {}, ...readings.map(({ label, colour, value }) => {
    const dash = el("i");
    dash.style.background = `var(${colour})`;
    return el("span", {}, label === "" ? null : dash, label, " ", value);
  }));
  const box = el("div.plot", { role: "img", "aria-label": `${chart.title} over time; the newest values are above` });
  const element = el("figure", {}, el("figcaption", {}, el("h3", {}, chart.title), legend), box);
  return { chart, series, readings, element, box };
}

function options({ chart, series, readings }, width) {
  const colour = window.plotting.colours();
  const axis = window.plotting.axis(colour);
  const top = (max) => chart.top ?? Math.max(max * 1.1, 1e-9);
  return {
    width: Math.max(width, 100),
    height: HEIGHT,
    padding: [8, 20, 0, 0],
    legend: { show: false },
    cursor: { sync: { key: "maitre" }, drag: { x: false, y: false }, points: { size: 6 } },
    scales: {
      x: { range: () => bounds() },
      y: { range: (_, __, max) => [0, max > 0 ? top(max) : chart.top ?? 1] },
    },
    axes: [
      { ...axis, grid: { show: false }, space: 60, size: 22, incrs: TIME_STEPS, values: (_, ticks) => ticks.map(clock) },
      {
        ...axis, size: 54, space: 30, values: (_, ticks) => ticks.map((it) => (chart.wholes && !Number.isInteger(it) ? "" : chart.axis(it))),
      },
    ],
    series: [
      {},
      ...series.map(([label, , name]) => ({
        label, stroke: colour(name), width: 1.6, points: window.plotting.points(colour(name)),
      })),
    ],
    hooks: {
      setCursor: [(plot) => read(plot, chart, readings)],
      setData: [(plot) => read(plot, chart, readings)],
    },
  };
}

/** The values under the cursor; without one the newest. */
function read(plot, chart, readings) {
  const at = plot.cursor.idx ?? plot.data[0].length - 1;
  readings.forEach(({ value }, index) => setText(value, chart.say(plot.data[index + 1]?.[at] ?? null)));
  const pointed = plot.cursor.idx === null || plot.cursor.idx === undefined ? null : plot.data[0][at] * 1000;
  note(pointed);
}

function note(pointed) {
  const filling = samples.length < 2 ? "Filling up, a sample a second." : "";
  setText(byId("charts-note"), pointed === null ? filling : `At ${format.time(pointed)}`);
}

function clock(at_s) {
  const text = format.time(at_s * 1000);
  return at_s % 60 === 0 ? text.slice(0, 5) : text;
}

/** Ends with the newest sample. At most the span and what there is to show, and at least a minute. */
function bounds() {
  const end = (samples.at(-1)?.at_ms ?? Date.now()) / 1000;
  const first = (samples[0]?.at_ms ?? Date.now()) / 1000;
  return [Math.max(end - span_s, Math.min(first, end - SPANS[0][1])), end];
}

function data(series) {
  const [from] = bounds();
  const recent = samples.filter((it) => it.at_ms / 1000 >= from);
  return [recent.map((it) => it.at_ms / 1000), ...series.map(([, of]) => recent.map((it) => of(it) ?? null))];
}

function draw() {
  if (byId("panel").hidden || window.uPlot === undefined) return;
  // Classes come from the settings: the charts are built when their names are known, and again if those change.
  if (drawn.length === 0 || classes().join("\n") !== drawnClasses) return build();
  for (const { plot, series } of drawn) plot.setData(data(series));
}
