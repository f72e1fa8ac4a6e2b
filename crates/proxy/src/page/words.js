// The router's words, in sentences. Unknown ones, of a newer router, are shown as they are.

import * as format from "./format.js";

/** Why a worker was picked: what stands in the list, and the sentence. */
export const WHY = {
  only: ["nobody else could", "No other worker could take it."],
  turn: ["its turn", "It was this worker's turn."],
  dice: ["the dice said so", "The dice said so."],
  "fewest-requests": ["fewest requests", "No worker has fewer requests."],
  "least-work": ["least work", "No worker has less work promised."],
  "better-of-two": ["better of two", "It had less work than the other worker the dice named."],
  session: ["session sits here", "This session sits here."],
  "session-moved": ["session moved here", "This session's worker is gone; it sits here from now on."],
  home: ["its prefix lives here", "The beginning of the prompt belongs here."],
  spilled: ["home is too full", "The beginning of the prompt belongs to a worker that has more than its part of the work."],
  cached: ["holds the most of it", "No worker holds more of the prompt, and it is not too busy."],
  "cache-too-busy": ["the holder is too busy", "Another worker holds more of the prompt, but waiting for it costs more than it saves."],
  "least-delay": ["delays everyone least", "No worker holds any of it; it delays everyone least here."],
  "most-room": ["most room in its cache", "No worker holds enough of it; this cache has the most room."],
  "least-cost": ["costs least", "No worker holds any of it; it costs least here."],
};

export const why = (word) => WHY[word]?.[0] ?? String(word ?? "");
export const whySentence = (word) => WHY[word]?.[1] ?? `The router says: ${word}.`;

/** A worker's state: a mark that differs by shape and not colour alone, how grave it is, and what it means. */
const STATES = {
  ready: { mark: "●", tone: "good", says: "It answers, and takes requests." },
  warming: { mark: "◐", tone: "fair", says: "It is back, and gets a growing part of the requests." },
  probing: { mark: "○", tone: "fair", says: "It has not answered a probe yet, and gets no requests." },
  suspect: { mark: "▲", tone: "fair", says: "Something failed there a moment ago; others are preferred." },
  ejected: { mark: "✕", tone: "bad", says: "It failed too often and gets no requests until probes succeed." },
};
const STRANGE = { mark: "?", tone: "fair", says: "This page does not know the state." };
export const state = (word) => STATES[word] ?? STRANGE;

/** Can it take a request that comes now? */
export const takesRequests = (worker) => !worker.draining && (worker.state === "ready" || worker.state === "warming");

/** Another router's state, as that of a worker. */
const STANDINGS = {
  live: { mark: "●", tone: "good", says: "It is heard: what it promises to workers counts here, too." },
  lost: { mark: "✕", tone: "bad", says: "It has not been heard for some time: what it promised counts no more, and it may be gone." },
};
export const standing = (word) => STANDINGS[word] ?? STRANGE;

/** How routers reach each other. */
export const via = (word) => ({ mesh: "directly, as a mesh", redis: "through Redis" })[word] ?? String(word ?? "");

/** Beside a worker's load: what other routers add to it; null if there are none, or they add nothing. */
export function promisedByOthers(others) {
  if (!(others?.requests > 0 || others?.prefill_tokens > 0 || others?.decode_tokens > 0)) return null;
  return `Other routers promised ${format.plural(others.requests, "request")} there, with ${format.tokens(others.prefill_tokens)} to prefill and `
    + `${format.tokens(others.decode_tokens)} to answer.`;
}

/** A part of a whole, as one says it where it has a name. */
export function part(share) {
  const names = { 1: "all", 2: "a half", 3: "a third", 4: "a quarter", 5: "a fifth", 6: "a sixth", 7: "a seventh", 8: "an eighth" };
  const parts = Math.round(1 / share);
  return Math.abs(parts * share - 1) < 0.02 && parts in names ? names[parts] : `${format.percent(share)} of what they allow`;
}

/** How far what a worker reports of its cache can be believed. */
const TRUST = {
  none: { tone: "quiet", says: "It sends no cache events: what it holds is guessed from what was sent there." },
  cold: { tone: "fair", says: "Its events have only begun: what it stored before is unknown, what it reports now is believed." },
  suspect: { tone: "bad", says: "Some of its events were lost: what it is said to hold may be wrong until they are replayed." },
  fresh: { tone: "good", says: "Its cache events arrive without a gap: what it is said to hold is what it holds." },
};
export const trust = (word) => TRUST[word] ?? { tone: "quiet", says: "This page does not know the word." };

/** The parts of a price, in the order of the formula. */
export const TERMS = [
  ["wait", "work promised to the worker before this request"],
  ["floor", "what any prompt takes there, however short"],
  ["prefill", "computing the tokens that it does not hold"],
  ["behind", "those who come meanwhile and stand behind this prompt"],
  ["pushed", "what this prompt pushes out of a full cache, to be computed again"],
  ["others", "what it takes from answers that already stream there"],
  ["answer", "its own answer, at the pace of that crowd"],
  ["room", "memory: waiting for it, and keeping it from others"],
  ["adapter", "loading the adapter it asks for"],
];

/** When a worker could begin with it. */
export const OPENING = {
  now: "now",
  later: "no room yet",
  disturbs: "disturbs more urgent ones",
  "too-late": "misses the deadline",
};

const OUTCOME = {
  open: { mark: "…", tone: "quiet", says: "The answer is under way." },
  answered: { mark: "✓", tone: "good", says: "The answer is complete." },
  failed: { mark: "✕", tone: "bad", says: "The attempt failed before its first byte." },
  "broke-off": { mark: "✕", tone: "bad", says: "The answer broke off in the middle." },
  left: { mark: "↩", tone: "fair", says: "The client left before the end." },
  declined: { mark: "!", tone: "fair", says: "The worker answered with an error of its own." },
  recalled: { mark: "↩", tone: "quiet", says: "It was called back for a more urgent one, and stood in line again." },
  asked: { mark: "?", tone: "quiet", says: "Only a question: nothing was sent." },
};
export const outcome = (word) => OUTCOME[word] ?? { mark: "", tone: "quiet", says: "" };

/** Strategies that look at what caches hold; the others never learn which prefixes are hot. */
const BY_CACHES = new Set([
  "cache-aware", "least-delay", "dynamo-cost", "weighted", "sticky-until-saturated", "preble", "lmetric", "dualmap",
]);
export const goesByCaches = (strategy) => BY_CACHES.has(strategy);
