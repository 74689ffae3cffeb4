"""ONNX files are served without training; their answers are ONNX Runtime's."""

import os
import shutil
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "conformance")]
import client_environment  # noqa: E402

if __name__ == "__main__":
    client_environment.enter()
import numpy as np  # noqa: E402
import onnx_environment  # noqa: E402
from cluster import DATA, Cluster, Failed  # noqa: E402

# File -> examples of a pass in ONNX Runtime.
FILES = {
    "digits_cnn": 100,
    "tagger": 100,
    "onnx/bn_0_0": 4,  # for a fixed batch; its weights lie in another file
    "onnx/buffer_normalise": 100,
    "onnx/cls_token_repeat": 100,
    "onnx/detr_like": 100,
    "onnx/fresh_norms": 100,
    "onnx/fresh_norms_dynamo": 100,
    "onnx/frozen_backbone": 100,
    "onnx/hf_roberta": 100,
    "onnx/last_token_pool_arange": 100,
    "onnx/mlp": 100,
    "onnx/scalar_constants": 100,
}
EXAMPLES = 12  # more than a batch of 8, fewer than two


def inputs_of(name):
    rng = np.random.default_rng(1)
    made = {
        "digits_cnn": lambda: {"x": rng.normal(size=(EXAMPLES, 1, 8, 8))},
        "tagger": lambda: {"t": rng.integers(0, 5, (EXAMPLES, 5))},
        "onnx/mlp": lambda: {"x": rng.normal(size=(EXAMPLES, 6))},
        "onnx/fresh_norms_dynamo": lambda: {"x": rng.normal(size=(EXAMPLES, 6))},
    }
    arrays = made[name]() if name in made else dict(np.load(f"{DATA}/{name}.npz"))
    arrays = {key: np.concatenate([value] * 4)[:EXAMPLES] for key, value in arrays.items()}
    return {key: value.astype(np.float32) if value.dtype.kind == "f" else value for key, value in arrays.items()}


class ServeOnnxTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=0)
        cls.folder = cls.cluster.folder

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def predictions(self, model, inputs):
        np.savez(f"{self.folder}/x.npz", **inputs)
        self.cluster.run("predict", model, "-d", f"{self.folder}/x.npz", "-o", f"{self.folder}/y.npz")
        return dict(np.load(f"{self.folder}/y.npz"))

    def expected(self, file, inputs, batch=100):
        np.savez(f"{self.folder}/in.npz", **inputs)
        out = f"{self.folder}/out.npz"
        command = [onnx_environment.python(), f"{HERE}/onnx_outputs.py", file, f"{self.folder}/in.npz", out, str(batch)]
        subprocess.run(command, check=True)
        return dict(np.load(out))

    def close_to(self, answer, expected, file):
        self.assertEqual(answer.keys(), expected.keys(), file)
        for name, values in expected.items():
            self.assertEqual(answer[name].shape, values.shape, file)
            error = np.abs(answer[name] - values).max()
            self.assertLess(error, 1e-5 * max(1, np.abs(values).max()), file)

    def test_answers_are_those_of_onnx_runtime(self):
        for file, batch in FILES.items():
            with self.subTest(file):
                path, inputs = f"{DATA}/{file}.onnx", inputs_of(file)
                served = self.cluster.run("serve", path, "--max-batch=8")
                self.assertEqual(served["name"], os.path.basename(file))
                answer = self.predictions(served["name"], inputs)
                self.close_to(answer, self.expected(path, inputs, batch), file)
                self.cluster.run("unserve", served["name"])

    def test_an_uploaded_file_is_served_again_after_a_restart(self):
        path, inputs = f"{DATA}/digits_cnn.onnx", inputs_of("digits_cnn")
        self.cluster.run("models", "upload", "cnn", path)
        self.cluster.run("serve", "cnn")
        before = self.predictions("cnn", inputs)
        self.cluster.kill(self.cluster.daemon)
        self.cluster.start_daemon()
        self.cluster.wait(lambda: self.cluster.get("/v2/models/cnn/ready")[0] == 200, 30, "the model is back")
        after = self.predictions("cnn", inputs)
        self.assertTrue(all(np.array_equal(before[name], after[name]) for name in before))
        self.close_to(after, self.expected(path, inputs), "after a restart")

    def test_examples_that_change_each_other_are_served_one_by_one(self):
        rng = np.random.default_rng(2)
        first = np.zeros(EXAMPLES, np.int64)
        inputs = {"x": rng.normal(size=(EXAMPLES, 8)).astype(np.float32), "src": first, "dst": first}
        path = f"{DATA}/onnx/gnn_scatter_add.onnx"
        self.cluster.run("serve", path, "--max-batch=1")
        self.close_to(self.predictions("gnn_scatter_add", inputs), self.expected(path, inputs, 1), path)
        self.cluster.run("unserve", "gnn_scatter_add")

    def test_a_folder_with_one_file_is_served(self):
        folder = f"{self.folder}/exported"
        os.mkdir(folder)
        for name in ("bn_0_0.onnx", "bn_0_0.onnx.data"):
            shutil.copy(f"{DATA}/onnx/{name}", folder)
        self.assertEqual(self.cluster.run("serve", folder)["name"], "exported")
        self.assertEqual(self.predictions("exported", inputs_of("onnx/bn_0_0"))["linear"].shape, (EXAMPLES, 2))
        shutil.copy(f"{DATA}/onnx/mlp.onnx", folder)
        with self.assertRaisesRegex(Failed, "holds 2 files that end in .onnx"):
            self.cluster.run("serve", folder, "--name=other")

    def test_what_cannot_be_served_says_why(self):
        for file, why in {
            "noparams": "all inputs that the outputs depend on need one row per example",
            "gnn_scatter_add": "depends on the other examples of a batch.*--max-batch=1",
        }.items():
            with self.assertRaisesRegex(Failed, why):
                self.cluster.run("serve", f"{DATA}/onnx/{file}.onnx")
        with open(f"{self.folder}/broken.onnx", "wb") as broken:
            broken.write(b"\x08\x07 no model")
        with self.assertRaisesRegex(Failed, "broken"):
            self.cluster.run("serve", f"{self.folder}/broken.onnx")


if __name__ == "__main__":
    unittest.main()
