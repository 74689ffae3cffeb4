"""Training on real processes: ONNX Runtime runs the trained model, mixed precision converges, and optimizer state survives
a restart."""
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "conformance"))
from cluster import DATA, Cluster, Failed  # noqa: E402
import onnx_environment  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
DIGITS = [f"--onnx={DATA}/digits_cnn.onnx", f"--dataset={DATA}/digits.npz", "--input", "labels=y",
          "--loss=sparse_categorical_crossentropy", "--metrics=accuracy", "--holdout=0.1", "-b", "16", "--seed=3"]


class TrainingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster().__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__(None)

    def trained(self, *flags):
        job = self.cluster.wait_for_job(self.cluster.train(*DIGITS, *flags))
        self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
        return job

    def check_evaluation(self, job, dataset, column, holdout):
        """The job's evaluation is that of ONNX Runtime over all held-out labels that are not ignored."""
        with tempfile.TemporaryDirectory() as folder:
            self.cluster.cli("models", "download", job["output_model"], folder)
            checked = subprocess.run([onnx_environment.python(), os.path.join(HERE, "onnx_evaluation.py"),
                                      os.path.join(folder, "model.onnx"), os.path.join(DATA, dataset), column, holdout],
                                     capture_output=True, text=True)
            self.assertEqual(checked.returncode, 0, checked.stderr)
        theirs = json.loads(checked.stdout)
        self.assertAlmostEqual(theirs["accuracy"], job["evaluation"]["accuracy"], delta=1e-6)
        self.assertAlmostEqual(theirs["loss"], job["evaluation"]["loss"], delta=1e-4)
        return theirs

    def test_onnx_runtime_matches_the_evaluation(self):
        job = self.trained("--epochs=2", "--name=digits")
        self.assertGreater(job["evaluation"]["accuracy"], 0.8)
        self.assertEqual(int(job["evaluation_examples"]), 179)  # eleven batches of 16, and three
        self.check_evaluation(job, "digits.npz", "y", "0.1")

    def test_ignored_labels_do_not_count(self):
        """PyTorch's first loss, on every kind of plan."""
        parallel = ["--only-data-parallel"]
        for plan in (["--single-device"], ["--single-device", "--micro-batches=3"], parallel, [*parallel, "--zero-stage=1"],
                     [*parallel, "--zero-stage=2"], [*parallel, "--zero-stage=3"], ["--pipeline-stages=2", "--micro-batches=3"]):
            job = self.cluster.train(f"--onnx={DATA}/tagger.onnx", f"--dataset={DATA}/ignored_labels.npz", "--input", "labels=y",
                                     "--loss=sparse_categorical_crossentropy", "-b", "12", "--steps=2", "--holdout=0",
                                     "--optimizer=sgd", "--lr=0.5", *plan)
            self.assertEqual(self.cluster.wait_for_job(job)["state"].upper(), "SUCCEEDED", plan)
            self.assertAlmostEqual(self.cluster.losses(job)[0], 2.03432, delta=2e-5, msg=plan)

    def test_evaluation_counts_each_held_out_label_once(self):
        # Twelve held-out examples: the last batch has two, or two for one worker and none for the other.
        for batch, plan in (("5", "--single-device"), ("12", "--single-device"), ("10", "--only-data-parallel")):
            job = self.cluster.wait_for_job(self.cluster.train(
                f"--onnx={DATA}/tagger.onnx", f"--dataset={DATA}/ignored_labels_holdout.npz", "-b", batch, "--epochs=20", plan,
                "--loss=sparse_categorical_crossentropy", "--metrics=accuracy,perplexity", "--holdout=0.5"))
            self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
            self.assertEqual(int(job["evaluation_examples"]), 12)
            theirs = self.check_evaluation(job, "ignored_labels_holdout.npz", "labels", "0.5")
            self.assertAlmostEqual(job["evaluation"]["perplexity"], math.exp(theirs["loss"]), delta=1e-3)

    def test_without_shuffling_the_order_is_that_of_the_file(self):
        """With a learning rate of 0 the loss of a step is that of its examples."""
        examples = dict(np.load(f"{DATA}/ignored_labels_holdout.npz"))
        flags = [f"--onnx={DATA}/tagger.onnx", "--loss=sparse_categorical_crossentropy", "-b", "4", "--holdout=0",
                 "--optimizer=sgd", "--lr=0"]

        def losses(dataset, *more):
            job = self.cluster.wait_for_job(self.cluster.train(*flags, f"--dataset={dataset}", *more))
            self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
            return list(self.cluster.losses(job["id"]).values())

        whole = f"{DATA}/ignored_labels_holdout.npz"
        ordered = losses(whole, "--epochs=2", "--no-shuffle", "--seed=1")
        self.assertEqual(len(ordered), 12)
        self.assertEqual(ordered[:6], ordered[6:])
        for ours, theirs in zip(losses(whole, "--epochs=2", "--no-shuffle", "--seed=2", "--only-data-parallel"), ordered):
            self.assertAlmostEqual(ours, theirs, places=5)
        self.assertNotEqual(losses(whole, "--epochs=2", "--seed=1"), ordered)
        with tempfile.TemporaryDirectory() as folder:
            np.savez(f"{folder}/third.npz", **{name: values[8:12] for name, values in examples.items()})
            self.assertAlmostEqual(losses(f"{folder}/third.npz", "--epochs=1")[0], ordered[2], places=6)

    def test_a_downloaded_model_is_trained_on(self):
        """Its model.onnx, its folder and --init begin where the training ended."""
        flags = ["--steps=3", "--optimizer=sgd", "--lr=0"]
        before = self.cluster.losses(self.trained(*flags)["id"])
        trained = self.trained("--epochs=1", "--name=to-train-on")
        with tempfile.TemporaryDirectory() as folder:
            self.cluster.cli("models", "download", "to-train-on", folder)
            for model in ([f"--onnx={folder}/model.onnx"], [f"--onnx={folder}"], ["--onnx=artifact:to-train-on"]):
                job = self.cluster.wait_for_job(self.cluster.train(*model, *DIGITS[1:], *flags))
                self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
                after = self.cluster.losses(job["id"])
                self.assertLess(max(after.values()), 0.7 * min(before.values()))
                # The running statistics move without a learning rate, too.
                self.assertAlmostEqual(job["evaluation"]["loss"], trained["evaluation"]["loss"], delta=5e-3)
            columns = [flag for flag in DIGITS[1:] if not flag.startswith(("--loss", "--metrics"))]  # it has its own
            job = self.cluster.wait_for_job(self.cluster.train("--init=to-train-on", *columns, *flags))
            self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
            self.assertAlmostEqual(job["evaluation"]["loss"], trained["evaluation"]["loss"], delta=5e-3)
            for step, loss in self.cluster.losses(job["id"]).items():
                self.assertAlmostEqual(loss, after[step], places=5)

    def test_the_dataset_of_a_job_that_is_not_over_is_kept(self):
        self.cluster.run("models", "upload", "needed", f"{DATA}/digits.npz", "--kind=dataset")
        job = self.cluster.train(DIGITS[0], "--dataset=artifact:needed", "--dataset-format=npz", *DIGITS[2:], "--steps=1000000")
        self.cluster.wait_for_step(job, 5)
        with self.assertRaisesRegex(Failed, f"espalier jobs cancel {job}"):
            self.cluster.run("models", "delete", "needed")
        self.cluster.run("jobs", "cancel", job)
        self.assertEqual(self.cluster.wait_for_job(job)["state"].upper(), "CANCELLED")
        # It is recorded, so it may be replayed.
        with self.assertRaisesRegex(Failed, f"needed to replay {job}@1 .{job}..*espalier models delete --force needed"):
            self.cluster.run("models", "delete", "needed")
        self.cluster.wait(lambda: self.cluster.run("models", "delete", "needed", "--force"), 30, "its workers have let it go")
        with self.assertRaisesRegex(Failed, f"{job}@1: its dataset, the artifact 'needed', was deleted.*espalier models upload needed"):
            self.cluster.run("replay", job, "--steps=0:1")

    def test_mixed_precision_converges_like_f32(self):
        wide = self.trained("--epochs=2")
        for precision in ("bf16", "f16"):
            job = self.trained("--epochs=2", f"--precision={precision}")
            self.assertAlmostEqual(job["evaluation"]["accuracy"], wide["evaluation"]["accuracy"], delta=0.06)
            _, reports, _ = self.cluster.job(job["id"])
            self.assertEqual("loss_scale" in reports[0]["values"], precision == "f16")

    def test_resumed_job_is_bit_identical(self):
        more = {"adafactor": [], "lion": ["--lr=1e-3"], "adagrad": [], "rmsprop:momentum=0.9,centered=true": ["--lr=1e-3"],
                "adam": ["--precision=f16", "--loss-scale=dynamic"]}
        for optimizer, flags in more.items():
            # Many, so that it is not over before it is cancelled.
            flags = [f"--optimizer={optimizer}", "--steps=600", "--only-data-parallel", *flags]
            whole = self.trained(*flags)
            curve = self.cluster.losses(whole["id"])
            began = time.time()
            job = self.cluster.train(*DIGITS, *flags, "--checkpoint-every=20", "--name=again")
            self.cluster.wait_for_step(job, 45)
            said = self.cluster.cli("jobs", "cancel", "again").stdout  # of this name the only one that is not over
            state = self.cluster.wait_for_job(job)
            lost = int(state["steps_done"]) - int(state["checkpoint_step"])
            if lost > 1:
                self.assertIn(f"{lost} steps since its checkpoint of step {state['checkpoint_step']} are lost", said)
            self.assertEqual(state["state"].upper(), "CANCELLED", optimizer)
            self.assertGreaterEqual(int(state["checkpoint_step"]), 20)
            self.cluster.run("jobs", "resume", job)
            self.assertEqual(self.cluster.wait_for_job(job)["state"].upper(), "SUCCEEDED", optimizer)
            self.assertEqual(self.cluster.losses(job), curve, optimizer)
            times = [entry["unix_ms"] / 1000 for key in ("reports", "messages") for entry in self.cluster.run("jobs", "get", job)[key]]
            self.assertTrue(began <= min(times) <= max(times) <= time.time(), times)


if __name__ == "__main__":
    unittest.main()
