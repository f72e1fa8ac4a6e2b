// The routers in front of the same fleet: who is there, how much each does, and how well they hear each other.
//
// There is no such part where a router is alone. Rows are kept, as those of the workers are.

import { bar, byId, el, setAttribute, setChildren, setHidden, setText } from "./dom.js";
import * as format from "./format.js";
import * as words from "./words.js";

// What crosses the wire is told as the mean of so long: frames come in bursts.
const SPAN_MS = 10_000;

const rows = new Map();
// What had crossed the wire by when.
let crossed = [];

export function show({ cluster, at_ms }) {
  const card = byId("routers");
  setHidden(card, cluster === null || cluster === undefined);
  if (card.hidden) {
    crossed = [];
    return;
  }
  const routers = cluster.routers ?? [];
  const keys = new Set(routers.map(keyOf));
  for (const key of rows.keys()) if (!keys.has(key)) rows.delete(key);
  setChildren(byId("routers-table").tBodies[0], [...routers].sort(order).map((it) => {
    const key = keyOf(it);
    if (!rows.has(key)) rows.set(key, new Row());
    const row = rows.get(key);
    row.show(it);
    return row.element;
  }));
  setText(byId("routers-sum"), summary(cluster, routers, at_ms));
  showTrouble(cluster);
}

const keyOf = (router) => `${router.incarnation} ${router.name}`;

/** This one, then the lost, which somebody may have to look after, then the others. */
function order(one, other) {
  const rank = (it) => (it.self ? 0 : it.state === "live" ? 2 : 1);
  return rank(one) - rank(other) || String(one.name).localeCompare(String(other.name), "en", { numeric: true });
}

function summary(cluster, routers, at_ms) {
  const live = routers.filter((it) => it.state === "live").length;
  const counts = [`${format.count(live)} live`, ...(live < routers.length ? [`${format.count(routers.length - live)} lost`] : [])];
  const parts = [counts.join(", "), words.via(cluster.via)];
  const [sent, got] = flow(cluster, at_ms);
  parts.push(`sends ${format.byteRate(sent)}, hears ${format.byteRate(got)}`);
  if (cluster.repairs > 0) parts.push(`${format.count(cluster.repairs)} asked for again`);
  if (cluster.dropped > 0) parts.push(`${format.count(cluster.dropped)} dropped`);
  return parts.join(" · ");
}

/** Bytes a second out and in; unknown before there are two moments to compare. */
function flow({ bytes_out, bytes_in }, at_ms) {
  const last = crossed.at(-1);
  // A router that was started anew counts from nothing.
  if (last !== undefined && (at_ms < last.at_ms || bytes_out < last.bytes_out || bytes_in < last.bytes_in)) crossed = [];
  if (at_ms !== crossed.at(-1)?.at_ms) crossed.push({ at_ms, bytes_out, bytes_in });
  while (crossed.length > 2 && at_ms - crossed[1].at_ms >= SPAN_MS) crossed.shift();
  const [first] = crossed;
  const seconds = (at_ms - first.at_ms) / 1000;
  return seconds > 0 ? [(bytes_out - first.bytes_out) / seconds, (bytes_in - first.bytes_in) / seconds] : [null, null];
}

/** What is not as it should be between them, in words; nothing if all is well. */
function showTrouble({ connected, trouble, warm, limit_share }) {
  const said = [];
  if (!connected) said.push(`✕ Not connected${trouble ? `: ${trouble}` : ""}. This router goes by what it sees itself until it hears others again.`);
  else if (trouble) said.push(`▲ ${trouble}`);
  if (connected && warm === false) said.push("◐ Just joined: it does not know yet all that the others know.");
  if (typeof limit_share === "number" && limit_share < 1) said.push(`▲ Limits are split: this router lets through ${words.part(limit_share)}.`);
  setAttribute(byId("routers-trouble"), "data-tone", connected ? "fair" : "bad");
  setText(byId("routers-trouble"), said.join(" "));
}

class Row {
  constructor() {
    this.name = el("span.clip");
    this.here = el("small.quiet");
    this.state = el("span.tag", { tabindex: "0" });
    [this.lag, this.heard, this.open, this.served, this.share] = Array.from({ length: 5 }, () => el("span"));
    this.shareBar = bar();
    const cell = (name, label, ...children) => el(name, { role: "cell", "data-label": label }, ...children);
    this.element = el(
      "tr", { role: "row" },
      el("th", { role: "rowheader", scope: "row" }, this.name, this.here),
      cell("td", "State", this.state),
      cell("td", "Share of requests", el("span.measure", {}, this.share, this.shareBar.element)),
      cell("td.n", "Open", this.open),
      cell("td.n", "Served", this.served),
      cell("td.n", "Lag", this.lag),
      cell("td.n", "Last heard", this.heard),
    );
  }

  show(router) {
    const { mark, tone, says } = words.standing(router.state);
    setAttribute(this.element, "data-router", router.name);
    setText(this.name, router.name);
    setAttribute(this.name, "data-tip", router.name);
    setText(this.here, router.self ? "this one" : "");
    setText(this.state, `${mark} ${router.state}`);
    setAttribute(this.state, "data-tone", tone);
    setAttribute(this.state, "data-tip", says);
    setText(this.share, format.percent(router.share));
    this.shareBar.set(router.share ?? null);
    // Much of the traffic is no reason to worry.
    this.shareBar.element.classList.remove("high");
    setText(this.open, format.count(router.open));
    setText(this.served, format.short(router.served));
    setText(this.lag, format.ms(router.lag_ms));
    setText(this.heard, router.self ? "" : `${format.ms(router.heard_ms)} ago`);
    this.element.classList.toggle("off", router.state !== "live");
  }
}
