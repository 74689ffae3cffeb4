"""What `fit` gets as x, y and weights, as columns of a dataset."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from espalier.errors import InvalidArgument
from espalier.graph import Tensor
from espalier.keras.lowering import Lowering
from espalier.keras.tensor import Shape, flatten, transform
from espalier.npz import as_float32, as_integers

if TYPE_CHECKING:
    from espalier.keras.heads import LossGraph
    from espalier.keras.network import Network

Array = np.ndarray[Any, Any]

# Columns, and inputs of graphs: weights of examples; for losses that are sums; for what is not weighted, 1 or 0.
WEIGHTS = "sample_weight"
SUM_WEIGHTS = "sample_weight.sum"
COUNTED = "sample_weight.counted"


def as_array(value: Any, what: str) -> Array:
    """An array of numbers, of float64 as float32; InvalidArgument for anything else."""
    detach = getattr(value, "detach", None)
    if callable(detach):  # a torch tensor
        value = detach().cpu()
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise InvalidArgument(f"{what} has elements of type {array.dtype}; accepted are numbers")
    if array.dtype == np.float64:
        return as_float32(array, what)
    return array.astype(np.int64) if array.dtype in (np.uint16, np.uint32, np.uint64) else array


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") or (
        isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], (int, float, bool))
    )


def _by_class(given: Any, who: str) -> dict[int, float] | None:
    """Weights by class; None if there are none."""
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"{who}: class_weight is {given!r}; accepted: a dict {{class: weight}}")
    for label, weight in given.items():
        number = isinstance(label, (int, float, np.number)) and not isinstance(label, bool)
        whole = number and label >= 0 and label == np.floor(label) < np.inf  # NumPy's unique gives floats of floats
        if not whole or not isinstance(weight, (int, float, np.number)):
            raise InvalidArgument(
                f"{who}: class_weight has {label!r}: {weight!r}; accepted: {{class: weight}}, with classes from 0 on"
            )
    return {int(label): float(weight) for label, weight in given.items()} or None


def are_batches(value: Any) -> bool:
    """Whether it is a list of (x, y) batches, not of arrays."""
    if not isinstance(value, list) or not value or not isinstance(value[0], tuple):
        return False
    return all(isinstance(item, tuple) and any(hasattr(part, "shape") for part in flatten(item)) for item in value)


class Target:
    """The labels of one output."""

    def __init__(self, name: str, shape: Shape, integer: bool, loss: Any, wanted: bool):
        self.name = name
        self.integer, self.loss, self.wanted = integer, loss, wanted
        self.output: Shape = tuple(shape)
        self.shape: Shape = tuple(shape[:-1]) if integer else tuple(shape)

    def column(self, several: bool) -> str:
        """Name of the graph's input and of the column."""
        return f"labels.{self.name}" if several else "labels"

    def input(self, g: Lowering, several: bool) -> Tensor:
        """The input of the graph."""
        return g.graph.input(self.column(several), self.shape, "int32" if self.integer else "float32")

    def conform(self, y: Array) -> Array:
        """Labels in the shape and type of the input; InvalidArgument if they do not fit."""
        wanted = tuple(self.shape[1:])
        have = y.shape[1:]
        if have != wanted:
            # As Keras: a last dimension of size 1 may be missing, or be too many.
            if (*have, 1) != wanted and have != (*wanted, 1):
                hint = ""
                if self.integer and have == tuple(self.output[1:]):
                    hint = "; one-hot labels go with categorical_crossentropy"
                elif not self.integer and (have == wanted[:-1] or have == (*wanted[:-1], 1)):
                    hint = "; integer labels go with sparse_categorical_crossentropy"
                raise InvalidArgument(f"output {self.name} has examples of shape {wanted}, its labels {have}{hint}")
            y = y.reshape((len(y), *wanted))
        if not self.integer:
            y = y.astype(np.float32)
            if getattr(self.loss, "signed_labels", False) and ((y == 0) | (y == 1)).all():
                y = 2 * y - 1
            return y
        whole = as_integers(y, f"output {self.name} takes integer labels, and y has") if y.dtype.kind == "f" else y
        classes = self.output[-1]
        if whole.size and classes is not None:
            low, high = int(whole.min()), int(whole.max())
            if high >= classes or (low < 0 and low != -100):
                raise InvalidArgument(
                    f"output {self.name} has {classes} classes, so labels go from 0 to {classes - 1}; "
                    f"got {low} to {high}"
                )
        return whole.astype(np.int32)


class Source:
    """Examples in memory, or an iterable of batches."""

    def __init__(
        self,
        x: Any,
        y: Any,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | None = None,
        who: str = "fit",
        labels: bool = True,
    ):
        # labels: whether x alone may be (x, y).
        self._who = who
        self._extra: tuple[str, ...] = ()  # columns of ones and of weights that a graph reads besides
        self.class_weight = None if class_weight is None else _by_class(class_weight, who)
        self.batch_size: int | None = None
        self.examples: int | None = None
        self.stream: Any = None
        self._held_out: Source | None = None
        if x is None:
            raise InvalidArgument(f"{self._who}: x is missing")
        iterable = are_batches(x) or (not _is_array(x) and not isinstance(x, (Mapping, list, tuple)))
        if iterable:
            if y is not None or sample_weight is not None:
                raise InvalidArgument(
                    f"{self._who}: x is an iterable of (x, y) or (x, y, sample_weight); y is not given apart"
                )
            self.stream = x
            once = iter(x) is x if hasattr(x, "__iter__") else False
            self._labels = labels
            read = next(self._items(), None)
            if read is None:
                raise InvalidArgument(f"{self._who}: x has no batches; was an iterator used up before?")
            if once:
                self.stream = itertools.chain([read], x)
            first = self._batch(read)
            self.first = first
            self.weighted = first[2] is not None or self.class_weight is not None
            self.batch_size = getattr(x, "batch_size", None) or len(flatten(first[0])[0])
            return
        if labels and y is None and isinstance(x, tuple) and len(x) == 2:
            x, y = x
        x, y = _arrays(x, "x"), None if y is None else _arrays(y, "y")
        weights = None if sample_weight is None else as_array(sample_weight, "sample_weight")
        self.first = (x, y, weights)
        self.weighted = weights is not None or self.class_weight is not None
        lengths = {len(a) for a in [*flatten(x), *(flatten(y) if y is not None else [])]}
        if len(lengths) != 1:
            raise InvalidArgument(f"{self._who}: x and y have unequal numbers of examples: {sorted(lengths)}")
        self.examples = lengths.pop()
        if weights is not None and weights.shape != (self.examples,):
            raise InvalidArgument(
                f"{self._who}: sample_weight has shape {weights.shape}; accepted: one number for each of "
                f"{self.examples} examples"
            )

    def _items(self) -> Iterator[Any]:
        source = self.stream
        if hasattr(source, "__getitem__") and hasattr(source, "__len__"):  # also Keras' PyDataset
            return (source[i] for i in range(len(source)))
        try:
            return iter(source)
        except TypeError:
            raise InvalidArgument(
                f"{self._who}: x is a {type(source).__name__}; accepted: arrays, lists and dicts of them, iterables of "
                "batches"
            ) from None

    def _batch(self, item: Any) -> tuple[Any, Any, Array | None]:
        if not self._labels and not isinstance(item, tuple):
            item = (item,)
        if not isinstance(item, (tuple, list)) or len(item) not in (1, 2, 3):
            raise InvalidArgument(
                f"{self._who}: an element of x is a {type(item).__name__}; accepted: (x, y) or (x, y, sample_weight)"
            )
        x, y, w = (*item, None, None)[:3]
        return (
            _arrays(x, "x"),
            None if y is None else _arrays(y, "y"),
            None if w is None else as_array(w, "sample_weight"),
        )

    def input_structure(self) -> Any:
        """Shapes and types of x, to make a model's inputs."""
        from espalier.keras.models import leaf

        kinds = {"f": "float32", "b": "float32"}
        return transform(self.first[0], lambda a: leaf((None, *a.shape[1:]), kinds.get(a.dtype.kind, "int32")))

    def _by_input(self, x: Any, network: Network) -> list[Array]:
        names = network.input_names()
        if isinstance(x, Mapping):
            missing = [name for name in names if name not in x]
            if missing and isinstance(network.inputs_structure, Mapping) and set(network.inputs_structure) <= set(x):
                return [x[key] for key in network.inputs_structure]
            if missing:
                raise InvalidArgument(f"{self._who}: x has no {missing[0]!r}; it has {', '.join(map(str, x))}")
            return [x[name] for name in names]
        found = flatten(x)
        if len(found) != len(names):
            raise InvalidArgument(
                f"{self._who}: x has {len(found)} arrays, the model {len(names)} inputs: {', '.join(names)}"
            )
        return found

    def input_shapes(self, network: Network) -> list[Shape]:
        """Shapes of the inputs with the sizes of the data; InvalidArgument if they do not fit."""
        shapes: list[Shape] = []
        for name, tensor, array in zip(
            network.input_names(), network.inputs, self._by_input(self.first[0], network), strict=True
        ):
            have = array.shape[1:]
            wanted = tensor.shape[1:]
            if len(have) == len(wanted) - 1 and wanted[-1] == 1:
                have = (*have, 1)
            if len(have) != len(wanted) or any(w not in (None, h) for h, w in zip(have, wanted, strict=True)):
                hint = ""
                if len(have) == 3 and len(wanted) == 3 and sorted(have) == sorted(w or 0 for w in wanted):
                    hint = (
                        ". The channels lie elsewhere: espalier.keras.datasets and layers follow "
                        "espalier.keras.backend.set_image_data_format"
                    )
                raise InvalidArgument(f"input {name} takes examples of shape {wanted}, x has {have}{hint}")
            shapes.append((None, *have))
        return shapes

    def _example_weights(self, targets: Sequence[Target], labels: Sequence[Array], weights: Array | None) -> Array:
        count = len(labels[0]) if labels else 0
        found = np.ones(count, np.float32) if weights is None else weights.astype(np.float32).reshape(count)
        if self.class_weight is None:
            return found
        if len(targets) != 1:
            raise InvalidArgument(f"{self._who}: class_weight needs a model of one output; give sample_weight")
        target, y = targets[0], labels[0]
        if y.ndim != (1 if target.integer else 2):
            raise InvalidArgument(f"{self._who}: class_weight needs one label for each example, got {y.shape[1:]}")
        classes = y if target.integer else y.argmax(-1) if y.shape[-1] > 1 else np.rint(y[:, 0]).astype(np.int64)
        table = np.ones(max(int(classes.max()), *self.class_weight) + 1, np.float32)
        for label, weight in self.class_weight.items():
            table[int(label)] = weight
        factors: Array = table[np.maximum(classes, 0)]
        return found * factors

    def _columns(
        self, network: Network, targets: Sequence[Target], batch: tuple[Any, Any, Array | None]
    ) -> dict[str, Array]:
        x, y, weights = batch
        found: dict[str, Array] = {}
        for name, tensor, array in zip(network.input_names(), network.inputs, self._by_input(x, network), strict=True):
            if len(array.shape) == len(tensor.shape) - 1 and tensor.shape[-1] == 1:
                array = array[..., None]
            whole = tensor.dtype in ("int32", "int64")
            found[name] = array.astype(tensor.dtype if whole or tensor.dtype == "bool" else np.float32)
        several = len(targets) > 1
        labels: list[Array] = []
        for target, given in zip(targets, self._by_output(y, targets), strict=True):
            if target.wanted:
                labels.append(target.conform(given))
                found[target.column(several)] = labels[-1]
        if self.weighted:
            wanted = [target for target in targets if target.wanted]
            found[WEIGHTS] = self._example_weights(wanted, labels, weights)
        for name in self._extra:
            found[name] = found[WEIGHTS] if name == SUM_WEIGHTS else np.ones_like(found[WEIGHTS])
        return found

    def follow(self, built: LossGraph) -> None:
        """Gives all columns that a graph reads."""
        self.weighted = self.weighted or built.weighted
        if built.counted:
            self._extra = (COUNTED, *([SUM_WEIGHTS] if built.sums else []))

    def _by_output(self, y: Any, targets: Sequence[Target]) -> list[Any]:
        if all(not target.wanted for target in targets):
            return [None] * len(targets)
        if y is None:
            raise InvalidArgument(f"{self._who}: y is missing")
        if isinstance(y, Mapping):
            missing = [t.name for t in targets if t.wanted and t.name not in y]
            if missing:
                raise InvalidArgument(f"{self._who}: y has no {missing[0]!r}; it has {', '.join(map(str, y))}")
            return [y.get(t.name) for t in targets]
        found = flatten(y)
        if len(found) != len(targets):
            names = ", ".join(t.name for t in targets)
            raise InvalidArgument(f"{self._who}: y has {len(found)} arrays, the model {len(targets)} outputs: {names}")
        return found

    def columns(self, network: Network, targets: Sequence[Target]) -> Any:
        """The dataset for the inputs of the graph: a dict of arrays, or an iterable of such batches.

        Examples that were held out come last.
        """
        if self.stream is not None:
            return _Stream(self, network, targets)
        found = self._columns(network, targets, self.first)
        if self._held_out is None:
            return found
        more = self._held_out._columns(network, targets, self._held_out.first)
        return {name: np.concatenate([array, more[name]]) for name, array in found.items()}

    def hold_out(self, other: Source) -> float:
        """Puts other examples, arrays, behind these; returns their part of all."""
        assert self.examples is not None
        assert other.examples is not None
        other.weighted = self.weighted = self.weighted or other.weighted
        other._extra = self._extra
        self._held_out = other
        # The coordinator takes so many as the product rounded down.
        return (other.examples + 0.5) / (self.examples + other.examples)

    def take_last(self, count: int) -> Source:
        """Takes the last examples, of arrays, away."""
        assert self.examples is not None
        keep = self.examples - count
        x, y, weights = self.first
        other = copy.copy(self)
        other.first = (
            transform(x, lambda a: a[keep:]),
            None if y is None else transform(y, lambda a: a[keep:]),
            None if weights is None else weights[keep:],
        )
        self.first = (
            transform(x, lambda a: a[:keep]),
            None if y is None else transform(y, lambda a: a[:keep]),
            None if weights is None else weights[:keep],
        )
        self.examples, other.examples = keep, count
        return other

    def whole(self, most: int | None = None) -> Source:
        """These examples in memory, at most so many batches of an iterable."""
        if self.stream is None:
            return self
        batches = [self._batch(item) for item in itertools.islice(self._items(), most)]
        x, y, weights = batches[0]
        parts = [flatten(batch[0]) for batch in batches], [flatten(batch[1]) for batch in batches]
        return Source(
            _joined(x, parts[0]),
            None if y is None else _joined(y, parts[1]),
            None if weights is None else np.concatenate([batch[2] for batch in batches]),
            self.class_weight,
            self._who,
        )

    def batches(
        self, network: Network, targets: Sequence[Target], most: int | None = None
    ) -> Iterator[dict[str, Array]]:
        """The columns of all examples of arrays, or of each batch of an iterable, at most so many."""
        if self.stream is None:
            yield self._columns(network, targets, self.first)
        else:
            yield from itertools.islice(_Stream(self, network, targets), most)


class _Stream:
    def __init__(self, source: Source, network: Network, targets: Sequence[Target]):
        self._source, self._network, self._targets = source, network, targets

    def __iter__(self) -> Iterator[dict[str, Array]]:
        for item in self._source._items():
            yield self._source._columns(self._network, self._targets, self._source._batch(item))


def _joined(like: Any, parts: Sequence[Sequence[Array]]) -> Any:
    """A structure as `like` with the leaves of all parts behind one another."""
    leaves = iter([np.concatenate(column) for column in zip(*parts, strict=True)])
    return transform(like, lambda _: next(leaves))


def _arrays(structure: Any, what: str) -> Any:
    """x or y with every leaf an array."""
    if isinstance(structure, Mapping):
        return {key: as_array(item, f"{what}[{key!r}]") for key, item in structure.items()}
    if isinstance(structure, (list, tuple)) and structure and all(len(getattr(i, "shape", ())) > 0 for i in structure):
        return [as_array(item, what) for item in structure]
    return as_array(structure, what)
