"""What fit accepts as data, and the .npz that comes of it. Frameworks are tested where they are installed."""

import hashlib

import numpy as np
import pytest

from espalier import data as datasets
from espalier.errors import InvalidArgument
from espalier.graph import Graph

X = np.arange(24, dtype=np.float32).reshape(8, 3)
Y = np.arange(8) % 3


def graph(labels=(None,)):
    g = Graph()
    g.input("x", (None, 3))
    g.input("y", labels, "int32")
    return g


def prepared(data, g=None, **arguments):
    """The arrays that are sent, by the inputs that read them."""
    g = g or graph()
    with datasets.prepare(data, g, **arguments) as made, np.load(made.path) as npz:
        columns = {name: npz[name] for name in npz.files}
    return {i.name: columns[made.columns.get(i.name, i.name)] for i in datasets.inputs_of(g)}


def check(found, x=X, y=Y):
    np.testing.assert_array_equal(found["x"], x)
    np.testing.assert_array_equal(found["y"], y)
    assert found["x"].dtype == np.float32
    assert found["y"].dtype.kind in "iu"


def test_arrays_of_all_types():
    check(prepared({"x": X, "y": Y}))
    check(prepared((X, Y)))
    check(prepared({"x": X.tolist(), "y": Y.tolist()}))
    check(prepared({"x": X.astype(np.float64), "y": Y.astype(np.uint8)}))
    check(prepared({"x": X.astype(">f4"), "y": Y.astype(">i2")}))
    check(prepared({"x": np.asfortranarray(X), "y": Y[::1]}))
    check(prepared({"x": np.repeat(X, 2, axis=0)[::2], "y": Y, "unused": np.array(["a"] * 8)}))
    check(prepared({"x": X, "y": Y.astype(np.float32)}))  # whole numbers
    check(prepared({"x": X, "y": Y[:, None]}))
    check(prepared({"x": X, "y": Y}, graph((None, 1))), y=Y[:, None])
    check(prepared({"a": X, "b": Y}, columns={"x": "a", "y": "b"}))


def test_one_column_may_serve_two_inputs():
    g = Graph()
    g.input("a", (None, 3))
    g.input("b", (None, 3))
    found = prepared({"x": X}, g, columns={"a": "x", "b": "x"})
    np.testing.assert_array_equal(found["a"], found["b"])


def test_an_only_input_takes_an_array():
    g = Graph()
    g.input("x", (None, 3))
    np.testing.assert_array_equal(prepared(X, g)["x"], X)


@pytest.mark.parametrize("sizes", [[8], [3, 5], [1] * 8, [4, 4]])
def test_batches(sizes):
    def batches():
        first = 0
        for size in sizes:
            yield X[first : first + size], Y[first : first + size]
            first += size

    check(prepared(batches()))
    check(prepared({"x": x, "y": y} for x, y in batches()))


def test_examples():
    check(prepared([(x, y) for x, y in zip(X, Y, strict=True)]))
    check(prepared({"x": x, "y": y} for x, y in zip(X, Y, strict=True)))
    many = 3000  # more than are converted at once
    found = prepared((X[i % 8], Y[i % 8]) for i in range(many))
    check(found, X[np.arange(many) % 8], Y[np.arange(many) % 8])


def test_batches_that_differ_are_refused():
    for second, message in [
        ((X[:, :2], Y), r"input x \[3\].*\[2\]"),
        ({"x": X, "z": Y}, "no column y"),
        ((X, Y[:5]), "batch 1 .*unequal length"),
        ((X.astype(np.float16), Y), "batch 1.*column x has examples float16.*float32"),
        ((X[0], Y[0]), "shape"),
    ]:
        first = {"x": X, "y": Y} if isinstance(second, dict) else (X, Y)
        with pytest.raises(InvalidArgument, match=message):
            prepared([first, second])
    with pytest.raises(InvalidArgument, match="neither an example nor a batch"):
        prepared([(np.zeros((2, 2, 2, 3)), np.zeros((2, 2, 2)))])


def test_equal_contents_are_equal_files(tmp_path):
    def digest():
        with datasets.prepare({"x": X, "y": Y}, graph()) as made:
            return hashlib.sha256(made.path.read_bytes()).hexdigest()

    assert digest() == digest()


def test_temporary_files_go(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fails():
        yield X, Y
        raise OSError("gone")

    with datasets.prepare({"x": X, "y": Y}, graph()) as made:
        assert list(tmp_path.rglob("data.npz")) == [made.path]
    with pytest.raises(OSError, match="gone"):
        prepared(fails())
    assert list(tmp_path.iterdir()) == []


def test_pandas(library):
    pandas = library("pandas")
    frame = pandas.DataFrame(X, columns=["a", "b", "c"])
    frame["target"] = Y
    check(prepared(frame, columns={"y": "target"}))
    with pytest.raises(InvalidArgument, match=r"input x \[3\] takes the columns .* there are 2: a, b"):
        prepared(frame.drop(columns="c"), columns={"y": "target"})
    with pytest.raises(InvalidArgument, match=r"no column targt.*did you mean 'target'"):
        prepared(frame, columns={"y": "targt"})
    with pytest.raises(InvalidArgument, match=r"name holds no numbers: frame.drop\(columns=\['name'\]\)"):
        prepared(frame.assign(name="text"), columns={"y": "target"})
    frame["c"] = "text"
    with pytest.raises(InvalidArgument, match="column c has elements of type"):
        prepared(frame, columns={"y": "target"})


def test_torch(library):
    torch = library("torch")
    from torch.utils.data import DataLoader, IterableDataset, TensorDataset

    x, y = torch.tensor(X), torch.tensor(Y)
    check(prepared({"x": x, "y": y}))
    check(prepared((x.requires_grad_(), y)))
    check(prepared({"x": x.to(torch.bfloat16), "y": y}))
    dataset = TensorDataset(x.detach(), y)
    check(prepared(dataset))
    check(prepared(DataLoader(dataset, batch_size=3)))
    check(prepared(DataLoader(dataset, batch_size=3, num_workers=2)))
    check(prepared(DataLoader(dataset, batch_size=None)))

    class Stream(IterableDataset):
        def __iter__(self):
            yield from zip(X, Y, strict=True)

    check(prepared(Stream()))
    check(prepared(DataLoader(Stream(), batch_size=5)))

    class Broken(TensorDataset):
        def __getitem__(self, index):
            raise KeyError("no such row")

    with pytest.raises(KeyError, match="no such row"):
        prepared(DataLoader(Broken(x.detach(), y), batch_size=2))


def test_hugging_face(library):
    made = library("datasets").Dataset.from_dict({"x": X.tolist(), "label": Y.tolist(), "text": ["t"] * 8})
    check(prepared(made, columns={"y": "label"}))
    check(prepared(made.to_iterable_dataset(), columns={"y": "label"}))


def test_tensorflow(library):
    tf = library("tensorflow")
    made = tf.data.Dataset.from_tensor_slices((X, Y))
    check(prepared(made))
    check(prepared(made.batch(3)))


def test_jax(library):
    jnp = library("jax.numpy")

    check(prepared({"x": jnp.asarray(X), "y": jnp.asarray(Y)}))
    check(prepared({"x": jnp.asarray(X, jnp.bfloat16), "y": jnp.asarray(Y)}))
