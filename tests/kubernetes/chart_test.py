"""The Helm chart is what tools/helm/chart.py makes of deploy/kubernetes, and helm renders of it what kustomize renders."""
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "tools", "helm")]
from chart import Chart, written  # noqa: E402
from rendering import CHART, Refused, documents_of, overlay, run  # noqa: E402
from values import COMPONENTS  # noqa: E402

TOGETHER = (("s3", "pdb", "networkpolicy", "servicemonitor", "hpa", "gateway"), ("s3", "standby", "gpu"), ("web-identity", "gpu", "cert-manager", "hpa"),
            ("web-identity", "cert-manager", "standby-own-disks", "networkpolicy"))
ALONE = {"standby-own-disks": ("s3", "cert-manager", "standby-own-disks")}  # what it cannot do without


def without_order(node):
    """Neither flags nor items with names depend on their order."""
    if isinstance(node, dict):
        return {key: sorted(value) if key == "args" else without_order(value) for key, value in node.items()}
    if isinstance(node, list):
        items = [without_order(item) for item in node]
        return sorted(items, key=lambda item: item["name"]) if all(isinstance(item, dict) and "name" in item for item in items) else items
    return node


def by_name(documents):
    return {(document["kind"], document["metadata"]["name"]): without_order(document) for document in documents}


def rendered(*arguments):
    return documents_of(run("helm", "template", "espalier", CHART, "--namespace=espalier", *arguments))


class ChartTest(unittest.TestCase):
    maxDiff = None

    def test_the_chart_is_made_of_the_manifests(self):
        self.assertEqual(written(), Chart().files())

    def test_helm_renders_what_kustomize_renders(self):
        for components in ((), *(ALONE.get(name, (name,)) for name in COMPONENTS), *TOGETHER):
            switches = [f"--set={COMPONENTS[name][0]}.enabled=true" for name in components]
            self.assertEqual(by_name(rendered(*switches)), by_name(overlay(components)), components)

    def test_helm_finds_nothing_to_complain_about(self):
        self.assertIn("0 chart(s) failed", run("helm", "lint", "--strict", CHART))

    def test_values_stand_where_they_belong(self):
        documents = by_name(rendered("--set=worker.replicas=5,worker.cpu=16,worker.memory=64Gi,image.repository=r.example/espalier,image.tag=v1",
                                     "--set=coordinator.storage.className=fast,s3.enabled=true,s3.bucket=b/p,gpu.enabled=true",
                                     "--set-json=worker.extraArgs=[\"--trusted-network\"],image.pullSecrets=[{\"name\":\"r\"}],worker.nodeSelector={\"a\":\"b\"}"))
        coordinator, workers = (documents["StatefulSet", name]["spec"] for name in ("espalier-coordinator", "espalier-worker"))
        pod = workers["template"]["spec"]
        self.assertEqual(workers["replicas"], 5)
        self.assertEqual((pod["imagePullSecrets"], pod["nodeSelector"]), ([{"name": "r"}], {"a": "b"}))
        self.assertEqual(pod["containers"][0]["image"], "r.example/espalier:v1")
        self.assertEqual(pod["containers"][0]["resources"], {"requests": {"cpu": "16", "memory": "64Gi"},
                                                             "limits": {"memory": "64Gi", "nvidia.com/gpu": "1"}})
        self.assertIn("--trusted-network", pod["containers"][0]["args"])
        self.assertIn("--checkpoint-store=s3://b/p", coordinator["template"]["spec"]["containers"][0]["args"])
        self.assertEqual(coordinator["volumeClaimTemplates"][0]["spec"]["storageClassName"], "fast")

    def test_what_is_no_value_is_refused(self):
        for wrong, said in {
            "wrker.replicas=1": "additional properties 'wrker' not allowed",
            "worker.replica=1": "additional properties 'replica' not allowed",
            "worker.replicas=0": "minimum",
            "worker.replicas=many": "want integer",
            "worker.memory=64GB": "does not match pattern",
            "image.tag=a b": "does not match pattern",
            "image.pullPolicy=Sometimes": "must be one of",
            "s3.enabled=true,webIdentity.enabled=true": "'not' failed",
            "standby.enabled=true,certManager.enabled=true": "'not' failed",
            "standbyOwnDisks.enabled=true,s3.enabled=true": "certManager",
            "standbyOwnDisks.enabled=true,certManager.enabled=true": "s3",
        }.items():
            with self.subTest(wrong), self.assertRaisesRegex(Refused, said):
                rendered(f"--set={wrong}")


if __name__ == "__main__":
    unittest.main()
