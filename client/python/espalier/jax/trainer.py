"""Trainer: trains a loss function of JAX on the daemon."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from espalier.client import Client
from espalier.errors import EspalierWarning, InvalidArgument
from espalier.jax.convert import Converted, to_graph
from espalier.jax.optimizers import match
from espalier.training import Callback, TrainingResult, fit
from espalier.v1 import graph_pb2

_UNKNOWN_STEPS = 20000  # at which schedules are compared if the length of the data is not known


class Trainer:
    """Trains the parameters of a loss function.

        trainer = Trainer(loss_fn, params, optax.adamw(1e-3))
        params = trainer.fit({"x": x, "y": y}, batch_size=64, epochs=3)

    loss_fn, state, has_aux and rng are those of espalier.jax.to_graph. The optimizer is a transformation of optax that
    the daemon has (its updates are compared), or what espalier.fit takes. Each fit begins with fresh optimizer state.

    params, state: pytrees, as trained so far. result: of the last fit, with history, evaluation and the job.
    """

    def __init__(
        self,
        loss_fn: Callable[..., Any],
        params: Any,
        optimizer: Any,
        *,
        state: Any = None,
        has_aux: bool = False,
        rng: Any = None,
        client: Client | None = None,
        unroll_limit: int = 20000,
    ):
        self.loss_fn = loss_fn
        self.params = params
        self.optimizer = optimizer
        self.state = state
        self.result: TrainingResult | None = None
        self.converted: Converted | None = None
        self._has_aux = has_aux
        self._rng = rng
        self._client = client
        self._unroll_limit = unroll_limit

    def fit(
        self,
        data: Any,
        batch_size: int,
        epochs: int | None = None,
        *,
        steps: int | None = None,
        example_batch: Any = None,
        validation_split: float = 0.0,
        shuffle: bool = True,
        seed: int = 0,
        name: str = "",
        search: Mapping[str, object] | None = None,
        precision: str | None = None,
        checkpoint_every: int = 0,
        callbacks: Sequence[Callback] = (),
        verbose: int = 1,
    ) -> Any:
        """Trains, and returns the parameters in their pytree.

        data: arrays in the structure that loss_fn takes (a tuple, a dict, one array), a loader or an iterable of such
        batches, or what espalier.fit takes, with `example_batch` to show the shapes. The other arguments are those of
        espalier.fit. UnsupportedOperators and InvalidArgument before the job is queued; JobFailed if it fails.
        """
        arrays = _arrays(data)
        example = example_batch
        if example is None:
            example, data = _example(data, arrays)
        converted = to_graph(
            self.loss_fn,
            self.params,
            example,
            state=self.state,
            has_aux=self._has_aux,
            rng=self._rng,
            batch_size=batch_size,
            unroll_limit=self._unroll_limit,
        )
        self.converted = converted
        matched = match(self.optimizer, self.params, _steps(arrays, batch_size, epochs, steps, validation_split))
        frozen = {name for name, still in zip(converted.params, matched.frozen, strict=True) if still}
        for value in converted.graph.proto.values:
            if value.kind == graph_pb2.PARAMETER and value.name in frozen:
                value.frozen = True
        for note in converted.notes:
            warnings.warn(note, EspalierWarning, stacklevel=2)
        result = fit(
            converted.graph,
            _columns(data, arrays, converted),
            optimizer=matched.proto,
            batch_size=batch_size,
            epochs=epochs,
            steps=steps,
            validation_split=validation_split,
            shuffle=shuffle,
            seed=seed,
            name=name,
            client=self._client,
            search=search,
            precision=precision,
            checkpoint_every=checkpoint_every,
            callbacks=callbacks,
            verbose=verbose,
        )
        self.result = result
        if result.model:  # a job that a callback has stopped leaves none
            weights = result.weights()
            self.params = restored(self.params, converted.params, converted, weights)
            self.state = restored(self.state, converted.state, converted, weights)
        return self.params

    @property
    def history(self) -> dict[str, list[float]]:
        """Loss and metrics of each step of the last fit."""
        return {} if self.result is None else self.result.history


def _arrays(data: Any) -> list[Any] | None:
    """The leaves of arrays in a structure of loss_fn's; None for loaders, files, names and tables."""
    if isinstance(data, (dict, tuple)) or _is_array(data):
        leaves = jax.tree_util.tree_leaves(data)
        if leaves and all(_is_array(leaf) for leaf in leaves):
            return list(leaves)
    return None


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and not hasattr(value, "column_names")


def _example(data: Any, arrays: list[Any] | None) -> tuple[Any, Any]:
    """An example of a batch, and the data with it still in it."""
    if arrays is not None:
        return jax.tree_util.tree_map(lambda a: a[:2], data), data
    if isinstance(data, (str, Path)):
        path = Path(data)
        if path.suffix == ".npz" and path.is_file():
            with np.load(path) as columns:
                return {name: columns[name][:2] for name in columns.files}, data
        raise InvalidArgument(f"data is the name {data}: give fit an example_batch that shows shapes and types")
    if hasattr(data, "columns") or hasattr(data, "column_names"):
        raise InvalidArgument("data is a table: give fit an example_batch that shows shapes and types")
    iterator = iter(data)
    try:
        first = next(iterator)
    except StopIteration:
        raise InvalidArgument("data has no examples; was an iterator used up by an earlier run?") from None
    again = data if iterator is not data else itertools.chain([first], iterator)
    return _batch(first), again


def _batch(element: Any) -> Any:
    """A batch of a loader as arrays, in the structure that loss_fn takes."""
    if isinstance(element, list):
        element = tuple(element)
    return jax.tree_util.tree_map(np.asarray, element)


class _Batches:
    """Batches of a loader by the names of the graph's inputs."""

    def __init__(self, data: Any, names: Sequence[str]):
        self._data = data
        self._names = names

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for element in self._data:
            yield dict(zip(self._names, jax.tree_util.tree_leaves(_batch(element)), strict=True))


def _columns(data: Any, arrays: list[Any] | None, converted: Converted) -> Any:
    used = {v.name for v in converted.graph.proto.values if v.kind == graph_pb2.INPUT}
    if arrays is not None:
        return {n: np.asarray(a) for n, a in zip(converted.inputs, arrays, strict=True) if n in used}
    if isinstance(data, (str, Path)) or hasattr(data, "columns") or hasattr(data, "column_names"):
        return data
    return _Batches(data, converted.inputs)


def _steps(
    arrays: list[Any] | None, batch_size: int, epochs: int | None, steps: int | None, validation_split: float
) -> int:
    """Steps of the job, for schedules."""
    if steps is not None:
        return int(steps)
    if arrays is None:
        return _UNKNOWN_STEPS
    rows = len(arrays[0]) - int(len(arrays[0]) * validation_split)
    return max(1, rows // max(1, batch_size)) * int(epochs or 1)


def restored(tree: Any, names: Sequence[str], converted: Converted, weights: Mapping[str, Any]) -> Any:
    """A pytree with the trained arrays in the places of its leaves."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    new = []
    for leaf, name in zip(leaves, names, strict=True):
        if not name or name not in weights:
            new.append(leaf)
            continue
        array = converted.restored(name, np.asarray(weights[name]))
        new.append(jax.numpy.asarray(array, dtype=getattr(leaf, "dtype", None)))
    return jax.tree_util.tree_unflatten(structure, new)
