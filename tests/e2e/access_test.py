"""What clients, other users of the host and web pages must not reach."""
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Cluster, Failed  # noqa: E402

TINY = ("--model=llama:hidden=32,layers=1,heads=2,kv_heads=2,intermediate=64,positions=32", "--sequence-length=16", "-b", "2",
        "--steps=2", "--holdout=0")
SECRET = "the key of the operator: 0123456789\n" * 20


class FilesOfTheHostTest(unittest.TestCase):
    """A model repeats what it was trained on, so a path in a job reads that file."""

    def refused(self, cluster, path):
        with self.assertRaises(Failed) as failed:
            cluster.train(*TINY, "-d", path, "--no-upload", "--dataset-format=text")
        self.assertIn("--dataset-root", failed.exception.err)
        with self.assertRaises(Failed) as failed:
            cluster.run("train", "--dry-run", *TINY, "-d", path, "--no-upload", "--dataset-format=text")
        self.assertIn("--dataset-root", failed.exception.err)

    def test_only_files_beneath_a_dataset_root_are_read(self):
        with Cluster(workers=0, daemon_flags=["--local-workers=1"]) as cluster:
            secret = os.path.join(cluster.folder, "secret.txt")
            with open(secret, "w") as file:
                file.write(SECRET)
            for path in (secret, "/etc/passwd", "/proc/self/environ", os.path.join(cluster.folder, "data", "espalier.db")):
                self.refused(cluster, path)
            # The user's own file is uploaded, once.
            for _ in range(2):
                job = cluster.wait_for_job(cluster.train(*TINY, "-d", secret))
                self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
            self.assertEqual(sum(a["kind"].upper() == "DATASET" for a in cluster.run("models")["artifacts"]), 1)

    def test_dataset_root_opens_one_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            sets, secret = os.path.join(folder, "sets"), os.path.join(folder, "secret.txt")
            os.mkdir(sets)
            text, link = os.path.join(sets, "text.txt"), os.path.join(sets, "link.txt")
            for path in (text, secret):
                with open(path, "w") as file:
                    file.write(SECRET)
            os.symlink("../secret.txt", link)
            with Cluster(workers=0, daemon_flags=["--local-workers=1", f"--dataset-root={sets}"]) as cluster:
                self.refused(cluster, secret)
                self.refused(cluster, link)
                job = cluster.wait_for_job(cluster.train(*TINY, "-d", text, "--no-upload"))
                self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
                # A worker that the daemon did not start has roots of its own.
                cluster.start_worker()
                cluster.wait_for_workers(2)
                job = cluster.wait_for_job(cluster.train(*TINY, "-d", text, "--no-upload", "--only-data-parallel"))
                self.assertEqual(job["state"].upper(), "FAILED", job)
                self.assertIn("--dataset-root", job["error"])


if __name__ == "__main__":
    unittest.main()
