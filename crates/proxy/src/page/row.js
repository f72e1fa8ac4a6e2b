// One worker as a row: its cells are made once, and only changes are written.

import { address, bar, el, plate, setAttribute, setText } from "./dom.js";
import * as control from "./control.js";
import * as format from "./format.js";
import * as undo from "./undo.js";
import * as words from "./words.js";

// Probes come about every second; a longer silence is shown.
const SEEN_LATE_MS = 5_000;

export class Row {
  #worker = null;
  #busy = false;

  /** `fleet` has `workers()`, all there are, and `put(worker)` for one that was changed. */
  constructor(id, fleet) {
    const note = () => el("small.quiet");
    this.name = el("span");
    [this.engine, this.stateNote, this.workNote, this.requestsNote, this.cachedNote, this.ratesNote] = Array.from({ length: 6 }, note);
    [this.kv, this.hits, this.rates] = Array.from({ length: 3 }, () => el("span"));
    [this.work, this.requests] = [new Amount(), new Amount()];
    [this.state, this.trust] = [el("span.tag", { tabindex: "0" }), el("span.tag", { tabindex: "0" })];
    [this.workBar, this.kvBar] = [bar(), bar()];
    this.weight = el("button.weight", { type: "button" });
    this.drain = el("button.drain", { type: "button" });
    this.error = el("small.error", { role: "alert" });
    this.element = this.#lay(id);
    this.weight.addEventListener("click", () => this.#act(fleet, () => control.weigh(this.#worker)));
    this.drain.addEventListener("click", () => this.#act(fleet, () => (this.#worker.draining ? this.#resume() : this.#drain(fleet))));
  }

  #lay(id) {
    const cell = (label, ...children) => el("td", { role: "cell", "data-label": label }, ...children);
    return el(
      "tr", { role: "row", "data-worker": id },
      el("th", { role: "rowheader", scope: "row" }, this.name, this.engine),
      cell("State", this.state, this.stateNote),
      cell("Promised work", this.work.element, this.workBar.element, this.workNote),
      cell("Requests", this.requests.element, this.requestsNote),
      cell("KV usage", this.kv, this.kvBar.element, this.cachedNote),
      cell("Hit ratio", this.hits),
      cell("Learned rates", this.rates, this.ratesNote),
      cell("Cache events", this.trust),
      cell("Weight", this.weight),
      cell("Control", this.drain, this.error),
    );
  }

  async #act(fleet, command) {
    this.#setBusy(true);
    setText(this.error, "");
    try {
      fleet.put(await command());
    } catch (problem) {
      // The page asks for another key itself.
      setText(this.error, problem.isKey ? "" : problem.message);
    } finally {
      this.#setBusy(false);
    }
  }

  async #drain(fleet) {
    const worker = this.#worker;
    const changed = await control.drain(worker, fleet.workers());
    if (changed !== null) {
      undo.offer(`Worker ${worker.id} (${address(worker.url)}) is draining.`, async () => fleet.put(await control.resume(worker)));
    }
    return changed;
  }

  #resume() {
    undo.close();
    return control.resume(this.#worker);
  }

  #setBusy(busy) {
    this.#busy = busy;
    for (const button of [this.weight, this.drain]) button.disabled = busy;
  }

  /** `promisedMax` is a full bar where the worker has no limit. */
  show(worker, promisedMax) {
    this.#worker = worker;
    if (this.name.dataset.url !== worker.url) {
      this.name.dataset.url = worker.url;
      this.name.replaceChildren(plate(worker.id, worker.url));
    }
    const role = worker.role && worker.role !== "both" ? [worker.role] : [];
    setText(this.engine, [...role, worker.engine ?? "engine unknown", ...(worker.models ?? [])].join(" · "));
    this.#showState(worker);
    this.#showLoad(worker, promisedMax);
    this.#showKnowledge(worker);
    this.#showControls(worker);
    this.element.classList.toggle("off", !words.takesRequests(worker));
  }

  #showState(worker) {
    const { mark, tone, says } = words.state(worker.state);
    setText(this.state, worker.draining ? "◌ draining" : `${mark} ${worker.state}`);
    setAttribute(this.state, "data-tone", worker.draining ? "fair" : tone);
    setAttribute(this.state, "data-tip", worker.draining
      ? `It gets no new requests and finishes those it has. Its state is ${worker.state}.`
      : says);
    setText(this.stateNote, note(worker));
  }

  #showLoad(worker, promisedMax) {
    const { prefill_tokens = null, sequences = null } = worker.limits ?? {};
    const { other_routers: others } = worker;
    const theirs = words.promisedByOthers(others);
    this.work.show(worker.prefill_tokens, others?.prefill_tokens, { limit: prefill_tokens, kinds: [format.short, format.tokens], theirs });
    const whole = prefill_tokens || promisedMax;
    this.workBar.set(worker.prefill_tokens / whole, (others?.prefill_tokens ?? 0) / whole);
    setAttribute(this.workBar.element, "data-tip", theirs);
    setText(this.workNote, `to prefill, ${format.short(worker.decode_tokens)} to answer`);
    // `requests` includes those of other routers.
    this.requests.show(Math.max(worker.requests - (others?.requests ?? 0), 0), others?.requests, { limit: sequences, kinds: [format.count, format.count], theirs });
    const queued = worker.waiting === null ? "" : `, ${format.count(worker.waiting)} queued in the engine`;
    setText(this.requestsNote, `${format.count(worker.prefilling)} in prefill${queued}`);
    setText(this.kv, format.percent(worker.kv_usage));
    this.kvBar.set(worker.kv_usage);
    setText(this.cachedNote, `${format.tokens(worker.cached_tokens)} cached`);
  }

  #showKnowledge(worker) {
    setText(this.hits, format.percent(worker.hit_ratio));
    setText(this.rates, format.tokenRate(worker.rates?.prefill_tokens_per_s));
    setText(this.ratesNote, `${format.ms(worker.rates?.step_now_ms)} per output token${worker.rates?.learned === true ? "" : ", assumed"}`);
    const { tone, says } = words.trust(worker.trust);
    setText(this.trust, worker.trust);
    setAttribute(this.trust, "data-tone", tone);
    setAttribute(this.trust, "data-tip", says);
  }

  #showControls(worker) {
    const verb = worker.draining ? "Resume" : "Drain";
    setText(this.weight, format.weight(worker.weight));
    setAttribute(this.weight, "aria-label", `Weight of worker ${worker.id}: ${worker.weight}. Change it`);
    setText(this.drain, verb);
    setAttribute(this.drain, "aria-label", `${verb} worker ${worker.id}`);
    this.#setBusy(this.#busy);
  }
}

/** Ours, plus other routers', and the limit for both: `12 + 5 of 40`. */
class Amount {
  constructor() {
    [this.ours, this.others, this.limit] = [el("span"), el("span.others"), el("span")];
    this.element = el("span", {}, this.ours, this.others, this.limit);
  }

  /** `kinds` format a number before another one, and the last one with its unit; `theirs` is the tip on other routers. */
  show(ours, others, { limit, kinds: [bare, whole], theirs }) {
    const more = others > 0;
    setText(this.ours, (limit === null && !more ? whole : bare)(ours));
    setText(this.others, more ? ` + ${(limit === null ? whole : bare)(others)}` : "");
    setAttribute(this.others, "data-tip", more ? theirs : null);
    setAttribute(this.others, "tabindex", more ? "0" : null);
    setText(this.limit, limit === null ? "" : ` of ${whole(limit)}`);
  }
}

/** The most important of: why it is unhealthy, silence, failures, requests so far. */
function note({ unhealthy, last_seen_ms, failures, requests_total }) {
  if (unhealthy) return unhealthy;
  if (last_seen_ms === null) return "never seen";
  if (last_seen_ms > SEEN_LATE_MS) return `last seen ${format.ms(last_seen_ms)} ago`;
  return failures > 0 ? format.plural(failures, "failure") : format.plural(requests_total, "request");
}
