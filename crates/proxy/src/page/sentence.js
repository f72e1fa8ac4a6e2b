// Why this worker, in sentences with the numbers that decided.
//
// Pure: a decision in, text out. All numbers are the router's own.

import { address } from "./dom.js";
import * as format from "./format.js";
import { whySentence } from "./words.js";

const name = (candidate) => `worker ${candidate.worker} (${address(candidate.url)})`;
const Name = (candidate) => `Worker ${candidate.worker} (${address(candidate.url)})`;

export function why(decision) {
  const { candidates } = decision;
  const chosen = candidates.find((it) => it.chosen);
  if (chosen === undefined) return whySentence(decision.why);
  const others = candidates.filter((it) => it !== chosen && priced(it));
  const cheapest = others[0];
  if (cheapest === undefined || !priced(chosen)) return whySentence(decision.why);
  // Only least-delay uses these prices; they would explain no other strategy.
  const say = decision.strategy === "least-delay" ? PRICED[decision.why] : undefined;
  if (say === undefined) return whySentence(decision.why);
  const near = cheapest.price_ms < chosen.price_ms
    ? ` ${Name(cheapest)} costs ${format.ms(cheapest.price_ms)}, which counts as equal; the one with fewer requests wins.`
    : "";
  return say(decision, chosen, others) + near;
}

const PRICED = { cached, "cache-too-busy": tooBusy, "least-delay": leastDelay };

function leastDelay(decision, chosen, [next]) {
  return `No worker has any of the ${format.count(decision.prompt_tokens)} tokens cached. ${Name(chosen)} adds the least delay, `
    + `${format.ms(chosen.price_ms)}; ${name(next)} would add ${format.ms(next.price_ms)}.`;
}

const priced = (candidate) => typeof candidate.price_ms === "number" && typeof candidate.terms_ms?.wait === "number";

const cost = (value_ms) => (value_ms < 0.05 ? "nothing" : format.ms(value_ms));

function cached(decision, chosen, others) {
  const has = `${Name(chosen)} has ${format.count(chosen.cached_tokens)} of ${format.count(decision.prompt_tokens)} tokens cached`;
  const emptier = others.filter((it) => it.cached_tokens < chosen.cached_tokens);
  if (emptier.length === 0) {
    return `${has}, as do the others; it adds the least delay, ${format.ms(chosen.price_ms)}.`;
  }
  // The cheapest of those with a shorter cached prefix.
  const rival = emptier[0];
  return `${has}; waiting for it costs ${cost(chosen.terms_ms.wait)}, and prefilling the rest ${cost(chosen.terms_ms.prefill)}. `
    + `At ${name(rival)} prefill costs ${format.ms(rival.terms_ms.prefill)}, and the total delay would be `
    + `${format.ms(rival.price_ms)} instead of ${format.ms(chosen.price_ms)}.`;
}

function tooBusy(decision, chosen, others) {
  const holder = others.reduce((most, it) => (it.cached_tokens > (most?.cached_tokens ?? chosen.cached_tokens) ? it : most), undefined);
  if (holder === undefined) return whySentence(decision.why);
  return `${Name(holder)} has ${format.count(holder.cached_tokens)} of ${format.count(decision.prompt_tokens)} tokens cached, but `
    + `${drawback(holder, chosen)}: it would add ${format.ms(holder.price_ms)} of delay. ${Name(chosen)}, where prefill costs `
    + `${format.ms(chosen.terms_ms.prefill)}, adds ${format.ms(chosen.price_ms)}.`;
}

/** The largest disadvantage of one candidate against another, as half a sentence. */
function drawback(one, other) {
  if (one.share < 1 && one.price_ms * one.share <= other.price_ms) return `its share is ${format.percent(one.share)} of that of others`;
  const excess = (term) => one.terms_ms[term] / one.share - other.terms_ms[term] / other.share;
  const [worst] = Object.keys(DRAWBACKS).sort((a, b) => excess(b) - excess(a));
  return DRAWBACKS[worst](format.ms(one.terms_ms[worst]));
}

const DRAWBACKS = {
  wait: (cost) => `waiting for it costs ${cost}`,
  floor: (cost) => `its shortest prefill takes ${cost}`,
  prefill: (cost) => `prefilling the rest takes ${cost}`,
  fetch: (cost) => `fetching KV cache takes ${cost}`,
  behind: (cost) => `requests that arrive meanwhile would wait ${cost}`,
  pushed: (cost) => `the blocks it would evict cost ${cost}`,
  others: (cost) => `answers in flight there would lose ${cost}`,
  answer: (cost) => `its answers are slow, which costs ${cost}`,
  room: (cost) => `its KV cache is nearly full, which costs ${cost}`,
  adapter: (cost) => `loading the adapter costs ${cost}`,
};

/** What another strategy would have done. */
export function shadow(it, decision) {
  const to = `worker ${it.worker} (${address(it.url)})`;
  if (!it.differs) return `${it.strategy} would have picked the same worker.`;
  const ours = decision.candidates.find((candidate) => candidate.chosen)?.price_ms;
  const ratio = ours > 0 && typeof it.price_ms === "number" ? `: ${format.times(it.price_ms / ours)} the price, ${format.ms(it.price_ms)}` : "";
  const ttft = typeof it.ttft_ms === "number" ? `, first token after ${format.ms(it.ttft_ms)}` : "";
  return `${it.strategy} would have picked ${to}${ratio}${ttft}.`;
}

/** The worker that prefills for the chosen one. */
export function prefill({ worker, url, fetched_tokens: fetched, price_here_ms: here, price_elsewhere_ms: elsewhere }) {
  return `Prefilled by ${url ?? `worker ${worker}`}; the KV cache of ${format.count(fetched)} tokens is fetched from there. `
    + `That costs ${format.ms(elsewhere)}; `
    + (here == null ? "the worker cannot answer alone." : `prefilled where it is answered, ${format.ms(here)}.`);
}

/** What the chosen worker fetches, and from where. */
export function fetched({ worker, url, tokens, expected_ms: expected }) {
  const cache = `the KV cache of ${format.count(tokens)} tokens from`;
  const how = worker === null ? `Loads ${cache} its store` : `Pulls ${cache} ${url ?? `worker ${worker}`}`;
  return `${how}, expected within ${format.ms(expected)}.`;
}

/** Why a call is held. */
export function held({ tokens, roomiest, roomiest_url, roomiest_usage, ahead, at_latest_ms }) {
  const memory = typeof roomiest_usage === "number"
    ? `needs ${format.tokens(tokens)}; the emptiest memory, worker ${roomiest} (${address(roomiest_url)}), is ${format.percent(roomiest_usage)} full`
    : `needs ${format.tokens(tokens)}, and no worker has room`;
  return `${memory}; ${format.plural(ahead, "call")} ahead; goes at the latest in ${format.duration(at_latest_ms / 1000)}`;
}

/** That a program stayed or moved, and the price of its memory. */
export function step({ program, calls, last_worker, last_url, held_ms, memory_ms, last_memory_ms }, worker) {
  const here = memory_ms > 0 ? `its memory costs other programs ${format.ms(memory_ms)}` : "its memory costs other programs nothing";
  const there = typeof last_memory_ms === "number" ? `, and ${format.ms(last_memory_ms)} there` : "";
  const went = last_worker === null ? (calls <= 1 ? `begins here: ${here}` : `has lost its worker: ${here}`)
    : last_worker === worker ? `stays with its worker: ${here}`
      : `moves from worker ${last_worker} (${address(last_url)}): ${here} here${there}`;
  const wait = held_ms > 0 ? ` The call was held for ${format.ms(held_ms)} until there was memory.` : "";
  return `Call ${format.count(calls)} of program ${program}: it ${went}.${wait}`;
}

/** Predicted and actual time, as one sentence. */
export function prediction({ predicted_ttft_ms: predicted, actual_ttft_ms: actual, outcome }) {
  if (typeof predicted !== "number") return "No prediction: the rates of this worker were unknown.";
  if (typeof actual !== "number") {
    return outcome === "in-flight"
      ? `The first token is expected after ${format.ms(predicted)}.`
      : `The first token was expected after ${format.ms(predicted)}; it was not measured.`;
  }
  return `The first token was expected after ${format.ms(predicted)} and came after ${format.ms(actual)} (${format.difference(actual / predicted - 1)}).`;
}
