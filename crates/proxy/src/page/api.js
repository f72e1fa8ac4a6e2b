// Requests to the admin API. Every failure becomes a `Refused` with a sentence.

import * as key from "./key.js";

const ROOT = "admin/v1/";

// A router answers in milliseconds; one that takes this long is not there.
const PATIENCE_MS = 10_000;

export class Refused extends Error {
  /** `status` is 0 if there was no response. */
  constructor(status, message) {
    super(message);
    this.status = status;
  }

  get isKey() {
    return this.status === 401;
  }
}

const whenKeyFails = [];

/** `callback` is called for each response with status 401. */
export function onKeyRefused(callback) {
  whenKeyFails.push(callback);
}

/** The response, if it is a success. */
export async function open(method, path, { body, signal } = {}) {
  const headers = { authorization: `Bearer ${key.current()}` };
  if (body !== undefined) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(ROOT + path, { method, headers, signal, cache: "no-store", body: body && JSON.stringify(body) });
  } catch {
    throw new Refused(0, signal?.aborted ? "the router did not answer in time" : "the router cannot be reached");
  }
  if (answer.ok) return answer;
  const refused = new Refused(answer.status, await reason(answer));
  if (refused.isKey) for (const callback of whenKeyFails) callback(refused);
  throw refused;
}

export async function call(method, path, body) {
  const answer = await open(method, path, { body, signal: AbortSignal.timeout(PATIENCE_MS) });
  try {
    return await answer.json();
  } catch {
    throw new Refused(0, "the response was cut off");
  }
}

async function reason(answer) {
  try {
    const { error } = await answer.json();
    if (typeof error?.message === "string") return error.message;
  } catch { /* Not the admin API's error body. */ }
  return `status ${answer.status}`;
}
