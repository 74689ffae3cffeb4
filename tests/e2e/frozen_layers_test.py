"""Jobs that train the last layers only: what does not change is stored once for all checkpoints of an attempt."""
import glob
import json
import os
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, Cluster, read  # noqa: E402

STEPS, EVERY = 500, 50  # of some 3 ms
JOB = ["--model=llama:hidden=96,layers=3,heads=4,kv_heads=2,intermediate=256,positions=64", "--sequence-length=32", "-b", "16",
       "--lr=3e-3", "--seed=5", "-d", os.path.join(DATA, "genesis.txt"), f"--steps={STEPS}",
       f"--record=every:{EVERY}", "--only-data-parallel"]
FROZEN = ["--freeze=model.embed_tokens.*", "--freeze=model.layers.*"]


def flip_a_byte(path):
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0xFF]))


class FrozenCluster(Cluster):
    def __init__(self):
        super().__init__(lease=5)

    def files(self, job, pattern):
        return sorted(glob.glob(f"{self.folder}/data/checkpoints/{job}/{pattern}"))

    def steps(self, job):
        return sorted(json.loads(read(manifest))["steps_done"] for manifest in self.files(job, "*/*/manifest.json"))

    def succeed(self, *flags):
        job = self.train(*JOB, *flags)
        done = self.wait_for_job(job)
        assert done["state"].upper() == "SUCCEEDED", done
        return job

    def model(self, job):
        folder = os.path.join(self.folder, "model-" + job)
        self.cli("models", "download", self.job(job)[0]["output_model"], folder)
        with open(os.path.join(folder, "model.safetensors"), "rb") as file:
            return file.read()

    def stop_and_damage(self, job, file, damage):
        """Kills the coordinator where no checkpoint is being written."""
        for worker in self.workers:
            worker.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        self.kill(self.daemon)
        damage(*self.files(job, file))
        for worker in self.workers:
            worker.send_signal(signal.SIGCONT)


class FrozenLayersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = FrozenCluster()
        cls.addClassCleanup(cls.cluster.close)
        cls.jobs = {stage: cls.cluster.succeed(f"--zero-stage={stage}", f"--name=frozen{stage}", *FROZEN)
                    for stage in (0, 3)}

    def test_checkpoints_take_the_bytes_of_what_changes(self):
        all_trained = self.cluster.succeed("--zero-stage=0", "--name=all")
        self.assertEqual(self.cluster.files(all_trained, "*/unchanged*"), [])
        for job in self.jobs.values():
            self.assertEqual(self.cluster.steps(job), list(range(EVERY, STEPS + 1, EVERY)))
            shared = sum(map(os.path.getsize, self.cluster.files(job, "attempt-1/unchanged-rank-*.safetensors")))
            own = sum(map(os.path.getsize, self.cluster.files(job, "*/*/rank-*.safetensors")))
            record = self.cluster.job(job)[0]
            self.assertLess(abs(int(record["recorded_bytes"]) - own - shared), 40_000)  # the manifests
            self.assertGreater(shared, 1_000_000)
            self.assertLess(own / (STEPS // EVERY), shared / 3)

    def test_replays_and_questions_read_both_files(self):
        for stage in self.jobs:
            done = self.cluster.cli("replay", f"frozen{stage}", "--steps=115:125", "--log=norm(grad(lm_head.weight))",
                                    "--log=norm(param(model.layers.1.self_attn.q_proj.weight))", "--json")
            lines = [json.loads(line) for line in done.stdout.splitlines()]
            replay, = [line["replay"] for line in lines if isinstance(line.get("replay"), dict)]
            self.assertEqual(replay["state"], "REPLAY_SUCCEEDED", replay)
            self.assertTrue(all(segment["comparison"]["bits"] for segment in replay["segments"]), replay)
            norms = {line["value"] for line in lines if line.get("name", "").startswith("param(")}
            self.assertEqual(len(norms), 1, "it is frozen")
            asked = self.cluster.cli("replay", f"frozen{stage}", "--at=checkpoints", "--evaluate=holdout",
                                     "--log=norm(param(*))", "--json")
            rows = [line for line in map(json.loads, asked.stdout.splitlines()) if "step" in line]
            self.assertEqual({row["step"] for row in rows}, set(range(0, STEPS + 1, EVERY)))
            evaluation, = (row["value"] for row in rows
                           if (row["name"], row["step"]) == ("evaluation.loss", STEPS))
            self.assertEqual(evaluation, self.cluster.job(self.jobs[stage])[0]["evaluation"]["loss"])

    def test_a_job_goes_on_after_kill_9_and_deletion_leaves_nothing(self):
        with FrozenCluster() as cluster:
            job, undisturbed = cluster.train(*JOB, "--zero-stage=3", *FROZEN), self.jobs[3]
            cluster.wait_for_step(job, 125)
            cluster.kill(cluster.workers[1])
            cluster.start_worker(1)
            done = cluster.wait_for_job(job)
            self.assertEqual((done["state"].upper(), int(done["attempts"])), ("SUCCEEDED", 2), done)
            self.assertEqual(cluster.losses(job), self.cluster.losses(undisturbed))
            self.assertEqual(cluster.model(job), self.cluster.model(undisturbed))
            for attempt in (1, 2):
                self.assertNotEqual(cluster.files(job, f"attempt-{attempt}/unchanged-rank-*"), [])
            cluster.cli("jobs", "delete", job)
            cluster.wait(lambda: not cluster.files(job, ""), 10, "its files are gone")

    def test_a_limit_removes_what_no_checkpoint_of_an_attempt_needs(self):
        with FrozenCluster() as cluster:
            job = cluster.train(*JOB, "--zero-stage=0", "--record-keep=2", *FROZEN)
            cluster.wait_for_step(job, 125)
            cluster.kill(cluster.workers[1])
            cluster.start_worker(1)
            done = cluster.wait_for_job(job)
            self.assertEqual((done["state"].upper(), int(done["attempts"])), ("SUCCEEDED", 2), done)
            cluster.wait(lambda: cluster.steps(job) == [STEPS - EVERY, STEPS], 10, "two checkpoints are left")
            self.assertEqual(cluster.files(job, "attempt-1/unchanged-rank-*"), [])
            self.assertNotEqual(cluster.files(job, "attempt-2/unchanged-rank-*"), [])

    def test_damage_of_a_shared_file_is_named_and_the_job_recovers(self):
        """All checkpoints of the attempt have it, so the job goes on from those of the attempt before."""
        with FrozenCluster() as cluster:
            job = cluster.train(*JOB, "--zero-stage=0", *FROZEN)
            cluster.wait_for_step(job, 75)
            cluster.kill(cluster.workers[1])
            cluster.start_worker(1)
            cluster.wait(lambda: len(cluster.files(job, "attempt-2/*/manifest.json")) >= 2, 60, "checkpoints of attempt 2")
            cluster.stop_and_damage(job, "attempt-2/unchanged-rank-0.safetensors", flip_a_byte)
            before = max(json.loads(read(file))["steps_done"] for file in cluster.files(job, "attempt-1/*/manifest.json"))
            cluster.start_daemon()
            done = cluster.wait_for_job(job)
            self.assertEqual(done["state"].upper(), "SUCCEEDED", done)
            self.assertEqual(cluster.losses(job), self.cluster.losses(self.jobs[0]))
            messages = " ".join(cluster.job(job)[2])
            self.assertIn("unchanged-rank-0.safetensors", messages)
            self.assertIn(f"going back to step {before}", messages)


if __name__ == "__main__":
    unittest.main()
