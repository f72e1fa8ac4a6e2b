// The list of decisions, newest first: where each request went, why, and whether the prediction held.
//
// A list that moves cannot be read, so it stands still under the pointer and while the arrow keys are used, and shows
// how many are new. Rows are updated in place when a request ends.

import { call } from "./api.js";
import { bar, byId, el, PHONE, plate, setAttribute, setChildren, setHidden, setText } from "./dom.js";
import * as format from "./format.js";
import * as words from "./words.js";

// Rows that are shown, and decisions that are kept for the filters. A phone has no list that scrolls by itself, and what
// is below the rows must stay within reach.
const ROWS_MAX = matchMedia(PHONE).matches ? 20 : 200;
const KEPT_MAX = 2_000;
const PAGE = 100;

// By number; a decision that arrives again replaces the first.
const kept = new Map();
const rows = new Map();
const filter = { worker: "", why: "", show: "" };

// The third filter: its choices, with what the router is asked for and which decisions pass.
const FAILED = ["failed", "broke-off", "declined"];
const slower = (limit_ms) => ({ query: { slower_than_ms: limit_ms }, passes: (it) => untilFirstToken(it) > limit_ms });
const SHOWN = {
  "": { name: "every outcome", query: {}, passes: () => true },
  failed: { name: "failed", query: { outcome: FAILED.join(",") }, passes: (it) => FAILED.includes(it.outcome) },
  "slow-1": { name: "slow: first token after 1 s", ...slower(1000) },
  "slow-5": { name: "slow: first token after 5 s", ...slower(5000) },
};
// The router's clock, as of the last overview.
let routerNow = 0;

/** With time in the queue; of a request in flight, so far; of an answer in one piece, to its end. As the router counts it. */
function untilFirstToken(it) {
  const soFar = it.outcome === "in-flight" ? Math.max(routerNow - it.at_ms, 0) : 0;
  return it.waited_ms + (it.actual_ttft_ms ?? it.total_ms ?? soFar);
}

const still = { pressed: false, pointed: false, walked: false };
let shownFirst = Infinity;
let skipped = 0;
let rowsMax = ROWS_MAX;
let traffic = false;
let open = () => {};
let workersKnown = "";

/** `opened(number)` is called for a decision that is clicked. */
export function start(opened) {
  open = opened;
  const body = byId("decisions-rows");
  byId("decisions-why").append(el("option", { value: "" }, "every reason"), ...Object.keys(words.WHY).map((it) => el("option", { value: it }, words.why(it))));
  byId("decisions-worker").append(el("option", { value: "" }, "every worker"));
  byId("decisions-show").append(...Object.entries(SHOWN).map(([value, { name }]) => el("option", { value }, name)));
  for (const key of ["worker", "why", "show"]) {
    byId(`decisions-${key}`).addEventListener("change", (event) => {
      filter[key] = event.target.value;
      rowsMax = ROWS_MAX;
      draw(true);
      load().catch(() => { /* The list stays; the head of the page says that the router is gone. */ });
    });
  }
  byId("decisions-pause").addEventListener("click", () => hold("pressed", !still.pressed));
  byId("decisions-older").addEventListener("click", older);
  const scroll = byId("decisions-scroll");
  // A touch scrolls and does not point.
  scroll.addEventListener("pointerenter", (event) => hold("pointed", event.pointerType === "mouse"));
  scroll.addEventListener("pointerleave", () => hold("pointed", false));
  body.addEventListener("focusin", (event) => {
    rove(event.target.closest("tr"));
    // A clicked row has the focus too; for it the pointer decides.
    hold("walked", event.target.matches(":focus-visible"));
  });
  body.addEventListener("focusout", (event) => { if (!body.contains(event.relatedTarget)) hold("walked", false); });
  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (row !== null) open(Number(row.dataset.number));
  });
  body.addEventListener("keydown", walk);
}

function walk(event) {
  const row = event.target.closest("tr");
  const all = [...byId("decisions-rows").rows];
  const at = all.indexOf(row);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1, PageDown: at + 10, PageUp: at - 10 }[event.key];
  if (to !== undefined) all[Math.min(Math.max(to, 0), all.length - 1)]?.focus();
  else if (event.key === "Enter" || event.key === " ") open(Number(row.dataset.number));
  else return;
  event.preventDefault();
}

/** One row can be reached with Tab: the first, or the one that has the focus. */
function rove(row) {
  for (const it of byId("decisions-rows").rows) setAttribute(it, "tabindex", it === row ? "0" : "-1");
}

function hold(cause, is) {
  if (still[cause] === is) return;
  still[cause] = is;
  setAttribute(byId("decisions-pause"), "aria-pressed", String(still.pressed));
  setText(byId("decisions-pause"), still.pressed ? "Resume" : "Pause");
  draw(false);
}

const isStill = () => still.pressed || still.pointed || still.walked;

/** Decisions of one event of the stream. */
export function add({ decisions, skipped: more }) {
  skipped += more ?? 0;
  remember(decisions);
  draw(false);
}

/** The router was restarted: its numbers begin again, and the old ones are invalid. */
export function forget() {
  kept.clear();
  skipped = 0;
  rowsMax = ROWS_MAX;
  draw(true);
}

/** The newest that the router keeps: at the start, and after the stream was lost. */
export async function load() {
  await ask({});
  draw(true);
}

async function ask(more) {
  const { worker, why, show: shown } = filter;
  const query = new URLSearchParams({ limit: PAGE, ...more, ...SHOWN[shown].query });
  for (const [key, value] of Object.entries({ worker, why })) if (value !== "") query.set(key, value);
  const { decisions } = await call("GET", `decisions?${query}`);
  remember(decisions);
  return decisions.length;
}

async function older() {
  const button = byId("decisions-older");
  const oldest = Math.min(...rows.keys());
  button.disabled = true;
  try {
    const found = await ask({ before: oldest });
    rowsMax += found;
    draw(false);
    if (found === 0) setText(button, "There are no older ones");
  } catch (error) {
    setText(button, `Show older ones (${error.message})`);
  } finally {
    button.disabled = false;
  }
}

/**
 * Keeps these and forgets the oldest others, but none that is shown: a list that stands still keeps its rows, and old ones
 * that were asked for are not the first to go.
 */
function remember(decisions) {
  for (const it of decisions) kept.set(it.number, it);
  if (kept.size <= KEPT_MAX) return;
  const wanted = new Set([...rows.keys(), ...decisions.map((it) => it.number)]);
  const numbers = [...kept.keys()].filter((it) => !wanted.has(it)).sort((one, other) => one - other);
  for (const it of numbers.slice(0, kept.size - KEPT_MAX)) kept.delete(it);
}

/** Decisions that pass the filters, newest first. */
function fitting() {
  const passes = (it) => (filter.worker === "" || String(it.worker) === filter.worker) && (filter.why === "" || it.why === filter.why)
    && SHOWN[filter.show].passes(it);
  return [...kept.values()].filter(passes).sort((one, other) => other.number - one.number);
}

function draw(anew) {
  const all = fitting();
  if (anew || !isStill()) shownFirst = Infinity;
  else if (shownFirst === Infinity) shownFirst = newestRow();
  const upToFirst = all.filter((it) => it.number <= shownFirst);
  const news = all.length - upToFirst.length;
  const shown = upToFirst.slice(0, rowsMax);
  const numbers = new Set(shown.map((it) => it.number));
  for (const number of rows.keys()) if (!numbers.has(number)) rows.delete(number);
  const elements = shown.map((it) => {
    if (!rows.has(it.number)) rows.set(it.number, makeRow(it.number));
    const row = rows.get(it.number);
    row.show(it);
    return row.element;
  });
  setChildren(byId("decisions-rows"), elements);
  if (elements.length > 0 && (!isStill() || !elements.some((it) => it.tabIndex === 0))) rove(elements[0]);
  note(news);
  setHidden(byId("decisions-empty"), shown.length > 0);
  setText(byId("decisions-empty"), emptiness());
  setHidden(byId("decisions-older"), shown.length < Math.min(PAGE / 2, ROWS_MAX));
}

function newestRow() {
  const first = byId("decisions-rows").rows[0];
  return first === undefined ? Infinity : Number(first.dataset.number);
}

function note(news) {
  const paused = still.pressed ? "Paused" : "Paused while you read";
  const parts = [];
  if (isStill()) parts.push(news > 0 ? `${paused}, ${format.count(news)} new` : paused);
  if (skipped > 0) parts.push(`${format.count(skipped)} not listed: too many at once`);
  setText(byId("decisions-note"), parts.join(" · "));
}

function emptiness() {
  if (Object.values(filter).some((it) => it !== "")) return "No decision matches the filter.";
  return traffic
    ? "The decisions made so far are no longer kept. The next request shows up here."
    : "No traffic yet. Send a request to the router, and its decision shows up here.";
}

/** Updates the workers of the filter. */
export function show(overview) {
  traffic = overview.totals.requests > 0;
  routerNow = overview.at_ms;
  const text = overview.workers.map((it) => `${it.id} ${it.url}`).join("\n");
  if (text === workersKnown) return;
  workersKnown = text;
  const select = byId("decisions-worker");
  const options = overview.workers.map((it) => el("option", { value: it.id }, `${it.id} · ${it.url.replace(/^https?:\/\//, "")}`));
  select.replaceChildren(el("option", { value: "" }, "every worker"), ...options);
  select.value = filter.worker;
}

/** The numbers of the rows in order. */
export const listed = () => [...byId("decisions-rows").rows].map((it) => Number(it.dataset.number));

/** Back to the row of a decision, if it is still there. */
export function focus(number) {
  rows.get(number)?.element.focus();
}

function makeRow(number) {
  const cell = (name, ...children) => el(`td.${name}`, { role: "gridcell" }, ...children);
  const [time, model, prompt, reason] = [el("span"), el("span"), el("span"), el("span")];
  const cached = bar("cached");
  const where = el("span");
  const [predicted, actual] = [el("span"), el("span")];
  const outcome = el("span.tag");
  const element = el(
    "tr", { role: "row", tabindex: "-1", "data-number": number },
    cell("time", time), cell("model", model), cell("prompt", cached.element, prompt), cell("worker", where), cell("why", reason),
    cell("predicted.n", predicted), cell("actual.n", actual), cell("outcome", outcome),
  );

  function show(it) {
    setText(time, format.time(it.at_ms));
    setText(model, it.model ?? "any model");
    setText(prompt, `${format.short(it.expected_cached_tokens)} of ${format.tokens(it.prompt_tokens)}`);
    cached.set(it.prompt_tokens > 0 ? it.expected_cached_tokens / it.prompt_tokens : 0);
    cached.element.classList.remove("high");
    if (where.dataset.url !== it.url) {
      where.dataset.url = it.url;
      where.replaceChildren(plate(it.worker, it.url));
    }
    setText(reason, words.why(it.why) + (it.attempt > 0 ? `, attempt ${it.attempt + 1}` : ""));
    setText(predicted, format.ms(it.predicted_ttft_ms));
    setText(actual, format.ms(it.actual_ttft_ms));
    const { mark, tone, name } = words.outcome(it.outcome);
    setText(outcome, `${mark} ${name}`);
    setAttribute(outcome, "data-tone", tone);
  }

  return { element, show };
}
