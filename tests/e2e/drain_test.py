"""Draining on SIGTERM: running requests finish, new ones are rejected, and after the timeout the rest is cancelled."""
import http.client
import json
import os
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import grpc  # noqa: E402
from espalier.v1 import inference_pb2  # noqa: E402
from cluster import Cluster  # noqa: E402
from grpc_calls import Calls, error_of, use  # noqa: E402
from language_models import train  # noqa: E402

use(inference_pb2)
PROMPT, ANSWERS = "And", 16


class Reader(threading.Thread):
    """Of a stream; `begun` is set by its first piece, `broken` is what ended it before its end."""

    def __init__(self, pieces):
        super().__init__()
        self.pieces, self.seen, self.begun, self.broken = pieces, [], threading.Event(), None

    def run(self):
        try:
            for piece in self.pieces:
                self.seen.append(piece)
                self.begun.set()
        except (grpc.RpcError, http.client.HTTPException, OSError) as error:
            self.broken = error


class DrainTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=1)
        try:
            train(cls.cluster, "big", 32, 2, 20, positions=4096)
            # All answers of both doors run at once.
            cls.cluster.run("serve", "big", f"--max-requests-per-batch={2 * ANSWERS}")
        except BaseException:
            cls.cluster.__exit__(True)
            raise

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def restart(self, *flags):
        """The daemon, which then serves what it served."""
        if self.cluster.daemon.poll() is None:
            self.cluster.daemon.terminate()
            self.assertEqual(self.cluster.daemon.wait(60), 0)
        self.cluster.daemon_flags = list(flags)
        self.cluster.start_daemon()

    @staticmethod
    def body(tokens, n=1, **more):
        return json.dumps({"model": "big", "prompt": PROMPT, "max_tokens": tokens, "n": n, "temperature": 0,
                           "ignore_eos": True, **more})

    def over_http(self, tokens):
        """The events of one answer."""
        connection = http.client.HTTPConnection(self.cluster.http, timeout=120)
        self.addCleanup(connection.close)
        connection.request("POST", "/v1/completions", self.body(tokens, ANSWERS, stream=True),
                           {"Content-Type": "application/json"})
        reply = connection.getresponse()
        self.assertEqual(reply.status, 200)
        return (line[6:].strip() for line in reply if line.startswith(b"data: "))

    def over_grpc(self, tokens):
        calls = Calls(self.cluster.grpc, "Inference")
        self.addCleanup(calls.close)
        request = inference_pb2.GenerateRequest(model="big", text=PROMPT, max_tokens=tokens, n=ANSWERS, ignore_eos=True)
        request.sampling.temperature = 0
        return calls.Generate(request, timeout=120)

    def begin(self, tokens):
        readers = [Reader(self.over_http(tokens)), Reader(self.over_grpc(tokens))]
        for reader in readers:
            reader.start()
        for reader in readers:
            self.assertTrue(reader.begun.wait(60), "it has not begun")
        return readers

    def test_drain_finishes_running_and_rejects_new_requests(self):
        self.restart("--drain-seconds=120")
        status, alone = self.cluster.request("POST", "/v1/completions", self.body(600))
        self.assertEqual(status, 200, alone)
        expected = json.loads(alone)["choices"][0]["text"]
        readers = self.begin(600)
        self.cluster.daemon.terminate()
        self.cluster.wait(lambda: self.cluster.get("/ready")[0] == 503, 10, "it drains")
        status, text = self.cluster.request("POST", "/v1/completions", self.body(1))
        self.assertEqual(status, 503, text)
        with Calls(self.cluster.grpc, "Inference") as calls:
            code, message = error_of(lambda: calls.Generate(inference_pb2.GenerateRequest(model="big", text=PROMPT)))
        self.assertEqual(code, grpc.StatusCode.UNAVAILABLE, message)
        self.assertTrue(all(reader.is_alive() for reader in readers), "the answers were over too soon for this test")
        for reader in readers:
            reader.join(120)
            self.assertFalse(reader.is_alive())
            self.assertIsNone(reader.broken)
        events, replies = (reader.seen for reader in readers)
        self.assertEqual(events.pop(), b"[DONE]")
        texts, reasons = [""] * ANSWERS, [None] * ANSWERS
        for event in map(json.loads, events):
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
                reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
        self.assertEqual(texts, [expected] * ANSWERS)
        self.assertEqual(reasons, ["length"] * ANSWERS)
        texts = [""] * ANSWERS
        for reply in replies:
            texts[reply.index] += reply.text
        self.assertEqual(texts, [expected] * ANSWERS)
        self.assertEqual(replies[-1].usage.completion_tokens, 600 * ANSWERS)
        self.assertEqual(self.cluster.daemon.wait(30), 0)

    def test_drain_timeout_cancels_running_requests(self):
        self.restart("--drain-seconds=1")
        readers = self.begin(4000)
        begin = time.time()
        self.cluster.daemon.terminate()
        self.assertEqual(self.cluster.daemon.wait(30), 0)
        seconds = time.time() - begin
        for reader in readers:
            reader.join(30)
            self.assertFalse(reader.is_alive())
        print(f"it has ended after {seconds:.1f} s")
        self.assertGreater(seconds, 0.9)
        self.assertLess(seconds, 10)
        events, call = readers[0].seen, readers[1].broken
        self.assertIsNone(readers[0].broken, "the stream's end must be one")
        self.assertNotIn(b"[DONE]", events)
        error = json.loads(events[-1])["error"]
        self.assertIn("stop", error["message"])
        self.assertIsNotNone(call, "the answers were over too soon for this test")
        self.assertEqual(call.code(), grpc.StatusCode.UNAVAILABLE, call.details())


if __name__ == "__main__":
    unittest.main()
