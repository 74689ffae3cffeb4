"""Callbacks with Keras' hooks, on a small graph."""

import csv
import math

import numpy as np
import pytest
from small import examples, graph

from espalier import callbacks as cb
from espalier.errors import InvalidArgument, JobFailed
from espalier.optimizers import cosine, make
from espalier.training import fit
from espalier.v1 import training_pb2

EPOCHS, BATCH, COUNT = 3, 32, 128


def train(daemon, *callbacks, rate=0.1, **kwargs):
    kwargs = {"epochs": EPOCHS} | kwargs
    return fit(
        graph(),
        examples(COUNT),
        optimizer=make("sgd", rate),
        batch_size=BATCH,
        client=daemon,
        verbose=0,
        callbacks=callbacks,
        **kwargs,
    )


class Hooks(cb.Callback):
    def __init__(self):
        self.seen = []

    def on_train_begin(self, logs=None):
        self.seen.append("begin")

    def on_epoch_begin(self, epoch, logs=None):
        self.seen.append(f"epoch {epoch}")

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(f"batch {batch}")

    def on_train_batch_end(self, batch, logs=None):
        assert logs["loss"] > 0
        self.seen.append(f"batch {batch} over")

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(f"epoch {epoch} over")

    def on_train_end(self, logs=None):
        self.seen.append("end")


def test_hooks_come_in_keras_order(daemon):
    hooks = Hooks()
    train(daemon, hooks, epochs=2)
    steps = [f"batch {b}{over}" for b in range(COUNT // BATCH) for over in ("", " over")]
    assert hooks.seen == ["begin", "epoch 0", *steps, "epoch 0 over", "epoch 1", *steps, "epoch 1 over", "end"]


def test_history_has_the_means_of_epochs_and_the_evaluation(daemon):
    history = cb.History()
    result = train(daemon, history, validation_split=0.25)
    per_epoch = 96 // BATCH
    means = np.reshape(result.history["loss"], (EPOCHS, per_epoch)).mean(1)
    np.testing.assert_allclose(history.history["loss"], means, rtol=1e-6)
    assert history.history["val_loss"] == [result.evaluation["loss"]]
    assert history.epoch == [0, 1, 2]
    assert "learning_rate" not in history.history


def test_csv_logger_appends_and_names_columns(daemon, tmp_path):
    path = tmp_path / "log.csv"
    history = cb.History()
    train(daemon, history, cb.CSVLogger(path))
    train(daemon, cb.CSVLogger(path, append=True), epochs=1)
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1", "2", "0"]
    assert [float(row["loss"]) for row in rows[:3]] == pytest.approx(history.history["loss"])


def test_lambda_callback_and_stop_training(daemon):
    class Model:
        stop_training = False

    model = Model()
    epochs = []

    def stop(epoch, logs):
        epochs.append(epoch)
        model.stop_training = True

    (callback,) = cb.prepared([cb.LambdaCallback(on_epoch_end=stop)], model, 100_000)
    result = train(daemon, callback, epochs=100_000)
    assert epochs[0] == 0
    assert len(result.history["loss"]) < 100_000 * COUNT // BATCH
    assert result.model == ""


def test_terminate_on_nan(daemon):
    # A job ends by itself at a NaN, and says where it arose.
    with pytest.raises(JobFailed, match="the loss is NaN at step"):
        train(daemon, cb.TerminateOnNaN(), rate=3e38, epochs=3000)


def test_verify_metrics(daemon):
    train(daemon, cb.VerifyMetrics(20), cb.EpochVerifyMetrics(0.2, early_stop=False))
    with pytest.raises(cb.VerificationFailed, match=r"1\.0000 was wanted"):
        train(daemon, cb.VerifyMetrics(100), rate=0.0)
    with pytest.raises(AssertionError):
        train(daemon, cb.EpochVerifyMetrics(100), rate=0.0)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        (lambda epoch, rate: 0.05, [0.05] * 3),
        (lambda epoch, rate: rate * 0.5 if epoch else rate, [0.1, 0.05, 0.025]),
        (lambda epoch: 0.2 if epoch < 2 else 0.02, [0.2, 0.2, 0.02]),
    ],
)
def test_learning_rate_scheduler_is_followed(daemon, rates, expected):
    (callback,) = cb.prepared([cb.LearningRateScheduler(rates)], None, EPOCHS, None, COUNT // BATCH)
    result = train(daemon, callback)
    np.testing.assert_allclose(result.history["learning_rate"], np.repeat(expected, COUNT // BATCH), rtol=1e-6)


def test_learning_rate_scheduler_that_no_job_can_follow(daemon):
    wave = cb.LearningRateScheduler(lambda epoch, rate: 0.1 + 0.05 * math.sin(epoch))
    (callback,) = cb.prepared([wave], None, EPOCHS, None, 4)
    with pytest.raises(InvalidArgument, match=r"no schedule of the coordinator gives the rates 0\.1, 0\.142"):
        train(daemon, callback, execution="job")
    result = train(daemon, callback)
    assert result.job is None
    wanted = [0.1 + 0.05 * math.sin(epoch) for epoch in range(EPOCHS)]
    np.testing.assert_allclose(result.history["learning_rate"], np.repeat(wanted, COUNT // BATCH), rtol=1e-6)


@pytest.mark.parametrize("execution", ["auto", "job", "session"])
def test_learning_rate_scheduler_beside_a_schedule(daemon, execution):
    (callback,) = cb.prepared([cb.LearningRateScheduler(lambda epoch, rate: rate)], None, EPOCHS, None, 4)
    schedule = make("sgd", 0.1, cosine())
    with pytest.raises(InvalidArgument, match="the optimizer has a schedule already"):
        fit(graph(), examples(COUNT), optimizer=schedule, batch_size=BATCH, execution=execution, callbacks=[callback])


def test_history_as_a_table():
    history = cb.History()
    for epoch, logs in enumerate(({"loss": 3.0}, {"loss": 2.0, "val_loss": 2.5}, {"loss": 1.0})):
        history.on_epoch_end(epoch, logs)
    history.on_epoch_end(1, {"loss": 1.5, "val_loss": 2.25})  # again, after a lost worker
    history.on_epoch_end(2, {"loss": 1.25})
    table = history.dataframe()
    assert table.index.tolist() == [0, 1, 2]
    assert table["loss"].tolist() == history.history["loss"] == [3.0, 1.5, 1.25]
    np.testing.assert_array_equal(table["val_loss"], [np.nan, 2.25, np.nan])


def test_lms_sets_the_memory_options():
    spec = training_pb2.TrainingSpec()
    cb.LMS(swapout_threshold=40, swapin_ahead=0, sync_mode=3, serialization=[1, "3:5", 7]).configure(spec)
    memory = spec.search.memory
    assert (memory.swapout_threshold, memory.swapin_ahead, memory.swapin_groupby, memory.sync_mode) == (40, 1, 0, 3)
    for arguments, message in (
        ({"swapin_ahead": -2}, "swapin_ahead=-2"),
        ({"sync_mode": 4}, "sync_mode=4"),
        ({"serialization": ["a:b"]}, "'a:b'"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            cb.LMS(**arguments)
    with pytest.raises(InvalidArgument, match="callbacks="):
        cb.LMS().run()


def test_lms_reaches_the_job_and_shows_its_plan(daemon, capsys):
    result = train(daemon, cb.LMS(swapout_threshold=1, debug=True), epochs=1)
    assert result.job.record.spec.search.memory.swapout_threshold == 1
    assert "step" in capsys.readouterr().out


def test_callbacks_of_others_are_refused():
    with pytest.raises(InvalidArgument, match=r"builtins\.object is no espalier\.callbacks\.Callback"):
        cb.prepared([object()], None, 1)
