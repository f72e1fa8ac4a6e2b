// The prefixes that many prompts share, and the workers that have them cached. Hashes only, no text.

import { bar, byId, el } from "./dom.js";
import * as format from "./format.js";
import { usesCaches } from "./words.js";

const HASH_SHOWN = 10;
const HOLDERS_SHOWN = 8;

let drawn = "";

export function show(overview) {
  const { prefixes, strategy, strategies, totals } = overview;
  const text = JSON.stringify([prefixes, strategy, strategies, totals.requests > 0]);
  if (text === drawn) return;
  drawn = text;
  byId("prefixes").replaceChildren(prefixes.length > 0 ? table(prefixes) : el("p.empty", {}, emptiness(overview)));
}

function emptiness({ strategy, strategies, totals }) {
  const used = [strategy, ...Object.values(strategies ?? {})];
  if (!used.some(usesCaches)) {
    return `${strategy} does not use caches, so prefixes are not tracked. strategy = "least-delay" tracks them.`;
  }
  return totals.requests === 0 ? "No traffic yet." : "No prefix is shared by enough prompts yet.";
}

function table(prefixes) {
  const most = Math.max(...prefixes.map((it) => it.seen), 1e-9);
  const head = el("tr", {}, ...["Prefix", "Tokens", "Prompts", "Cached by", "Model"].map((it, index) => el(index === 1 ? "th.n" : "th", { scope: "col" }, it)));
  const rows = prefixes.map((it) => {
    const seen = bar();
    seen.set(it.seen / most);
    seen.element.classList.remove("high");
    return el(
      "tr", {},
      el("th", { scope: "row" }, el("code", { "data-tip": it.hash, tabindex: "0" }, it.hash.slice(0, HASH_SHOWN))),
      el("td.n", {}, format.count(it.tokens)),
      el("td", {}, el("span.measure", {}, el("span", {}, format.count(it.seen)), seen.element)),
      el("td", {}, ...holders(it.holders)),
      el("td.clip", {}, it.model ?? ""),
    );
  });
  return el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Prefixes" }, el("table.plain-table", {}, el("thead", {}, head), el("tbody", {}, ...rows)));
}

function holders(ids) {
  if (ids.length === 0) return [el("span.quiet", {}, "no worker now")];
  const shown = ids.slice(0, HOLDERS_SHOWN).map((it) => el("span.plate", {}, el("b", {}, String(it))));
  const more = ids.length - shown.length;
  return more > 0 ? [...shown, el("span.quiet", {}, ` and ${format.count(more)} more`)] : shown;
}
