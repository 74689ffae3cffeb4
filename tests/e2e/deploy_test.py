"""deploy/kubernetes and deploy/Containerfile match the programs: flags, ports, probes, names."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import yaml

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import dashboards  # noqa: E402
from cluster import PROGRAMS, ROOT, Cluster, write_private  # noqa: E402
from manifests import (
    VARIABLE,
    arguments_of,
    container_ports,
    faults,
    listens_on,
    load,
    pods_of,
    probes_of,  # noqa: E402
    program_of,
)

DEPLOY = os.path.join(ROOT, "deploy")
MANIFESTS = os.path.join(DEPLOY, "kubernetes")
PROMTOOL = "/usr/bin/promtool"
KEY = "a-key-of-this-test"


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def image():
    """The entrypoint and the default arguments of the image."""
    text = read(os.path.join(DEPLOY, "Containerfile"))
    entrypoint, arguments = (json.loads(re.search(rf"^{word} (\[.*\])$", text, re.M).group(1)) for word in ("ENTRYPOINT", "CMD"))
    return entrypoint, arguments


def image_packages():
    """The packages that the last stage of the image installs."""
    last = read(os.path.join(DEPLOY, "Containerfile")).rsplit("\nFROM ", 1)[1].replace("\\\n", " ")
    words = re.search(r"apt-get install ([^&]*)", last).group(1).split()
    return {word for word in words if not word.startswith("-")}


def with_dependencies(packages):
    """These packages, those that every Debian has, and all that they depend on, as dpkg knows them here."""
    asked = "${Package}\\t${Priority}\\t${Pre-Depends}, ${Depends}\\t${Provides}\\n"
    rows = [row.split("\t") for row in subprocess.run(["dpkg-query", "-W", "-f", asked], capture_output=True, text=True, check=True).stdout.splitlines()]

    def names(field):
        return [re.split(r"[ :(|]", name.strip())[0] for name in field.split(",") if name.strip()]

    depends = {package: names(needs) for package, _, needs, _ in rows}
    provided = {name: package for package, _, _, provides in rows for name in names(provides)}
    there, asked = set(), [*packages, *(package for package, priority, _, _ in rows if priority == "required")]
    while asked:
        package = asked.pop()
        package = package if package in depends else provided.get(package)
        if package is not None and package not in there:
            there.add(package)
            asked += depends[package]
    return there


def libraries_of(program):
    """The shared libraries that the loader takes for a program: {name: path}."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return dict(re.findall(r"^\s*(\S+) => (/\S+)", said, re.M))


def owner_of(path):
    """The package that a file is from."""
    for name in (path, os.path.realpath(path), re.sub("^/usr", "", os.path.realpath(path))):
        done = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.split(":")[0]
    raise AssertionError(f"no package owns {path}")


def mistakes(documents):
    """Returns (mistake, change that makes it, expected message), one per place where it can be made."""

    def pod(d):
        return documents[d]["spec"]["template"]["spec"]

    def put(value, *path):
        def change(changed):
            for key in path[:-1]:
                changed = changed[key]
            changed[path[-1]] = value

        return change

    for d, document in enumerate(documents):
        if "namespace" in document["metadata"]:
            yield f"{d}: namespace", put("elsewhere", d, "metadata", "namespace"), "namespace elsewhere"
        if document["kind"] == "NetworkPolicy":
            closed, rules = "opens to another namespace", document["spec"]["ingress"]
            for r in (r for r, rule in enumerate(rules) if "ports" in rule):
                at = (d, "spec", "ingress", r)
                yield f"{d}: rules", put(rules[:r] + rules[r + 1 :], d, "spec", "ingress"), closed
                yield f"{d}: rule {r}", put([{"podSelector": {}}], *at, "from"), closed
                yield f"{d}: rule {r}", put(7070, *at, "ports", 0, "port"), closed
                yield f"{d}: rule {r}", put("metrics", *at, "ports", 0, "port"), "opens port metrics"
        if document["kind"] == "Service":
            yield f"{d}: selector", put({"app": "nothing"}, d, "spec", "selector"), "selects no pods"
            for p in range(len(document["spec"]["ports"])):
                yield f"{d}: target {p}", put("nowhere", d, "spec", "ports", p, "targetPort"), "goes to nowhere"
            if document["spec"].get("clusterIP") == "None":
                yield f"{d}: head", put("", d, "spec", "clusterIP"), "is no headless service"
                yield f"{d}: port", put(1, d, "spec", "ports", 0, "port"), "the pod's port itself"
            if document["spec"].get("publishNotReadyAddresses"):
                yield f"{d}: not ready", put(False, d, "spec", "publishNotReadyAddresses"), "only once it is ready"
        if "template" not in document.get("spec", {}):
            continue
        at = (d, "spec", "template", "spec")
        yield f"{d}: labels", put({}, d, "spec", "template", "metadata", "labels"), "does not select"
        for v, volume in enumerate(pod(d).get("volumes", [])):
            if "persistentVolumeClaim" in volume:
                change = put("gone", *at, "volumes", v, "persistentVolumeClaim", "claimName")
                yield f"{d}: claim {v}", change, "claims gone"
        for c, container in enumerate(pod(d)["containers"]):
            here = (*at, "containers", c)
            yield f"{d}: command", put(["/usr/local/bin/espalierx"], *here, "command"), "no program"
            for a, (flag, value) in enumerate(arguments_of(container)):
                rest = "=" + value if value else ""
                yield flag, put(f"{flag}x{rest}", *here, "args", a), "unknown flag"
                if not value:
                    yield flag, put(f"{flag}=maybe", *here, "args", a), "Illegal value 'maybe'"
                if value.startswith("/"):
                    yield flag, put(f"{flag}=/nowhere", *here, "args", a), "lies in no volume"
                if VARIABLE.search(value):
                    changed = VARIABLE.sub("$(NOTHING)", value)
                    yield flag, put(f"{flag}={changed}", *here, "args", a), "$(NOTHING)"
                if flag == "--coordinator":
                    host, port = value.split(":")
                    yield flag, put(f"{flag}=x{host}:{port}", *here, "args", a), "is no service's"
                    yield flag, put(f"{flag}={host}:1", *here, "args", a), "has no port 1"
                    services = [s for s in documents if s["kind"] == "Service"]
                    for other, number in [(s["metadata"]["name"], p["port"]) for s in services for p in s["spec"]["ports"] if p["port"] != int(port)]:
                        change = put(f"{flag}={other}:{number}", *here, "args", a)
                        yield flag, change, "where --listen does not listen"
            for flag, host, port in listens_on(container):
                a = container["args"].index(f"{flag}={host}:{port}")
                yield flag, put(f"{flag}=127.0.0.1:{port}", *here, "args", a), "only the container itself"
            for p, port in enumerate(container.get("ports", [])):
                change = put(port["containerPort"] + 1, *here, "ports", p, "containerPort")
                yield f"{d}: port {p}", change, "the args listen on"
            for kind, probe in probes_of(container).items():
                how = next(how for how in probe if isinstance(probe[how], dict))
                yield f"{d}: {kind}", put("nowhere", *here, kind, how, "port"), f"{kind} asks port nowhere"
            for m in range(len(container.get("volumeMounts", []))):
                yield f"{d}: mount {m}", put("gone", *here, "volumeMounts", m, "name"), "mounts volume gone"


class DeployTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.texts = {name: read(os.path.join(MANIFESTS, name)) for name in os.listdir(MANIFESTS)}
        cls.entrypoint = image()[0][0]

    def test_manifests_are_consistent(self):
        self.assertTrue(self.texts)
        for name, text in self.texts.items():
            self.assertEqual(faults(load(text), PROGRAMS, self.entrypoint), [], name)

    def test_manifest_checks_find_every_mistake(self):
        made = 0
        for text in self.texts.values():
            for what, change, said in mistakes(load(text)):
                documents = load(text)
                change(documents)
                with self.subTest(what, said=said):
                    found = faults(documents, PROGRAMS, self.entrypoint)
                    self.assertTrue(any(said in fault for fault in found), found)
                made += 1
        self.assertGreater(made, 30)

    def test_a_key_given_twice_is_refused(self):
        with self.assertRaisesRegex(yaml.YAMLError, "given twice: replicas"):
            load("spec:\n  replicas: 2\n  paused: true\n  replicas: 3\n")

    def test_the_image_starts_with_flags_that_its_program_takes(self):
        entrypoint, arguments = image()
        program = PROGRAMS[os.path.basename(entrypoint[0])]
        for extra, code in ([], 0), (["--no-such-flag"], 2):
            done = subprocess.run([program, *entrypoint[1:], *arguments, *extra, "--version"], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, code, done.stderr)

    def test_help_shows_the_flags(self):
        for name, flag in ("espalierd", "--http-listen"), ("espalier-worker", "--coordinator"):
            done = subprocess.run([PROGRAMS[name], "--help"], capture_output=True, text=True, timeout=60)
            self.assertIn(flag, done.stdout)
            self.assertEqual(done.returncode, 0)

    def test_failed_write_to_stdout_is_an_error(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([PROGRAMS["espalier"], "help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot be written", done.stderr)
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run([PROGRAMS["espalier"], "help"], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
        os.close(writer)
        self.assertEqual((done.returncode, done.stderr), (141, ""))

    def test_the_image_has_the_libraries_of_its_programs(self):
        packages = image_packages()
        owners = {owner_of(path) for program in PROGRAMS.values() for path in libraries_of(program).values()}
        self.assertGreater(len(owners), 10)
        self.assertEqual(owners - with_dependencies(packages), set())
        # The programs load libcurl when they need it first (storage/s3/curl_library.h).
        self.assertEqual(packages - {*owners, "ca-certificates", "curl", "libcurl4"}, set(), "no program needs these")

    # A probe shows no key, whatever the daemon wants of others.
    def test_probes_are_answered_with_the_switches_of_the_manifest(self):
        asked = 0
        with tempfile.TemporaryDirectory() as folder:
            keys = os.path.join(folder, "keys")
            write_private(keys, KEY + "\n")
            for _, _, pod in (pod for text in self.texts.values() for pod in pods_of(load(text))):
                for container in pod["containers"]:
                    paths = {probe["httpGet"]["path"] for probe in probes_of(container).values() if "httpGet" in probe}
                    if not paths:
                        continue
                    self.assertEqual(os.path.basename(program_of(container, self.entrypoint)), "espalierd")
                    switches = [flag for flag in container["args"] if "=" not in flag]
                    with mock.patch.dict(os.environ, ESPALIER_TOKEN=KEY), Cluster(workers=0, daemon_flags=[*switches, f"--api-key-file={keys}"]) as cluster:
                        for path in sorted(paths):
                            status, said = cluster.get(path, token="")
                            self.assertEqual(status, 200, f"{path}: {said}")
                            asked += 1
                        self.assertEqual(cluster.get("/metrics", token="")[0], 401)
        self.assertGreaterEqual(asked, 2)

    def test_prometheus_scrapes_the_metrics_port(self):
        for text in self.texts.values():
            for document, _, pod in pods_of(load(text)):
                notes = document["spec"]["template"]["metadata"].get("annotations", {})
                if notes.get("prometheus.io/scrape") != "true":
                    continue
                self.assertEqual(container_ports(pod)["http"], int(notes["prometheus.io/port"]))
                with Cluster(workers=0) as cluster:
                    status, metrics = cluster.get(notes["prometheus.io/path"])
                self.assertEqual(status, 200)
                self.assertIn("espalier_", metrics)

    def test_promtool_accepts_rules_and_configuration(self):
        for what, name in ("config", "prometheus.yml"), ("rules", "rules.yml"):
            done = subprocess.run([PROMTOOL, "check", what, os.path.join(DEPLOY, "prometheus", name)], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_promtool_alert_fires_when_coordinator_is_down(self):
        alert = next(
            rule
            for group in yaml.safe_load(read(os.path.join(DEPLOY, "prometheus", "rules.yml")))["groups"]
            for rule in group["rules"]
            if rule.get("alert") == "EspalierCoordinatorDown"
        )

        def seen(labels, summary):
            annotations = {**alert["annotations"], "summary": summary}
            labels = {**alert["labels"], **labels}
            return [{"exp_labels": labels, "exp_annotations": annotations}]

        static, found = 'job="espalier", instance="a:1"', 'job="pods", instance="10.0.0.1:8080"'
        gone = seen({}, "The coordinator does not answer")
        down = seen({"job": "espalier", "instance": "a:1"}, "The coordinator at a:1 does not answer")
        series = lambda labels, up, workers: [  # noqa: E731
            {"series": f"up{{{labels}}}", "values": up},
            {"series": f'espalier_workers{{state="idle", {labels}}}', "values": workers},
        ]
        tests = [
            {"interval": "1m", "input_series": given, "alert_rule_test": [{"eval_time": "25m", "alertname": alert["alert"], "exp_alerts": alerts}]}
            for given, alerts in [
                (series(static, "1x30", "1x30"), []),
                (series(static, "1x5 0x25", "1x5 _x25"), down),
                (series(found, "1x30", "1x30"), []),
                (series(found, "1x5 _x25", "1x5 _x25"), gone),
            ]
        ]
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            yaml.safe_dump({"rule_files": [os.path.abspath(os.path.join(DEPLOY, "prometheus", "rules.yml"))], "tests": tests}, file)
            file.flush()
            done = subprocess.run([PROMTOOL, "test", "rules", file.name], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_promtool_parses_dashboard_queries(self):
        rules = [
            {"record": f"panel:{i}", "expr": expression}
            for i, (_, expression) in enumerate(question for dashboard in dashboards.load().values() for question in dashboards.expressions_of(dashboard))
        ]
        self.assertGreater(len(rules), 20)
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}, file)
            file.flush()
            done = subprocess.run([PROMTOOL, "check", "rules", file.name], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_dashboards_are_valid(self):
        for name, dashboard in dashboards.load().items():
            for word in ("uid", "title", "schemaVersion"):
                self.assertTrue(dashboard[word], name)
            variables = {"${" + variable["name"] + "}" for variable in dashboard["templating"]["list"]}
            ids, cells = set(), set()
            for panel in dashboard["panels"]:
                self.assertNotIn(panel["id"], ids, panel["title"])
                ids.add(panel["id"])
                at = panel["gridPos"]
                self.assertLessEqual(at["x"] + at["w"], 24, panel["title"])
                mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
                self.assertFalse(mine & cells, f"{panel['title']} lies over another")
                cells |= mine
            for panel in dashboards.panels_of(dashboard):
                self.assertTrue(panel["title"] and panel["description"] and panel["fieldConfig"]["defaults"]["unit"])
                for target in panel["targets"]:
                    self.assertTrue(target["legendFormat"], panel["title"])
                    self.assertIn(target["datasource"]["uid"], variables, panel["title"])


if __name__ == "__main__":
    unittest.main()
