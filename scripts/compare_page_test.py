"""Tests of scripts/compare's pure parts: the trace, what programs print, and the page."""

import json
import unittest

import compare_page


def row(**changes):
    whole = {"requests": 100, "failed": 0, "refused": 0, "hit_ratio": 0.5, "ttft_mean_s": 0.1, "ttft_p50_s": 0.1, "ttft_p99_s": 0.4, "e2e_mean_s": 0.3,
             "e2e_p99_s": 0.9, "sent": 100, "unfinished": 0, "late": 0, "errors": {}, "cpu_us": 100, "peak_mb": 20, "machine_busy": 0.2,
             "gauges": 0, "command": "router --flag", "idle_after_s": 0.1}
    return whole | changes


def results(rows, faults=None):
    rows = {compare_page.OURS: row()} | rows
    faults = faults or {name: dict(rows) for name in compare_page.FAULT_COLUMNS}
    it = {"trace": "groups:qps=1", "flags": "--api chat", "rows": rows}
    return {"workloads": {"groups": it}, "faults": faults, "fault_load": it, "date": "2026-01-02", "cores": 2, "note": None, "memory_gb": 8.0,
            "kernel": "6.1", "seconds": 900, "prepare_seconds": 200, "versions": {"nginx": "1.2"}, "engines": "maitre engine", "engine_count": 8,
            "commands": {"nginx": "nginx -c x"}, "nginx_conf": "http {}"}


class Page(unittest.TestCase):
    def test_a_router_that_is_ahead_is_named_with_both_values(self):
        page = results({"nginx least_conn": row(cpu_us=40, hit_ratio=0.1)})
        self.assertIn("groups, CPU per request: nginx least_conn 40 µs, maitre 100 µs", compare_page.others_ahead(page))
        self.assertFalse([it for it in compare_page.others_ahead(page) if "hit ratio" in it])

    def test_a_difference_within_the_margin_is_no_win(self):
        self.assertEqual(compare_page.others_ahead(results({"smg x": row(cpu_us=99)})), ["Nowhere in this run."])

    def test_a_router_that_did_not_run_is_on_the_page_with_its_message(self):
        page = compare_page.document(results({"smg x": {"broken": "Broken: smg x is not ready: <no port>"}}))
        self.assertIn("| smg x | did not run |", compare_page.markdown(page))
        self.assertIn("groups, smg x: did not run: Broken: smg x is not ready: &lt;no port&gt;", compare_page.html(page))

    def test_a_busy_machine_and_a_late_client_are_warned_of(self):
        found = list(compare_page.warnings(results({"smg x": row(machine_busy=0.93, late=5)})))
        self.assertIn("in 1 of 2 runs the machine was more than 80% busy, at worst 93% (groups, smg x)", found[0])
        self.assertIn("at worst 5% (groups, smg x)", found[1])
        self.assertEqual(list(compare_page.warnings(results({}))), [])

    def test_the_best_of_a_column_is_bold_and_equals_are_not(self):
        text = compare_page.markdown([compare_page.table({"a": row(hit_ratio=0.9), "b": row()}, compare_page.COLUMNS)])
        self.assertIn("| a | **0.900** | 100 ms |", text)

    def test_engines_that_work_on_for_nobody_are_never_idle(self):
        faults = {"left": {"a": row(idle_after_s=None, gauges=3), "nginx": row(gauges=None)}}
        text = compare_page.markdown([compare_page.fault_table(faults)])
        self.assertIn("| a | never | 3 |", text)
        self.assertIn("| nginx | **0.10 s** | no gauges |", text)

    def test_errors_are_quoted_by_kind(self):
        page = results({"smg x": row(errors={"connect": {"count": 2, "first": "refused"}})})
        self.assertIn("groups, smg x: 2 × connect: refused", list(compare_page.failures(page)))


class Reading(unittest.TestCase):
    def test_whole_conversations_are_kept_and_long_prompts_are_not(self):
        lines = [json.dumps({"hash_ids": ids, "input_length": length, "output_length": 90})
                 for ids, length in (([0, 21], 600), ([0, 21, 5], 1200), ([0, 22], 600), ([0, 41], 40_000), ([0], 10))]
        self.assertEqual([(it["input_length"], it["output_length"]) for it in compare_page.cut(lines)], [(600, 32), (1200, 32)])

    def test_metrics_are_read_by_their_whole_name(self):
        page = 'vllm:running{engine="0"} 2.0\nvllm:running{engine="1"} 3\nvllm:running_total 9\nplain 4\n'
        self.assertEqual((compare_page.values(page, "vllm:running"), compare_page.values(page, "plain")), ([2.0, 3.0], [4.0]))

    def test_waiting_for_disks_is_not_busy(self):
        self.assertAlmostEqual(compare_page.busy([0] * 8, [20, 0, 5, 50, 25, 0, 0, 0]), 0.25)

    def test_a_result_of_bench_keeps_its_errors(self):
        told = {"rows": [{key: 1 for key in compare_page.ROW}], "errors": {"status 502": {"count": 1, "first": "x"}}, "sent": 3, "unfinished": 0,
                "late": {"requests": 1}}
        self.assertEqual(compare_page.bench_row(told)["errors"], {"status 502": {"count": 1, "first": "x"}})


if __name__ == "__main__":
    unittest.main()
