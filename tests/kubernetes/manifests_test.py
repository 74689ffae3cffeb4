"""deploy/kubernetes renders, is valid by the schemas of Kubernetes and of the other projects, and agrees with the programs."""
import copy
import os
import re
import subprocess
import sys
import tempfile
import unittest

import yaml

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e")]
from cluster import PROGRAMS, ROOT, read  # noqa: E402
from faults import admitted, faults, of_kind, workloads  # noqa: E402
from rendering import COMPONENTS, EXAMPLES, KUBERNETES, Refused, commands_of_the_page, example, kustomize, overlay, schema_faults  # noqa: E402

PAGE = os.path.join(ROOT, "docs", "operations", "kubernetes.md")
PROMTOOL = "/usr/bin/promtool"
METRICS = re.findall(r"^\| `(\w+)`", read(os.path.join(ROOT, "docs", "reference", "metrics.md")), re.M)
ROLE = "app.kubernetes.io/component"
COORDINATOR, WORKER, OTHER = ({"app.kubernetes.io/name": "espalier", ROLE: "coordinator"}, {"app.kubernetes.io/name": "espalier", ROLE: "worker"}, {})


def put(documents, value, *path):
    """A copy with another value at a path; None removes it."""
    changed = copy.deepcopy(documents)
    at = changed
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return changed


def unknown_keys(node, path=()):
    """The paths of all mappings that a schema closes."""
    if isinstance(node, dict):
        if path and path[-1] not in ("labels", "annotations", "matchLabels", "requests", "limits", "data"):
            yield (*path, "unheardOf")
        for key, value in node.items():
            yield from unknown_keys(value, (*path, key))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from unknown_keys(value, (*path, number))


class ManifestsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = overlay(())
        cls.rendered = {"base": cls.base, **{name: overlay((name,)) for name in COMPONENTS},
                        "full": kustomize(cls.copied("overlays/full")),
                        "own disks": overlay(("s3", "cert-manager", "standby-own-disks")),
                        **{name: example(name) for name in EXAMPLES}}

    @classmethod
    def copied(cls, folder):
        """In a copy without links, which kustomize does not follow."""
        temporary = tempfile.mkdtemp()
        cls.addClassCleanup(subprocess.run, ["rm", "-rf", temporary])
        subprocess.run(["cp", "-rL", KUBERNETES, temporary], check=True)
        return os.path.join(temporary, "kubernetes", folder)

    def test_every_component_and_example_is_here(self):
        for folder, names in ("components", COMPONENTS), ("examples", EXAMPLES):
            self.assertEqual(sorted(os.listdir(os.path.join(KUBERNETES, folder))), sorted(names))

    def test_all_objects_are_valid_by_their_schemas(self):
        for name, documents in self.rendered.items():
            self.assertEqual([fault for document in documents for fault in schema_faults(document)], [], name)

    def test_the_schemas_refuse_what_they_do_not_know(self):
        seen = set()
        for document in (document for documents in self.rendered.values() for document in documents):
            if document["kind"] in seen:
                continue
            seen.add(document["kind"])
            for path in unknown_keys(document):
                if document["kind"] == "Service" and "selector" in path:
                    continue  # labels
                self.assertNotEqual(schema_faults(put(document, "x", *path)), [], f"{document['kind']} {path}")
        self.assertGreater(len(seen), 15)

    def test_the_manifests_agree_with_the_programs(self):
        for name, documents in self.rendered.items():
            beside = self.base if name in EXAMPLES else []
            self.assertEqual(faults([*beside, *documents], PROGRAMS, METRICS), [], name)

    def test_mistakes_are_found(self):
        def at(documents, kind, name="espalier-coordinator"):
            return next(n for n, d in enumerate(documents) if (d["kind"], d["metadata"]["name"]) == (kind, name))

        full = self.rendered["full"]
        pods = {name: (at(full, "StatefulSet", name), "spec", "template", "spec") for name in ("espalier-coordinator", "espalier-worker")}
        daemon, worker = ((*pods[name], "containers", 0) for name in pods)
        join, scaler = at(full, "Service", "espalier-coordinator-join"), at(full, "HorizontalPodAutoscaler", "espalier-worker")
        made = [
            ("unknown flag", put(full, "--listn=0.0.0.0:7070", *daemon, "args", 0)),
            ("containerPorts are", put(full, "--listen=0.0.0.0:7171", *daemon, "args", 0)),
            ("only the container itself", put(full, "--listen=127.0.0.1:7070", *daemon, "args", 0)),
            ("lies in no volume", put(full, "--data-dir=/srv", *daemon, "args", 2)),
            ("too short for preStop and drain", put(full, "--drain-seconds=50", *daemon, "args", 3)),
            ("too short for preStop and drain", put(full, 40, *pods["espalier-coordinator"], "terminationGracePeriodSeconds")),
            ("too short for preStop and drain", put(full, 50, *pods["espalier-worker"], "terminationGracePeriodSeconds")),
            ("asks by HTTP, which", put(full, {"path": "/health", "port": "http"}, *daemon, "livenessProbe", "httpGet")),
            ("which is none of the container's", put(full, "metrics", *daemon, "livenessProbe", "httpGet", "port")),
            ("no program", put(full, ["/usr/local/bin/espalierx"], *daemon, "command")),
            ("readOnlyRootFilesystem is None", put(full, None, *daemon, "securityContext", "readOnlyRootFilesystem")),
            ("capabilities is", put(full, ["NET_RAW"], *daemon, "securityContext", "capabilities", "drop")),
            ("runAsNonRoot is", put(full, False, *pods["espalier-worker"], "securityContext", "runAsNonRoot")),
            ("gets a token", put(full, None, *pods["espalier-worker"], "automountServiceAccountToken")),
            ("no limits of memory", put(full, {}, *worker, "resources", "limits")),
            ("which the programs refuse", put(full, 0o444, *pods["espalier-worker"], "volumes", 1, "secret", "defaultMode")),
            ("is no service's", put(full, "--coordinator=espalier:7070", *worker, "args", 0)),
            ("only once it is ready", put(full, "--coordinator=espalier-coordinator:7070", *worker, "args", 0)),
            ("where --listen does not listen", put(full, "--coordinator=espalier-coordinator:8080", *worker, "args", 0)),
            ("which env does not have", put(full, "--name=$(NODE)", *worker, "args", 2)),
            ("is given twice", put(full, "--name=a", *worker, "args", 1)),
            ("mounts volume join", put(full, None, *pods["espalier-worker"], "volumes", 1)),
            ("only once it is ready", put(full, None, join, "spec", "publishNotReadyAddresses")),
            ("is no headless service", put(full, None, join, "spec", "clusterIP")),
            ("a headless service leads to", put(full, 7000, join, "spec", "ports", 0, "port")),
            ("selects no pods", put(full, {"a": "b"}, join, "spec", "selector")),
            ("which is none of the pod's", put(full, "nowhere", join, "spec", "ports", 0, "targetPort")),
            ("does not select its pods", put(full, {"a": "b"}, pods["espalier-worker"][0], "spec", "selector", "matchLabels")),
            ("which is not there", put(full, "other", scaler, "spec", "scaleTargetRef", "name")),
            ("which no rule makes", put(full, "espalier_queue", scaler, "spec", "metrics", 0, "external", "metric", "name")),
            ("replicas of its own", put(full, 2, pods["espalier-worker"][0], "spec", "replicas")),
            ("which is no metric", put(full, "sum(espalier_queue)", at(full, "PrometheusRule", "espalier-workers-wanted"), "spec", "groups", 0, "rules",
                                       0, "expr")),
            ("is of 0 services", put(full, "metrics", at(full, "ServiceMonitor", "espalier"), "spec", "endpoints", 0, "port")),
            ("which is no service's", put(full, 8081, at(full, "HTTPRoute", "espalier"), "spec", "rules", 0, "backendRefs", 0, "port")),
            ("which is no service's", put(full, "grpcs", at(full, "BackendTLSPolicy", "espalier"), "spec", "targetRefs", 0, "sectionName")),
            ("names a namespace", put(full, "espalier", 0, "metadata", "namespace")),
        ]
        for said, documents in made:
            with self.subTest(said):
                self.assertTrue(any(said in fault for fault in faults(documents, PROGRAMS, METRICS)), said)

    def test_the_network_policies_admit_what_the_programs_need_and_nothing_else(self):
        policies = of_kind(self.rendered["networkpolicy"], "NetworkPolicy")
        labels = {name: labels for name, labels, _ in workloads(self.base)}
        self.assertEqual(labels, {"StatefulSet espalier-coordinator": COORDINATOR, "StatefulSet espalier-worker": WORKER})
        monitoring, clients, elsewhere = ({"kubernetes.io/metadata.name": "monitoring"}, {"espalier-clients": "true"}, {"a": "b"})
        calls = {  # client, server, port, the namespaces of both, if they are others: whether they may
            "workers reach the coordinator": (WORKER, COORDINATOR, 7070, None, None, True),
            "not its HTTP port": (WORKER, COORDINATOR, 8080, None, None, False),
            "the coordinator calls workers": (COORDINATOR, WORKER, 7071, None, None, True),
            "not their other ports": (COORDINATOR, WORKER, 40000, None, None, False),
            "workers reach each other": (WORKER, WORKER, 40000, None, None, True),
            "clients of the namespace": (OTHER, COORDINATOR, 8080, None, None, True),
            "by gRPC, too": (OTHER, COORDINATOR, 7070, None, None, True),
            "but no workers": (OTHER, WORKER, 7071, None, None, False),
            "Prometheus": (OTHER, COORDINATOR, 8080, monitoring, None, True),
            "by no other port": (OTHER, COORDINATOR, 7070, monitoring, None, False),
            "namespaces of clients": (OTHER, COORDINATOR, 7070, clients, None, True),
            "no others": (OTHER, COORDINATOR, 8080, elsewhere, None, False),
            "no worker from outside": (OTHER, WORKER, 7071, clients, None, False),
            "S3": (WORKER, OTHER, 443, None, elsewhere, True),
            "etcd": (COORDINATOR, OTHER, 2379, None, elsewhere, True),
            "for the coordinator only": (WORKER, OTHER, 2379, None, elsewhere, False),
            "nothing else outside": (WORKER, OTHER, 80, None, elsewhere, False),
        }
        for name, (client, server, port, client_space, server_space, may) in calls.items():
            self.assertEqual(admitted(policies, client, server, port, client_space, server_space), may, name)
        for labels in (WORKER, COORDINATOR):
            for protocol in ("UDP", "TCP"):
                self.assertTrue(admitted(policies, labels, OTHER, 53, None, elsewhere, protocol))
        self.assertTrue(admitted([], OTHER, WORKER, 1))

    def test_the_kustomization_of_the_page_renders_with_its_bucket(self):
        sample = re.search(r"```yaml\n# kustomization.yaml of your own\n(.*?)```", read(PAGE), re.S).group(1)
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, "espalier", "deploy"))
            subprocess.run(["cp", "-rL", KUBERNETES, os.path.join(folder, "espalier", "deploy")], check=True)
            with open(os.path.join(folder, "kustomization.yaml"), "w") as file:
                file.write(sample)
            documents = kustomize(folder)
            coordinator = of_kind(documents, "StatefulSet")[0]["spec"]["template"]["spec"]["containers"][0]
            self.assertIn("--checkpoint-store=s3://models/espalier", coordinator["args"])
            self.assertNotIn("BUCKET", yaml.safe_dump(documents))
            # Of another argument it is refused.
            with open(os.path.join(folder, "kustomization.yaml"), "w") as file:
                file.write(sample.replace("args/8", "args/7"))
            with self.assertRaises(Refused):
                kustomize(folder)

    def test_without_a_token_no_secret_is_made(self):
        """The lines of the page, in a shell whose kubectl makes tokens or does not."""
        page = read(PAGE)
        lines = [line for heading in ("## From nothing to a job", "**New tokens.**") for line in commands_of_the_page(page, heading) if "secret" in line]
        self.assertEqual(len(lines), 2)
        for line in lines:
            for code, made in (1, None), (0, "esp1.x"):
                with tempfile.TemporaryDirectory() as folder:
                    kubectl = os.path.join(folder, "kubectl")
                    with open(kubectl, "w") as file:
                        file.write(f'#!/bin/sh\n[ "$1" = exec ] && {{ [ {code} = 0 ] && echo esp1.x; exit {code}; }}\n'
                                   f'case "$*" in *--from-file=token=/dev/stdin*) cat > {folder}/token; esac\n')
                    os.chmod(kubectl, 0o755)
                    done = subprocess.run(["sh", "-c", line], env={"PATH": f"{folder}:/usr/bin:/bin"}, capture_output=True, text=True, timeout=60)
                    self.assertEqual(done.returncode, code, done.stderr)
                    token = os.path.join(folder, "token")
                    self.assertEqual(read(token) if os.path.exists(token) else None, made)

    def test_the_autoscalers_rule_wants_what_waits_and_keeps_what_is_busy(self):
        rules = of_kind(self.rendered["hpa"], "PrometheusRule")[0]["spec"]
        adapter = yaml.safe_load(read(os.path.join(KUBERNETES, "components", "hpa", "adapter-values.yaml")))["rules"]["external"]
        self.assertEqual([rule["seriesQuery"] for rule in adapter], [rules["groups"][0]["rules"][0]["record"]])
        cases = [(0, 4, 0, 0), (1, 3, 0, 4), (2, 0, 0, 2), (2, 0, 3, 5), (0, 1, 6, 6), (1, 9, 2, 10)]  # busy, idle, queued: wanted
        tests = []
        for busy, idle, queued, wanted in cases:
            series = [(f'espalier_workers{{state="{state}", namespace="n"}}', count) for state, count in (("busy", busy), ("idle", idle), ("lost", 7))]
            series += [(f'espalier_jobs{{state="{state}", namespace="n"}}', count) for state, count in (("queued", queued), ("recovering", 0), ("failed", 9))]
            tests.append({"interval": "1m", "input_series": [{"series": name, "values": f"{count}x3"} for name, count in series],
                          "promql_expr_test": [{"expr": "espalier_workers_wanted", "eval_time": "2m", "exp_samples": [
                              {"labels": 'espalier_workers_wanted{namespace="n"}', "value": wanted}]}]})
        with tempfile.TemporaryDirectory() as folder:
            for name, content in ("rules.yml", rules), ("tests.yml", {"rule_files": ["rules.yml"], "tests": tests}):
                with open(os.path.join(folder, name), "w") as file:
                    yaml.safe_dump(content, file)
            done = subprocess.run([PROMTOOL, "test", "rules", os.path.join(folder, "tests.yml")], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
