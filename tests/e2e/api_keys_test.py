"""Rotation of API keys while the daemons run: calls with a key in the file succeed, calls with a removed key fail."""
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, Cluster, Failed, write_private  # noqa: E402

OLD, NEW = "the-key-of-yesterday", "the-key-of-tomorrow"


class ApiKeysTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.file = os.path.join(self.folder.name, "keys")
        self.put(OLD)
        os.environ["ESPALIER_TOKEN"] = OLD
        self.cluster = Cluster(workers=0, daemon_flags=[f"--api-key-file={self.file}", "--local-workers=1", "--lease-seconds=2"])

    def tearDown(self):
        del os.environ["ESPALIER_TOKEN"]
        self.cluster.close()
        self.folder.cleanup()

    def put(self, *keys):
        """As Kubernetes does: another file in its place."""
        write_private(self.file + ".new", "\n".join(keys) + "\n")
        os.rename(self.file + ".new", self.file)

    def change(self, *keys):
        """Replaces the keys and waits until daemon and worker have read them, as required between steps of a rotation."""
        before = self.log().count("API keys reloaded")
        self.put(*keys)
        self.cluster.wait(lambda: self.log().count("API keys reloaded") == before + 2, 20, "both read the keys again")

    def status(self, key):
        return self.cluster.request("GET", "/v1/models", token=key)[0]

    def train(self, key, name):
        """On the worker, which the coordinator calls and which calls it back."""
        os.environ["ESPALIER_TOKEN"] = key
        job = self.cluster.train("--model=llama:hidden=32,layers=1,heads=2,kv_heads=2,intermediate=64,positions=32", "-d",
                                 os.path.join(DATA, "genesis.txt"), "--sequence-length=16", "-b", "2", "--steps=2",
                                 f"--name={name}")
        self.assertEqual(self.cluster.wait_for_job(job)["state"].upper(), "SUCCEEDED")

    def test_keys_are_rotated_without_a_restart(self):
        self.assertEqual((self.status(OLD), self.status(NEW)), (200, 401))
        self.train(OLD, "first")
        self.change(OLD, NEW)
        self.assertEqual((self.status(OLD), self.status(NEW)), (200, 200))
        self.change(NEW, OLD)
        self.train(NEW, "second")
        self.change(NEW)
        self.assertEqual((self.status(OLD), self.status(NEW)), (401, 200))
        with self.assertRaises(Failed):
            os.environ["ESPALIER_TOKEN"] = OLD
            self.cluster.run("status")
        # The worker is there still: its lease goes on by calls that show the new key.
        self.train(NEW, "third")
        workers = self.cluster.run("status")["workers"]
        self.assertEqual([(w["worker_id"], w["state"].upper()) for w in workers], [("w1", "IDLE")], workers)
        # A file that is not right changes nothing.
        self.put("short")
        self.cluster.wait(lambda: "stay in use" in self.log(), 20, "the log says so")
        self.assertEqual((self.status(NEW), self.status(OLD)), (200, 401))

    def test_keys_authenticate_but_do_not_isolate_users(self):
        """As --help of --api-key-file says: every key has access to all jobs and artifacts."""
        self.change(OLD, NEW)
        self.train(OLD, "theirs")
        os.environ["ESPALIER_TOKEN"] = NEW
        job = self.cluster.run("jobs")["jobs"][0]
        self.assertEqual(self.cluster.job(job["id"])[0]["spec"]["name"], "theirs")
        self.cluster.run("models", "delete", job["output_model"])
        self.assertNotIn(job["output_model"], [a["name"] for a in self.cluster.run("models")["artifacts"]])

    def log(self):
        with open(self.cluster.logs[0], errors="replace") as log:
            return log.read()


if __name__ == "__main__":
    unittest.main()
