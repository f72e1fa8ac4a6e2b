// The page as the binary serves it, in a browser, over real traffic: it shows what the API and /metrics say.
//
// Run by scripts/test, which names the binary in MAITRE; `node real.mjs [part of a name]` runs some of it. States that
// real traffic hardly ever produces are in states.mjs.

import assert from "node:assert/strict";
import { launch, overflow, PHONE, run, shoot, until, visit } from "./browser.mjs";
import { endAll, TestRouter } from "./processes.mjs";

const POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
  + "base-uri 'none'; frame-ancestors 'none'; form-action 'none'";
const REFUSED = /status of 4\d\d/;
const BROKEN = /ERR_CONNECTION|ERR_INCOMPLETE|ERR_EMPTY_RESPONSE|network error|Failed to load/;

// The page rounds terms to one decimal.
const NEAR_MS = 0.06;

const browser = await launch();

/** The router's page, `test(page)`, and nothing complained about in the end. */
async function shown(router, test, visitor = {}, address = router.page) {
  const visited = await visit(browser, address, visitor);
  try {
    await test(visited.page);
    assert.deepEqual(visited.complaints, []);
  } finally {
    await visited.close();
  }
}

const text = (page, selector) => page.locator(selector).first().innerText();
const says = (page, selector, pattern) => until(`${selector} says ${pattern}`, async () => pattern.test(await text(page, selector)));
const live = (page) => page.locator("#link[data-state=live]").waitFor();
const number = (words) => Number(words.replaceAll(",", ""));
const total = async (page, key) => number(await text(page, `[data-total=${key}]`));
const rows = (page) => page.locator("#decisions-rows tr");

/** Waits for numbers that the router took after this moment. */
async function newerThan(page, at_ms) {
  await until("newer numbers are shown", async () => Number(await page.locator("#totals").getAttribute("data-at")) > at_ms);
}

async function openDecision(page) {
  await rows(page).first().waitFor();
  await page.locator("#decisions-pause").click();
  // The twenty newest, which a phone shows, may all be in flight.
  const answered = page.locator("#decisions-rows tr", { hasText: "answered" });
  await (await answered.count() > 0 ? answered : rows(page)).first().click();
  await page.locator(".bars li.chosen").waitFor();
  return new URLSearchParams(new URL(page.url()).hash.slice(1)).get("decision");
}

function sum(terms) {
  return Object.values(terms).reduce((all, it) => all + it, 0);
}

async function chat(router, words) {
  const answer = await fetch(`${router.listen}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ model: "maitre-sim", messages: [{ role: "user", content: words }], max_tokens: 8, stream: true }),
  });
  assert.equal(answer.status, 200);
  await answer.text();
}

const tests = {
  async routers_that_share_a_fleet_are_all_on_the_page() {
    const router = await TestRouter.demo("--routers", "3");
    await shown(router, async (page) => {
      await says(page, "#routers-sum", /^3 live · via mesh · sends [\d.]+.k?B\/s, receives [\d.]+.k?B\/s/);
      await until("each of them has served a request", async () => (await router.api("GET", "overview")).cluster.routers.every((it) => it.served > 0));
      const names = await page.$$eval("#routers tbody tr", (all) => all.map((it) => it.dataset.router));
      assert.deepEqual(names, ["router-1", "router-2", "router-3"]);
      await says(page, "tr[data-router=router-1]", /this one/);
      await says(page, "tr[data-router=router-3]", /● live\s[^]*\d.ms ago/);
      await until("requests of other routers stand beside ours", () => page.locator("#workers span.others:not(:empty)").count());
      assert.equal(await page.locator("#routers-error").isVisible(), false);
      assert.ok(await overflow(page) <= 0, "the page scrolls sideways");
      await shoot(page, "real-routers");
    });
    await router.program.end();
  },

  async the_binary_serves_it_and_the_browser_logs_no_error() {
    const looks = { light: {}, dark: { scheme: "dark" }, phone: { size: PHONE } };
    for (const [name, visitor] of Object.entries(looks)) {
      const router = await TestRouter.demo();
      const answer = await fetch(router.url);
      assert.equal(answer.headers.get("content-security-policy"), POLICY);
      assert.match(answer.headers.get("content-type"), /^text\/html/);
      await shown(router, async (page) => {
        await live(page);
        assert.equal(page.url(), router.url);
        await until("there is something to look at", async () => await router.metric("maitre_requests_total", { outcome: "answered" }) > 100);
        await openDecision(page);
        await shoot(page, `real-${name}-decision`, false);
        assert.ok(await overflow(page) <= 0, `${name}: the decision scrolls the page sideways`);
        await page.keyboard.press("Escape");
        await page.locator("#sheet").waitFor({ state: "hidden" });
        await until("the charts are drawn", async () => await page.locator("#charts canvas").count() === 6);
        assert.equal(await page.locator("#workers tbody tr").count(), 4);
        assert.ok(await overflow(page) <= 0, `${name}: the page scrolls sideways`);
        await shoot(page, `real-${name}`);
      }, visitor);
      await router.program.end();
    }
  },

  async its_numbers_match_the_metrics_during_traffic() {
    const router = await TestRouter.demo();
    const outcomes = { answered: "answered", refused: "refused" };
    const count = (outcome) => router.metric("maitre_requests_total", { outcome });
    await shown(router, async (page) => {
      await until("something was answered", async () => await count("answered") > 20);
      for (const [key, outcome] of Object.entries(outcomes)) {
        // Counters only grow: what is shown lies between what was counted before it and after.
        const before = await count(outcome);
        await newerThan(page, Date.now());
        const seen = await total(page, key);
        const after = await count(outcome);
        assert.ok(before <= seen && seen <= after, `${key}: ${before} ≤ ${seen} ≤ ${after}`);
      }
    });
  },

  async after_traffic_they_are_equal() {
    const router = await TestRouter.quiet(2);
    const asked = 12;
    await shown(router, async (page) => {
      await live(page);
      await says(page, "#decisions-empty", /No traffic yet/);
      for (let count = 0; count < asked; count += 1) await chat(router, `A table for ${count % 3}, please. `.repeat(40));
      await until("nothing is open", async () => await router.metric("maitre_requests_in_flight") === 0);
      await newerThan(page, Date.now());
      assert.equal(await router.metric("maitre_requests_total", { outcome: "answered" }), asked);
      assert.equal(await total(page, "answered"), asked);
      assert.equal(await total(page, "requests"), asked);
      for (const key of ["refused", "failed", "disconnected"]) assert.equal(await total(page, key), 0, key);
      const { totals, workers } = await router.api("GET", "overview");
      for (const key of ["prompt_tokens", "cached_tokens", "answer_tokens"]) assert.equal(await total(page, key), totals[key], key);
      assert.equal(workers.reduce((all, it) => all + it.requests_total, 0), asked);
      await until("every decision is in the list, complete", async () => {
        const all = await rows(page).allInnerTexts();
        return all.length === asked && all.every((it) => it.includes("answered"));
      });
    });
  },

  async a_decision_opens_to_terms_that_add_up() {
    const router = await TestRouter.demo();
    await shown(router, async (page) => {
      await until("there is some traffic", async () => await router.metric("maitre_requests_total", { outcome: "answered" }) > 20);
      const opened = await openDecision(page);
      const decision = await router.api("GET", `decisions/${opened}`);
      assert.equal(decision.candidates.filter((it) => it.chosen).length, 1);
      for (const candidate of decision.candidates) {
        const all = sum(candidate.terms_ms);
        assert.ok(Math.abs(all - candidate.price_ms * candidate.share) < 0.01, `${all} is not ${candidate.price_ms} × ${candidate.share}`);
        const row = `.prices tr[data-candidate="${candidate.worker}"]`;
        const cells = Object.fromEntries(await page.$$eval(`${row} [data-term]`, (found) => found.map((it) => [it.dataset.term, it.textContent])));
        for (const [term, cost] of Object.entries(candidate.terms_ms)) {
          // Terms that are zero for every candidate have no column.
          if (cells[term] === undefined) assert.ok(decision.candidates.every((it) => !(it.terms_ms[term] > 0)), term);
          else assert.ok(Math.abs(number(cells[term]) - cost) < NEAR_MS, `${term}: ${cells[term]} is not ${cost}`);
        }
        assert.ok(Math.abs(number(cells.price) - candidate.price_ms) < NEAR_MS, `${cells.price} is not ${candidate.price_ms}`);
      }
      assert.match(await text(page, ".because"), /\.$/);
      await says(page, "#sheet-body", /The first token was expected after/);
    });
  },

  async a_worker_is_drained_with_the_key_and_taken_back() {
    const router = await TestRouter.demo();
    await shown(router, async (page) => {
      await page.getByRole("button", { name: "Drain worker 0" }).click();
      await says(page, "tr[data-worker=\"0\"] td:nth-child(2)", /draining/);
      assert.equal((await router.api("GET", "workers/0")).draining, true);
      const newest = async () => (await router.api("GET", "decisions?limit=1")).decisions[0]?.number ?? 0;
      const then = await newest();
      await until("more was decided", async () => await newest() > then + 20);
      const { decisions } = await router.api("GET", "decisions?limit=100&worker=0");
      assert.deepEqual(decisions.filter((it) => it.number > then), []);
      await page.getByRole("button", { name: "Resume worker 0" }).click();
      await until("it takes requests again", async () => !(await router.api("GET", "workers/0")).draining);
      await page.locator("tr[data-worker=\"0\"] .weight").click();
      await page.locator("#ask-value").fill("0.5");
      await page.keyboard.press("Enter");
      await says(page, "tr[data-worker=\"0\"] .weight", /×0\.5/);
      assert.equal((await router.api("GET", "workers/0")).weight, 0.5);
    });
  },

  async without_the_key_nothing_is_drained() {
    const router = await TestRouter.demo();
    for (const headers of [{}, { authorization: "Bearer wrong" }]) {
      const answer = await router.ask("POST", "workers/0/drain", headers);
      assert.equal(answer.status, 401);
      assert.equal((await answer.json()).error.code, "unauthorized");
    }
    assert.equal((await router.api("GET", "workers/0")).draining, false);
    await shown(router, async (page) => {
      await says(page, "#key-why", /not accepted/);
      await page.locator("#key").fill(router.key);
      await page.keyboard.press("Enter");
      await live(page);
      await rows(page).first().waitFor();
    }, { allow: [REFUSED] }, `${router.url}#key=wrong`);
  },

  async the_keyboard_leads_to_a_decision_and_back() {
    const router = await TestRouter.demo();
    await shown(router, async (page) => {
      await rows(page).first().waitFor();
      const focused = () => page.evaluate(() => Number(document.activeElement.dataset?.number));
      await page.keyboard.press("Tab");
      await page.keyboard.press("Enter");
      await until("a row has the focus", async () => {
        await page.keyboard.press("Tab");
        return await focused() > 0;
      });
      await page.keyboard.press("ArrowDown");
      const at = await focused();
      await page.keyboard.press("Enter");
      await page.locator(".bars li.chosen").waitFor();
      await says(page, "#sheet-title", new RegExp(`Decision ${at}$`));
      await page.keyboard.press("Escape");
      await page.locator("#sheet").waitFor({ state: "hidden" });
      assert.equal(await focused(), at);
    });
  },

  async a_router_that_dies_is_reported() {
    const router = await TestRouter.quiet(1);
    await shown(router, async (page) => {
      await live(page);
      await router.program.end();
      await page.locator("#link[data-state=lost]").waitFor();
      await says(page, "#link", /next try|trying/);
    }, { allow: [BROKEN] });
  },
};

// Each test has its own processes; none of them outlives it.
const alone = (test) => async () => {
  try {
    await test();
  } finally {
    await endAll();
  }
};

try {
  await run(Object.entries(tests).map(([name, test]) => [name, alone(test)]));
} finally {
  await browser.close();
}
