// The binary as processes on loopback, which end with the test.
//
// The binary is the one named by the environment variable MAITRE.

import { spawn } from "node:child_process";
import { PATIENCE_MS, until } from "./browser.mjs";

// For a router started without a terminal, which prints no key.
const KEY = "a-key-for-this-test-only";

const running = new Set();

export class Program {
  constructor(args, variables = {}) {
    if (process.env.MAITRE === undefined) throw new Error("MAITRE names no binary; write MAITRE=target/debug/maitre");
    this.said = "";
    this.isOver = false;
    this.process = spawn(process.env.MAITRE, args, { stdio: ["ignore", "ignore", "pipe"], env: { ...process.env, ...variables } });
    this.ended = new Promise((resolve) => {
      this.process.once("exit", () => {
        this.isOver = true;
        resolve();
      });
      // It could not be started.
      this.process.once("error", (error) => {
        this.said += String(error);
        this.isOver = true;
        resolve();
      });
    });
    this.process.stderr.on("data", (piece) => { this.said += String(piece).replace(/\x1b\[[0-9;]*m/g, ""); });
    running.add(this);
  }

  /** The first match in its output. */
  async untilSays(pattern) {
    try {
      return await until(`it says ${pattern}`, () => {
        const found = pattern.exec(this.said);
        if (found === null && this.isOver) throw new Error(`it ended without saying ${pattern}`);
        return found;
      });
    } catch (error) {
      throw new Error(`${error.message}:\n${this.said}`, { cause: error });
    }
  }

  async end() {
    running.delete(this);
    this.process.kill("SIGKILL");
    await this.ended;
  }
}

export async function endAll() {
  await Promise.all([...running].map((it) => it.end()));
}

/** A router's process, its page and its key. */
export class TestRouter {
  /** A demo for at most forty seconds: engines, routers and traffic. The page is that of the first router. */
  static async demo(...flags) {
    const program = new Program(["demo", "--headless", "--seconds", "40", "--engines", "4", "--json", ...flags]);
    const [page, url, key] = await program.untilSays(/(http:\/\/127\.0\.0\.1:\d+\/)#key=(\S+)/);
    return Object.assign(new TestRouter(), { program, url, key, page });
  }

  /** A router whose only traffic is the test's. */
  static async quiet(engines, ...flags) {
    const hosts = Array.from({ length: engines }, () => new Program(["engine", "--listen", "127.0.0.1:0", "--speedup", "4"]));
    const urls = await Promise.all(hosts.map(async (it) => (await it.untilSays(/engine 0: (\S+)/))[1]));
    const workers = urls.flatMap((it) => ["--worker", it]);
    const ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    const program = new Program(["serve", ...ports, ...workers, ...flags], { MAITRE_ADMIN_KEY: KEY });
    const [, listen, admin] = await program.untilSays(/serving.* listen=(\S+) admin=(\S+)/);
    const url = `http://${admin}/`;
    const router = Object.assign(new TestRouter(), { program, url, key: KEY, page: `${url}#key=${KEY}`, listen: `http://${listen}` });
    await until("the engines are ready", async () => (await router.api("GET", "overview")).workers.every((it) => it.state === "ready"));
    return router;
  }

  async api(method, path, body) {
    const answer = await this.ask(method, path, { authorization: `Bearer ${this.key}` }, body);
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
    return answer.json();
  }

  /** The response, with these headers only. */
  ask(method, path, headers = {}, body = undefined) {
    return fetch(`${this.url}admin/v1/${path}`, { method, headers, body: body && JSON.stringify(body), signal: AbortSignal.timeout(PATIENCE_MS) });
  }

  /** The sum of a metric's lines that have all of these labels. */
  async metric(name, labels = {}) {
    const text = await (await fetch(`${this.url}metrics`, { headers: { authorization: `Bearer ${this.key}` } })).text();
    const lines = text.split("\n").filter((it) => it.startsWith(`${name}{`) || it.startsWith(`${name} `));
    const fitting = lines.filter((line) => Object.entries(labels).every(([key, value]) => line.includes(`${key}="${value}"`)));
    return fitting.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(" "))), 0);
  }
}
