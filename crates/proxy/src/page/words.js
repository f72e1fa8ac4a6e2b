// The router's words, in sentences. Words of a newer router are shown as they are.

import * as format from "./format.js";

/** Why a worker was picked: a phrase for the list, and the sentence. */
export const WHY = {
  only: ["only candidate", "No other worker could take it."],
  turn: ["its turn", "It was this worker's turn."],
  dice: ["random", "It was picked at random."],
  "fewest-requests": ["fewest requests", "It has the fewest requests."],
  "least-work": ["least work", "It has the least work promised."],
  "better-of-two": ["better of two", "Of two workers picked at random, it had less work."],
  session: ["session", "The session is bound to this worker."],
  "session-moved": ["session moved", "The worker of this session is gone; the session is bound to this one now."],
  home: ["assigned by prefix", "The prefix of the prompt is assigned to this worker."],
  spilled: ["assigned worker overloaded", "The worker assigned to this prefix has more than its part of the work."],
  cached: ["longest cached prefix", "It has the longest cached prefix, and is not too busy."],
  "cache-too-busy": ["cached worker too busy", "Another worker has a longer cached prefix, but waiting for it costs more than it saves."],
  "least-delay": ["least delay", "No worker has the prompt cached; this one adds the least delay."],
  "least-cost": ["least cost", "No worker has the prompt cached; this one costs least."],
};

export const why = (word) => WHY[word]?.[0] ?? String(word ?? "");
export const whySentence = (word) => WHY[word]?.[1] ?? `The router says: ${word}.`;

/** A worker's state: a mark that differs in shape as well as colour, its severity, and what it means. */
const STATES = {
  ready: { mark: "●", tone: "good", says: "Healthy: it takes requests." },
  warming: { mark: "◐", tone: "fair", says: "Healthy again: it gets a growing part of the requests." },
  probing: { mark: "○", tone: "fair", says: "It has not answered a probe yet and gets no requests." },
  suspect: { mark: "▲", tone: "fair", says: "Unhealthy: a request or probe failed a moment ago; other workers are preferred." },
  ejected: { mark: "✕", tone: "bad", says: "Unhealthy: it failed too often and gets no requests until probes succeed." },
};
const UNKNOWN = { mark: "?", tone: "fair", says: "This page does not know the state." };
export const state = (word) => STATES[word] ?? UNKNOWN;

/** Whether it can take a request now. */
export const takesRequests = (worker) => !worker.draining && (worker.state === "ready" || worker.state === "warming");

/** A router's state, in the same form. */
const ROUTER_STATES = {
  live: { mark: "●", tone: "good", says: "Its messages arrive: its promises to workers count here too." },
  lost: { mark: "✕", tone: "bad", says: "No messages for more than three seconds: its promises no longer count." },
};
export const routerState = (word) => ROUTER_STATES[word] ?? UNKNOWN;

/** A program's state, in the same form. */
const PROGRAM_STATES = {
  running: { mark: "●", tone: "good", name: "running", says: "A call is in flight." },
  idle: { mark: "◐", tone: "good", name: "idle", says: "Its context has memory; its next call goes at once." },
  held: { mark: "▲", tone: "fair", name: "held", says: "A call waits until a worker has memory for its context." },
  "no-memory": { mark: "○", tone: "quiet", name: "no memory", says: "Its memory went to others; its next call computes its context again." },
};
export const programState = (word) => PROGRAM_STATES[word] ?? { ...UNKNOWN, name: String(word ?? "") };

/** How routers reach each other. */
export const via = (word) => ({ mesh: "via mesh", redis: "via Redis" })[word] ?? String(word ?? "");

/** What other routers promised to a worker; null if nothing. */
export function promisedByOthers(others) {
  if (!(others?.requests > 0 || others?.prefill_tokens > 0 || others?.decode_tokens > 0)) return null;
  return `Other routers promised ${format.plural(others.requests, "request")}, with ${format.tokens(others.prefill_tokens)} to prefill and `
    + `${format.tokens(others.decode_tokens)} to generate.`;
}

/** A ratio as a word where there is one. */
export function part(share) {
  const names = { 1: "all", 2: "a half", 3: "a third", 4: "a quarter", 5: "a fifth", 6: "a sixth", 7: "a seventh", 8: "an eighth" };
  const parts = Math.round(1 / share);
  return Math.abs(parts * share - 1) < 0.02 && parts in names ? names[parts] : `${format.percent(share)} of each limit`;
}

/** Whether a worker's cache events are complete. */
const TRUST = {
  none: { tone: "quiet", says: "It sends no cache events: its cache is predicted from the requests it got." },
  cold: { tone: "fair", says: "Its events have just begun: blocks it cached before are unknown." },
  suspect: { tone: "bad", says: "Some of its events were lost: its cache may be wrong here until they are replayed." },
  fresh: { tone: "good", says: "Its cache events arrive without a gap: its cache is known exactly." },
};
export const trust = (word) => TRUST[word] ?? { tone: "quiet", says: "This page does not know the word." };

/** The terms of a price, in the order of the formula. */
export const TERMS = [
  ["wait", "time until the work already promised to the worker is prefilled"],
  ["floor", "minimum TTFT there, however short the prompt"],
  ["prefill", "computing the part of the prompt that is not cached"],
  ["fetch", "fetching KV cache that another worker or a store holds"],
  ["behind", "delay for requests that arrive there during this prefill"],
  ["pushed", "recomputing what this prompt evicts from a full cache"],
  ["others", "delay for requests that stream there"],
  ["answer", "decode time of its own answer, at that batch size"],
  ["room", "waiting for KV memory, and what its blocks cost others"],
  ["adapter", "loading the LoRA adapter"],
];

export const term = (word) => TERMS.find(([it]) => it === word)?.[1] ?? "";

/** When a worker could start with a request. */
export const CAN_START = {
  now: "now",
  later: "later",
  disturbs: "delays others",
  "too-late": "too late",
};

const OUTCOME = {
  "in-flight": { mark: "…", tone: "quiet", name: "in flight", says: "The answer has not ended." },
  answered: { mark: "✓", tone: "good", says: "The answer is complete." },
  failed: { mark: "✕", tone: "bad", says: "The attempt failed before the first byte." },
  "broke-off": { mark: "✕", tone: "bad", name: "cut off", says: "The worker failed in the middle of its answer." },
  continued: { mark: "→", tone: "fair", says: "The worker failed in the middle of its answer, and another one went on." },
  "handed-over": { mark: "→", tone: "fair", says: "The worker was drained in the middle of its answer, and another one went on." },
  outpaced: { mark: "⇥", tone: "fair", says: "A second attempt at another worker answered first, and this one was cancelled." },
  disconnected: { mark: "↩", tone: "fair", name: "client disconnected", says: "The client disconnected before the end." },
  declined: { mark: "!", tone: "fair", says: "The worker answered with an error status." },
  recalled: { mark: "↩", tone: "quiet", says: "It was recalled for a more urgent request and queued again." },
  asked: { mark: "?", tone: "quiet", says: "A question by `explain`: nothing was sent." },
};
export const outcome = (word) => ({ mark: "", tone: "quiet", name: word, says: "", ...OUTCOME[word] });

/** Strategies that use caches; under the others prefixes are not tracked. */
const USES_CACHES = new Set([
  "cache-aware", "least-delay", "dynamo-cost", "weighted", "sticky-until-saturated", "preble", "lmetric", "dualmap",
]);
export const usesCaches = (strategy) => USES_CACHES.has(strategy);
