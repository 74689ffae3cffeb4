"""fit by a session, and callbacks that direct it; validation during both kinds of training."""

import dataclasses

import numpy as np
import pytest
import small

import espalier
from espalier import errors, optimizers
from espalier.callbacks import EarlyStopping, ModelCheckpoint, ReduceLROnPlateau
from espalier.session import SessionState
from espalier.training import Callback

OPTIONS = {"batch_size": 32, "verbose": 0, "seed": 3, "search": {"strategy": "data_parallel"}}


class Recorder(Callback):
    def __init__(self):
        self.epochs, self.steps, self.ended = [], [], 0

    def on_step(self, run, step, values):
        self.steps.append(step)

    def on_epoch(self, run, epoch, values):
        self.epochs.append((epoch, len(self.steps), dict(values)))

    def on_end(self, run, result):
        self.ended += 1


class Validate(Callback):
    def configure(self, spec):
        spec.validation.every_epochs = 1


def fit(**options):
    recorder = Recorder()
    options = {"epochs": 3, "validation_split": 0.2, "optimizer": optimizers.SGD(0.5), **OPTIONS, **options}
    callbacks = [recorder, Validate(), *options.pop("callbacks", [])]
    return espalier.fit(small.graph(), small.examples(320), callbacks=callbacks, **options), recorder


def test_a_session_trains_as_a_job_does(daemon):
    job, by_job = fit()
    session, by_session = fit(execution="session")
    assert job.history["loss"] == session.history["loss"]
    assert session.evaluation == job.evaluation
    for name, array in job.weights().items():
        assert np.array_equal(array, session.weights()[name])
    assert job.job is not None
    assert session.job is None
    # Validations come with their epochs, before the next step.
    assert [epoch for epoch, _, _ in by_job.epochs] == [0, 1, 2]
    assert by_job.epochs == by_session.epochs
    assert [steps for _, steps, _ in by_job.epochs] == [8, 16, 24]
    for _, _, values in by_job.epochs:
        assert values.keys() >= {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert by_job.epochs[-1][2]["val_loss"] == job.evaluation["loss"]
    assert by_job.ended == by_session.ended == 1


def test_a_schedule_that_ends_is_that_of_a_job(daemon):
    rate = optimizers.SGD(0.5, schedule=optimizers.cosine(warmup=4))
    assert fit(optimizer=rate)[0].history["loss"] == fit(optimizer=rate, execution="session")[0].history["loss"]


def test_early_stopping_of_a_session_is_that_of_a_job(daemon):
    def run(execution):
        stopping = EarlyStopping("val_loss", min_delta=0.01, patience=1, restore_best_weights=True)
        return fit(epochs=30, callbacks=[stopping], execution=execution)[0]

    job, session = run("job"), run("session")
    assert len(session.history["loss"]) == len(job.history["loss"]) < 30 * 8
    assert session.evaluation == job.evaluation
    for name, array in job.weights().items():
        assert np.array_equal(array, session.weights()[name])


def test_the_learning_rate_falls_on_a_plateau(daemon):
    reduce = ReduceLROnPlateau("val_loss", factor=0.5, patience=2, min_delta=10, min_lr=0.1)
    result, recorder = fit(epochs=8, callbacks=[reduce])
    assert result.job is None
    rates = result.history["learning_rate"][::8]
    # The first epoch is better than nothing; then none improves by 10.
    assert rates == pytest.approx([0.5, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125, 0.1])
    with pytest.raises(errors.InvalidArgument, match="session"):
        fit(callbacks=[reduce], execution="job")
    assert recorder.ended == 1


def test_checkpoints_hold_the_parameters_of_their_epochs(daemon, tmp_path):
    best = ModelCheckpoint("artifact:checkpoint-test", monitor="val_loss", save_best_only=True)
    every = ModelCheckpoint(tmp_path / "{epoch}-{val_loss:.3f}.npz")
    result, recorder = fit(callbacks=[every, best])
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [
        f"{epoch + 1}-{values['val_loss']:.3f}.npz" for epoch, _, values in recorder.epochs
    ]
    with np.load(files[-1]) as saved:
        assert set(saved) == set(result.weights())
        for name, array in result.weights().items():
            assert np.array_equal(saved[name], array)
    with np.load(files[0]) as first:
        assert not np.array_equal(first["w1"], result.weights()["w1"])
    losses = [values["val_loss"] for _, _, values in recorder.epochs]
    improved = sum(loss < min([*losses[:i], np.inf]) for i, loss in enumerate(losses))
    newest = [a.name for a in daemon.artifacts() if a.name.split("@")[0] == "checkpoint-test"]
    assert len(newest) == improved
    with np.load(files[int(np.argmin(losses))]) as saved:
        assert np.array_equal(daemon.weights(f"checkpoint-test@{improved}")["w1"], saved["w1"])


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (ModelCheckpoint("artifact:x", monitor="val_los", save_best_only=True), "'val_los', .*did you mean 'val_loss'"),
        (ModelCheckpoint("{epoch}-{val_los}.npz"), "filepath names 'val_los'"),
        (ReduceLROnPlateau("nothing"), "'nothing', which will not be reported, only .*loss"),
        (ModelCheckpoint("x.pt"), r"parameters of a graph go to \.npz, \.safetensors or artifact:NAME"),
    ],
)
def test_what_a_callback_watches_is_checked_before_the_training(daemon, callback, message):
    recorder = Recorder()
    with pytest.raises(errors.InvalidArgument, match=message):
        fit(callbacks=[recorder, callback])
    assert not recorder.steps


def test_a_callback_watches_what_another_adds(daemon, tmp_path):
    class Adds(espalier.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["mine"] = float(epoch)

    best = ModelCheckpoint(tmp_path / "{epoch}-{mine}.npz", monitor="mine", mode="max", save_best_only=True)
    fit(epochs=2, callbacks=[Adds(), best])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-0.0.npz", "2-1.0.npz"]


def test_a_callback_stops_a_session_and_keeps_its_parameters(daemon):
    class Stop(Callback):
        def on_step(self, run, step, values):
            if step == 4:
                run.stop("enough")

    result, _ = fit(callbacks=[Stop()], execution="session")
    assert len(result.history["loss"]) == 5
    assert result.has_weights
    longer, _ = fit(epochs=None, steps=5, execution="session")
    for name, array in longer.weights().items():
        assert np.array_equal(array, result.weights()[name])


def test_a_job_says_what_only_a_session_can(daemon):
    class Rate(Callback):
        def on_step(self, run, step, values):
            run.set_learning_rate(0.1)

    with pytest.raises(errors.FailedPrecondition, match="execution='session'"):
        fit(callbacks=[Rate()])
    with pytest.raises(errors.InvalidArgument, match="checkpoint_every"):
        fit(execution="session", checkpoint_every=2)


def test_a_session_goes_on_where_another_has_ended(daemon):
    options = {"optimizer": optimizers.Adam(0.01), "batch_size": 32, "seed": 3, "search": OPTIONS["search"]}
    data = small.examples(320)
    with espalier.Session(small.graph(), data, **options) as session:
        session.step(steps=14)  # into the second epoch
        want = session.parameters()
    with espalier.Session(small.graph(), data, **options) as session:
        session.step(steps=6)
        state, middle = session.state(), session.parameters()
    assert state.updates == state.next_batch == 6
    with espalier.Session(small.graph(), data, state=state, **options) as session:
        session.set_parameters(middle)
        session.step(steps=8)
        for name, array in want.items():
            assert np.array_equal(session.get(name), array), name
    with pytest.raises(errors.NotFound, match=r"no optimizer_state b1\.adam_m; it has none"):
        espalier.Session(small.graph(), data, state=state, **{**options, "optimizer": "sgd"})


def test_batches_go_on_where_they_were_or_with_a_whole_epoch():
    state = SessionState(updates=16, forwards=16, next_batch=16, examples=256, batch_size=32)
    assert state.on(256, 32) == state
    # Of 10 batches each, epoch 0 was not of these data; epoch 1 would repeat the shuffling of the second one.
    other = state.on(320, 32)
    assert (other.next_batch, other.updates, other.forwards) == (20, 16, 16)
    assert state.on(256, 64).next_batch == 16
    assert state.on(256, 16).next_batch == 16
    assert state.on(96, 32).next_batch == 18


def test_a_fit_goes_on_within_an_epoch_of_the_same_data_only(daemon):
    state = SessionState(updates=3, forwards=3, next_batch=3, examples=256, batch_size=32)
    sgd = {"epochs": 1, "execution": "session", "optimizer": optimizers.SGD(0.0), "shuffle": False}
    whole, _ = fit(**sgd)
    losses = whole.history["loss"]
    assert len(set(losses)) == 8  # the parameters stay, the batches differ
    same, _ = fit(state=state, **sgd)
    assert same.history["loss"] == [*losses[3:], *losses[:3]]
    other, _ = fit(state=dataclasses.replace(state, examples=224), **sgd)
    assert other.history["loss"] == losses
    # An initial epoch says itself which batch is the first one.
    later = sgd | {"epochs": None, "steps": 5, "steps_per_epoch": 3, "initial_epoch": 1}
    third, _ = fit(state=dataclasses.replace(state, examples=224), **later)
    assert third.history["loss"] == losses[3:5]


def test_a_session_on_other_data_begins_with_a_whole_epoch(daemon, tmp_path):
    options = {"optimizer": optimizers.SGD(0.0), "batch_size": 32, "shuffle": False, "search": OPTIONS["search"]}
    data = small.examples(160)
    with espalier.Session(small.graph(), data, **options) as session:
        losses = [session.step()["loss"] for _ in range(5)]  # the parameters stay, the batches differ
        session.step(steps=3)
        state = session.state()
    assert (state.next_batch, state.examples, state.batch_size) == (8, 160, 32)

    def first(count=160, split=0.0, **change):
        with espalier.Session(
            small.graph(), small.examples(count), validation_split=split, state=state, **(options | change)
        ) as session:
            return session.step()["loss"], session.state()

    assert first()[0] == losses[3]
    # Of 6 batches each, so that epoch 2 is the next one.
    loss, after = first(192)
    assert (after.next_batch, after.updates, after.examples) == (13, 9, 192)
    assert loss != losses[3]
    assert first(split=0.25)[1].next_batch == 9 + 1  # of 3 batches each
    assert first(batch_size=16)[1].next_batch == 10 + 1
    # Of data whose number of examples the coordinator finds.
    np.savez(tmp_path / "data.npz", **small.examples(192))
    with pytest.raises(errors.InvalidArgument, match="within an epoch of 160 examples by 32; these data have 192"):
        espalier.Session(small.graph(), tmp_path / "data.npz", state=state, **options)
    np.savez(tmp_path / "data.npz", **data)
    with espalier.Session(small.graph(), tmp_path / "data.npz", state=state, **options) as session:
        assert session.step()["loss"] == losses[3]


def test_a_fit_begins_with_a_later_epoch(daemon):
    whole, recorder = fit(epochs=4, execution="session", optimizer=optimizers.SGD(0.0))
    later, second = fit(epochs=4, initial_epoch=2, optimizer=optimizers.SGD(0.0))  # the parameters stay
    assert later.job is None
    assert [epoch for epoch, _, _ in second.epochs] == [2, 3]
    # The same batches in the same order.
    assert later.history["loss"] == whole.history["loss"][16:]
    assert [values for _, _, values in second.epochs] == [values for _, _, values in recorder.epochs[2:]]
    with pytest.raises(errors.InvalidArgument, match="initial_epoch=2: a job begins with epoch 0"):
        fit(initial_epoch=2, execution="job")


def test_a_fit_validates_by_a_function(daemon):
    seen = []

    def evaluate(session):
        seen.append(session.updates)
        return {"loss": 10.0 - len(seen), "other": 1.0}

    result, recorder = fit(validation_split=0.0, evaluate=evaluate)
    assert seen == [10, 20, 30]
    assert [values["val_loss"] for _, _, values in recorder.epochs] == [9.0, 8.0, 7.0]
    assert result.evaluation == {"loss": 7.0, "other": 1.0}


def test_validations_stand_in_the_rows_of_their_steps():
    pandas = pytest.importorskip("pandas")
    from espalier.job import History

    history = History({"loss": [3.0, 2.0, 1.0, 0.5], "val_loss": [2.5, 0.75]})
    history.rows["val_loss"] = [1, 3]
    frame = history.dataframe()
    assert list(frame["loss"]) == history["loss"]
    assert list(frame["val_loss"].dropna().items()) == [(1, 2.5), (3, 0.75)]
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == 4
