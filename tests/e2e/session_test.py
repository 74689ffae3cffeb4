"""Sessions on real processes: a client's own loop gives what a job gives, on every kind of plan; tensors are read and set; what is
wrong is refused and the session goes on; streams break and come again; workers die."""

import os
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import grpc
import numpy as np
from cluster import DATA, Cluster
from espalier.v1 import (
    cluster_pb2,
    graph_pb2,
    models_pb2,
    plan_pb2,
    program_pb2,
    session_pb2,
    training_pb2,
)
from grpc_calls import Calls, error_of, use
from session_client import DTYPES, Command, Kind, Refused, SessionClient, cnn, images

use(cluster_pb2, models_pb2, session_pb2, training_pb2)
Code = grpc.StatusCode
BATCH, HELD_OUT = 16, 0.1
Search = plan_pb2.SearchOptions
PLANS = {
    "one worker": {"strategy": Search.SINGLE_DEVICE},
    "data parallel": {"strategy": Search.DATA_PARALLEL},
    "ZeRO 1": {"strategy": Search.DATA_PARALLEL, "zero_stage": 1},
    "ZeRO 3": {"strategy": Search.DATA_PARALLEL, "zero_stage": 3},
    "pipeline": {"pipeline_stages": 2, "micro_batches": 4},
    "searched": {},
}


def equal(a, b):
    return a.keys() == b.keys() and all(a[k].tobytes() == b[k].tobytes() for k in a)


class SessionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=2, lease=10)
        cls.folder = tempfile.TemporaryDirectory()
        path = os.path.join(cls.folder.name, "digits.npz")
        cls.data = images(500)
        np.savez(path, **cls.data)
        cls.cluster.run("models", "upload", "images", path, "--kind=dataset")
        cls.calls = Calls(cls.cluster.grpc, "Sessions")
        cls.training = Calls(cls.cluster.grpc, "Training")

    @classmethod
    def tearDownClass(cls):
        cls.calls.close()
        cls.training.close()
        cls.cluster.close()
        cls.folder.cleanup()

    def spec(self, optimizer=("adam", 1e-2), dataset=True, graph=None, batch=BATCH, **search):
        name, rate = optimizer
        spec = training_pb2.TrainingSpec(
            name="test",
            graph=graph or cnn(dropout=0.3),
            batch_size=batch,
            seed=5,
            search=Search(**search),
            optimizer=program_pb2.Optimizer(name=name, learning_rate=program_pb2.LearningRateSchedule(peak=rate)),
        )
        if dataset:
            spec.dataset.CopyFrom(
                training_pb2.Dataset(uri="artifact:images", format=training_pb2.Dataset.NPZ, holdout_fraction=HELD_OUT)
            )
        return spec

    def open(self, spec=None, **more):
        request = session_pb2.OpenSessionRequest(
            spec=spec or self.spec(strategy=Search.SINGLE_DEVICE), wait_seconds=20, **more
        )
        return SessionClient(self.calls, request)

    def refused(self, code, what, call):
        with self.assertRaises(Refused) as refused:
            call()
        self.assertEqual(
            (refused.exception.code, refused.exception.ended), (code.value[0], False), refused.exception.error
        )
        self.assertRegex(refused.exception.error, what)

    def idle(self):
        return sum(w["state"].upper() == "IDLE" for w in self.cluster.run("status")["workers"])

    def run_job(self, spec, steps):
        job = training_pb2.TrainingSpec()
        job.CopyFrom(spec)
        job.steps = steps
        submitted = self.training.Submit(training_pb2.SubmitRequest(spec=job)).job_id
        self.assertEqual(self.cluster.wait_for_job(submitted)["state"].upper(), "SUCCEEDED")
        reply = self.training.Get(training_pb2.GetJobRequest(job_id=submitted, with_reports=True))
        return reply.job, [dict(report.values) for report in reply.reports]

    def test_a_loop_and_step_give_bit_for_bit_what_a_job_gives(self):
        steps = 40  # more than an epoch
        for name, search in PLANS.items():
            spec = self.spec(**search)
            job, curve = self.run_job(spec, steps)
            spec.search.CopyFrom(Search(strategy=Search.IMPORTED, imported=job.plan))
            with self.open(spec) as session:
                self.assertEqual(session.step(steps), curve, name)
                stepped = session.parameters()
                self.assertEqual(session.evaluate("held_out"), dict(job.evaluation), name)
            with self.open(spec) as session:
                self.assertEqual([session.loop() for _ in range(steps)], curve, name)
                self.assertTrue(equal(session.parameters(), stepped), name)
                # Mixed: a step continues a loop.
                self.assertEqual(len(session.step(2)), 2)

    def test_given_examples_are_as_good_as_rows(self):
        rows = list(range(40, 40 + BATCH))
        given = {name: values[rows] for name, values in self.data.items()}
        curves = []
        for source in (rows, given):
            for search in ({"strategy": Search.SINGLE_DEVICE}, {"strategy": Search.DATA_PARALLEL}):
                with self.open(self.spec(**search)) as session:
                    curves.append([session.loop(source)["loss"] for _ in range(5)])
        self.assertEqual(curves[0], curves[2])
        self.assertEqual(curves[1], curves[3])
        np.testing.assert_allclose(curves[0], curves[1], rtol=1e-5)
        self.assertLess(curves[0][-1], curves[0][0])

    def test_several_steps_of_given_examples(self):
        given = {name: values[: 3 * BATCH] for name, values in self.data.items()}
        with self.open() as session:
            together = session.step(3, given)
        with self.open() as session:
            apart = [
                session.step(1, {n: v[i * BATCH : (i + 1) * BATCH] for n, v in given.items()})[0] for i in range(3)
            ]
        self.assertEqual(together, apart)

    def test_gradients_accumulate_like_those_of_a_larger_batch(self):
        rows = list(range(2 * BATCH))
        for search in ({"strategy": Search.SINGLE_DEVICE}, {"strategy": Search.DATA_PARALLEL}):
            sgd = dict(optimizer=("sgd", 0.1), graph=cnn(), **search)
            with self.open(self.spec(batch=2 * BATCH, **sgd)) as large:
                large.forward(rows)
                large.backward()
                expected = large.get(Kind.SESSION_GRADIENT, "*")
            with self.open(self.spec(**sgd)) as session:
                for half in (rows[:BATCH], rows[BATCH:]):
                    session.forward(half)
                    session.backward()
                summed = session.get(Kind.SESSION_GRADIENT, "*")
                self.assertEqual(len(summed), 6)
                for name, gradient in summed.items():  # losses are means over the batch
                    np.testing.assert_allclose(gradient / 2, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)
                before = session.parameters()
                session.update()
                for name, value in session.parameters().items():
                    np.testing.assert_allclose(value, before[name] - 0.1 * summed[f"{name}.grad"], rtol=1e-5, atol=1e-7)
                # They stay until ZeroGradients.
                self.assertTrue(equal(session.get(Kind.SESSION_GRADIENT, "*"), summed))
                session.zero_gradients()
                self.assertFalse(any(g.any() for g in session.get(Kind.SESSION_GRADIENT, "*").values()))

    def test_tensors_are_read_and_set_whole(self):
        for search in PLANS.values():
            with self.open(self.spec(optimizer=("adam", 1e-2), **search)) as session:
                session.step(3)
                parameters = session.parameters()
                self.assertEqual(
                    {n: v.shape for n, v in parameters.items()},
                    {
                        "conv.weight": (8, 1, 3, 3),
                        "conv.bias": (8,),
                        "fc1.weight": (32, 512),
                        "fc1.bias": (32,),
                        "fc2.weight": (10, 32),
                        "fc2.bias": (10,),
                    },
                )
                states = session.get(Kind.SESSION_OPTIMIZER_STATE, "*")
                self.assertEqual(states["fc1.weight.adam_m"].shape, (32, 512))
                after = session.step(2, list(range(2 * BATCH)))
                session.set(Kind.SESSION_PARAMETER, parameters)
                session.set(Kind.SESSION_OPTIMIZER_STATE, states)
                self.assertTrue(equal(session.parameters(), parameters))
                self.assertTrue(equal(session.get(Kind.SESSION_OPTIMIZER_STATE, "*"), states))
                self.assertNotEqual(session.step(2, list(range(2 * BATCH))), after)  # dropout, and Adam's step, go on
                gradients = {name: np.full_like(value, 0.5) for name, value in parameters.items()}
                session.set(Kind.SESSION_GRADIENT, gradients)
                self.assertEqual(session.get(Kind.SESSION_GRADIENT, "fc1.*")["fc1.bias.grad"].tolist(), [0.5] * 32)
                session.update()

    def test_outputs_and_kept_activations(self):
        rows = list(range(BATCH))
        for search in PLANS.values():
            with self.open(self.spec(graph=cnn(), **search), keep=["fc1"]) as session:
                session.forward(rows)
                outputs = session.get(Kind.SESSION_OUTPUT, "*")
                self.assertEqual(
                    {n: v.shape for n, v in outputs.items()}, {"probabilities": (BATCH, 10), "fc1": (BATCH, 32)}
                )
                np.testing.assert_allclose(outputs["probabilities"].sum(axis=1), 1, rtol=1e-5)
                session.backward()
                self.assertTrue(equal(session.get(Kind.SESSION_OUTPUT, "*"), outputs))
                # Without dropout evaluation computes the same; a part of a batch, and no labels.
                for source in ({"x": self.data["x"][:5]}, rows[:5]):
                    np.testing.assert_allclose(
                        session.predict(source)["probabilities"], outputs["probabilities"][:5], rtol=1e-5, atol=1e-7
                    )
                many = session.predict(list(range(50)), ["fc1"])
                self.assertEqual(many["fc1"].shape, (50, 32))
                np.testing.assert_allclose(many["fc1"][:BATCH], outputs["fc1"], rtol=1e-4, atol=1e-6)

    def test_evaluation_counts_each_example_once(self):
        with self.open(self.spec(graph=cnn())) as session:
            session.step(20)
            rows = list(range(37))
            predicted = session.predict(rows)["probabilities"]
            labels = self.data["labels"][rows]
            accuracy = float((predicted.argmax(axis=1) == labels).mean())
            loss = float(-np.log(predicted[np.arange(37), labels]).mean())
            for source in (rows, {name: values[rows] for name, values in self.data.items()}):
                values = session.evaluate(source)
                self.assertAlmostEqual(values["accuracy"], accuracy, delta=1e-6)
                self.assertAlmostEqual(values["loss"], loss, delta=1e-4)

    def test_learning_rate_metrics_and_checkpoints(self):
        with self.open(self.spec(optimizer=("sgd", 0.1), graph=cnn())) as session:
            session.do(set_learning_rate=Command.SetLearningRate(value=0.0))
            before = session.parameters()
            self.assertEqual([v["learning_rate"] for v in session.step(2)], [0, 0])
            self.assertTrue(equal(session.parameters(), before))
            session.do(set_learning_rate=Command.SetLearningRate())
            losses = [v["loss"] for v in session.step(2)]
            reply = session.do(reset_metrics=Command.ResetMetrics())
            self.assertEqual(reply.batches, 4)
            losses = [session.forward(list(range(BATCH)))["loss"] for _ in range(2)]
            reply = session.do(reset_metrics=Command.ResetMetrics())
            self.assertEqual((reply.batches, reply.means["loss"]), (2, sum(losses) / 2))
            names = [
                session.do(save_checkpoint=Command.SaveCheckpoint(artifact="of-a-session")).artifact for _ in range(2)
            ]
            self.assertEqual(names, ["of-a-session", "of-a-session@2"])
            trained = session.parameters()
            self.refused(
                Code.ALREADY_EXISTS,
                "is no model",
                lambda: session.do(save_checkpoint=Command.SaveCheckpoint(artifact="images")),
            )
        spec = self.spec(graph=cnn())
        spec.init_artifact = "of-a-session"
        with self.open(spec) as session:
            self.assertTrue(equal(session.parameters(), trained))

    def test_mixed_precision(self):
        for precision in (graph_pb2.BF16, graph_pb2.F16):
            spec = self.spec(strategy=Search.DATA_PARALLEL)
            spec.precision = precision
            job, curve = self.run_job(spec, 10)
            spec.search.CopyFrom(Search(strategy=Search.IMPORTED, imported=job.plan))
            with self.open(spec) as session:
                self.assertEqual([session.loop() for _ in range(10)], curve)
                if precision == graph_pb2.BF16:
                    session.get(Kind.SESSION_GRADIENT, "*")
                    continue
                self.refused(Code.UNIMPLEMENTED, "loss scale", lambda s=session: s.get(Kind.SESSION_GRADIENT, "*"))
                self.refused(Code.FAILED_PRECONDITION, "ZeroGradients", session.update)

    def test_an_onnx_file(self):
        self.cluster.run("models", "upload", "digits-onnx", os.path.join(DATA, "digits_cnn.onnx"), "--kind=onnx")
        digits = dict(np.load(os.path.join(DATA, "digits.npz")))
        spec = self.spec(dataset=False, strategy=Search.SINGLE_DEVICE)
        spec.ClearField("graph")
        spec.onnx_artifact, spec.loss = "digits-onnx", "sparse_categorical_crossentropy"
        spec.metrics.append("accuracy")
        spec.dataset.columns["labels"] = "y"
        code, message = error_of(lambda: self.calls.Open(session_pb2.OpenSessionRequest(spec=spec)))
        self.assertEqual(code, Code.INVALID_ARGUMENT, message)
        self.assertIn("which columns", message)
        for dims, what in (([1, -1], "dimensions are 1 or more"), ([1 << 40, 1 << 40], "smaller batch_size")):
            wrong = {"x": graph_pb2.TensorType(dtype=graph_pb2.F32, dims=dims)}
            code, message = error_of(lambda w=wrong: self.calls.Open(session_pb2.OpenSessionRequest(spec=spec, columns=w)))
            self.assertEqual(code, Code.INVALID_ARGUMENT, message)
            self.assertIn(what, message)
        types = {name: graph_pb2.TensorType(dtype=DTYPES[v.dtype], dims=v.shape[1:]) for name, v in digits.items()}
        with self.open(spec, columns=types) as session:
            losses = [session.loop({n: v[:BATCH] for n, v in digits.items()})["loss"] for _ in range(20)]
            self.assertLess(losses[-1], losses[0] / 2)
            name = next(t.name for t in session.opened.tensors if t.kind == Kind.SESSION_OUTPUT)
            self.assertEqual(session.predict({"x": digits["x"][:5]})[name].shape, (5, 10))

    def test_without_a_dataset(self):
        batch = images(BATCH, seed=7)
        with self.open(self.spec(dataset=False)) as session:
            self.assertEqual(
                {n: list(t.dims) for n, t in session.opened.columns.items()}, {"x": [1, 8, 8], "labels": []}
            )
            losses = [session.loop(batch)["loss"] for _ in range(10)]
            self.assertLess(losses[-1], losses[0])
            self.refused(Code.FAILED_PRECONDITION, "without a dataset", session.forward)
            self.refused(Code.FAILED_PRECONDITION, "without a dataset", lambda: session.forward([1] * BATCH))

    def test_what_is_wrong_is_refused_and_the_session_goes_on(self):
        with self.open() as session:
            wrong, order = Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION
            good = {name: values[:BATCH] for name, values in self.data.items()}
            self.refused(order, "there was no Forward", session.backward)
            self.refused(order, "no gradients", session.update)
            self.refused(order, "no outputs", lambda: session.get(Kind.SESSION_OUTPUT, "*"))
            for what, change in {
                "lacks column 'labels'": {"labels": None},
                "no column 'y'": {"y": good["labels"]},
                "16 examples|1 batch of 16|batch of 16 take": {n: v[:7] for n, v in good.items()},
                r"an example is f32\[1, 8, 4\]": {"x": good["x"][..., :4]},
                "the model wants i32": {"labels": good["labels"].astype(np.float32)},
                "is NaN": {"x": good["x"] * np.nan},
                "does not fit|out of range|2147483648": {"labels": good["labels"].astype(np.int64) + (1 << 31)},
                "dimension 0 counts the examples": {"labels": good["labels"][:3]},
            }.items():
                batch = {n: v for n, v in {**good, **change}.items() if v is not None}
                self.refused(wrong, what, lambda batch=batch: session.forward(batch))
            self.refused(wrong, "rows 0 to 499", lambda: session.forward([500] * BATCH))
            self.refused(wrong, "1 batch of 16", lambda: session.forward([1, 2]))
            self.refused(wrong, "for Evaluate", lambda: session.forward("held_out"))
            self.refused(
                Code.NOT_FOUND,
                "no parameter 'fc9'; it has .*fc1.weight",
                lambda: session.get(Kind.SESSION_PARAMETER, "fc9"),
            )
            self.refused(
                wrong,
                r"is f32\[10\], given f32\[11\]",
                lambda: session.set(Kind.SESSION_PARAMETER, {"fc2.bias": np.zeros(11, np.float32)}),
            )
            self.refused(
                wrong,
                "no parameter, gradient",
                lambda: session.set(Kind.SESSION_OUTPUT, {"probabilities": np.zeros((BATCH, 10), np.float32)}),
            )
            self.refused(wrong, "0 or more", lambda: session.do(set_learning_rate=Command.SetLearningRate(value=-1)))
            self.refused(wrong, "nothing to do", session.do)
            self.refused(wrong, "lacks column 'x'", lambda: session.predict({"labels": good["labels"]}))
            self.refused(
                wrong,
                "takes none",
                lambda: session.do(
                    [session_pb2.TensorPart(name="x", dtype=1, data=b"1234")], zero_gradients=Command.ZeroGradients()
                ),
            )
            session.forward(good)
            session.evaluate("held_out")
            self.refused(order, "Evaluate has dropped the last Forward", session.backward)
            session.forward(good)
            session.backward()
            self.refused(order, "has used the last Forward", session.backward)
            session.update()
            session.zero_gradients()
            self.refused(order, "no gradients since ZeroGradients", session.update)
            self.assertEqual(session.do(keep_alive=Command.KeepAlive()).progress.updates, 1)

    def test_opening_says_what_is_wrong(self):
        def opening(**changes):
            request = session_pb2.OpenSessionRequest(spec=self.spec())
            for field, value in changes.items():
                target = request if field in ("grace_seconds", "keep") else request.spec
                if field == "keep":
                    target.keep.append(value)
                elif field == "schedule":
                    target.optimizer.learning_rate.kind = value
                else:
                    setattr(target, field, value)
            return error_of(lambda: self.calls.Open(request))

        for what, changes in {
            "epochs": {"epochs": 2},
            "output_model": {"output_model": "x"},
            "grace_seconds": {"grace_seconds": 1e9},
            "no tensor 'nowhere'": {"keep": "nowhere"},
            "batch_size": {"batch_size": 0},
            "total_steps": {"schedule": program_pb2.LearningRateSchedule.COSINE},
        }.items():
            code, message = opening(**changes)
            self.assertEqual(code, Code.INVALID_ARGUMENT, message)
            self.assertIn(what, message)
        self.assertEqual(
            error_of(lambda: self.calls.Run(iter([Command(session_id="session-none")])))[0], Code.NOT_FOUND
        )
        with self.open(self.spec()):  # on both workers
            code, message = error_of(lambda: self.calls.Open(session_pb2.OpenSessionRequest(spec=self.spec())))
            self.assertEqual(code, Code.RESOURCE_EXHAUSTED)
            self.assertIn("0 of 2 are idle", message)

    def test_several_commands_in_one_message(self):
        batch, _ = SessionClient.batch(None)
        step = (
            {"zero_gradients": Command.ZeroGradients()},
            {"forward": Command.Forward(batch=batch)},
            {"backward": Command.Backward()},
            {"update": Command.Update()},
        )
        with self.open() as session:
            curve = [values["loss"] for values in session.step(3)]
            stepped = session.parameters()
        with self.open() as session:
            session.send_together(*step, *step, {"get_tensors": Command.GetTensors()}, *step)
            replies = [session.receive()]
            self.assertEqual(len(session.arrived), 12, "the replies come in one message, too")
            replies += [session.receive() for _ in range(7)]
            self.refused(Code.INVALID_ARGUMENT, "name at least one tensor", session.receive)
            replies += [session.receive() for _ in range(4)]
            self.assertEqual([reply.values["loss"] for reply in replies if "loss" in reply.values], curve)
            self.assertTrue(equal(session.parameters(), stepped))
            # Half of the answers are lost with the connection.
            session.send_together(*step)
            session.receive()
            session.detach()
            session.attach()
            self.assertEqual([session.receive().number for _ in range(3)], [16, 17, 18])
        for wrong in (
            Command(number=1, more=True, following=[Command(number=2)]),
            Command(number=1, following=[Command(number=2, more=True)]),
            Command(number=1, following=[Command(number=2, following=[Command(number=3)])]),
            Command(number=1, following=[Command(number=3)]),
        ):
            with self.open() as session:
                session.requests.put(wrong)
                with self.assertRaises(grpc.RpcError) as refused:
                    for _ in session.replies:
                        pass
                self.assertEqual(refused.exception.code(), Code.INVALID_ARGUMENT)

    def test_a_broken_stream_comes_again(self):
        with self.open(self.spec(**PLANS["data parallel"])) as whole:
            curve = [v["loss"] for v in whole.step(6)]
        with self.open(self.spec(**PLANS["data parallel"]), grace_seconds=60) as session:
            losses = [session.step()[0]["loss"] for _ in range(2)]
            batch, _ = session.batch(None)
            session.send(step=Command.Step(batch=batch))
            session.send(step=Command.Step(batch=batch))
            self.cluster.wait(lambda: self.info(session).progress.commands == 4, 20, "both commands are carried out")
            session.detach()
            hello = session.attach()
            self.assertEqual((hello.progress.commands, hello.progress.updates), (4, 4))
            losses += [session.receive().values["loss"] for _ in range(2)]  # sent again
            # A command that was carried out is not carried out twice.
            session.requests.put(Command(number=4, answered=3, step=Command.Step(batch=batch)))
            self.assertEqual(session.receive().values["loss"], losses[-1])
            # A second stream takes over from one that seems alive.
            old = session.replies
            session.attach()
            with self.assertRaises(grpc.RpcError):
                for _ in old:
                    pass
            losses += [v["loss"] for v in session.step(2)]
            self.assertEqual(losses, curve)

    def info(self, session):
        return next(
            s for s in self.calls.List(session_pb2.ListSessionsRequest()).sessions if s.session_id == session.id
        )

    def test_the_workers_are_free_after_the_grace_time(self):
        session = self.open(self.spec(), grace_seconds=1)
        session.step(2)
        self.assertEqual(self.idle(), 0)
        session.detach()
        self.cluster.wait(lambda: self.idle() == 2, 10, "the lease ends")
        self.assertEqual(error_of(lambda: self.calls.Run(iter([Command(session_id=session.id)])))[0], Code.NOT_FOUND)
        job, _ = self.run_job(self.spec(strategy=Search.DATA_PARALLEL), 2)
        self.assertEqual(job.steps_done, 2)

    def test_a_worker_that_dies_ends_the_session_and_frees_the_others(self):
        with self.open(self.spec(**PLANS["data parallel"])) as session:
            session.step(2)
            batch, _ = session.batch(None)
            session.send(step=Command.Step(steps=100000, batch=batch))
            time.sleep(1)
            self.cluster.kill(self.cluster.workers[1])
            with self.assertRaises(Refused) as refused:
                session.receive()
            self.assertTrue(refused.exception.ended)
            self.assertEqual(refused.exception.code, Code.UNAVAILABLE.value[0])
            self.assertRegex(refused.exception.error, r"session has ended.*worker .*\(w1\)")
            self.cluster.wait(lambda: self.idle() == 1, 20, "the other worker is free")
            with self.assertRaises(Refused) as refused:
                session.step()
            self.assertTrue(refused.exception.ended)
        self.cluster.start_worker(1)
        self.cluster.wait(lambda: self.idle() == 2, 90, "the worker is back")

    def test_a_worker_that_is_told_to_end_keeps_its_session_until_it_is_told_again(self):
        def bring_back():
            self.cluster.start_worker(1)
            self.cluster.wait(lambda: self.idle() == 2, 90, "the worker is back")

        with self.open(self.spec(**PLANS["data parallel"])) as session:
            leaving = self.cluster.workers[1]
            self.addCleanup(bring_back)
            leaving.terminate()
            self.cluster.wait(lambda: "leaving" in self.cluster.cli("status").stdout, 10, "it is known")
            session.step(2)
            leaving.terminate()
            self.assertEqual(leaving.wait(20), 0)
            with self.assertRaises(Refused) as refused:
                session.step()
            self.assertTrue(refused.exception.ended)
            self.assertRegex(refused.exception.error,
                             r"session has ended.*: worker \S+ \(w1\) is lost: .* was told to end and has left; open another one")

    def test_closing_ends_a_long_step(self):
        session = self.open(self.spec())
        batch, _ = session.batch(None)
        session.send(step=Command.Step(steps=100000, batch=batch))
        time.sleep(0.5)
        begin = time.time()
        session.close()
        self.assertLess(time.time() - begin, 10)
        self.cluster.wait(lambda: self.idle() == 2, 20, "the workers are free")


if __name__ == "__main__":
    unittest.main()
