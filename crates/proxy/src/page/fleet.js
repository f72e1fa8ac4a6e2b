// The workers: one row each, sorted and filtered, in pages where there are many, with a map above.
//
// Rows are kept and only their numbers change, so that focus, selection and hover survive an update.

import { byId, el, PHONE, setAttribute, setChildren, setHidden, setText } from "./dom.js";
import * as format from "./format.js";
import { Row } from "./row.js";

// Up to this many workers are in one table; beyond, in pages. On a phone a worker is a card as high as five rows.
const ROWS_MAX = matchMedia(PHONE).matches ? 20 : 100;
const PAGE_ROWS = ROWS_MAX / 2;
// From this many workers on, there is a map of all of them.
const MAP_MIN = 13;

const COLUMNS = [
  { name: "Worker", by: (it) => it.id },
  { name: "State", by: (it) => `${it.draining ? 1 : 0}${it.state}` },
  { name: "Promised work", by: prefillByAll, down: true },
  { name: "Requests", by: (it) => it.requests, down: true },
  { name: "KV usage", by: (it) => it.kv_usage, down: true },
  { name: "Hit ratio", by: (it) => it.hit_ratio, down: true },
  { name: "Learned rates", by: (it) => it.rates?.prefill_tokens_per_s, down: true },
  { name: "Cache events", by: (it) => it.trust },
  { name: "Weight", by: (it) => it.weight, down: true },
  { name: "", label: "Control" },
];

const rows = new Map();
const squares = new Map();
const view = { column: 0, down: false, filter: "", page: 0 };
let workers = [];
// Where no worker has a limit, bars are relative to the largest promise.
let promisedMax = 1;

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
  byId("map").addEventListener("click", (event) => {
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

/** Opens the page with this worker and highlights it. */
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
  promisedMax = Math.max(1, ...workers.map(prefillByAll));
  draw();
  drawScaling(overview.scaling ?? []);
}

/** How many workers each model should have, beside those it has, and why. */
function drawScaling(models) {
  const list = byId("scaling");
  setHidden(list, models.length === 0);
  while (list.children.length > models.length) list.lastChild.remove();
  models.forEach((it, index) => {
    const item = list.children[index] ?? list.appendChild(el("li"));
    const has = it.workers === it.desired_workers ? `has ${it.workers === 1 ? "it" : "them"}` : `has ${format.count(it.workers)}`;
    setAttribute(item, "data-wanted", it.desired_workers > it.workers ? "more" : it.desired_workers < it.workers ? "fewer" : "none");
    setText(item, `${it.model || "The fleet"} should have ${format.plural(it.desired_workers, "worker")} and ${has}: ${it.because}.`);
  });
}

/** One worker from the response to a command, before the next overview. */
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
    if (!rows.has(it.id)) rows.set(it.id, new Row(it.id, { workers: () => workers, put }));
    const row = rows.get(it.id);
    row.show(it, promisedMax);
    return row.element;
  }));
  drawHead();
  setText(byId("workers-sum"), summary());
  drawMap(new Set(all.map((it) => it.id)));
  setHidden(byId("workers-pages"), !paged);
  setText(byId("workers-page"), `${format.count(from + 1)} to ${format.count(from + shown.length)} of ${format.count(all.length)}`);
  byId("workers-before").disabled = view.page === 0;
  byId("workers-after").disabled = view.page === pages - 1;
  setHidden(byId("workers-filter-field"), workers.length < 6);
  setHidden(byId("workers-scroll"), shown.length === 0);
  setHidden(byId("workers-empty"), shown.length > 0);
  setText(byId("workers-empty"), workers.length === 0
    ? "There are no workers. Add one with --worker http://host:port, or workers = [\"http://host:port\"] in the configuration."
    : "No worker matches the filter.");
}

function sorted() {
  const { by } = COLUMNS[view.column];
  const sign = view.down ? -1 : 1;
  const compare = (one, other) => {
    const [a, b] = [by(one) ?? null, by(other) ?? null];
    // Unknown values come last in both directions.
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
  // The best state first; states without workers are left out below.
  const counts = new Map(["ready", "warming", "draining", "probing", "suspect", "ejected"].map((it) => [it, 0]));
  for (const it of workers) {
    const word = it.draining ? "draining" : it.state;
    counts.set(word, (counts.get(word) ?? 0) + 1);
  }
  const sum = (of) => workers.reduce((total, it) => total + (of(it) ?? 0), 0);
  const used = workers.filter((it) => it.kv_usage !== null);
  const states = [...counts].filter(([, number]) => number > 0).map(([word, number]) => `${format.count(number)} ${word}`).join(", ");
  const theirs = sum((it) => it.other_routers?.requests);
  const requests = format.plural(sum((it) => it.requests), "request") + (theirs > 0 ? `, ${format.count(theirs)} of them from other routers` : "");
  const parts = [states, requests, `${format.tokens(sum((it) => it.prefill_tokens))} to prefill`];
  if (used.length > 0) parts.push(`average KV usage ${format.percent(sum((it) => it.kv_usage) / used.length)}`);
  return parts.join(" · ");
}

/** Tokens to prefill, promised by all routers. */
function prefillByAll(worker) {
  return worker.prefill_tokens + (worker.other_routers?.prefill_tokens ?? 0);
}

/** How full a worker is, 0 to 1: the limit it is closest to. */
function fullness(worker) {
  const { limits } = worker;
  const prefill = prefillByAll(worker) / (limits?.prefill_tokens || promisedMax);
  const sequences = limits?.sequences > 0 ? worker.requests / limits.sequences : 0;
  return Math.min(Math.max(prefill, sequences, worker.kv_usage ?? 0), 1);
}

function drawMap(fitting) {
  const map = byId("map");
  setHidden(map, workers.length < MAP_MIN);
  setHidden(byId("map-key"), map.hidden);
  if (map.hidden) return;
  const known = new Set(workers.map((it) => it.id));
  for (const id of squares.keys()) if (!known.has(id)) squares.delete(id);
  setChildren(map, workers.map((it) => {
    if (!squares.has(it.id)) squares.set(it.id, el("i", { "data-id": it.id }));
    const square = squares.get(it.id);
    const level = Math.round(fullness(it) * 8);
    setAttribute(square, "data-level", level);
    setAttribute(square, "data-state", it.draining ? "draining" : it.state);
    setAttribute(square, "data-tip", `${it.id} · ${it.url} · ${it.draining ? "draining" : it.state} · ${format.plural(it.requests, "request")}`);
    square.classList.toggle("faint", !fitting.has(it.id));
    return square;
  }));
}
