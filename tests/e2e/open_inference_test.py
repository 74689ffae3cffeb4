"""The Open Inference Protocol over HTTP and gRPC: health and metadata."""
import json
import os
import sys
import threading
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import grpc  # noqa: E402
from espalier.v1 import inference_pb2  # noqa: E402
from open_inference import open_inference_pb2 as pb  # noqa: E402
from cluster import Cluster, write_private  # noqa: E402
from grpc_calls import Calls, error_of, use  # noqa: E402
from language_models import train  # noqa: E402

use(inference_pb2, pb)
KEY = "the-key-of-this-test"
Code = grpc.StatusCode


class OpenInferenceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.environ["ESPALIER_TOKEN"] = KEY
        cls.keys = os.path.join(os.environ.get("TEST_TMPDIR", "/tmp"), f"keys.{os.getpid()}")
        write_private(cls.keys, f"{KEY}\n")
        cls.cluster = Cluster(workers=1, daemon_flags=[f"--api-key-file={cls.keys}", "--open-probes"],
                              worker_flags=[f"--api-key-file={cls.keys}"])
        try:
            cls.check_nothing_served(cls.cluster)
            train(cls.cluster, "big", 32, 2, 20, positions=1024)
            cls.cluster.run("serve", "big")
        except BaseException:
            cls.cluster.__exit__(True)
            raise
        cls.rpc = cls.open(KEY)

    @classmethod
    def tearDownClass(cls):
        cls.rpc.close()
        cls.cluster.close()
        del os.environ["ESPALIER_TOKEN"]

    @classmethod
    def open(cls, key):
        return Calls(cls.cluster.grpc, "GRPCInferenceService", key)

    @staticmethod
    def check_nothing_served(cluster):
        """Checks that a cluster that serves no model is ready."""
        for path in ("/ready", "/v2/health/ready"):
            assert cluster.get(path)[0] == 200, path
        with Calls(cluster.grpc, "GRPCInferenceService") as rpc:
            assert rpc.ServerReady(pb.ServerReadyRequest()).ready

    def get(self, path, token=None):
        status, text = self.cluster.get(path, token)
        return status, json.loads(text)

    def test_health_and_metadata_match_over_http_and_grpc(self):
        self.assertEqual(self.get("/v2/health/live"), (200, {"live": True}))
        self.assertTrue(self.rpc.ServerLive(pb.ServerLiveRequest()).live)
        self.assertEqual(self.get("/v2/health/ready"), (200, {"ready": True}))
        self.assertTrue(self.rpc.ServerReady(pb.ServerReadyRequest()).ready)
        server = self.rpc.ServerMetadata(pb.ServerMetadataRequest())
        self.assertEqual(self.get("/v2"), (200, {"name": server.name, "version": server.version,
                                                 "extensions": list(server.extensions)}))
        self.assertEqual(server.version, json.loads(self.cluster.get("/version")[1])["version"])
        for path, version in (("/v2/models/big", ""), ("/v2/models/big/versions/1", "1")):
            model = self.rpc.ModelMetadata(pb.ModelMetadataRequest(name="big", version=version))
            tensors = [[{"name": t.name, "datatype": t.datatype, "shape": list(t.shape)} for t in side]
                       for side in (model.inputs, model.outputs)]
            self.assertEqual(self.get(path), (200, {"name": "big", "versions": ["1"], "platform": model.platform,
                                                    "inputs": tensors[0], "outputs": tensors[1]}))
            self.assertEqual((model.name, list(model.versions)), ("big", ["1"]))
            self.assertEqual(tensors[0][0]["datatype"], "BYTES")
            self.assertEqual(self.get(path + "/ready"), (200, {"name": "big", "ready": True}))
            self.assertTrue(self.rpc.ModelReady(pb.ModelReadyRequest(name="big", version=version)).ready)

    def test_unknown_models_and_versions(self):
        for name, version, path in (("nobody", "", "nobody"), ("nobody", "1", "nobody/versions/1"),
                                    ("big", "2", "big/versions/2")):
            for tail, call in (("", lambda: self.rpc.ModelMetadata(pb.ModelMetadataRequest(name=name, version=version))),
                               ("/ready", lambda: self.rpc.ModelReady(pb.ModelReadyRequest(name=name, version=version)))):
                status, answer = self.get(f"/v2/models/{path}{tail}")
                code, message = error_of(call)
                self.assertEqual((status, code), (404, Code.NOT_FOUND), (path, tail, answer, message))
                self.assertEqual(answer, {"error": message})
        self.assertEqual(self.get("/v2/models/big/versions/")[0], 200)  # an empty one is none
        # The name of a model may have slashes, a version not.
        self.assertEqual(self.get("/v2/models/big/versions/1/ready/1")[0], 404)

    def test_keys(self):
        for token in ("", "the-key-of-a-stranger"):
            with self.open(token) as rpc:
                # As over HTTP, with --open-probes.
                self.assertTrue(rpc.ServerLive(pb.ServerLiveRequest()).live)
                self.assertTrue(rpc.ServerReady(pb.ServerReadyRequest()).ready)
                self.assertEqual(self.get("/v2/health/ready", token)[0], 200)
                for call in (lambda: rpc.ModelReady(pb.ModelReadyRequest(name="big")),
                             lambda: rpc.ServerMetadata(pb.ServerMetadataRequest()),
                             lambda: rpc.ModelMetadata(pb.ModelMetadataRequest(name="big")),
                             lambda: rpc.ModelInfer(pb.ModelInferRequest(model_name="big"))):
                    self.assertEqual(error_of(call)[0], Code.UNAUTHENTICATED)
                for path in ("/v2", "/v2/models/big", "/v2/models/big/ready", "/v2/models/big/versions/1/ready"):
                    self.assertEqual(self.get(path, token)[0], 401)

    def test_inference_with_a_language_model_is_unimplemented_with_a_hint(self):
        request = pb.ModelInferRequest(model_name="big", id="1")
        request.inputs.add(name="text", datatype="BYTES", shape=[1])
        status, answer = self.cluster.request("POST", "/v2/models/big/infer", "{}")
        self.assertEqual(status, 501)
        self.assertIn("/v1/completions", json.loads(answer)["error"])
        code, message = error_of(lambda: self.rpc.ModelInfer(request))
        self.assertEqual(code, Code.UNIMPLEMENTED)
        self.assertIn("espalier.v1.Inference/Generate", message)

    def ready(self, model):
        """Of the model, then of the server: over HTTP and gRPC, which agree."""
        status, answer = self.get(f"/v2/models/{model}/ready")
        self.assertEqual((status, answer["name"]), (200 if answer["ready"] else 503, model))
        self.assertEqual(answer["ready"], self.rpc.ModelReady(pb.ModelReadyRequest(name=model)).ready)
        server, body = self.get("/v2/health/ready")
        self.assertEqual(body["ready"], server == 200)
        self.assertEqual(body["ready"], self.rpc.ServerReady(pb.ServerReadyRequest()).ready)
        return answer["ready"], body["ready"]

    def test_model_readiness_follows_its_workers(self):
        self.cluster.run("serve", "big", "--name=far", "--tensor-parallel=1")
        self.assertEqual(self.ready("far"), (True, True))
        self.cluster.kill(self.cluster.workers[-1])
        self.cluster.wait(lambda: not self.get("/v2/models/far/ready")[1]["ready"], 20, "the loss is seen")
        self.assertEqual(self.ready("far"), (False, False))
        self.assertEqual(self.ready("big"), (True, False))
        self.assertEqual(self.cluster.request("POST", "/v1/completions", json.dumps({"model": "far", "prompt": "x"}))[0], 503)
        # Where the worker that it waits for comes in.
        self.assertEqual(self.get("/ready")[0], 200)
        self.cluster.start_worker()
        self.cluster.wait(lambda: self.get("/v2/models/far/ready")[1]["ready"], 60, "the model is back")
        self.assertEqual(self.ready("far"), (True, True))
        self.assertEqual(self.cluster.request("POST", "/v1/completions", json.dumps({"model": "far", "prompt": "x"}))[0], 200)
        self.cluster.run("unserve", "far")
        self.assertEqual(self.get("/v2/models/far/ready")[0], 404)

    def test_zz_nothing_is_ready_while_the_daemon_drains(self):
        self.assertEqual(self.ready("big"), (True, True))
        ask = inference_pb2.GenerateRequest(model="big", text="And", max_tokens=1000, ignore_eos=True, n=64)
        with Calls(self.cluster.grpc, "Inference", KEY) as inference:
            replies = inference.Generate(ask)
            next(replies)
            rest = threading.Thread(target=lambda: error_of(lambda: replies))
            rest.start()
            self.cluster.daemon.terminate()
            self.cluster.wait(lambda: self.get("/ready")[0] == 503, 5, "it drains")
            self.assertEqual(self.ready("big"), (False, False))
            self.assertEqual(self.get("/v2/health/live")[0], 200)
            self.assertEqual(self.get("/v2/models/big")[0], 503)
            health = self.rpc.channel.unary_unary("/grpc.health.v1.Health/Check", lambda m: m, lambda m: m)
            self.assertEqual(health(b"", timeout=10), b"\x08\x02")  # NOT_SERVING
            self.assertTrue(rest.is_alive(), "the answers were over too soon for this test")
            self.cluster.daemon.terminate()  # at once
            rest.join(60)
        self.assertEqual(self.cluster.daemon.wait(30), 0)


if __name__ == "__main__":
    unittest.main()
