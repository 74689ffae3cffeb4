"""`espalier launch k8s`: one command from nothing to a trained model, with the pods as processes (mini_cluster.py)."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e")]
from cluster import DATA, PROGRAMS  # noqa: E402
from mini_cluster import MiniCluster, why_not  # noqa: E402
from rendering import schema_faults, kustomize  # noqa: E402
from stand_in_kubectl import StandInKubectl  # noqa: E402

REASON = why_not()
if not REASON and os.environ.get("ESPALIER_TEST_PODS") != "entered":
    os.execvpe("unshare", ["unshare", "--net", "--mount", "--uts", "--", sys.executable, *sys.argv], dict(os.environ, ESPALIER_TEST_PODS="entered"))
IMAGE = "registry.example:5000/team/espalier:1.2"
TRAIN = ["--", "train", "--model=llama:hidden=64,layers=2,heads=4,kv_heads=2,intermediate=128,positions=64", "-d",
         os.path.join(DATA, "genesis.txt"), "--sequence-length=32", "-b", "16", "--steps=4", "--only-data-parallel"]


@unittest.skipIf(REASON, REASON)
class LaunchKubernetesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(MiniCluster(PROGRAMS))
        cls.kubectl = cls.enterClassContext(StandInKubectl(cls.cluster, kustomize))
        cls.home = cls.enterClassContext(tempfile.TemporaryDirectory())

    def espalier(self, *words, home=None):
        environment = {"PATH": os.environ["PATH"], "HOME": self.home, "ESPALIER_HOME": home or self.home}
        return subprocess.run([PROGRAMS["espalier"], *words], capture_output=True, text=True, timeout=300, env=environment)

    def launch(self, *words, home=None):
        return self.espalier("launch", "k8s", f"--kubectl={self.kubectl.path}", *words, home=home)

    def test_one_command_trains_and_one_stops(self):
        done = self.launch(f"--image={IMAGE}", "--workers=2", "--cpu=1", "--memory=3Gi", "--trusted-network", "--namespace=espalier", *TRAIN)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("succeeded", done.stdout)
        self.assertIn("namespace espalier of the context lab\n", done.stdout)
        self.assertIn("stop it: espalier launch k8s --namespace=espalier --stop", done.stdout)
        for documents in self.kubectl.applied:
            self.assertEqual([fault for document in documents for fault in schema_faults(document)], [])
        sets = {d["metadata"]["name"]: d for d in self.kubectl.applied[-1] if d["kind"] == "StatefulSet"}
        containers = {name: d["spec"]["template"]["spec"]["containers"][0] for name, d in sets.items()}
        self.assertEqual({container["image"] for container in containers.values()}, {IMAGE})
        self.assertEqual(containers["espalier-worker"]["resources"], {"requests": {"cpu": "1", "memory": "3Gi"}, "limits": {"memory": "3Gi"}})
        self.assertIn("--trusted-network", containers["espalier-worker"]["args"])
        # Used as it says.
        home = done.stdout.partition("export ESPALIER_HOME=")[2].split()[0]
        forward = done.stdout.partition("use it:  ")[2].partition(" &\n")[0].split()
        with subprocess.Popen(forward, stdout=subprocess.PIPE, text=True) as process:
            self.assertRegex(process.stdout.readline(), "^Forwarding from 127.0.0.1:7070 -> 7070|8080")
            process.stdout.readline()
            jobs = self.espalier("jobs", "list", "--json", home=home)
            process.kill()
        self.assertEqual([job["state"].upper() for job in json.loads(jobs.stdout)["jobs"]], ["SUCCEEDED"], jobs.stderr)
        # Another launch changes what runs: here, nothing but the token. Applied once, since there are pods that have one.
        applied = len(self.kubectl.applied)
        done = self.launch(f"--image={IMAGE}", "--workers=2", "--cpu=1", "--memory=3Gi", "--namespace=espalier", "--json", home=home)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.kubectl.applied), applied + 1)
        self.assertEqual(json.loads(done.stdout.splitlines()[-1])["home"], home)
        done = self.launch("--stop", "--namespace=espalier")
        self.assertEqual((done.returncode, self.cluster.pods, self.kubectl.deleted_volumes), (0, {}, []), done.stderr)
        self.assertIn("stays, with jobs and models", done.stdout)
        self.assertFalse(os.path.exists(home))
        done = self.launch("--stop", "--delete-data", "--namespace=espalier")
        self.assertEqual((done.returncode, self.kubectl.deleted_volumes), (0, ["data-espalier-coordinator-0"]), done.stderr)

    def test_why_pods_do_not_run_is_said(self):
        self.kubectl.troubles = "espalier-coordinator-0\tErrImagePull\t\nespalier-x-0\t\t0/3 nodes are available\nespalier-y-0\t\t\n"
        self.addCleanup(self.launch, "--stop")
        self.addCleanup(setattr, self.kubectl, "troubles", "")
        done = self.launch(f"--image={IMAGE}")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("espalier-coordinator-0: ErrImagePull\nespalier-x-0: 0/3 nodes are available\n", done.stdout)
        self.assertNotIn("espalier-y-0", done.stdout)
        self.assertIn("timed out waiting for the condition", done.stderr)

    def test_a_mistake_is_said_with_what_to_do(self):
        for refused, words, error in (
                ({"apply": 'Error from server (NotFound): namespaces "lab" not found'}, [f"--image={IMAGE}", "--namespace=lab"],
                 "create namespace lab"),
                ({"apply": "The connection to the server localhost:8080 was refused - did you specify"}, [f"--image={IMAGE}"],
                 "kubectl knows no cluster: `"),
                ({}, [f"--image={IMAGE}", "--", "train", "--model=llama:tiny", "-d", "/nowhere.txt"], "there is no file /nowhere.txt"),
                ({}, [f"--image={IMAGE}", "--", "train", "--model=llama:tiny"], "missing --dataset=FILE"),
                ({}, ["--image=not an image"], "is no name of an image"),
                ({}, [], "missing: --image=REGISTRY/espalier:TAG"),
                ({}, [f"--image={IMAGE}", "--nodes=2"], "--nodes applies to launch slurm, not to launch k8s"),
                ({}, [f"--image={IMAGE}", "--kubectl=/nowhere/kubectl"], "/nowhere/kubectl is not there; install it")):
            with self.subTest(error):
                self.kubectl.refused = refused
                self.addCleanup(self.kubectl.refused.clear)
                done = self.launch(*words)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(error, done.stderr)
        self.assertEqual(self.cluster.pods, {}, "nothing has been started")


if __name__ == "__main__":
    unittest.main()
