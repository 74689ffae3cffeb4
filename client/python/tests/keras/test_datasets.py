"""Datasets and preprocessing: the same arrays as the real Keras makes of the same files."""

import pickle

import keras
import numpy as np
import pytest

import espalier.keras as ours
from espalier.errors import InvalidArgument, NotFound
from espalier.keras import datasets, preprocessing


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    (tmp_path / "datasets").mkdir()
    yield tmp_path / "datasets"
    ours.backend.set_image_data_format("channels_last")


def write_reuters(path):
    rng = np.random.default_rng(0)
    texts = np.empty(50, dtype=object)
    texts[:] = [rng.integers(1, 200, rng.integers(3, 30)).tolist() for _ in range(50)]
    np.savez(path, x=texts, y=rng.integers(0, 46, 50))


@pytest.mark.parametrize(
    "arguments",
    [{}, {"num_words": 100}, {"num_words": 100, "oov_char": None, "maxlen": 20}, {"start_char": None, "skip_top": 9}],
)
def test_reuters(home, monkeypatch, arguments):
    write_reuters(home / "reuters.npz")
    monkeypatch.setattr("keras.src.datasets.reuters.get_file", lambda *args, **kwargs: str(home / "reuters.npz"))
    theirs, mine = keras.datasets.reuters.load_data(**arguments), datasets.reuters.load_data(**arguments)
    for (x, y), (a, b) in zip(theirs, mine, strict=True):
        assert [list(text) for text in x] == [list(text) for text in a]
        np.testing.assert_array_equal(y, b)


def test_a_pickle_that_names_anything_else_is_refused(home):
    class Evil:
        def __reduce__(self):
            return print, ("run",)

    texts = np.empty(1, dtype=object)
    texts[0] = Evil()
    np.savez(home / "reuters.npz", x=texts, y=np.zeros(1))
    with pytest.raises(InvalidArgument, match=r"builtins\.print"):
        datasets.reuters.load_data()
    folder = home / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))
    with pytest.raises(InvalidArgument, match=r"builtin__?s?__\.print|builtins\.print"):
        datasets.cifar10.load_data()


def test_cifar10_in_both_data_formats(home):
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (12, 3, 32, 32)).astype(np.uint8)
    folder = home / "cifar-10-batches-py"
    folder.mkdir()
    for i, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        part = {"data": images[2 * i : 2 * i + 2].reshape(2, -1), "labels": [i, i + 1]}
        (folder / name).write_bytes(pickle.dumps({k.encode(): v for k, v in part.items()}, protocol=2))
    (x, y), (x_test, y_test) = datasets.cifar10.load_data()
    np.testing.assert_array_equal(x, images[:10].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(x_test, images[10:].transpose(0, 2, 3, 1))
    assert y.shape == (10, 1)
    assert y_test.ravel().tolist() == [5, 6]
    ours.backend.set_image_data_format("channels_first")
    np.testing.assert_array_equal(datasets.cifar10.load_data(num_samples=3)[0][0], images[:3])


def test_mnist_and_digits(home):
    with pytest.raises(NotFound, match=r"looked for .*mnist\.npz. Datasets are not downloaded"):
        datasets.mnist.load_data()
    arrays = {name: np.arange(4) for name in ("x_train", "y_train", "x_test", "y_test")}
    np.savez(home / "other.npz", **arrays)
    (x, _), _ = datasets.mnist.load_data("other.npz")
    np.testing.assert_array_equal(x, np.arange(4))
    (x, y), (x_test, _) = datasets.digits.load_data()
    assert x.shape == (1437, 8, 8, 1)
    assert len(x) + len(x_test) == 1797
    assert x.max() == 1
    assert set(y) == set(range(10))


@pytest.mark.parametrize("padding", ["pre", "post"])
@pytest.mark.parametrize("truncating", ["pre", "post"])
@pytest.mark.parametrize("maxlen", [None, 3, 6])
def test_pad_sequences(padding, truncating, maxlen):
    given = [[1], [2, 3, 4, 5], [], [6, 7]]
    arguments = {"padding": padding, "truncating": truncating, "maxlen": maxlen, "value": 9}
    want = keras.utils.pad_sequences(given, **arguments)
    np.testing.assert_array_equal(preprocessing.sequence.pad_sequences(given, **arguments), want)


def test_to_categorical_and_normalize():
    labels = np.array([[0], [3], [1]])
    np.testing.assert_array_equal(ours.utils.to_categorical(labels, 5), keras.utils.to_categorical(labels, 5))
    x = np.random.default_rng(0).standard_normal((4, 5))
    np.testing.assert_allclose(ours.utils.normalize(x), keras.utils.normalize(x))
    with pytest.raises(InvalidArgument, match="labels from 0 to 3 with 3 classes"):
        ours.utils.to_categorical(labels, 3)


def test_tokenizer():
    tokenizer = preprocessing.text.Tokenizer(num_words=4, oov_token="?")
    tokenizer.fit_on_texts(["The cat, the dog!", "the Cat sat"])
    assert tokenizer.word_index == {"?": 1, "the": 2, "cat": 3, "dog": 4, "sat": 5}
    assert tokenizer.texts_to_sequences(["the dog saw the cat"]) == [[2, 1, 1, 2, 3]]
    np.testing.assert_array_equal(tokenizer.texts_to_matrix(["the the cat"], "count"), [[0, 0, 2, 1]])
    assert tokenizer.sequences_to_texts([[2, 3]]) == ["the cat"]
