// The admin listener of a made-up router: the page's files as they are in the tree, and the API behind a key.
//
// By itself, `node mock.mjs [workers [routers]]`, it serves until it is stopped: for looking at the page while working on it.

import { createReadStream, existsSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { Router, summary } from "./made_up.mjs";

const FOLDERS = ["../../../proxy/src/page/", "../../../charts/src/"].map((it) => fileURLToPath(new URL(it, import.meta.url)));
const TYPES = { ".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml" };

// The same as the router sends, so that a style or script in the markup fails here too.
const POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
  + "base-uri 'none'; frame-ancestors 'none'; form-action 'none'";

export class Mock {
  static async start(router, { key = "secret", period_ms = 1000, port = 0 } = {}) {
    const mock = new Mock();
    Object.assign(mock, { router, key, port, streams: new Set(), asked: [] });
    await mock.listen();
    mock.timer = setInterval(() => mock.update(), period_ms);
    return mock;
  }

  get url() {
    return `http://127.0.0.1:${this.port}/`;
  }

  listen() {
    this.server = createServer((request, response) => this.#answer(request, response));
    return new Promise((resolve) => {
      this.server.listen(this.port, "127.0.0.1", () => {
        this.port = this.server.address().port;
        resolve();
      });
    });
  }

  /** Stops, and closes every connection; `listen` starts it again at the same address. */
  vanish() {
    this.server.closeAllConnections();
    return new Promise((resolve) => { this.server.close(resolve); });
  }

  async end() {
    clearInterval(this.timer);
    if (this.server.listening) await this.vanish();
  }

  /** Moves the router on and sends the events. */
  update() {
    this.tell(this.router.pass(3));
  }

  /** Sends these decisions, and the numbers as they are now. */
  tell(changed) {
    for (const stream of this.streams) {
      send(stream, "overview", this.router.overview());
      if (changed.length > 0) send(stream, "decisions", { skipped: 0, decisions: changed.map(summary) });
    }
  }

  #answer(request, response) {
    const { pathname, searchParams } = new URL(request.url, this.url);
    if (!pathname.startsWith("/admin/")) return file(pathname, response);
    this.asked.push(`${request.method} ${pathname}`);
    if (request.headers.authorization !== `Bearer ${this.key}`) return refuse(response, 401, "unauthorized", "the admin key is missing or wrong");
    const [name, id, verb] = pathname.replace("/admin/v1/", "").split("/");
    if (name === "live") return this.#stream(response);
    if (name === "overview") return json(response, this.router.overview());
    if (name === "history") return json(response, this.router.history());
    if (name === "decisions") return id === undefined ? this.#list(searchParams, response) : this.#one(id, response);
    if (name === "workers" && verb !== undefined) return this.#command(request, response, Number(id), verb);
    return refuse(response, 404, "not_found", `there is nothing at ${pathname}`);
  }

  #stream(response) {
    response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
    this.streams.add(response);
    response.on("close", () => this.streams.delete(response));
    send(response, "overview", this.router.overview());
  }

  #list(query, response) {
    const before = Number(query.get("before") ?? Infinity);
    const fits = (it) => it.number < before && [null, String(it.worker)].includes(query.get("worker")) && [null, it.why].includes(query.get("why"))
      && (query.get("outcome")?.split(",").includes(it.outcome) ?? true) && untilFirstToken(it) >= Number(query.get("slower_than_ms") ?? 0);
    const found = this.router.decisions.filter(fits).reverse().slice(0, Number(query.get("limit") ?? 100));
    json(response, { decisions: found.map(summary) });
  }

  #one(id, response) {
    const found = this.router.decisions.find((it) => String(it.number) === id || it.id === id);
    return found === undefined ? refuse(response, 404, "not_found", `decision ${id} is not kept`) : json(response, found);
  }

  async #command(request, response, id, verb) {
    let body = "";
    for await (const piece of request) body += piece;
    const worker = this.router.workers[id];
    if (this.failing !== undefined) return refuse(response, 409, "conflict", this.failing);
    if (verb === "drain") worker.draining = true;
    if (verb === "resume") worker.draining = false;
    if (verb === "weight") worker.weight = JSON.parse(body).weight;
    return json(response, worker);
  }
}

function untilFirstToken(it) {
  return it.waited_ms + (it.actual_ttft_ms ?? it.total_ms ?? (it.outcome === "in-flight" ? Date.now() - it.at_ms : 0));
}

function send(stream, event, data) {
  stream.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
}

function json(response, value, status = 200) {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value));
}

function refuse(response, status, code, message) {
  json(response, { error: { code, message } }, status);
}

function file(pathname, response) {
  const name = pathname === "/" ? "index.html" : pathname.replace(/^\/page\//, "");
  const path = FOLDERS.map((it) => [it, join(it, name)]).find(([folder, it]) => it.startsWith(folder) && existsSync(it))?.[1];
  if (path === undefined) return response.writeHead(404).end();
  response.writeHead(200, { "content-type": TYPES[extname(path)] ?? "text/plain", "content-security-policy": POLICY, "x-content-type-options": "nosniff" });
  createReadStream(path).pipe(response);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const mock = await Mock.start(new Router({ workers: Number(process.argv[2] ?? 4), routers: Number(process.argv[3] ?? 1) }));
  console.log(`${mock.url}#key=${mock.key}`);
}
