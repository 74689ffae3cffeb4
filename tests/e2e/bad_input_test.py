"""Invalid user input returns an error that names the place, and the daemon keeps running."""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DATA, PROGRAMS, Cluster, free_port  # noqa: E402

TEXT = os.path.join(DATA, "genesis.txt")
DIGITS = os.path.join(DATA, "digits.npz")
CNN = os.path.join(DATA, "digits_cnn.onnx")
TINY = "--model=llama:hidden=16,layers=1,heads=2,kv_heads=1,intermediate=32,positions=64"


class BadInputTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=1)
        cls.folder = tempfile.TemporaryDirectory()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()
        cls.folder.cleanup()

    def tearDown(self):
        self.assertIsNone(self.cluster.daemon.poll(), "the coordinator died")
        self.assertIsNone(self.cluster.workers[0].poll(), "the worker died")
        self.assertEqual(self.cluster.get("/health")[0], 200)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def refused(self, *words, args):
        """Expects the command, or the job that it starts, to fail with an error that has every word."""
        done = self.cluster.cli(*args, check=False)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        said = done.stdout + done.stderr
        for word in words:
            self.assertIn(word.lower(), said.lower())
        return said

    def digits_job(self, dataset, *flags):
        return ["train", f"--onnx={CNN}", f"--dataset={dataset}", "--input", "labels=y", "-b", "16", "--steps=8", *flags]

    def test_truncated_onnx(self):
        with open(self.path("cut.onnx"), "wb") as file:
            with open(CNN, "rb") as whole:
                file.write(whole.read()[:5000])
        self.refused("complete ONNX model", args=["train", f"--onnx={self.path('cut.onnx')}", f"--dataset={DIGITS}",
                                                  "--input", "labels=y", "-b", "16", "--steps=2"])

    def test_nan_in_data_names_column_and_example(self):
        data = dict(np.load(DIGITS))
        data["x"][37, 0, 2, 3] = np.nan
        np.savez(self.path("nan.npz"), **data)
        self.refused("'x'", "37", args=self.digits_job(self.path("nan.npz")))

    def test_labels_out_of_range_name_the_value(self):
        data = dict(np.load(DIGITS))
        data["y"][:] = 12
        np.savez(self.path("labels.npz"), **data)
        self.refused("12", args=self.digits_job(self.path("labels.npz")))

    def test_missing_column(self):
        np.savez(self.path("few.npz"), x=np.load(DIGITS)["x"])
        self.refused("y", "x", args=self.digits_job(self.path("few.npz")))

    def test_shapes_that_do_not_fit(self):
        np.savez(self.path("shape.npz"), x=np.zeros((64, 1, 9, 8), np.float32), y=np.zeros(64, np.int64))
        self.refused("[1, 9, 8]", args=self.digits_job(self.path("shape.npz")))

    def test_dataset_that_is_no_npz(self):
        with open(self.path("no.npz"), "wb") as file:
            file.write(b"PK\x03\x04 this is not one")
        self.refused("npz", args=self.digits_job(self.path("no.npz")))

    def test_zip_bomb_npz_is_scanned_in_little_memory(self):
        """A column of bytes, which take four bytes each in memory."""
        blocks, zeros = 16, bytes(64 << 20)
        text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({blocks << 20}, 8, 8), }}\n".encode()
        header = b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text
        pack = zlib.compressobj(9, zlib.DEFLATED, -15)
        packed = pack.compress(header) + pack.flush(zlib.Z_FULL_FLUSH)
        # Nothing refers back over a full flush, so the block can be repeated.
        packed += (pack.compress(zeros) + pack.flush(zlib.Z_FULL_FLUSH)) * blocks + pack.flush()
        crc = zlib.crc32(header)
        for _ in range(blocks):
            crc = zlib.crc32(zeros, crc)
        name = b"x.npy"
        entry = struct.pack("<HHIIIIHH", 0, 8, 0, crc, len(packed), len(header) + blocks * len(zeros), len(name), 0)
        local = struct.pack("<IH", 0x04034B50, 20) + entry + name
        central = struct.pack("<IHH", 0x02014B50, 20, 20) + entry + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name
        end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 1, 1, len(central), len(local) + len(packed), 0)
        with open(self.path("bomb.npz"), "wb") as file:
            file.write(local + packed + central + end)
        self.assertLess(os.path.getsize(self.path("bomb.npz")), 5 << 20)

        def most_memory():
            with open(f"/proc/{self.cluster.daemon.pid}/status") as status:
                return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM:"))
        before = most_memory()
        self.refused("no column 'y'", "it has 'x'", args=self.digits_job(self.path("bomb.npz")))
        self.assertLess(most_memory(), before + (300 << 20))

    def test_batch_larger_than_the_dataset(self):
        np.savez(self.path("small.npz"), x=np.zeros((4, 1, 8, 8), np.float32), y=np.zeros(4, np.int64))
        self.refused("batch", args=self.digits_job(self.path("small.npz")))

    def test_plan_of_another_graph(self):
        plan = self.path("plan.json")
        self.cluster.cli("train", TINY, "-d", TEXT, "--sequence-length=16", "-b", "8", "--steps=2",
                         f"--export-strategy={plan}", "--name=first")
        self.refused("graph", args=["train", "--model=llama:hidden=32,layers=1,heads=2,kv_heads=1,intermediate=32",
                                    "-d", TEXT, "--sequence-length=16", "-b", "8", "--steps=2",
                                    f"--import-strategy={plan}"])
        self.cluster.cli("train", TINY, "-d", TEXT, "--sequence-length=16", "-b", "8", "--steps=2",
                         f"--import-strategy={plan}", "--name=second")

    def test_learning_rate_that_explodes_names_the_step(self):
        self.refused("step", "learning rate",
                     args=["train", TINY, "-d", TEXT, "--sequence-length=16", "-b", "8", "--steps=200",
                           "--optimizer=sgd", "--lr=1e30"])

    def test_dead_coordinator_address(self):
        dead = f"127.0.0.1:{free_port()}"
        env = dict(os.environ, ESPALIER_COORDINATOR=dead, ESPALIER_HOME=self.folder.name)
        done = subprocess.run([PROGRAMS["espalier"], "status"], env=env, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 3)
        self.assertIn(dead, done.stderr)

    def test_unknown_flag_has_a_suggestion(self):
        self.assertIn("--epochs", self.refused("epoch", args=["train", "--epocs=3"]))

    def test_deeply_nested_or_endless_requests(self):
        """Deep nesting overflowed the stack; endless requests occupied a thread for hours."""
        template = self.path("chat.jinja")
        with open(template, "w") as file:
            file.write("{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}"
                       "{{ c.function.arguments | tojson }}{% endfor %}\n{% endfor %}")
        self.cluster.cli("train", TINY, "-d", TEXT, "--sequence-length=16", "-b", "8", "--steps=2", "--name=patient")
        self.cluster.run("serve", "patient", f"--chat-template={template}")
        deep = "[" * 200_000 + "]" * 200_000
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": deep}}
        chat = {"model": "patient", "messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
        items = [{"type": "function_call", "call_id": "1", "name": "f", "arguments": deep}]
        empty, more = "[" + "{}," * 200_000 + "{}]", "[" + "{}," * 1_000_000 + "{}]"
        for path, body in [("/v1/chat/completions", json.dumps(chat)), ("/tokenize", json.dumps(chat)),
                           ("/v1/responses", json.dumps({"model": "patient", "input": items})),
                           ("/v1/chat/completions", f'{{"model": "patient", "messages": {empty}}}'),
                           ("/v1/chat/completions", f'{{"model": "patient", "messages": {more}}}'),
                           ("/v1/messages", f'{{"model": "patient", "max_tokens": 4, "messages": {empty}}}')]:
            status, text = self.cluster.request("POST", path, body, timeout=60)
            self.assertEqual(status, 400, text)
            self.assertRegex(text, "values that are no numbers" if more in body else "arguments|messages", path)
            self.assertIsNone(self.cluster.daemon.poll(), path)
        self.cluster.run("unserve", "patient")

    def test_names_are_escaped_in_the_log(self):
        evil = "a\n2026-01-01T00:00:00.000Z error forged \x1b[31m"
        self.cluster.cli("train", TINY, "-d", TEXT, "--sequence-length=16", "-b", "8", "--steps=2", f"--name={evil}", check=False)
        self.cluster.cli("train", TINY.replace("kv_heads=1", "kv_heads=2"), "-d", TEXT, "--sequence-length=16", "-b", "8",
                         "--steps=2", "--name=good")
        self.refused("artifact name", "are accepted", args=["serve", "good", f"--name={evil}"])
        self.refused("adapters", "are accepted", args=["serve", "good", f"--adapter={evil}=good"])
        # Workers may have any name; the loss of one is logged with it.
        worker = self.cluster.spawn("espalier-worker", f"--coordinator={self.cluster.grpc}", f"--name={evil}", "--threads=1")
        try:
            self.cluster.wait_for_workers(2)
            self.cluster.run("serve", "good", "--tensor-parallel=2")
        finally:
            self.cluster.kill(worker)

        def said():
            lines = b""
            for path in self.cluster.logs:
                with open(path, "rb") as log:
                    lines += log.read()
            return lines
        self.cluster.wait(lambda: b"loading it again" in said(), 20, "the loss is logged")
        status, metrics = self.cluster.get("/metrics")
        self.assertEqual(status, 200)
        self.assertIn('model_name="good"', metrics)
        self.assertNotIn("forged", metrics)
        self.cluster.run("unserve", "good")
        self.assertIn(b"error forged", said())
        self.assertNotIn(b"\x1b", said())
        self.assertNotRegex(said(), rb"(?m)^\S+ error forged")

    def test_serving_a_model_that_is_no_language_model(self):
        self.refused("nothing-here", args=["serve", "nothing-here"])


class DiskTest(unittest.TestCase):
    """A data folder on a small volume of its own, where mounting one is allowed."""

    def mount(self, *what):
        """`what`: flags and source; 24 MB of memory if there is nothing."""
        folder = tempfile.mkdtemp(prefix="espalier-small-disk-")
        self.addCleanup(os.rmdir, folder)
        mounted = subprocess.run(["mount", *(what or ("-t", "tmpfs", "-o", "size=24m", "tmpfs")), folder], capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("mounting such a volume is not allowed here: " + mounted.stderr.decode())
        self.addCleanup(subprocess.run, ["umount", "-l", folder], capture_output=True)
        return folder

    def test_read_only_data_folder_is_rejected_at_start(self):
        folder = self.mount()
        with Cluster(workers=0, daemon_flags=[f"--data-dir={folder}/data"]):
            pass
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        for data in ("data", "none"):
            done = subprocess.run([PROGRAMS["espalierd"], "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0",
                                   f"--data-dir={folder}/{data}"], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(f"{folder}/{data}", done.stderr)
            self.assertRegex(done.stderr.lower(), "read-?only")

    def test_volume_that_turns_read_only_is_reported_and_recovers(self):
        """ext4 does so on a disk error; a command cannot remount a volume whose files are being written."""
        format_disk = shutil.which("mkfs.ext4", path="/usr/sbin:/sbin")
        if format_disk is None:
            self.skipTest("there is no mkfs.ext4")
        image = tempfile.NamedTemporaryFile(suffix=".ext4")
        image.truncate(64 << 20)
        subprocess.run([format_disk, "-q", image.name], check=True)
        volume = ["-o", "loop,errors=remount-ro"]
        folder = self.mount(*volume, image.name)
        device = subprocess.run(["findmnt", "-no", "SOURCE", folder], capture_output=True, text=True, check=True).stdout.strip()
        train = [TINY, "-d", TEXT, "--sequence-length=16", "-b", "8", "--steps=4"]
        with Cluster(workers=1, daemon_flags=[f"--data-dir={folder}/data"]) as cluster:
            job = cluster.train(*train, "--name=before")
            self.assertEqual(cluster.wait_for_job(job)["state"].upper(), "SUCCEEDED")
            try:
                with open(f"/sys/fs/ext4/{os.path.basename(device)}/trigger_fs_error", "w") as error:
                    error.write("1")
            except OSError as e:
                self.skipTest(f"no error can be caused here: {e}")
            done = cluster.cli("train", *train, "--name=refused", check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertRegex((done.stdout + done.stderr), f"{folder}/data/\\S+ mounted read-only")
            self.assertEqual(cluster.get("/health")[0], 200)
            self.assertEqual(cluster.job(job)[0]["state"].upper(), "SUCCEEDED")
            cluster.kill(cluster.daemon)
            subprocess.run(["umount", folder], check=True)
            # A copy: a process with mounts of its own may still hold the volume as it is.
            mended = tempfile.NamedTemporaryFile(suffix=".ext4")
            shutil.copy(image.name, mended.name)
            subprocess.run([os.path.join(os.path.dirname(format_disk), "e2fsck"), "-fy", mended.name], capture_output=True)
            subprocess.run(["mount", *volume, mended.name, folder], check=True)
            cluster.start_daemon()
            self.assertEqual(cluster.job(job)[0]["state"].upper(), "SUCCEEDED")
            after = cluster.train(*train, "--name=after")
            self.assertEqual(cluster.wait_for_job(after)["state"].upper(), "SUCCEEDED")

    def test_full_disk_is_an_error_and_nothing_acknowledged_is_lost(self):
        folder = self.mount()
        os.makedirs(os.path.join(folder, "data"))
        with Cluster(workers=1, daemon_flags=[f"--data-dir={folder}/data"]) as cluster:
            job = cluster.train(TINY, "-d", TEXT, "--sequence-length=16", "-b", "8", "--steps=4", "--name=small")
            self.assertEqual(cluster.wait_for_job(job)["state"].upper(), "SUCCEEDED")
            filler = os.open(os.path.join(folder, "filler"), os.O_WRONLY | os.O_CREAT)
            try:
                while True:
                    os.write(filler, b"\0" * 4096)
            except OSError:
                os.close(filler)
            big = tempfile.NamedTemporaryFile(suffix=".txt")
            big.write(b"word " * 400000)
            big.flush()
            done = cluster.cli("train", TINY, "-d", big.name, "--sequence-length=16", "-b", "8", "--steps=4", check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertRegex((done.stdout + done.stderr).lower(), "space|full|disk")
            self.assertIsNone(cluster.daemon.poll(), "the coordinator died")
            os.remove(os.path.join(folder, "filler"))
            self.assertEqual(cluster.job(job)[0]["state"].upper(), "SUCCEEDED")
            again = cluster.train(TINY, "-d", TEXT, "--sequence-length=16", "-b", "8", "--steps=4", "--name=again")
            self.assertEqual(cluster.wait_for_job(again)["state"].upper(), "SUCCEEDED")


if __name__ == "__main__":
    unittest.main()
