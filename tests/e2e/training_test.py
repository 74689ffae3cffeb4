"""Training on real processes: ONNX Runtime runs the trained model, mixed precision converges, and optimizer state survives
a restart."""
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "conformance"))
from cluster import DATA, Cluster  # noqa: E402
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
        for plan in (["--single-device"], ["--only-data-parallel"], ["--single-device", "--micro-batches=3"]):
            job = self.cluster.train(f"--onnx={DATA}/tagger.onnx", f"--dataset={DATA}/ignored_labels.npz", "--input", "labels=y",
                                     "--loss=sparse_categorical_crossentropy", "-b", "12", "--steps=2", "--holdout=0",
                                     "--optimizer=sgd", "--lr=0.5", *plan)
            self.assertEqual(self.cluster.wait_for_job(job)["state"].upper(), "SUCCEEDED", plan)
            self.assertAlmostEqual(self.cluster.losses(job)[0], 2.03432, delta=2e-5, msg=plan)

    def test_evaluation_counts_each_held_out_label_once(self):
        for batch in ("5", "12"):  # twelve held-out examples: the last batch has two
            job = self.cluster.wait_for_job(self.cluster.train(
                f"--onnx={DATA}/tagger.onnx", f"--dataset={DATA}/ignored_labels_holdout.npz", "-b", batch, "--epochs=20",
                "--loss=sparse_categorical_crossentropy", "--metrics=accuracy,perplexity", "--holdout=0.5"))
            self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
            self.assertEqual(int(job["evaluation_examples"]), 12)
            theirs = self.check_evaluation(job, "ignored_labels_holdout.npz", "labels", "0.5")
            self.assertAlmostEqual(job["evaluation"]["perplexity"], math.exp(theirs["loss"]), delta=1e-3)

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
            job = self.cluster.train(*DIGITS, *flags, "--checkpoint-every=20")
            self.cluster.wait_for_step(job, 45)
            self.cluster.run("jobs", "cancel", job)
            state = self.cluster.wait_for_job(job)
            self.assertEqual(state["state"].upper(), "CANCELLED", optimizer)
            self.assertGreaterEqual(int(state["checkpoint_step"]), 20)
            self.cluster.run("jobs", "resume", job)
            self.assertEqual(self.cluster.wait_for_job(job)["state"].upper(), "SUCCEEDED", optimizer)
            self.assertEqual(self.cluster.losses(job), curve, optimizer)


if __name__ == "__main__":
    unittest.main()
