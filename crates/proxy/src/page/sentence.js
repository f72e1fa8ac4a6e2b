// Why this worker, in a sentence with the numbers that decided it.
//
// Pure: a decision in, text out. The numbers are those of the candidates; nothing is worked out that the router
// did not say.

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
  // Only least-delay goes by these prices; of any other rule they would explain nothing.
  const say = decision.strategy === "least-delay" ? PRICED[decision.why] : undefined;
  if (say === undefined) return whySentence(decision.why);
  const near = cheapest.price_ms < chosen.price_ms
    ? ` ${Name(cheapest)} costs ${format.ms(cheapest.price_ms)}, which counts as equal; of equals the one with the fewest requests is taken.`
    : "";
  return say(decision, chosen, others) + near;
}

const PRICED = { cached, "cache-too-busy": tooBusy, "least-delay": leastDelay };

function leastDelay(decision, chosen, [next]) {
  return `No worker holds any of the ${format.count(decision.prompt_tokens)} tokens. ${Name(chosen)} delays everyone least, by `
    + `${format.ms(chosen.price_ms)}; ${name(next)} would by ${format.ms(next.price_ms)}.`;
}

const priced = (candidate) => typeof candidate.price_ms === "number" && typeof candidate.terms_ms?.wait === "number";

const cost = (value_ms) => (value_ms < 0.05 ? "nothing" : format.ms(value_ms));

function cached(decision, chosen, others) {
  const holds = `${Name(chosen)} holds ${format.count(chosen.held_tokens)} of ${format.count(decision.prompt_tokens)} tokens`;
  const emptier = others.filter((it) => it.held_tokens < chosen.held_tokens);
  if (emptier.length === 0) {
    return `${holds}, as do the others; of them it delays everyone least, by ${format.ms(chosen.price_ms)}.`;
  }
  // The cheapest of those who would have had to compute it.
  const rival = emptier[0];
  return `${holds}; waiting for it costs ${cost(chosen.terms_ms.wait)}, and computing the rest ${cost(chosen.terms_ms.prefill)}. `
    + `Elsewhere computing costs ${format.ms(rival.terms_ms.prefill)}: ${name(rival)} would have delayed everyone by `
    + `${format.ms(rival.price_ms)} instead of ${format.ms(chosen.price_ms)}.`;
}

function tooBusy(decision, chosen, others) {
  const holder = others.reduce((most, it) => (it.held_tokens > (most?.held_tokens ?? chosen.held_tokens) ? it : most), undefined);
  if (holder === undefined) return whySentence(decision.why);
  return `${Name(holder)} holds ${format.count(holder.held_tokens)} of ${format.count(decision.prompt_tokens)} tokens, but `
    + `${drawback(holder, chosen)}: it would delay everyone by ${format.ms(holder.price_ms)}. ${Name(chosen)}, where computing costs `
    + `${format.ms(chosen.terms_ms.prefill)}, delays everyone by ${format.ms(chosen.price_ms)}.`;
}

/** What most speaks against one candidate beside another, as half a sentence. */
function drawback(one, other) {
  if (one.share < 1 && one.price_ms * one.share <= other.price_ms) return `it is to take ${format.percent(one.share)} of what others take`;
  const excess = (term) => one.terms_ms[term] / one.share - other.terms_ms[term] / other.share;
  const [worst] = Object.keys(DRAWBACKS).sort((a, b) => excess(b) - excess(a));
  return DRAWBACKS[worst](format.ms(one.terms_ms[worst]));
}

const DRAWBACKS = {
  wait: (cost) => `waiting for it costs ${cost}`,
  floor: (cost) => `any prompt takes it ${cost}`,
  prefill: (cost) => `it computes the rest in ${cost}`,
  behind: (cost) => `those who come there meanwhile would lose ${cost}`,
  pushed: (cost) => `what it would push out of its cache costs ${cost}`,
  others: (cost) => `answers that stream there would lose ${cost}`,
  answer: (cost) => `an answer there is slow, which counts ${cost}`,
  room: (cost) => `its memory is short, which costs ${cost}`,
  adapter: (cost) => `loading the adapter costs ${cost}`,
};

/** What another strategy would have done with it. */
export function shadow(it, decision) {
  const to = `worker ${it.worker} (${address(it.url)})`;
  if (!it.differs) return `${it.strategy} would have gone to the same worker.`;
  const ours = decision.candidates.find((candidate) => candidate.chosen)?.price_ms;
  const ratio = ours > 0 && typeof it.price_ms === "number" ? `: ${format.times(it.price_ms / ours)} the price, ${format.ms(it.price_ms)}` : "";
  const ttft = typeof it.ttft_ms === "number" ? `, first token after ${format.ms(it.ttft_ms)}` : "";
  return `${it.strategy} would have gone to ${to}${ratio}${ttft}.`;
}

/** Predicted against actual, as one sentence. */
export function prediction({ predicted_ttft_ms: predicted, actual_ttft_ms: actual, outcome }) {
  if (typeof predicted !== "number") return "Nothing was predicted: the rates of this worker were not known.";
  if (typeof actual !== "number") {
    return outcome === "open"
      ? `The first token is expected after ${format.ms(predicted)}.`
      : `The first token was expected after ${format.ms(predicted)}; it was not measured.`;
  }
  return `The first token was expected after ${format.ms(predicted)} and came after ${format.ms(actual)} (${format.difference(actual / predicted - 1)}).`;
}
