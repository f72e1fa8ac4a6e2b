// What an operator does to one worker: drain it, resume it, change its weight.
//
// Each response is the worker as it is now; it is shown at once, before the next overview.

import { call } from "./api.js";
import { ask } from "./ask.js";
import { address } from "./dom.js";
import { takesRequests } from "./words.js";

// The router's own bounds.
const WEIGHT_MIN = 0.01;
const WEIGHT_MAX = 100;

export async function drain(worker, workers) {
  const act = () => call("POST", `workers/${worker.id}/drain`);
  const others = workers.filter((it) => it.id !== worker.id && takesRequests(it));
  if (others.length > 0 || !takesRequests(worker)) return act();
  return asked({
    title: "Drain the last ready worker?",
    text: `Only ${address(worker.url)} takes requests now. While it drains, new requests are refused or wait until another `
      + "worker is ready. Requests in flight finish.",
    yes: "Drain it anyway",
    no: "Keep it",
  }, act);
}

export function resume(worker) {
  return call("POST", `workers/${worker.id}/resume`);
}

export function weigh(worker) {
  return asked({
    title: `Weight of ${address(worker.url)}`,
    text: "Its part of the work: 1 is a full part, 0.5 is half of that. Its speed is learned and needs no weight.",
    yes: "Set",
    no: "Cancel",
    label: `Weight, ${WEIGHT_MIN} to ${WEIGHT_MAX}`,
    value: String(worker.weight),
  }, (text) => {
    const weight = Number(text.replace(",", "."));
    if (text === "" || !(weight >= WEIGHT_MIN && weight <= WEIGHT_MAX)) {
      throw new Error(`“${text}” is not a weight; write a number from ${WEIGHT_MIN} to ${WEIGHT_MAX}.`);
    }
    return call("PUT", `workers/${worker.id}/weight`, { weight });
  });
}

/** Resolves with the result of `act`, or null if it was cancelled. */
function asked(question, act) {
  return new Promise((resolve) => {
    let result = null;
    ask(question, async (value) => { result = await act(value); });
    document.getElementById("ask").addEventListener("close", () => resolve(result), { once: true });
  });
}
