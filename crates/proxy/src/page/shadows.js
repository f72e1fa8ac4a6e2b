// What other strategies would have done with the same requests: predicted means since the start.

import { bar, byId, el } from "./dom.js";
import * as format from "./format.js";

let drawn = "";

export function show({ shadows }) {
  const text = JSON.stringify(shadows);
  if (text === drawn) return;
  drawn = text;
  byId("shadows").replaceChildren(...(shadows.length === 0 ? [off()] : [table(shadows), note()]));
}

function off() {
  return el("p.empty", {}, "No shadow strategy is configured. With ", el("code", {}, "shadow.strategies = [\"round-robin\"]"),
    ", round-robin picks a worker for every request too, without effect, and its cost is shown here.");
}

function note() {
  return el("p.quiet.note", {}, "Predicted means over all decisions. Shadows see the load and caches that our strategy produced, not their own.");
}

function table(shadows) {
  const head = el("tr", {}, ...["Strategy", "Decisions", "Differed", "Added delay", "Time to first token"]
    .map((it, index) => el(index === 1 ? "th.n" : "th", { scope: "col" }, it)));
  const rows = shadows.map((it) => el(
    "tr", { "data-strategy": it.strategy },
    el("th", { scope: "row" }, it.strategy),
    el("td.n", {}, format.count(it.decisions)),
    el("td", {}, part(it.decisions > 0 ? it.differed / it.decisions : null)),
    el("td", {}, against(it.price_ms, it.our_price_ms)),
    el("td", {}, against(it.ttft_ms, it.our_ttft_ms)),
  ));
  return el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Strategies" }, el("table.plain-table", {}, el("thead", {}, head), el("tbody", {}, ...rows)));
}

function part(share) {
  const drawing = bar();
  drawing.set(share);
  drawing.element.classList.remove("high");
  return el("span.measure", {}, el("span", {}, format.percent(share)), drawing.element);
}

function against(theirs, ours) {
  const ratio = ours > 0 && typeof theirs === "number" ? theirs / ours : null;
  return el("span.against", {}, el("b", {}, format.times(ratio)), el("small.quiet", {}, ` ${format.ms(theirs)}, ours ${format.ms(ours)}`));
}
