// One worker as a row: its cells are made once, and only what changes in them is written each second.

import { bar, el, plate, setAttribute, setText } from "./dom.js";
import * as control from "./control.js";
import * as format from "./format.js";
import * as words from "./words.js";

// Probes come every second or so; silence for this long is worth a line.
const HEARD_LATE_MS = 5_000;

export class Row {
  #worker = null;
  #readonly = false;
  #busy = false;

  /** `floor` has `workers()`, all there are, and `put(worker)` for one that was changed. */
  constructor(id, floor) {
    const note = () => el("small.quiet");
    this.name = el("span");
    [this.engine, this.heard, this.workNote, this.requestsNote, this.heldNote, this.ratesNote] = Array.from({ length: 6 }, note);
    [this.work, this.requests, this.kv, this.hits, this.rates] = Array.from({ length: 5 }, () => el("span"));
    [this.state, this.trust] = [el("span.tag", { tabindex: "0" }), el("span.tag", { tabindex: "0" })];
    [this.workBar, this.kvBar] = [bar(), bar()];
    this.weight = el("button.weight", { type: "button" });
    this.drain = el("button.drain", { type: "button" });
    this.error = el("small.error", { role: "alert" });
    this.element = this.#lay(id);
    this.weight.addEventListener("click", () => this.#act(floor, () => control.weigh(this.#worker)));
    this.drain.addEventListener("click", () => this.#act(floor, () => (this.#worker.draining
      ? control.resume(this.#worker)
      : control.drain(this.#worker, floor.workers()))));
  }

  #lay(id) {
    const cell = (label, ...children) => el("td", { role: "cell", "data-label": label }, ...children);
    return el(
      "tr", { role: "row", "data-worker": id },
      el("th", { role: "rowheader", scope: "row" }, this.name, this.engine),
      cell("State", this.state, this.heard),
      cell("Promised work", this.work, this.workBar.element, this.workNote),
      cell("Requests", this.requests, this.requestsNote),
      cell("KV in use", this.kv, this.kvBar.element, this.heldNote),
      cell("Hits", this.hits),
      cell("Learned rates", this.rates, this.ratesNote),
      cell("Cache events", this.trust),
      cell("Weight", this.weight),
      cell("Control", this.drain, this.error),
    );
  }

  async #act(floor, command) {
    this.#setBusy(true);
    setText(this.error, "");
    try {
      floor.put(await command());
    } catch (problem) {
      // A refused key is asked for again, for the whole page.
      setText(this.error, problem.isKey ? "" : problem.message);
    } finally {
      this.#setBusy(false);
    }
  }

  #setBusy(busy) {
    this.#busy = busy;
    for (const button of [this.weight, this.drain]) button.disabled = busy || this.#readonly;
  }

  /** `promised_max` is what a bar is drawn against where the worker has no limit. */
  show(worker, { promised_max, readonly }) {
    this.#worker = worker;
    this.#readonly = readonly;
    if (this.name.dataset.url !== worker.url) {
      this.name.dataset.url = worker.url;
      this.name.replaceChildren(plate(worker.id, worker.url));
    }
    setText(this.engine, [worker.engine ?? "engine unknown", ...(worker.models ?? [])].join(" · "));
    this.#showState(worker);
    this.#showLoad(worker, promised_max);
    this.#showKnowledge(worker);
    this.#showControls(worker);
    this.element.classList.toggle("off", !words.takesRequests(worker));
  }

  #showState(worker) {
    const { mark, tone, says } = words.state(worker.state);
    setText(this.state, worker.draining ? "◌ draining" : `${mark} ${worker.state}`);
    setAttribute(this.state, "data-tone", worker.draining ? "fair" : tone);
    setAttribute(this.state, "data-tip", worker.draining
      ? `It gets no new requests and finishes those it has. Beside that it is ${worker.state}.`
      : says);
    setText(this.heard, lately(worker));
  }

  #showLoad(worker, promised_max) {
    const { prefill_tokens = null, sequences = null } = worker.limits ?? {};
    setText(this.work, prefill_tokens === null
      ? format.tokens(worker.prefill_tokens)
      : `${format.short(worker.prefill_tokens)} of ${format.tokens(prefill_tokens)}`);
    this.workBar.set(worker.prefill_tokens / (prefill_tokens || promised_max));
    setText(this.workNote, `to prefill, ${format.short(worker.decode_tokens)} to answer`);
    setText(this.requests, sequences === null ? format.count(worker.requests) : `${format.count(worker.requests)} of ${format.count(sequences)}`);
    const queued = worker.waiting === null ? "" : `, ${format.count(worker.waiting)} queued there`;
    setText(this.requestsNote, `${format.count(worker.prefilling)} in prefill${queued}`);
    setText(this.kv, format.percent(worker.kv_usage));
    this.kvBar.set(worker.kv_usage);
    setText(this.heldNote, `holds ${format.tokens(worker.held_tokens)}`);
  }

  #showKnowledge(worker) {
    setText(this.hits, format.percent(worker.hit_ratio));
    setText(this.rates, format.tokenRate(worker.rates?.prefill_tokens_per_s));
    setText(this.ratesNote, `${format.ms(worker.rates?.step_ms)} a step${worker.rates?.learned === true ? "" : ", assumed"}`);
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

/** The one thing of late that is worth a line: silence, failures, or how much it was given. */
function lately({ heard_ms, failures, seated }) {
  if (heard_ms === null) return "never heard of";
  if (heard_ms > HEARD_LATE_MS) return `heard ${format.ms(heard_ms)} ago`;
  return failures > 0 ? format.plural(failures, "failure") : `${format.short(seated)} seated`;
}
