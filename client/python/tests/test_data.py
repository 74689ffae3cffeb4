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
    check(prepared((X.tolist(), Y.tolist())))
    check(prepared((list(X), tuple(Y.tolist()))))
    check(prepared({"x": X.astype(np.float64), "y": Y.astype(np.uint8)}))
    check(prepared({"x": X.astype(">f4"), "y": Y.astype(">i2")}))
    check(prepared({"x": np.asfortranarray(X), "y": Y[::1]}))
    check(prepared({"x": np.repeat(X, 2, axis=0)[::2], "y": Y, "unused": np.array(["a"] * 8)}))
    check(prepared({"x": X, "y": Y.astype(np.float32)}))  # whole numbers
    check(prepared({"x": X, "y": Y[:, None]}))
    check(prepared({"x": X, "y": Y}, graph((None, 1))), y=Y[:, None])
    check(prepared({"a": X, "b": Y}, columns={"x": "a", "y": "b"}))


def test_names_of_what_is_elsewhere_are_passed_on():
    for name, uri in {
        "digits": "artifact:digits",
        "artifact:digits": "artifact:digits",
        "s3://b/a.npz": "s3://b/a.npz",
    }.items():
        with datasets.prepare(name, graph(), columns={"x": "images"}) as made:
            assert (made.uri, made.path, made.columns) == (uri, None, {"x": "images"})
    with pytest.raises(InvalidArgument, match="there is no file"), datasets.prepare("b/a.npz", graph()):
        pass


def test_one_column_may_serve_two_inputs():
    g = Graph()
    g.input("a", (None, 3))
    g.input("b", (None, 3))
    found = prepared({"x": X}, g, columns={"a": "x", "b": "x"})
    np.testing.assert_array_equal(found["a"], found["b"])


def test_several_inputs_of_a_tuple_or_list():
    g = Graph()
    for name in ("a", "b"):
        g.input(name, (None, 3))
    g.input("y", (None,), "int32")
    kinds = [((X, X), Y), ([X, X], Y), ((X.tolist(), X.tolist()), Y.tolist()), (list(X), list(X), Y)]
    for data in (*kinds, [([X, X], Y)]):  # at last as a loader of torch has it
        found = prepared(data, g)
        check({"x": found["a"], "y": found["y"]})
        check({"x": found["b"], "y": found["y"]})
    numbers = Graph()
    for name in ("a", "b", "c"):
        numbers.input(name, (None,))
    found = prepared([((1.0, 2.0), 3.0)] * 4, numbers)  # examples of single numbers
    assert [found[name].tolist() for name in "abc"] == [[1.0] * 4, [2.0] * 4, [3.0] * 4]


def test_an_only_input_takes_an_array():
    g = Graph()
    g.input("x", (None, 3))
    np.testing.assert_array_equal(prepared(X, g)["x"], X)


WRONG = [
    (float("nan"), "nan in row 5; leave such rows out, or give them a value"),
    (float("-inf"), "-inf in row 5; leave such rows out"),
    (0.25, "0.25 in row 5$"),
    (2.0**63, r"9\.223372036854776e\+18 in row 5, which no int64 can hold"),
    (-(2.0**64), r"-1\.8446744073709552e\+19 in row 5, which no int64 can hold"),
]


@pytest.mark.parametrize("kind", ["int64", "int32", "int8", "uint8", "bool"])
@pytest.mark.parametrize(("value", "message"), WRONG)
def test_integers_that_floats_do_not_give_are_refused(kind, value, message):
    g = Graph()
    g.input("x", (None, 3))
    g.input("y", (None,), kind)
    y = Y.astype(np.float64)
    y[5] = y[6] = value
    message = rf"input y \[\] takes integers, and its column y has {message}"
    given = [{"x": X, "y": y}, {"x": X, "y": y.astype(np.float32)}, {"x": X, "y": y[:, None]}]
    batches = [{name: array[first : first + 2] for name, array in given[0].items()} for first in (0, 2, 4, 6)]
    for data in [*given, batches, [{"x": X[i], "y": y[i]} for i in range(8)]]:
        with pytest.raises(InvalidArgument, match=message):
            prepared(data, g)
        with pytest.raises(InvalidArgument, match=message):
            datasets.inline_batch(data, g)
        with pytest.raises(InvalidArgument, match=message):
            list(datasets.batches(data, datasets.inputs_of(g), None, 2))


def test_floats_reach_integers_whole():
    y = np.array([2**53, -(2**62), 16777217, 3, 0, 1, 2, 3], np.float64)  # no float32 holds the third
    assert prepared({"x": X, "y": y})["y"].tolist() == y.tolist()
    assert prepared([(X[i], y[i]) for i in range(8)])["y"].tolist() == y.tolist()


def test_floats_that_no_float32_holds_are_refused():
    x = X.astype(np.float64)
    x[6, 1] = -1e39
    for data in [{"x": x, "y": Y}, [(x[:4], Y[:4]), (x[4:], Y[4:])], zip(x, Y, strict=True)]:
        with pytest.raises(InvalidArgument, match=r"column x has -1e\+39 in row 6, which no float32 can hold"):
            prepared(data)
    x[6, 1] = 1e-50  # the nearest float32 is 0
    check(prepared({"x": x, "y": Y}), x=x.astype(np.float32))


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
    for kind in ("Int64", "UInt8", "Float64"):
        check(prepared(frame.astype({"target": kind}), columns={"y": "target"}))
    found = prepared(frame.assign(target=pandas.array(Y > 0, "boolean")), columns={"y": "target"})
    assert (found["y"] == (Y > 0)).all()
    gaps = frame.assign(target=frame["target"].astype("float64").where(frame.index != 3))
    with pytest.raises(
        InvalidArgument, match=r"input y \[\] takes integers, and its column target has nan in row 3; le"
    ):
        prepared(gaps, columns={"y": "target"})
    for kind in ("Int64", "boolean", "Float32"):
        gaps = frame.assign(a=pandas.array([1, 0, None, 1, 0, 1, 0, 1], kind))
        with pytest.raises(InvalidArgument, match=r"column a has (no value|nan) in row 2; leave such rows out"):
            prepared(gaps, columns={"y": "a"})
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
