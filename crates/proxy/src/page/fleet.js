// The workers: one row each, sorted and filtered, in pages where there are many, with a plan of the floor above.
//
// Rows are kept and only their numbers change, so that focus, selection and hover survive the next second.

import { bar, byId, el, plate, setAttribute, setChildren, setHidden, setText } from "./dom.js";
import * as control from "./control.js";
import * as format from "./format.js";
import * as words from "./words.js";

// Up to here all rows are in the table; beyond, pages of this many.
const ROWS_MAX = 100;
const PAGE_ROWS = 50;
// From here on a plan of all workers says more at a glance than their rows.
const FLOOR_MIN = 13;
const HEARD_LATE_MS = 5_000;

const COLUMNS = [
  { name: "Worker", by: (it) => it.id },
  { name: "State", by: (it) => `${it.draining ? 1 : 0}${it.state}` },
  { name: "Promised work", by: (it) => it.prefill_tokens, down: true },
  { name: "Requests", by: (it) => it.requests, down: true },
  { name: "KV in use", by: (it) => it.kv_usage, down: true },
  { name: "Hits", by: (it) => it.hit_ratio, down: true },
  { name: "Learned rates", by: (it) => it.rates?.prefill_tokens_per_s, down: true },
  { name: "Cache events", by: (it) => it.trust },
  { name: "Weight", by: (it) => it.weight, down: true },
  { name: "", label: "Control" },
];

const rows = new Map();
const tables = new Map();
const view = { column: 0, down: false, filter: "", page: 0 };
let workers = [];
let readonly = false;
// Where no worker has a limit, bars are drawn against the largest promise.
let promised_max = 1;

export function start() {
  const head = el("tr", { role: "row" });
  COLUMNS.forEach((column, index) => {
    const cell = el("th", { role: "columnheader", scope: "col" });
    if (column.by === undefined) cell.append(el("span.hidden", {}, column.label));
    else {
      const button = el("button", { type: "button" }, column.name);
      button.addEventListener("click", () => sortBy(index));
      cell.append(button);
    }
    head.append(cell);
  });
  byId("workers").tHead.append(head);
  byId("workers-filter").addEventListener("input", (event) => {
    view.filter = event.target.value.trim().toLowerCase();
    view.page = 0;
    draw();
  });
  byId("workers-before").addEventListener("click", () => turn(-1));
  byId("workers-after").addEventListener("click", () => turn(1));
  byId("floor").addEventListener("click", (event) => {
    const found = workers.find((it) => String(it.id) === event.target.dataset?.id);
    if (found !== undefined) reveal(found);
  });
}

function sortBy(index) {
  const first = COLUMNS[index].down === true;
  view.down = view.column === index ? !view.down : first;
  view.column = index;
  view.page = 0;
  draw();
}

function turn(by) {
  view.page += by;
  draw();
  byId("workers-scroll").scrollTop = 0;
}

/** Turns to the page with this worker and points at it. */
function reveal(worker) {
  view.filter = "";
  byId("workers-filter").value = "";
  const index = sorted().findIndex((it) => it.id === worker.id);
  view.page = Math.floor(index / PAGE_ROWS);
  draw();
  const { element } = rows.get(worker.id);
  element.scrollIntoView({ block: "nearest" });
  element.classList.add("pointed");
  setTimeout(() => element.classList.remove("pointed"), 2_000);
}

export function show(overview) {
  workers = overview.workers;
  readonly = overview.admin_readonly === true;
  promised_max = Math.max(1, ...workers.map((it) => it.prefill_tokens));
  draw();
}

/** One worker as it answered to a command, before the next overview says so too. */
function put(changed) {
  if (changed === null || typeof changed !== "object" || changed.id === undefined) return;
  workers = workers.map((it) => (it.id === changed.id ? changed : it));
  draw();
}

function draw() {
  const all = sorted();
  const paged = all.length > ROWS_MAX;
  const pages = paged ? Math.ceil(all.length / PAGE_ROWS) : 1;
  view.page = Math.min(Math.max(view.page, 0), pages - 1);
  const from = paged ? view.page * PAGE_ROWS : 0;
  const shown = paged ? all.slice(from, from + PAGE_ROWS) : all;
  const known = new Set(workers.map((it) => it.id));
  for (const id of rows.keys()) if (!known.has(id)) rows.delete(id);
  setChildren(byId("workers").tBodies[0], shown.map((it) => {
    if (!rows.has(it.id)) rows.set(it.id, makeRow(it.id));
    const row = rows.get(it.id);
    row.show(it);
    return row.element;
  }));
  drawHead();
  setText(byId("workers-sum"), summary());
  drawFloor(new Set(all.map((it) => it.id)));
  setHidden(byId("workers-pages"), !paged);
  setText(byId("workers-page"), `${format.count(from + 1)} to ${format.count(from + shown.length)} of ${format.count(all.length)}`);
  byId("workers-before").disabled = view.page === 0;
  byId("workers-after").disabled = view.page === pages - 1;
  setHidden(byId("workers-filter-field"), workers.length < 6);
  setHidden(byId("workers-scroll"), shown.length === 0);
  setHidden(byId("workers-empty"), shown.length > 0);
  setText(byId("workers-empty"), workers.length === 0
    ? "There are no workers. Name some with --worker http://host:port, or workers = [\"http://host:port\"] in the configuration."
    : "No worker fits the filter.");
}

function sorted() {
  const { by } = COLUMNS[view.column];
  const sign = view.down ? -1 : 1;
  const compare = (one, other) => {
    const [a, b] = [by(one) ?? null, by(other) ?? null];
    // What is unknown comes last, whichever way it is sorted.
    if (a === null || b === null) return a === b ? one.id - other.id : a === null ? 1 : -1;
    const order = typeof a === "string" ? a.localeCompare(b) : a - b;
    return order === 0 ? one.id - other.id : sign * order;
  };
  return workers.filter(fits).sort(compare);
}

function fits(worker) {
  if (view.filter === "") return true;
  const text = [worker.url, worker.engine, worker.state, worker.draining ? "draining" : "", worker.trust, ...(worker.models ?? [])];
  return text.join(" ").toLowerCase().includes(view.filter);
}

function drawHead() {
  [...byId("workers").tHead.rows[0].cells].forEach((cell, index) => {
    const sort = index !== view.column ? "none" : view.down ? "descending" : "ascending";
    setAttribute(cell, "aria-sort", COLUMNS[index].by === undefined ? null : sort);
  });
}

function summary() {
  if (workers.length === 0) return "";
  const counts = new Map();
  for (const it of workers) {
    const word = it.draining ? "draining" : it.state;
    counts.set(word, (counts.get(word) ?? 0) + 1);
  }
  const sum = (of) => workers.reduce((total, it) => total + (of(it) ?? 0), 0);
  const used = workers.filter((it) => it.kv_usage !== null);
  const states = [...counts].map(([word, number]) => `${format.count(number)} ${word}`).join(", ");
  const parts = [states, format.plural(sum((it) => it.requests), "request"), `${format.tokens(sum((it) => it.prefill_tokens))} to prefill`];
  if (used.length > 0) parts.push(`KV ${format.percent(sum((it) => it.kv_usage) / used.length)} in the mean`);
  if (readonly) parts.push("read-only: nothing can be changed from here");
  return parts.join(" · ");
}

/** How full a worker is, 0 to 1: the nearest of its limits. */
function fullness(worker) {
  const { limits } = worker;
  const prefill = worker.prefill_tokens / (limits?.prefill_tokens || promised_max);
  const sequences = limits?.sequences > 0 ? worker.requests / limits.sequences : 0;
  return Math.min(Math.max(prefill, sequences, worker.kv_usage ?? 0), 1);
}

function drawFloor(fitting) {
  const floor = byId("floor");
  setHidden(floor, workers.length < FLOOR_MIN);
  setHidden(byId("floor-key"), floor.hidden);
  if (floor.hidden) return;
  const known = new Set(workers.map((it) => it.id));
  for (const id of tables.keys()) if (!known.has(id)) tables.delete(id);
  setChildren(floor, workers.map((it) => {
    if (!tables.has(it.id)) tables.set(it.id, el("i", { "data-id": it.id }));
    const table = tables.get(it.id);
    const level = Math.round(fullness(it) * 8);
    setAttribute(table, "data-level", level);
    setAttribute(table, "data-state", it.draining ? "draining" : it.state);
    setAttribute(table, "data-tip", `${it.id} · ${it.url} · ${it.draining ? "draining" : it.state} · ${format.plural(it.requests, "request")}`);
    table.classList.toggle("faint", !fitting.has(it.id));
    return table;
  }));
}

/** A row that knows its cells, and the worker that was shown in it last. */
function makeRow(id) {
  let worker = null;
  const cell = (label, ...children) => el("td", { role: "cell", "data-label": label }, ...children);
  const note = () => el("small.quiet");

  const name = el("span");
  const engine = note();
  const state = el("span.tag", { tabindex: "0" });
  const heard = note();
  const [work, workBar, workNote] = [el("span"), bar(), note()];
  const [requests, requestsNote] = [el("span"), note()];
  const [kv, kvBar, held] = [el("span"), bar(), note()];
  const hits = el("span");
  const [rates, ratesNote] = [el("span"), note()];
  const trust = el("span.tag", { tabindex: "0" });
  const weight = el("button.weight", { type: "button" });
  const drain = el("button.drain", { type: "button" });
  const error = el("small.error", { role: "alert" });

  weight.addEventListener("click", () => act(() => control.weigh(worker)));
  drain.addEventListener("click", () => act(() => (worker.draining ? control.resume(worker) : control.drain(worker, workers))));
  async function act(command) {
    drain.disabled = true;
    setText(error, "");
    try {
      put(await command());
    } catch (problem) {
      setText(error, problem.isKey ? "" : problem.message);
    } finally {
      drain.disabled = readonly;
    }
  }

  const element = el(
    "tr", { role: "row", "data-worker": id },
    el("th", { role: "rowheader", scope: "row" }, name, engine),
    cell("State", state, heard),
    cell("Promised work", work, workBar.element, workNote),
    cell("Requests", requests, requestsNote),
    cell("KV in use", kv, kvBar.element, held),
    cell("Hits", hits),
    cell("Learned rates", rates, ratesNote),
    cell("Cache events", trust),
    cell("Weight", weight),
    cell("Control", drain, error),
  );

  function show(shown) {
    worker = shown;
    if (name.dataset.url !== shown.url) {
      name.dataset.url = shown.url;
      name.replaceChildren(plate(shown.id, shown.url));
    }
    setText(engine, [shown.engine ?? "engine unknown", ...(shown.models ?? [])].join(" · "));
    showState(state, heard, shown);
    showWork(shown);
    setText(hits, format.percent(shown.hit_ratio));
    showRates(shown);
    setText(trust, shown.trust);
    setAttribute(trust, "data-tone", words.trust(shown.trust).tone);
    setAttribute(trust, "data-tip", words.trust(shown.trust).says);
    setText(weight, format.weight(shown.weight));
    setAttribute(weight, "aria-label", `Weight of worker ${shown.id}: ${shown.weight}. Change it`);
    setText(drain, shown.draining ? "Resume" : "Drain");
    setAttribute(drain, "aria-label", `${shown.draining ? "Resume" : "Drain"} worker ${shown.id}`);
    if (drain.disabled !== readonly && error.textContent === "") drain.disabled = readonly;
    weight.disabled = readonly;
    element.classList.toggle("off", !words.takesRequests(shown));
  }

  function showWork(shown) {
    const limit = shown.limits?.prefill_tokens ?? null;
    setText(work, limit === null
      ? format.tokens(shown.prefill_tokens)
      : `${format.short(shown.prefill_tokens)} of ${format.tokens(limit)}`);
    workBar.set(shown.prefill_tokens / (limit || promised_max));
    setText(workNote, `to prefill, ${format.short(shown.decode_tokens)} to answer`);
    const sequences = shown.limits?.sequences ?? null;
    setText(requests, sequences === null ? format.count(shown.requests) : `${format.count(shown.requests)} of ${format.count(sequences)}`);
    const queued = shown.waiting === null ? "" : `, ${format.count(shown.waiting)} queued there`;
    setText(requestsNote, `${format.count(shown.prefilling)} in prefill${queued}`);
    setText(kv, format.percent(shown.kv_usage));
    kvBar.set(shown.kv_usage);
    setText(held, `holds ${format.tokens(shown.held_tokens)}`);
  }

  function showRates(shown) {
    setText(rates, format.tokenRate(shown.rates?.prefill_tokens_per_s));
    const learned = shown.rates?.learned === true ? "" : ", assumed";
    setText(ratesNote, `${format.ms(shown.rates?.step_ms)} a step${learned}`);
  }

  return { element, show };
}

function showState(tag, note, worker) {
  const { mark, tone, says } = words.state(worker.state);
  setText(tag, worker.draining ? `◌ draining` : `${mark} ${worker.state}`);
  setAttribute(tag, "data-tone", worker.draining ? "fair" : tone);
  setAttribute(tag, "data-tip", worker.draining
    ? `It gets no new requests and finishes those it has. Beside that it is ${worker.state}.`
    : says);
  const late = worker.heard_ms === null || worker.heard_ms > HEARD_LATE_MS;
  const heard = worker.heard_ms === null ? "never heard of" : `heard ${format.ms(worker.heard_ms)} ago`;
  setText(note, late ? heard : worker.failures > 0 ? format.plural(worker.failures, "failure") : `${format.short(worker.seated)} seated`);
}
