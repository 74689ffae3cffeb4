"""What clients, other users of the host and web pages must not reach."""
import http.client
import json
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock as mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import PROGRAMS, Cluster, Failed, write_private  # noqa: E402

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
            cluster.wait_for_workers(1)
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
                cluster.wait_for_workers(1)
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


class OtherUsersTest(unittest.TestCase):
    def test_what_is_written_is_for_the_daemons_user(self):
        with Cluster(workers=1, daemon_flags=["--local-workers=1"]) as cluster:
            text = os.path.join(cluster.folder, "text.txt")
            with open(text, "w") as file:
                file.write(SECRET)
            data, cache = os.path.join(cluster.folder, "data"), os.path.join(cluster.folder, "cache0")
            cluster.wait_for_workers(2)
            job = cluster.wait_for_job(cluster.train(*TINY, "-d", text, "--only-data-parallel"))
            self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
            files = 0
            for top in (data, cache):
                for folder, _, names in os.walk(top):
                    self.assertEqual(os.stat(folder).st_mode & 0o777, 0o700, folder)
                    for name in names:
                        self.assertEqual(os.stat(os.path.join(folder, name)).st_mode & 0o777, 0o600, name)
                        files += 1
            kept = [os.path.join(folder, name) for top in (data, cache) for folder, _, names in os.walk(top)
                    for name in names if "espalier-cache-" in folder]
            self.assertEqual(len(kept), 2, "one for each worker")
            # What somebody else puts there is noticed.
            poisoned = next(path for path in kept if path.startswith(cache))
            with open(poisoned, "w") as file:
                file.write("x" * len(SECRET))
            cluster.kill(cluster.workers[0])
            cluster.workers.append(cluster.spawn("espalier-worker", f"--coordinator={cluster.grpc}", "--name=again",
                                                 "--threads=1", f"--cache-dir={cache}"))
            cluster.wait(lambda: {w["name"] for w in cluster.run("status")["workers"] if w["state"].upper() == "IDLE"} ==
                         {"again", "local-1"}, 60, "the new worker is there and the old one is not")
            again = cluster.wait_for_job(cluster.train(*TINY, "-d", text, "--only-data-parallel"))
            self.assertEqual(again["state"].upper(), "SUCCEEDED", again)
            with open(poisoned) as file:
                self.assertEqual(file.read(), SECRET)

    def test_open_key_file_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = os.path.join(folder, "keys")
            write_private(keys, "the-key-of-this-test\n")
            os.chmod(keys, 0o644)
            for program in ("espalierd", "espalier-worker"):
                done = subprocess.run([PROGRAMS[program], f"--api-key-file={keys}"], capture_output=True, text=True, timeout=60,
                                      cwd=folder)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(f"chmod 600 {keys}", done.stderr)


class OtherKeysTest(unittest.TestCase):
    """A caller could guess what others have asked from how much of it is cached."""
    KEYS = ("the-key-of-one-tenant", "the-key-of-another")

    def cached(self, cluster, key, prompt):
        body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": 1})
        status, text = cluster.request("POST", "/v1/completions", body, token=key)
        self.assertEqual(status, 200, text)
        return json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]

    def counts(self, *flags):
        """Cached tokens of one key's request, its repetition, and the same request with another key."""
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, ESPALIER_TOKEN=self.KEYS[0]):
            keys, text = os.path.join(folder, "keys"), os.path.join(folder, "text.txt")
            write_private(keys, "\n".join(self.KEYS) + "\n")
            with open(text, "w") as file:
                file.write(SECRET)
            with Cluster(workers=0, daemon_flags=["--local-workers=1", f"--api-key-file={keys}", *flags]) as cluster:
                cluster.wait_for_job(cluster.train(*TINY, "-d", text, "--name=m"))
                cluster.run("serve", "m")
                return [self.cached(cluster, key, "PIN=7391 and so on") for key in (self.KEYS[0], *self.KEYS)]

    def test_prefixes_are_shared_within_a_key_only(self):
        first, again, other = self.counts()
        self.assertEqual((first, other), (0, 0))
        self.assertGreater(again, 8)

    def test_prefixes_are_shared_if_the_operator_says_so(self):
        first, again, other = self.counts("--share-prefixes")
        self.assertEqual((first, other), (0, again))


class WebPagesTest(unittest.TestCase):
    def ask(self, cluster, method="GET", path="/v1/models", **headers):
        connection = http.client.HTTPConnection(cluster.http, timeout=30)
        try:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            reply = connection.getresponse()
            reply.read()
            return reply
        finally:
            connection.close()

    def test_pages_of_strangers_get_nothing(self):
        ours = "https://chat.example"
        with Cluster(workers=0, daemon_flags=[f"--http-allowed-origins={ours}"]) as cluster:
            self.assertEqual(self.ask(cluster).status, 200)
            self.assertEqual(self.ask(cluster, Host="localhost:1").status, 200)
            self.assertEqual(self.ask(cluster, Host="rebound.example").status, 403)
            self.assertEqual(self.ask(cluster, Host="127.0.0.1.rebound.example").status, 403)
            self.assertEqual(self.ask(cluster, Origin="https://other.example").status, 403)
            self.assertEqual(self.ask(cluster, Origin="null").status, 403)
            reply = self.ask(cluster, Origin=ours)
            self.assertEqual((reply.status, reply.headers["Access-Control-Allow-Origin"]), (200, ours))
            asked = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "content-type"}
            reply = self.ask(cluster, "OPTIONS", "/v1/chat/completions", Origin=ours, **asked)
            self.assertEqual((reply.status, reply.headers["Access-Control-Allow-Headers"]), (200, "content-type"))
            reply = self.ask(cluster, "OPTIONS", "/v1/chat/completions", Origin="https://other.example", **asked)
            self.assertEqual((reply.status, reply.headers["Access-Control-Allow-Origin"]), (403, None))


if __name__ == "__main__":
    unittest.main()
