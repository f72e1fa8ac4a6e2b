// The event stream: opened with the key, and opened again when it ends.
//
// `EventSource` cannot send a key, so the format is parsed here. An overview comes every second: a stream that is silent
// for much longer is closed, though its connection may be open.

import { open, Refused } from "./api.js";

const SILENCE_MS = 8_000;
const RETRY_FIRST_MS = 500;
const RETRY_MAX_MS = 10_000;
// An overview of a thousand workers has about half a megabyte.
const EVENT_CHARS_MAX = 16 << 20;

/**
 * Follows the stream for as long as the page lives. `on` has `event(name, data)`, `connected()`, `lost(reason,
 * retryAt)` and `refused()`, which returns a promise of another key.
 */
export async function follow(on) {
  let delay = RETRY_FIRST_MS;
  for (;;) {
    let reason = "the router ended the stream";
    try {
      await read(on, () => { delay = RETRY_FIRST_MS; });
    } catch (error) {
      if (error.isKey) {
        await on.refused();
        continue;
      }
      reason = error.message;
    }
    // Jitter, so that many open pages do not reconnect in the same instant.
    const pause = delay * (0.75 + Math.random() / 2);
    on.lost(reason, performance.now() + pause);
    await rest(pause);
    delay = Math.min(delay * 2, RETRY_MAX_MS);
  }
}

async function read(on, began) {
  const control = new AbortController();
  let watchdog;
  const alive = () => {
    clearTimeout(watchdog);
    watchdog = setTimeout(() => control.abort(), SILENCE_MS);
  };
  alive();
  try {
    const answer = await open("GET", "live", { signal: control.signal });
    on.connected();
    const parse = parser((name, data) => {
      began();
      on.event(name, data);
    });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      alive();
      parse(value);
    }
  } catch (error) {
    if (error.isKey || error.status > 0) throw error;
    if (control.signal.aborted) throw new Error("the router sent nothing for 8 s", { cause: error });
    throw error instanceof Refused ? error : new Error("the connection broke", { cause: error });
  } finally {
    clearTimeout(watchdog);
    control.abort();
  }
}

/** Takes text in pieces and calls `found` for each whole event. */
function parser(found) {
  let held = "";
  return (piece) => {
    held += piece.replaceAll("\r", "");
    if (held.length > EVENT_CHARS_MAX) throw new Error("an event is too long");
    let end;
    while ((end = held.indexOf("\n\n")) !== -1) {
      const lines = held.slice(0, end).split("\n");
      held = held.slice(end + 2);
      const all = (field) => lines.filter((it) => it.startsWith(`${field}:`)).map((it) => it.slice(field.length + 1).trimStart());
      const data = all("data");
      if (data.length > 0) found(all("event").at(-1) ?? "message", JSON.parse(data.join("\n")));
    }
  };
}

/** Sleeps, and wakes early when the network is back or the page becomes visible. */
function rest(pause) {
  return new Promise((resolve) => {
    const wake = () => {
      clearTimeout(timer);
      removeEventListener("online", wake);
      document.removeEventListener("visibilitychange", seen);
      resolve();
    };
    const seen = () => { if (document.visibilityState === "visible") wake(); };
    const timer = setTimeout(wake, pause);
    addEventListener("online", wake);
    document.addEventListener("visibilitychange", seen);
  });
}
