"""Validation during training: it changes no bit of the run, gives what a shorter job's evaluation gives, stops an overfitting job at
the step that its own rule says, keeps the best parameters, and all of this with kill -9 of a worker and of the coordinator."""
import glob
import hashlib
import json
import os
import shutil
import sys
import unittest

import numpy

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, Cluster, Failed  # noqa: E402

MODEL = "--model=llama:hidden=32,layers=1,heads=2,kv_heads=2,intermediate=64,positions=64"
TEXT = ["-d", os.path.join(DATA, "genesis.txt"), "--sequence-length=32", "-b", "16", "--seed=5", "--holdout=0.02"]
# 40 digits are learned by heart at once: the loss on the others falls and then rises.
OVERFITS = ["--input", "labels=y", "-b", "20", "--lr=0.02", "--seed=3", "--only-data-parallel", "--metrics=accuracy"]


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def stop_by_rule(losses, patience):
    """The index of the validation after which training stops, and that of the best."""
    best, waited = 0, 0
    for index, loss in enumerate(losses):
        waited += 1
        if index == 0 or loss < losses[best]:
            best, waited = index, 0
        elif waited >= patience:
            return index, best
    return None, best


class Jobs(unittest.TestCase):
    def finish(self, cluster, job_id):
        """The job, its curve, its validations by steps done, and the hash of its parameters."""
        job = cluster.wait_for_job(job_id)
        reply = cluster.run("jobs", "get", job_id)
        self.assertEqual(job["state"].upper(), "SUCCEEDED", (job, reply["messages"]))
        folder = os.path.join(cluster.folder, "models", job["output_model"])
        shutil.rmtree(folder, ignore_errors=True)
        cluster.cli("models", "download", job["output_model"], folder)
        weights, = glob.glob(f"{folder}/**/*.safetensors", recursive=True)
        validations = {int(v["step"]) + 1: v["values"] for v in reply["validations"]}
        self.assertEqual(len(validations), len(reply["validations"]), "none twice")
        return job, cluster.losses(job_id), validations, sha256(weights)


class ValidationTest(Jobs):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        digits = numpy.load(os.path.join(DATA, "digits.npz"))
        cls.few, cls.others = (os.path.join(cls.cluster.folder, name) for name in ("few.npz", "others.npz"))
        numpy.savez(cls.few, **{name: digits[name][:40] for name in digits})
        numpy.savez(cls.others, **{name: digits[name][40:300] for name in digits})
        cls.onnx = f"--onnx={os.path.join(DATA, 'digits_cnn.onnx')}"

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def trained(self, *flags):
        return self.finish(self.cluster, self.cluster.train(*flags))

    def overfit(self, *flags):
        return self.trained(self.onnx, "-d", self.few, f"--validation={self.others}", *OVERFITS, *flags)

    def test_it_changes_no_bit_and_equals_the_evaluation_of_shorter_jobs(self):
        for plan in (["--only-data-parallel"], ["--pipeline-stages=2"]):
            with self.subTest(plan=plan):
                def train(*flags):
                    return self.trained(MODEL, *TEXT, *flags)
                first, curve, none, weights = train("--steps=24", *plan)
                # What is measured decides on a plan's micro-batches: all jobs follow the first one's plan.
                file = os.path.join(self.cluster.folder, "plan.json")
                with open(file, "w") as out:
                    json.dump(first["plan"], out)
                same_plan = f"--import-strategy={file}"
                self.assertEqual(none, {})
                job, validated, validations, same = train("--steps=24", "--validate-every=7", same_plan)
                self.assertEqual(validated, curve)
                self.assertEqual(same, weights)
                self.assertEqual(sorted(validations), [7, 14, 21, 24])
                self.assertEqual(job["evaluation"]["loss"], validations[24]["val_loss"])
                for steps in (7, 14):
                    shorter = train(f"--steps={steps}", same_plan)[0]
                    self.assertEqual(shorter["evaluation"]["loss"], validations[steps]["val_loss"])

    def test_a_file_of_its_own_equals_the_same_examples_held_out(self):
        both = os.path.join(self.cluster.folder, "both.npz")
        parts = [numpy.load(path) for path in (self.few, self.others)]
        numpy.savez(both, **{name: numpy.concatenate([part[name] for part in parts]) for name in parts[0]})
        flags = [*OVERFITS, "--steps=6", "--validate-every=1epoch"]
        held = self.trained(self.onnx, "-d", both, f"--holdout={260.5 / 300}", *flags)
        own = self.trained(self.onnx, "-d", self.few, f"--validation={self.others}", *flags)
        self.assertEqual(sorted(own[2]), [2, 4, 6])
        self.assertEqual(own[0]["evaluation_examples"], 260, "also those behind the last full batch")
        self.assertEqual(own[1:], held[1:])
        self.assertEqual(own[0]["evaluation"], held[0]["evaluation"])

    def test_an_overfitting_job_stops_and_keeps_its_best_parameters(self):
        free = self.overfit("--steps=60", "--validate-every=3")[2]
        steps = sorted(free)
        for patience, flags in ((3, []), (4, ["--checkpoint-every=2"])):
            with self.subTest(patience=patience):
                stop, best = stop_by_rule([free[s]["val_loss"] for s in steps], patience)
                self.assertIsNotNone(stop, free)
                self.assertLess(best, stop)
                job, curve, validations, weights = self.overfit(
                    "--steps=60", "--validate-every=3", f"--early-stop={patience}", "--keep-best", *flags)
                self.assertTrue(job["stopped_early"])
                self.assertEqual(job["steps_done"], steps[stop])
                self.assertEqual(sorted(curve), list(range(steps[stop])))
                self.assertEqual(validations, {s: free[s] for s in steps[:stop + 1]})
                self.assertEqual(job["best_step"], steps[best])
                self.assertEqual(job["best_validation"], free[steps[best]])
                self.assertEqual(job["evaluation"], {name[len("val_"):]: value for name, value in free[steps[best]].items()})
                # The same parameters as of a job that ends there.
                self.assertEqual(weights, self.overfit(f"--steps={steps[best]}")[3])
        # Without --keep-best the last ones.
        stop, _ = stop_by_rule([free[s]["val_loss"] for s in steps], 3)
        job, _, _, weights = self.overfit("--steps=60", "--validate-every=3", "--early-stop=3")
        self.assertEqual(weights, self.overfit(f"--steps={steps[stop]}")[3])
        # Accuracies are best where largest.
        values = [-free[s]["val_accuracy"] for s in steps]
        stop, best = stop_by_rule(values, 2)
        job = self.overfit("--steps=60", "--validate-every=3", "--early-stop=2,val_accuracy")[0]
        self.assertEqual((job["steps_done"], job["best_step"]), (steps[stop], steps[best]))

    def test_the_command_line_shows_it(self):
        out = self.cluster.cli("train", self.onnx, "-d", self.few, f"--validation={self.others}", *OVERFITS, "--steps=12", "-p", "4",
                               "--validate-every=4", "--keep-best", "--name=shown").stdout
        self.assertIn("validation after 4 steps: val_accuracy", out)
        self.assertIn("val_loss", out)
        self.assertRegex(out, r"best validation after \d+ steps: .*val_loss [0-9.]+, kept")
        self.assertRegex(out, r"validation: accuracy .*, 260 examples")
        job = self.cluster.run("jobs")["jobs"][-1]
        self.assertGreater(job["best_step"], 0)
        self.assertRegex(self.cluster.cli("explain", job["id"]).stdout, r"best validation after \d+ steps")
        self.assertEqual(self.cluster.run("explain", job["id"])["best_step"], job["best_step"])
        self.assertIn("best step", self.cluster.cli("jobs").stdout)
        self.assertRegex(self.cluster.cli("logs", job["id"]).stdout, r"step 3 [^\n]*\n[-0-9 :]+  validation after step 3 .*val_loss")

    def test_what_cannot_be_is_refused_before_it_is_queued(self):
        before = len(self.cluster.run("jobs").get("jobs", []))
        for flags, says in (
                (["--holdout=0", "--validate-every=5"], "no held-out examples"),
                (["--early-stop=3,val_f1"], "it reports val_loss, val_accuracy"),
                (["--holdout=0.01", "--keep-best"], "it keeps 0 examples"),
                (["--validation=" + os.path.join(DATA, "genesis.txt"), "--keep-best"], "validation.dataset.format")):
            for dry in ([], ["--dry-run"]):
                with self.subTest(flags=flags, dry=dry):
                    with self.assertRaises(Failed) as refused:
                        self.cluster.run("train", "--detach" if not dry else "--dry-run", self.onnx, "-d", self.few, *OVERFITS,
                                         "--steps=5", *flags)
                    self.assertIn(says, refused.exception.err + refused.exception.args[0])
        self.assertEqual(len(self.cluster.run("jobs").get("jobs", [])), before)


class FaultsTest(Jobs):
    """The same workers come back, so that the plan stays the same and every bit must."""

    JOB = [MODEL, *TEXT, "--steps=150", "--lr=3e-2", "--checkpoint-every=8", "--validate-every=6", "--only-data-parallel",
           "--early-stop=12", "--keep-best", "--name=disturbed"]

    def test_kills_in_the_middle_leave_the_result(self):
        with Cluster() as cluster:
            undisturbed = self.finish(cluster, cluster.train(*self.JOB))
            self.assertGreater(undisturbed[0]["steps_done"], 60)
            for victims in (["w1"], ["coordinator"], ["coordinator", "w0"]):
                with self.subTest(victims=victims):
                    job_id = cluster.train(*self.JOB)
                    cluster.wait_for_step(job_id, 30)
                    for victim in victims:
                        cluster.kill(cluster.daemon if victim == "coordinator" else cluster.workers[int(victim[1:])])
                    if "coordinator" in victims:
                        cluster.start_daemon(until="/health")
                    for victim in victims:
                        if victim != "coordinator":
                            cluster.start_worker(int(victim[1:]))
                    job, curve, validations, weights = self.finish(cluster, job_id)
                    self.assertGreaterEqual(int(job["attempts"]), 2)
                    self.assertEqual(curve, undisturbed[1])
                    self.assertEqual(validations, undisturbed[2])
                    self.assertEqual(weights, undisturbed[3])
                    for field in ("best_step", "best_validation", "evaluation", "steps_done", "stopped_early"):
                        self.assertEqual(job[field], undisturbed[0][field], field)


if __name__ == "__main__":
    unittest.main()
