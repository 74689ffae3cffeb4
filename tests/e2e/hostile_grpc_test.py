"""Hostile gRPC clients: every call gets a status, and the daemon neither crashes nor grows."""
import gzip
import hashlib
import os
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import grpc  # noqa: E402
from espalier.v1 import inference_pb2  # noqa: E402
from espalier.v1 import models_pb2  # noqa: E402
import raw_http2 as raw  # noqa: E402
from cluster import Cluster  # noqa: E402
from grpc_calls import Calls, error_of, use  # noqa: E402

use(inference_pb2, models_pb2)
Code = grpc.StatusCode
LIMIT = 64 << 20  # of a message
GENERATE, UPLOAD = "/espalier.v1.Inference/Generate", "/espalier.v1.Models/Upload"


def varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def text_of(size, field=1):
    """A message of exactly `size` bytes: one string field."""
    for length in range(size - 7, size):
        head = varint(field << 3 | 2) + varint(length)
        if len(head) + length == size:
            return head + b"a" * length
    raise AssertionError(size)


class Daemon(unittest.TestCase):
    """A daemon without workers, which answers after each test."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=0)
        cls.inference, cls.models = Calls(cls.cluster.grpc, "Inference"), Calls(cls.cluster.grpc, "Models")

    @classmethod
    def tearDownClass(cls):
        cls.inference.close()
        cls.models.close()
        cls.cluster.close()

    def tearDown(self):
        self.assertIsNone(self.cluster.daemon.poll(), "the daemon has ended")
        self.healthy()

    def healthy(self):
        with Calls(self.cluster.grpc, "Inference") as fresh:
            check = fresh.channel.unary_unary("/grpc.health.v1.Health/Check", lambda m: m, lambda m: m)
            self.assertEqual(check(b"", timeout=20), b"\x08\x01")

    def daemon(self, field):
        """Of /proc: kilobytes, or a count."""
        with open(f"/proc/{self.cluster.daemon.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(field + ":"))


class HostileGrpcTest(Daemon):
    def artifacts(self):
        return [a.name for a in self.models.List(models_pb2.ListArtifactsRequest()).artifacts]

    def test_compressed_messages_are_rejected(self):
        before = self.daemon("VmRSS")
        for algorithm in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            for size in (1 << 10, 400 << 20):
                code, message = error_of(lambda: self.inference.Serve(text_of(size), compression=algorithm))
                self.assertEqual(code, Code.UNIMPLEMENTED, message)
                self.assertIn("ompression", message)
        self.assertLess(self.daemon("VmHWM"), before + (200 << 10))
        # Marked as packed, with no word of how.
        with raw.Connection(self.cluster.grpc) as connection:
            stream = connection.begin(GENERATE)
            bomb = gzip.compress(text_of(400 << 20))
            connection.send(raw.frame(raw.DATA, raw.END_STREAM, stream, raw.message(bomb[:16000], packed=1)))
            self.assertIn(connection.status(stream), (Code.INTERNAL.value[0], Code.UNIMPLEMENTED.value[0]))
        self.assertLess(self.daemon("VmHWM"), before + (200 << 10))

    def test_message_one_byte_too_large(self):
        code, message = error_of(lambda: self.inference.Serve(text_of(LIMIT)))
        self.assertEqual((code, message), (Code.INVALID_ARGUMENT, "field 'artifact' is empty"))
        code, message = error_of(lambda: self.inference.Serve(text_of(LIMIT + 1)))
        self.assertEqual(code, Code.RESOURCE_EXHAUSTED)
        self.assertIn(str(LIMIT), message)

    def test_wrong_message_length(self):
        for length in (0xFFFFFFFF, LIMIT + 1, 100):
            for ends, expected in ((True, Code.INTERNAL), (False, Code.DEADLINE_EXCEEDED)):
                with self.subTest(length=length, ends=ends), raw.Connection(self.cluster.grpc) as connection:
                    stream = connection.begin(GENERATE, ("grpc-timeout", "1S"))
                    connection.send(raw.frame(raw.DATA, raw.END_STREAM if ends else 0, stream, raw.message(b"abc", length)))
                    self.assertIn(connection.status(stream), (expected.value[0], "RST_STREAM"))

    def test_deeply_nested_groups(self):
        """An unknown field is a group: the parser follows it, up to 100 levels."""
        begin, end = varint(900 << 3 | 3), varint(900 << 3 | 4)
        for depth, code in ((99, Code.INVALID_ARGUMENT), (101, Code.INTERNAL), (10_000, Code.INTERNAL),
                            (2_000_000, Code.INTERNAL)):
            got, message = error_of(lambda: self.inference.Serve(begin * depth + end * depth))
            self.assertEqual(got, code, (depth, message))

    def test_invalid_utf8(self):
        for text in (b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"a\xf5"):
            request = b"\x0a" + varint(len(text)) + text  # the model's name
            self.assertEqual(error_of(lambda: self.inference.Generate(request))[0], Code.INTERNAL)
            self.assertEqual(error_of(lambda: self.inference.Cancel(request))[0], Code.INTERNAL)

    def test_unknown_enum_values(self):
        for kind in (77, -1):
            upload = models_pb2.UploadRequest(header=models_pb2.UploadHeader(name="x", kind=kind))
            self.assertEqual(error_of(lambda: self.models.Upload(iter([upload])))[0], Code.INVALID_ARGUMENT)

    def test_empty_upload(self):
        code, message = error_of(lambda: self.models.Upload(iter([])))
        self.assertEqual(code, Code.INVALID_ARGUMENT)
        self.assertIn("header", message)

    def test_upload_with_too_large_message(self):
        large = models_pb2.UploadRequest(header=models_pb2.UploadHeader(name="x" * LIMIT))
        self.assertEqual(error_of(lambda: self.models.Upload(iter([large])))[0], Code.RESOURCE_EXHAUSTED)

    @staticmethod
    def parts(name, files=0):
        header = models_pb2.UploadHeader(name=name, kind=models_pb2.Artifact.DATASET, files=files)
        return [models_pb2.UploadRequest(header=header), models_pb2.UploadRequest(file=models_pb2.UploadFile(name="a.txt")),
                models_pb2.UploadRequest(chunk=b"half of it")]

    def begun(self, name):
        """An upload that is complete except for its end."""
        yield from self.parts(name)
        self.over.wait(60)

    def test_interrupted_upload_is_dropped(self):
        self.over = threading.Event()
        self.assertEqual(error_of(lambda: self.models.Upload(self.begun("late"), timeout=1))[0], Code.DEADLINE_EXCEEDED)
        # Such as a file's name that is no UTF-8.
        damaged = [b"\x12\x04\x0a\x02\xff\xfe", models_pb2.UploadRequest(chunk=b"the rest")]
        code, message = error_of(lambda: self.models.Upload(iter([*self.parts("damaged"), *damaged])))
        self.assertEqual(code, Code.INVALID_ARGUMENT)
        self.assertIn("could not be read", message)
        # A message that is too large ends the call in its middle; what came before may look like all of it.
        for i in range(10):
            parts = [*self.parts(f"large{i}", files=2), models_pb2.UploadRequest(sha256=hashlib.sha256(b"half of it").hexdigest())]
            large = models_pb2.UploadRequest(chunk=bytes(LIMIT + 1))
            code, message = error_of(lambda: self.models.Upload(iter([*parts, large])))
            self.assertIn(code, (Code.RESOURCE_EXHAUSTED, Code.INVALID_ARGUMENT), message)
        # The connection or the stream ends.
        for i in range(50):
            with raw.Connection(self.cluster.grpc) as connection:
                stream = connection.begin(UPLOAD)
                for part in self.parts(f"lost{i}"):
                    connection.send(raw.frame(raw.DATA, 0, stream, raw.message(part.SerializeToString())))
                if i % 2:
                    connection.send(raw.frame(raw.RST_STREAM, 0, stream, b"\0\0\0\x08"))
        self.over.set()

        def idle():
            folders = os.walk(os.path.join(self.cluster.folder, "data", "artifacts"))
            return self.artifacts() == [] and not any(files for _, _, files in folders)
        self.cluster.wait(idle, 20, f"nothing is kept, but {self.artifacts()} is")
        time.sleep(0.5)
        self.assertEqual(self.artifacts(), [])
        # What ends is kept.
        self.models.Upload(iter(self.parts("whole")))
        self.assertEqual(self.artifacts(), ["whole"])
        self.models.Delete(models_pb2.DeleteArtifactRequest(name="whole"))

    def test_endless_metadata(self):
        for metadata in ([("a-header", "x" * 100_000)], [(f"header-{i}", "x" * 100) for i in range(1000)],
                         [("a-header", "x" * (17 << 10))]):
            with Calls(self.cluster.grpc, "Inference") as calls:
                code, message = error_of(lambda: calls.Generate(inference_pb2.GenerateRequest(), metadata=metadata))
            # The library may end a connection that says so much, before or after its answer.
            self.assertIn(code, (Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE), message)
        # What fits is read.
        code, message = error_of(lambda: self.inference.Generate(inference_pb2.GenerateRequest(model="x"),
                                                                 metadata=[("a-header", "x" * (15 << 10))]))
        self.assertEqual(code, Code.NOT_FOUND, message)
        # Headers that go on and on in one stream.
        with raw.Connection(self.cluster.grpc) as connection:
            block = raw.headers(GENERATE)
            connection.send(raw.frame(raw.HEADERS, 0, 1, block))
            more = b"\x00" + raw.literal("a") + raw.literal("x" * 16000)
            try:
                for _ in range(2000):
                    connection.send(raw.frame(9, 0, 1, more))  # CONTINUATION
            except OSError:
                pass
        self.assertLess(self.daemon("VmRSS"), 600 << 10)

    def test_expired_deadlines(self):
        self.over = threading.Event()
        for timeout in (0, -1):
            self.assertEqual(error_of(lambda: self.models.Upload(self.begun("late"), timeout=timeout))[0],
                             Code.DEADLINE_EXCEEDED)
        self.over.set()
        for timeout in ("0n", "1n", "1u"):
            with self.subTest(timeout), raw.Connection(self.cluster.grpc) as connection:
                stream = connection.begin(UPLOAD, ("grpc-timeout", timeout))
                self.assertIn(connection.status(stream), (Code.DEADLINE_EXCEEDED.value[0], "RST_STREAM"))
        with raw.Connection(self.cluster.grpc) as connection:
            stream = connection.begin(GENERATE, ("grpc-timeout", "99999999H"))
            connection.send(raw.frame(raw.DATA, raw.END_STREAM, stream, raw.message(b"\x0a\x01x")))
            self.assertEqual(connection.status(stream), Code.NOT_FOUND.value[0])
        # No timeouts at all: the call has none; NOT_FOUND is the model's.
        for timeout in ("-1S", "", "1", "S", "123456789S", "1e9S"):
            with self.subTest(timeout), raw.Connection(self.cluster.grpc) as connection:
                stream = connection.begin(GENERATE, ("grpc-timeout", timeout))
                connection.send(raw.frame(raw.DATA, raw.END_STREAM, stream, raw.message(b"\x0a\x01x")))
                self.assertEqual(connection.status(stream), Code.NOT_FOUND.value[0])

    def test_malformed_frames(self):
        for data in (b"\0" * 9, b"\xff" * 100, raw.frame(raw.DATA, 0, 0, b"x"), raw.frame(raw.HEADERS, 4, 2, b""),
                     raw.frame(raw.WINDOW_UPDATE, 0, 0, b"\0\0\0\0"), raw.frame(raw.SETTINGS, 0, 0, b"\0\1\2"),
                     raw.frame(raw.HEADERS, raw.END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\xff")):
            with raw.Connection(self.cluster.grpc) as connection:
                connection.send(data)
                list(connection.frames(0.2))
            self.healthy()


class RapidResetTest(Daemon):
    """With its own daemon, whose work on the streams' ends holds up later calls."""

    def test_rapid_stream_reset(self):
        threads, memory = self.daemon("Threads"), self.daemon("VmRSS")
        begin = time.time()
        with raw.Connection(self.cluster.grpc) as connection:
            connection.socket.settimeout(60)
            for path in (UPLOAD, GENERATE, "/nothing/here"):
                for _ in range(700):
                    batch = b""
                    for _ in range(50):
                        stream, connection.next = connection.next, connection.next + 2
                        batch += raw.frame(raw.HEADERS, raw.END_HEADERS, stream, raw.headers(path))
                        batch += raw.frame(raw.RST_STREAM, 0, stream, b"\0\0\0\x08")
                    try:
                        connection.send(batch)
                    except OSError:
                        break  # the daemon may have had enough of us
            self.healthy()
            # All of them have been read once this comes back, unless the daemon has had enough of us.
            try:
                connection.send(raw.frame(raw.PING, 0, 0, b"the last"))
            except OSError:
                pass
            answered = any(kind == raw.GOAWAY or kind == raw.PING and payload == b"the last"
                           for kind, _, _, payload in connection.frames(60))
        streams, more = connection.next // 2, self.daemon("VmRSS") - memory
        print(f"{streams:,} streams reset in {time.time() - begin:.1f} s, {more:,} kB more than before")
        self.assertTrue(answered)
        # The library reads them faster than it is done with them, and what waits counts in no quota: 20 kB each.
        self.assertLess(more, 40 * streams + (100 << 10))
        self.cluster.wait(lambda: self.daemon("Threads") < threads + 60, 30, "the threads have gone")
        # Until it is done with them, further calls may be refused; `healthy` is a probe, which never is.
        self.cluster.wait(self.answers, 60, "it answers calls again")

    def answers(self):
        try:
            return not self.models.List(models_pb2.ListArtifactsRequest()).artifacts
        except grpc.RpcError as error:
            self.assertEqual(error.code(), Code.RESOURCE_EXHAUSTED, error.details())
            return False


if __name__ == "__main__":
    unittest.main()
