"""Two real vLLM servers, one that prefills and one that decodes (over NIXL), behind Maitre. Run by `check-real-vllm --pd`.

Every request must get the text that one server gives, or a clean error. The decode server must not prefill what it can fetch.
The prefill server must not hold blocks longer than their lease.

The script starts both servers. The router reaches the decode server through a gate of this script, which sees every decode leg.
Before it passes a leg on it can kill a server, close the client's connection, or stop the decode server until the lease has ended.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

from local import get, metric, until
from real_vllm_server import START_SECONDS, WORDS, Checks, Server, stop

PORT, ADMIN, GATE = 18480, 18481, 18482
ROUTER = f"http://127.0.0.1:{PORT}"
CHAT = "/v1/chat/completions"
KINDS = [(CHAT, True), (CHAT, False), ("/v1/completions", True), ("/v1/completions", False)]
LEASE = 30
# Fewer are enough for a first look.
REQUESTS = int(os.environ.get("REQUESTS", 40))
# In tokens about twice as many: several blocks of 32, and little work for a server without a GPU.
PROMPT_WORDS = (60, 200)


def text(rng, words=None):
    return " ".join(rng.choice(WORDS) for _ in range(words or rng.randrange(*PROMPT_WORDS)))


class Gate:
    """Passes connections on to the decode server. The planned action runs once, before the next decode leg passes."""

    def __init__(self, port):
        self.port, self.plan, self.begun, self.done = port, None, 0, 0
        self.listener = socket.create_server(("127.0.0.1", GATE))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self.port), timeout=600)
            except OSError:
                client.close()
                continue
            threading.Thread(target=self.carry, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self.carry, args=(server, client, False), daemon=True).start()

    def carry(self, source, target, is_request):
        try:
            while data := source.recv(1 << 16):
                if is_request and b"do_remote_prefill" in data and self.plan:
                    plan, self.plan = self.plan, None
                    self.begun += 1
                    plan()
                    self.done += 1
                target.sendall(data)
        except OSError:
            pass
        for it in (source, target):
            try:
                it.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def before_next_leg(self, plan):
        self.plan = plan


def connection(url):
    return http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=300)


def samples(url):
    """All samples of a server's /metrics, without the labels of engine and model."""
    with urllib.request.urlopen(url + "/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    found = {}
    for line in lines:
        if line.startswith("vllm:"):
            name, value = line.rsplit(" ", 1)
            labels = [it for it in name.partition("{")[2].rstrip("}").split(",") if "engine=" not in it and "model_name=" not in it]
            key = name.partition("{")[0].removeprefix("vllm:") + ("{" + ",".join(labels) + "}" if labels and labels[0] else "")
            found[key] = found.get(key, 0) + float(value)
    return found


def tokens(server, source):
    return samples(server.url).get(f'prompt_tokens_by_source_total{{source="{source}"}}', 0)


def body(model, prompt, route, stream):
    common = {"model": model, "max_tokens": 24, "temperature": 0, "ignore_eos": True, "stream": stream}
    if route == "/v1/completions":
        return common | {"prompt": prompt}
    return common | {"messages": [{"role": "user", "content": prompt}]}


def said(route, stream, data):
    """The text of an answer; None if it has an error, or no end."""
    part = (lambda it: it.get("text")) if route == "/v1/completions" else (lambda it: (it.get("delta") or it.get("message") or {}).get("content"))
    if not stream:
        answer = json.loads(data)
        return None if "error" in answer else part(answer["choices"][0])
    events = [it.removeprefix("data: ") for it in data.splitlines() if it.startswith("data: ")]
    values = [json.loads(it) for it in events if it != "[DONE]"]
    if any("error" in it for it in values) or events[-1:] != ["[DONE]"]:
        return None
    return "".join(part(it["choices"][0]) or "" for it in values if it.get("choices"))


def ask(url, model, prompt, route, stream):
    link = connection(url)
    link.request("POST", route, json.dumps(body(model, prompt, route, stream)), {"content-type": "application/json"})
    answer = link.getresponse()
    data = answer.read().decode()
    return answer.status, said(route, stream, data) if answer.status == 200 else None, dict(answer.getheaders())


def is_ready():
    """Waits for both workers, not only for one that came back."""
    try:
        lines = get(ADMIN, "/metrics").splitlines()
    except OSError:
        return False
    states = [it for it in lines if it.startswith("maitre_worker_state{") and it.endswith(" 1")]
    return sum('state="ready"' in it or 'state="warming"' in it for it in states) == 2


def in_flight():
    page = get(ADMIN, "/metrics")
    return metric(page, "maitre_requests_in_flight ") + metric(page, "maitre_worker_requests{")


class Check(Checks):
    def __init__(self, model, prefill, decode, gate):
        super().__init__()
        self.model, self.prefill, self.decode, self.gate = model, prefill, decode, gate

    def start(self, *servers):
        for server in servers:
            server.start()
        until(lambda: all(it.is_warm for it in servers), START_SECONDS, "the servers to start")

    def plain(self, prompt, route=CHAT, stream=True):
        """The answer of one server, without Maitre."""
        return ask(self.prefill.url, self.model, prompt, route, stream)[1]

    def many(self, count):
        """Requests of all kinds: answers equal one server's, and the KV is fetched, not computed."""
        computed, fetched = tokens(self.decode, "local_compute"), tokens(self.decode, "external_kv_transfer")
        asked, split = [], 0
        for number in range(count):
            route, stream = KINDS[number % 4]
            prompt = f"{number} " + text(self.rng)
            status, answer, headers = ask(ROUTER, self.model, prompt, route, stream)
            asked.append((prompt, route, stream, answer))
            split += "x-maitre-prefill-worker" in {it.lower() for it in headers}
        computed, fetched = tokens(self.decode, "local_compute") - computed, tokens(self.decode, "external_kv_transfer") - fetched
        # Asked afterwards and of the other server, so that no cache filled by the first answer helps.
        right = sum(answer is not None and answer == self.plain(prompt, route, stream) for prompt, route, stream, answer in asked)
        told = f"{right} equal to one server's, {split} split; decode server fetched {fetched:.0f} tokens, computed {computed:.0f}"
        self.judge(f"{count} requests", right == split == count and computed == 0 and fetched > 0, told)

    def idle(self, what):
        """The router holds nothing any longer, and the servers nothing after the lease."""
        until(lambda: in_flight() == 0, 30, "the router's gauges")
        started = time.monotonic()

        def is_idle():
            found = [samples(it.url) for it in (self.prefill, self.decode)]
            return all(it.get("kv_cache_usage_perc", 0) == 0 and it.get("num_requests_running", 0) == 0 for it in found)

        until(is_idle, LEASE + 30, "both servers to be idle")
        took = time.monotonic() - started
        self.judge(what, took <= LEASE + 5, f"both servers idle after {took:.1f} s (lease {LEASE} s)")

    def leave(self):
        """Clients that disconnect at once, between the legs, and in the middle of the answer."""

        def sent(name):
            link = connection(ROUTER)
            link.request("POST", CHAT, json.dumps(body(self.model, f"{name} " + text(self.rng), CHAT, True)), {"content-type": "application/json"})
            return link

        sent("prefill").close()
        self.idle("client left during the prefill")
        link, done = sent("between"), self.gate.done
        self.gate.before_next_leg(link.close)
        until(lambda: self.gate.done > done, 60, "the decode leg")
        self.idle("client left between the legs")
        link = sent("answer")
        answer = link.getresponse()
        answer.read(300)
        answer.close()
        link.close()
        self.idle("client left in the middle of the answer")

    def fail(self, what, plan, stream=True, expects_answer=False):
        """A request with a disturbance before its decode leg: the right text, or an error."""
        prompt, begun = f"{what} " + text(self.rng), self.gate.begun
        expected = self.plain(prompt, CHAT, stream)
        self.gate.before_next_leg(plan)
        started = time.monotonic()
        status, answer, _ = ask(ROUTER, self.model, prompt, CHAT, stream)
        took = time.monotonic() - started
        is_clean = answer == expected or (answer is None and not expects_answer)
        told = f"{status}, {'the right text' if answer == expected else 'an error' if answer is None else f'WRONG TEXT {answer!r}'} after {took:.1f} s"
        self.judge(f"{what}, {'stream' if stream else 'whole'}", is_clean and self.gate.begun > begun, told)
        until(lambda: self.gate.done == self.gate.begun, 120, "what was planned to be done")

    def stop_beyond_lease(self):
        """The decode server gets the handoff, stops until the lease has ended, and the prefill server uses the blocks again."""
        os.killpg(self.decode.group, signal.SIGSTOP)

        def reuse():
            time.sleep(LEASE + 5)
            for number in range(12):
                ask(self.prefill.url, self.model, f"again {number} " + text(self.rng, 1500), "/v1/completions", False)
            os.killpg(self.decode.group, signal.SIGCONT)

        threading.Thread(target=reuse, daemon=True).start()

    def lease(self):
        for stream in (True, False):
            self.fail("decode server stopped beyond the lease", self.stop_beyond_lease, stream)
            until(is_ready, START_SECONDS, "both servers to be ready again")
        self.idle("after the lease")

    def all(self):
        self.many(REQUESTS)
        self.leave()
        self.fail("prefill server killed between the legs", self.prefill.kill, expects_answer=True)
        self.start(self.prefill)
        until(is_ready, START_SECONDS, "both servers to be ready again")
        # To the decode server the prefill server is now a different engine.
        time.sleep(11)
        self.many(min(REQUESTS, 8))
        for stream in (True, False):
            self.fail("decode server killed between the legs", self.decode.kill, stream)
            self.start(self.decode)
            until(is_ready, START_SECONDS, "both servers to be ready again")
        self.idle("at the end")


def main(maitre, model, *rest):
    if len(rest) != 4:
        raise SystemExit("name the prefill and the decode server, each by URL and command")
    # Stop the servers in this case too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    prefill, decode = Server(*rest[:2], model), Server(*rest[2:], model)
    check, router = Check(model, prefill, decode, Gate(decode.port)), None
    command = [maitre, "serve", "--listen", f"127.0.0.1:{PORT}", "--admin", f"127.0.0.1:{ADMIN}", "--split", "always"]
    command += ["--worker", f"{prefill.url}?role=prefill", "--worker", f"http://127.0.0.1:{GATE}?role=decode"]
    try:
        check.start(prefill, decode)
        # Servers without a GPU answer probes late: two of them, whose NIXL threads never sleep, took more than 10 s on two cores. But
        # the router must notice one that stops for longer than the lease, or that one fetches what is no longer there.
        for patience, part in (("60s", check.all), ("5s", check.lease)):
            router = subprocess.Popen(command + ["--probes-timeout", patience])
            until(is_ready, 120, "maitre and its workers")
            part()
            router.terminate()
            router.wait(60)
        print(f"{check.bad} of the checks failed")
        return 1 if check.bad else 0
    finally:
        stop(router, (prefill, decode))
