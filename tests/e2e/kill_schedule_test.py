"""SIGKILL of a worker, of the coordinator and of both at random moments of a job: it ends with the curve and the model
of an undisturbed run of the same plan, bit for bit.

--runs=N (3) and --seed=N (1) choose the schedule: bazel test --test_arg=--runs=20 --test_arg=--seed=7 TARGET."""
import argparse
import glob
import hashlib
import json
import os
import random
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, Cluster, Failed  # noqa: E402

STEPS = 240
JOB = ["--model=llama:hidden=64,layers=2,heads=4,kv_heads=2,intermediate=128,positions=64", "-d",
       os.path.join(DATA, "genesis.txt"), "--sequence-length=32", "-b", "16", f"--steps={STEPS}", "--lr=3e-3",
       "--seed=5", "--checkpoint-every=15", "--clip-norm=1"]
PLANS = {"searched": ["--disable-attribute-parallel"], "data parallel": ["--only-data-parallel"],
         "pipeline": ["--pipeline-stages=2"]}
VICTIMS = {"a worker": lambda chance: [chance.choice(["w0", "w1"])],
           "the coordinator": lambda chance: ["coordinator"],
           "both": lambda chance: ["coordinator", chance.choice(["w0", "w1"])],
           "all workers": lambda chance: ["w0", "w1"],
           "everything": lambda chance: ["coordinator", "w0", "w1"]}


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


class KillScheduleTest(unittest.TestCase):
    options = argparse.Namespace(runs=3, seed=1)

    def outcome(self, cluster, job_id):
        """Everything that must not depend on the kills."""
        job = cluster.wait_for_job(job_id)
        self.assertEqual(job["state"].upper(), "SUCCEEDED", (job, cluster.job(job_id)[2]))
        curve = cluster.losses(job_id)
        self.assertEqual(sorted(curve), list(range(STEPS)))
        folder = os.path.join(cluster.folder, "models", job["output_model"])
        cluster.cli("models", "download", job["output_model"], folder)
        weights, = glob.glob(f"{folder}/**/*.safetensors", recursive=True)
        return {"curve": curve, "evaluation": job["evaluation"], "weights": sha256(weights)}

    def kill(self, cluster, names):
        """All at once, then each comes back, as a supervisor would start it again."""
        processes = [cluster.daemon if name == "coordinator" else cluster.workers[int(name[1:])] for name in names]
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()

    def restart(self, cluster, names):
        if "coordinator" in names:
            cluster.start_daemon(until="/health")
        for name in names:
            if name != "coordinator":
                cluster.start_worker(int(name[1:]))

    def reference(self, cluster, plan):
        """The undisturbed run of this plan."""
        key = json.dumps({**plan, "prediction": None}, sort_keys=True)
        if key not in self.references:
            path = os.path.join(cluster.folder, "plan.json")
            with open(path, "w") as file:
                json.dump(plan, file)
            job = cluster.train(*JOB, f"--import-strategy={path}", f"--name=reference{len(self.references)}")
            self.references[key] = self.outcome(cluster, job)
        return self.references[key]

    def test_any_kills_leave_the_curve_bit_for_bit(self):
        chance = random.Random(self.options.seed)
        self.references = {}
        with Cluster() as cluster:
            for name in ("first", "undisturbed"):  # the first job also measures the operators
                begin = time.time()
                self.outcome(cluster, cluster.train(*JOB, "--only-data-parallel", f"--name={name}"))
                duration = time.time() - begin
            print(f"undisturbed: {duration:.1f} s", flush=True)
            for run in range(self.options.runs):
                plan = list(PLANS)[run % len(PLANS)]
                kills = sorted((chance.uniform(0, 0.95 * duration), chance.choice(list(VICTIMS)),
                                chance.uniform(0, 1)) for _ in range(chance.choice([1, 1, 2])))
                what = "; ".join(f"{who} at {at:.2f} s for {down:.2f} s" for at, who, down in kills)
                with self.subTest(run=run, seed=self.options.seed, plan=plan, kills=what):
                    self.run_with_kills(cluster, chance, f"run{run}", plan, kills)

    def run_with_kills(self, cluster, chance, name, plan, kills):
        cluster.wait_for_workers(2)
        begin = time.time()
        job_id = cluster.train(*JOB, *PLANS[plan], f"--name={name}")
        seen = []
        for at, who, down in kills:
            time.sleep(max(0, begin + at - time.time()))
            try:
                job = cluster.job(job_id)[0]
                seen.append(f"{who} in {job['state'].lower()} at step {job.get('steps_done', 0)}")
            except Failed:
                seen.append(f"{who} in a restart")
            names = VICTIMS[who](chance)
            self.kill(cluster, names)
            time.sleep(down)
            self.restart(cluster, names)
        outcome = self.outcome(cluster, job_id)
        job = cluster.job(job_id)[0]
        print(f"{name}, {plan}: {'; '.join(seen)}; {job['attempts']} attempts, {time.time() - begin:.1f} s", flush=True)
        self.assertEqual(len(job["plan"]["devices"]), 2, cluster.job(job_id)[2])
        self.assertEqual(job["output_model"], name)
        reference = self.reference(cluster, job["plan"])
        self.assertEqual(outcome, reference, (job["plan_summary"] if "plan_summary" in job else "",
                                              cluster.job(job_id)[2]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    KillScheduleTest.options, rest = parser.parse_known_args()
    unittest.main(argv=sys.argv[:1] + rest)
