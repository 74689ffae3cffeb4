"""Triton's Python client, over HTTP and gRPC, and the command line against a trained graph, compared with NumPy."""

import concurrent.futures
import json
import os
import struct
import subprocess
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import client_environment  # noqa: E402

if __name__ == "__main__":
    client_environment.enter()
import numpy as np  # noqa: E402
import tritonclient.grpc as over_grpc  # noqa: E402
import tritonclient.http as over_http  # noqa: E402
from cluster import DATA, Cluster, Failed  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402

TRAIN = [
    f"--onnx={DATA}/digits_cnn.onnx",
    f"--dataset={DATA}/digits.npz",
    "--input",
    "labels=y",
    "--loss=sparse_categorical_crossentropy",
    "--metrics=accuracy",
    "--holdout=0.1",
    "-b",
    "16",
    "--seed=3",
]


def read_safetensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    return {
        name: np.frombuffer(data[slice(*t["data_offsets"])], np.float32).reshape(
            t["shape"]
        )
        for name, t in header.items()
        if name != "__metadata__"
    }


def conv(x, weight, bias):
    """3 x 3, padded by one."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, weight) + bias[:, None, None]


def digits_cnn(w, x):
    """The logits of tests/data/digits_cnn.onnx in inference mode: running statistics, no dropout."""
    w, x = (
        {name: value.astype(np.float64) for name, value in w.items()},
        x.astype(np.float64),
    )
    h = conv(x, w["0.weight"], w["0.bias"])
    scale = w["1.weight"] / np.sqrt(w["1.running_var"] + 1e-5)
    h = np.maximum(
        (h - w["1.running_mean"][:, None, None]) * scale[:, None, None]
        + w["1.bias"][:, None, None],
        0,
    )
    h = np.maximum(conv(h, w["3.weight"], w["3.bias"]), 0)
    h = h.reshape(len(x), 32, 4, 2, 4, 2).max(axis=(3, 5)).reshape(len(x), -1)
    h = np.maximum(h @ w["7.weight"].T + w["7.bias"], 0)
    return h @ w["10.weight"].T + w["10.bias"]


class TritonClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=1)
        try:
            for epochs in (1, 2):  # two versions of one artifact
                job = cls.cluster.wait_for_job(
                    cls.cluster.train(*TRAIN, f"--epochs={epochs}", "--name=digits")
                )
                assert job["state"].upper() == "SUCCEEDED", job
            cls.served = cls.cluster.run(
                "serve", "digits", "--max-batch=8", "--max-delay-ms=5"
            )
            folder = os.path.join(cls.cluster.folder, "model")
            cls.cluster.run("models", "download", "digits", folder)
            cls.weights = read_safetensors(os.path.join(folder, "model.safetensors"))
        except BaseException:
            cls.cluster.__exit__(True)
            raise
        data = np.load(f"{DATA}/digits.npz")
        cls.x, cls.y = data["x"], data["y"]
        cls.expected = digits_cnn(cls.weights, cls.x)
        cls.http = over_http.InferenceServerClient(cls.cluster.http, concurrency=8)
        cls.rpc = over_grpc.InferenceServerClient(cls.cluster.grpc)

    @classmethod
    def tearDownClass(cls):
        cls.http.close()
        cls.rpc.close()
        cls.cluster.close()

    @staticmethod
    def inputs(module, x, name="x", datatype="FP32", **binary):
        tensor = module.InferInput(name, list(x.shape), datatype)
        tensor.set_data_from_numpy(x, **binary)
        return [tensor]

    def close_to(self, answer, expected):
        self.assertEqual(answer.shape, expected.shape)
        self.assertLess(
            np.abs(answer - expected).max(), 1e-5 * max(1, np.abs(expected).max())
        )

    def test_outputs_are_numpys(self):
        """One example, a part of a batch, a batch, and more than one."""
        for count in (1, 3, 8, 100):
            x, expected = self.x[:count], self.expected[:count]
            for binary_in in (True, False):
                for binary_out in (True, False):
                    answer = self.http.infer(
                        "digits",
                        self.inputs(over_http, x, binary_data=binary_in),
                        request_id="7",
                        outputs=[
                            over_http.InferRequestedOutput(
                                "logits", binary_data=binary_out
                            )
                        ],
                    )
                    self.close_to(answer.as_numpy("logits"), expected)
                    self.assertEqual(answer.get_response()["id"], "7")
            # What Triton's client asks for without `outputs`: all, binary.
            self.close_to(
                self.http.infer("digits", self.inputs(over_http, x)).as_numpy("logits"),
                expected,
            )
            answer = self.rpc.infer("digits", self.inputs(over_grpc, x), request_id="8")
            self.close_to(answer.as_numpy("logits"), expected)
            self.assertEqual(
                (answer.get_response().id, answer.get_response().model_version),
                ("8", "2"),
            )

    def test_contents_in_fields_over_grpc(self):
        pb = over_grpc.service_pb2
        request = pb.ModelInferRequest(model_name="digits")
        tensor = request.inputs.add(name="x", datatype="FP32", shape=[2, 1, 8, 8])
        tensor.contents.fp32_contents.extend(self.x[:2].flatten())
        answer = self.rpc._client_stub.ModelInfer(request)
        self.close_to(
            np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(2, 10),
            self.expected[:2],
        )

    def test_requests_that_arrive_together_share_passes_and_answers_do_not_change(self):
        def passes():
            lines = self.cluster.get("/metrics")[1].splitlines()
            return {
                name: float(line.split()[-1])
                for line in lines
                for name in ("passes", "examples")
                if line.startswith(
                    f'espalier_infer_{name}_total{{model_name="digits"}}'
                )
            }

        alone = [
            self.rpc.infer(
                "digits", self.inputs(over_grpc, self.x[i : i + 1])
            ).as_numpy("logits")
            for i in range(64)
        ]
        before = passes()
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = list(
                pool.map(
                    lambda i: self.rpc.infer(
                        "digits", self.inputs(over_grpc, self.x[i : i + 1])
                    ).as_numpy("logits"),
                    range(64),
                )
            )
        after = passes()
        self.assertEqual(after["examples"] - before["examples"], 64)
        self.assertLess(after["passes"] - before["passes"], 40)
        for i, (one, other) in enumerate(zip(alone, answers)):
            self.close_to(other, self.expected[i : i + 1])
            self.close_to(other, one)

    def test_metadata_and_readiness(self):
        described = {
            "name": "digits",
            "versions": ["2"],
            "platform": "espalier",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 1, 8, 8]}],
            "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, 10]}],
        }
        for version in ("", "2"):
            self.assertEqual(self.http.get_model_metadata("digits", version), described)
            rpc = self.rpc.get_model_metadata("digits", version, as_json=True)
            self.assertEqual(rpc["inputs"][0]["shape"], ["-1", "1", "8", "8"])
            for client in (self.http, self.rpc):
                self.assertTrue(client.is_server_live() and client.is_server_ready())
                self.assertTrue(client.is_model_ready("digits", version))
        self.assertIn(
            "binary_tensor_data", self.http.get_server_metadata()["extensions"]
        )
        self.assertFalse(self.http.is_model_ready("digits", "1"))
        listed = self.cluster.run("serve")["models"]
        self.assertEqual(
            [(m["name"], m["graph"]["batching"]["max_batch_size"]) for m in listed],
            [("digits", 8)],
        )
        # It answers no prompts, and is not listed with what does.
        self.assertEqual(json.loads(self.cluster.get("/v1/models")[1])["data"], [])
        status, answer = self.cluster.request(
            "POST", "/v1/completions", json.dumps({"model": "digits", "prompt": "x"})
        )
        self.assertEqual(status, 400)
        self.assertIn("/v2/models/digits/infer", answer)

    def test_statistics_count_requests_examples_and_passes(self):
        before = self.http.get_inference_statistics("digits")["model_stats"][0]
        for count in (1, 3, 20):  # the last in three passes
            self.http.infer("digits", self.inputs(over_http, self.x[:count]))
        with self.assertRaises(InferenceServerException):  # its deadline has passed when it comes
            self.http.infer("digits", self.inputs(over_http, self.x[:1]), timeout=1)
        after = self.http.get_inference_statistics("digits", "2")["model_stats"][0]
        self.assertEqual((after["name"], after["version"]), ("digits", "2"))
        self.assertEqual(after["inference_count"] - before["inference_count"], 24)
        self.assertEqual(after["execution_count"] - before["execution_count"], 5)
        durations = {
            name: {
                key: after["inference_stats"][name][key]
                - before["inference_stats"][name][key]
                for key in ("count", "ns")
            }
            for name in ("success", "fail", "queue", "compute_infer")
        }
        self.assertEqual(
            [durations[name]["count"] for name in durations], [3, 1, 3, 3]
        )
        self.assertAlmostEqual(
            durations["success"]["ns"],
            durations["queue"]["ns"] + durations["compute_infer"]["ns"],
            delta=10,
        )
        self.assertLess(abs(after["last_inference"] / 1000 - time.time()), 60)
        sizes = {
            batch["batch_size"]: batch["compute_infer"]["count"]
            for batch in after["batch_stats"]
        }
        self.assertEqual(
            sum(size * count for size, count in sizes.items()), after["inference_count"]
        )
        self.assertEqual(
            self.http.get_inference_statistics()["model_stats"][0]["name"], "digits"
        )
        rpc = self.rpc.get_inference_statistics("digits").model_stats[0]
        self.assertEqual(rpc.inference_count, after["inference_count"])
        self.assertEqual(
            rpc.inference_stats.success.ns, after["inference_stats"]["success"]["ns"]
        )
        with self.assertRaisesRegex(InferenceServerException, "no version '7'"):
            self.http.get_inference_statistics("digits", "7")

    def test_routes_that_are_not_there_answer_in_the_protocols_form(self):
        with self.assertRaisesRegex(
            InferenceServerException, "there is no POST /v2/repository/index"
        ):
            self.http.get_model_repository_index()

    def test_another_version_under_a_served_name_is_refused_by_name(self):
        with self.assertRaisesRegex(
            Failed, "served already from digits@2, not from digits@1; unserve it first"
        ):
            self.cluster.run("serve", "digits@1", "--name=digits")

    def test_versions_are_those_of_the_artifact(self):
        self.cluster.run("serve", "digits@1", "--name=first")
        for client, module in ((self.http, over_http), (self.rpc, over_grpc)):
            inputs = self.inputs(module, self.x[:2])
            self.assertEqual(
                client.infer("first", inputs, model_version="1")
                .as_numpy("logits")
                .shape,
                (2, 10),
            )
            with self.assertRaisesRegex(
                InferenceServerException, "no version '2'; its only one is 1"
            ):
                client.infer("first", inputs, model_version="2")
        self.cluster.run("unserve", "first")
        with self.assertRaisesRegex(InferenceServerException, "'first' is not served"):
            self.http.infer("first", self.inputs(over_http, self.x[:2]))

    def test_errors_name_what_is_wrong(self):
        x = self.x[:2]
        wrong = [
            (
                r"'nobody' is not served; served are: digits",
                "NOT_FOUND",
                404,
                "nobody",
                ("x", x, "FP32"),
                [],
            ),
            (
                r"no input 'images'; it has 'x' FP32\[-1, 1, 8, 8\]",
                "INVALID_ARGUMENT",
                400,
                "digits",
                ("images", x, "FP32"),
                [],
            ),
            (
                r"input 'x' is FP32\[2, 64\]; the model takes FP32\[-1, 1, 8, 8\]",
                "INVALID_ARGUMENT",
                400,
                "digits",
                ("x", x.reshape(2, 64), "FP32"),
                [],
            ),
            (
                r"input 'x' is INT32\[2, 1, 8, 8\]; the model takes FP32",
                "INVALID_ARGUMENT",
                400,
                "digits",
                ("x", x.astype(np.int32), "INT32"),
                [],
            ),
            (
                r"datatype 'FP64' is none that graphs have",
                "INVALID_ARGUMENT",
                400,
                "digits",
                ("x", x.astype(np.float64), "FP64"),
                [],
            ),
            (
                r"no output 'loss'; it has 'logits'",
                "INVALID_ARGUMENT",
                400,
                "digits",
                ("x", x, "FP32"),
                ["loss"],
            ),
        ]
        for what, code, status, model, (name, array, datatype), outputs in wrong:
            for client, module, want in (
                (self.http, over_http, str(status)),
                (self.rpc, over_grpc, f"StatusCode.{code}"),
            ):
                with self.assertRaisesRegex(InferenceServerException, what) as raised:
                    client.infer(
                        model,
                        self.inputs(module, array, name, datatype),
                        outputs=[module.InferRequestedOutput(o) for o in outputs]
                        or None,
                    )
                self.assertEqual(raised.exception.status(), want)
        for body, what in (
            ({"inputs": []}, "input 'x' is missing: FP32[-1, 1, 8, 8]"),
            ({}, "field 'inputs' is missing"),
            (
                {
                    "inputs": [
                        {
                            "name": "x",
                            "datatype": "FP32",
                            "shape": [1, 1, 8, 8],
                            "data": [1, 2],
                        }
                    ]
                },
                "8 bytes were given; FP32[1, 1, 8, 8] has 256",
            ),
        ):
            status, answer = self.cluster.request(
                "POST", "/v2/models/digits/infer", json.dumps(body)
            )
            self.assertEqual(status, 400)
            self.assertIn(what, json.loads(answer)["error"])

    def test_predict_and_evaluate_from_the_command_line(self):
        folder = self.cluster.folder
        np.savez(
            os.path.join(folder, "x.npz"), x=self.x.astype(np.float64)
        )  # converted
        np.savez(os.path.join(folder, "pixels.npz"), pixels=self.x[:5])
        out = os.path.join(folder, "out.npz")
        answer = self.cluster.run(
            "predict", "digits", "-d", os.path.join(folder, "x.npz"), "-o", out
        )
        self.assertEqual(
            (answer["examples"], answer["outputs"]["logits"]["shape"]),
            (len(self.x), [len(self.x), 10]),
        )
        self.close_to(np.load(out)["logits"], self.expected)
        self.cluster.run(
            "predict",
            "digits",
            "-d",
            os.path.join(folder, "pixels.npz"),
            "-o",
            out,
            "--input",
            "x=pixels",
        )
        self.close_to(np.load(out)["logits"], self.expected[:5])
        with self.assertRaisesRegex(
            Failed, "input 'x'.*name its column: --input x=COLUMN"
        ):
            self.cluster.run(
                "predict", "digits", "-d", os.path.join(folder, "pixels.npz"), "-o", out
            )

        evaluation = self.cluster.run(
            "evaluate",
            "digits",
            "-d",
            f"{DATA}/digits.npz",
            "--input",
            "labels=y",
            "-b",
            "100",
        )
        logits = self.expected - self.expected.max(axis=1, keepdims=True)
        losses = (
            np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(self.y)), self.y]
        )
        self.assertEqual(
            evaluation["examples"], len(self.y)
        )  # 17 batches of 100, and 97
        self.assertAlmostEqual(evaluation["values"]["loss"], losses.mean(), delta=1e-5)
        self.assertAlmostEqual(
            evaluation["values"]["accuracy"],
            (logits.argmax(axis=1) == self.y).mean(),
            delta=1e-6,
        )

    def test_the_python_package_and_tritons_share_a_process(self):
        """Both have the protocol's messages, which protobuf keeps by name for the whole process."""
        imports = ["import tritonclient.grpc as triton", "import espalier"]
        ask = f"""
import numpy as np
x = np.load({DATA + "/digits.npz"!r})["x"][:5]
tensor = triton.InferInput("x", list(x.shape), "FP32")
tensor.set_data_from_numpy(x)
theirs = triton.InferenceServerClient({self.cluster.grpc!r}).infer("digits", [tensor]).as_numpy("logits")
ours = espalier.Client({self.cluster.grpc!r}).predict("digits", x)["logits"]
assert np.array_equal(ours, theirs), (ours, theirs)
np.save({os.path.join(self.cluster.folder, "ours.npy")!r}, ours)
"""
        package = os.path.join(HERE, "..", "..", "client", "python")
        for first, second in (imports, imports[::-1]):
            program = f"{first}\n{second}\nfrom espalier import client\n{ask}"
            ran = subprocess.run(
                [sys.executable, "-c", program],
                env={**os.environ, "PYTHONPATH": package},
                capture_output=True,
                text=True,
            )
            self.assertEqual(ran.returncode, 0, ran.stderr)
            ours = np.load(os.path.join(self.cluster.folder, "ours.npy"))
            self.close_to(ours, self.expected[:5])

    def test_options_of_the_other_kind_of_model_are_refused(self):
        with self.assertRaisesRegex(
            Failed,
            "'ngram_depth' is for language models, and artifact 'digits' is a trained graph",
        ):
            self.cluster.run("serve", "digits", "--name=other", "--ngram=3")

    def test_zz_the_model_is_served_again_after_a_restart(self):
        self.cluster.kill(self.cluster.daemon)
        self.cluster.start_daemon()
        self.cluster.wait(
            lambda: self.http.is_model_ready("digits"), 30, "the model is back"
        )
        self.close_to(
            self.http.infer("digits", self.inputs(over_http, self.x[:3])).as_numpy(
                "logits"
            ),
            self.expected[:3],
        )


if __name__ == "__main__":
    unittest.main()
