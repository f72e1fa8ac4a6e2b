"""Renders the chart with helm and checks what every pod must have, and that the binary accepts the pod's arguments.

HELM and MAITRE name the two binaries. No test talks to a cluster, and no cluster has run the chart.
"""

import base64
import contextlib
import http.server
import itertools
import json
import os
import pathlib
import re
import subprocess
import tempfile
import threading
import unittest

import jsonschema
import yaml

CHART = pathlib.Path(__file__).parent / "maitre"

# Timeout for every step.
PATIENCE_S = 60

# Workers, name servers and the API have addresses on this machine where nothing listens.
ALONE = ["--worker=http://127.0.0.1:1", "--discovery-dns=127.0.0.1:1", "--discovery-kubernetes-api=http://127.0.0.1:1"]

# Every optional feature.
ALL = """
replicas: 3
config: |
  workers = ["http://10.0.0.1:8000"]
  [queue]
  sequences_max = 64
secret:
  create: true
  values:
    MAITRE_KEYS: "sk-canary-of-a-client?tenant=acme"
    MAITRE_ADMIN_KEY: "sk-canary-of-an-operator"
    MAITRE_WORKER_KEY: "sk-canary"
reload: false
service: {type: LoadBalancer, port: 443, annotations: {example.com/a: "b"}}
extraArgs: ["--strategy=round-robin"]
extraVolumes: [{name: models, emptyDir: {}}]
extraVolumeMounts: [{name: models, mountPath: /models}]
discovery:
  from: ["kubernetes:engines?pods=app%3Dvllm%2Ctier%3Dgpu&port=8000", "kubernetes:/sglang", "dns:old.example:8000"]
podDisruptionBudget: {enabled: true, maxUnavailable: 50%}
networkPolicy: {clients: [{namespaceSelector: {}}], operators: [{podSelector: {matchLabels: {app: prometheus}}}]}
serviceMonitor: {enabled: true, labels: {release: prometheus}}
podAnnotations: {a: "b"}
podLabels: {c: "d"}
nodeSelector: {e: "f"}
tolerations: [{key: gpu, operator: Exists}]
topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]
priorityClassName: high
image: {pullSecrets: [registry]}
cluster: {via: mesh, key: {existing: shared, field: cluster}}
"""

# Every way for routers to reach each other: the values, and the Secrets and fields that a pod then gets.
CLUSTERS = [
    ("{}", {}),
    ("{via: off}", {}),
    ("{via: 'off', key: {existing: shared}, redis: {existing: server}}", {}),
    ("{via: mesh}", {"MAITRE_CLUSTER_KEY": ("dinner-cluster", "key")}),
    ("{via: mesh, key: {existing: shared, field: '1'}}", {"MAITRE_CLUSTER_KEY": ("shared", "1")}),
    ("{via: redis, redis: {existing: server}}", {"MAITRE_CLUSTER_VIA": ("server", "url")}),
    (
        "{via: redis, redis: {existing: server, field: at}, key: {existing: shared}, group: both}",
        {"MAITRE_CLUSTER_VIA": ("server", "at"), "MAITRE_CLUSTER_KEY": ("shared", "key")},
    ),
]


def helm(*args, values=""):
    command = [os.environ["HELM"], *args, str(CHART), "--values", "-"]
    return subprocess.run(command, input=values, capture_output=True, text=True, timeout=PATIENCE_S)


def rendered(values="", flags=()):
    """Every object of a release, by kind and name."""
    result = helm("template", "dinner", "--namespace", "hall", *flags, values=values)
    assert result.returncode == 0, result.stderr
    objects = [it for it in yaml.safe_load_all(result.stdout) if it]
    return {(it["kind"], it["metadata"]["name"]): it for it in objects}


class Chart(unittest.TestCase):
    def test_helm_finds_no_fault(self):
        for values in ["", ALL]:
            result = helm("lint", "--strict", values=values)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_the_values_are_what_the_schema_says(self):
        schema = json.loads((CHART / "values.schema.json").read_text())
        jsonschema.Draft7Validator.check_schema(schema)
        jsonschema.validate(yaml.safe_load((CHART / "values.yaml").read_text()), schema)
        for wrong in [
            "replica: 2",
            "replicas: many",
            "ports: {http: 80, admin: 8081}",
            "drainGrace: '5'",
            "discovery: {from: [vllm]}",
            "discovery: {from: ['kubernetes:?pods=a,b']}",
            "cluster: {via: gossip}",
            "cluster: {via: 'redis://10.0.0.1'}",
            "cluster: {via: redis}",
            "cluster: {via: redis, redis: {existing: server, field: 'a b'}}",
            "cluster: {via: mesh, group: 'a:b'}",
            "podDisruptionBudget: {enabled: perhaps}",
        ]:
            self.assertNotEqual(helm("template", "dinner", values=wrong).returncode, 0, wrong)

    def test_every_pod_is_confined(self):
        for values in ["", ALL]:
            pod = rendered(values)["Deployment", "dinner"]["spec"]["template"]["spec"]
            context = pod["securityContext"]
            self.assertTrue(context["runAsNonRoot"])
            self.assertEqual(context["seccompProfile"], {"type": "RuntimeDefault"})
            (container,) = pod["containers"]
            self.assertEqual(
                container["securityContext"],
                {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            )
            self.assertEqual(container["livenessProbe"]["httpGet"], {"path": "/healthz", "port": "admin"})
            self.assertEqual(container["readinessProbe"]["httpGet"], {"path": "/readyz", "port": "admin"})

    def test_what_is_not_asked_for_is_not_there(self):
        kinds = sorted(kind for kind, _ in rendered())
        expected = ["ConfigMap", "Deployment", "NetworkPolicy", "Service", "Service", "ServiceAccount"]
        self.assertEqual(kinds, expected)
        pod = rendered()["Deployment", "dinner"]["spec"]["template"]["spec"]
        self.assertFalse(pod["automountServiceAccountToken"], "nothing asks the API for anything")

    def test_what_is_asked_for_is_there(self):
        objects = rendered(ALL)
        for kind in ["Secret", "PodDisruptionBudget", "ServiceMonitor"]:
            self.assertIn((kind, "dinner"), objects)
        for (kind, _), it in objects.items():
            if kind not in ["Secret"]:
                self.assertNotIn("canary", json.dumps(it), kind)

    def test_each_place_in_kubernetes_has_the_role_that_it_needs(self):
        objects = rendered(ALL)
        roles = {name: it for (kind, name), it in objects.items() if kind == "Role"}
        self.assertEqual(sorted(roles), ["dinner-finds-0", "dinner-finds-1"])
        pods, slices = roles["dinner-finds-0"], roles["dinner-finds-1"]
        self.assertEqual((pods["metadata"]["namespace"], slices["metadata"]["namespace"]), ("engines", "hall"))
        look = ["list", "watch"]
        self.assertEqual(pods["rules"], [{"apiGroups": [""], "resources": ["pods"], "verbs": look}])
        expected = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": look}
        self.assertEqual(slices["rules"], [expected])
        for name, role in roles.items():
            binding = objects["RoleBinding", name]
            self.assertEqual(binding["metadata"]["namespace"], role["metadata"]["namespace"])
            self.assertEqual(binding["roleRef"]["name"], name)
            self.assertEqual(
                binding["subjects"], [{"kind": "ServiceAccount", "name": "dinner", "namespace": "hall"}]
            )
        pod = objects["Deployment", "dinner"]["spec"]["template"]["spec"]
        for it in [pod, objects["ServiceAccount", "dinner"]]:
            self.assertTrue(it["automountServiceAccountToken"])
        elsewhere = rendered("discovery: {from: ['dns:a.example:8000']}")
        self.assertFalse(elsewhere["Deployment", "dinner"]["spec"]["template"]["spec"]["automountServiceAccountToken"])
        own = rendered("discovery: {from: ['kubernetes:/vllm'], rbac: false}")
        self.assertNotIn(("Role", "dinner-finds-0"), own)

    def test_a_certificate_comes_from_a_secret(self):
        pod = rendered("tls: {secret: cert}")["Deployment", "dinner"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        self.assertIn("--tls-cert=/etc/maitre-tls/tls.crt", container["args"])
        self.assertIn("--tls-key=/etc/maitre-tls/tls.key", container["args"])
        self.assertIn({"name": "tls", "mountPath": "/etc/maitre-tls", "readOnly": True}, container["volumeMounts"])
        self.assertIn({"name": "tls", "secret": {"secretName": "cert", "defaultMode": 0o440}}, pod["volumes"])

    def test_a_picker_has_its_port_a_certificate_and_may_see_its_pool(self):
        values = "{picker: {enabled: true}, insecure: true, discovery: {from: ['kubernetes:?pool=vllm']}}"
        objects = rendered(values)
        pod = objects["Deployment", "dinner"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        self.assertEqual(container["args"][0], "picker")
        self.assertIn("--listen=0.0.0.0:9002", container["args"])
        self.assertIn("--tls-cert=/etc/maitre-tls/tls.crt", container["args"])
        made = {"secretName": "dinner-picker-tls", "defaultMode": 0o440}
        self.assertIn({"name": "tls", "secret": made}, pod["volumes"])
        certificate = base64.b64decode(objects["Secret", "dinner-picker-tls"]["data"]["tls.crt"])
        self.assertTrue(certificate.startswith(b"-----BEGIN CERTIFICATE-----"))
        (port,) = objects["Service", "dinner"]["spec"]["ports"]
        self.assertEqual((port["port"], port["appProtocol"]), (9002, "http2"))
        resources = [it["resources"] for it in objects["Role", "dinner-finds-0"]["rules"]]
        self.assertEqual(resources, [["pods"], ["inferencepools"]])
        # The binary accepts its arguments.
        flags = [it for it in container["args"] if not it.startswith(("--config", "--tls", "--listen", "--admin"))]
        self.assertTrue(serves([*flags, *ALONE, "--listen=127.0.0.1:0", "--admin=127.0.0.1:0"], {}))
        own = "{picker: {enabled: true}, tls: {secret: own}}"
        for values, names in [("picker: {enabled: true, tls: false}", []), (own, ["own"])]:
            objects = rendered(values)
            self.assertNotIn(("Secret", "dinner-picker-tls"), objects)
            volumes = objects["Deployment", "dinner"]["spec"]["template"]["spec"]["volumes"]
            self.assertEqual([it["secret"]["secretName"] for it in volumes if "secret" in it], names)

    def test_nobody_is_let_in_without_a_key_unless_that_is_said(self):
        for values, said in [("", False), (ALL, False), ("insecure: true", True)]:
            (container,) = rendered(values)["Deployment", "dinner"]["spec"]["template"]["spec"]["containers"]
            self.assertEqual("--insecure" in container["args"], said, values)
        (container,) = rendered()["Deployment", "dinner"]["spec"]["template"]["spec"]["containers"]
        # Without changes it ends before it listens.
        lines = list(lines_of([it for it in container["args"] if "--config" not in it], {}))
        self.assertIn("accepts other machines", lines[0])

    def test_selectors_find_the_pods_and_the_admin_port_is_not_public(self):
        objects = rendered(ALL)
        labels = objects["Deployment", "dinner"]["spec"]["template"]["metadata"]["labels"].items()
        public, admin = objects["Service", "dinner"]["spec"], objects["Service", "dinner-admin"]["spec"]
        budget = objects["PodDisruptionBudget", "dinner"]["spec"]["selector"]["matchLabels"]
        policy = objects["NetworkPolicy", "dinner"]["spec"]
        for selector in [public["selector"], admin["selector"], budget, policy["podSelector"]["matchLabels"]]:
            self.assertLessEqual(selector.items(), labels)
        self.assertEqual([it["name"] for it in public["ports"]], ["http"])
        self.assertEqual((public["type"], admin["type"]), ("LoadBalancer", "ClusterIP"))
        monitored = objects["ServiceMonitor", "dinner"]["spec"]["selector"]["matchLabels"].items()
        self.assertLessEqual(monitored, objects["Service", "dinner-admin"]["metadata"]["labels"].items())
        self.assertFalse(monitored <= objects["Service", "dinner"]["metadata"]["labels"].items())

    def test_routers_that_share_are_given_what_it_takes_and_no_others(self):
        for (cluster, secrets), replicas in itertools.product(CLUSTERS, [1, 3]):
            with self.subTest(cluster=cluster, replicas=replicas):
                objects = rendered(f"replicas: {replicas}\ncluster: {cluster}")
                (container,) = objects["Deployment", "dinner"]["spec"]["template"]["spec"]["containers"]
                variables = {it["name"]: it["valueFrom"] for it in container.get("env", [])}
                name = {"fieldRef": {"fieldPath": "metadata.name"}}
                self.assertEqual(variables.pop("MAITRE_CLUSTER_NAME", None), name if secrets else None)
                refs = {key: it["secretKeyRef"] for key, it in variables.items()}
                self.assertEqual({key: (it["name"], it["key"]) for key, it in refs.items()}, secrets)
                is_mesh = "via: mesh" in cluster
                expected = ["--cluster=mesh", "--cluster-listen=0.0.0.0:7946", "--peer=dinner-peers:7946"]
                if not is_mesh:
                    group = "both" if "both" in cluster else "hall.dinner"
                    expected = [f"--cluster-group={group}"] if secrets else []
                flags = [it for it in container["args"] if it.startswith(("--cluster", "--peer"))]
                self.assertEqual(flags, expected)
                self.assertEqual({"name": "cluster", "containerPort": 7946} in container["ports"], is_mesh)
                self.assertEqual(("Service", "dinner-peers") in objects, is_mesh)
                made = is_mesh and "existing" not in cluster
                self.assertEqual(("Secret", "dinner-cluster") in objects, made)
                self.assertEqual(("PodDisruptionBudget", "dinner") in objects, replicas > 1)

    def test_routers_find_each_other_before_they_are_ready_and_nobody_else_is_let_in(self):
        objects = rendered("{cluster: {via: mesh}, ports: {cluster: 9999}, networkPolicy: {clients: [{}]}}")
        template = objects["Deployment", "dinner"]["spec"]["template"]
        (container,) = template["spec"]["containers"]
        self.assertIn("--cluster-listen=0.0.0.0:9999", container["args"])
        self.assertIn("--peer=dinner-peers:9999", container["args"])
        self.assertIn({"name": "cluster", "containerPort": 9999}, container["ports"])
        peers = objects["Service", "dinner-peers"]["spec"]
        self.assertEqual((peers["clusterIP"], peers["publishNotReadyAddresses"]), ("None", True))
        self.assertEqual(peers["ports"], [{"name": "cluster", "port": 9999, "targetPort": "cluster"}])
        self.assertLessEqual(peers["selector"].items(), template["metadata"]["labels"].items())
        rules = objects["NetworkPolicy", "dinner"]["spec"]["ingress"]
        (rule,) = [it for it in rules if {"port": "cluster"} in it["ports"]]
        own = [{"podSelector": {"matchLabels": peers["selector"]}}]
        self.assertEqual(rule, {"ports": [{"port": "cluster"}], "from": own})
        for values in ["cluster: {via: mesh}\nnetworkPolicy: {enabled: false}", "cluster: {via: 'off'}"]:
            policy = rendered(values).get(("NetworkPolicy", "dinner"), {"spec": {"ingress": []}})
            self.assertNotIn("cluster", json.dumps(policy["spec"]["ingress"]))

    def test_a_budget_is_there_as_it_is_asked_for(self):
        for replicas, enabled, there in [(1, "auto", 0), (2, "auto", 1), (1, "true", 1), (2, "false", 0), (0, "auto", 0)]:
            objects = rendered(f"replicas: {replicas}\npodDisruptionBudget: {{enabled: {enabled}}}")
            self.assertEqual(("PodDisruptionBudget", "dinner") in objects, bool(there), (replicas, enabled))

    def test_the_key_of_routers_is_made_once_and_kept(self):
        def made(flags=()):
            secret = rendered("cluster: {via: mesh}", flags)["Secret", "dinner-cluster"]
            return base64.b64decode(secret["data"]["key"]).decode()

        self.assertRegex(made(), "^[A-Za-z0-9]{48}$")
        self.assertNotEqual(made(), made(), "of chance")
        with Api() as api:
            first = made(api.flags())
            self.assertRegex(first, "^[A-Za-z0-9]{48}$")
            api.secrets["dinner-cluster"] = first
            self.assertEqual(made(api.flags()), first)
            # No other object contains it.
            others = rendered("cluster: {via: mesh}", api.flags())
            self.assertNotIn(first, json.dumps([it for (kind, _), it in others.items() if kind != "Secret"]))

    def test_another_configuration_is_another_pod_only_if_pods_do_not_read_it_again(self):
        def pods(extra):
            return [
                rendered(f"{extra}{values}")["Deployment", "dinner"]["spec"]["template"]
                for values in ["", "config: 'workers = []'"]
            ]

        self.assertEqual(*pods(""))
        self.assertNotEqual(*pods("reload: false\n"))

    def test_the_binary_takes_what_a_pod_is_given(self):
        for values in ["", ALL, *(f"cluster: {it}\ninsecure: true" for it, _ in CLUSTERS)]:
            objects = rendered(values)
            (container,) = objects["Deployment", "dinner"]["spec"]["template"]["spec"]["containers"]
            with self.subTest(values), tempfile.TemporaryDirectory() as folder:
                config = pathlib.Path(folder, "maitre.toml")
                config.write_text(objects["ConfigMap", "dinner"]["data"]["maitre.toml"])
                # Only the listen addresses change, and all servers it would ask are on this machine.
                args = [it.replace("/etc/maitre/maitre.toml", str(config)) for it in container["args"]]
                args = [re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", it) for it in args]
                args = [it.replace("dinner-peers:7946", "127.0.0.1:1") for it in args]
                secret = objects.get(("Secret", "dinner"), {}).get("stringData", {})
                self.assertTrue(serves([*args, *ALONE], {**secret, **variables(container)}))


def variables(container):
    """The values of a container's variables."""

    def value(source):
        match source.get("secretKeyRef"):
            case None:
                return "dinner-5f7c9d-x2x7q"
            case {"name": "server"}:
                return "redis://maitre:sk-canary@127.0.0.1:1"
            case _:
                return "sk-canary-of-the-routers"

    return {it["name"]: value(it["valueFrom"]) for it in container.get("env", [])}


class Api:
    """A fake Kubernetes API with what helm asks before it renders: the Secrets in the namespace `hall`."""

    def __init__(self):
        self.secrets = {}

    def __enter__(self):
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                status, body = api.answer(self.path.partition("?")[0])
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def flags(self):
        return ["--dry-run=server", f"--kube-apiserver=http://127.0.0.1:{self.server.server_port}"]

    def answer(self, path):
        folder, _, name = path.rpartition("/")
        if path == "/api/v1":
            kind = {"name": "secrets", "namespaced": True, "kind": "Secret", "verbs": ["get"]}
            return 200, {"kind": "APIResourceList", "groupVersion": "v1", "resources": [kind]}
        if folder == "/api/v1/namespaces/hall/secrets" and name in self.secrets:
            data = {"key": base64.b64encode(self.secrets[name].encode()).decode()}
            return 200, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}
        return 404, {"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}


def lines_of(args, variables):
    """The router's output, line by line. Closing the generator ends the router."""
    command = [os.environ["MAITRE"], *args]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables) as process:
        alarm = threading.Timer(PATIENCE_S, process.kill)
        alarm.start()
        try:
            for line in process.stderr:
                yield re.sub(r"\x1b\[[0-9;]*m", "", line)
        finally:
            alarm.cancel()
            process.kill()


def serves(args, variables):
    """Whether the router gets this far. If not, prints what it said instead."""
    lines = []
    with contextlib.closing(lines_of(args, variables)) as said:
        for line in said:
            lines.append(line)
            if " serving " in line:
                return True
    print(*lines)
    return False


if __name__ == "__main__":
    unittest.main()
