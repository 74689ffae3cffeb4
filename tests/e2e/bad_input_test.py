"""Whatever a user gets wrong gets an error that names the place, and the daemon lives on."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

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
        """The command fails, and what it says holds every word; a job may fail later, then its error does."""
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

    def test_requests_that_nest_or_go_on_without_end(self):
        """Those ended the daemon by its stack, these kept a thread of it for hours."""
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
        empty = "[" + "{}," * 1_000_000 + "{}]"
        for path, body in [("/v1/chat/completions", json.dumps(chat)), ("/tokenize", json.dumps(chat)),
                           ("/v1/responses", json.dumps({"model": "patient", "input": items})),
                           ("/v1/chat/completions", f'{{"model": "patient", "messages": {empty}}}'),
                           ("/v1/messages", f'{{"model": "patient", "max_tokens": 4, "messages": {empty}}}')]:
            status, text = self.cluster.request("POST", path, body, timeout=60)
            self.assertEqual(status, 400, text)
            self.assertRegex(text, "arguments|messages", path)
            self.assertIsNone(self.cluster.daemon.poll(), path)
        self.cluster.run("unserve", "patient")

    def test_names_make_no_lines_of_the_log_and_no_colours(self):
        evil = "a\n2026-01-01T00:00:00.000Z error forged \x1b[31m"
        self.cluster.cli("train", TINY, "-d", TEXT, "--sequence-length=16", "-b", "8", "--steps=2", f"--name={evil}", check=False)
        self.cluster.cli("train", TINY.replace("kv_heads=1", "kv_heads=2"), "-d", TEXT, "--sequence-length=16", "-b", "8",
                         "--steps=2", "--name=good")
        self.cluster.cli("serve", "good", f"--name={evil}", check=False)
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
        self.cluster.run("unserve", "good")
        self.assertIn(b"error forged", said())
        self.assertNotIn(b"\x1b", said())
        self.assertNotRegex(said(), rb"(?m)^\S+ error forged")

    def test_serving_what_is_no_language_model(self):
        self.refused("nothing-here", args=["serve", "nothing-here"])


class DiskTest(unittest.TestCase):
    """A data folder of 24 MB of its own, where mounting one is allowed."""

    def mount(self):
        folder = tempfile.mkdtemp(prefix="espalier-small-disk-")
        self.addCleanup(os.rmdir, folder)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder], capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("mounting a tmpfs is not allowed here: " + mounted.stderr.decode())
        self.addCleanup(subprocess.run, ["umount", "-l", folder], capture_output=True)
        return folder

    def test_a_read_only_folder_is_refused_at_the_start(self):
        folder = self.mount()
        with Cluster(workers=0, daemon_flags=[f"--data_dir={folder}/data"]):
            pass
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        for data in ("data", "none"):
            done = subprocess.run([PROGRAMS["espalierd"], "--listen=127.0.0.1:0", "--http_listen=127.0.0.1:0",
                                   f"--data_dir={folder}/{data}"], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(f"{folder}/{data}", done.stderr)
            self.assertRegex(done.stderr.lower(), "read-?only")

    def test_full_disk_is_an_error_and_nothing_acknowledged_is_lost(self):
        folder = self.mount()
        os.makedirs(os.path.join(folder, "data"))
        with Cluster(workers=1, daemon_flags=[f"--data_dir={folder}/data"]) as cluster:
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
