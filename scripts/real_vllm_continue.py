"""Checks that streams continue on another server when a real vLLM server is killed: check-real-vllm --continue.

This script starts all servers. In each round it requests one answer through Maitre, kills the answering server with -9 in the middle,
and starts that server again during the next rounds: with three servers, two of every three starts cost no time. The commands may stay in
the foreground or leave the server in the background: the script kills the process group that listens at the URL. A kill after the answer is
complete does not count; another round replaces it.

The script also requests each answer from a server directly, without a break. Greedy answers must have the same token ids (messages have none), text,
finish reason and usage; sampled ones must be complete. Chats, completions and messages take turns, and some have a stop string at the place of
the break.
"""

import json
import random
import re
import signal
import subprocess
import sys
import time

from local import get, metric, until
from real_vllm_server import START_SECONDS, WORDS, Server, post, stop

PORT, ADMIN = 18490, 18491
TOKENS = 128
# The length of a stop string, in tokens. The router holds back that much, so the engine is that far ahead of the client.
STOP_TOKENS = 16
CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
# The requests of the rounds, in turn: the route, and what is special about the request.
KINDS = [(CHAT, "greedy"), (COMPLETIONS, "greedy"), (MESSAGES, "greedy"), (CHAT, "stop"), (COMPLETIONS, "sampled"), (MESSAGES, "stop")]
# The most tokens in one event, if a server is too busy to send each separately.
EVENT_TOKENS_MAX = 4
# How many kills may come too late, in total.
LATE_MAX = 5


def events(response):
    for line in response:
        if line.startswith(b"data: "):
            yield line[6:].strip()


class Answer:
    def __init__(self):
        self.ids, self.text, self.finish, self.done, self.failure, self.usage = [], "", [], 0, None, None
        # The length of the text after each number of tokens; the types of a message's events.
        self.text_at, self.kinds = [], []

    def take(self, payload):
        if payload == b"[DONE]":
            self.done += 1
            return
        event = json.loads(payload)
        if "type" in event:
            return self.take_message(event)
        self.failure = self.failure or event.get("error")
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices", []):
            new = choice.get("token_ids") or []
            self.ids += new
            self.text += choice["delta"].get("content") or "" if "delta" in choice else choice.get("text") or ""
            self.text_at += [len(self.text)] * len(new)
            self.finish += [choice["finish_reason"]] if choice.get("finish_reason") else []

    def take_message(self, event):
        """An event of /v1/messages: one for each token, and no ids."""
        self.kinds.append(event["type"])
        self.failure = self.failure or event.get("error")
        self.usage = event.get("usage") or self.usage
        self.done += event["type"] == "message_stop"
        delta = event.get("delta") or {}
        if event["type"] == "content_block_delta":
            self.text += delta["text"]
            self.text_at.append(len(self.text))
        self.finish += [delta["stop_reason"], delta["stop_sequence"]] if "stop_reason" in delta else []

    def is_whole(self):
        # Several tokens may come in one event, and so with one delta more or less.
        order = [kind for kind, before in zip(self.kinds, [None, *self.kinds]) if kind != before]
        is_message = order == ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"]
        return not self.failure and self.done == 1 and len(self.finish) == (2 if order else 1) and self.usage is not None and (is_message or not order)

    def forget_extra(self, expected):
        """A busy server puts several tokens into one event. Where a stop string ends in the middle of one, the router counts them all, because
        it cannot tell which token ended it: a limit that docs/continuation.md names."""
        name = "output_tokens" if self.kinds else "completion_tokens"
        extra = self.usage[name] - expected.usage[name]
        if 0 < extra < EVENT_TOKENS_MAX:
            print(f"  {extra} tokens after the stop string, in its event, are counted", flush=True)
            self.usage[name] -= extra
            self.ids = self.ids[: len(expected.ids)]
            if "total_tokens" in self.usage:
                self.usage["total_tokens"] -= extra

    def counts(self):
        """The tokens of the prompt, in every count that the usage has, and of the answer."""
        if "input_tokens" in self.usage:
            prompt = sum(count for name, count in self.usage.items() if name != "output_tokens")
            return prompt, self.usage["output_tokens"]
        return self.usage["prompt_tokens"], self.usage["completion_tokens"], self.usage["total_tokens"]


def unbroken(server, route, asked):
    answer = Answer()
    for payload in events(post(server.url + route, asked)):
        answer.take(payload)
    assert answer.is_whole(), f"{server.url} gave {answer.failure or 'half an answer'} without Maitre and without a break"
    return answer


def page():
    """The router's metrics; empty while it does not answer."""
    try:
        return get(ADMIN, "/metrics")
    except OSError:
        return ""


def resumed():
    return metric(page(), 'maitre_continuations_total{outcome="resumed"}')


# The result of a round whose answer was complete before the kill.
LATE = "too late, once more"


def ready(servers):
    """The servers that are warm, and to which the router sends requests that it could continue."""
    seen = page().splitlines()

    def is_known(url):
        mine = [it for it in seen if f'worker="{url}"' in it]
        serves = any(re.search(r'state="(?:ready|warming)".*} 1$', it) for it in mine)
        return serves and any(it.startswith("maitre_worker_engine_blocks{") for it in mine)

    return [it for it in servers if it.is_warm and is_known(it.url)]


def body(rng, model, route, special):
    text = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(30, 200)))
    prompt = {"prompt": text} if route == COMPLETIONS else {"messages": [{"role": "user", "content": text}]}
    common = {"model": model, "max_tokens": TOKENS, "stream": True, "temperature": 0.9 if special == "sampled" else 0}
    if route == MESSAGES:
        # This route cannot ignore the end of an answer; a random model hardly ever ends one.
        return common | prompt | {"system": "Be brief."}
    return common | prompt | {"ignore_eos": True, "return_token_ids": True, "stream_options": {"include_usage": True}}


def stop_string(expected, kill_after):
    """A text that the engine is generating when the client has received this many tokens."""
    start = expected.text_at[kill_after + STOP_TOKENS // 2]
    found = expected.text[start : expected.text_at[kill_after + STOP_TOKENS * 3 // 2]]
    assert expected.text.find(found) == start, f"{found!r} comes twice"
    return found


def one_round(rng, model, servers, kind):
    """One answer whose server is killed in the middle. Returns that server, and what was wrong, if anything."""
    (route, special), reference = kind, rng.choice(ready(servers))
    asked, kill_after = body(rng, model, route, special), rng.randrange(3, TOKENS // 2)
    expected = unbroken(reference, route, asked)
    if special == "stop":
        asked["stop_sequences" if route == MESSAGES else "stop"] = [stop_string(expected, kill_after)]
        expected = unbroken(reference, route, asked)
    response, went_on = post(f"http://127.0.0.1:{PORT}{route}", asked), resumed()
    victim = next(it for it in servers if it.url == response.headers["x-maitre-worker"])
    if response.headers["x-maitre-continue"] != "on":
        return None, f"not covered: {response.headers['x-maitre-continue']}"
    answer, killed = Answer(), None
    for payload in events(response):
        answer.take(payload)
        if not killed and len(answer.text_at) >= kill_after:
            killed = victim
            victim.kill()
    wrong = difference(answer, expected, special)
    if not wrong and resumed() == went_on:
        wrong = LATE
    return killed, wrong


def difference(answer, expected, special):
    """What is wrong with an answer, if anything."""
    if not answer.is_whole():
        return f"not whole: {len(answer.ids)} tokens, {answer.failure}"
    if special == "stop":
        answer.forget_extra(expected)
    if answer.counts() != expected.counts():
        return f"usage {answer.usage}, not {expected.usage}"
    if special == "sampled":
        return None if len(answer.ids) == TOKENS else f"{len(answer.ids)} tokens"
    for name in ("ids", "text", "finish"):
        mine, theirs = getattr(answer, name), getattr(expected, name)
        if mine != theirs:
            at = next((i for i, pair in enumerate(zip(mine, theirs)) if pair[0] != pair[1]), min(len(mine), len(theirs)))
            return f"{name} differ at {at}: {mine[at:][:8]!r}, not {theirs[at:][:8]!r}"
    return None


def main(maitre, model, kills, *rest):
    servers = [Server(url, command, model) for url, command in zip(rest[::2], rest[1::2])]
    if len(servers) < 2:
        raise SystemExit("name two servers or more, each by URL and command")
    # Stop the servers in this case too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    rng, router, kills = random.Random(time.time_ns()), None, int(kills)
    right, bad, late = 0, 0, 0
    serve = [maitre, "serve", "--continue", "on", "--strategy", "round-robin", "--listen", f"127.0.0.1:{PORT}", "--admin", f"127.0.0.1:{ADMIN}"]
    try:
        for server in servers:
            server.start()
        until(lambda: all(it.is_warm for it in servers), START_SECONDS, "the servers to start")
        router = subprocess.Popen(serve + [part for it in servers for part in ("--worker", it.url)])
        while right + bad < kills and late <= LATE_MAX:
            until(lambda: len(ready(servers)) >= 2, START_SECONDS, "two servers to be ready in the router")
            kind, began = KINDS[(right + bad) % len(KINDS)], time.strftime("%H:%M:%S")
            killed, wrong = one_round(rng, model, servers, kind)
            right, bad, late = right + (not wrong), bad + (wrong not in (None, LATE)), late + (wrong == LATE)
            print(f"{began} kill {right + bad}: {killed.url if killed else 'none'}, {' '.join(kind)}: {wrong or 'the answer is whole'}", flush=True)
            if killed:
                killed.start()
        print(f"{right} of {kills} answers were whole, greedy ones token for token; {late} more kills came too late")
        return 0 if right == kills else 1
    finally:
        stop(router, servers)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
