"""Trainer: trains a loss function of JAX on the daemon."""

from __future__ import annotations

import inspect
import itertools
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import jax
import numpy as np

from espalier import safetensors_io
from espalier.callbacks import prepared
from espalier.client import Client
from espalier.counts import check_count, check_counts
from espalier.data import is_numbers
from espalier.errors import AlreadyExists, InvalidArgument
from espalier.jax.convert import Converted, leaf_name, to_graph
from espalier.jax.live_params import Following
from espalier.jax.optimizers import match
from espalier.notes import warn
from espalier.npz import as_array
from espalier.session import Session
from espalier.spelling import checked
from espalier.training import Callback, TrainingResult, fit
from espalier.v1 import graph_pb2, program_pb2

_UNKNOWN_STEPS = 20000  # at which schedules are compared if the length of the data is not known


class Trainer:
    """Trains the parameters of a loss function.

        trainer = Trainer(loss_fn, params, optax.adamw(1e-3))
        params = trainer.fit({"x": x, "y": y}, batch_size=64, epochs=3)

    loss_fn, state, has_aux and rng are those of espalier.jax.to_graph. The optimizer is a transformation of optax that
    the daemon has (its updates are compared), or what espalier.fit takes. Each fit begins with fresh optimizer state.

    params, state: pytrees, as trained so far. result: of the last fit, with history, evaluation and the job.
    """

    @checked
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
        self._taken: Callable[[], None] | None = None  # told when params and state are new
        self._following: Following | None = None  # while fit runs
        self._sessions: weakref.WeakKeyDictionary[Session, Converted] = weakref.WeakKeyDictionary()

    @checked
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
        record: str | Mapping[str, object] | None = None,
        priority: int = 0,
        time_limit: float | timedelta | None = None,
        callbacks: Sequence[Callback] = (),
        verbose: int = 1,
        execution: str = "auto",
        initial_epoch: int = 0,
    ) -> Any:
        """Trains, and returns the parameters in their pytree.

        data: arrays in the structure that loss_fn takes (a tuple, a dict, one array), a loader or an iterable of such
        batches, or what espalier.fit takes, with `example_batch` to show the shapes. The other arguments are those of
        espalier.fit. UnsupportedOperators and InvalidArgument before the job is queued; JobFailed if it fails.

        In a session (execution="session", or callbacks that need one) callbacks see trainer.params and trainer.state as
        they are after each epoch; those that they replace are sent; `evaluate` uses the session.
        """
        check_count("batch_size", batch_size)
        check_counts(epochs=epochs, steps=steps)
        converted, columns, arrays = self._converted(data, batch_size, example_batch)
        total = _steps(arrays, batch_size, epochs, steps, validation_split)
        proto = self._optimizer(converted, total, whole=steps is not None or arrays is not None)
        self.converted = converted
        for note in converted.notes:
            warn(note)
        known = arrays is not None and steps is None
        told = prepared(callbacks, self, int(epochs or 1), None, total // int(epochs or 1) if known else 0)
        self._following = Following(self, converted)
        try:
            result = fit(
                converted.graph,
                columns,
                optimizer=proto,
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
                record=record,
                priority=priority,
                time_limit=time_limit,
                callbacks=[self._following.first, *told, self._following.last],
                verbose=verbose,
                execution=execution,
                initial_epoch=initial_epoch,
            )
        finally:
            self._following = None
        self.result = result
        if result.job is not None and result.has_weights:  # a job that a callback has stopped leaves none
            self._take(converted, result.weights())
        return self.params

    @checked
    def session(
        self,
        data: Any = None,
        batch_size: int | None = None,
        *,
        example_batch: Any = None,
        validation_split: float = 0.0,
        shuffle: bool = True,
        seed: int = 0,
        name: str = "",
        search: Mapping[str, object] | None = None,
        precision: str | None = None,
        total_steps: int | None = None,
    ) -> Session:
        """A session for a training loop of your own; `write_back(session)` gives the trainer its parameters.

        data: as `fit` takes it; or None, and an example of a batch: then each command brings its batch, as a dict by
        `session.columns` or a tuple of arrays, of batch_size (default: that of the example). total_steps: of a schedule
        that ends. Tensors have the names of the leaves of params; some lie transposed there, as write_back knows. Other
        arguments and errors: espalier.Session.
        """
        check_counts(batch_size=batch_size, total_steps=total_steps)
        if data is None and example_batch is None:
            raise InvalidArgument("session: give data, or an example_batch of what its commands bring")
        if batch_size is None:
            if data is not None:
                raise InvalidArgument("session: give batch_size, the number of examples in a step")
            batch_size = len(jax.tree_util.tree_leaves(example_batch)[0])
        converted, columns, _ = self._converted(data if data is not None else example_batch, batch_size, example_batch)
        session = Session(
            converted.graph,
            None if data is None else columns,
            optimizer=self._optimizer(converted, total_steps or _UNKNOWN_STEPS, whole=total_steps is not None),
            batch_size=batch_size,
            validation_split=validation_split,
            shuffle=shuffle,
            seed=seed,
            name=name,
            search=search,
            precision=precision,
            client=self._client,
        )
        self._sessions[session] = converted
        return session

    def write_back(self, session: Session) -> Any:
        """Puts the parameters of a session, as they are now, into trainer.params and trainer.state; returns params."""
        if session not in self._sessions:
            raise InvalidArgument("write_back: the session is not one of this trainer's `session`")
        self._take(self._sessions[session], session.parameters())
        return self.params

    @checked
    def evaluate(
        self,
        data: Any,
        batch_size: int = 32,
        *,
        example_batch: Any = None,
        search: Mapping[str, object] | None = None,
    ) -> dict[str, float]:
        """Loss and metrics of all examples, without dropout and with running statistics. data: as `fit` takes it."""
        check_count("batch_size", batch_size)
        if self._following is not None and self._following.run is not None:
            session = self._following.run.needs_session("evaluate")
            self._following.push()
            data = _with_arrays(data)
            return session.evaluate(_columns(data, _arrays(data), self._following.converted))
        converted, columns, _ = self._converted(data, batch_size, example_batch)
        with Session(
            converted.graph, None, optimizer="sgd", batch_size=batch_size, search=search, client=self._client
        ) as session:
            return session.evaluate(columns)

    @checked
    def predict(
        self,
        function: Callable[..., Any],
        inputs: Any,
        batch_size: int = 32,
        *,
        search: Mapping[str, object] | None = None,
    ) -> Any:
        """The results of function(params, inputs), with state function(params, state, inputs), of all examples.

        `function` is a model's apply, as it is used for inference; it returns arrays whose dimension 0 is the batch, in
        any pytree. inputs: an array, a dict, or a tuple of several arguments.
        """
        check_count("batch_size", batch_size)
        converted, shapes = self._predictor(function, inputs, batch_size)
        arguments = _arguments(inputs)
        columns = _columns(arguments, jax.tree_util.tree_leaves(arguments), converted)
        with Session(
            converted.graph, None, optimizer="sgd", batch_size=batch_size, search=search, client=self._client
        ) as session:
            made = session.predict(columns, converted.aux)
        structure = jax.tree_util.tree_structure(shapes)
        return jax.tree_util.tree_unflatten(structure, [jax.numpy.asarray(made[name]) for name in converted.aux])

    @checked
    def register(self, function: Callable[..., Any], inputs: Any, name: str) -> str:
        """Registers function(params, inputs) with the trained parameters as a model; returns the artifact's name.

            client.serve(trainer.register(model.apply, x[:2], "digits"))

        function, inputs: as in `predict`, of two examples or more. Inputs have the names of the function's arguments,
        or "input"; outputs those of the result's leaves, a single one "output".
        """
        converted, _ = self._predictor(function, inputs, 2)
        with Session(converted.graph, None, optimizer="sgd", batch_size=2, client=self._client) as session:
            return session.save(name)

    def _predictor(self, function: Callable[..., Any], inputs: Any, batch_size: int) -> tuple[Converted, Any]:
        """The graph of a function of parameters and inputs, and the shapes of its results for two examples."""
        stateful = self.state is not None

        def loss(params: Any, *rest: Any) -> Any:
            made = function(params, *rest)
            leaves = [leaf for leaf in jax.tree_util.tree_leaves(made) if jax.numpy.issubdtype(leaf.dtype, np.floating)]
            if not leaves:
                raise InvalidArgument("predict: the function returns no array of floats")
            mean = leaves[0].astype("float32").mean()
            named = made if jax.tree_util.tree_structure(made).num_nodes > 1 else {"output": made}
            return (mean, (rest[0], named)) if stateful else (mean, named)

        arguments = _arguments(inputs)
        loss.__signature__ = _signature(function, stateful, len(arguments))  # type: ignore[attr-defined]
        example = jax.tree_util.tree_map(lambda a: np.asarray(a)[:2], arguments)
        first = (self.params, self.state) if stateful else (self.params,)
        shapes = jax.eval_shape(function, *first, *example)
        if any(not leaf.shape for leaf in jax.tree_util.tree_leaves(shapes)):
            raise InvalidArgument("predict: the function returns single numbers; dimension 0 of a result is the batch")
        converted = to_graph(
            loss,
            self.params,
            example,
            state=self.state,
            has_aux=True,
            batch_size=batch_size,
            unroll_limit=self._unroll_limit,
            name=getattr(function, "__name__", "predict"),
            aux_arrays=True,
        )
        return converted, shapes

    def save(self, path: Any, overwrite: bool = True) -> None:
        """Writes parameters and state by the names of their leaves to a .npz or .safetensors file."""
        path = os.fspath(path)
        self._check_checkpoint(path)
        if not overwrite and os.path.exists(path):
            raise AlreadyExists(f"{path} exists; give overwrite=True to replace it")
        leaves = jax.tree_util.tree_flatten_with_path((self.params, self.state))[0]
        # The first part of a path says whether it is of params or of state.
        named = {leaf_name(where[1:]) or "params": leaf for where, leaf in leaves if not _is_key(leaf)}
        arrays = {name: np.asarray(leaf) for name, leaf in named.items()}
        if path.endswith(".npz"):
            np.savez(path, **arrays)  # type: ignore[arg-type]
        else:
            safetensors_io.save_file(arrays, path)

    save_weights = save  # of callbacks.ModelCheckpoint

    @staticmethod
    def _check_checkpoint(path: str, weights_only: bool = False) -> None:
        if not path.endswith((".npz", ".safetensors")):
            raise InvalidArgument(f"{path}: the name of a file of parameters ends in .npz or .safetensors")

    def _converted(self, data: Any, batch_size: int, example: Any) -> tuple[Converted, Any, list[Any] | None]:
        """The graph of the loss, the columns of the data, and its arrays if they are in memory."""
        data = _with_arrays(data)
        arrays = _arrays(data)
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
        return converted, _columns(data, arrays, converted), arrays

    def _optimizer(self, converted: Converted, total_steps: int, whole: bool) -> program_pb2.Optimizer:
        """The optimizer; freezes the parameters that it leaves alone. `whole`: whether there are no further steps."""
        matched = match(self.optimizer, self.params, total_steps, whole=whole)
        frozen = {name for name, still in zip(converted.params, matched.frozen, strict=True) if still}
        for value in converted.graph.proto.values:
            if value.kind == graph_pb2.PARAMETER and value.name in frozen:
                value.frozen = True
        return matched.grouped(converted.params)

    def _take(self, converted: Converted, weights: Mapping[str, Any]) -> None:
        self.params = restored(self.params, converted.params, converted, weights)
        self.state = restored(self.state, converted.state, converted, weights)
        if self._taken is not None:
            self._taken()

    @property
    def history(self) -> dict[str, list[float]]:
        """Loss and metrics of each step of the last fit."""
        return {} if self.result is None else self.result.history


def _with_arrays(data: Any) -> Any:
    """Arrays in place of lists of numbers, which JAX takes for pytrees of single ones."""
    if not isinstance(data, (dict, tuple)):
        return data

    def listed(value: Any) -> bool:
        return isinstance(value, list) and is_numbers(value)

    return jax.tree_util.tree_map(lambda v: as_array(v, "data") if listed(v) else v, data, is_leaf=listed)


def _arrays(data: Any) -> list[Any] | None:
    """The leaves of arrays in a structure of loss_fn's; None for loaders, files, names and tables."""
    if isinstance(data, (dict, tuple)) or _is_array(data):
        leaves = jax.tree_util.tree_leaves(data)
        if leaves and all(_is_array(leaf) for leaf in leaves):
            return list(leaves)
    return None


def _is_key(leaf: Any) -> bool:
    return str(getattr(leaf, "dtype", "")).startswith("key<")


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


def _arguments(inputs: Any) -> tuple[Any, ...]:
    arguments: tuple[Any, ...] = _with_arrays(inputs if isinstance(inputs, tuple) else (inputs,))
    return arguments


def _signature(function: Callable[..., Any], stateful: bool, inputs: int) -> inspect.Signature:
    """Of a loss that calls it: its inputs have the names of the function's arguments, without one "input"."""
    first = ["params", "state"] if stateful else ["params"]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    try:
        arguments = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        arguments = []
    names = [a.name for a in arguments if a.kind in (kind, inspect.Parameter.POSITIONAL_ONLY)][len(first) :]
    given = [n for n in names if n not in first]
    missing = inputs - len(given)
    given += ["input"] if inputs == 1 and missing else [f"input{len(given) + i}" for i in range(missing)]
    return inspect.Signature([inspect.Parameter(n, kind) for n in [*first, *given[:inputs]]])


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
