// The routers of the cluster: state, share of the requests and lag of each.
//
// Hidden without a cluster. Rows are kept, as those of the workers are.

import { bar, byId, el, setAttribute, setChildren, setHidden, setText } from "./dom.js";
import * as format from "./format.js";
import * as words from "./words.js";

// Bytes per second are averaged over this long: frames come in bursts.
const SPAN_MS = 10_000;

const rows = new Map();
// Byte counts and when they were taken.
let counted = [];

export function show({ cluster, at_ms }) {
  const card = byId("routers");
  setHidden(card, cluster === null || cluster === undefined);
  if (card.hidden) {
    counted = [];
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
  showError(cluster);
}

const keyOf = (router) => `${router.incarnation} ${router.name}`;

/** This router, then lost ones, which may need attention, then the others. */
function order(one, other) {
  const rank = (it) => (it.self ? 0 : it.state === "live" ? 2 : 1);
  return rank(one) - rank(other) || String(one.name).localeCompare(String(other.name), "en", { numeric: true });
}

function summary(cluster, routers, at_ms) {
  const live = routers.filter((it) => it.state === "live").length;
  const counts = [`${format.count(live)} live`, ...(live < routers.length ? [`${format.count(routers.length - live)} lost`] : [])];
  const parts = [counts.join(", "), words.via(cluster.via)];
  const [sent, got] = flow(cluster, at_ms);
  parts.push(`sends ${format.byteRate(sent)}, receives ${format.byteRate(got)}`);
  if (cluster.repairs > 0) parts.push(`${format.plural(cluster.repairs, "repair")}`);
  if (cluster.dropped > 0) parts.push(`${format.count(cluster.dropped)} dropped`);
  return parts.join(" · ");
}

/** Bytes per second out and in; unknown before the second overview. */
function flow({ bytes_out, bytes_in }, at_ms) {
  const last = counted.at(-1);
  // A restarted router counts from zero.
  if (last !== undefined && (at_ms < last.at_ms || bytes_out < last.bytes_out || bytes_in < last.bytes_in)) counted = [];
  if (at_ms !== counted.at(-1)?.at_ms) counted.push({ at_ms, bytes_out, bytes_in });
  while (counted.length > 2 && at_ms - counted[1].at_ms >= SPAN_MS) counted.shift();
  const [first] = counted;
  const seconds = (at_ms - first.at_ms) / 1000;
  return seconds > 0 ? [(bytes_out - first.bytes_out) / seconds, (bytes_in - first.bytes_in) / seconds] : [null, null];
}

/** What is wrong in the cluster; empty if nothing is. */
function showError({ connected, error, synced, limit_share }) {
  const said = [];
  if (!connected) said.push(`✕ Not connected${error ? `: ${error}` : ""}. This router decides alone until it reconnects.`);
  else if (error) said.push(`▲ ${error}`);
  if (connected && synced === false) said.push("◐ Syncing: this router has not received every snapshot yet.");
  if (typeof limit_share === "number" && limit_share < 1) said.push(`▲ Tenant limits are split: this router admits ${words.part(limit_share)}.`);
  setAttribute(byId("routers-error"), "data-tone", connected ? "fair" : "bad");
  setText(byId("routers-error"), said.join(" "));
}

class Row {
  constructor() {
    this.name = el("span.clip");
    this.here = el("small.quiet");
    this.state = el("span.tag", { tabindex: "0" });
    [this.lag, this.seen, this.inFlight, this.served, this.share] = Array.from({ length: 5 }, () => el("span"));
    this.shareBar = bar();
    const cell = (name, label, ...children) => el(name, { role: "cell", "data-label": label }, ...children);
    this.element = el(
      "tr", { role: "row" },
      el("th", { role: "rowheader", scope: "row" }, this.name, this.here),
      cell("td", "State", this.state),
      cell("td", "Share of requests", el("span.measure", {}, this.share, this.shareBar.element)),
      cell("td.n", "In flight", this.inFlight),
      cell("td.n", "Served", this.served),
      cell("td.n", "Lag", this.lag),
      cell("td.n", "Last seen", this.seen),
    );
  }

  show(router) {
    const { mark, tone, says } = words.routerState(router.state);
    setAttribute(this.element, "data-router", router.name);
    setText(this.name, router.name);
    setAttribute(this.name, "data-tip", router.name);
    setText(this.here, router.self ? "this one" : "");
    setText(this.state, `${mark} ${router.state}`);
    setAttribute(this.state, "data-tone", tone);
    setAttribute(this.state, "data-tip", says);
    setText(this.share, format.percent(router.share));
    this.shareBar.set(router.share ?? null);
    // A large share is no warning.
    this.shareBar.element.classList.remove("high");
    setText(this.inFlight, format.count(router.in_flight));
    setText(this.served, format.short(router.served));
    setText(this.lag, format.ms(router.lag_ms));
    setText(this.seen, router.self ? "" : `${format.ms(router.last_seen_ms)} ago`);
    this.element.classList.toggle("off", router.state !== "live");
  }
}
