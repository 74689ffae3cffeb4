"""fit(stream=True) and Job.push: the same run as with an upload, its end, errors of the data, another program."""

import socket
import threading
import time
import warnings

import numpy as np
import pytest
import small

import espalier
from espalier import data as datasets
from espalier import errors
from espalier.training import Callback, fit

BATCH = 32
DATA = small.examples(256)  # 8 batches


def run(data, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.EspalierWarning)
        arguments = {"optimizer": "adam", "batch_size": BATCH, "search": {"strategy": "single_device"}, "verbose": 0}
        return fit(small.graph(), data, **{**arguments, **more})


def pieces(size, count=256):
    """A generator of (x, labels), which do not fit into batches."""
    for first in range(0, count, size):
        yield DATA["x"][first : first + size], DATA["labels"][first : first + size]


def losses(**more):
    return run(DATA, shuffle=False, **more).history["loss"]


@pytest.fixture(scope="module")
def curve(daemon):
    return losses(epochs=2)


@pytest.mark.parametrize("data", ["dict", "batches", "pieces", "examples"])
def test_the_run_is_that_of_an_upload(curve, data):
    given = {
        "dict": DATA,
        "batches": list(pieces(BATCH)),
        "pieces": list(pieces(50)),
        "examples": [{"x": x, "labels": label} for x, label in zip(DATA["x"], DATA["labels"], strict=True)],
    }[data]
    # An epoch of pieces has 300 examples as far as their number tells, and ends before.
    result = run(given, stream=True, epochs=2) if data != "pieces" else run(given, stream=True, steps=16)
    assert result.history["loss"] == curve
    assert set(result.weights()) == {"w1", "b1", "w2", "b2"}


def test_an_iterator_that_ends_ends_the_job(curve):
    result = run(pieces(50), stream=True, steps=100)
    assert result.history["loss"] == curve[:8], "the last 0 of 256 examples do not fill a batch"
    assert result.job.record.stopped_early
    assert result.job.stream_position == 8
    result = run(pieces(50, count=200), stream=True, steps=100)
    assert result.history["loss"] == curve[:6], "6 batches, and 8 examples that are left out"


def test_other_examples_are_evaluated_after_each_epoch(curve):
    class Watch(Callback):
        def __init__(self):
            self.seen = []

        def on_epoch(self, run, epoch, values):
            self.seen.append(values["val_loss"])

    streamed, uploaded = Watch(), Watch()
    others = small.examples(64, seed=3)
    run(list(pieces(BATCH)), stream=True, epochs=2, callbacks=[streamed], validation_data=others)
    run(DATA, shuffle=False, epochs=2, callbacks=[uploaded], validation_data=others)
    assert streamed.seen == uploaded.seen
    assert len(streamed.seen) == 2


def test_callbacks_see_epochs(curve):
    class Epochs(Callback):
        def __init__(self):
            self.means = []

        def on_epoch(self, run, epoch, values):
            self.means.append(values["loss"])

    seen = Epochs()
    run(list(pieces(BATCH)), stream=True, epochs=2, callbacks=[seen])
    assert seen.means == pytest.approx([np.mean(curve[:8]), np.mean(curve[8:])])


def test_a_slow_producer_is_waited_for_and_trained_meanwhile(daemon, curve):
    seen = []

    class Watch(Callback):
        def on_step(self, run, step, values):
            seen.append(step)

    def slowly():
        for number, piece in enumerate(pieces(BATCH)):
            if number == 4:
                end = time.monotonic() + 60
                while len(seen) < 4 and time.monotonic() < end:
                    time.sleep(0.01)
                assert len(seen) == 4, "the first ones were trained before the others existed"
            yield piece

    assert run(slowly(), stream=True, steps=8, callbacks=[Watch()]).history["loss"] == curve[:8]


def test_what_the_data_raise_is_raised_and_the_job_can_go_on(daemon, curve):
    def breaks():
        yield from list(pieces(BATCH))[:3]
        raise RuntimeError("the disk of the loader is gone")

    with pytest.raises(RuntimeError, match="the disk of the loader"):
        run(breaks(), stream=True, steps=8, name="broken")
    job = max((job for job in daemon.jobs() if job.spec.name == "broken"), key=lambda job: int(job.id[4:]))
    assert job.state == "cancelled"
    job = daemon.job(job.id)
    assert job.stream_position == 3
    with pytest.raises(errors.FailedPrecondition, match="espalier jobs resume"):
        job.push(DATA)
    job.resume()
    rest = {name: array[3 * BATCH :] for name, array in DATA.items()}
    # The job knows its columns by name, not in the order of the graph's inputs.
    for tuples in ((rest["x"], rest["labels"]), list(zip(rest["x"], rest["labels"], strict=True))):
        with pytest.raises(errors.InvalidArgument, match="dicts by column: labels, x"):
            job.push(tuples)
    assert job.push(rest) == 8
    job.wait()
    assert job.history["loss"] == curve[:8]


def test_values_that_cannot_be_are_named(daemon):
    bad = {name: array.copy() for name, array in DATA.items()}
    bad["x"][40, 2] = np.nan
    with pytest.raises(errors.InvalidArgument, match=r"column 'x': example \d+, element 2 is NaN"):
        run(bad, stream=True, steps=8)


def test_a_label_that_is_no_class_is_refused_and_the_right_one_can_follow(daemon, curve):
    def batches(first, end, source=DATA):
        return {name: array[first * BATCH : end * BATCH] for name, array in source.items()}

    bad = {name: array.copy() for name, array in DATA.items()}
    bad["labels"][2 * BATCH + 5] = 3
    wanted = (
        r"batch of step 2: column 'labels': example 5 is 3; accepted are 0 to 2, and -100, which is ignored, by node "
        r"'sparse_categorical_crossentropy' \(sparse_categorical_crossentropy, .*small\.py:\d+\)"
    )
    with pytest.raises(errors.InvalidArgument, match=wanted):
        run(bad, stream=True, steps=8, name="bad-label")
    info = max((job for job in daemon.jobs() if job.spec.name == "bad-label"), key=lambda job: int(job.id[4:]))
    job = daemon.job(info.id)
    assert job.state == "cancelled"
    assert job.stream_position <= 2
    job.resume()
    assert job.push(batches(job.stream_position, 2), end=False) == 2
    with pytest.raises(errors.InvalidArgument, match=wanted):
        job.push(batches(2, 4, bad), end=False)
    assert job.stream_position == 2
    with pytest.raises(errors.InvalidArgument, match=f"7 examples; a batch of the job has {BATCH}"):
        job.push({name: array[:7] for name, array in DATA.items()}, end=False)
    more = {name: array[2 * BATCH : 4 * BATCH + 5] for name, array in DATA.items()}
    with pytest.warns(errors.EspalierWarning, match=f"last 5 examples do not fill a batch of {BATCH}"):
        assert job.push(more, end=False) == 4, "arrays are read once"
    assert job.push([batches(4, 8)]) == 8
    with pytest.raises(errors.EspalierError, match=r"has the examples of all|has succeeded"):
        job.push(batches(0, 1))
    job.wait()
    assert job.history["loss"] == curve[:8]
    with pytest.raises(errors.FailedPrecondition, match="has succeeded, and takes no more examples"):
        job.push(batches(0, 1))


def test_what_a_stream_cannot_do_is_refused_before_a_job_is_queued(daemon):
    jobs = len(daemon.jobs())
    for what, more in (
        ("needs steps", {"data": pieces(BATCH)}),
        ("validation_split", {"validation_split": 0.5}),
        ("only a job reads a stream", {"execution": "session"}),
        ("does not tell how many batches of 1000", {"batch_size": 1000}),
    ):
        with pytest.raises(errors.InvalidArgument, match=what):
            run(more.pop("data", DATA), stream=True, **more)
    assert len(daemon.jobs()) == jobs
    job = run(DATA, steps=1).job
    with pytest.raises(errors.FailedPrecondition, match="has a dataset"):
        job.push(DATA)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_a_coordinator_that_is_started_again_loses_nothing(curve, tmp_path):
    address = f"127.0.0.1:{free_port()}"
    flags = ["--measure-seconds=0", f"--listen={address}"]
    first, restarted = threading.Event(), threading.Event()

    def waits():
        for number, piece in enumerate(pieces(BATCH)):
            if number == 4:
                first.set()
                assert restarted.wait(60)
            yield piece

    results = []
    with espalier.Client(address) as client:
        thread = threading.Thread(
            target=lambda: results.append(run(waits(), stream=True, steps=8, client=client, checkpoint_every=2))
        )
        with espalier.local(workers=1, data_dir=tmp_path, flags=flags):
            thread.start()
            assert first.wait(60)
        with espalier.local(workers=1, data_dir=tmp_path, flags=flags):
            restarted.set()
            thread.join(90)
    assert results[0].history["loss"] == curve[:8]


def test_batches_have_exactly_the_size(daemon):
    inputs = datasets.inputs_of(small.graph())
    for size in (1, 7, 32, 100, 256):
        found = list(datasets.batches(pieces(50), inputs, None, size))
        assert [len(batch["x"]) for batch in found] == [size] * (256 // size)
        rows = np.concatenate([batch["x"] for batch in found])
        np.testing.assert_array_equal(rows, DATA["x"][: len(rows)])
    assert list(datasets.batches(pieces(50), inputs, None, 257)) == []
