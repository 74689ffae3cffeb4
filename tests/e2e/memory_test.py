"""A job that the dry run accepts fits its worker's memory, kernels' workspace and evaluation included."""
import os
import sys
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Cluster, Failed  # noqa: E402

LIMIT, CLASSES = 100 << 20, 10


def save(folder):
    """A network whose convolution of 5x5 needs half as much workspace as all tensors together."""
    random = np.random.default_rng(1)
    shapes = {"w0": (32, 3, 3, 3), "b0": (32,), "scale": (32,), "bias": (32,), "mean": (32,), "var": (32,),
              "w1": (32, 32, 3, 3), "w2": (64, 32, 5, 5), "w3": (64, CLASSES)}
    tensors = [numpy_helper.from_array((0.05 * random.standard_normal(shape) ** 2).astype(np.float32), name)
               for name, shape in shapes.items()]
    nodes = [helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], pads=[1, 1, 1, 1]),
             helper.make_node("BatchNormalization", ["c0", "scale", "bias", "mean", "var"], ["n0", "m0", "v0"],
                              training_mode=1),
             helper.make_node("Relu", ["n0"], ["r0"]),
             helper.make_node("Conv", ["r0", "w1"], ["c1"], pads=[1, 1, 1, 1]),
             helper.make_node("Relu", ["c1"], ["r1"]),
             helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
             helper.make_node("Conv", ["p1", "w2"], ["c2"], pads=[2, 2, 2, 2]),
             helper.make_node("Relu", ["c2"], ["r2"]),
             helper.make_node("GlobalAveragePool", ["r2"], ["g"]),
             helper.make_node("Flatten", ["g"], ["f"]),
             helper.make_node("MatMul", ["f", "w3"], ["logits"])]
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 32, 32])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)])
    model.ir_version = 8
    onnx.save(model, os.path.join(folder, "net.onnx"))
    np.savez(os.path.join(folder, "data.npz"), x=random.standard_normal((320, 3, 32, 32)).astype(np.float32),
             labels=random.integers(0, CLASSES, 320))


class MemoryTest(unittest.TestCase):
    def test_what_the_dry_run_accepts_runs_in_the_memory_that_it_names(self):
        with Cluster(workers=1, worker_flags=[f"--memory-limit={LIMIT}"]) as cluster:
            save(cluster.folder)
            accepted = []
            for batch, holdout in ((64, 0.4), (128, 0), (128, 0.4), (176, 0.4), (192, 0), (320, 0)):
                flags = [f"--onnx={cluster.folder}/net.onnx", f"--dataset={cluster.folder}/data.npz", f"-b{batch}",
                         f"--holdout={holdout}", "--steps=2"]
                case = f"batch {batch}, holdout {holdout}"
                try:
                    memory = cluster.run("train", *flags, "--dry-run")["memory"][0]
                except Failed as failed:
                    self.assertIn("bytes", failed.out + failed.err, case)
                    continue
                job = cluster.wait_for_job(cluster.train(*flags))
                self.assertEqual(job["state"].upper(), "SUCCEEDED", (case, job))
                needed, taken = int(memory["needed_bytes"]), int(job["measured_peak_bytes"][0])
                print(f"{case}: {needed} bytes predicted, {taken} taken")
                self.assertLessEqual(taken, LIMIT, case)
                self.assertLessEqual(abs(needed - taken), 0.01 * taken, case)
                accepted.append((batch, holdout))
            self.assertLessEqual({(64, 0.4), (128, 0), (128, 0.4)}, set(accepted))


if __name__ == "__main__":
    unittest.main()
