"""Limits of the gRPC server, set small: calls beyond them are rejected with a remedy, essential calls are not."""
import os
import queue
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import grpc  # noqa: E402
from espalier.v1 import inference_pb2  # noqa: E402
from espalier.v1 import models_pb2  # noqa: E402
from open_inference import open_inference_pb2  # noqa: E402
import raw_http2 as raw  # noqa: E402
from cluster import Cluster, Failed  # noqa: E402
from grpc_calls import Calls, error_of, use  # noqa: E402

use(inference_pb2, models_pb2, open_inference_pb2)
Code = grpc.StatusCode
CALLS, STREAMS = 6, 4


class Held:
    """An upload that holds its thread until it is let go."""

    def __init__(self, models):
        self.parts = queue.SimpleQueue()
        self.parts.put(models_pb2.UploadRequest(header=models_pb2.UploadHeader(name="x", kind=models_pb2.Artifact.DATASET)))
        method = models.service.methods_by_name["Upload"]
        call = models.channel.stream_unary(f"/{models.service.full_name}/Upload", lambda m: m.SerializeToString(),
                                           method.output_type._concrete_class.FromString)
        self.future = call.future(iter(self.parts.get, None), timeout=120)

    def end(self):
        self.parts.put(None)
        try:
            self.future.result()
        except grpc.RpcError as error:
            return error.code(), error.details()
        raise AssertionError("an upload without a file is no artifact")


class GrpcLimitsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=1, lease=2, daemon_flags=[f"--grpc-max-calls={CALLS}", f"--grpc-max-streams={STREAMS}",
                                                                "--grpc-memory-bytes=134217728"])

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def open(self, service):
        calls = Calls(self.cluster.grpc, service)
        self.addCleanup(calls.close)
        return calls

    def threads(self):
        with open(f"/proc/{self.cluster.daemon.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))

    def hold(self, count):
        """Opens this many concurrent calls, on as many connections as needed."""
        held = []
        for _ in range(count):
            if len(held) % STREAMS == 0:
                models = self.open("Models")
            held.append(Held(models))
        return held

    def refused(self, inference):
        try:
            inference.ListServed(inference_pb2.ListServedRequest())
        except grpc.RpcError as error:
            return error
        return None

    def test_calls_beyond_the_limit_are_rejected(self):
        inference = self.open("Inference")
        held = self.hold(CALLS)
        self.cluster.wait(lambda: self.refused(inference) is not None, 10, "all calls are held")
        error = self.refused(inference)
        self.assertEqual(error.code(), Code.RESOURCE_EXHAUSTED)
        self.assertIn(f"{CALLS} calls are open", error.details())
        self.assertIn("--grpc-max-calls", error.details())
        self.assertEqual(dict(error.trailing_metadata()).get("retry-after"), "1")
        # Probes, what ends requests, and what keeps workers: longer than a lease.
        end = time.time() + 3
        while time.time() < end:
            health = inference.channel.unary_unary("/grpc.health.v1.Health/Check", lambda m: m, lambda m: m)
            self.assertEqual(health(b"", timeout=10), b"\x08\x01")
            rpc = self.open("GRPCInferenceService")
            self.assertTrue(rpc.ServerLive(open_inference_pb2.ServerLiveRequest()).live)
            self.assertTrue(rpc.ServerReady(open_inference_pb2.ServerReadyRequest()).ready)
            self.assertFalse(inference.Cancel(inference_pb2.CancelGenerateRequest(request_id="none")).found)
            workers = self.cluster.run("status")["workers"]
            self.assertEqual([w["state"].upper() for w in workers], ["IDLE"])
            time.sleep(0.2)
        with self.assertRaises(Failed) as failed:
            self.cluster.cli("models", "list")
        self.assertIn("--grpc-max-calls", failed.exception.err)
        for one in held:
            self.assertEqual(one.end()[0], Code.INVALID_ARGUMENT)
        self.cluster.wait(lambda: self.refused(inference) is None, 10, "there is room again")

    def test_streams_beyond_the_limit_wait_at_the_client(self):
        models = self.open("Models")
        held = [Held(models) for _ in range(STREAMS)]
        time.sleep(0.5)
        ask = models_pb2.ListArtifactsRequest()
        self.assertEqual(error_of(lambda: models.List(ask, timeout=1))[0], Code.DEADLINE_EXCEEDED)
        self.open("Models").List(ask)  # by another connection
        held[0].end()
        models.List(ask, timeout=20)
        for one in held[1:]:
            one.end()

    def test_many_calls_use_few_threads(self):
        held = self.hold(300)
        codes = [one.end() for one in held]
        refused = [details for code, details in codes if code == Code.RESOURCE_EXHAUSTED]
        self.assertGreater(len(refused), 200)
        self.assertLess(self.threads(), 120)
        for details in refused:
            self.assertIn("calls are open", details)
        self.open("Inference").ListServed(inference_pb2.ListServedRequest())

    def test_memory_is_bounded(self):
        """gRPC buffers a whole message before it checks the size."""
        code, message = error_of(lambda: self.open("Inference").Generate(b"\x12\x80\x80\x80\xd8\x02" + b"a" * (700 << 20)))
        self.assertEqual(code, Code.RESOURCE_EXHAUSTED, message)
        with open(f"/proc/{self.cluster.daemon.pid}/status") as status:
            most = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
        self.assertLess(most, 400 << 10)
        self.open("Inference").ListServed(inference_pb2.ListServedRequest())

    def test_large_messages_are_serialized_by_the_memory_limit(self):
        for _ in range(3):
            code, message = error_of(lambda: self.open("Inference").Generate(
                inference_pb2.GenerateRequest(model="nobody", text="x" * (32 << 20))))
            self.assertEqual(code, Code.NOT_FOUND, message)

    def test_idle_streams_are_cancelled(self):
        with Cluster(workers=0, daemon_flags=["--grpc-idle-seconds=2", "--grpc-max-calls=1"]) as cluster, \
                Calls(cluster.grpc, "Models") as models:
            def room():
                try:
                    models.List(models_pb2.ListArtifactsRequest())
                    return True
                except grpc.RpcError as error:
                    self.assertEqual(error.code(), Code.RESOURCE_EXHAUSTED)
                    return False

            silent = Held(models)
            begin = time.time()
            self.assertEqual(silent.future.exception(30).code(), Code.CANCELLED)
            self.assertGreater(time.time() - begin, 1.9)
            cluster.wait(room, 10, "the upload is over")
            # Slow is not silent.
            slow = Held(models)
            slow.parts.put(models_pb2.UploadRequest(file=models_pb2.UploadFile(name="a.txt")))
            for _ in range(8):
                time.sleep(0.4)
                slow.parts.put(models_pb2.UploadRequest(chunk=b"a piece"))
            slow.parts.put(None)
            self.assertEqual(slow.future.result().artifact.bytes, 56)
            cluster.wait(room, 10, "the slow upload is over")
            # One that takes nothing of what it is sent: more than windows of flow control hold.
            header = models_pb2.UploadHeader(name="big", kind=models_pb2.Artifact.DATASET)
            models.Upload(iter([models_pb2.UploadRequest(header=header),
                                models_pb2.UploadRequest(file=models_pb2.UploadFile(name="b")),
                                *(models_pb2.UploadRequest(chunk=b"x" * (1 << 20)) for _ in range(64))]))
            cluster.wait(room, 10, "the large upload is over")
            with raw.Connection(cluster.grpc) as connection:
                ask = models_pb2.DownloadRequest(name="big").SerializeToString()
                stream = connection.begin("/espalier.v1.Models/Get")
                connection.send(raw.frame(raw.DATA, raw.END_STREAM, stream, raw.message(ask)))
                cluster.wait(lambda: not room(), 10, "the download holds its call")
                cluster.wait(room, 20, "the download is cut off")

    def test_invalid_limits_are_rejected(self):
        for flag in ("--grpc-max-calls=0", "--grpc-max-calls=-5", "--grpc-max-streams=0", "--grpc-memory-bytes=1000",
                     "--grpc-idle-seconds=0"):
            process = self.cluster.spawn("espalierd", f"--data-dir={self.cluster.folder}/other", "--listen=127.0.0.1:0",
                                         "--http-listen=", flag)
            self.assertEqual(process.wait(30), 1)
            with open(self.cluster.logs[-1]) as log:
                self.assertIn(flag.split("=")[0], log.read())


if __name__ == "__main__":
    unittest.main()
