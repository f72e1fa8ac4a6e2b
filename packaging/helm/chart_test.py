"""The chart, rendered by helm and looked at: what every pod must have, and that the binary takes what it is given.

HELM and MAITRE name the two binaries. Nothing here talks to a cluster, and none has run it.
"""

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

# Nothing here may take longer.
PATIENCE_S = 60

# Everything that can be switched on.
ALL = """
replicas: 3
config: |
  workers = ["http://10.0.0.1:8000"]
  [queue]
  sequences_max = 64
secret: {create: true, values: {MAITRE_TENANTS: "sk-canary?weight=2"}}
service: {type: LoadBalancer, port: 443, annotations: {example.com/a: "b"}}
extraArgs: ["--strategy=round-robin"]
extraVolumes: [{name: models, emptyDir: {}}]
extraVolumeMounts: [{name: models, mountPath: /models}]
rbac: {create: true, resource: pods, namespace: engines}
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
"""


def helm(*args, values=""):
    command = [os.environ["HELM"], *args, str(CHART), "--values", "-"]
    return subprocess.run(command, input=values, capture_output=True, text=True, timeout=PATIENCE_S)


def rendered(values=""):
    """Every object of a release, by kind and name."""
    result = helm("template", "dinner", "--namespace", "hall", values=values)
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
        for wrong in ["replica: 2", "replicas: many", "ports: {http: 80, admin: 8081}", "drainGrace: '5'"]:
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
        for kind in ["Secret", "Role", "RoleBinding", "PodDisruptionBudget", "ServiceMonitor"]:
            self.assertIn((kind, "dinner"), objects)
        role = objects["Role", "dinner"]
        self.assertEqual(role["metadata"]["namespace"], "engines")
        self.assertEqual(role["rules"], [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}])
        slices = rendered("rbac: {create: true}")["Role", "dinner"]["rules"]
        self.assertEqual((slices[0]["apiGroups"], slices[0]["resources"]), (["discovery.k8s.io"], ["endpointslices"]))
        for (kind, _), it in objects.items():
            if kind not in ["Secret"]:
                self.assertNotIn("canary", json.dumps(it), kind)

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

    def test_another_configuration_is_another_pod(self):
        annotations = [
            rendered(values)["Deployment", "dinner"]["spec"]["template"]["metadata"]["annotations"]
            for values in ["", "config: 'workers = []'"]
        ]
        self.assertNotEqual(*[it["checksum/config"] for it in annotations])

    def test_the_binary_takes_what_a_pod_is_given(self):
        for values in ["", ALL]:
            objects = rendered(values)
            (container,) = objects["Deployment", "dinner"]["spec"]["template"]["spec"]["containers"]
            with tempfile.TemporaryDirectory() as folder:
                config = pathlib.Path(folder, "maitre.toml")
                config.write_text(objects["ConfigMap", "dinner"]["data"]["maitre.toml"])
                # Elsewhere only where it listens, and that nobody outside this machine is asked.
                args = [it.replace("/etc/maitre/maitre.toml", str(config)) for it in container["args"]]
                args = [re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", it) for it in args]
                secret = objects.get(("Secret", "dinner"), {}).get("stringData", {})
                self.assertIn(" serving ", first_line([*args, "--worker=http://127.0.0.1:1"], secret))


def first_line(args, variables):
    """What the router says first. It is ended then."""
    command = [os.environ["MAITRE"], *args]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables) as process:
        alarm = threading.Timer(PATIENCE_S, process.kill)
        alarm.start()
        line = process.stderr.readline()
        alarm.cancel()
        process.kill()
        return re.sub(r"\x1b\[[0-9;]*m", "", line)


if __name__ == "__main__":
    unittest.main()
