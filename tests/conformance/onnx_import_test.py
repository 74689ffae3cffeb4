"""ONNX files, exported by PyTorch or written by hand, through our importer and kernels."""
import contextlib
import os
import stat
import sys
import tempfile
import unittest
import warnings

import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from runner import Runner, from_json, to_json  # noqa: E402

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data")


class Mixed(nn.Module):
    """The shape operators that exporters write, in one forward pass."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 24)

    def forward(self, ids):
        x = self.norm(self.table(ids))
        a, b, c = self.up(x).split(8, dim=-1)
        y = torch.sigmoid(a) * b - torch.tanh(c) / (2.0 + torch.exp(a))
        y = torch.cat([y, x], 1).transpose(1, 2)[:, 1:7]
        y = y.reshape(ids.shape[0], -1, 2)
        return torch.softmax(y.mean(2) + y.sum((1, 2), keepdim=True).squeeze(2), -1)


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(8, 8, 3, groups=2, dilation=2, padding=2), nn.SiLU(), nn.MaxPool2d(2, ceil_mode=True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(8, 5))


class OnnxImportTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.run_op = Runner("onnx_runner")
        cls.folder = tempfile.TemporaryDirectory()
        warnings.simplefilter("ignore")

    @classmethod
    def tearDownClass(cls):
        cls.run_op.close()
        cls.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def follow(self, module, example, opset, batches):
        module = module.eval()
        path = self.path("exported.onnx")
        torch.onnx.export(module, example, path, opset_version=opset, input_names=["x"], output_names=["y"],
                          dynamic_axes={"x": {0: "n"}, "y": {0: "n"}})
        for batch in batches:
            x = example[:1].repeat(batch, *[1] * (example.dim() - 1))
            if x.dtype == torch.float32:
                x = torch.randn(x.shape)
            answer = self.run_op(onnx=path, batch=batch, training=False, feeds={"x": to_json(x)})
            self.assertNotIn("error", answer)
            ours = from_json(answer["results"]["y"])
            theirs = module(x).detach().double()
            self.assertEqual(ours.shape, theirs.shape)
            self.assertLess((ours - theirs).abs().max().item(), 1e-5, f"opset {opset} batch {batch}")

    def test_cnn_of_every_opset(self):
        torch.manual_seed(1)
        for opset in range(9, 18):
            self.follow(cnn(), torch.randn(2, 3, 33, 31), opset, [1, 4])

    def test_shape_operators_fit_any_batch(self):
        torch.manual_seed(2)
        for opset in range(9, 18):
            self.follow(Mixed(), torch.randint(0, 11, (2, 6)), opset, [1, 2, 5])

    def test_digits_model_in_training_form(self):
        x = torch.randn(3, 1, 8, 8)
        answer = self.run_op(onnx=os.path.join(DATA, "digits_cnn.onnx"), batch=3, training=True,
                             feeds={"x": to_json(x)})
        self.assertNotIn("error", answer)
        self.assertEqual(list(from_json(answer["results"]["logits"]).shape), [3, 10])

    def refused(self, model_bytes, *words):
        path = self.path("bad.onnx")
        with open(path, "wb") as file:
            file.write(model_bytes)
        answer = self.run_op(onnx=path, batch=2, feeds={})
        self.assertIn("error", answer)
        for word in words:
            self.assertIn(word, answer["error"])

    def model(self, nodes, initializers=(), opset=15, dims=("n", 4), dtype=TensorProto.FLOAT):
        graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", dtype, list(dims))],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], list(initializers))
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]).SerializeToString()

    def test_bad_files_are_refused_with_the_place(self):
        whole = open(os.path.join(DATA, "digits_cnn.onnx"), "rb").read()
        for cut in (0, 1, 100, len(whole) // 2, len(whole) - 1):
            self.refused(whole[:cut], "no complete ONNX model")
        self.refused(b"not a model at all", "no complete ONNX model")
        relu = helper.make_node("Relu", ["x"], ["y"], name="act")
        self.refused(self.model([helper.make_node("Odder", ["x"], ["y"], name="odd")]), "odd", "Odder", "known are")
        self.refused(self.model([helper.make_node("Det", ["x"], ["y"], name="det")]), "det", "Det", "no operator for it")
        self.refused(self.model([helper.make_node("Relu", ["x"], ["y"], name="own", domain="com.me")]), "com.me.Relu")
        self.refused(self.model([helper.make_node("Relu", ["ghost"], ["y"], name="act")]), "act", "ghost")
        self.refused(self.model([relu], opset=8), "opset 8", "9 to 21")
        self.refused(self.model([relu], opset=22), "opset 22", "9 to 21")
        self.refused(self.model([relu, relu]), "act", "already")
        circle = [helper.make_node("Add", ["x", "b"], ["a"], name="first"), helper.make_node("Relu", ["a"], ["b"], name="second"),
                  helper.make_node("Relu", ["b"], ["y"], name="third")]
        self.refused(self.model(circle), "first", "'b'")
        self.refused(self.model([helper.make_node("Softmax", ["x"], ["y"], name="soft", axis=7)]), "soft", "axis 7")
        self.refused(self.model([relu], dims=("n", "m")), "'x'", "dimension 1")
        weight = numpy_helper.from_array(torch.randn(3, 5).numpy(), "w")
        self.refused(self.model([helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], [weight]), "mm", "[3, 5]")
        short = onnx.TensorProto.FromString(weight.SerializeToString())
        short.raw_data = short.raw_data[:-1]
        self.refused(self.model([helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], [short]), "'w'", "59 bytes")
        for dims in ([1 << 40, 1 << 20], [1 << 62, 1 << 62], [-3, 5]):
            huge = onnx.TensorProto.FromString(weight.SerializeToString())
            huge.dims[:] = dims
            self.refused(self.model([helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], [huge]), "'w'")
        outside = onnx.TensorProto.FromString(weight.SerializeToString())
        outside.ClearField("raw_data")
        outside.data_location = TensorProto.EXTERNAL
        self.refused(self.model([helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], [outside]), "'w'", "names no file")

    def external(self, location, dims=(4, 5), **more):
        weight = numpy_helper.from_array(torch.randn(4, 5).numpy(), "w")
        weight.dims[:] = dims
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        for key, value in {"location": location, **more}.items():
            entry = weight.external_data.add()
            entry.key, entry.value = key, str(value)
        return self.model([helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], [weight])

    def test_external_weights_are_read_beneath_the_models_folder_only(self):
        os.makedirs(self.path("inner/deep"), exist_ok=True)
        weight = torch.randn(4, 5)
        with open(self.path("inner/deep/weights.bin"), "wb") as file:
            file.write(b"????" + weight.numpy().tobytes())
        with open(self.path("secret.bin"), "wb") as file:
            file.write(bytes(80))
        os.symlink(self.path("secret.bin"), self.path("inner/link.bin"))
        os.symlink(self.folder.name, self.path("inner/up"))
        os.mkfifo(self.path("inner/pipe"))
        with contextlib.suppress(PermissionError):  # then it is not there, and refused for that
            os.mknod(self.path("inner/zeros"), 0o600 | stat.S_IFCHR, os.makedev(1, 5))

        def run(location, **more):
            with open(self.path("inner/model.onnx"), "wb") as file:
                file.write(self.external(location, **more))
            x = torch.ones(2, 4, dtype=torch.float64)
            return self.run_op(onnx=self.path("inner/model.onnx"), batch=2, feeds={"x": to_json(x)})

        answer = run("deep/weights.bin", offset=4, length=80)
        self.assertNotIn("error", answer)
        y = from_json(answer["results"]["y"])
        self.assertLess((y - weight.double().sum(0)).abs().max().item(), 1e-5)
        # A hard link is a file like any other: whoever makes one may write into the folder and could as well
        # have put a copy there; what is uploaded is bytes, never links.
        os.link(self.path("secret.bin"), self.path("inner/hard.bin"))
        answer = run("hard.bin")
        self.assertNotIn("error", answer)
        self.assertEqual(from_json(answer["results"]["y"]).abs().max().item(), 0)
        for location in ("../secret.bin", self.path("secret.bin"), "link.bin", "up/secret.bin", "pipe", "zeros", "deep", "none.bin",
                         "deep/../deep/weights.bin", "./deep/weights.bin", "deep//weights.bin", ""):
            answer = run(location)
            self.assertIn("error", answer, location)
            self.assertIn("'w'", answer["error"], location)
        self.assertIn("bytes", run("deep/weights.bin", offset=8)["error"])
        self.assertIn("offset", run("deep/weights.bin", offset=-4)["error"])
        self.assertIn("needs 80", run("deep/weights.bin", length=79)["error"])
        self.assertIn("are needed", run("deep/weights.bin", dims=(1 << 15, 1 << 15))["error"])  # 4 GiB

    def value(self, model_bytes, x):
        path = self.path("small.onnx")
        with open(path, "wb") as file:
            file.write(model_bytes)
        answer = self.run_op(onnx=path, batch=x.shape[0], training=False, feeds={"x": to_json(x.double())})
        self.assertNotIn("error", answer)
        return from_json(answer["results"]["y"])

    def test_onnx_functions_are_inlined(self):
        scaled = helper.make_function(
            "own", "Scaled", ["a", "b"], ["c"],
            [helper.make_node("Constant", [], ["k"], value_float=3.0), helper.make_node("Mul", ["a", "k"], ["t"]),
             helper.make_node("LeakyRelu", ["t"], ["l"]), helper.make_node("Add", ["l", "b"], ["c"])],
            [helper.make_opsetid("", 15)], ["alpha"])
        scaled.node[2].attribute.add(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
        nodes = [helper.make_node("Scaled", ["x", "x"], ["t"], domain="own", alpha=0.5),
                 helper.make_node("Scaled", ["t", "x"], ["y"], domain="own", alpha=0.25)]
        model = onnx.ModelProto.FromString(self.model(nodes))
        model.functions.append(scaled)
        model.opset_import.append(helper.make_opsetid("own", 1))
        x = torch.tensor([[1.0, -2.0, 0.5, -0.25]])
        leaky = nn.functional.leaky_relu
        t = leaky(3 * x, 0.5) + x
        self.assertTrue(torch.allclose(self.value(model.SerializeToString(), x), (leaky(3 * t, 0.25) + x).double()))
        model.functions[0].node.append(helper.make_node("Scaled", ["c", "c"], ["d"], domain="own"))
        self.refused(model.SerializeToString(), "deep")

    def test_shapes_and_constants_are_computed_for_any_batch(self):
        # [batch, 4] -> ones [batch, 2] by shape arithmetic, times the sum of x.
        two = helper.make_tensor("two", TensorProto.INT64, [1], [2])
        zero = helper.make_tensor("zero", TensorProto.INT64, [1], [0])
        nodes = [helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Gather", ["shape", "zero"], ["n"]),
                 helper.make_node("Div", ["shape", "two"], ["half"]), helper.make_node("Slice", ["half", "one", "two"], ["h"]),
                 helper.make_node("Concat", ["n", "h"], ["dims"], axis=0),
                 helper.make_node("ConstantOfShape", ["dims"], ["ones"], value=helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0])),
                 helper.make_node("ReduceSum", ["x"], ["sum"]), helper.make_node("Mul", ["ones", "sum"], ["y"])]
        one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
        model = self.model(nodes, [two, zero, one])
        for batch in (1, 3):
            x = torch.randn(batch, 4)
            y = self.value(model, x)
            self.assertEqual(list(y.shape), [batch, 2])
            self.assertTrue(torch.allclose(y, x.double().sum().expand(batch, 2), atol=1e-5))
        # The batch as a number is no constant.
        nodes = [helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Gather", ["shape", "zero"], ["n"]),
                 helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT), helper.make_node("Div", ["x", "f"], ["y"])]
        self.refused(self.model(nodes, [zero]), "'y'", "depends on the batch")

    def test_corrupt_files_do_not_crash(self):
        torch.manual_seed(3)
        whole = bytearray(open(os.path.join(DATA, "digits_cnn.onnx"), "rb").read())
        small = [i for i in range(4000)] + [len(whole) - 1 - i for i in range(1500)]
        for round_number in range(400):
            bytes_ = bytearray(whole)
            for _ in range(1 + round_number % 4):
                bytes_[small[int(torch.randint(0, len(small), ()))]] = int(torch.randint(0, 256, ()))
            path = self.path("flipped.onnx")
            with open(path, "wb") as file:
                file.write(bytes_)
            # An answer of any kind: a damaged weight may well be a valid model.
            self.run_op(onnx=path, batch=1, feeds={"x": to_json(torch.zeros(1, 1, 8, 8))})


if __name__ == "__main__":
    unittest.main()
