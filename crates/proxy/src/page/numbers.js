// The six key numbers, and the state of the router above them.

import { byId, el, setAttribute, setHidden, setText } from "./dom.js";
import * as format from "./format.js";

// Chosen: a prediction that is off by half misleads.
const ERROR_HIGH = 0.5;

const TILES = [
  {
    name: "ttft", title: "Time to first token",
    value: ({ now }) => format.parts(now.ttft_p50_ms, "ms"),
    about: "Of the last ten seconds. A request that still waits for its first token counts as one that takes longer than that.",
    note: ({ now }) => `p50 · p99 ${format.ms(now.ttft_p99_ms)}${longestWait(now)}`,
    tone: ({ now }) => (longestWait(now) === "" ? null : "fair"),
  },
  {
    name: "requests", title: "Requests", about: "Requests that arrive.",
    value: ({ now }) => format.parts(now.requests_per_s, "rate"),
    note: ({ totals }) => `${format.count(totals.in_flight)} in flight`,
  },
  {
    name: "answers", title: "Answer tokens",
    value: ({ now }) => format.parts(now.answer_tokens_per_s, "tokenRate"),
    note: ({ now }) => `prompt tokens ${format.tokenRate(now.prompt_tokens_per_s)}`,
  },
  {
    name: "hits", title: "Hit ratio",
    value: ({ now }) => format.parts(now.hit_ratio, "percent"),
    note: () => "of prompt tokens cached",
  },
  {
    name: "waiting", title: "Queue",
    value: ({ queue, now }) => format.parts(queue?.waiting ?? now.waiting, "count"),
    note: ({ queue }) => waiting(queue),
    tone: ({ queue, now }) => ((queue?.waiting ?? now.waiting) > 0 ? "fair" : null),
  },
  {
    name: "prediction", title: "Prediction error",
    about: "Median of |predicted − actual| / actual TTFT. The predictor of llm-d claims about 5 %, as a mean.",
    value: ({ prediction }) => format.parts(prediction.median_error, "percent"),
    note: ({ prediction }) => (prediction.median_error === null
      ? "no stream measured yet"
      : `of TTFT, median of ${format.count(prediction.count)}`),
    tone: ({ prediction }) => (prediction.median_error > ERROR_HIGH ? "fair" : null),
  },
];

// Chosen: a shorter wait for a first token is no news.
const WAIT_LONG_MS = 1000;

/** The longest wait for a first token, where it is longer than what the percentiles show. */
function longestWait({ longest_wait_ms: longest, ttft_p99_ms: p99 }) {
  return longest > Math.max(p99 ?? 0, WAIT_LONG_MS) ? ` · longest wait ${format.ms(longest)}` : "";
}

function waiting(queue) {
  if (!queue?.enabled) return "queue is off";
  const some = queue.classes.filter((it) => it.waiting > 0);
  if (some.length === 0) return "queue is empty";
  return some.map((it) => `${it.class} ${format.count(it.waiting)}${largestTenant(it)}`).join(" · ");
}

/** Who floods. */
function largestTenant({ waiting, largest_tenant: tenant, largest_tenant_waiting: own }) {
  return tenant ? ` (${own === waiting ? "all" : format.count(own)} of ${tenant})` : "";
}

const tiles = new Map();

export function start() {
  for (const tile of TILES) {
    const [number, unit, note] = [el("b"), el("small"), el("p.quiet")];
    const box = el("div.number", { "data-number": tile.name, title: tile.about }, el("h2", {}, tile.title), el("p.value", {}, number, unit), note);
    tiles.set(tile.name, { box, number, unit, note });
    byId("numbers").append(box);
  }
}

export function show(overview) {
  for (const tile of TILES) {
    const { box, number, unit, note } = tiles.get(tile.name);
    const [value, of] = tile.value(overview);
    setText(number, value);
    setText(unit, of);
    setText(note, tile.note(overview));
    setAttribute(box, "data-tone", tile.tone?.(overview) ?? null);
  }
  showTotals(overview);
  showRouter(overview);
}

function showTotals({ totals, at_ms }) {
  const line = byId("totals");
  const cells = [
    ["requests", "requests"], ["answered", "answered"], ["refused", "refused"], ["failed", "failed"],
    ["disconnected", "client disconnected"], ["prompt_tokens", "prompt tokens"], ["cached_tokens", "of them cached"],
    ["answer_tokens", "answer tokens"],
  ];
  if (line.childElementCount === 0) {
    line.append("Since the start: ");
    for (const [key, words] of cells) line.append(el("span", {}, el("b", { "data-total": key }), ` ${words}`), " ");
  }
  for (const cell of line.querySelectorAll("[data-total]")) setText(cell, format.count(totals[cell.dataset.total]));
  // When the totals were taken, for a comparison with /metrics.
  setAttribute(line, "data-at", at_ms);
}

function showRouter(overview) {
  setHidden(byId("facts"), false);
  const ready = byId("ready");
  const [word, mark, tone] = overview.draining
    ? ["draining", "◐", "fair"]
    : overview.ready ? ["ready", "●", "good"] : ["not ready", "✕", "bad"];
  setText(ready, `${mark} ${word}`);
  setAttribute(ready, "data-tone", tone);
  const why = overview.not_ready ? `/readyz answers 503: ${overview.not_ready}.` : null;
  setAttribute(ready, "data-tip", why);
  setAttribute(ready, "tabindex", why === null ? null : "0");
  const others = Object.entries(overview.strategies ?? {});
  const strategy = byId("strategy");
  setText(strategy, overview.strategy + (others.length > 0 ? ` +${others.length}` : ""));
  setAttribute(strategy, "data-tip", others.length > 0 ? others.map(([model, name]) => `${model}: ${name}`).join(", ") : null);
  setAttribute(strategy, "tabindex", others.length > 0 ? "0" : null);
  setText(byId("uptime"), format.duration(overview.uptime_s));
  setText(byId("version"), overview.version);
}
