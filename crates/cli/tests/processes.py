"""Engines and a router in front of them, as processes on loopback, for the tests of client libraries.

The binary is the one named by the environment variable MAITRE. Everything ends with the test run.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
import unittest
import urllib.request

MODEL = "maitre-sim"

# Nothing here may take longer.
PATIENCE_S = 60


class Program:
    """A running `maitre`, or another program, and what it says."""

    def __init__(self, *args, program=None):
        command = [program or os.environ["MAITRE"], *args]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        self.lines = []
        self.said = threading.Condition()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()
        unittest.addModuleCleanup(self._end)

    def _read(self):
        for line in self.process.stderr:
            with self.said:
                self.lines.append(re.sub(r"\x1b\[[0-9;]*m", "", line))
                self.said.notify_all()

    def _end(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stderr.close()

    def until_says(self, pattern):
        """The first group of the first line that has the pattern."""

        def find():
            return next((it for it in (re.search(pattern, line) for line in self.lines) if it), None)

        with self.said:
            found = self.said.wait_for(find, timeout=PATIENCE_S)
        if not found:
            raise AssertionError(f"never said {pattern!r}:\n{''.join(self.lines)}")
        return found.group(1)


class Setup:
    """A router in front of some engines, all ready."""

    def __init__(self, *flags, engines=2, command="serve", listen="127.0.0.1:0", speedup=4):
        # Fast enough for tests, slow enough that twenty streams overlap.
        engine = ("engine", "--listen", "127.0.0.1:0", "--speedup", str(speedup))
        self.hosts = [Program(*engine) for _ in range(engines)]
        self.engines = [it.until_says(r"engine 0: (\S+)") for it in self.hosts]
        workers = [part for url in self.engines for part in ("--worker", url)]
        ports = ("--listen", listen, "--admin", "127.0.0.1:0")
        strategy = () if "--strategy" in flags else ("--strategy", "round-robin")
        self.flags = (command, *ports, *strategy, *workers, *flags)
        self.start()

    def start(self):
        """Starts the router, or another one like it after it has ended."""
        engines = len(self.engines)
        self.router = Program(*self.flags)
        self.url = "http://" + self.router.until_says(r"serving.* listen=(\S+)")
        self.admin = "http://" + self.router.until_says(r"serving.* admin=(\S+)")
        self.until_metric("maitre_worker_engine_blocks", lambda values: len(values) == engines)

    def fault(self, case, **fault):
        """Every engine does this wrong, until the test is over."""
        for url in self.engines:
            ask("POST", url + "/sim/fault", fault)
            case.addCleanup(ask, "DELETE", url + "/sim/fault")

    def until_metric(self, name, wanted):
        """Waits until the values of all lines of a metric are as wanted."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            page = ask("GET", self.admin + "/metrics")
            values = [float(it) for it in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE)]
            if wanted(values):
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"{name} is still {values}:\n{page}")
            time.sleep(0.02)

    def until_nothing_is_open(self):
        self.until_metric("maitre_requests_in_flight", lambda values: values == [0])


def ask(method, url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return answer.read().decode()


def main():
    """Runs the tests of the calling module; sums up in the words of `cargo test`, so that both read alike."""
    result = unittest.main(verbosity=2, exit=False).result
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    word = "ok" if result.wasSuccessful() else "FAILED"
    passed, ignored = result.testsRun - failed - len(result.skipped), len(result.skipped)
    print(f"test result: {word}. {passed} passed; {failed} failed; {ignored} ignored", flush=True)
    sys.exit(not (result.wasSuccessful() and passed))
