"""fit trains alike on the data of each library, and espalier.datasets brings them as batches and artifacts."""

import warnings

import numpy as np
import pytest
import small

import espalier
from espalier import datasets, errors

DATA = small.examples(128)
X, LABELS = DATA["x"], DATA["labels"]
FEATURES = [f"f{i}" for i in range(small.FEATURES)]


def run(data, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.EspalierWarning)
        options = {"optimizer": "adam", "batch_size": 32, "epochs": 2, "shuffle": False, "verbose": 0}
        return espalier.fit(small.graph(), data, **(options | {"search": {"strategy": "single_device"}} | more))


@pytest.fixture(scope="module")
def curve(daemon):
    return run(DATA).history["loss"]


class Eager:
    """As a tensor of TensorFlow: elements by numpy()."""

    def __init__(self, array):
        self._array = array

    def numpy(self):
        return self._array


class OfTensorFlow:
    """As a tf.data.Dataset of batches: it can be iterated, its length is unknown."""

    def __iter__(self):
        for first in range(0, 128, 50):
            yield Eager(X[first : first + 50]), Eager(LABELS[first : first + 50])

    def __len__(self):
        raise TypeError("The dataset length is unknown.")


class OfHuggingFace:
    """As a datasets.Dataset: columns by name, rows by slices."""

    column_names = ("x", "label", "text")
    features = dict.fromkeys(column_names)

    def with_format(self, kind):
        assert kind == "numpy"
        return self

    def __len__(self):
        return 128

    def __getitem__(self, rows):
        return {"x": X[rows], "label": LABELS[rows], "text": np.array(["t"] * len(X[rows]))}


KINDS = {
    "dict": lambda: DATA,
    "tuple": lambda: (X, LABELS),
    "batches": lambda: [(X[:50], LABELS[:50]), (X[50:], LABELS[50:])],
    "iterator": lambda: iter([{"x": X[:50], "labels": LABELS[:50]}, {"x": X[50:], "labels": LABELS[50:]}]),
    "examples": lambda: list(zip(X, LABELS, strict=True)),
    "tf.data": OfTensorFlow,
}


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_and_iterables(curve, kind):
    assert run(KINDS[kind]()).history["loss"] == curve


def test_pandas(curve, library):
    pandas = library("pandas")
    frame = pandas.DataFrame(X, columns=FEATURES).assign(labels=LABELS)
    assert run(frame).history["loss"] == curve


def test_torch(curve, library):
    torch = library("torch")
    from torch.utils.data import DataLoader, TensorDataset

    dataset = TensorDataset(torch.tensor(X), torch.tensor(LABELS))
    for data in (dataset, DataLoader(dataset, batch_size=50), DataLoader(dataset, batch_size=32, num_workers=1)):
        assert run(data).history["loss"] == curve
    assert run(DataLoader(dataset, batch_size=32), stream=True).history["loss"] == curve


def test_columns_by_name_and_rows_by_slices(curve):
    assert run(OfHuggingFace(), columns={"labels": "label"}).history["loss"] == curve


def test_a_length_that_is_not_known(curve):
    with pytest.raises(errors.InvalidArgument, match="stream=True needs steps="):
        run(OfTensorFlow(), stream=True)
    assert run(OfTensorFlow(), stream=True, epochs=None, steps=8).history["loss"] == curve


def test_hugging_face(curve, library):
    columns = {"labels": "label"}
    real = library("datasets")
    made = real.Dataset.from_dict({"x": X, "label": LABELS, "text": ["t"] * 128})
    for data in (made, made.to_iterable_dataset(), made.with_format("numpy")):
        assert run(data, columns=columns).history["loss"] == curve


def test_tensorflow(curve, library):
    made = library("tensorflow").data.Dataset.from_tensor_slices((X, LABELS))
    for data in (made, made.batch(50), made.batch(50).prefetch(2)):
        assert run(data).history["loss"] == curve


def test_batches_feed_a_session(daemon, curve):
    graph = small.graph()
    losses = []
    with espalier.Session(graph, optimizer="adam", batch_size=32, search={"strategy": "single_device"}) as session:
        for _ in range(2):
            losses += [session.step(batch)["loss"] for batch in datasets.batches(OfTensorFlow(), graph, 32)]
    assert losses == curve
    with pytest.raises(errors.InvalidArgument, match="is a name"):
        datasets.batches("digits.npz", graph, 32)
    with pytest.raises(errors.InvalidArgument, match=r"^batch_size is 0; accepted: an integer above 0$"):
        datasets.batches({"x": X}, graph, 0)
    with pytest.raises(errors.InvalidArgument, match="the data has no column labels"):
        next(datasets.batches({"x": X}, graph, 32))


def test_an_upload_serves_several_trainings(daemon, curve):
    graph = small.graph()
    name = datasets.upload(OfHuggingFace(), graph, columns={"labels": "label"}, name="uploaded-once")
    assert name == "artifact:uploaded-once"
    for _ in range(2):
        assert run(name, columns={"labels": "label"}).history["loss"] == curve
    assert datasets.upload(DATA, graph) == datasets.upload((X, LABELS), graph)
    with pytest.raises(errors.AlreadyExists):
        datasets.upload(DATA, graph, name="uploaded-once")
