// One decision: its candidates, their prices, and how the request ended.
//
// It has an address, `#decision=17`, and the address is the state: opening sets it, Back closes it.

import { call } from "./api.js";
import { byId, el, plate, setText } from "./dom.js";
import * as format from "./format.js";
import * as key from "./key.js";
import * as sentence from "./sentence.js";
import * as words from "./words.js";

// Smaller differences come from rounding.
const SUM_NEAR_MS = 0.5;

let shown = null;
let listed = () => [];
let closed = () => {};

/** `list()` gives the numbers to walk through; `whenClosed(number)` puts the focus back. */
export function start(list, whenClosed) {
  listed = list;
  closed = whenClosed;
  const sheet = byId("sheet");
  byId("sheet-close").addEventListener("click", () => sheet.close());
  byId("sheet-newer").addEventListener("click", () => step(-1));
  byId("sheet-older").addEventListener("click", () => step(1));
  sheet.addEventListener("close", leave);
  // A click beside the sheet.
  sheet.addEventListener("click", (event) => { if (event.target === sheet) sheet.close(); });
  sheet.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, k: -1, j: 1 }[event.key];
    if (by === undefined || event.target.closest(".scroll")) return;
    step(by);
    event.preventDefault();
  });
  addEventListener("hashchange", follow);
}

/** Shows what the address asks for. */
export function follow() {
  const wanted = key.fragment().get("decision");
  if (wanted === null) {
    if (byId("sheet").open) byId("sheet").close();
  } else if (wanted !== shown) {
    show(wanted);
  }
}

export function open(number) {
  location.hash = `decision=${number}`;
}

/** The stream has a decision again once its request has ended. */
export function refresh(decisions) {
  if (shown !== null && decisions.some((it) => String(it.number) === shown || it.id === shown)) show(shown);
}

function step(by) {
  const numbers = listed();
  const to = numbers[numbers.indexOf(Number(shown)) + by];
  if (numbers.includes(Number(shown)) && to !== undefined) open(to);
}

function leave() {
  const number = Number(shown);
  shown = null;
  if (key.fragment().has("decision")) history.pushState(null, "", location.pathname + location.search);
  closed(number);
}

async function show(wanted) {
  const isNew = shown !== wanted;
  shown = wanted;
  const sheet = byId("sheet");
  if (isNew) {
    setText(byId("sheet-title"), `Decision ${wanted}`);
    byId("sheet-body").replaceChildren(el("p.quiet", {}, "Loading…"));
    sheet.scrollTop = 0;
  }
  if (!sheet.open) {
    sheet.showModal();
    byId("sheet-title").focus();
  }
  let children;
  try {
    const decision = await call("GET", `decisions/${encodeURIComponent(wanted)}`);
    children = content(decision);
  } catch (error) {
    if (error.isKey) return;
    children = [el("p.error", { role: "alert" }, error.status === 404
      ? `There is no decision ${wanted}, or it is no longer kept: the router keeps only the latest.`
      : `It could not be loaded: ${error.message}.`)];
  }
  // Another decision may have been opened meanwhile.
  if (shown !== wanted) return;
  // A refresh keeps the table scrolled as it is.
  const scrolled = sheet.querySelector(".scroll")?.scrollLeft ?? 0;
  byId("sheet-body").replaceChildren(...children);
  const table = sheet.querySelector(".scroll");
  if (table !== null && !isNew) table.scrollLeft = scrolled;
}

function content(decision) {
  const { candidates } = decision;
  return [
    el("p.meta.quiet", {}, meta(decision)),
    el("p.because", {}, sentence.why(decision)),
    decision.program ? el("p.program", {}, sentence.step(decision.program, decision.worker)) : null,
    decision.prefill ? el("p", {}, sentence.prefill(decision.prefill)) : null,
    decision.fetch ? el("p", {}, sentence.fetched(decision.fetch)) : null,
    decision.strategy === "least-delay" || candidates.length === 0 ? null
      : el("p.quiet", {}, `${decision.strategy} does not use these prices: they are those of least-delay, for comparison.`),
    el("h3", {}, "Candidates"),
    ...(candidates.length > 0 ? prices(decision) : [el("p.empty", {}, "No candidates were kept for this decision.")]),
    el("h3", {}, "Predicted and actual"),
    el("p", {}, sentence.prediction(decision)),
    timing(decision),
    outcome(decision),
    el("h3", {}, "What other strategies would have done"),
    ...shadows(decision),
  ].filter((it) => it !== null);
}

function meta(decision) {
  const parts = [
    format.time(decision.at_ms), decision.model ?? "any model", `class ${decision.class}`,
    decision.tenant === null ? null : `tenant ${decision.tenant}`, decision.strategy,
    decision.attempt > 0 ? `attempt ${decision.attempt + 1}` : null, decision.id,
  ];
  return parts.filter((it) => it !== null && it !== undefined).join(" · ");
}

function prices(decision) {
  const { candidates, candidates_total } = decision;
  const used = words.TERMS.filter(([term]) => candidates.some((it) => it.terms_ms[term] > 0));
  const largest = Math.max(...candidates.map((it) => it.price_ms ?? 0), 1e-9);
  const bars = el("ol.bars", {}, ...candidates.map((it) => stack(it, used, largest)));
  const legend = el("dl.terms", {}, ...used.map(([term, says]) => el("div", {}, el("dt", {}, el(`i.t-${term}`), term), el("dd.quiet", {}, says))));
  const more = candidates_total > candidates.length
    ? el("p.quiet", {}, `The ${format.count(candidates.length)} cheapest of ${format.count(candidates_total)}.`)
    : null;
  return [bars, legend, table(candidates, used), more].filter((it) => it !== null);
}

/** One candidate's price as a bar of its terms. */
function stack(candidate, used, largest) {
  const track = el("span.stack", { "aria-hidden": "true" });
  for (const [term] of used) {
    // Terms sum to price times share; the bar is the price.
    const cost = candidate.terms_ms[term] / candidate.share;
    if (!(cost > 0)) continue;
    const part = el(`i.t-${term}`, { "data-tip": `${term} ${format.ms(cost)}: ${words.term(term)}` });
    part.style.width = `${(cost / largest) * 100}%`;
    track.append(part);
  }
  return el(
    candidate.chosen ? "li.chosen" : "li", { "data-candidate": candidate.worker },
    el("span.who", {}, plate(candidate.worker, candidate.url), candidate.chosen ? el("em", {}, "chosen") : null),
    track, el("b.price", {}, format.ms(candidate.price_ms)),
  );
}

function table(candidates, used) {
  const explained = new Map(used);
  const title = (name) => (explained.has(name) ? { scope: "col", tabindex: "0", "data-tip": `${name}: ${explained.get(name)}` } : { scope: "col" });
  const head = ["Worker", "cached", ...used.map(([term]) => term), "sum", "price", "TTFT", "requests (prefill)", "can start"];
  const rows = candidates.map((it) => {
    const sum = words.TERMS.reduce((total, [term]) => total + (it.terms_ms[term] ?? 0), 0);
    const slow = it.cached_slow_tokens > 0 ? ` +${format.short(it.cached_slow_tokens)} slow` : "";
    const chunks = it.chunk_tokens > 0 ? `, ${format.short(it.chunk_tokens)} in chunks (${format.short(it.chunk_recomputed_tokens)} again)` : "";
    const differs = typeof it.price_ms === "number" && Math.abs(sum / it.share - it.price_ms) > SUM_NEAR_MS;
    return el(
      it.chosen ? "tr.chosen" : "tr", { "data-candidate": it.worker },
      el("th", { scope: "row" }, plate(it.worker, it.url), it.chosen ? el("span.hidden", {}, " chosen") : null),
      el("td.n", {}, format.short(it.cached_tokens) + chunks + slow),
      ...used.map(([term]) => el("td.n", { "data-term": term }, exact(it.terms_ms[term]))),
      el("td.n", { "data-term": "sum" }, exact(sum) + (it.share === 1 ? "" : ` ÷ ${it.share.toFixed(2)}`)),
      el(differs ? "td.n.error" : "td.n", { "data-term": "price" }, exact(it.price_ms)),
      el("td.n", {}, format.ms(it.ttft_ms)),
      el("td.n", {}, `${format.count(it.requests)} (${format.count(it.prefilling)})`),
      el("td", {}, words.CAN_START[it.can_start] ?? it.can_start),
    );
  });
  const caption = "Weighted milliseconds of delay for all requests, not for this one alone.";
  return el(
    "div.scroll", { tabindex: "0", role: "region", "aria-label": "The candidates as a table" },
    el("table.prices", {}, el("caption", {}, caption),
      el("thead", {}, el("tr", {}, ...head.map((it, index) => el(index === 0 || it === "can start" ? "th" : "th.n", title(it), it)))),
      el("tbody", {}, ...rows)),
  );
}

const tenths = new Intl.NumberFormat("en-GB", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const exact = (value) => (typeof value === "number" ? tenths.format(value) : format.UNKNOWN);

/** The two times as bars on one scale; null where one is unknown. */
function timing({ predicted_ttft_ms: predicted, actual_ttft_ms: actual }) {
  if (typeof predicted !== "number" || typeof actual !== "number") return null;
  const largest = Math.max(predicted, actual, 1e-9);
  return el("ol.bars.timing", { "aria-hidden": "true" }, ...[["predicted", predicted], ["actual", actual]].map(([name, value]) => {
    const part = el(`i.${name}`);
    part.style.width = `${(value / largest) * 100}%`;
    return el("li", {}, el("span", {}, name), el("span.stack", {}, part), el("b.price", {}, format.ms(value)));
  }));
}

function outcome(decision) {
  const said = words.outcome(decision.outcome);
  const rows = [
    ["Outcome", `${said.name}. ${said.says}`],
    ["In the queue", format.ms(decision.waited_ms)],
    ["Total", format.ms(decision.total_ms)],
    ["Prompt", pair(decision.prompt_tokens, decision.actual_prompt_tokens)],
    ["Cached", pair(decision.expected_cached_tokens, decision.cached_tokens)],
    ["Answer", pair(decision.answer_tokens, decision.actual_answer_tokens)],
  ];
  return el("dl.ending", {}, ...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function pair(expected, actual) {
  const counted = typeof actual === "number" ? `${format.tokens(actual)} reported by the worker` : "not reported by the worker";
  return `${format.tokens(expected)} expected, ${counted}`;
}

function shadows(decision) {
  if (decision.shadows.length === 0) {
    return [el("p.quiet", {}, "No shadow strategy is configured. Set ", el("code", {}, "shadow.strategies = [\"round-robin\"]"), " to compare with one.")];
  }
  return [el("ul.shadows", {}, ...decision.shadows.map((it) => el("li", {}, sentence.shadow(it, decision))))];
}
