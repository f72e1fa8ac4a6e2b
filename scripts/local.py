"""What the scripts share: free ports of this machine, programs that run for a while, and what they say of themselves."""

import contextlib
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request


def free_ports(count):
    """The first of this many ports in a row that are free now."""
    # At random, because several may look at the same time.
    for first in (random.randrange(20_000, 60_000) for _ in range(1_000)):
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + count):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    sys.exit("no free ports in a row")


def get(port, path, timeout=10):
    """What it answers; an OSError if that is no success."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout) as answer:
        return answer.read().decode()


def metric(page, name):
    """The sum of all series whose line on a Prometheus page begins with this."""
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(name))


# What must be zero once no request is in flight.
GAUGES = ("maitre_requests_in_flight", "maitre_queue_requests", "maitre_worker_requests", "maitre_worker_promised_prefill_tokens",
          "maitre_worker_promised_decode_tokens")


def gauges(page):
    """Their values, by name."""
    return {name: metric(page, name + "{") + metric(page, name + " ") for name in GAUGES}


def until(is_so, seconds, what):
    """Waits until a condition holds. A program that does not answer yet is no error."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if is_so():
                return
        time.sleep(0.05)
    sys.exit(f"waited {seconds} s for {what}")


def until_up(port, path="/health"):
    until(lambda: get(port, path) is not None, 20, f"port {port} to answer {path}")


def has_met(admin, engines):
    """Whether the router has met all its engines: it asks a new one for its block count last."""
    return get(admin, "/metrics").count("maitre_worker_engine_blocks{") == engines


@contextlib.contextmanager
def running(log, env=None):
    """Yields a function that starts a command; all that it started end with the block."""
    started = []

    def start(*command):
        started.append(subprocess.Popen(command, stdout=log, stderr=log, env=env))
        return started[-1]

    try:
        yield start
    finally:
        for it in started:
            it.terminate()
        for it in started:
            try:
                it.wait(5)
            except subprocess.TimeoutExpired:
                it.kill()
                it.wait()


@contextlib.contextmanager
def serving(maitre, engine_flags, count, serve_flags=(), per_process=1):
    """So many engines, by processes of one thread, and a router before them. Yields the ports of the first engine and of the router."""
    first = free_ports(count + 2)
    engines, listen, admin = range(first, first + count), first + count, first + count + 1
    with tempfile.TemporaryFile("w+") as log, running(log) as start:
        for port in engines[::per_process]:
            start(maitre, "engine", "--listen", f"127.0.0.1:{port}", "--count", str(per_process), *engine_flags)
        for port in engines:
            until_up(port)
        workers = [word for port in engines for word in ("--worker", f"http://127.0.0.1:{port}")]
        start(maitre, "serve", "--listen", f"127.0.0.1:{listen}", "--admin", f"127.0.0.1:{admin}", *workers, *serve_flags)
        until_up(listen, "/v1/models")
        yield first, listen
