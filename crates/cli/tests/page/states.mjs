// The page in every state, in a browser, in front of a made-up router.
//
// Run by scripts/test; `node states.mjs [part of a name]` runs some of it. What a real router does is in real.mjs.

import assert from "node:assert/strict";
import { launch, overflow, PHONE, run, shoot, until, visit } from "./browser.mjs";
import { Router } from "./made_up.mjs";
import { Mock } from "./mock.mjs";

// Browsers log every error status, and every connection that breaks.
const REFUSED = /status of 4\d\d/;
const BROKEN = /ERR_CONNECTION|ERR_INCOMPLETE|ERR_EMPTY_RESPONSE|network error|Failed to load/;
const HOSTILE = "<img src=x onerror=\"window.struck=1\"></script><script>window.struck=1</script>";

const browser = await launch();

/** A router, the page in front of it, and `test(page, mock)`; the browser must not have logged an error. */
async function shown(unusual, test, { visitor = {}, fragment = "key=secret", period_ms = 150 } = {}) {
  const mock = await Mock.start(new Router(unusual), { period_ms });
  const visited = await visit(browser, `${mock.url}#${fragment}`, visitor);
  try {
    await test(visited.page, mock);
    assert.deepEqual(visited.complaints, []);
  } finally {
    await visited.close();
    await mock.end();
  }
}

const text = (page, selector) => page.locator(selector).first().innerText();
const says = (page, selector, pattern) => until(`${selector} says ${pattern}`, async () => pattern.test(await text(page, selector)));
const live = (page) => page.locator("#link[data-state=live]").waitFor();
const rows = (page) => page.locator("#decisions-rows tr");
const numbers = (page) => page.$$eval("#decisions-rows tr", (all) => all.map((it) => Number(it.dataset.number)));
const routers = (page) => page.$$eval("#routers tbody tr", (all) => all.map((it) => it.dataset.router));
const number = (words) => Number(words.replaceAll(",", ""));

async function opened(page) {
  await rows(page).first().waitFor();
  await page.locator("#decisions-pause").click();
  await rows(page).nth(2).click();
  await page.locator(".bars li").first().waitFor();
}

const tests = {
  async the_number_of_workers_that_a_model_should_have_is_said_with_its_reason() {
    const scaling = [
      { model: "llama-3.1-8b", desired_workers: 6, workers: 4, reason: "demand", because: "fewer could not do the work that arrives" },
      { model: "qwen-3", desired_workers: 1, workers: 1, reason: "least", because: "one is enough" },
      { model: HOSTILE, desired_workers: 0, workers: 0, reason: "idle", because: "no request has come for a while" },
    ];
    await shown({ scaling }, async (page) => {
      await live(page);
      await says(page, "#scaling li", /^llama-3.1-8b should have 6 workers and has 4: fewer could not do the work that arrives\.$/);
      await says(page, "#scaling li:nth-child(2)", /^qwen-3 should have 1 worker and has it: one is enough\.$/);
      await says(page, "#scaling li:nth-child(3)", /should have 0 workers and has them: no request has come for a while\.$/);
      assert.equal(await page.locator("#scaling li").first().getAttribute("data-wanted"), "more");
      assert.equal(await page.evaluate(() => window.struck), undefined);
    });
    await shown({}, async (page) => {
      await live(page);
      assert.equal(await page.locator("#scaling").isVisible(), false, "an older router says nothing of it");
    });
  },

  async totals_are_those_of_the_router() {
    await shown({}, async (page, mock) => {
      // Without further updates the numbers can be compared exactly.
      clearInterval(mock.timer);
      await live(page);
      const { totals } = mock.router.overview();
      await until("the page shows the last totals", async () => number(await text(page, "[data-total=requests]")) === totals.requests);
      for (const key of ["answered", "refused", "failed", "disconnected", "prompt_tokens", "cached_tokens", "answer_tokens"]) {
        assert.equal(number(await text(page, `[data-total=${key}]`)), totals[key], key);
      }
      for (const worker of mock.router.workers) {
        const row = `tr[data-worker="${worker.id}"]`;
        assert.match(await text(page, row), new RegExp(`^${worker.id}\\s+127.0.0.1:${9001 + worker.id}`));
        assert.match(await text(page, `${row} td:nth-child(2)`), new RegExp(worker.state));
        assert.match(await text(page, `${row} td:nth-child(4)`), new RegExp(`^${worker.requests} of 40`));
      }
    });
  },

  async a_request_that_waits_long_is_shown_beside_the_percentiles() {
    await shown({ now: { ttft_p50_ms: 41, ttft_p99_ms: 47, longest_wait_ms: 5500 } }, async (page, mock) => {
      await says(page, "[data-number=ttft]", /p50 · p99 47.ms · longest wait 5\.50.s/);
      assert.equal(await page.locator("[data-number=ttft]").getAttribute("data-tone"), "fair");
      mock.router.is.now = { ttft_p50_ms: 41, ttft_p99_ms: 5600, longest_wait_ms: 5500 };
      await says(page, "[data-number=ttft]", /p99 5\.60.s$/);
    });
  },

  async a_prompt_of_which_nothing_is_cached_says_so() {
    await shown({ traffic: false }, async (page, mock) => {
      await live(page);
      mock.tell([{ ...mock.router.decide(Date.now()), expected_cached_tokens: 0, prompt_tokens: 12 }]);
      await says(page, "#decisions-rows .prompt", /^\s*0 of 12.tok$/);
    });
  },

  async a_long_reason_leaves_every_column_in_sight() {
    await shown({ workers: 5 }, async (page, mock) => {
      Object.assign(mock.router.workers[1], { state: "ejected", unhealthy: "connect to 10.0.0.7:8000: Connection refused (os error 111)" });
      await says(page, "tr[data-worker='1']", /Connection refused/);
      const hidden = await page.$eval("table.workers", (it) => it.scrollWidth - it.parentElement.clientWidth);
      assert.ok(hidden <= 0, `${hidden} px of the table are out of sight`);
    });
  },

  async a_router_that_is_not_ready_says_why() {
    await shown({ workers: 0, traffic: false }, async (page) => {
      await says(page, "#ready", /not ready/);
      await page.locator("#ready").focus();
      await says(page, "#tip", /\/readyz answers 503: no worker is ready/);
    });
  },

  async it_looks_well_in_light_dark_and_on_a_phone() {
    const looks = { light: {}, dark: { scheme: "dark" }, phone: { size: PHONE } };
    for (const [name, visitor] of Object.entries(looks)) {
      await shown({}, async (page) => {
        await opened(page);
        assert.ok(await overflow(page) <= 0, `${name}: the page scrolls sideways`);
        await shoot(page, `${name}-decision`, false);
        await page.keyboard.press("Escape");
        await page.locator("#sheet").waitFor({ state: "hidden" });
        await until("the charts are drawn", () => page.evaluate(() => document.querySelectorAll("#charts canvas").length === 6));
        assert.ok(await overflow(page) <= 0, `${name}: the page scrolls sideways`);
        await shoot(page, name);
      }, { visitor });
    }
  },

  async the_key_is_taken_out_of_the_address_and_kept_in_the_tab() {
    await shown({}, async (page, mock) => {
      await live(page);
      assert.equal(page.url(), mock.url);
      await page.reload();
      await live(page);
      assert.equal(await page.evaluate(() => document.documentElement.outerHTML.includes("secret")), false);
    });
  },

  async without_a_key_it_asks_and_a_wrong_one_is_refused() {
    await shown({}, async (page) => {
      await page.locator("#key-form").waitFor();
      await says(page, "#key-form", /admin_key/);
      await shoot(page, "key", false);
      await page.evaluate(() => { location.hash = "key=no"; });
      await says(page, "#key-why", /not accepted/);
      await page.locator("#key").fill("wrong");
      await page.keyboard.press("Enter");
      await says(page, "#key-why", /not accepted/);
      await page.locator("#key").fill("secret");
      await page.keyboard.press("Enter");
      await live(page);
      await rows(page).first().waitFor();
    }, { fragment: "", visitor: { allow: [REFUSED] } });
  },

  async names_from_outside_stay_text() {
    const hostile = { model: HOSTILE, tenant: HOSTILE, engine: HOSTILE, url: `http://host/${HOSTILE}` };
    for (const size of [undefined, PHONE]) {
      await shown(hostile, async (page) => {
        await opened(page);
        await says(page, "#sheet .meta", /<img src=x onerror=/);
        await says(page, "#workers tbody", /<img src=x onerror=/);
        assert.equal(await page.evaluate(() => window.struck), undefined);
        assert.equal(await page.locator("img, body script").count(), 0);
        assert.ok(await overflow(page) <= 0, "long names push the page sideways");
      }, { visitor: size === undefined ? {} : { size } });
    }
  },

  async a_thousand_workers_come_in_pages_sorted_and_filtered() {
    await shown({ workers: 1000 }, async (page) => {
      const ids = () => page.$$eval("#workers tbody tr", (all) => all.map((it) => Number(it.dataset.worker)));
      await until("a page of rows", async () => (await ids()).length === 50);
      assert.equal(await page.locator("#map i").count(), 1000);
      await says(page, "#workers-page", /^1 to 50 of 1,000/);
      await page.locator("#workers-after").click();
      assert.equal((await ids())[0], 50);
      await page.getByRole("button", { name: "Worker", exact: true }).click();
      assert.deepEqual((await ids()).slice(0, 2), [999, 998]);
      await page.locator("#workers-filter").fill("ejected");
      await until("only ejected ones are left", async () => {
        const states = await page.locator("#workers tbody td:nth-child(2)").allInnerTexts();
        return states.length > 0 && states.every((it) => it.includes("ejected"));
      });
      await page.locator("#workers-filter").fill("no such");
      await says(page, "#workers-empty", /No worker matches/);
      await page.locator("#map i").nth(777).click();
      await until("the one that was pointed at is there", async () => (await ids()).includes(777));
      await shoot(page, "thousand");
    }, { period_ms: 500 });
  },

  async a_router_without_a_cluster_shows_no_other_routers() {
    await shown({}, async (page) => {
      await page.locator("#totals b").first().waitFor();
      assert.equal(await page.locator("#routers").isVisible(), false);
      assert.equal(await page.locator("#workers span.others:not(:empty)").count(), 0);
      assert.equal(await page.evaluate(() => document.body.innerText.includes("other routers")), false);
    });
  },

  async every_router_has_a_row_and_a_line_sums_up_their_traffic() {
    for (const [look, visitor] of Object.entries({ light: {}, dark: { scheme: "dark" }, phone: { size: PHONE } })) {
      await shown({ routers: 3, cluster: { via: "redis" } }, async (page, mock) => {
        await says(page, "#routers-sum", /^3 live · via Redis · sends [\d.]+.kB\/s, receives [\d.]+.kB\/s$/);
        assert.deepEqual(await routers(page), ["router-0", "router-1", "router-2"]);
        assert.equal(await page.locator("#routers-error").isVisible(), false);
        await says(page, "tr[data-router=router-0]", /router-0\s*this one/);
        await says(page, "tr[data-router=router-1]", /● live\s[^]*33.%[^]*\d+.ms ago/);
        // Without further updates the numbers can be compared exactly.
        clearInterval(mock.timer);
        mock.update();
        const busy = mock.router.workers.find((it) => it.other_routers.requests > 0);
        const cell = `tr[data-worker="${busy.id}"] td:nth-child(4)`;
        await says(page, cell, new RegExp(`^(Requests\\s+)?${busy.requests - busy.other_routers.requests} \\+ ${busy.other_routers.requests} of 40`));
        await page.locator(`${cell} span.others`).focus();
        await says(page, "#tip", /^Other routers promised \d+ requests?, with \d+.tok to prefill/);
        const drawn = await page.$eval(`tr[data-worker="${busy.id}"] td:nth-child(3) .bar .others`, (it) => Number.parseFloat(it.style.width));
        assert.ok(Math.abs(drawn - (busy.other_routers.prefill_tokens / 8192) * 100) < 0.1, `${drawn} of ${busy.other_routers.prefill_tokens}`);
        assert.ok(await overflow(page) <= 0, "the page scrolls sideways");
        await page.keyboard.press("Escape");
        await shoot(page, `routers-${look}`);
      }, { visitor });
    }
  },

  async a_lost_router_comes_first_with_its_consequences() {
    await shown({ routers: 3, cluster: { lost: 1, limit_share: 2 / 3, repairs: 4, dropped: 7 } }, async (page) => {
      await says(page, "#routers-sum", /^2 live, 1 lost · via mesh · .* · 4 repairs · 7 dropped$/);
      assert.deepEqual(await routers(page), ["router-0", "router-2", "router-1"]);
      await says(page, "tr[data-router=router-2]", /✕ lost\s[^]*41.\d?.?s ago/);
      await says(page, "#routers-error", /^▲ Tenant limits are split: this router admits 67.% of each limit\.$/);
      await page.locator("tr[data-router=router-2] .tag").focus();
      await says(page, "#tip", /No messages for more than three seconds/);
    });
  },

  async a_router_that_is_cut_off_shows_why_and_that_limits_are_split() {
    const cut = { lost: 2, connected: false, error: "10.0.0.7:7946: connection refused", limit_share: 1 / 3 };
    await shown({ routers: 3, cluster: cut }, async (page, mock) => {
      await says(page, "#routers-error", /^✕ Not connected: 10\.0\.0\.7:7946: connection refused\. .* Tenant limits are split: this router admits a third\.$/);
      assert.equal(await page.locator("#routers-error").getAttribute("data-tone"), "bad");
      mock.router.is.cluster = { synced: false };
      await says(page, "#routers-error", /^◐ Syncing: [^▲]*$/);
      mock.router.is.cluster = {};
      await page.locator("#routers-error").waitFor({ state: "hidden" });
      mock.router.is.routers = 1;
      await page.locator("#routers").waitFor({ state: "hidden" });
    });
  },

  async many_routers_with_names_from_outside_fit() {
    const names = (index) => (index === 7 ? HOSTILE : index === 8 ? "n".repeat(300) : `r${index}`);
    for (const size of [undefined, PHONE]) {
      await shown({ routers: 64, cluster: { names, error: HOSTILE, limit_share: null } }, async (page) => {
        await until("all of them", async () => (await routers(page)).length === 64);
        assert.deepEqual((await routers(page)).filter((it) => it.startsWith("r")).slice(0, 4), ["r0", "r1", "r2", "r3"]);
        await says(page, "#routers", /<img src=x onerror=/);
        await says(page, "#routers-error", /^▲ <img src=x/);
        assert.equal(await page.evaluate(() => window.struck), undefined);
        assert.equal(await page.locator("img, body script").count(), 0);
        assert.ok(await overflow(page) <= 0, "long names push the page sideways");
      }, { visitor: size === undefined ? {} : { size } });
    }
  },

  async a_lost_router_is_reported_and_found_again() {
    await shown({}, async (page, mock) => {
      await rows(page).first().waitFor();
      await mock.vanish();
      await page.locator("#link[data-state=lost]").waitFor();
      await says(page, "#link", /data \d+.s old, (next try|trying)/);
      assert.equal(await page.evaluate(() => document.body.classList.contains("stale")), true);
      await shoot(page, "lost", false);
      const before = mock.asked.length;
      await mock.listen();
      await live(page);
      await until("what was missed is asked for", () => mock.asked.slice(before).includes("GET /admin/v1/history"));
      await until("it is shown as current", () => page.evaluate(() => !document.body.classList.contains("stale")));
    }, { visitor: { allow: [BROKEN] } });
  },

  async after_a_restart_the_old_decisions_are_gone() {
    await shown({}, async (page, mock) => {
      await until("there are many", async () => (await numbers(page))[0] > 150);
      await mock.vanish();
      mock.router = new Router({ traffic: false });
      mock.router.started = Date.now();
      await mock.listen();
      await says(page, "#decisions-empty", /No traffic yet/);
      assert.deepEqual(await numbers(page), []);
    }, { visitor: { allow: [BROKEN] } });
  },

  async an_empty_router_says_so() {
    await shown({ workers: 0, traffic: false, shadows: false }, async (page) => {
      await says(page, "#workers-empty", /There are no workers.*--worker/);
      await says(page, "#decisions-empty", /No traffic yet/);
      await says(page, "#shadows", /shadow\.strategies = \["round-robin"\]/);
      await says(page, "#prefixes", /No traffic yet/);
      await says(page, "#ready", /not ready/);
      await says(page, "[data-number=ttft] .value", /^–/);
      await says(page, "[data-number=prediction]", /no stream measured/);
      await page.locator("[data-number=prediction][title*='llm-d']").waitFor({ state: "attached" });
      await shoot(page, "nothing");
    });
  },

  async a_strategy_that_ignores_caches_is_the_reason_for_no_prefixes() {
    await shown({ strategy: "round-robin" }, async (page) => {
      await says(page, "#prefixes", /round-robin does not use caches/);
      await opened(page);
      await says(page, "#sheet-body", /does not use these prices/);
    });
  },

  async programs_are_hidden_while_they_are_off() {
    await shown({}, async (page) => {
      await rows(page).first().waitFor();
      assert.equal(await page.locator("#programs").isVisible(), false);
    });
  },

  async programs_show_their_memory_and_why_calls_are_held() {
    await shown({ programs: 40, tenant: HOSTILE }, async (page, mock) => {
      const expected = mock.router.overview().programs;
      await says(page, "#programs-sum", /working-set · 30 resident of 40 · 20 running · 10 calls held · working set/);
      assert.equal(await page.locator("#programs .memory li").count(), 4);
      const [first] = await page.$$eval("#programs [aria-label='Held calls'] tbody tr", (all) => all.map((it) => it.innerText));
      assert.match(first, new RegExp(`^${expected.calls[0].program}`));
      assert.match(first, /3.min 10.s/);
      assert.match(first, /the emptiest memory, worker 1 \(127.0.0.1:9002\), is 97.% full; 0 calls ahead; goes at the latest in 5.min 50.s/);
      assert.equal(await page.locator("#programs [aria-label='Largest programs'] tbody tr").count(), 20);
      assert.equal(await page.evaluate(() => window.struck), undefined);
      await shoot(page, "programs");
    });
    await shown({ programs: 0 }, async (page) => {
      await says(page, "#programs-body", /No call is held: memory suffices[^]*No program is known yet/);
    });
    await shown({ programs: 40, workers: 14 }, async (page) => {
      await says(page, "#programs-body", /The 8 fullest of 14 workers/);
      assert.ok(await overflow(page) <= 0, "no sideways scrolling");
    }, { visitor: { size: PHONE } });
  },

  async a_decision_says_whether_its_program_stayed() {
    await shown({ programs: 4 }, async (page) => {
      await opened(page);
      await says(page, "#sheet-body .program", /^Call \d+ of program 1a2b3c4d: it (stays with its worker|moves from worker 4 \(127.0.0.1:9099\)): its memory costs other programs nothing/);
    });
  },

  async a_decision_opens_to_terms_that_add_up() {
    await shown({}, async (page, mock) => {
      await opened(page);
      const wanted = (await numbers(page))[2];
      assert.equal(page.url(), `${mock.url}#decision=${wanted}`);
      const expected = mock.router.decisions.find((it) => it.number === wanted);
      for (const candidate of expected.candidates) {
        const cells = await page.$$eval(`.prices tr[data-candidate="${candidate.worker}"] [data-term]`, (all) => all.map((it) => [it.dataset.term, it.textContent]));
        const terms = cells.filter(([term]) => !["sum", "price"].includes(term)).map(([, it]) => number(it));
        const price = number(cells.find(([term]) => term === "price")[1]);
        const sum = terms.reduce((total, it) => total + it, 0);
        assert.ok(Math.abs(sum / candidate.share - price) < 0.06 * (terms.length + 1) / candidate.share, `${cells}`);
        assert.ok(Math.abs(price - candidate.price_ms) < 0.06, `${price} is not ${candidate.price_ms}`);
      }
      const parts = await page.locator(`.bars li.chosen .stack i`).count();
      assert.equal(parts, Object.values(expected.candidates.find((it) => it.chosen).terms_ms).filter((it) => it > 0).length);
      assert.match(await text(page, ".because"), new RegExp(`[Ww]orker ${expected.worker} `));
      await says(page, "#sheet-body", /round-robin would have picked/);
    });
  },

  async a_decision_is_completed_while_it_is_read() {
    await shown({}, async (page, mock) => {
      clearInterval(mock.timer);
      await live(page);
      mock.update();
      await rows(page).first().getByText("in flight").waitFor();
      await rows(page).first().click();
      await says(page, "#sheet-body", /The first token is expected after/);
      mock.update();
      await says(page, "#sheet-body", /The first token was expected after .* and came after/);
    });
  },

  async one_cursor_reads_all_charts() {
    await shown({}, async (page) => {
      await page.locator("#charts .u-over").first().hover();
      await says(page, "#charts-note", /^At \d\d:\d\d:\d\d$/);
      assert.equal(await page.locator("#charts .u-cursor-x:not(.u-off)").count(), 6);
      await page.getByRole("radio", { name: "1 min", exact: true }).check();
      await says(page, "#charts figure:first-child .legend", /p50 \d+.ms\s+p99 \d+.ms/);
    });
  },

  async a_decision_has_an_address_and_back_closes_it() {
    await shown({}, async (page, mock) => {
      await page.locator(".bars li.chosen").waitFor();
      assert.equal(page.url(), `${mock.url}#decision=50`);
      await says(page, "#sheet-title", /Decision 50/);
      await page.evaluate(() => { location.hash = "decision=999999"; });
      await says(page, "#sheet-body", /no decision 999999/);
      await page.goBack();
      await says(page, "#sheet-title", /Decision 50/);
      await page.locator("#sheet-close").click();
      await page.locator("#sheet").waitFor({ state: "hidden" });
      assert.equal(page.url(), mock.url);
      await page.goBack();
      await says(page, "#sheet-title", /Decision 50/);
    }, { fragment: "key=secret&decision=50", visitor: { allow: [REFUSED] } });
  },

  async the_keyboard_is_enough() {
    await shown({}, async (page) => {
      const focused = () => page.evaluate(() => Number(document.activeElement.dataset?.number));
      await rows(page).first().waitFor();
      await page.keyboard.press("Tab");
      assert.equal(await page.evaluate(() => document.activeElement.className), "skip");
      await page.keyboard.press("Enter");
      await until("a row has the focus", async () => {
        await page.keyboard.press("Tab");
        return (await focused()) > 0;
      });
      const shownRows = await numbers(page);
      assert.equal(await focused(), shownRows[0]);
      await page.keyboard.press("ArrowDown");
      await page.keyboard.press("ArrowDown");
      assert.equal(await focused(), shownRows[2]);
      await says(page, "#decisions-note", /Paused while you read/);
      await page.keyboard.press("Enter");
      await page.locator(".bars li").first().waitFor();
      await says(page, "#sheet-title", new RegExp(`Decision ${shownRows[2]}`));
      await page.keyboard.press("ArrowRight");
      await says(page, "#sheet-title", new RegExp(`Decision ${shownRows[3]}`));
      await page.keyboard.press("Escape");
      await page.locator("#sheet").waitFor({ state: "hidden" });
      assert.equal(await focused(), shownRows[3]);
    });
  },

  async tooltips_come_on_focus_and_leave_on_escape() {
    await shown({}, async (page) => {
      const trust = page.locator("tr[data-worker=\"0\"] td:nth-child(8) .tag");
      await trust.focus();
      await says(page, "#tip", /arrive without a gap/);
      await page.keyboard.press("Escape");
      await page.locator("#tip").waitFor({ state: "hidden" });
      // Under a pointer that rests on one, a sheet still closes at once.
      await opened(page);
      await page.locator(".prices th[data-tip]").first().hover();
      await says(page, "#tip", /^wait: time until the work already promised/);
      await page.keyboard.press("Escape");
      await page.locator("#sheet").waitFor({ state: "hidden" });
      await page.locator("#tip").waitFor({ state: "hidden" });
    });
  },

  async the_list_stands_still_while_paused_and_filters() {
    await shown({}, async (page) => {
      await rows(page).first().waitFor();
      const pause = page.locator("#decisions-pause");
      await pause.click();
      const [first] = await numbers(page);
      await says(page, "#decisions-note", /Paused, \d+ new/);
      assert.equal((await numbers(page))[0], first);
      await pause.click();
      await until("newer ones come in", async () => (await numbers(page))[0] > first);
      await page.locator("#decisions-why").selectOption("cached");
      await page.locator("#decisions-worker").selectOption("1");
      await until("only those that fit are left", async () => {
        const all = await rows(page).allInnerTexts();
        return all.length > 0 && all.every((it) => it.includes("9002") && it.includes("longest cached prefix"));
      });
      await page.locator("#decisions-why").selectOption("dice");
      await says(page, "#decisions-empty", /No decision matches/);
    });
  },

  async a_paused_list_keeps_its_rows_whatever_comes() {
    // A phone shows twenty.
    await shown({}, async (page) => {
      await until("the list is full", async () => (await numbers(page)).length === 20);
      await page.locator("#decisions-pause").click();
      const before = await numbers(page);
      await says(page, "#decisions-note", /Paused, ([3-9]\d|\d{3,}) new/);
      assert.deepEqual(await numbers(page), before);
    }, { visitor: { size: PHONE } });
  },

  async old_decisions_are_found_by_a_filter_when_the_page_is_full_of_newer_ones() {
    await shown({}, async (page, mock) => {
      clearInterval(mock.timer);
      await live(page);
      mock.router.decisions = [];
      const decided = (count, worker) => Array.from({ length: count }, () => Object.assign(mock.router.decide(Date.now()), { worker }));
      const old = decided(150, 1).map((it) => it.number).reverse();
      // More than the page keeps, while the router is taken to keep them all.
      const newer = [1, 2, 3, 4, 5].map(() => decided(450, 0));
      mock.router.decisions = [...mock.router.decisions.filter((it) => it.worker === 0), ...old.map((it) => ({ ...newer[0][0], number: it, worker: 1 })).reverse()];
      mock.router.decisions.sort((one, other) => one.number - other.number);
      for (const it of newer) mock.tell(it);
      await until("the newest is shown", async () => (await numbers(page))[0] === newer[4][449].number);
      await page.locator("#decisions-worker").selectOption("1");
      await until("the old ones are shown", async () => String(await numbers(page)) === String(old.slice(0, 100)));
      await page.locator("#decisions-older").click();
      await until("and those before them", async () => String(await numbers(page)) === String(old));
    });
  },

  async failed_and_slow_decisions_can_be_looked_for() {
    await shown({}, async (page, mock) => {
      clearInterval(mock.timer);
      await rows(page).first().waitFor();
      const [failed, slow, stuck] = mock.router.decisions.slice(-3);
      Object.assign(failed, { outcome: "broke-off", actual_ttft_ms: 40, waited_ms: 0 });
      Object.assign(slow, { outcome: "answered", actual_ttft_ms: 700, waited_ms: 5200 });
      Object.assign(stuck, { outcome: "in-flight", actual_ttft_ms: null, total_ms: null, waited_ms: 0, at_ms: Date.now() - 60_000 });
      await page.locator("#decisions-show").selectOption("failed");
      await until("the failed one is left", async () => String(await numbers(page)) === String([failed.number]));
      await page.locator("#decisions-show").selectOption("slow-5");
      await until("one that still waits is slow, too", async () => String(await numbers(page)) === String([stuck.number, slow.number]));
      await page.locator("#decisions-why").selectOption("dice");
      await says(page, "#decisions-empty", /No decision matches/);
      await page.locator("#decisions-why").selectOption("");
      await page.locator("#decisions-show").selectOption("");
      await until("all are back", async () => (await numbers(page)).length > 50);
    });
  },

  async every_term_of_a_price_is_explained_where_it_stands() {
    await shown({}, async (page) => {
      await opened(page);
      for (const [term, part] of Object.entries({ wait: "already promised", floor: "minimum TTFT", behind: "during this prefill" })) {
        await says(page, ".terms", new RegExp(`${term}\\s+[^\\n]*${part}`));
      }
    });
  },

  async on_a_phone_only_the_page_scrolls() {
    for (const unusual of [{ routers: 12, cluster: {} }, { workers: 60 }]) {
      await shown(unusual, async (page) => {
        await rows(page).first().waitFor();
        await until("the rows are there", async () => (await numbers(page)).length >= 20);
        const nested = await page.$$eval("main *", (all) => all
          .filter((it) => ["auto", "scroll"].includes(getComputedStyle(it).overflowY) && it.scrollHeight > it.clientHeight + 1)
          .map((it) => it.id || it.className));
        assert.deepEqual(nested, []);
        assert.ok(await page.evaluate(() => document.scrollingElement.scrollHeight) < 12_000, "the page has an end within reach");
      }, { visitor: { size: PHONE } });
    }
  },

  async a_drain_can_be_undone() {
    await shown({}, async (page, mock) => {
      await page.locator("tr[data-worker=\"1\"] .drain").click();
      await says(page, "#undo", /Worker 1 \(127\.0\.0\.1:9002\) is draining\./);
      assert.equal(mock.router.workers[1].draining, true);
      await page.locator("#undo-do").click();
      await page.locator("#undo").waitFor({ state: "hidden" });
      assert.equal(mock.router.workers[1].draining, false);
      await says(page, "tr[data-worker=\"1\"] td:nth-child(2)", /ready/);
      // What was resumed by its own button needs no undo.
      await page.locator("tr[data-worker=\"1\"] .drain").click();
      await page.locator("#undo").waitFor();
      await page.getByRole("button", { name: "Resume worker 1" }).click();
      await page.locator("#undo").waitFor({ state: "hidden" });
      await page.locator("tr[data-worker=\"0\"] .drain").click();
      await page.locator("#undo-close").click();
      await page.locator("#undo").waitFor({ state: "hidden" });
      assert.equal(mock.router.workers[0].draining, true);
    });
  },

  async drain_and_resume() {
    await shown({}, async (page, mock) => {
      const row = "tr[data-worker=\"1\"]";
      await page.locator(`${row} .drain`).click();
      await says(page, `${row} td:nth-child(2)`, /draining/);
      assert.equal(mock.router.workers[1].draining, true);
      await says(page, "#workers-sum", /1 draining/);
      await page.getByRole("button", { name: "Resume worker 1" }).click();
      await says(page, `${row} td:nth-child(2)`, /ready/);
      assert.equal(mock.router.workers[1].draining, false);
    });
  },

  async the_last_ready_worker_is_not_drained_by_accident() {
    await shown({ workers: 1 }, async (page, mock) => {
      const drain = page.locator("tr[data-worker=\"0\"] .drain");
      await drain.click();
      await says(page, "#ask", /last ready worker/);
      // The focus is on the harmless one.
      await page.keyboard.press("Enter");
      await page.locator("#ask").waitFor({ state: "hidden" });
      assert.equal(mock.router.workers[0].draining, false);
      await drain.click();
      await page.locator("#ask-yes").click();
      await until("it drains", () => mock.router.workers[0].draining);
      await says(page, "#ready", /not ready/);
    });
  },

  async a_weight_is_checked_and_set() {
    await shown({}, async (page, mock) => {
      await page.locator("tr[data-worker=\"2\"] .weight").click();
      await page.locator("#ask-value").fill("much");
      await page.keyboard.press("Enter");
      await says(page, "#ask-error", /“much” is not a weight; write a number from 0.01 to 100/);
      await page.locator("#ask-value").fill("0.5");
      await page.keyboard.press("Enter");
      await says(page, "tr[data-worker=\"2\"] .weight", /×0\.5/);
      assert.equal(mock.router.workers[2].weight, 0.5);
    });
  },

  async an_error_is_shown_beside_the_button() {
    await shown({}, async (page, mock) => {
      mock.failing = "the worker is leaving already";
      await page.locator("tr[data-worker=\"1\"] .drain").click();
      await says(page, "tr[data-worker=\"1\"]", /the worker is leaving already/);
      mock.failing = undefined;
      mock.key = "another";
      await page.locator("tr[data-worker=\"1\"] .drain").click();
      await says(page, "#key-why", /not accepted/);
      assert.equal(mock.router.workers[1].draining, false);
      await page.locator("#key").fill("another");
      await page.keyboard.press("Enter");
      await page.locator("tr[data-worker=\"1\"] .drain").click();
      await until("it drains with the right key", () => mock.router.workers[1].draining);
    }, { visitor: { allow: [REFUSED] } });
  },

  async dark_is_a_switch_that_is_remembered() {
    await shown({}, async (page) => {
      const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      await live(page);
      const light = await paper();
      await page.locator("#theme").click();
      const dark = await paper();
      assert.notEqual(dark, light);
      await page.reload();
      await live(page);
      assert.equal(await paper(), dark);
      assert.equal(await page.locator("#theme").getAttribute("aria-pressed"), "true");
    });
  },

  async no_state_scrolls_a_phone_sideways() {
    for (const unusual of [{ workers: 1000 }, { workers: 0, traffic: false, shadows: false }, { workers: 14, model: "a".repeat(300) }]) {
      await shown(unusual, async (page) => {
        await live(page);
        await page.locator("#totals b").first().waitFor();
        assert.ok(await overflow(page) <= 0, JSON.stringify(unusual));
      }, { visitor: { size: PHONE }, period_ms: 500 });
    }
  },
};

try {
  await run(Object.entries(tests));
} finally {
  await browser.close();
}
