// Puts the page together: the key, the stream, and the parts that show its events.

import { call, onKeyRefused } from "./api.js";
import * as charts from "./charts.js";
import * as decision from "./decision.js";
import * as decisions from "./decisions.js";
import { byId, setAttribute, setText } from "./dom.js";
import * as fleet from "./fleet.js";
import * as format from "./format.js";
import * as key from "./key.js";
import * as live from "./live.js";
import * as numbers from "./numbers.js";
import * as prefixes from "./prefixes.js";
import * as programs from "./programs.js";
import * as routers from "./routers.js";
import * as shadows from "./shadows.js";
import * as tip from "./tip.js";

const LATE_MS = 3_000;

const link = { state: "connecting", reason: "", retryAt: 0, heardAt: null };
let asking = null;
let newest = null;
let drawing = false;

function start() {
  numbers.start();
  fleet.start();
  charts.start();
  decisions.start(decision.open);
  decision.start(decisions.listed, decisions.focus);
  tip.start();
  onKeyRefused(() => { askForKey("This key was not accepted. Unless admin_key is set, maitre makes a new key at each start."); });
  setInterval(showLink, 250);
  // An address with a key was pasted into this tab.
  addEventListener("hashchange", () => {
    if (!key.fragment().has("key")) return;
    key.find();
    location.reload();
  });
  begin();
}

async function begin() {
  if (key.find()) byId("panel").hidden = false;
  else await askForKey("");
  live.follow({ event, connected, lost, refused: () => asking ?? Promise.resolve() });
}

/** Asks once for any number of refused requests. */
function askForKey(why) {
  asking ??= key.ask(why).then(() => { asking = null; });
  link.state = "locked";
  showLink();
  return asking;
}

function connected() {
  link.state = "live";
  showLink();
  // Each may fail alone; the stream shows whether the router is gone.
  call("GET", "history").then(charts.load).catch(() => {});
  decisions.load().then(decision.follow).catch(() => {});
}

function restarted() {
  decisions.forget();
  decisions.load().catch(() => {});
}

function lost(reason, retryAt) {
  link.state = "lost";
  Object.assign(link, { reason, retryAt });
  showLink();
}

function event(name, data) {
  link.heardAt = performance.now();
  if (name === "decisions") {
    decisions.add(data);
    decision.refresh(data.decisions);
  } else if (name === "overview") {
    if (newest !== null && data.uptime_s < newest.uptime_s) restarted();
    newest = data;
    charts.add(data);
    if (drawing) return;
    drawing = true;
    // A hidden page draws the last overview once it is visible.
    requestAnimationFrame(() => {
      drawing = false;
      for (const part of [numbers, fleet, routers, programs, decisions, shadows, prefixes]) part.show(newest);
      document.title = newest.ready ? "Maitre" : "Maitre (not ready)";
    });
  }
}

/** Shows whether the data is current; if not, how old it is and when the next attempt is. */
function showLink() {
  const now = performance.now();
  const age = link.heardAt === null ? null : now - link.heardAt;
  const late = age !== null && age > LATE_MS;
  const old = late ? `, data ${format.duration(age / 1000)} old` : "";
  const element = byId("link");
  const wait = Math.max(Math.ceil((link.retryAt - now) / 1000), 0);
  const [mark, text, tone] = {
    connecting: ["○", "connecting", "quiet"],
    locked: ["○", "locked", "quiet"],
    live: late ? ["▲", `no data${old}`, "fair"] : ["●", "live", "good"],
    lost: ["✕", `${link.reason}${old}, ${wait > 0 ? `next try in ${wait} s` : "trying"}`, "bad"],
  }[link.state];
  if (element.childElementCount === 0) element.append(document.createElement("i"), document.createElement("span"));
  setText(element.firstChild, mark);
  setText(element.lastChild, text);
  setAttribute(element, "data-tone", tone);
  setAttribute(element, "data-state", link.state);
  // Seconds are counted on screen only; screen readers announce a new state once.
  setAttribute(element, "aria-live", element.dataset.said === link.state ? "off" : "polite");
  setAttribute(element, "data-said", link.state);
  document.body.classList.toggle("stale", link.state === "lost" || (link.state === "live" && late));
}

start();
