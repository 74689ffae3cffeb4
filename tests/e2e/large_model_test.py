"""A model with more parameters than a message may hold (64 MiB) trains from ONNX on one worker and on two, as NumPy does. The
coordinator never holds its weights, and both give their memory back."""
import json
import os
import re
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Cluster  # noqa: E402
import numpy as np  # noqa: E402
import onnx  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

INPUTS, OUTPUTS, EXAMPLES, STEPS, RATE = 4096, 4608, 8, 3, 2.0
MIB = 1 << 20


class Model:
    """prediction = where(mask, (x W)[:, order], 0): 72 MiB of weights, constants of 4.5 and 36 KiB."""

    def __init__(self):
        random = np.random.default_rng(7)
        self.weights = (random.standard_normal((INPUTS, OUTPUTS)) / np.sqrt(INPUTS)).astype(np.float32)
        self.order = random.permutation(OUTPUTS)
        self.mask = random.random((1, OUTPUTS)) < 0.75
        self.x = random.standard_normal((2 * EXAMPLES, INPUTS)).astype(np.float32)
        self.labels = random.standard_normal((2 * EXAMPLES, OUTPUTS)).astype(np.float32)

    def save(self, folder):
        tensors = [numpy_helper.from_array(array, name) for name, array in
                   {"W": self.weights, "order": self.order.astype(np.int64), "mask": self.mask,
                    "zero": np.float32(0)}.items()]
        nodes = [helper.make_node("MatMul", ["x", "W"], ["product"]),
                 helper.make_node("Gather", ["product", "order"], ["ordered"], axis=1),
                 helper.make_node("Where", ["mask", "ordered", "zero"], ["prediction"])]
        graph = helper.make_graph(
            nodes, "large", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", INPUTS])],
            [helper.make_tensor_value_info("prediction", TensorProto.FLOAT, ["batch", OUTPUTS])], tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)])
        model.ir_version = 8
        onnx.save(model, os.path.join(folder, "large.onnx"))
        np.savez(os.path.join(folder, "data.npz"), x=self.x, labels=self.labels)

    def error(self, weights, rows):
        prediction = np.where(self.mask, (self.x[rows] @ weights)[:, self.order], np.float32(0))
        return prediction - self.labels[rows]

    def train(self):
        """Losses of SGD on the first half of the examples, the loss on the others afterwards, and the weights."""
        weights, losses, rows = self.weights.copy(), [], slice(0, EXAMPLES)
        for _ in range(STEPS):
            error = self.error(weights, rows)
            losses.append(float(np.mean(np.square(error, dtype=np.float64))))
            gradient = np.zeros_like(error)
            gradient[:, self.order] = np.where(self.mask, 2 * error / error.size, np.float32(0))
            weights -= RATE * (self.x[rows].T @ gradient)
        held_out = self.error(weights, slice(EXAMPLES, 2 * EXAMPLES))
        return losses, float(np.mean(np.square(held_out, dtype=np.float64))), weights


def resident(process, field="VmRSS"):
    with open(f"/proc/{process.pid}/status") as status:
        return int(re.search(rf"{field}:\s+(\d+) kB", status.read()).group(1)) << 10


def read_weights(folder):
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        begin, end = header["W"]["data_offsets"]
        data = file.read()
    return np.frombuffer(data[begin:end], np.float32).reshape(INPUTS, OUTPUTS)


class LargeModelTest(unittest.TestCase):
    def test_trains_as_numpy_does_on_one_worker_and_on_two(self):
        model = Model()
        losses, held_out, weights = model.train()
        self.assertLess(losses[-1], 0.9 * losses[0])
        with tempfile.TemporaryDirectory() as folder, Cluster(workers=2) as cluster:
            model.save(folder)
            common = [f"--onnx={folder}/large.onnx", f"--dataset={folder}/data.npz", "--loss=mean_squared_error",
                      "--holdout=0.5", "-b", str(EXAMPLES), f"--steps={STEPS}", "--optimizer=sgd", f"--lr={RATE}",
                      "--checkpoint-every=2", "--record=off", "--name=large"]
            start = resident(cluster.daemon)
            dry = cluster.run("train", "--dry-run", *common)
            self.assertTrue(dry["would_run"], dry)
            processes = [cluster.daemon, *cluster.workers]
            before = [resident(process) for process in processes]
            for plan in (["--single-device"], ["--only-data-parallel"], ["--only-data-parallel", "--zero-stage=3"], []):
                job = cluster.wait_for_job(cluster.train(*common, *plan))
                self.assertEqual(job["state"].upper(), "SUCCEEDED", job)
                found = cluster.losses(job["id"])
                for step in range(STEPS):
                    self.assertAlmostEqual(found[step] / losses[step], 1, delta=1e-5, msg=f"{plan}, step {step}")
                self.assertAlmostEqual(job["evaluation"]["loss"] / held_out, 1, delta=1e-5, msg=plan)
                left = os.path.join(cluster.folder, "data", "checkpoints", job["id"])
                cluster.wait(lambda: not os.path.exists(left), 10, "initial values and checkpoints are removed")
            # Each of four jobs read the weights twice, and held them with gradients. Workers free a job just after its
            # end; their heap keeps up to 16 MiB for each thread that allocated (base/machine_memory.h).
            def given_back():
                grown = [resident(process) - memory for process, memory in zip(processes, before)]
                return grown[0] < 24 * MIB and max(grown[1:]) < 128 * MIB

            cluster.wait(given_back, 20, f"the processes hold hardly more than before, {before} bytes")
            # Weights are read from the file in parts of 16 MiB.
            self.assertLess(resident(cluster.daemon, "VmHWM") - start, 64 * MIB)
            cluster.cli("models", "download", "large", os.path.join(folder, "trained"))
            np.testing.assert_allclose(read_weights(os.path.join(folder, "trained")), weights, rtol=0, atol=1e-6)


if __name__ == "__main__":
    unittest.main()
