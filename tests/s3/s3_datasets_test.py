"""Datasets from S3: read by the daemon and the workers with their own credentials, and only where the operator allows it."""
import os
import sys
import tempfile
import unittest
import unittest.mock as mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "e2e")]
import s3_environment  # noqa: E402

TEXT = b"".join(b"line %d of a text to be learned\n" % i for i in range(600))
TINY = ("--model=llama:hidden=32,layers=1,heads=2,kv_heads=2,intermediate=64,positions=32", "--sequence-length=16", "-b", "2",
        "--steps=3", "--holdout=0", "--only-data-parallel")


class S3DatasetsTest(unittest.TestCase):
    def setUp(self):
        from cluster import Cluster
        from s3_server import BUCKET, S3Server

        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.server = self.enterContext(S3Server(folder))
        self.bucket = BUCKET
        self.put("sets/text.txt", TEXT)
        self.put("secret.txt", TEXT)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self.enterContext(mock.patch.dict(os.environ, {**clean, **self.server.environment}, clear=True))
        self.root = f"--dataset-root=s3://{BUCKET}/sets"
        self.cluster = lambda **options: self.enterContext(
            Cluster(**{"workers": 2, "daemon_flags": [self.root], "worker_flags": [self.root], **options}))
        self.text = f"s3://{BUCKET}/sets/text.txt"

    def put(self, key, content):
        """Without the proxy, as somebody else does."""
        import boto3

        environment = self.server.environment
        boto3.client("s3", endpoint_url=self.server.url, region_name="us-east-1",
                     aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
                     aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"]).put_object(
            Bucket=self.bucket, Key=key, Body=content)

    def train(self, cluster, dataset, *flags):
        return cluster.wait_for_job(cluster.train(*TINY, "-d", dataset, *flags))

    def losses(self, cluster, dataset):
        job = cluster.train(*TINY, "-d", dataset)
        found = cluster.wait_for_job(job)
        self.assertEqual(found["state"].upper(), "SUCCEEDED", found)
        return cluster.losses(job)

    def reads(self):
        return [request for request in self.server.rules.requests if request.startswith("GET") and "text.txt" in request]

    def test_trains_as_on_the_file_itself(self):
        cluster = self.cluster()
        file = os.path.join(cluster.folder, "text.txt")
        with open(file, "wb") as out:
            out.write(TEXT)
        of_file = self.losses(cluster, file)
        # What passes is not seen.
        self.server.rules.set([{"method": "GET", "match": "text.txt", "do": "status", "status": 503, "code": "SlowDown"},
                               {"method": "GET", "match": "text.txt", "do": "truncate"},
                               {"method": "HEAD", "match": "text.txt", "do": "reset"}])
        self.assertEqual(self.losses(cluster, self.text), of_file)

        # Kept by ETag: workers that come back do not read it again.
        before = len(self.reads())
        for number in range(2):
            cluster.kill(cluster.workers[number])
            cluster.start_worker(number)
        cluster.wait(lambda: sum(w["state"].upper() == "IDLE" for w in cluster.run("status")["workers"]) == 2, 60, "both are back")
        self.assertEqual(self.losses(cluster, self.text), of_file)
        self.assertEqual(len(self.reads()), before)

        # Another object of the name is another dataset.
        self.put("sets/text.txt", TEXT[::-1])
        self.assertNotEqual(self.losses(cluster, self.text), of_file)

    def test_other_objects_are_refused_before_any_request(self):
        from cluster import Failed

        cluster = self.cluster(workers=1)
        self.server.rules.requests.clear()
        for dataset in (f"s3://{self.bucket}/secret.txt", "s3://another-bucket/sets/text.txt", f"s3://{self.bucket}/sets/../secret.txt"):
            for flags in ((), ("--dry-run",)):
                with self.assertRaises(Failed) as failed:
                    cluster.run("train", *flags, *TINY, "-d", dataset)
                self.assertRegex(failed.exception.err, r"--dataset-root|'\.\.'")
        self.assertEqual(self.server.rules.requests, [])
        with self.assertRaises(Failed) as failed:
            cluster.run("train", *TINY, "-d", f"s3://{self.bucket}/sets/none.txt")
        self.assertIn(f"s3://{self.bucket}/sets/none.txt: 404 NoSuchKey", failed.exception.err)

    def test_a_worker_needs_credentials_and_roots_of_its_own(self):
        cluster = self.cluster(workers=0)
        with mock.patch.dict(os.environ, AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY=""):
            worker = cluster.start_worker()
        cluster.wait_for_workers(1)
        job = self.train(cluster, self.text)
        self.assertEqual(job["state"].upper(), "FAILED", job)
        self.assertIn("no AWS credentials were found", job["error"])
        cluster.kill(worker)
        cluster.worker_flags = []
        cluster.start_worker()
        cluster.wait(lambda: [w["name"] for w in cluster.run("status")["workers"] if w["state"].upper() == "IDLE"] == ["w1"], 60,
                     "the other worker")
        job = self.train(cluster, self.text)
        self.assertEqual(job["state"].upper(), "FAILED", job)
        self.assertIn("--dataset-root=s3://", job["error"])

    def test_without_s3_libcurl_is_not_loaded(self):
        cluster = self.cluster(daemon_flags=[], worker_flags=[])
        for process in (cluster.daemon, *cluster.workers):
            with open(f"/proc/{process.pid}/maps") as maps:
                self.assertNotIn("libcurl", maps.read())
        self.assertEqual([request for request in self.server.rules.requests if "text.txt" not in request and "secret" not in request], [])


if __name__ == "__main__":
    s3_environment.enter()
    unittest.main()
