"""Two real vLLM servers that fetch KV cache from each other (peer-to-peer tier), behind Maitre. Run by `check-real-vllm --pull`.

The script sends each prompt three times. One server computes the first. The same server gets the second, whose stream stays open. So the
third goes to the other server (`cache-aware` with a threshold of one request), which may pull the prompt from the first. Every answer must equal the computed one. A
silent or dead source may delay an answer, but never for the half minute that vLLM waits.
"""

import json
import os
import signal
import subprocess
import sys
import time

from local import get, metric, until
from real_vllm_pd import ADMIN, CHAT, PORT, ROUTER, ask, body, connection, in_flight, is_ready, text, tokens
from real_vllm_server import START_SECONDS, Checks, Server, stop

# Fewer are enough for a first look.
REQUESTS = int(os.environ.get("REQUESTS", 12))
# In tokens about twice as many: several of the largest blocks that vLLM takes.
PROMPT_WORDS = 2000
# The tokens of the stream that occupies the holder: more than the other server takes time for.
OPEN_TOKENS = 1000
# The router gives up a pull five seconds after three times its expected time; vLLM waits for 30 to 60.
SECONDS_MAX = 25


def failed_pulls():
    return metric(get(ADMIN, "/metrics"), 'maitre_pulls_total{outcome="failed"}')


class Check(Checks):
    def __init__(self, model, servers):
        super().__init__()
        self.model, self.servers = model, servers

    def computed(self, name):
        """A new prompt, the text that a server computes for it, and that server, which has stored it when this returns."""
        prompt = f"{name} " + text(self.rng, PROMPT_WORDS)
        status, answer, headers = ask(ROUTER, self.model, prompt, CHAT, True)
        if answer is None:
            raise SystemExit(f"a new prompt got {status}")
        # The last block is published one step after the answer, and copied to host memory after that.
        time.sleep(2)
        return prompt, answer, next(it for it in self.servers if it.url == headers["x-maitre-worker"])

    def occupied(self, prompt, holder):
        """A stream of the prompt that keeps its holder busy, so that the next request goes to the other server."""
        link = connection(ROUTER)
        asked = body(self.model, prompt, CHAT, True) | {"max_tokens": OPEN_TOKENS}
        link.request("POST", CHAT, json.dumps(asked), {"content-type": "application/json"})
        answer = link.getresponse()
        answer.read(1)
        if answer.headers["x-maitre-worker"] != holder.url:
            raise SystemExit(f"a prompt that {holder.url} holds went to {answer.headers['x-maitre-worker']}")
        return link

    def elsewhere(self, prompt):
        """The answer of the other server, its name, its intended source, and how long everything took."""
        started = time.monotonic()
        status, answer, headers = ask(ROUTER, self.model, prompt, CHAT, True)
        headers = {name.lower(): value for name, value in headers.items()}
        took = time.monotonic() - started
        return status, answer, headers.get("x-maitre-worker"), headers.get("x-maitre-pull-worker"), took

    def many(self, what, count, pulls_min):
        right, pulled, fetched = 0, 0, 0
        for number in range(count):
            prompt, expected, holder = self.computed(number)
            other = next(it for it in self.servers if it is not holder)
            before, link = tokens(other, "external_kv_transfer"), self.occupied(prompt, holder)
            _, answer, server, source, took = self.elsewhere(prompt)
            link.close()
            got = tokens(other, "external_kv_transfer") - before
            right += answer == expected and server == other.url
            pulled, fetched = pulled + bool(source), fetched + (bool(source) and got > 0)
            print(f"  {server} was to pull from {source or 'nobody'}, fetched {got:.0f} tokens, {took:.2f} s", flush=True)
        told = f"{right} answers equal, {pulled} to be pulled, {fetched} of them fetched something"
        self.judge(what, right == count and fetched >= pulls_min, told)

    def source_fails(self, what, fail):
        """The server that holds the prompt cannot serve the pull. Returns that server."""
        prompt, expected, holder = self.computed(what)
        failures, link = failed_pulls(), self.occupied(prompt, holder)
        fail(holder)
        status, answer, server, source, took = self.elsewhere(prompt)
        link.close()
        told = f"{status}, {'the right text' if answer == expected else repr(answer)} after {took:.1f} s"
        told += f" from {server}, to pull from {source or 'nobody'}, {failed_pulls() - failures:.0f} given up"
        self.judge(what, answer == expected and took <= SECONDS_MAX, told)
        return holder

    def all(self):
        self.many(f"{REQUESTS} prompts", REQUESTS, 2)
        holder = self.source_fails("source stopped", lambda it: os.killpg(it.group, signal.SIGSTOP))
        os.killpg(holder.group, signal.SIGCONT)
        until(is_ready, START_SECONDS, "both servers to be ready again")
        self.many("after it went on", 4, 0)
        holder = self.source_fails("source killed", Server.kill)
        holder.start()
        until(lambda: holder.is_warm, START_SECONDS, "the server to start")
        until(is_ready, START_SECONDS, "both servers to be ready again")
        self.many("after it started again", 4, 0)
        until(lambda: in_flight() == 0, 30, "the router's gauges")


def main(maitre, model, *rest):
    if len(rest) != 4:
        raise SystemExit("name two servers, each by URL with ?pull=PORT and by command")
    # Stop the servers in this case too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    servers = [Server(url.partition("?")[0], command, model) for url, command in zip(rest[::2], rest[1::2])]
    check, router = Check(model, servers), None
    command = [maitre, "serve", "--listen", f"127.0.0.1:{PORT}", "--admin", f"127.0.0.1:{ADMIN}", "--strategy", "cache-aware"]
    command += ["--cache-aware-balance-abs-threshold", "0", "--cache-aware-balance-rel-threshold", "1"]
    # Two servers without a GPU, whose peer-to-peer threads never sleep, answer probes late on few cores.
    command += ["--probes-timeout", "60s", "--worker", rest[0], "--worker", rest[2]]
    try:
        for server in servers:
            server.start()
        until(lambda: all(it.is_warm for it in servers), START_SECONDS, "the servers to start")
        router = subprocess.Popen(command)
        until(is_ready, 120, "maitre and its workers")
        check.all()
        print(f"{check.bad} of the checks failed")
        return 1 if check.bad else 0
    finally:
        stop(router, servers)
