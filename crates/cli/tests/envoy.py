"""Stock Envoy in front of `maitre picker` and simulated engines: what gateways do with an endpoint picker.

Run by scripts/test, which installs Envoy and names its binary in ENVOY, and that of Maitre in MAITRE.
"""

import http.client
import http.server
import json
import os
import re
import signal
import socket
import tempfile
import threading
import time
import unittest
import urllib.parse

from processes import MODEL, PATIENCE_S, Program, Setup, ask, main

# Names that only these tests give to the gateway, which turns them into metadata.
SUBSET_HEADER = "x-test-subset"
DESTINATION = "x-gateway-destination-endpoint"


READY = 'maitre_worker_state{.*state="ready".*}'


def typed(kind, **fields):
    return {"@type": f"type.googleapis.com/envoy.extensions.{kind}", **fields}


def socket_address(endpoint):
    host, port = endpoint.rsplit(":", 1)
    return {"socket_address": {"address": host, "port_value": int(port)}}


def cluster(name, endpoints, **fields):
    hosts = [{"endpoint": {"address": socket_address(it)}} for it in endpoints]
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": hosts}]},
        **fields,
    }


def filters():
    subset = {
        "header": SUBSET_HEADER,
        "on_header_present": {
            "metadata_namespace": "envoy.lb.subset_hint",
            "key": "x-gateway-destination-endpoint-subset",
        },
        "remove": True,
    }
    ext_proc = typed(
        "filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": "picker"}},
        message_timeout="600s",
        processing_mode={
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "response_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_trailer_mode": "SEND",
        },
        metadata_options={
            "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
        },
    )
    to_metadata = typed("filters.http.header_to_metadata.v3.Config", request_rules=[subset])
    return [
        {"name": "to_metadata", "typed_config": to_metadata},
        {"name": "ext_proc", "typed_config": ext_proc},
        {"name": "envoy.filters.http.router", "typed_config": typed("filters.http.router.v3.Router")},
    ]


def pool(endpoints):
    key = {"key": "envoy.lb", "path": [{"key": DESTINATION}]}
    served = {"key": "envoy.lb", "path": [{"key": DESTINATION + "-served"}]}
    round_robin = typed("load_balancing_policies.round_robin.v3.RoundRobin")
    policy = typed(
        "load_balancing_policies.override_host.v3.OverrideHost",
        override_host_sources=[{"header": DESTINATION}, {"metadata": key}],
        selected_host_key=served,
        fallback_policy={"policies": [{"typed_extension_config": {"name": "rr", "typed_config": round_robin}}]},
    )
    policies = [{"typed_extension_config": {"name": "override_host", "typed_config": policy}}]
    return cluster("pool", endpoints, load_balancing_policy={"policies": policies})


def config(picker, endpoints):
    http2 = typed("upstreams.http.v3.HttpProtocolOptions", explicit_http_config={"http2_protocol_options": {}})
    options = {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2}
    retries = {"retry_on": "connect-failure", "num_retries": 3}
    route = {"match": {"prefix": "/"}, "route": {"cluster": "pool", "timeout": "0s", "retry_policy": retries}}
    manager = typed(
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="gateway",
        http_filters=filters(),
        route_config={"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
    )
    listener = {
        "name": "gateway",
        "address": socket_address("127.0.0.1:0"),
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    clusters = [cluster("picker", [picker], typed_extension_protocol_options=options), pool(endpoints)]
    return {
        "admin": {"address": socket_address("127.0.0.1:0")},
        "static_resources": {"listeners": [listener], "clusters": clusters},
    }


class Gateway:
    """A running Envoy that asks `picker` and knows these workers."""

    def __init__(self, picker, endpoints):
        folder = tempfile.TemporaryDirectory()
        unittest.addModuleCleanup(folder.cleanup)
        file, admin = os.path.join(folder.name, "envoy.json"), os.path.join(folder.name, "admin")
        with open(file, "w") as out:
            json.dump(config(picker, endpoints), out)
        flags = ("-c", file, "--disable-hot-restart", "--concurrency", "1", "--admin-address-path", admin)
        self.program = Program(*flags, program=os.environ["ENVOY"])
        self.program.until_says(r"(starting main dispatch loop)")
        with open(admin) as address:
            self.admin = "http://" + address.read().strip()
        listeners = json.loads(ask("GET", self.admin + "/listeners?format=json"))["listener_statuses"]
        self.port = listeners[0]["local_address"]["socket_address"]["port_value"]
        self.url = f"http://127.0.0.1:{self.port}"

    def ask(self, method, path, body=None, headers=()):
        """Status, headers and body of one response."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            client.request(method, path, body, {"content-type": "application/json", **dict(headers)})
            answer = client.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            client.close()

    def chat(self, content="Is there a table for two?", headers=(), **options):
        return self.ask("POST", "/v1/chat/completions", chat_body(content, **options), headers)


def chat_body(content, **options):
    messages = [{"role": "user", "content": content}]
    return json.dumps({"model": MODEL, "messages": messages, "max_tokens": 8, **options}).encode()


def endpoint(url):
    return urllib.parse.urlsplit(url).netloc


def picker(*flags, **options):
    setup = Setup(*flags, command="picker", **options)
    return setup, Gateway(endpoint(setup.url), [endpoint(it) for it in setup.engines])


def until_nothing_is_promised(setup):
    setup.until_nothing_is_open()
    for name in ("maitre_worker_promised_prefill_tokens", "maitre_worker_promised_decode_tokens"):
        setup.until_metric(name, lambda values: not any(values))


def metric(setup, name):
    page = ask("GET", setup.admin + "/metrics")
    return sum(float(it) for it in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE))


def setUpModule():
    global setup, gateway
    setup, gateway = picker(engines=4)


class Case(unittest.TestCase):
    def tearDown(self):
        until_nothing_is_promised(setup)


class Requests(Case):
    def test_a_get_goes_to_a_worker(self):
        status, headers, body = gateway.ask("GET", "/v1/models")
        self.assertEqual((status, json.loads(body)["data"][0]["id"]), (200, MODEL))
        self.assertIn(headers["x-maitre-worker"], setup.engines)

    def test_every_worker_gets_its_turn_and_the_response_says_which(self):
        answers = [gateway.chat() for _ in range(8)]
        self.assertEqual({it[0] for it in answers}, {200})
        self.assertEqual({it[1]["x-maitre-worker"] for it in answers}, set(setup.engines))
        self.assertEqual({it[1]["x-maitre-why"] for it in answers}, {"turn"})
        self.assertEqual(json.loads(answers[0][2])["usage"]["completion_tokens"], 8)

    def test_a_stream_comes_whole_and_is_counted(self):
        before = metric(setup, "maitre_first_token_seconds_count")
        options = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
        status, headers, body = gateway.chat(max_tokens=40, **options)
        self.assertEqual((status, headers["content-type"].split(";")[0]), (200, "text/event-stream"))
        events = [it[6:] for it in body.decode().split("\n\n") if it]
        self.assertEqual(events[-1], "[DONE]")
        self.assertEqual(json.loads(events[-2])["usage"]["completion_tokens"], 40)
        self.assertEqual(metric(setup, "maitre_first_token_seconds_count"), before + 1)

    def test_two_megabytes_pass(self):
        status, _, body = gateway.chat("word " * 400_000, max_tokens=1)
        # Longer than the model's context, which only the engine knows: so the whole body has reached it.
        self.assertEqual(status, 400, body)
        self.assertIn("context length", json.loads(body)["error"]["message"])

    def test_a_body_larger_than_the_limit_is_refused(self):
        status, _, body = gateway.chat("x" * (17 << 20))
        self.assertEqual((status, json.loads(body)["error"]["code"]), (413, "body_too_large"))

    def test_a_refusal_reaches_the_client_as_sent(self):
        status, headers, body = gateway.ask("POST", "/v1/chat/completions", b'{"model":')
        self.assertEqual((status, headers["content-type"]), (400, "application/json"))
        self.assertEqual(json.loads(body)["error"]["type"], "invalid_request_error")

    def test_an_error_of_a_worker_passes(self):
        setup.fault(self, kind="status", status=500, times=1)
        status, _, _ = gateway.chat()
        self.assertEqual(status, 500)

    def test_a_client_that_leaves_is_noticed(self):
        client = socket.create_connection(("127.0.0.1", gateway.port), timeout=PATIENCE_S)
        body = chat_body("a long story", stream=True, max_tokens=100_000, ignore_eos=True)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        self.assertTrue(client.recv(4096).startswith(b"HTTP/1.1 200"))
        client.close()
        until_nothing_is_promised(setup)
        for url in setup.engines:
            deadline = time.monotonic() + PATIENCE_S
            while "vllm:num_requests_running" not in (page := ask("GET", url + "/metrics")) or re.search(
                r"^vllm:num_requests_running.* [1-9]", page, re.MULTILINE
            ):
                self.assertLess(time.monotonic(), deadline, "the engine still works on it")
                time.sleep(0.02)


class Subset(Case):
    def test_only_the_workers_of_the_subset_are_picked(self):
        allowed = setup.engines[2]
        for hint in (endpoint(allowed), f"10.9.9.9:1, {endpoint(allowed)}"):
            for _ in range(4):
                status, headers, _ = gateway.chat(headers={SUBSET_HEADER: hint})
                self.assertEqual((status, headers["x-maitre-worker"]), (200, allowed))

    def test_a_host_alone_allows_all_its_ports(self):
        answers = [gateway.chat(headers={SUBSET_HEADER: "127.0.0.1"}) for _ in range(4)]
        self.assertEqual({it[1].get("x-maitre-worker") for it in answers}, set(setup.engines))

    def test_an_empty_subset_is_refused_as_sent(self):
        for hint in (",", "10.9.9.9:1"):
            status, headers, body = gateway.chat(headers={SUBSET_HEADER: hint})
            self.assertEqual((status, headers["retry-after"]), (503, "1"))
            self.assertEqual(headers["x-llm-d-request-dropped-reason"], "rejected-no-endpoints")
            error = json.loads(body)["error"]
            self.assertEqual((error["code"], headers["content-type"]), ("no_worker", "application/json"))


class Limits(unittest.TestCase):
    def test_a_rate_limit_is_answered_as_sent(self):
        limited, gateway = picker("--tenants", "*?rpm=2", engines=1)
        tenant = {"x-llm-d-inference-fairness-id": "team-a"}
        self.assertEqual([gateway.chat(headers=tenant)[0] for _ in range(2)], [200, 200])
        status, headers, body = gateway.chat(headers=tenant)
        self.assertEqual((status, json.loads(body)["error"]["code"]), (429, "rate_limit_exceeded"))
        self.assertGreaterEqual(int(headers["retry-after"]), 1)
        self.assertEqual(headers["x-ratelimit-limit-requests"], "2")
        self.assertEqual(headers["x-llm-d-request-dropped-reason"], "rejected-saturated")
        self.assertEqual(gateway.chat(headers={"x-llm-d-inference-fairness-id": "team-b"})[0], 200)
        until_nothing_is_promised(limited)

    def test_a_request_waits_in_the_queue_and_leaves_it_with_its_client(self):
        limited, gateway = picker("--queue-sequences-max", "1", "--probes-interval", "60s", engines=1)
        first = {"stream": True, "max_tokens": 100_000, "ignore_eos": True}
        blocker = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=PATIENCE_S)
        blocker.request("POST", "/v1/chat/completions", chat_body("a long story", **first))
        answer = blocker.getresponse()
        self.assertEqual(answer.status, 200)
        answer.read(1)
        waiting = [http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=PATIENCE_S) for _ in range(2)]
        for client in waiting:
            client.request("POST", "/v1/chat/completions", chat_body("short"))
        limited.until_metric("maitre_queue_requests", lambda values: sum(values) == 2)
        waiting[0].close()
        limited.until_metric("maitre_queue_requests", lambda values: sum(values) == 1)
        answer.close()
        blocker.close()
        answered = waiting[1].getresponse()
        self.assertEqual(answered.status, 200)
        self.assertGreater(int(answered.getheader("x-maitre-queue-ms")), 0)
        answered.read()
        waiting[1].close()
        until_nothing_is_promised(limited)


class Failures(unittest.TestCase):
    def test_a_dead_first_address_is_passed_over_and_the_promise_moves(self):
        fleet, gateway = picker("--probes-interval", "60s", engines=2)
        dead = fleet.hosts[0].process
        dead.kill()
        dead.wait()
        answers = [gateway.chat() for _ in range(6)]
        self.assertEqual([it[0] for it in answers], [200] * 6)
        self.assertEqual({it[1]["x-maitre-worker"] for it in answers}, {fleet.engines[1]})
        # The move makes it suspect, and the probe that follows ejects it: nothing is tried there any more.
        failures = metric(fleet, "maitre_attempts_failed_total")
        self.assertGreaterEqual(failures, 1)
        self.assertEqual({gateway.chat()[0] for _ in range(4)}, {200})
        self.assertLessEqual(metric(fleet, "maitre_attempts_failed_total"), failures + 1)
        until_nothing_is_promised(fleet)

    def test_without_any_worker_the_answer_is_503(self):
        nobody = f"127.0.0.1:{free_port()}"
        ports = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
        lonely = Program("picker", *ports, "--worker", f"http://{nobody}")
        gateway = Gateway(lonely.until_says(r"serving.* listen=(\S+)"), [nobody])
        status, headers, body = gateway.chat()
        self.assertEqual((status, json.loads(body)["error"]["code"]), (503, "no_worker"))
        self.assertEqual(headers["retry-after"], "1")

    def test_a_picker_that_restarts_under_load_loses_no_stream(self):
        port = free_port()
        fleet, gateway = picker(engines=2, listen=f"127.0.0.1:{port}")
        old, stop, outcomes = fleet.router, threading.Event(), []

        def clients():
            while not stop.is_set():
                status, _, body = gateway.chat(stream=True, max_tokens=100, ignore_eos=True)
                outcomes.append((status, body.endswith(b"data: [DONE]\n\n")))

        threads = [threading.Thread(target=clients) for _ in range(4)]
        for thread in threads:
            thread.start()
        fleet.until_metric("maitre_requests_in_flight", lambda values: sum(values) >= 3)
        old.process.send_signal(signal.SIGTERM)
        self.assertEqual(old.process.wait(PATIENCE_S), 0, "it drained")
        failed = len([it for it in outcomes if it[0] == 200 and not it[1]])
        fleet.start()
        count = len(outcomes)
        deadline = time.monotonic() + PATIENCE_S
        while sum(it == (200, True) for it in outcomes[count:]) < 8:
            self.assertLess(time.monotonic(), deadline, outcomes)
            time.sleep(0.02)
        stop.set()
        for thread in threads:
            thread.join()
        # While nobody picks, Envoy answers 500 by itself; until the new one knows a worker, it answers 503. No stream
        # that had begun broke off.
        self.assertEqual(failed, 0)
        self.assertLessEqual({it[0] for it in outcomes}, {200, 500, 503})
        self.assertTrue(all(it[1] for it in outcomes if it[0] == 200), outcomes)
        until_nothing_is_promised(fleet)


def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


class Recorder(http.server.BaseHTTPRequestHandler):
    """A worker that keeps what it gets."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        models = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
        self.reply(json.dumps(models).encode() if self.path == "/v1/models" else b"")

    def do_POST(self):
        if self.headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["content-length"]))
        self.server.received.append((self.headers, body))
        self.reply(body)

    def reply(self, body):
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Bytes(unittest.TestCase):
    def setUp(self):
        self.worker = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
        self.worker.received = []
        threading.Thread(target=self.worker.serve_forever, daemon=True).start()
        self.addCleanup(self.worker.server_close)
        self.addCleanup(self.worker.shutdown)
        address = f"127.0.0.1:{self.worker.server_address[1]}"
        ports = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
        self.picker = Program("picker", *ports, "--worker", f"http://{address}", "--events-enabled=false")
        admin = self.picker.until_says(r"serving.* admin=(\S+)")
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(rf"^{READY} 1$", ask("GET", f"http://{admin}/metrics"), re.MULTILINE):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        self.gateway = Gateway(self.picker.until_says(r"serving.* listen=(\S+)"), [address])

    def test_request_and_response_pass_byte_for_byte(self):
        # Odd spacing, escapes and a field that nobody knows; small, and larger than any piece or window.
        for length in (0, 100, 61_999, 62_000, 62_001, 2_000_000):
            filler = "\\u00e9 \\n" * (length // 9) + "x" * (length % 9)
            body = b'{ "model" :"' + MODEL.encode() + b'",\n\t"messages":[ {"role":"user","content":"'
            body += filler.encode() + b'"}], "unknown": [1.0, 1e3, null] }  '
            status, _, answer = self.gateway.ask("POST", "/v1/chat/completions", body)
            self.assertEqual(status, 200)
            _, received = self.worker.received[-1]
            self.assertEqual(received, body, f"{length}: the worker got something else")
            self.assertEqual(answer, body, f"{length}: the client got something else")

    def test_headers_that_steer_engines_stay_behind_and_others_pass(self):
        sent = {"x-data-parallel-rank": "3", "x-prefiller-host-port": "10.0.0.1:1", "x-mine": "yes"}
        self.assertEqual(self.gateway.chat(headers={**sent, DESTINATION: "10.9.9.9:1"})[0], 200)
        headers, _ = self.worker.received[-1]
        self.assertEqual(headers["x-mine"], "yes")
        self.assertTrue(headers["x-request-id"])
        for name in ("x-data-parallel-rank", "x-prefiller-host-port"):
            self.assertIsNone(headers[name], name)
        self.assertEqual(headers[DESTINATION], f"127.0.0.1:{self.worker.server_address[1]}")


class Caches(unittest.TestCase):
    # 300 requests that share beginnings, one after the other, by a strategy that knows caches and no times: what a worker is
    # believed to take depends on how busy this machine is, and so would the decisions.
    TRACE = "groups:groups=30,prompts=4,shared=2000,own=300,out=20,qps=20,seconds=15"

    def hits(self, command):
        fleet = Setup("--strategy", "cache-aware", command=command, engines=4, speedup=20)
        url = fleet.url
        if command == "picker":
            url = Gateway(endpoint(fleet.url), [endpoint(it) for it in fleet.engines]).url
        bench = Program("bench", "--url", url, "--trace", self.TRACE, "--concurrency", "1", "--speed", "10", "--json")
        self.assertEqual(bench.process.wait(4 * PATIENCE_S), 0, bench.lines)
        self.assertGreater(metric(fleet, 'maitre_requests_total{.*outcome="answered".*}'), 250)
        until_nothing_is_promised(fleet)
        return metric(fleet, "maitre_cached_tokens_total") / metric(fleet, "maitre_prompt_tokens_total")

    def test_decisions_are_as_good_as_those_of_serve(self):
        served, picked = self.hits("serve"), self.hits("picker")
        print(f"cached part of prompts: serve {served:.3f}, Envoy and picker {picked:.3f}")
        self.assertGreater(served, 0.3)
        self.assertLess(abs(served - picked), 0.02)


if __name__ == "__main__":
    main()
