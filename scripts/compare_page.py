"""The pure parts of scripts/compare: cuts the trace, reads what programs print, and writes the page from the results.

The page is a list of blocks, written twice: as Markdown for the book and as one HTML file that loads nothing. Every sentence about which router is
ahead is computed from the numbers, so that a new run cannot leave an old claim behind.
"""

import html as escape
import json
import re

# The conversation trace is an hour long.
TRACE_SECONDS = 3540
# Of this many conversations one is kept, with all its turns: the load then suits the fleet, and turns still share prefixes.
KEPT_OF = 20
# Longer prompts are a few percent of the requests and half of the work; longer answers only cost events.
PROMPT_TOKENS_MAX, ANSWER_TOKENS_MAX = 30_000, 32
BUSY_MAX = 0.8
# If more than this share of the requests was sent late, the load generator limited the measurement.
LATE_MAX = 0.02
# A smaller difference is not a win.
MARGIN = 0.02
OURS = "maitre least-delay"
ROW = ("requests", "failed", "refused", "hit_ratio", "ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "e2e_mean_s", "e2e_p99_s")


# ---- reading ---------------------------------------------------------------------------------------------------------


def cut(lines):
    """One in KEPT_OF conversations. All prompts share their first block; the second tells conversations apart."""
    kept = []
    for line in lines:
        request = json.loads(line)
        conversation = request["hash_ids"][1] if len(request["hash_ids"]) > 1 else 0
        if conversation % KEPT_OF == 1 and request["input_length"] <= PROMPT_TOKENS_MAX:
            kept.append(request | {"output_length": min(request["output_length"], ANSWER_TOKENS_MAX)})
    return kept


def values(metrics, name):
    """The values of all lines of a metric on a Prometheus page."""
    return [float(it) for it in re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", metrics, re.MULTILINE)]


def busy(before, after):
    """The busy share of the machine between two first lines of /proc/stat: user, nice, system, idle, iowait, ..."""
    spent = [end - begin for begin, end in zip(before, after)]
    idle = spent[3] + spent[4]
    return 1 - idle / max(1, sum(spent))


def bench_row(told):
    """The fields of `maitre bench`'s JSON that are kept."""
    errors = {kind: {"count": it["count"], "first": it["first"]} for kind, it in told["errors"].items()}
    row = {key: told["rows"][0][key] for key in ROW}
    return row | {"sent": told["sent"], "unfinished": told["unfinished"], "late": told["late"]["requests"], "errors": errors}


def plain(text):
    """The text without terminal colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text).strip()


def commands(results):
    """The command line of each router, once."""
    groups = [it["rows"] for it in results["workloads"].values()] + list(results["faults"].values())
    return {name: row["command"] for rows in groups for name, row in rows.items() if "command" in row}


# ---- judging ---------------------------------------------------------------------------------------------------------

# The columns of a workload: title, how to read a row, how to write a value, and whether less is better.
def milliseconds(seconds):
    return f"{seconds * 1e3:,.0f} ms"


def lost(row):
    return row["failed"] + row["refused"] + row["unfinished"]


COLUMNS = [
    ("hit ratio", lambda row: row["hit_ratio"], lambda it: f"{it:.3f}", False),
    ("TTFT mean", lambda row: row["ttft_mean_s"], milliseconds, True),
    ("TTFT p50", lambda row: row["ttft_p50_s"], milliseconds, True),
    ("TTFT p99", lambda row: row["ttft_p99_s"], milliseconds, True),
    ("E2E mean", lambda row: row["e2e_mean_s"], milliseconds, True),
    ("errors", lost, lambda it: f"{it:,}", True),
    ("CPU per request", lambda row: row["cpu_us"], lambda it: f"{it:,.0f} µs", True),
    ("peak memory", lambda row: row["peak_mb"], lambda it: f"{it:,.0f} MB", True),
]
FAULT_COLUMNS = {
    "killed": [("engine killed: failed", lost, str, True), ("engine killed: E2E p99", lambda row: row["e2e_p99_s"], milliseconds, True)],
    "stopped": [("engine stopped: failed", lost, str, True), ("engine stopped: E2E p99", lambda row: row["e2e_p99_s"], milliseconds, True)],
    "left": [("clients left: engines idle after", lambda row: 1e9 if row["idle_after_s"] is None else row["idle_after_s"],
              lambda it: "never" if it == 1e9 else f"{it:.2f} s", True)],
}


def measured(rows):
    return {name: row for name, row in rows.items() if "broken" not in row}


def is_better(one, other, is_less_better):
    """Whether it is better by more than MARGIN."""
    less, more = (one, other) if is_less_better else (other, one)
    return less < more and more - less > MARGIN * abs(other)


def wins(rows, columns):
    """Columns in which another router is ahead of Maitre's default: (column, router, its value, ours)."""
    rows = measured(rows)
    if OURS not in rows:
        return
    for title, read, write, is_less_better in columns:
        ours = read(rows[OURS])
        others = {name: read(row) for name, row in rows.items() if not name.startswith("maitre")}
        if not others:
            continue
        best = (min if is_less_better else max)(others, key=others.get)
        if is_better(others[best], ours, is_less_better):
            yield title, best, write(others[best]), write(ours)


def warnings(results):
    """Why the run may be a bad measurement, with the worst case of each reason."""
    runs = {f"{workload}, {name}": row for workload, it in results["workloads"].items() for name, row in measured(it["rows"]).items()}
    crowded = {name: row["machine_busy"] for name, row in runs.items() if row["machine_busy"] > BUSY_MAX}
    late = {name: row["late"] / row["sent"] for name, row in runs.items() if row["late"] > LATE_MAX * row["sent"]}
    if crowded:
        worst = max(crowded, key=crowded.get)
        yield (f"Warning: in {len(crowded)} of {len(runs)} runs the machine was more than {BUSY_MAX:.0%} busy, at worst {crowded[worst]:.0%} "
               f"({worst}). Times of these runs are not the router's alone.")
    if late:
        worst = max(late, key=late.get)
        yield (f"Warning: in {len(late)} of {len(runs)} runs more than {LATE_MAX:.0%} of the requests left more than 10 ms late, at worst "
               f"{late[worst]:.0%} ({worst}).")


def failures(results):
    """Every first message of an error, and every router that did not run."""
    groups = {name: it["rows"] for name, it in results["workloads"].items()} | {f"engine or clients {k}": v for k, v in results["faults"].items()}
    for group, rows in groups.items():
        for name, row in rows.items():
            if "broken" in row:
                yield f"{group}, {name}: did not run: {row['broken']}"
            for kind, error in row.get("errors", {}).items():
                yield f"{group}, {name}: {error['count']} × {kind}: {error['first']}"


# ---- writing ---------------------------------------------------------------------------------------------------------


def table(rows, columns):
    """A block; the best value of each column is marked."""
    best = {}
    for title, read, _, is_less_better in columns:
        found = [read(row) for row in measured(rows).values()]
        # If all are alike, none is best.
        best[title] = (min if is_less_better else max)(found) if len(set(found)) > 1 else None
    lines = []
    for name, row in rows.items():
        if "broken" in row:
            lines.append([name, *["did not run"] * len(columns)])
            continue
        lines.append([name, *((write(read(row)), read(row) == best[title]) for title, read, write, _ in columns)])
    return "table", ["router", *(title for title, *_ in columns)], lines


def fault_table(faults):
    """All faults side by side, and the requests that routers still counted as in flight afterwards."""
    titles, lines = ["router"], {name: [name] for name in next(iter(faults.values()))}
    for fault, rows in faults.items():
        _, head, body = table(rows, FAULT_COLUMNS[fault])
        titles += head[1:]
        for line in body:
            lines[line[0]] += line[1:]
    titles.append("left in the router's gauges")
    for name, line in lines.items():
        left = [rows[name].get("gauges") for rows in faults.values() if "broken" not in rows[name]]
        line.append("no gauges" if left and left[-1] is None else ", ".join(f"{it:g}" for it in left) or "did not run")
    return "table", titles, list(lines.values())


INTRODUCTION = """Routers before the same simulated engines, on the same traffic. `scripts/compare` installs them, measures them, and writes this page. One
router runs at a time, before engines that have just started. *Hit ratio*: the share of prompt tokens that the engine had in its cache. *TTFT*: time to the
first token. *E2E*: time to the end of the answer. *CPU* and *memory*: of the router's processes alone."""

WORKLOADS = {
    "conversation": "One in 20 conversations of a production chat service, an hour in 15 seconds (`traces/README.md`), prompts up to 30,000 tokens, "
                    "answers cut to 32. Sent to `/v1/completions`, where all of these routers read the prompt.",
    "groups": "150 groups of five prompts that share 6,000 tokens each, such as tenants' system prompts. Sent to `/v1/completions`.",
    "agents": "Agents that add a tool's output of about 1,000 tokens to their context with every step. Sent to `/v1/chat/completions`, with the session in "
              "`x-session-id`.",
}
FAULTS = """The load is 25 streams a second with answers of 200 tokens; prompts share their first 1,000 tokens in 40 groups. *Killed*: one engine of eight
dies with `kill -9` after three seconds and starts again three seconds later. The streams it had begun are lost unless another engine continues them
(`--continue on`, which is off in Maitre by default), and how many there were is partly chance. *Stopped*: one engine stands still for three seconds (SIGSTOP) and keeps its connections
open. *Left*: 32 clients hang up, half of them before the first token; their answers would take twenty seconds. The gauges are the router's own count
of requests in flight (for Maitre also of promised tokens) after each of the three; zero is right."""
SETTINGS = """Every router runs with its defaults. For sglang-router, SMG and vllm-router these are `cache_aware` with its thresholds, retries, a circuit
breaker, and a health check every 60 s. SMG's guide says to start with these thresholds; for production it suggests a health check every 30 s, or every 10 s
where failures must be found fast. Runs with faults take 14 s, too short for either to matter, so they say nothing about longer failures. Each router also
ran with a plain policy. vllm-router also ran with `consistent_hash`, its policy for sessions: `cache_aware` of version 0.1.16 finds about as many cached
tokens as `round_robin` when prompts are chats. The engines publish KV events; Maitre reads them, and also ran without. SMG reads KV events of gRPC workers
only, and these engines speak HTTP; the flags of the other two say nothing about events. nginx knows nothing of caches. Maitre is the `release` build, which
takes more CPU than the `dist` build that packages ship."""
CHOICES = """We wrote this comparison, and we chose after we had seen trial runs. Two workloads go to `/v1/completions`, because vllm-router found
nothing in chats. There are eight engines at their real speed instead of four at twice theirs, because SMG reads loads every ten seconds and a faster clock
would make them older. The load under faults got prompts that share a beginning, because without them load balancing alone avoided the stopped engine. A column of
answers after an engine's return was removed: it was zero or one for every router. Each cell is one run, so small differences, and all counts of failed streams,
are within chance."""


def notes(results):
    found = [f"{results['note']}"] if results.get("note") else []
    return found + list(warnings(results))


def others_ahead(results):
    lines = []
    for name, it in results["workloads"].items():
        lines += [f"{name}, {title}: {router} {theirs}, maitre {ours}" for title, router, theirs, ours in wins(it["rows"], COLUMNS)]
    for fault, rows in results["faults"].items():
        lines += [f"{title}: {router} {theirs}, maitre {ours}" for title, router, theirs, ours in wins(rows, FAULT_COLUMNS[fault])]
    measured_ours = [OURS in measured(it["rows"]) for it in results["workloads"].values()]
    if not all(measured_ours):
        lines.append("Maitre itself was not measured on every workload: see the tables.")
    return lines or ["Nowhere in this run."]


def document(results):
    minutes, prepared = results["seconds"] / 60, results["prepare_seconds"] / 60
    page = [
        ("h1", "Routers compared"), ("p", INTRODUCTION),
        ("p", f"{results['date']}; {results['cores']} cores, {results['memory_gb']:.0f} GB of memory, Linux {results['kernel']}; "
              f"{minutes:.0f} minutes, of which {prepared:.0f} to build and install. The best value of each column is bold."),
        ("list", notes(results)),
    ]
    for name, it in results["workloads"].items():
        page += [("h2", name.capitalize()), ("p", WORKLOADS[name]), table(it["rows"], COLUMNS)]
    page += [
        ("h2", "Faults"), ("p", FAULTS), fault_table(results["faults"]),
        ("h2", "Where others are ahead"), ("p", f"Of Maitre with its defaults, by more than {MARGIN:.0%}; the best of the others in each column."),
        ("list", others_ahead(results)),
        ("h2", "What failed"), ("p", "The first message of each kind, as the client got it."), ("list", list(failures(results)) or ["Nothing."]),
        ("h2", "Settings"), ("p", SETTINGS), ("p", CHOICES),
        ("table", ["router", "version"], [[name, version] for name, version in results["versions"].items()]),
        ("p", f"Engines: {results['engine_count']} of"), ("code", f"{results['engines']} --events PORT --events-replay PORT"),
        ("p", "Client, with the trace and the flags of the workload:"),
        ("code", "\n".join(f"maitre bench --url http://127.0.0.1:PORT --trace '{it['trace']}' {it['flags']} --json"
                           for it in [*results["workloads"].values(), results["fault_load"]])),
        ("p", "Routers:"), ("code", "\n".join(results["commands"].values())),
        ("p", "The configuration of nginx:"), ("code", results["nginx_conf"].strip()),
        ("h2", "Run it"), ("code", "scripts/compare"),
        ("p", "It needs a Rust toolchain, Python and apt, and takes under twenty minutes on two cores. The raw data of this page are in "
              "`bench/compare/results.json`."),
    ]
    return page


def markdown(page):
    lines = []
    for kind, *content in page:
        match kind:
            case "h1" | "h2":
                lines.append("#" * int(kind[1]) + " " + content[0])
            case "p":
                lines.append(content[0])
            case "list" if content[0]:
                lines.append("\n".join(f"- {' '.join(it.split())}" for it in content[0]))
            case "code":
                lines.append(f"```\n{content[0]}\n```")
            case "table":
                rows = [[f"**{cell[0]}**" if cell[1] else cell[0] for cell in map(as_cell, row)] for row in content[1]]
                head = ["| " + " | ".join(content[0]) + " |", "|---" * len(content[0]) + "|"]
                lines.append("\n".join(head + ["| " + " | ".join(row) + " |" for row in rows]))
    return "\n\n".join(lines) + "\n"


def as_cell(cell):
    """A text, and whether it is the best of its column."""
    return cell if isinstance(cell, tuple) else (cell, False)


STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}
table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}
th,td{padding:.3rem .7rem;border-bottom:1px solid #d8dee4;text-align:right;white-space:nowrap}
th{white-space:normal;vertical-align:bottom}th:first-child,td:first-child{text-align:left}
pre{background:#f6f8fa;padding:.8rem;overflow-x:auto}
@media(prefers-color-scheme:dark){body{color:#d5dae0;background:#14171b}th,td{border-color:#333a42}pre{background:#1d2228}}"""


def inline(text):
    """Markdown's code and emphasis within a paragraph."""
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape.escape(text, quote=False))
    return re.sub(r"\*([^*]+)\*", r"<em>\1</em>", text)


def html(page):
    lines = []
    for kind, *content in page:
        match kind:
            case "h1" | "h2":
                lines.append(f"<{kind}>{inline(content[0])}</{kind}>")
            case "p":
                lines.append(f"<p>{inline(content[0])}</p>")
            case "list" if content[0]:
                lines.append("<ul>" + "".join(f"<li>{escape.escape(it)}</li>" for it in content[0]) + "</ul>")
            case "code":
                lines.append(f"<pre>{escape.escape(content[0])}</pre>")
            case "table":
                head = "".join(f"<th>{escape.escape(it)}</th>" for it in content[0])
                cells = [[(escape.escape(text), is_best) for text, is_best in map(as_cell, row)] for row in content[1]]
                body = "".join("<tr>" + "".join(f"<td><b>{t}</b></td>" if b else f"<td>{t}</td>" for t, b in row) + "</tr>\n" for row in cells)
                lines.append(f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>")
    head = f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">\n<title>Routers compared</title>\n<style>{STYLE}</style></head><body>\n'
    return head + "\n".join(lines) + "\n</body></html>\n"
