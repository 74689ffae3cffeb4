"""Losses on models as users export them: ends in softmax or sigmoid, several outputs, a gradient that does not exist.

tests/data/losses holds the models and the data. The numbers are PyTorch's, in float64 on the same batch.
"""
import json
import os
import struct
import sys
import tempfile
import unittest

import onnx

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, Cluster, Failed  # noqa: E402


def case(name, *flags):
    return [f"--onnx={DATA}/losses/{name}.onnx", f"--dataset={DATA}/losses/{name}.npz", "--holdout=0", "--optimizer=sgd",
            *flags]


def tensors(path):
    """The names of a safetensors file's tensors, with their bytes."""
    with open(path, "rb") as file:
        content = file.read()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + size])
    return {name: content[8 + size:][slice(*entry["data_offsets"])] for name, entry in header.items() if name != "__metadata__"}


class LossesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=2).__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__(None)

    def steps(self, *flags):
        """Trains and returns the job and the values of each step."""
        job = self.cluster.wait_for_job(self.cluster.train(*flags))
        self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
        _, reports, _ = self.cluster.job(job["id"])
        return job, [report["values"] for report in reports]

    def first(self, *flags):
        job, values = self.steps(*flags, "--steps=1")
        return job, values[0]

    def download(self, name):
        folder = tempfile.mkdtemp(dir=self.cluster.folder)
        self.cluster.cli("models", "download", name, folder)
        return folder

    def test_a_softmax_at_the_end_is_not_applied_twice(self):
        job, values = self.first(*case("softmaxend", "-b", "12", "--lr=0.1", "--metrics=perplexity,accuracy"))
        self.assertAlmostEqual(values["loss"], 1.0880035, places=5)
        self.assertAlmostEqual(values["perplexity"], 2.7182818 ** 1.0880035, places=4)
        self.assertIn("softmax", job["notes"][0])
        # As the user says.
        _, values = self.first(*case("softmaxend", "-b", "12", "--lr=0.1",
                                     "--loss=sparse_categorical_crossentropy:from_logits=true"))
        self.assertAlmostEqual(values["loss"], 1.0826246, places=5)

    def test_a_network_learns_alike_with_and_without_its_softmax(self):
        model = onnx.load(f"{DATA}/digits_cnn.onnx")
        logits = model.graph.output[0]
        model.graph.node.append(onnx.helper.make_node("Softmax", [logits.name], ["probabilities"], axis=-1))
        ends = onnx.ValueInfoProto()
        ends.CopyFrom(logits)
        ends.name = "probabilities"
        model.graph.output.remove(logits)
        model.graph.output.append(ends)
        with tempfile.TemporaryDirectory() as folder:
            onnx.save(model, f"{folder}/softmax.onnx")
            plain, ending = (self.cluster.wait_for_job(self.cluster.train(
                f"--onnx={file}", f"--dataset={DATA}/digits.npz", "--input", "labels=y", "-b", "64", "-e", "3",
                "--holdout=0.2", "--optimizer=sgd", "--lr=0.05", "--seed=1", "--single-device"))
                for file in (f"{DATA}/digits_cnn.onnx", f"{folder}/softmax.onnx"))
        self.assertGreater(plain["evaluation"]["accuracy"], 0.85)
        self.assertEqual(ending["evaluation"], plain["evaluation"])

    def test_the_dry_run_and_the_plan_say_what_was_done(self):
        plain = self.cluster.cli("train", *case("softmaxend", "-b", "12", "--dry-run")).stdout
        self.assertIn("note: sparse_categorical_crossentropy", plain)
        self.assertIn("softmax", plain)
        self.assertTrue(self.cluster.run("train", *case("softmaxend", "-b", "12", "--dry-run"))["notes"])
        plan = self.cluster.cli("plan", f"--onnx={DATA}/losses/softmaxend.onnx", "-b", "12").stdout
        self.assertIn("note: sparse_categorical_crossentropy", plan)

    def test_the_model_keeps_its_softmax(self):
        self.first(*case("softmaxend", "-b", "12", "--name=probabilities"))
        with open(os.path.join(self.download("probabilities"), "model.onnx"), "rb") as file:
            self.assertIn(b"Softmax", file.read())

    def test_a_loss_may_name_its_output(self):
        for flags in (["--loss-output=logits"], ["--loss=sparse_categorical_crossentropy@logits"], []):
            job, values = self.first(*case("probs3", "-b", "12", *flags))
            self.assertAlmostEqual(values["loss"], 1.2506618, places=5)
        with self.assertRaises(Failed) as refused:
            self.cluster.cli("train", *case("probs3", "-b", "12", "--loss-output=scores", "--dry-run"))
        self.assertIn("probs, logits", refused.exception.out + refused.exception.err)

    def test_binary_accuracy_of_logits(self):
        _, values = self.first(*case("lg", "-b", "40", "--lr=0", "--loss=binary_crossentropy", "--metrics=binary_accuracy"))
        self.assertAlmostEqual(values["loss"], 0.6539901, places=5)
        self.assertAlmostEqual(values["binary_accuracy"], 0.725, places=6)

    def test_parameters_without_a_loss_stay_in_the_model(self):
        job, values = self.steps(*case("multi", "-b", "13", "--steps=3", "--name=multi"))
        self.assertAlmostEqual(values[0]["loss"], 1.2823017, places=5)
        self.assertTrue(any("c.weight" in note for note in job["notes"]), job["notes"])
        self.steps(*case("pool", "-b", "12", "--steps=2", "--name=pool", "--only-data-parallel"))
        for name, kept in (("multi", "c.weight"), ("pool", "p.weight")):
            folder = self.download(name)
            after = tensors(os.path.join(folder, "model.safetensors"))
            with open(f"{DATA}/losses/{name}.onnx", "rb") as file:
                self.assertIn(after[kept], file.read(), "unchanged")
            self.assertIn("model.onnx", os.listdir(folder))

    def test_the_weighted_sum_of_two_losses(self):
        loss = "--loss=sparse_categorical_crossentropy"
        _, values = self.steps(*case("two_heads", "-b", "4", "--input", "labels=labels_", "--lr=0.1", "--steps=3",
                                     f"{loss}@logits", f"{loss}@aux:0.3", "--metrics=accuracy,accuracy@aux"))
        for step, (total, main, aux) in zip(values, ((1.6054488, 1.1315716, 1.5795905), (1.5048848, 1.0449609, 1.5330796),
                                                     (1.4166418, 0.9697435, 1.4896612))):
            self.assertAlmostEqual(step["loss"], total, places=5)
            self.assertAlmostEqual(step["loss.logits"], main, places=5)
            self.assertAlmostEqual(step["loss.aux"], aux, places=5)
            self.assertIn("accuracy.aux", step)

    def test_weighted_losses_are_no_part_of_the_onnx_file(self):
        loss = "--loss=sparse_categorical_crossentropy"
        for name, flags in (("weighted_sum", [f"{loss}@logits", f"{loss}@aux:0.3"]), ("weighted", [f"{loss}@logits:0.5"]),
                            ("weighted_classes", [f"{loss}:class_weights=1,2,3@logits:0.5"])):
            self.steps(*case("two_heads", "-b", "4", "--input", "labels=labels_", "--steps=1", *flags, f"--name={name}"))
            model = onnx.load(os.path.join(self.download(name), "model.onnx"))
            before = onnx.load(f"{DATA}/losses/two_heads.onnx")
            for field in ("input", "output", "initializer"):
                names, wanted = ([value.name for value in getattr(m.graph, field)] for m in (model, before))
                self.assertCountEqual(names, wanted, (name, field))

    def test_a_trained_graph_is_trained_on(self):
        """Three steps are two, and one from the model that they gave."""
        flags = case("softmaxend", "-b", "12", "--lr=0.5")
        _, whole = self.steps(*flags, "--steps=3")
        self.steps(*flags, "--steps=2", "--name=begun")
        _, more = self.first("--init=begun", *flags[1:])
        self.assertAlmostEqual(more["loss"], whole[2]["loss"], places=5)
        _, more = self.first("--init=begun", *flags)
        self.assertAlmostEqual(more["loss"], whole[2]["loss"], places=5)

    def test_a_missing_gradient_is_found_by_the_dry_run(self):
        with self.assertRaises(Failed) as refused:
            self.cluster.run("train", *case("gnn_amax", "-b", "12", "--input", "labels=labels_", "--dry-run"))
        problems = json.loads(refused.exception.out)["problems"]
        self.assertIn("no gradient", problems[0])


if __name__ == "__main__":
    unittest.main()
