"""Jobs whose examples the client pushes while they train: bit for bit the run of the same rows as a file, on one worker and on
several, with kill -9 of a worker and of the coordinator, with a validation of its own; a fast producer has to wait."""

import hashlib
import os
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import grpc
import numpy as np
from cluster import Cluster
from espalier.v1 import (
    models_pb2,
    plan_pb2,
    program_pb2,
    training_pb2,
)
from grpc_calls import Calls, error_of, use
from session_client import DTYPES, cnn, images

use(models_pb2, training_pb2)
BATCH, STEPS = 16, 40
ROWS = BATCH * STEPS
Search = plan_pb2.SearchOptions
Push = training_pb2.PushExamplesRequest


def messages(job_id, data, first, steps, end=False, rows_per_message=24):
    """One call with the batches of these steps, whose messages do not end where batches do."""
    begin, behind = first * BATCH, (first + steps) * BATCH
    for at in range(begin, behind, rows_per_message):
        rows = slice(at, min(at + rows_per_message, behind))
        columns = {
            name: training_pb2.TensorValue(dtype=DTYPES[array.dtype], dims=array[rows].shape, data=np.ascontiguousarray(array[rows]).tobytes())
            for name, array in data.items()
        }
        yield Push(job_id=job_id, first_step=first, columns=columns, end=end and rows.stop == behind)
    if steps == 0:
        yield Push(job_id=job_id, first_step=first, end=end)


class Streams(unittest.TestCase):
    def connect(self, cluster):
        training = Calls(cluster.grpc, "Training")
        self.addCleanup(training.close)
        return training

    @staticmethod
    def spec(validation="", **search):
        spec = training_pb2.TrainingSpec(
            name="streamed",
            graph=cnn(dropout=0.3),
            batch_size=BATCH,
            steps=STEPS,
            seed=5,
            checkpoint_every_steps=5,
            min_devices=search.pop("min_devices", 0),
            search=Search(**search),
            optimizer=program_pb2.Optimizer(name="adam", learning_rate=program_pb2.LearningRateSchedule(peak=1e-2)),
        )
        if validation:
            spec.validation.every_steps = 15
            spec.validation.dataset.uri = validation
            spec.validation.dataset.format = training_pb2.Dataset.NPZ
        return spec

    def of_file(self, cluster, training, spec):
        spec.dataset.uri, spec.dataset.format, spec.dataset.shuffle = "artifact:rows", training_pb2.Dataset.NPZ, False
        return self.result(cluster, training.Submit(training_pb2.SubmitRequest(spec=spec)).job_id)

    @staticmethod
    def streamed(training, spec, **stream):
        spec.dataset.Clear()
        spec.dataset.format = training_pb2.Dataset.STREAM
        spec.dataset.stream.MergeFrom(training_pb2.ExampleStream(**stream))
        return training.Submit(training_pb2.SubmitRequest(spec=spec)).job_id

    def push(self, training, job_id, data, first, steps, end=False):
        """As a client does it: again while there is no room, or no answer."""
        give_up = time.time() + 120
        while True:
            try:
                reply = training.PushExamples(messages(job_id, data, first, steps, end), wait_for_ready=True)
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE or time.time() > give_up:
                    raise
                time.sleep(0.2)
                continue
            if not reply.full:
                self.assertEqual(reply.steps_pushed, first + steps)
                return reply

    def push_all(self, training, job_id, data, sizes=(1, 6, 2, 11)):
        first = 0
        while first < STEPS:
            for size in sizes:
                size = min(size, STEPS - first)
                if size:
                    self.push(training, job_id, data, first, size, end=first + size == STEPS)
                first += size

    def result(self, cluster, job_id):
        """The curve, the validations, and the hash of the parameters."""
        job = cluster.wait_for_job(job_id)
        self.assertEqual(job["state"].upper(), "SUCCEEDED", (job, cluster.job(job_id)[2]))
        reply = cluster.run("jobs", "get", job_id)
        curve = {int(r.get("step", 0)): r["values"] for r in reply["reports"]}
        self.assertEqual(len(curve), len(reply["reports"]), "no step twice")
        validations = {int(v["step"]): v["values"] for v in reply.get("validations", [])}
        with tempfile.TemporaryDirectory() as folder:
            cluster.cli("models", "download", job["output_model"], os.path.join(folder, "model"))
            (path,) = [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names if name.endswith(".safetensors")]
            with open(path, "rb") as file:
                return curve, validations, hashlib.sha256(file.read()).hexdigest()


class StreamTest(Streams):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=2, lease=10)
        cls.data = images(ROWS)
        for name, rows in (("rows", cls.data), ("others", images(50, seed=7))):
            path = os.path.join(cls.cluster.folder, f"{name}.npz")
            np.savez(path, **rows)
            cls.cluster.run("models", "upload", name, path, "--kind=dataset")

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def test_the_run_is_that_of_the_same_rows_as_a_file(self):
        training = self.connect(self.cluster)
        for name, search in (
            ("one worker", {"strategy": Search.SINGLE_DEVICE}),
            ("data parallel", {"strategy": Search.DATA_PARALLEL}),
            ("pipeline", {"pipeline_stages": 2, "micro_batches": 4}),
        ):
            with self.subTest(plan=name):
                wanted = self.of_file(self.cluster, training, self.spec("artifact:others", **search))
                self.assertEqual(len(wanted[0]), STEPS)
                self.assertEqual(sorted(wanted[1]), [14, 29, STEPS - 1])
                job_id = self.streamed(training, self.spec("artifact:others", **search))
                self.push_all(training, job_id, self.data)
                self.assertEqual(self.result(self.cluster, job_id), wanted)
                self.cluster.wait(
                    lambda: not os.path.exists(f"{self.cluster.folder}/data/checkpoints/{job_id}/stream"),
                    10,
                    "the examples are removed",
                )

    def test_other_types_are_converted_as_those_of_a_file(self):
        training = self.connect(self.cluster)
        search = {"strategy": Search.SINGLE_DEVICE}
        whole = {
            "x": np.round(self.data["x"] * 10).astype(np.int32),
            "labels": self.data["labels"].astype(np.int64),
        }
        job_id = self.streamed(training, self.spec(**search))
        self.push_all(training, job_id, whole)
        same = self.streamed(training, self.spec(**search))
        self.push_all(training, same, {"x": whole["x"].astype(np.float32), "labels": self.data["labels"]}, sizes=(7,))
        self.assertEqual(self.result(self.cluster, job_id), self.result(self.cluster, same))

    def test_a_fast_producer_waits_and_an_early_end_ends_the_job(self):
        training = self.connect(self.cluster)
        job_id = self.streamed(training, self.spec(strategy=Search.SINGLE_DEVICE), backlog=4)
        for first in range(0, 20, 2):
            reply = self.push(training, job_id, self.data, first, 2, end=first == 18)
            self.assertLessEqual(reply.steps_pushed - reply.steps_done, 4)
        curve, _, _ = self.result(self.cluster, job_id)
        self.assertEqual(sorted(curve), list(range(20)))
        self.assertTrue(self.cluster.job(job_id)[0]["stopped_early"])

    def test_errors_name_column_and_example(self):
        training = self.connect(self.cluster)
        job_id = self.streamed(training, self.spec(strategy=Search.SINGLE_DEVICE))
        bad = {name: array.copy() for name, array in self.data.items()}
        bad["x"][21, 0, 3, 4] = np.nan
        code, text = error_of(lambda: training.PushExamples(messages(job_id, bad, 0, 2)))
        self.assertEqual(code, grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("batch of step 1: column 'x': example 5, element 28 is NaN", text)
        worse = {name: array.copy() for name, array in self.data.items()}
        worse["labels"][35] = 10
        code, text = error_of(lambda: training.PushExamples(messages(job_id, worse, 0, 3)))
        self.assertEqual(code, grpc.StatusCode.INVALID_ARGUMENT)
        self.assertRegex(text, "batch of step 2: column 'labels': example 3 is 10; accepted are 0 to 9, and -100.* by node 'loss'")
        code, text = error_of(lambda: training.PushExamples(messages(job_id, {"x": bad["x"]}, 0, 1)))
        self.assertIn("column 'labels' is missing", text)
        training.Cancel(training_pb2.CancelRequest(job_id=job_id))
        code, text = error_of(lambda: training.PushExamples(messages(job_id, self.data, 0, 1)))
        self.assertEqual(code, grpc.StatusCode.FAILED_PRECONDITION)
        self.assertIn("espalier jobs resume", text)


class FaultsTest(Streams):
    def test_kills_of_a_worker_and_of_the_coordinator_change_no_bit(self):
        with Cluster(workers=2) as cluster:
            data = images(ROWS)
            path = os.path.join(cluster.folder, "rows.npz")
            np.savez(path, **data)
            cluster.run("models", "upload", "rows", path, "--kind=dataset")
            training = self.connect(cluster)
            search = {"strategy": Search.DATA_PARALLEL, "min_devices": 2}
            wanted = self.of_file(cluster, training, self.spec(**search))
            job_id = self.streamed(training, self.spec(**search), backlog=10)
            self.push(training, job_id, data, 0, 7)
            self.push(training, job_id, data, 7, 6)
            cluster.wait_for_step(job_id, 8)
            cluster.kill(cluster.workers[1])
            cluster.start_worker(1)
            self.push(training, job_id, data, 13, 10)
            cluster.wait_for_step(job_id, 21)
            cluster.kill(cluster.daemon)
            cluster.start_daemon()
            # Its answer may have been lost: the call is repeated, and what follows goes on behind it.
            self.push(training, job_id, data, 13, 10)
            self.push(training, job_id, data, 23, 10)
            self.push(training, job_id, data, 33, 7, end=True)
            self.assertEqual(self.result(cluster, job_id), wanted)


if __name__ == "__main__":
    unittest.main()
