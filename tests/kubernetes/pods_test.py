"""The rendered pods of deploy/kubernetes run on this machine, by the commands of docs/operations/kubernetes.md: as their user,
with their read-only root, secrets, volumes, environment and arguments. What they claim is seen in the processes."""
import base64
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e")]
from cluster import DATA, PROGRAMS, ROOT, read  # noqa: E402
from faults import admitted  # noqa: E402
from mini_cluster import MiniCluster, why_not  # noqa: E402
from rendering import commands_of_the_page, documents_of, example, overlay, run  # noqa: E402

REASON = why_not()
if not REASON and os.environ.get("ESPALIER_TEST_PODS") != "entered":
    os.execvpe("unshare", ["unshare", "--net", "--mount", "--uts", "--", sys.executable, *sys.argv], dict(os.environ, ESPALIER_TEST_PODS="entered"))
COORDINATOR, WORKERS = "espalier-coordinator-0", ["espalier-worker-0", "espalier-worker-1"]
MODEL = "llama:hidden=64,layers=2,heads=4,kv_heads=2,intermediate=128,positions=4096"
# One member, with TLS and certificates of its clients.
ETCD = {
    "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001},
    "containers": [{
        "name": "etcd", "command": ["/usr/bin/etcd"],
        "args": ["--data-dir=/var/lib/etcd/data", "--listen-client-urls=https://0.0.0.0:2379", "--advertise-client-urls=https://etcd-client:2379",
                 "--cert-file=/certs/tls.crt", "--key-file=/certs/tls.key", "--trusted-ca-file=/certs/ca.crt", "--client-cert-auth",
                 "--log-level=error"],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "data", "mountPath": "/var/lib/etcd"}, {"name": "certs", "mountPath": "/certs"}]}],
    "volumes": [{"name": "data", "emptyDir": {}}, {"name": "certs", "secret": {"secretName": "etcd"}}],
}


class Case(unittest.TestCase):
    """What both kinds of tests do with their cluster."""

    cluster: MiniCluster

    def secret(self, name, **files):
        self.cluster.apply([{"kind": "Secret", "metadata": {"name": name},
                             "data": {key.replace("_", "."): base64.b64encode(text.encode()).decode() for key, text in files.items()}}])

    def coordinator(self):
        return self.cluster.pods[COORDINATOR]

    def cli(self, *words, by=COORDINATOR):
        said = self.cluster.pods[by].exec(["espalier", *words, "--json"]).stdout
        try:
            return json.loads(said)
        except json.JSONDecodeError:
            return json.loads(said.strip().splitlines()[-1])

    def joined(self, names=WORKERS, by=COORDINATOR):
        for name in names:
            self.cluster.wait_for(name, "livenessProbe")
        there = {f"{self.cluster.pods[name].address}:7071" for name in names}

        def idle():
            return {worker["address"] for worker in self.cli("status", by=by).get("workers", [])
                    if worker["state"].lower() == "idle"} >= there
        self.cluster.wait("the workers are idle", idle)


@unittest.skipIf(REASON, REASON)
class PageTest(Case):
    """The base, started by the commands of the page. Each test leaves the coordinator and the workers as they were."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(MiniCluster(PROGRAMS))
        commands = commands_of_the_page(read(os.path.join(ROOT, "docs", "operations", "kubernetes.md")), "## From nothing to a job")
        assert 1 < len(commands) <= 5 and commands[0].startswith("podman"), commands
        cls.said = ""
        for command in commands[1:]:
            source = re.search(r" < \S+$", command)
            cls.said = read(os.path.join(DATA, "genesis.txt")) if source else ""
            # What is kept in a variable is printed into the next command.
            kept = re.fullmatch(r'(\w+)=\$\((.*)\) && printf %s "\$\1" \| (.*)', command)
            for stage in kept.groups()[1:] if kept else [command.removesuffix(source.group()) if source else command]:
                cls.said = cls.kubectl(shlex.split(stage), cls.said)

    def setUp(self):
        self.cluster.reconcile()  # after a test that failed
        self.joined()

    @classmethod
    def kubectl(cls, words, given):
        """What kubectl would do in a cluster, here. What objects it makes of its arguments, it says itself."""
        assert words.pop(0) == "kubectl", words
        if words[0] == "apply":
            cls.cluster.apply(overlay((), base=os.path.relpath(words[words.index("-k") + 1], os.path.join("deploy", "kubernetes"))))
        elif words[:2] == ["rollout", "status"]:
            kind, name = words[2].split("/")
            assert kind == "statefulset", words
            cls.cluster.wait_for(f"{name}-0", "readinessProbe")
        elif words[0] == "create":
            cls.cluster.apply(documents_of(run("kubectl", *words, "--dry-run=client", "-o", "yaml", given=given)))
        elif words[0] == "exec":
            split = words.index("--")
            pod = words[split - 1]
            return cls.cluster.pods[pod].exec(words[split + 1:], given=given).stdout
        else:
            raise AssertionError(f"kubectl {words} is not known here")
        return ""

    def test_the_commands_of_the_page_lead_to_a_job(self):
        self.assertIn("succeeded", self.said)

    def test_only_who_has_a_key_gets_more_than_probes_and_pods_have_no_rights(self):
        self.assertEqual([self.coordinator().http(path)[0] for path in ("/health", "/ready", "/metrics", "/v1/models")], [200, 200, 401, 401])
        token = self.coordinator().exec(["espalier", "token", "create", "--role=monitor"]).stdout.strip()
        status, metrics = self.coordinator().http("/metrics", headers={"Authorization": f"Bearer {token}"})
        self.assertEqual((status, "espalier_workers{" in metrics), (200, True))
        worker = self.cluster.pods[WORKERS[0]]
        self.assertNotEqual(worker.exec(["espalier", "--coordinator=espalier-coordinator:7070", "--tls", "status"], check=False).returncode, 0)
        self.assertEqual(worker.exec(["sh", "-c", "id -u; id -g; grep -E 'CapEff|NoNewPrivs' /proc/self/status; touch /x || echo closed"],
                                     check=False).stdout.split(), ["10001", "10001", "CapEff:", "0" * 16, "NoNewPrivs:", "1", "closed"])

    def test_connections_while_a_job_runs_are_those_that_the_policy_admits(self):
        job = self.cli("train", f"--model={MODEL}", "-d", "/tmp/text.txt", "--sequence-length=32", "-b", "16", "--steps=100000", "--detach",
                       "--only-data-parallel")["job_id"]
        self.cluster.wait("steps", lambda: int(self.cli("jobs", "get", job)["job"].get("steps_done", 0)) > 5)
        policies = [document for document in overlay(("networkpolicy",)) if document["kind"] == "NetworkPolicy"]
        by_address = {pod.address: pod for pod in self.cluster.pods.values()}
        seen = set()
        for pod in self.cluster.pods.values():
            connections, listening = pod.connections()
            for own, other, port in connections:
                # Ranks listen until they are connected: among workers, either may have called.
                there = by_address[other].connections()[1]
                self.assertTrue(own in listening or port in there or pod.labels == by_address[other].labels)
                client, server, to = (by_address[other], pod, own) if own in listening else (pod, by_address[other], port)
                self.assertTrue(admitted(policies, client.labels, server.labels, to), f"{client.name} calls {server.name} at {to}")
                seen.add((client.labels["app.kubernetes.io/component"], server.labels["app.kubernetes.io/component"],
                          to if to in (7070, 7071) else "any"))
        self.assertLessEqual({("worker", "coordinator", 7070), ("coordinator", "worker", 7071), ("worker", "worker", "any")}, seen)
        self.cli("jobs", "cancel", job)

    def test_a_deleted_coordinator_drains_and_its_successor_goes_on(self):
        self.cli("train", f"--model={MODEL}", "-d", "/tmp/text.txt", "--sequence-length=32", "-b", "16", "--steps=4", "--name=served")
        self.cli("serve", "served", "--max-requests-per-batch=16")
        job = self.cli("train", f"--model={MODEL}", "-d", "/tmp/text.txt", "--sequence-length=32", "-b", "16", "--steps=100000", "--detach")["job_id"]
        self.cluster.wait("steps", lambda: int(self.cli("jobs", "get", job)["job"].get("steps_done", 0)) > 1)
        self.cli("jobs", "checkpoint", job)
        said = []

        def generate(tokens):
            said.append(self.coordinator().exec(["espalier", "generate", "served", "In the beginning", f"--max-tokens={tokens}", "--ignore-eos"],
                                                check=False))
        running = threading.Thread(target=generate, args=(3000,))

        def before_signal():
            generate(2)  # services may still send requests here
            running.start()
            self.cluster.wait("it runs", lambda: re.search(r"espalier_num_requests_running\{[^}]*\} 1", self.metrics()))

        status, seconds = self.cluster.delete(COORDINATOR, before_signal)
        running.join()
        self.assertEqual((status, [done.returncode for done in said]), (0, [0, 0]), said)
        self.assertGreaterEqual(seconds, 5)
        # The successor, with another address: nobody needs a new token.
        self.cluster.reconcile()
        self.cluster.wait_for(COORDINATOR, "readinessProbe")
        self.cluster.wait("the job goes on", lambda: int(self.cli("jobs", "get", job)["job"].get("attempts", 0)) >= 2
                          and self.cli("jobs", "get", job)["job"]["state"].lower() == "running")
        self.coordinator().exec(["espalier", "generate", "served", "In the beginning", "--max-tokens=2"])
        # A worker leaves once its job has written a checkpoint, at which the other one goes on.
        before = int(self.cli("jobs", "get", job)["job"]["attempts"])
        self.cluster.wait("steps", lambda: int(self.cli("jobs", "get", job)["job"]["steps_done"])
                          > int(self.cli("jobs", "get", job)["job"]["checkpoint_step"]))
        leaving = self.cluster.pods[WORKERS[1]]
        status, seconds = self.cluster.delete(leaving.name)
        self.assertEqual(status, 0)
        self.assertLess(seconds, 10, leaving.said())
        self.cluster.wait("one worker goes on", lambda: int(self.cli("jobs", "get", job)["job"]["attempts"]) > before)
        messages = " ".join(message["text"] for message in self.cli("jobs", "get", job)["messages"])
        self.assertRegex(messages, rf"\({WORKERS[1]}\) is about to leave: goes on from step \d+ without it")
        self.cli("jobs", "cancel", job)
        self.cli("unserve", "served")
        self.cluster.reconcile()
        self.bring_text()

    def metrics(self):
        key = self.coordinator().exec(["cat", "/var/lib/espalier/data/tls/admin.key"]).stdout.strip()
        return self.coordinator().http("/metrics", headers={"Authorization": f"Bearer {key}"})[1]

    def test_a_worker_of_a_leader_worker_set_joins(self):
        template = example("leaderworkerset")[0]["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        pod = self.cluster.create("espalier-group-0", template)
        self.cluster.wait_for(pod.name, "livenessProbe")
        self.joined([*WORKERS, pod.name])
        self.assertEqual(self.cluster.delete(pod.name)[0], 0)

    def bring_text(self):
        """As the page does; a coordinator's new pod has another /tmp."""
        self.coordinator().exec(["tee", "/tmp/text.txt"], given=read(os.path.join(DATA, "genesis.txt")))

    def test_a_runtime_of_kserve_serves_the_model_that_is_mounted(self):
        self.cli("train", f"--model={MODEL}", "-d", "/tmp/text.txt", "--sequence-length=32", "-b", "16", "--steps=4", "--name=llm")
        self.coordinator().exec(["espalier", "models", "download", "llm", "/tmp/llm"])
        model = os.path.join(self.coordinator().folder, "volumes", "tmp", "llm")
        runtime, service = sorted(example("kserve"), key=lambda document: document["kind"] != "ServingRuntime")
        predictor, name = service["spec"]["predictor"], service["metadata"]["name"]
        spec = json.loads(json.dumps({**runtime["spec"], **{key: predictor[key] for key in ("securityContext", "terminationGracePeriodSeconds")}})
                          .replace("{{.Name}}", name))
        # As KServe's storage initializer leaves it.
        spec["volumes"].append({"name": "models", "emptyDir": {}})
        spec["containers"][0]["volumeMounts"].append({"name": "models", "mountPath": "/mnt/models"})
        pod = self.cluster.create("llm-predictor-0", {"metadata": {}, "spec": spec}, before_start=lambda pod: subprocess.run(
            ["sh", "-c", f"cp -r {model}/. {pod.folder}/volumes/models/ && chmod -R a+rX {pod.folder}/volumes/models"], check=True))
        self.cluster.wait_for(pod.name, "startupProbe")
        status, said = pod.http("/v1/models", "http")
        self.assertEqual((status, [entry["id"] for entry in json.loads(said)["data"]]), (200, [name]))
        self.assertEqual(self.cluster.delete(pod.name)[0], 0)


@unittest.skipIf(REASON, REASON)
class VariantsTest(Case):
    """Other components and examples, each in a cluster of its own."""

    def setUp(self):
        self.cluster = self.enterContext(MiniCluster(PROGRAMS))

    def test_workers_join_with_certificates_of_cert_manager_and_api_keys(self):
        documents = overlay(("cert-manager",))
        with tempfile.TemporaryDirectory() as folder:
            self.issue(folder, [d for d in documents if d["kind"] == "Certificate"])
        keys = {"coordinator": "key-of-an-administrator\nkey-of-all-the-workers role=worker\n", "worker": "key-of-all-the-workers role=worker\n"}
        self.secret("espalier-keys", **keys)
        self.cluster.apply(documents)
        self.cluster.wait_for(COORDINATOR, "readinessProbe")
        for name in WORKERS:
            self.cluster.wait_for(name, "startupProbe")
        status = ["env", "ESPALIER_TOKEN=key-of-an-administrator", "espalier", "--coordinator=localhost:7070", "status", "--json"]
        wanted = {f"{name}.espalier-worker.espalier.svc:7071" for name in WORKERS}
        self.cluster.wait("workers", lambda: {worker["address"] for worker in json.loads(self.coordinator().exec(status).stdout).get("workers", [])
                                              if worker["state"].lower() == "idle"} == wanted)

    def issue(self, folder, certificates):
        """As cert-manager would: by OpenSSL, the CA first."""
        ca = [os.path.join(folder, name) for name in ("ca.crt", "ca.key")]
        new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        subprocess.run([*new, "-subj", "/CN=espalier", "-out", ca[0], "-keyout", ca[1]], check=True, capture_output=True)
        for certificate in (c["spec"] for c in certificates if not c["spec"].get("isCA")):
            names = ",".join(f"DNS:{name}" for name in certificate["dnsNames"])
            own = [os.path.join(folder, name) for name in ("tls.crt", "tls.key")]
            subprocess.run([*new, "-subj", "/", "-CA", ca[0], "-CAkey", ca[1], "-addext", f"subjectAltName={names}", "-addext",
                            "basicConstraints=critical,CA:FALSE", "-out", own[0], "-keyout", own[1]], check=True, capture_output=True)
            self.secret(certificate["secretName"], tls_crt=read(own[0]), tls_key=read(own[1]), ca_crt=read(ca[0]))

    def test_a_second_coordinator_takes_over(self):
        with tempfile.TemporaryDirectory() as folder:
            self.issue(folder, [{"spec": {"secretName": name, "dnsNames": [host]}} for name, host in
                                (("etcd", "etcd-client"), ("espalier-etcd", "espalier"))])
        self.cluster.apply([{"kind": "Service", "metadata": {"name": "etcd-client"}, "spec": {"selector": {"app": "etcd"}}}])
        self.cluster.create("etcd-0", {"metadata": {"labels": {"app": "etcd"}}, "spec": ETCD})
        self.cluster.apply(overlay(("standby",)))
        names = [COORDINATOR, "espalier-coordinator-1"]

        def ready():
            return [name for name in names if name in self.cluster.pods and self.cluster.pods[name].probe("readinessProbe")]
        self.cluster.wait("one leads", ready)
        leader = ready()[0]
        other = next(name for name in names if name != leader)
        self.cluster.wait_for(other, "livenessProbe")
        self.assertEqual(ready(), [leader])
        self.secret("espalier-join", token=self.cluster.pods[leader].exec(["espalier", "token", "create", "--role=worker", "--uses=2"]).stdout)
        self.joined(by=leader)
        self.cli("jobs", "list", by=leader)
        status, _ = self.cluster.delete(leader)
        self.assertEqual(status, 0)
        self.cluster.wait("the other one leads", lambda: ready() == [other], 60)
        self.joined(by=other)
        self.cluster.reconcile()
        self.cluster.wait_for(leader, "livenessProbe")
        self.assertEqual(ready(), [other])

    def test_a_train_job_brings_its_workers_and_ends_with_its_launcher(self):
        documents = overlay(())
        for document in documents:
            if document["metadata"]["name"] == "espalier-worker" and document["kind"] == "StatefulSet":
                document["spec"]["replicas"] = 0
        self.cluster.apply(documents)
        self.cluster.wait_for(COORDINATOR, "readinessProbe")
        for secret, role in ("espalier-join", ["worker", "--uses=2"]), ("espalier-client", ["train"]):
            self.secret(secret, token=self.coordinator().exec(["espalier", "token", "create", f"--role={role[0]}", *role[1:]]).stdout)
        runtime, job = example("kubeflow-trainer")
        jobs = {item["name"]: item["template"]["spec"]["template"] for item in runtime["spec"]["template"]["spec"]["replicatedJobs"]}
        patch = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]
        environment = patch["template"]["spec"]["template"]["spec"]["containers"][0]["env"]
        launcher = jobs[patch["name"]]
        container = launcher["spec"]["containers"][0]
        container["env"] = [entry for entry in container["env"] if entry["name"] != environment[0]["name"]] + environment
        container["env"][-1]["value"] = container["env"][-1]["value"].replace("--steps=200", "--steps=20") + " --max-devices=2"
        for number in range(2):
            self.cluster.create(f"llm-node-0-{number}", {"metadata": {}, **jobs["node"]})
        text = os.path.join("/tmp", "text")
        self.coordinator().exec(["tee", text], given=read(os.path.join(DATA, "genesis.txt")))
        self.coordinator().exec(["espalier", "models", "upload", "text", text])
        pod = self.cluster.create("llm-launcher-0-0", {"metadata": {}, **launcher})
        try:
            self.assertEqual(pod.process.wait(240), 0, pod.said())
        finally:
            del self.cluster.pods[pod.name]
            pod.close()
        self.assertEqual(self.cli("jobs", "list")["jobs"][0]["state"].lower(), "succeeded")

if __name__ == "__main__":
    unittest.main()
