"""kill -9 of workers and of the coordinator during a job: it finishes with the same loss curve."""
import glob
import json
import os
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, Cluster, read  # noqa: E402

STEPS = 180  # many more than run between a look at the job and a kill
JOB = ["--model=llama:hidden=64,layers=2,heads=4,kv_heads=2,intermediate=128,positions=64", "-d",
       os.path.join(DATA, "genesis.txt"), "--sequence-length=32", "-b", "16", f"--steps={STEPS}", "--lr=3e-3",
       "--seed=5", "--checkpoint-every=15", "--clip-norm=1"]


def flip_a_byte(path):
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0xFF]))


def cut_in_half(path):
    os.truncate(path, os.path.getsize(path) // 2)


class FaultsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Cluster() as cluster:
            job = cluster.train(*JOB)
            cls.state = cluster.wait_for_job(job)
            cls.curve = cluster.losses(job)

    def check(self, cluster, job_id, more_attempts):
        job = cluster.wait_for_job(job_id)
        self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
        self.assertGreaterEqual(int(job["attempts"]), 1 + more_attempts)
        curve = cluster.losses(job_id)
        self.assertEqual(sorted(curve), list(range(STEPS)))
        worst = max(abs(curve[s] - self.curve[s]) / abs(self.curve[s]) for s in range(STEPS))
        print(f"largest relative difference from the undisturbed curve: {worst:.1e}")
        self.assertLess(worst, 1e-4)
        ours, theirs = job["evaluation"]["loss"], self.state["evaluation"]["loss"]
        self.assertLess(abs(ours - theirs) / theirs, 1e-4)

    def test_undisturbed_job_learns(self):
        self.assertEqual(self.state["state"].upper(), "SUCCEEDED", self.state)
        self.assertEqual(sorted(self.curve), list(range(STEPS)))
        self.assertLess(self.curve[STEPS - 1], 0.75 * self.curve[0])

    def test_job_continues_after_a_worker_is_killed(self):
        with Cluster() as cluster:
            job = cluster.train(*JOB)
            cluster.wait_for_step(job, 40)
            cluster.kill(cluster.workers[1])
            self.check(cluster, job, more_attempts=1)

    def test_job_continues_on_new_workers_after_all_are_killed(self):
        with Cluster() as cluster:
            job = cluster.train(*JOB)
            cluster.wait_for_step(job, 20)
            for worker in list(cluster.workers):
                cluster.kill(worker)
            for _ in range(2):
                cluster.start_worker()
            self.check(cluster, job, more_attempts=1)

    def test_job_continues_from_a_checkpoint_that_was_asked_for(self):
        with Cluster() as cluster:
            steps = 1000
            job = cluster.train(*JOB, f"--steps={steps}", "--checkpoint-every=100000")
            cluster.wait_for_step(job, 40)
            step = int(cluster.run("jobs", "checkpoint", job)["checkpoint_step"])
            self.assertGreaterEqual(step, 40)
            self.assertLess(step, steps)
            for worker in list(cluster.workers):
                cluster.kill(worker)
            for _ in range(2):
                cluster.start_worker()
            done = cluster.wait_for_job(job)
            self.assertEqual(done["state"].upper(), "SUCCEEDED", done)
            self.assertEqual(sorted(cluster.losses(job)), list(range(steps)))
            self.assertIn(f"going back to step {step}", " ".join(cluster.job(job)[2]))
            done = cluster.cli("jobs", "checkpoint", job, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("it trains nothing that a checkpoint could save", done.stderr)

    def test_a_checkpoint_that_is_asked_for_does_not_wait_for_a_worker_without_work(self):
        with Cluster() as cluster:
            steps = 1_000_000
            one_example = ["-b", "1", f"--steps={steps}", "--checkpoint-every=10000000"]  # nothing to split between workers
            job = cluster.train("--model=llama:hidden=16,layers=1,heads=2,kv_heads=1,intermediate=32,positions=64", *JOB[1:4], *one_example)
            cluster.wait_for_step(job, 40)
            self.assertIn(0, [int(peak) for peak in cluster.job(job)[0]["plan"]["prediction"]["peak_bytes"]])
            self.assertLess(int(cluster.run("jobs", "checkpoint", job)["checkpoint_step"]), steps)
            cluster.run("jobs", "cancel", job)

    def test_job_continues_after_the_coordinator_is_killed(self):
        with Cluster() as cluster:
            job = cluster.train(*JOB)
            cluster.wait_for_step(job, 40)
            cluster.kill(cluster.daemon)
            cluster.start_daemon()
            self.check(cluster, job, more_attempts=1)

    def test_a_worker_that_comes_back_leaves_the_curve_bit_for_bit(self):
        """Local workers are started again; ranks keep their names."""
        for who in ("worker", "daemon"):
            with self.subTest(who), Cluster(workers=0, daemon_flags=["--local-workers=2"]) as cluster:
                cluster.wait_for_workers(2)
                undisturbed = cluster.train(*JOB, "--only-data-parallel")
                self.assertEqual(cluster.wait_for_job(undisturbed)["state"].upper(), "SUCCEEDED")
                job = cluster.train(*JOB, "--only-data-parallel")
                cluster.wait_for_step(job, 40)
                if who == "worker":
                    os.kill(cluster.children()[0], signal.SIGKILL)
                else:
                    cluster.kill(cluster.daemon)
                    cluster.start_daemon()
                self.check(cluster, job, more_attempts=1)
                self.assertEqual(len(cluster.job(job)[0]["plan"]["devices"]), 2)
                self.assertEqual(cluster.losses(job), cluster.losses(undisturbed))

    def test_a_damaged_checkpoint_is_reported_and_the_one_before_used(self):
        for damage in (flip_a_byte, cut_in_half, os.remove):
            with self.subTest(damage.__name__), Cluster() as cluster:
                job = cluster.train(*JOB)
                cluster.wait_for_step(job, 60)
                # The newest checkpoint is to be that of the job's record, not one that is just being written.
                for worker in cluster.workers:
                    worker.send_signal(signal.SIGSTOP)
                time.sleep(0.5)
                cluster.kill(cluster.daemon)
                for worker in cluster.workers:
                    worker.send_signal(signal.SIGCONT)
                checkpoints = sorted(glob.glob(f"{cluster.folder}/data/checkpoints/{job}/*/*/manifest.json"),
                                     key=lambda manifest: json.loads(read(manifest))["steps_done"])
                self.assertGreaterEqual(len(checkpoints), 2)
                damage(os.path.join(os.path.dirname(checkpoints[-1]), "rank-0.safetensors"))
                before = json.loads(read(checkpoints[-2]))["steps_done"]
                cluster.start_daemon()
                self.check(cluster, job, more_attempts=1)
                messages = " ".join(cluster.job(job)[2])
                self.assertIn("rank-0.safetensors", messages)
                self.assertIn(f"going back to step {before}", messages)


if __name__ == "__main__":
    unittest.main()
