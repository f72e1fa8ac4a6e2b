"""Checks that streams of a real vLLM server that is killed go on at another one: the part of check-real-vllm behind --continue.

The first server is a child of this script, which kills it with -9 in the middle of an answer and starts it again; the second one
runs already. Each answer is first asked of the second server alone. Greedy answers must have the same token ids and the same text;
sampled ones must be complete.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request

PORT, ADMIN = 18490, 18491
# Every fifth answer is sampled.
SAMPLED_EVERY = 5
TOKENS = 64
START_SECONDS = 600
WORDS = "amber basil cedar dune ember fjord grove heath inlet juniper kelp lagoon moss".split()


class Server:
    """A vLLM server in a process group of its own, so that a kill ends all of it."""

    def __init__(self, url, command):
        self.url, self.command, self.child = url, command, None

    def start(self):
        self.child = subprocess.Popen(self.command, shell=True, start_new_session=True)

    def is_up(self):
        try:
            return urllib.request.urlopen(self.url + "/health", timeout=2).status == 200
        except OSError:
            return False

    def kill(self):
        os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()


def until(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"waited {seconds} s for {what}")
        time.sleep(0.2)


def post(url, body):
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    return urllib.request.urlopen(request, timeout=600)


def events(response):
    for line in response:
        if line.startswith(b"data: "):
            yield line[6:].strip()


class Answer:
    def __init__(self):
        self.ids, self.text, self.finish, self.done, self.failure, self.usage = [], "", [], 0, None, None

    def take(self, payload):
        if payload == b"[DONE]":
            self.done += 1
            return
        event = json.loads(payload)
        self.failure = self.failure or event.get("error")
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices", []):
            self.ids += choice.get("token_ids") or []
            self.text += choice["delta"].get("content") or ""
            self.finish += [choice["finish_reason"]] if choice.get("finish_reason") else []

    def is_whole(self):
        return not self.failure and self.done == 1 and len(self.finish) == 1 and len(self.ids) == TOKENS


def body(rng, model, is_sampled):
    text = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(30, 200)))
    return {
        "model": model, "messages": [{"role": "user", "content": text}], "max_tokens": TOKENS, "ignore_eos": True, "stream": True,
        "temperature": 0.9 if is_sampled else 0, "return_token_ids": True, "stream_options": {"include_usage": True},
    }


def one_round(rng, model, victim, survivor, is_sampled):
    """One answer whose server is killed in the middle. Returns what was wrong with it, if anything."""
    asked, expected = body(rng, model, is_sampled), Answer()
    for payload in events(post(survivor, asked)):
        expected.take(payload)
    # The router places by price; it is asked until the answer begins at the server that will be killed.
    for _ in range(50):
        response = post(f"http://127.0.0.1:{PORT}", asked)
        if response.headers["x-maitre-worker"] == victim.url:
            break
        response.close()
    else:
        return "no answer began at the first server"
    if response.headers["x-maitre-continue"] != "on":
        return f"not covered: {response.headers['x-maitre-continue']}"
    answer, kill_after = Answer(), rng.randrange(3, TOKENS - 8)
    for payload in events(response):
        answer.take(payload)
        if victim.child.poll() is None and len(answer.ids) >= kill_after:
            victim.kill()
    if not answer.is_whole():
        return f"not whole: {len(answer.ids)} tokens, {answer.failure}"
    if not is_sampled and (answer.ids, answer.text) != (expected.ids, expected.text):
        at = next(i for i, pair in enumerate(zip(answer.ids, expected.ids)) if pair[0] != pair[1])
        return f"differs at token {at} of {TOKENS}, killed after {kill_after}"
    if answer.usage["completion_tokens"] != TOKENS or answer.usage["prompt_tokens"] != expected.usage["prompt_tokens"]:
        return f"usage {answer.usage}, not {expected.usage}"
    return None


def main(maitre, model, first, command, second, kills="20"):
    victim, rng = Server(first, command), random.Random(time.time_ns())
    serve = [maitre, "serve", "--continue", "on", "--strategy", "round-robin", "--listen", f"127.0.0.1:{PORT}",
             "--admin", f"127.0.0.1:{ADMIN}", "--worker", first, "--worker", second]
    router, bad = None, 0
    try:
        for number in range(int(kills)):
            victim.start()
            until(victim.is_up, START_SECONDS, f"{first} to start")
            if router is None:
                router = subprocess.Popen(serve)
            ready = lambda: urllib.request.urlopen(f"http://127.0.0.1:{ADMIN}/metrics", timeout=10).read().count(b'state="ready"} 1') == 2
            time.sleep(2)
            until(ready, 120, "both servers to be ready in the router")
            wrong = one_round(rng, model, victim, second, number % SAMPLED_EVERY == SAMPLED_EVERY - 1)
            bad += wrong is not None
            print(f"kill {number + 1}: {wrong or 'the answer is whole'}", flush=True)
            if victim.child.poll() is None:
                victim.kill()
        print(f"{int(kills) - bad} of {kills} answers were whole; greedy ones token for token")
        return 1 if bad else 0
    finally:
        for child in (router, victim.child):
            if child and child.poll() is None:
                child.kill() if child is router else victim.kill()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
