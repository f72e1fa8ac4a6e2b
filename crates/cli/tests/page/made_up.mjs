// A made-up router: its workers, decisions and history, in the shapes of the admin API, from a seed.
//
// Arithmetic, not a simulation: its numbers are consistent (a price is the sum of its terms, totals grow with the
// decisions), so that the page can show states that real traffic rarely produces.

const HISTORY_S = 400;
const CANDIDATES_MAX = 16;
const CLASSES = ["interactive", "standard", "batch"];
const HOT = [[2048, 0.4], [4096, 0.3], [1024, 0.2], [8192, 0.1]];

/** Pseudo-random numbers in [0, 1), the same each time. */
function dice(seed) {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}

export class Router {
  /**
   * `workers`, `model`, `tenant`, `strategy`, `shadows`, `traffic` say what is unusual about it; `routers` is how many
   * there are, and `cluster` what is unusual between them; `programs` is how many programs there are, null if they are off.
   */
  constructor(unusual = {}) {
    this.is = { workers: 4, model: "llama-3.1-8b", tenant: "acme", strategy: "least-delay", shadows: true, traffic: true, routers: 1, cluster: {}, programs: null, ...unusual };
    this.roll = dice(7);
    this.started = Date.now() - 754_000;
    this.wire = 0;
    this.decisions = [];
    this.totals = { requests: 0, answered: 0, refused: 0, failed: 0, disconnected: 0, in_flight: 0, prompt_tokens: 0, cached_tokens: 0, answer_tokens: 0 };
    this.shadow = { decisions: 0, differed: 0, price: 0, ours: 0, ttft: 0, ourTtft: 0 };
    this.workers = Array.from({ length: this.is.workers }, (_, id) => this.#worker(id));
    if (this.is.traffic) for (let count = 0; count < 160; count += 1) this.decide(Date.now() - (160 - count) * 120);
  }

  #worker(id) {
    const states = this.is.workers > 20 ? ["ready", "ready", "ready", "ready", "ready", "ready", "ready", "suspect", "ejected", "warming"] : ["ready"];
    const quick = 22_000 + this.roll() * 6_000;
    return {
      id, url: this.is.url ?? `http://127.0.0.1:${9001 + id}`, engine: this.is.engine ?? "vllm 0.32.0", models: [this.is.model],
      state: this.is.workers === 4 && id === 3 ? "warming" : states[Math.floor(this.roll() * states.length)],
      unhealthy: null, draining: false, weight: 1, requests: 0, prefilling: 0, waiting: 0, prefill_tokens: 0, decode_tokens: 0,
      limits: { sequences: 40, prefill_tokens: 8192 }, kv_usage: 0.3, kv_tokens: 100_000, cached_tokens: 40_000 + Math.floor(this.roll() * 40_000),
      hit_ratio: 0.6 + this.roll() * 0.3, requests_total: 0, failures: 0,
      rates: { learned: true, prefill_tokens_per_s: quick, floor_ms: 12, step_ms: 5.5 + this.roll(), step_per_request_ms: 0.05, step_now_ms: 6 },
      trust: ["fresh", "fresh", "cold", "none"][id % 4], last_seen_ms: 80 + Math.floor(this.roll() * 300),
    };
  }

  /** A little later: loads drift, a few requests come. Returns the decisions that are new or changed. */
  pass(requests) {
    for (const it of this.workers) {
      const busy = this.is.traffic ? this.roll() : 0;
      it.requests = Math.floor(busy * busy * 34);
      it.prefilling = Math.min(it.requests, Math.floor(busy * 3));
      it.prefill_tokens = Math.floor(busy * busy * 7400);
      it.decode_tokens = it.requests * 96;
      it.kv_usage = 0.15 + busy * 0.7;
      if (this.is.routers > 1) {
        it.other_routers = { requests: Math.floor(busy * 6), prefill_tokens: Math.floor(busy * 700), decode_tokens: Math.floor(busy * 6) * 96 };
        it.requests += it.other_routers.requests;
      }
    }
    this.wire += 9_000;
    if (!this.is.traffic) return [];
    const ended = this.decisions.filter((it) => it.outcome === "in-flight").map((it) => this.#end(it));
    return [...ended, ...Array.from({ length: requests }, () => this.decide(Date.now()))];
  }

  decide(at_ms) {
    const able = this.workers.filter((it) => !it.draining && ["ready", "warming"].includes(it.state));
    const from = able.length > 0 ? able : this.workers;
    const prompt = this.roll() < 0.8 ? HOT[Math.floor(this.roll() * HOT.length)][0] : 200 + Math.floor(this.roll() * 3000);
    const home = Math.floor(this.roll() * from.length);
    const candidates = from.map((it, index) => this.#candidate(it, prompt, index === home ? Math.floor(prompt * 0.75) : this.roll() < 0.2 ? Math.floor(prompt / 8) : 0));
    candidates.sort((one, other) => one.price_ms - other.price_ms);
    candidates[0].chosen = true;
    const [best] = candidates;
    const most = Math.max(...candidates.map((it) => it.cached_tokens));
    const number = this.totals.requests + 1;
    const decision = {
      number, id: `req-${number.toString(16).padStart(12, "0")}`, at_ms, model: this.is.model, strategy: this.is.strategy, class: CLASSES[number % 3],
      tenant: this.is.tenant, worker: best.worker, url: best.url, why: most === 0 ? "least-delay" : best.cached_tokens === most ? "cached" : "cache-too-busy",
      attempt: 0, waited_ms: 0, prompt_tokens: prompt, answer_tokens: 128, expected_cached_tokens: best.cached_tokens, predicted_ttft_ms: best.ttft_ms,
      actual_ttft_ms: null, cached_tokens: null, outcome: "in-flight", total_ms: null, actual_answer_tokens: null, actual_prompt_tokens: null,
      program: this.is.programs === null ? null : {
        program: "1a2b3c4d", calls: number, last_worker: number % 2 === 0 ? best.worker : this.workers.length, last_url: "http://127.0.0.1:9099",
        held_ms: number % 5 === 0 ? 42_000 : 0, memory_ms: 0, last_memory_ms: 2_500,
      },
      candidates_total: candidates.length, candidates: candidates.slice(0, CANDIDATES_MAX), shadows: this.#shadows(candidates),
    };
    this.totals.requests += 1;
    this.totals.prompt_tokens += prompt;
    this.workers[best.worker].requests_total += 1;
    this.decisions.push(decision);
    if (this.decisions.length > 600) this.decisions.shift();
    return decision;
  }

  #candidate(worker, prompt, held) {
    const [busy, prefilling] = [this.roll(), Math.floor(this.roll() * 3)];
    const requests = Math.floor(busy * 20);
    const prefill = (Math.max(prompt - held, 1) / worker.rates.prefill_tokens_per_s) * 1000;
    const terms_ms = {
      wait: busy * busy * 60, floor: 12, prefill, behind: 0.35 * prefill * prefilling, pushed: held > 0 ? 0 : prefill * 0.2,
      others: 0.25 * prefill * Math.sqrt(requests), answer: 0.05 * 128 * worker.rates.step_ms, room: busy > 0.8 ? 9 : 0, adapter: 0,
    };
    const share = worker.state === "warming" ? 0.5 : 1;
    const sum = Object.values(terms_ms).reduce((total, it) => total + it, 0);
    return {
      worker: worker.id, url: worker.url, chosen: false, cached_tokens: held, cached_slow_tokens: 0, prefill_tokens: Math.floor(busy * 4000),
      decode_tokens: requests * 90, requests, prefilling, share, can_start: busy > 0.9 ? "later" : "now", rates: worker.rates,
      ttft_ms: terms_ms.wait + 12 + prefill, price_ms: sum / share, terms_ms,
    };
  }

  #shadows(candidates) {
    if (!this.is.shadows) return [];
    const other = candidates[Math.floor(this.roll() * candidates.length)];
    const differs = other !== candidates[0];
    const sums = this.shadow;
    sums.decisions += 1;
    sums.differed += differs ? 1 : 0;
    sums.price += other.price_ms;
    sums.ours += candidates[0].price_ms;
    sums.ttft += other.ttft_ms;
    sums.ourTtft += candidates[0].ttft_ms;
    return [{ strategy: "round-robin", worker: other.worker, url: other.url, why: "turn", differs, price_ms: other.price_ms, ttft_ms: other.ttft_ms }];
  }

  #end(decision) {
    const actual = decision.predicted_ttft_ms * (0.85 + this.roll() * 0.3);
    Object.assign(decision, {
      actual_ttft_ms: actual, cached_tokens: decision.expected_cached_tokens, outcome: this.roll() < 0.97 ? "answered" : "disconnected",
      total_ms: actual + 800, actual_answer_tokens: 120, actual_prompt_tokens: decision.prompt_tokens,
    });
    this.totals[decision.outcome] += 1;
    this.totals.cached_tokens += decision.expected_cached_tokens;
    this.totals.answer_tokens += 120;
    return decision;
  }

  overview() {
    const { is, shadow, totals } = this;
    const mean = (sum) => sum / Math.max(shadow.decisions, 1);
    totals.in_flight = this.decisions.filter((it) => it.outcome === "in-flight").length;
    const waiting = is.traffic ? Math.floor(this.roll() * 4) : 0;
    const sample = this.#sample(0);
    return {
      at_ms: Date.now(), version: "0.1.0", uptime_s: (Date.now() - this.started) / 1000, ready: this.#isReady(), not_ready: this.#isReady() ? null : "no worker is ready",
      draining: false, strategy: is.strategy, strategies: {}, totals,
      now: { ...sample, waiting },
      prediction: is.traffic ? { count: 200, median_error: 0.09 } : { count: 0, median_error: null },
      queue: { enabled: true, waiting, classes: CLASSES.map((name) => ({ class: name, waiting: name === "standard" ? waiting : 0 })) },
      workers: this.workers,
      scaling: is.scaling ?? [],
      shadows: is.shadows ? [{
        strategy: "round-robin", decisions: shadow.decisions, differed: shadow.differed, price_ms: mean(shadow.price), our_price_ms: mean(shadow.ours),
        ttft_ms: mean(shadow.ttft), our_ttft_ms: mean(shadow.ourTtft),
      }] : [],
      prefixes: is.traffic && is.strategy === "least-delay" ? this.#prefixes() : [],
      cluster: is.routers > 1 ? this.#cluster() : null,
      programs: is.programs === null ? null : this.#programs(),
    };
  }

  /** The last one that `lost` counts is lost; this one is the first. */
  #cluster() {
    const { routers: count, cluster: { lost = 0, names = (index) => `router-${index}`, ...unusual } } = this.is;
    const routers = Array.from({ length: count }, (_, index) => {
      const [self, live] = [index === 0, index < count - lost];
      return {
        name: names(index), self, state: live ? "live" : "lost", lag_ms: self || !live ? null : 0.4 + this.roll() * 3,
        served: this.totals.requests * (index + 1), in_flight: live ? Math.floor(this.roll() * 9) : 0, share: live ? 1 / (count - lost) : null,
        last_seen_ms: self ? 0 : live ? Math.floor(this.roll() * 480) : 41_000, incarnation: 1_763_215_000_123 + index,
      };
    });
    return {
      via: "mesh", name: names(0), connected: true, error: null, synced: true, limit_share: 1, routers,
      bytes_out: this.wire, bytes_in: this.wire * (count - 1), dropped: 0, repairs: 0, ...unusual,
    };
  }

  /** A quarter of them is held, and half of the others are idle. */
  #programs() {
    const { programs: count, tenant } = this.is;
    const name = (index) => (0x1a2b3c4d + index * 0x01030507).toString(16).padStart(8, "0").slice(-8);
    const isHeld = (index) => index % 4 === 3;
    const all = Array.from({ length: count }, (_, index) => {
      const worker = isHeld(index) || this.workers.length === 0 ? null : this.workers[index % this.workers.length];
      const state = isHeld(index) ? "held" : index % 2 === 0 ? "running" : "idle";
      return {
        program: name(index), state, tenant: index % 3 === 0 ? null : tenant, worker: worker?.id ?? null, url: worker?.url ?? null,
        tokens: 200_000 - index * 1_000, calls: 1 + index, idle_ms: state === "idle" ? 4_000 + index * 1_000 : null,
      };
    });
    const held = all.filter((it) => it.state === "held").map((it, ahead) => ({
      program: it.program, id: null, tenant: it.tenant, calls: it.calls, held_ms: 190_000 - ahead * 9_000, tokens: it.tokens,
      roomiest: 1, roomiest_url: this.workers[1]?.url ?? null, roomiest_usage: 0.97, ahead, at_latest_ms: 350_000 + ahead * 9_000,
    }));
    const resident = all.filter((it) => it.worker !== null);
    const sum = (some) => some.reduce((total, it) => total + it.tokens, 0);
    return {
      rule: "working-set", known: count, resident: resident.length, running: all.filter((it) => it.state === "running").length, held: held.length,
      calls_held: held.length, held_longest_ms: held[0]?.held_ms ?? null, resident_tokens: sum(resident), held_tokens: sum(held), kv_tokens: this.workers.length * 1_000_000,
      workers: this.workers.map(({ id, url }) => {
        const own = resident.filter((it) => it.worker === id);
        return { worker: id, url, programs: own.length, idle: own.filter((it) => it.state === "idle").length, tokens: sum(own), kv_tokens: 1_000_000 };
      }),
      calls: held.slice(0, 20), programs: resident.slice(0, 20), holds_ended: [{ reason: "memory", calls: 12, held_ms: 90_000 }],
    };
  }

  #isReady() {
    return this.workers.some((it) => it.state === "ready" && !it.draining);
  }

  #prefixes() {
    return HOT.map(([tokens, part], index) => ({
      hash: (0x9f0c3a51n * BigInt(index + 3) ** 9n).toString(16).padStart(16, "0").slice(-16), tokens, seen: part * 1000,
      holders: this.workers.map((it) => it.id).filter((id) => id % (index + 1) === 0), model: this.is.model,
    }));
  }

  #sample(ago_s) {
    if (!this.is.traffic) {
      return { requests_per_s: 0, answer_tokens_per_s: 0, prompt_tokens_per_s: 0, ttft_p50_ms: null, ttft_p99_ms: null, hit_ratio: null };
    }
    const at = Date.now() / 1000 - ago_s;
    const wave = Math.sin(at / 23) + 0.6 * Math.sin(at / 7.3);
    const near = (middle, spread) => middle + spread * wave * 0.4 + spread * (this.roll() - 0.5) * 0.5;
    return {
      requests_per_s: near(21, 6), answer_tokens_per_s: near(1800, 500), prompt_tokens_per_s: near(24_000, 7000), ttft_p50_ms: near(64, 18),
      ttft_p99_ms: near(300, 140), longest_wait_ms: near(90, 40), hit_ratio: Math.min(near(0.79, 0.12), 1), ...this.is.now,
    };
  }

  history() {
    const made = Array.from({ length: HISTORY_S }, (_, index) => HISTORY_S - index);
    const samples = made.map((ago) => this.#sample(ago));
    const keys = Object.keys(samples[0]);
    const waves = made.map((ago) => Math.max(0, Math.round(4 * Math.sin((Date.now() / 1000 - ago) / 31))));
    return {
      at_ms: made.map((ago) => Date.now() - ago * 1000),
      ...Object.fromEntries(keys.map((key) => [key, samples.map((it) => it[key])])),
      waiting: { interactive: made.map(() => 0), standard: this.is.traffic ? waves : made.map(() => 0), batch: this.is.traffic ? waves.map((it) => it * 2) : made.map(() => 0) },
    };
  }
}

// What only the whole of a decision has.
const WHOLE = ["program", "candidates", "candidates_total", "shadows", "actual_answer_tokens", "actual_prompt_tokens"];

/** What the list and the stream say of a decision. */
export function summary(decision) {
  return Object.fromEntries(Object.entries(decision).filter(([key]) => !WHOLE.includes(key)));
}
