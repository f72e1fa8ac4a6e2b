"""Two real vLLM servers, one that prefills and one that decodes (over NIXL), behind Maitre. Run by `check-real-vllm --pd`.

Every request must get the text that one server gives, or a clean error; the decode server must not prefill what it can fetch;
nothing may stay held at the prefill server longer than its lease.
"""

import http.client
import json
import os
import random
import signal
import subprocess
import time
import urllib.parse
import urllib.request

PORT, ADMIN = 18480, 18481
WORDS = "amber basil cedar dune ember fjord grove heath inlet juniper kelp lagoon moss".split()
LEASE = 30
# Fewer are enough for a first look.
REQUESTS = int(os.environ.get("REQUESTS", 40))


def text(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words))


def connection(url):
    return http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=300)


def samples(url):
    """All samples of a server's /metrics, without the labels of engine and model."""
    with urllib.request.urlopen(url + "/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found = {}
    for line in lines:
        if line.startswith("vllm:"):
            name, value = line.rsplit(" ", 1)
            labels = [it for it in name.partition("{")[2].rstrip("}").split(",") if "engine=" not in it and "model_name=" not in it]
            key = name.partition("{")[0].removeprefix("vllm:") + ("{" + ",".join(labels) + "}" if labels and labels[0] else "")
            found[key] = found.get(key, 0) + float(value)
    return found


def tokens(url, source):
    return samples(url).get(f'prompt_tokens_by_source_total{{source="{source}"}}', 0)


def usage(url):
    return samples(url).get("kv_cache_usage_perc", 0)


def body(model, prompt, route, stream):
    common = {"model": model, "max_tokens": 24, "temperature": 0, "ignore_eos": True, "stream": stream}
    if route == "/v1/completions":
        return common | {"prompt": prompt}
    return common | {"messages": [{"role": "user", "content": prompt}]}


def said(route, stream, data):
    """The text of an answer; None if it has an error."""
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


def leave(url, model, prompt, seconds):
    """Sends a streamed request and disconnects after so many seconds."""
    link = connection(url)
    link.request("POST", "/v1/chat/completions", json.dumps(body(model, prompt, "/v1/chat/completions", True)), {"content-type": "application/json"})
    time.sleep(seconds)
    link.close()


def wait(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"waited {seconds} s for {what}")
        time.sleep(0.1)


def is_ready():
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{ADMIN}/readyz", timeout=5).status == 200
    except OSError:
        return False


def is_idle(prefill, decode):
    return all(usage(it) == 0 and samples(it).get("num_requests_running", 0) == 0 for it in (prefill, decode))


def in_flight():
    with urllib.request.urlopen(f"http://127.0.0.1:{ADMIN}/metrics", timeout=10) as answer:
        lines = [it for it in answer.read().decode().splitlines() if it.startswith(("maitre_requests_in_flight ", "maitre_worker_requests{"))]
    return sum(float(it.rsplit(" ", 1)[1]) for it in lines)


def main(maitre, model, prefill, decode, pid=None):
    router = f"http://127.0.0.1:{PORT}"
    # Servers without a GPU answer probes late.
    command = [maitre, "serve", "--listen", f"127.0.0.1:{PORT}", "--admin", f"127.0.0.1:{ADMIN}", "--split", "always", "--probes-timeout", "20s"]
    command += ["--worker", f"{prefill}?role=prefill", "--worker", f"{decode}?role=decode"]
    process = subprocess.Popen(command)
    try:
        wait(is_ready, 60, "maitre and its workers")
        rng = random.Random(time.time_ns())
        kinds = [("/v1/chat/completions", True), ("/v1/chat/completions", False), ("/v1/completions", True), ("/v1/completions", False)]
        computed, fetched = tokens(decode, "local_compute"), tokens(decode, "external_kv_transfer")
        asked, right, split = [], 0, 0
        for number in range(REQUESTS):
            route, stream = kinds[number % 4]
            prompt = f"{number} " + text(rng, rng.randrange(100, 700))
            status, answer, headers = ask(router, model, prompt, route, stream)
            asked.append((prompt, route, stream, answer))
            split += "x-maitre-prefill-worker" in {it.lower() for it in headers}
            print(f"{number:2} {route} {'stream' if stream else 'whole '} {status} {(answer or '')[:40]!r}", flush=True)
        computed, fetched = tokens(decode, "local_compute") - computed, tokens(decode, "external_kv_transfer") - fetched
        # Asked afterwards, and of the other server, so that neither is helped by a cache of the answer's own making.
        for prompt, route, stream, answer in asked:
            right += answer is not None and answer == ask(prefill, model, prompt, route, stream)[1]
        print(f"{right} of {REQUESTS} equal to one server's; {split} split; decode server fetched {fetched:.0f} tokens, computed {computed:.0f}")
        for number, seconds in enumerate([0.0, 0.05, 0.2, 0.5, 1.0]):
            leave(router, model, f"leaving {number} " + text(rng, 600), seconds)
        wait(lambda: in_flight() == 0, 10, "the router's gauges")
        started = time.monotonic()
        wait(lambda: is_idle(prefill, decode), LEASE + 15, "both servers to be idle")
        print(f"five clients left; both servers idle after {time.monotonic() - started:.1f} s (lease {LEASE} s)")
        clean = True
        if pid:
            os.kill(int(pid), signal.SIGKILL)
            for number in range(3):
                status, answer, _ = ask(router, model, f"after {number} " + text(rng, 300), "/v1/chat/completions", True)
                print(f"prefill server killed: {status} {(answer or 'an error')[:40]!r}")
                clean &= answer is not None or status >= 500
        return 0 if right == split == REQUESTS and computed == 0 and fetched > 0 and clean else 1
    finally:
        process.terminate()
        process.wait(10)
