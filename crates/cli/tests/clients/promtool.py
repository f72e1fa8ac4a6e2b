"""`promtool check metrics` has no complaint about any page of the router.

Run by scripts/test and scripts/clients, which name the program in PROMTOOL and the binary in MAITRE.
"""

import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
from processes import MODEL, Setup, ask, main

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


class Metrics(unittest.TestCase):
    def check(self, page):
        done = subprocess.run([os.environ["PROMTOOL"], "check", "metrics"], input=page, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""), page)

    def test_the_page_of_a_router_with_traffic(self):
        setup = Setup("--shadow-strategies", "random", "--compat-paths")
        ask("POST", setup.url + "/v1/chat/completions", CHAT)
        ask("POST", setup.url + "/v1/chat/completions", CHAT | {"stream": True})
        setup.until_nothing_is_open()
        self.check(ask("GET", setup.admin + "/metrics"))
        self.check(ask("GET", setup.url + "/metrics"))

    def test_the_page_of_a_router_without_workers(self):
        self.check(ask("GET", Setup(engines=0).admin + "/metrics"))


if __name__ == "__main__":
    main()
