"""Real vLLM servers that a check starts, kills and starts again."""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import threading
import time
import urllib.parse
import urllib.request

from local import until

START_SECONDS = 600
WORDS = "amber basil cedar dune ember fjord grove heath inlet juniper kelp lagoon moss".split()


def group_at(port):
    """The process group that listens at a port of this machine; None if none does."""
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


def groups_below(pid):
    """The process groups of a process and its descendants: a server that is still starting does not listen yet."""
    try:
        group = os.getpgid(pid)
        threads = list(pathlib.Path(f"/proc/{pid}/task").iterdir())
        below = [int(it) for thread in threads for it in (thread / "children").read_text().split()]
    except OSError:
        return set()
    return {group}.union(*[groups_below(it) for it in below])


def is_alive(group):
    try:
        os.killpg(group, 0)
        return True
    except ProcessLookupError:
        return False


class Server:
    """A vLLM server, started by a command and killed with all its processes."""

    def __init__(self, url, command, model):
        self.url, self.command, self.model, self.child = url, command, model, None
        self.port = urllib.parse.urlsplit(url).port
        self.is_warm, self.group = False, None

    def start(self):
        # A separate session, so that its process group is not ours.
        self.child = subprocess.Popen(self.command, shell=True, start_new_session=True)
        threading.Thread(target=self.warm_up, args=(self.child,), daemon=True).start()

    def warm_up(self, child):
        """Asks a new server for a token: its first answer took up to 37 s on a busy machine."""
        end = time.monotonic() + START_SECONDS
        while child is self.child and time.monotonic() < end:
            try:
                post(self.url + "/v1/completions", {"model": self.model, "prompt": "warm", "max_tokens": 1}).read()
                # Looked up in advance, so that the kill takes no time.
                self.group = group_at(self.port)
                self.is_warm = child is self.child
                return
            except OSError:
                time.sleep(0.5)

    def kill(self):
        """Kills the group that listens and the processes of the command. Returns when all have ended."""
        self.is_warm = False
        groups = {self.group or group_at(self.port), *groups_below(self.child.pid)} - {None, os.getpgrp()}
        self.group = None
        for group in groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.child.wait()
        until(lambda: group_at(self.port) is None and not any(is_alive(it) for it in groups), 60, f"the server at {self.url} to be gone")


class Checks:
    """Prints each check, and counts those that failed."""

    def __init__(self):
        self.rng, self.bad = random.Random(time.time_ns()), 0

    def judge(self, what, is_right, told):
        self.bad += not is_right
        print(f"{time.strftime('%H:%M:%S')} {'ok   ' if is_right else 'WRONG'} {what}: {told}", flush=True)


def stop(router, servers):
    """Ends the router and the servers that were started."""
    if router:
        router.kill()
        router.wait()
    for server in servers:
        if server.child:
            server.kill()


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    return urllib.request.urlopen(request, timeout=600)
