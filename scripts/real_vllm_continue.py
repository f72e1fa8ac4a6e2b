"""Checks that streams of a real vLLM server that is killed go on at another one: the part of check-real-vllm behind --continue.

This script starts the first server, kills it with -9 in the middle of an answer and starts it again; the second one runs already. The
command may stay in the foreground or leave the server behind: the process group that listens at the URL is killed, and a round in which
nothing died, or in which the router continued nothing, counts as wrong. Each answer is first asked of the second server alone. Greedy
answers must have the same token ids and the same text; sampled ones must be complete.
"""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request

PORT, ADMIN = 18490, 18491
# Every fifth answer is sampled.
SAMPLED_EVERY = 5
TOKENS = 64
START_SECONDS = 600
WORDS = "amber basil cedar dune ember fjord grove heath inlet juniper kelp lagoon moss".split()


def group_at(port):
    """The process group of what listens at a port of this machine; none if nothing does."""
    listening = re.compile(rf"^ *\d+: [0-9A-F]+:{port:04X} [0-9A-F]+:0000 0A(?: +\S+){{5}} +(\d+)", re.MULTILINE)
    tables = [pathlib.Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    sockets = {f"socket:[{inode}]" for table in tables for inode in listening.findall(table)}
    for folder in pathlib.Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(os.readlink(it) in sockets for it in folder.iterdir()):
                return os.getpgid(int(folder.parent.name))
        except OSError:
            continue
    return None


class Server:
    """A vLLM server that is started by a command and killed with all its processes."""

    def __init__(self, url, command):
        self.url, self.command, self.child = url, command, None
        self.port = urllib.parse.urlsplit(url).port
        self.kills = 0

    def start(self):
        # A session of its own, so that its group is not ours.
        self.child = subprocess.Popen(self.command, shell=True, start_new_session=True)

    def is_up(self):
        try:
            return urllib.request.urlopen(self.url + "/health", timeout=2).status == 200
        except OSError:
            return False

    def kill(self):
        """Kills the group that listens, and that of the command. Returns when nothing listens any more."""
        groups = {group_at(self.port), self.child.pid} - {None, os.getpgrp()}
        for group in groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.child.wait()
        until(lambda: group_at(self.port) is None, 30, f"the server at {self.url} to be gone")
        self.kills += 1


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


def page():
    """The router's metrics; nothing while it does not answer."""
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{ADMIN}/metrics", timeout=10).read().decode()
    except OSError:
        return ""


def resumed():
    return sum(float(it.rsplit(" ", 1)[1]) for it in page().splitlines() if it.startswith('maitre_continuations_total{outcome="resumed"}'))


def are_ready():
    """Whether the router sends requests to both servers, one that has come back included, and has read what they are."""
    seen = page()
    return len(re.findall(r'state="(?:ready|warming)"} 1$', seen, re.MULTILINE)) == 2 and seen.count("maitre_worker_engine_blocks{") == 2


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
    answer, kill_after, before, went_on = Answer(), rng.randrange(3, TOKENS - 8), victim.kills, resumed()
    for payload in events(response):
        answer.take(payload)
        if victim.kills == before and len(answer.ids) >= kill_after:
            victim.kill()
    if victim.kills == before or resumed() == went_on:
        return f"nothing was continued: {victim.kills - before} kills, {len(answer.ids)} tokens, {answer.failure}"
    if not answer.is_whole():
        return f"not whole: {len(answer.ids)} tokens, {answer.failure}"
    if not is_sampled and (answer.ids, answer.text) != (expected.ids, expected.text):
        at = next((i for i, pair in enumerate(zip(answer.ids, expected.ids)) if pair[0] != pair[1]), "none, but in its text,")
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
            # The first answer of a new server took up to 37 s on a busy machine.
            for payload in events(post(first, {**body(rng, model, False), "max_tokens": 1})):
                assert payload
            until(are_ready, 120, "both servers to be ready in the router")
            wrong = one_round(rng, model, victim, second, number % SAMPLED_EVERY == SAMPLED_EVERY - 1)
            bad += wrong is not None
            print(f"kill {number + 1}: {wrong or 'the answer is whole'}", flush=True)
            if victim.is_up():
                victim.kill()
        print(f"{int(kills) - bad} of {kills} answers were whole; greedy ones token for token")
        return 1 if bad else 0
    finally:
        if router:
            router.kill()
            router.wait()
        if victim.child and (victim.child.poll() is None or victim.is_up()):
            victim.kill()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
