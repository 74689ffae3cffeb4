"""Two coordinators with nothing in common but etcd and a bucket: one is killed and its disk is gone, and the other one has everything."""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock as mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "e2e")]
import s3_environment  # noqa: E402
from cluster import DATA, PROGRAMS, read  # noqa: E402
from standby_pair import ETCD, TTL, Pair  # noqa: E402

STEPS = 60
JOB = ["--model=llama:hidden=64,layers=2,heads=4,kv_heads=2,intermediate=128,positions=64", "-d",
       os.path.join(DATA, "genesis.txt"), "--sequence-length=32", "-b", "8", f"--steps={STEPS}", "--seed=5",
       "--checkpoint-every=10", "--only-data-parallel"]


class OwnDisks(Pair):
    def data_dir(self, name):
        return f"{self.folder}/data-{name}"


def bytes_of(path):
    with open(path, "rb") as file:
        return file.read()


@unittest.skipUnless(ETCD, "etcd is not installed: deploy/install.sh --tests")
class S3StandbyTest(unittest.TestCase):
    def setUp(self):
        from s3_server import BUCKET, S3Server

        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.server = self.enterContext(S3Server(self.folder))
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self.enterContext(mock.patch.dict(os.environ, {**clean, **self.server.environment}, clear=True))
        self.url = f"s3://{BUCKET}/espalier"
        self.stores = [f"--artifact-store={self.url}", f"--checkpoint-store={self.url}"]

    def curve(self, cluster, job_id):
        job = cluster.wait_for_job(job_id)
        self.assertEqual(job["state"].upper(), "SUCCEEDED", (job, cluster.job(job_id)[2]))
        losses = cluster.losses(job_id)
        self.assertEqual(sorted(losses), list(range(STEPS)))
        return losses

    def answer(self, cluster, name):
        body = json.dumps({"model": name, "prompt": "In the", "max_tokens": 8, "temperature": 0})
        cluster.http = cluster.places[name_of_leader(cluster)][1]
        status, text = cluster.request("POST", "/v1/completions", body)
        self.assertEqual(status, 200, text)
        return json.loads(text)["choices"][0]["text"]

    def artifacts(self, cluster):
        return {row["name"]: row["sha256"] for row in cluster.run("models")["artifacts"]}

    def test_the_other_coordinator_has_what_the_first_one_had(self):
        with OwnDisks(lease=3.0, daemon_flags=self.stores) as cluster:
            self.server.rules.set([{"match": "/artifacts/", "method": "PUT", "count": 3, "do": "status", "status": 503, "code": "SlowDown"}])
            undisturbed = self.curve(cluster, cluster.train(*JOB, "--name=lm"))
            cluster.cli("serve", "lm")
            said = self.answer(cluster, "lm")
            file = os.path.join(self.folder, "rows.npz")
            shutil.copyfile(os.path.join(DATA, "digits.npz"), file)
            cluster.cli("models", "upload", "rows", file, "--kind=dataset")
            uploaded = self.artifacts(cluster)
            upload = self.half_an_upload(cluster)
            job_id = cluster.train(*JOB, "--name=second")
            cluster.wait_for_step(job_id, 25)
            cluster.kill(cluster.coordinators["a"])
            cluster.kill(upload)
            shutil.rmtree(cluster.data_dir("a"))
            self.assertEqual(glob.glob(f"{cluster.data_dir('b')}/artifacts/data/*"), [])
            cluster.wait_until_leads("b", TTL + 1)
            self.assertEqual(self.answer(cluster, "lm"), said)
            found = self.artifacts(cluster)  # once, as the job may add its model meanwhile
            self.assertEqual({**found, **uploaded}, found)
            self.assertEqual(self.curve(cluster, job_id), undisturbed)
            self.assertEqual(cluster.job(job_id)[0]["attempts"], 2)
            cluster.cli("models", "download", "rows", f"{self.folder}/again")
            self.assertEqual(bytes_of(f"{self.folder}/again/rows.npz"), bytes_of(file))
            self.assertIn("second", self.artifacts(cluster))
            self.assertEqual({line.split()[-1] for line in self.server.rules.requests if "/artifacts/" in line},
                             {"200", "204", "206", "503", "reset"})
            # And the first one may come back, with an empty disk.
            cluster.start("a")
            cluster.wait(lambda: "standby" in cluster.http_of("a", "/ready")[1], 30, "a stands by")
            with self.subTest("another cluster may not use the prefix"):
                self.assertIn("give each a prefix of its own", self.refusal("--job-store=sqlite"))
                self.assertIn("give each a prefix of its own",
                              self.refusal(f"--job-store=etcd://127.0.0.1:{cluster.etcd.port}/other"))
            with self.subTest("nothing is left of what was deleted, and of the upload that the first one had under way"):
                cluster.cli("models", "delete", "rows")
                cluster.wait(lambda: len(self.folders()) == len(self.artifacts(cluster)), 10, "objects without an artifact are gone")
                self.assertEqual({name.rpartition("@r")[0] for name in self.folders()}, set(self.artifacts(cluster)))

    def half_an_upload(self, cluster):
        """The command, once one of two files is stored."""
        folder = os.path.join(self.folder, "half")
        os.mkdir(folder)
        for name in ("one.txt", "two.txt"):
            shutil.copyfile(os.path.join(DATA, "genesis.txt"), os.path.join(folder, name))
        self.server.rules.set([{"match": "/artifacts/half.*two", "do": "stall", "seconds": 60, "count": 9},
                               {"match": "/artifacts/", "method": "GET", "count": 2, "do": "truncate"},
                               {"match": "/artifacts/", "method": "HEAD", "count": 2, "do": "reset"}])
        process = subprocess.Popen([PROGRAMS["espalier"], f"--coordinator={cluster.grpc}", "models", "upload", "half", folder, "--kind=dataset"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        cluster.wait(lambda: any(name.startswith("half@r") for name in self.folders()), 30, "a file is stored")
        return process

    def folders(self):
        """Of the objects of artifacts."""
        import boto3
        from s3_server import BUCKET, REGION

        client = boto3.client("s3", endpoint_url=self.server.url, region_name=REGION)
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="espalier/artifacts/")
        return {row["Key"].split("/")[2] for page in pages for row in page.get("Contents", [])}

    def refusal(self, *flags, stores=None):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([PROGRAMS["espalierd"], "--listen=127.0.0.1:0", "--http-listen=", f"--data-dir={folder}/data",
                                   *(self.stores if stores is None else stores), *flags], capture_output=True, text=True, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        return done.stderr

    def test_what_would_be_lost_with_a_disk_is_refused(self):
        etcd = "--job-store=etcd://127.0.0.1:1/p"
        self.assertIn("give --checkpoint-store=s3://", self.refusal(etcd, stores=self.stores[:1]))
        self.assertIn("give --tls-cert", self.refusal(etcd, "--tls=auto"))
        self.assertIn("accepted: s3://", self.refusal(stores=["--artifact-store=/srv/models"]))
        with mock.patch.dict(os.environ, {"AWS_SECRET_ACCESS_KEY": "wrong"}):  # before it must lead
            self.assertIn("SignatureDoesNotMatch", self.refusal(etcd))


def name_of_leader(cluster):
    return "b" if "this coordinator leads" in read(cluster.logs_of["b"]) else "a"


if __name__ == "__main__":
    s3_environment.enter()
    unittest.main()
