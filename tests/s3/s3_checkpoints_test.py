"""Checkpoints in S3: with faults of S3 and a worker that is killed, a job ends as an undisturbed one in a folder, bit for bit."""
import glob
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock as mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "e2e")]
import s3_environment  # noqa: E402

STEPS = 60


class S3CheckpointsTest(unittest.TestCase):
    def setUp(self):
        from cluster import DATA
        from s3_server import BUCKET, S3Server

        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.server = self.enterContext(S3Server(folder))
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self.enterContext(mock.patch.dict(os.environ, {**clean, **self.server.environment}, clear=True))
        self.store = f"--checkpoint-store=s3://{BUCKET}/checkpoints"
        self.job = ["--model=llama:hidden=64,layers=2,heads=4,kv_heads=2,intermediate=128,positions=64", "-d",
                    os.path.join(DATA, "genesis.txt"), "--sequence-length=32", "-b", "8", f"--steps={STEPS}", "--seed=5",
                    "--checkpoint-every=10", "--only-data-parallel"]

    def objects(self):
        return [line.split()[1] for line in self.server.rules.requests if line.startswith("PUT") and line.endswith(" 200")]

    def ended(self, cluster, job):
        found = cluster.wait_for_job(job)
        self.assertEqual(found["state"].upper(), "SUCCEEDED", found)
        return {"curve": cluster.losses(job), "evaluation": found.get("evaluation")}

    def refused_start(self, folder):
        from cluster import PROGRAMS

        done = subprocess.run([PROGRAMS["espalierd"], self.store, "--listen=127.0.0.1:0", "--http-listen=",
                               f"--data-dir={folder}/data"], capture_output=True, text=True, timeout=120)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--checkpoint-store=s3://", done.stderr)
        return done.stderr

    def check_deletion_of_answers(self, cluster, job):
        """A replay whose answers cannot be removed now is hidden, also after a restart, and can be deleted again."""
        import boto3
        from s3_server import BUCKET, REGION

        def answers():
            client = boto3.client("s3", endpoint_url=self.server.url, region_name=REGION)
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="checkpoints/replays/")
            return [found["Key"] for page in pages for found in page.get("Contents", [])]

        ids = [cluster.run("replay", job, "--at=checkpoints", "--log=norm(param(*))", "--detach")["id"] for _ in range(2)]
        cluster.wait(lambda: all(replay["state"] == "REPLAY_SUCCEEDED" for replay in cluster.run("replay", "list")["replays"]), 30,
                     "they are answered")
        self.assertEqual({key.split("/")[-2] for key in answers()}, set(ids))
        forever = {"match": "rows", "method": "DELETE", "count": 1 << 30, "do": "status", "status": 403, "code": "AccessDenied"}
        self.server.rules.set([forever])
        for _ in range(2):
            done = cluster.cli("replay", "delete", ids[0], check=False)
            self.assertEqual((done.returncode, "delete it again" in done.stderr), (1, True), done.stderr)
            self.assertEqual([replay["id"] for replay in cluster.run("replay", "list")["replays"]], ids[1:])
            self.assertNotIn(ids[0], cluster.cli("history", job, "--source=replay", "--json").stdout)
            self.assertIn(ids[0], " ".join(answers()))
            cluster.kill(cluster.daemon)
            cluster.start_daemon()
        self.server.rules.set([])
        cluster.cli("replay", "delete", ids[0])
        self.assertEqual({key.split("/")[-2] for key in answers()}, set(ids[1:]))
        self.assertIn(ids[1], cluster.cli("history", job, "--source=replay", "--json").stdout)

    def test_faults_and_a_lost_worker_change_nothing(self):
        from cluster import Cluster

        with Cluster(workers=2) as cluster:
            undisturbed = self.ended(cluster, cluster.train(*self.job))
        with Cluster(workers=2, daemon_flags=[self.store]) as cluster:
            # Of each: requests of the shards, of the manifest (a lost answer makes the next one 412), of readers.
            self.server.rules.set([
                {"match": "rank-0", "method": "PUT", "count": 3, "do": "status", "status": 503, "code": "SlowDown"},
                {"match": "rank-1", "method": "PUT", "count": 2, "do": "reset"},
                {"match": "manifest", "method": "PUT", "count": 3, "do": "lose answer"},
                {"match": "rank-0", "method": "GET", "count": 2, "do": "truncate"},
                {"match": "rank", "count": 20, "do": "slow", "seconds": 0.1},
            ])
            job = cluster.train(*self.job)
            cluster.wait_for_step(job, 25)
            cluster.kill(cluster.workers[1])
            cluster.start_worker(1)
            outcome = self.ended(cluster, job)
            self.assertEqual(sorted(outcome["curve"]), list(range(STEPS)))
            self.assertEqual(outcome, undisturbed)
            self.assertTrue(any("manifest" in line and line.endswith(" 412") for line in self.server.rules.requests))
            self.assertTrue(any("rank-1" in name for name in self.objects()))
            self.check_deletion_of_answers(cluster, job)
            # Nothing of it is in the folder of the daemon.
            self.assertEqual(glob.glob(f"{cluster.folder}/data/checkpoints/**/*.safetensors", recursive=True), [])
            with tempfile.TemporaryDirectory() as folder:
                self.assertIn("another data folder", self.refused_start(folder))

    def test_a_store_that_cannot_be_used_is_told_at_the_start(self):
        for variables, message in (({"AWS_SECRET_ACCESS_KEY": "wrong"}, "SignatureDoesNotMatch"),
                                   ({"AWS_ACCESS_KEY_ID": ""}, "go together")):
            with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, variables):
                self.assertIn(message, self.refused_start(folder))


if __name__ == "__main__":
    s3_environment.enter()
    unittest.main()
