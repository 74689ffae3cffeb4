"""Recordings are spooled to S3, and replayed from there, through faults of S3 and of the coordinator."""
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock as mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "e2e")]
import s3_environment  # noqa: E402


class S3SpoolTest(unittest.TestCase):
    def setUp(self):
        from s3_server import BUCKET, S3Server

        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.server = self.enterContext(S3Server(folder))
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self.enterContext(mock.patch.dict(os.environ, {**clean, **self.server.environment}, clear=True))
        self.spool = f"s3://{BUCKET}/recordings"

    def keys(self):
        return {line.split()[1] for line in self.server.rules.requests if line.startswith("PUT") and line.endswith(" 200")}

    def test_faults_and_a_killed_coordinator_lose_no_copy(self):
        from spooled_runs import STEPS, SpoolCluster, checkpoints, named

        with SpoolCluster(self.spool, workers=1) as cluster:
            cluster.record("all")
            cluster.wait_until_spooled("all", range(10, STEPS + 1, 10))
            # Of requests: errors that pass, lost and cut answers, and an outage that is longer than the client's own tries.
            self.server.rules.set([
                {"match": "rank-0", "method": "PUT", "count": 3, "do": "status", "status": 503, "code": "SlowDown"},
                {"match": "rank-0", "method": "PUT", "count": 2, "do": "reset"},
                {"match": "manifest", "method": "PUT", "count": 3, "do": "lose answer"},
                {"match": "recordings", "method": "PUT", "skip": 4, "count": 12, "do": "status", "status": 500, "code": "InternalError"},
                {"match": "recordings", "count": 30, "do": "slow", "seconds": 0.05},
            ])
            job = cluster.submit("lm", "--record-keep=2", "--record=every:10", steps=STEPS)
            cluster.wait_for_step(job, 25)
            cluster.daemon.send_signal(signal.SIGKILL)
            cluster.daemon.wait()
            cluster.start_daemon()
            self.assertEqual(cluster.wait_for_job(job)["state"].upper(), "SUCCEEDED")
            cluster.wait_until_spooled("lm", range(10, STEPS + 1, 10), seconds=150)
            cluster.wait(lambda: checkpoints(cluster, "lm")["stored"] == [STEPS - 10, STEPS], 20, "the limit is kept")
            self.assertTrue(any("manifest.json" in key for key in self.keys()))
            # Replays read through faults, too; one that S3 cuts short for good is an error that names it.
            flags = ["--steps=25:38", "--log=norm(grad(model.norm.weight))"]
            self.server.rules.set([
                {"match": "rank-0", "method": "GET", "count": 2, "do": "truncate"},
                {"match": "manifest", "method": "GET", "count": 2, "do": "status", "status": 503, "code": "SlowDown"},
            ])
            rows, replay = cluster.replay("lm", *flags)
            expected, _ = cluster.replay("all", *flags)
            self.assertEqual((replay["state"], len(rows)), ("REPLAY_SUCCEEDED", 13), replay)
            name = "grad(model.norm.weight)"
            self.assertEqual(named(rows, name, "norm"), named(expected, name, "norm"))
            self.assertTrue(all(segment["comparison"]["bits"] for segment in replay["segments"]))

    def test_a_bucket_that_cannot_be_used_is_told_at_the_start(self):
        from cluster import PROGRAMS

        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"AWS_SECRET_ACCESS_KEY": "wrong"}):
            done = subprocess.run([PROGRAMS["espalierd"], f"--spool={self.spool}", "--listen=127.0.0.1:0", "--http-listen=",
                                   f"--data-dir={folder}/data"], capture_output=True, text=True, timeout=120)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(f"--spool={self.spool}", done.stderr)
        self.assertIn("SignatureDoesNotMatch", done.stderr)


if __name__ == "__main__":
    s3_environment.enter()
    unittest.main()
