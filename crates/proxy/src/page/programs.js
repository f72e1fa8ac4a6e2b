// Programs: their working set against the KV memory, which calls are held and why, and the largest programs.
//
// Hidden while programs are off.

import { bar, byId, el, plate, setHidden, setText } from "./dom.js";
import * as format from "./format.js";
import * as sentence from "./sentence.js";
import * as words from "./words.js";

// Workers whose memory is drawn, the fullest.
const WORKERS_MAX = 8;

let drawn = "";

export function show({ programs }) {
  const card = byId("programs");
  setHidden(card, programs === null || programs === undefined);
  if (card.hidden) return;
  const text = JSON.stringify(programs);
  if (text === drawn) return;
  drawn = text;
  setText(byId("programs-sum"), summary(programs));
  byId("programs-body").replaceChildren(
    ...memory(programs.workers ?? []),
    el("h3", {}, "Held calls"),
    ...held(programs),
    el("h3", {}, "Largest programs"),
    largest(programs.programs ?? []),
  );
}

function summary(it) {
  const set = typeof it.kv_tokens === "number"
    ? `working set ${format.tokens(it.resident_tokens)} of ${format.tokens(it.kv_tokens)} (${format.percent(it.resident_tokens / Math.max(it.kv_tokens, 1))})`
    : `working set ${format.tokens(it.resident_tokens)}`;
  return `${it.rule} · ${format.count(it.resident)} resident of ${format.count(it.known)} · ${format.count(it.running)} running · `
    + `${format.plural(it.calls_held, "call")} held · ${set}`;
}

const usage = (it) => (typeof it.kv_tokens === "number" ? it.tokens / Math.max(it.kv_tokens, 1) : null);

/** The memory of the fullest workers. */
function memory(workers) {
  const all = [...workers].sort((one, other) => (usage(other) ?? 0) - (usage(one) ?? 0) || one.worker - other.worker);
  const rows = all.slice(0, WORKERS_MAX).map((it) => {
    const drawing = bar();
    drawing.set(usage(it));
    return el("li", { "data-worker": it.worker },
      plate(it.worker, it.url), drawing.element,
      el("span", {}, `${format.percent(usage(it))} · ${format.plural(it.programs, "program")}, ${format.count(it.idle)} idle`));
  });
  const more = all.length > WORKERS_MAX ? el("p.quiet", {}, `The ${WORKERS_MAX} fullest of ${format.count(all.length)} workers.`) : null;
  return [el("ul.memory", { "aria-label": "Memory of programs by worker" }, ...rows), more].filter((it) => it !== null);
}

function held({ calls = [], calls_held }) {
  if (calls.length === 0) return [el("p.empty", {}, "No call is held: memory suffices.")];
  const rows = calls.map((it) => [
    el("th", { scope: "row" }, it.program),
    el("td", {}, it.tenant ?? format.UNKNOWN),
    el("td.n", {}, format.duration(it.held_ms / 1000)),
    el("td.wraps", {}, sentence.held(it)),
  ]);
  const more = calls_held > calls.length ? el("p.quiet", {}, `The ${format.count(calls.length)} held longest of ${format.count(calls_held)}.`) : null;
  return [table("Held calls", ["Program", "Tenant", ">Held", "Why"], rows), more].filter((it) => it !== null);
}

function largest(programs) {
  if (programs.length === 0) return el("p.empty", {}, "No program is known yet.");
  const rows = programs.map((it) => {
    const { mark, tone, name, says } = words.programState(it.state);
    return [
      el("th", { scope: "row" }, it.program),
      el("td", {}, el("span.tag", { "data-tone": tone, "data-tip": says, tabindex: "0" }, `${mark} ${name}`)),
      el("td", {}, it.worker === null ? format.UNKNOWN : plate(it.worker, it.url)),
      el("td.n", {}, format.tokens(it.tokens)),
      el("td.n", {}, format.count(it.calls)),
      el("td.n", {}, it.idle_ms === null ? format.UNKNOWN : format.duration(it.idle_ms / 1000)),
      el("td", {}, it.tenant ?? format.UNKNOWN),
    ];
  });
  return table("Largest programs", ["Program", "State", "Worker", ">Working set", ">Calls", ">Idle", "Tenant"], rows);
}

/** A column whose name begins with `>` has numbers. */
function table(label, columns, rows) {
  const head = columns.map((it) => el(it.startsWith(">") ? "th.n" : "th", { scope: "col" }, it.replace(">", "")));
  return el("div.scroll", { tabindex: "0", role: "region", "aria-label": label },
    el("table.plain-table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows.map((it) => el("tr", {}, ...it)))));
}
