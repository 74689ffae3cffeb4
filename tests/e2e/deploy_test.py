"""deploy/Containerfile, deploy/prometheus and deploy/grafana match the programs. Of deploy/kubernetes: tests/kubernetes."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

import yaml

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import dashboards  # noqa: E402
from cluster import PROGRAMS, ROOT  # noqa: E402

DEPLOY = os.path.join(ROOT, "deploy")
PROMTOOL = "/usr/bin/promtool"


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


class DeployTest(unittest.TestCase):
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
