"""Starts what examples/compose.yaml runs as local processes: the engines, a Redis, and three routers that find
each other. Left out: containers, nginx and Valkey itself.

MAITRE and REDIS name the two binaries.
"""

import contextlib
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request

import yaml

FILE = pathlib.Path(__file__).parents[2] / "examples" / "compose.yaml"

ROUTERS = ["router-1", "router-2", "router-3"]

# Timeout for every step.
PATIENCE_S = 60


def free_ports(count):
    """Consecutive ports that are free now."""
    for _ in range(100):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, OverflowError):
            sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
            sockets[0].bind(("127.0.0.1", 0))
            first = sockets[0].getsockname()[1]
            for number, it in enumerate(sockets[1:], start=1):
                it.bind(("127.0.0.1", first + number))
            return range(first, first + count)
    raise AssertionError(f"no {count} free ports in a row")


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
        return answer.read().decode()


class Compose(unittest.TestCase):
    def setUp(self):
        self.services = yaml.safe_load(FILE.read_text())["services"]
        # Each host and port of the file, and its local address. Engines take consecutive ports.
        there = ["engines:9001", "engines:9002", "valkey:6379"]
        there += [f"{name}:{port}" for name in ROUTERS for port in [8080, 8081]]
        self.here = {it: f"127.0.0.1:{port}" for it, port in zip(there, free_ports(len(there)))}

    def start(self, command, host):
        """A command of the file, with local addresses in place of its own."""
        for there, here in self.here.items():
            command = [it.replace(there, here) for it in command]
        command = [re.sub(r"0\.0\.0\.0:(\d+)", lambda it: self.here[f"{host}:{it[1]}"], it) for it in command]
        process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env={})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

    def until(self, what, look):
        """Waits until `look` returns a value; a refused connection counts as none."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                if look():
                    return
            except OSError:
                pass
            time.sleep(0.05)
        self.log.seek(0)
        self.fail(f"{what}: not within {PATIENCE_S} s. What was said:\n{self.log.read()}")

    def test_what_it_names_is_there(self):
        text = FILE.read_text()
        routers = [name for name, it in self.services.items() if "serve" in it.get("command", [])]
        self.assertEqual(routers, ROUTERS)
        for name in routers:
            self.assertEqual(self.services[name]["hostname"], name)
            self.assertIn(f"server {name}:8080;", text)
        named = re.findall(r"(?:https?|redis)://([a-z0-9-]+)", "\n".join(self.services["router-1"]["command"]))
        self.assertLessEqual(set(named), set(self.services))
        for it in self.services.values():
            for port in it.get("ports", []):
                self.assertTrue(port.startswith("127.0.0.1:"), "no key is asked for")

    def test_its_routers_hear_of_each_other_and_serve(self):
        self.log = self.enterContext(tempfile.TemporaryFile("w+"))
        maitre = os.environ["MAITRE"]
        port = self.here["valkey:6379"].rpartition(":")[2]
        redis = [os.environ["REDIS"], "--port", port, "--bind", "127.0.0.1"]
        self.start([*redis, *self.services["valkey"]["command"][1:]], "valkey")
        self.start([maitre, *self.services["engines"]["command"]], "engines")
        admins = []
        for name in ROUTERS:
            self.start([maitre, *self.services[name]["command"]], name)
            admin = int(self.here[f"{name}:8081"].rpartition(":")[2])
            self.until(f"{name} is ready", lambda: get(admin, "/readyz"))
            admins.append(admin)
        for admin in admins:
            self.until("all are heard", lambda: 'maitre_cluster_routers{state="live"} 3\n' in get(admin, "/metrics"))


if __name__ == "__main__":
    unittest.main()
