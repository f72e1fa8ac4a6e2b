"""guidellm and aiperf, unchanged, against the router: each runs to its end, and no request fails.

Run by scripts/clients, which installs them and names their programs in GUIDELLM and AIPERF and the binary in MAITRE.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from processes import MODEL, Setup, main

REQUESTS = 40
# They import for half a minute before they send anything.
PATIENCE_S = 600


def setUpModule():
    global setup, folder
    setup = Setup()
    folder = tempfile.TemporaryDirectory(prefix="maitre-clients-")
    unittest.addModuleCleanup(folder.cleanup)
    subprocess.run([sys.executable, HERE / "tokenizer.py", f"{folder.name}/tokenizer"], check=True)


class Benchmarks(unittest.TestCase):
    def run_it(self, *command):
        command = [str(part) for part in command]
        # aiperf takes any value for a wish to find the tokenizer in a cache.
        unset = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment)
        self.assertEqual(done.returncode, 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
        setup.until_nothing_is_open()

    def test_guidellm(self):
        report = f"{folder.name}/guidellm.json"
        self.run_it(
            *(os.environ["GUIDELLM"], "run", "--disable-progress"),
            *("--backend", f"kind=openai_http,target={setup.url},model={MODEL}"),
            *("--profile", "kind=concurrent,streams=4"),
            *("--constraint", f"kind=max_requests,count={REQUESTS}"),
            *("--tokenizer", f"kind=hf_auto,model={folder.name}/tokenizer"),
            *("--data", "kind=synthetic_text,prompt_tokens=200,output_tokens=16"),
            *("--output", f"kind=json,path={report}"),
        )
        [benchmark] = json.loads(pathlib.Path(report).read_text())["benchmarks"]
        totals = benchmark["metrics"]["request_totals"]
        self.assertEqual((totals["successful"], totals["errored"]), (REQUESTS, 0), totals)

    def test_aiperf(self):
        self.run_it(
            *(os.environ["AIPERF"], "profile", "--ui", "none", "--artifact-dir", f"{folder.name}/aiperf"),
            *("--model", MODEL, "--url", setup.url, "--endpoint-type", "chat", "--streaming"),
            *("--concurrency", 4, "--request-count", REQUESTS, "--tokenizer", f"{folder.name}/tokenizer"),
            *("--synthetic-input-tokens-mean", 200, "--output-tokens-mean", 16, "--use-server-token-count"),
        )
        report = json.loads(pathlib.Path(f"{folder.name}/aiperf/profile_export_aiperf.json").read_text())
        self.assertEqual(report["request_count"]["avg"], REQUESTS)
        self.assertFalse(report.get("error_request_count"), report.get("error_summary"))


if __name__ == "__main__":
    main()
