"""The official `openai` client for Node, unchanged, reads streams whose engine breaks in the middle.

Run by scripts/test, which installs the client, names its folder in OPENAI_NODE and the binary in MAITRE.
"""

import json
import os
import pathlib
import subprocess
import unittest

from processes import MODEL, PATIENCE_S, Setup, ask, main

PROGRAM = pathlib.Path(__file__).with_name("openai_stream.mjs")
REQUEST = {
    "model": MODEL, "messages": [{"role": "user", "content": "Is there a table for two?"}], "stream": True, "max_tokens": 40,
    "stream_options": {"include_usage": True}, "ignore_eos": True,
}


def setUpModule():
    global setup
    setup = Setup("--continue", "on", engines=3)


def answer():
    command = ["node", PROGRAM, setup.url, os.environ["OPENAI_NODE"], json.dumps(REQUEST)]
    return json.loads(subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_S).stdout)


class Continued(unittest.TestCase):
    def test_a_broken_stream_is_the_unbroken_one(self):
        whole = answer()
        self.assertEqual((whole["heads"], whole["roles"], whole["finishes"], whole["usage"][1]), (1, ["assistant"], ["length"], 40))
        for bytes in (900, 5000, 7777):
            for url in setup.engines:
                ask("POST", url + "/sim/fault", {"kind": "close_after_bytes", "bytes": bytes, "times": 1})
            self.assertEqual(answer(), whole)
            for url in setup.engines:
                ask("DELETE", url + "/sim/fault")
        setup.until_metric("maitre_continuations_total", lambda values: sum(values) >= 3)
        setup.until_nothing_is_open()


if __name__ == "__main__":
    main()
