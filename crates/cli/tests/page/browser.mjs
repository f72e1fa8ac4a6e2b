// A browser with the page in it, and a test runner that reports as `cargo test` does.
//
// Errors in the browser's console and requests to other hosts are recorded; each test must end with none.

import { mkdirSync } from "node:fs";
import { chromium } from "playwright-core";

// The limit of every wait.
export const PATIENCE_MS = 60_000;

const SHOTS = process.env.PAGE_SHOTS ?? "target/page";
const WIDE = { width: 1440, height: 1000 };
export const PHONE = { width: 375, height: 812 };

export async function launch() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    // Chromium's own sandbox does not work for root and in most containers; only our own page is loaded.
    args: ["--no-sandbox", "--disable-gpu"],
  });
}

/** A new page with its own storage; `complaints` collects errors. */
export async function visit(browser, url, { scheme = "light", size = WIDE, motion = "reduce", allow = [] } = {}) {
  const context = await browser.newContext({ viewport: size, colorScheme: scheme, reducedMotion: motion, isMobile: size === PHONE, hasTouch: size === PHONE });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  const complaints = [];
  const complain = (text) => { if (!allow.some((it) => it.test(text))) complaints.push(text); };
  page.on("console", (message) => { if (["error", "warning"].includes(message.type())) complain(message.text()); });
  page.on("pageerror", (error) => complain(`uncaught: ${error.stack}`));
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== new URL(url).origin) complain(`request to another host: ${request.url()}`);
  });
  await page.goto(url);
  return { page, context, complaints, close: () => context.close() };
}

export async function shoot(page, name, whole = true) {
  mkdirSync(SHOTS, { recursive: true });
  // Sticky elements would be painted in the middle of the page.
  if (whole) await page.evaluate(() => scrollTo(0, 0));
  await page.screenshot({ path: `${SHOTS}/${name}.png`, fullPage: whole });
}

/** Waits until `look` returns something true, and returns it; fails with the description otherwise. */
export async function until(what, look) {
  const deadline = Date.now() + PATIENCE_MS;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (Date.now() > deadline) throw new Error(`waited in vain until ${what}`);
    await new Promise((resolve) => { setTimeout(resolve, 20); });
  }
}

/** Pixels by which the page is wider than its window. */
export function overflow(page) {
  return page.evaluate(() => document.scrollingElement.scrollWidth - innerWidth);
}

/** Runs `[name, test]` in order; the process ends with 1 if one fails or there are none. */
export async function run(tests) {
  const only = process.argv[2] ?? "";
  const chosen = tests.filter(([name]) => name.includes(only));
  let failed = 0;
  for (const [name, test] of chosen) {
    const began = Date.now();
    try {
      await test();
      console.log(`test ${name} ... ok (${((Date.now() - began) / 1000).toFixed(1)} s)`);
    } catch (error) {
      failed += 1;
      console.log(`test ${name} ... FAILED\n${error.stack}`);
    }
  }
  const passed = chosen.length - failed;
  console.log(`\ntest result: ${failed === 0 && passed > 0 ? "ok" : "FAILED"}. ${passed} passed; ${failed} failed; ${tests.length - chosen.length} ignored`);
  process.exitCode = failed === 0 && passed > 0 ? 0 : 1;
}
