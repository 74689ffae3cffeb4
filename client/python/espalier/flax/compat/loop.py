"""Training loops of JAX as jobs.

A loop is a sequence of steps: each takes the state before it and a batch, and gives a loss and the state after it. The
first step is traced, which gives the graph; the batches are those of the DataLoader, in its order. So all steps of a
pass run as one job, which begins when the first loss is looked at. The loop then goes through the batches and gets the
losses as the job reports them; each batch is compared with what the job was given.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from espalier.errors import EspalierError, InvalidArgument
from espalier.jax import Converted, to_graph
from espalier.jax.optimizers import Matched, match
from espalier.jax.trainer import restored
from espalier.training import Callback, Run, TrainingResult, fit
from espalier.v1 import graph_pb2

_LIMIT = (
    "a loop of JAX trains here as one job, so that its steps must take the batches of an espalier.flax.compat.vision."
    "DataLoader in order, each one once, and the state that the last step gave"
)
_now = threading.local()


def recording() -> Recording | None:
    """The step that is being traced in this thread."""
    return getattr(_now, "recording", None)


class Recording:
    """What a step does with the state, while it is traced."""

    def __init__(self, params: Any):
        self.params = params
        self.loss: Any = None
        self.updates = 0


class Gradients:
    """The gradients of a step, which only the job knows. `apply_gradients` of the state takes them."""

    def __init__(self, of: Any):
        self.of = of  # a Recording, or (loop, number of the step)


def differentiated(
    function: Callable[..., Any], argnums: Any, has_aux: bool, with_value: bool, plain: Callable[[], Any]
) -> Callable[..., Any]:
    """value_and_grad or grad of a function: JAX's own, unless a step is traced."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        step = recording()
        if step is None:
            return plain()(*arguments, **keywords)
        if argnums != 0 or arguments[0] is not step.params:
            raise InvalidArgument("a step takes gradients by something else than state.params; " + _LIMIT)
        if step.loss is not None:
            raise InvalidArgument("a step takes gradients twice; " + _LIMIT)
        result = function(*arguments, **keywords)
        step.loss = result[0] if has_aux else result
        aux = result[1] if has_aux else None
        gradients = Gradients(step)
        if with_value:
            return result, gradients
        return (gradients, aux) if has_aux else gradients

    return call


class TrainState:
    """flax.training.train_state.TrainState of a loop that runs as a job."""

    def __init__(self, loop: Loop, version: int, step: Recording | None = None, updated: bool = False):
        self._loop = loop
        self._version = version
        self._recording = step
        self._updated = updated

    @classmethod
    def create(cls, *, apply_fn: Any, params: Any, tx: Any, **more: Any) -> TrainState:
        """The state before the first step."""
        if more:
            raise InvalidArgument(
                f"TrainState.create: {', '.join(more)} is not kept by a job; espalier.jax.Trainer does"
            )
        return cls(Loop(apply_fn, params, tx), 0)

    @property
    def params(self) -> Any:
        """The parameters. Outside of a step the job is waited for."""
        return self._loop.params_after(self._version) if self._recording is None else self._recording.params

    @property
    def apply_fn(self) -> Any:
        """The model's function."""
        return self._loop.apply_fn

    @property
    def tx(self) -> Any:
        """The optimizer."""
        return self._loop.tx

    @property
    def step(self) -> int:
        """Updates so far."""
        return self._version

    def apply_gradients(self, *, grads: Any) -> TrainState:
        """The state after an update by the gradients of a step."""
        if not isinstance(grads, Gradients):
            raise InvalidArgument("apply_gradients takes the gradients of the step as they are; " + _LIMIT)
        if self._recording is not None:
            if grads.of is self._recording:
                self._recording.updates += 1
            return TrainState(self._loop, self._version, self._recording, updated=True)
        if grads.of != (self._loop, self._version):
            raise InvalidArgument("apply_gradients got the gradients of another state; " + _LIMIT)
        return TrainState(self._loop, self._version + 1)


class Reported:
    """A number that the job reports. Looking at it waits for its step."""

    def __init__(self, loop: Loop, step: int, name: str):
        self._loop, self._step, self._name = loop, step, name

    def __float__(self) -> float:
        return self._loop.value(self._step, self._name)

    def item(self) -> float:
        """As a float."""
        return float(self)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return np.asarray(float(self), dtype or np.float32)

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else str(np.float32(float(self)))

    def __repr__(self) -> str:
        return str(np.float32(float(self)))

    __str__ = __repr__


class Step:
    """A function under jit or pmap. Calls with a TrainState are steps of its loop, others are JAX's."""

    def __init__(self, function: Callable[..., Any], plain: Callable[..., Any], mapped: bool):
        self._function = function
        self._plain = plain
        self._mapped = mapped
        self.__name__ = getattr(function, "__name__", "step")
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """A step of a loop, or a call of JAX."""
        states = [a for a in arguments if isinstance(a, TrainState)]
        if not states or states[0]._recording is not None:
            return self._plain(*arguments, **keywords) if not states else self._function(*arguments, **keywords)
        if keywords or len(states) > 1:
            raise InvalidArgument(f"{self.__name__} takes a TrainState and arrays, by position; " + _LIMIT)
        data = [a for a in arguments if not isinstance(a, (TrainState, Gradients))]
        if not data:  # such as: return state.apply_gradients(grads=grads)
            return self._function(*arguments)
        arrays = [self._rows(a) for a in data]
        return states[0]._loop.advance(self, states[0]._version, arguments, arrays)

    def _rows(self, array: Any) -> np.ndarray[Any, Any]:
        rows = np.asarray(array)
        if not self._mapped:
            return rows
        if rows.ndim == 0 or rows.shape[0] != 1:
            raise InvalidArgument(
                f"pmap: an array has shape {rows.shape}; dimension 0 is jax.local_device_count(), which is 1 here"
            )
        return np.asarray(rows[0])

    def traced(self, loop: Loop, arguments: Sequence[Any]) -> tuple[Callable[..., Any], list[Any]]:
        """The step as a loss function of parameters and arrays, and, once it is traced, what it returns."""
        returned: list[Any] = []
        names = list(inspect.signature(self._function).parameters)
        places = [i for i, a in enumerate(arguments) if not isinstance(a, (TrainState, Gradients))]

        def loss(params: Any, *arrays: Any) -> Any:
            step = Recording(params)
            given = [TrainState(loop, 0, step) if isinstance(a, TrainState) else a for a in arguments]
            for place, array in zip(places, arrays, strict=True):
                given[place] = array
            _now.recording = step
            try:
                outputs = self._function(*given)
            finally:
                _now.recording = None
            if step.loss is None:
                raise InvalidArgument(f"{self.__name__} takes no gradients by jax.value_and_grad; " + _LIMIT)
            aux: dict[str, Any] = {}
            returned[:] = [outputs if not isinstance(outputs, tuple) else list(outputs)]
            flat = list(outputs) if isinstance(outputs, tuple) else [outputs]
            kinds: list[Any] = []
            for number, output in enumerate(flat):
                if isinstance(output, TrainState):
                    kinds.append(output._updated)
                elif isinstance(output, Gradients):
                    kinds.append(output)
                elif output is step.loss:
                    kinds.append("loss")
                else:
                    aux[f"output{number}"] = output
                    kinds.append(f"output{number}")
            returned[:] = [isinstance(outputs, tuple), kinds]
            return step.loss, aux

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        shown = ["params", *(names[i] if i < len(names) else f"input{i}" for i in places)]
        loss.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in shown])  # type: ignore[attr-defined]
        loss.__name__ = self.__name__
        return loss, returned


class _Queue(Callback):
    """Passes reports on to the loop."""

    def __init__(self) -> None:
        self.reports: queue.Queue[Any] = queue.Queue()
        self.run: Run | None = None

    def on_begin(self, run: Run) -> None:
        """Keeps the run, to end it."""
        self.run = run

    def on_step(self, run: Run, step: int, values: Mapping[str, float]) -> None:
        """Queues a report."""
        self.reports.put((step, dict(values)))


class Segment:
    """Consecutive steps that run as one job, on batches of one size."""

    def __init__(self, loop: Loop, first: int, batches: list[list[np.ndarray[Any, Any]]]):
        self.loop, self.first, self.batches = loop, first, batches
        self.values: dict[int, dict[str, float]] = {}
        self.result: TrainingResult | None = None
        self._queue = _Queue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._train, daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    def _train(self) -> None:
        try:
            self.result = self.loop.fit(self, len(self.batches), [self._queue])
        except BaseException as error:  # passed on to the loop
            self._error = error
        self._queue.reports.put(None)

    def value(self, step: int, name: str) -> float:
        """A reported number of a step of this segment, counted over the whole loop."""
        number = step - self.first
        while number not in self.values:
            report = self._queue.reports.get()
            if report is None:
                if self._error is not None:
                    raise self._error
                raise EspalierError(f"the job ended without a report of step {number}")
            self.values[report[0]] = report[1]
        return self.values[number][name]

    def stop(self) -> None:
        """Ends a job that nobody waits for any more."""
        atexit.unregister(self.stop)
        run = self._queue.run
        if self._thread.is_alive() and run is not None:
            with contextlib.suppress(EspalierError):
                run.job.cancel()

    def weights(self, steps: int) -> Mapping[str, Any]:
        """Parameters after so many steps of this segment."""
        if steps < len(self.batches):
            self.stop()
            return self.loop.fit(self, steps, []).weights()  # again: equal steps give equal bits
        self._thread.join()
        atexit.unregister(self.stop)
        if self._error is not None:
            raise self._error
        assert self.result is not None
        return self.result.weights()


class Loop:
    """The steps that begin with one TrainState.create."""

    def __init__(self, apply_fn: Any, params: Any, tx: Any):
        self.apply_fn, self.params, self.tx = apply_fn, params, tx
        self._segments: list[Segment] = []
        self._step: tuple[Step, Sequence[Any]] | None = None
        self._pending: tuple[int, list[np.ndarray[Any, Any]]] | None = None  # a step whose job has not begun
        self._done = 0
        self._kinds: tuple[bool, list[Any]] | None = None
        self.converted: Converted | None = None
        self._matched: Matched | None = None

    def advance(self, step: Step, version: int, arguments: Sequence[Any], arrays: list[np.ndarray[Any, Any]]) -> Any:
        """One step: returns what the function returns, of numbers that the job will report."""
        if version != self._done or (self._step is not None and self._step[0] is not step):
            raise InvalidArgument(
                f"step {self._done + 1} of the loop does not go on from the state of the last one; " + _LIMIT
            )
        segment = self._segments[-1] if self._segments else None
        number = version - segment.first if segment is not None else 0
        if segment is not None and number < len(segment.batches):
            for mine, given in zip(segment.batches[number], arrays, strict=True):
                if mine.shape != given.shape or not np.array_equal(mine, given):
                    raise InvalidArgument(f"step {version + 1} got another batch than its job; " + _LIMIT)
        else:
            self._begin(step, version, arguments, arrays)
        self._done = version + 1
        assert self._kinds is not None
        is_tuple, kinds = self._kinds
        outputs = [self._output(kind, version) for kind in kinds]
        return tuple(outputs) if is_tuple else outputs[0]

    def _output(self, kind: Any, version: int) -> Any:
        if isinstance(kind, bool):
            return TrainState(self, version + kind)
        if isinstance(kind, Gradients):
            return Gradients((self, version))
        return Reported(self, version, kind)

    def _begin(self, step: Step, version: int, arguments: Sequence[Any], arrays: list[np.ndarray[Any, Any]]) -> None:
        """Starts the job of this step and of those that follow it in the loader."""
        from espalier.flax.compat.vision import following

        batches = following([a.shape for a in arrays], arrays)
        same = next((i for i, b in enumerate(batches) if [x.shape for x in b] != [x.shape for x in arrays]), None)
        batches = batches[: same if same is not None else len(batches)]
        if version:
            self._check_stateless()
            self.params = self.params_after(version)
        loss, returned = step.traced(self, arguments)
        example = tuple(a[: max(2, len(a))] for a in arrays)
        self.converted = to_graph(loss, self.params, example, has_aux=True, batch_size=len(arrays[0]))
        self._kinds = (returned[0], returned[1])
        self._step = (step, arguments)
        self._matched = match(self.tx, self.params, len(batches))
        frozen = {name for name, still in zip(self.converted.params, self._matched.frozen, strict=True) if still}
        for value in self.converted.graph.proto.values:
            if value.name in frozen:
                value.frozen = True
        self._segments.append(Segment(self, version, batches))

    def _check_stateless(self) -> None:
        """A second job begins with fresh optimizer state: right only if there is none."""
        assert self._matched is not None
        proto = self._matched.proto
        momentum = proto.attributes["momentum"].f if "momentum" in proto.attributes else 0.0
        if proto.name != "sgd" or momentum or proto.learning_rate.kind or proto.learning_rate.warmup_steps:
            raise InvalidArgument(
                f"the loop goes on beyond its pass over the loader (or to a batch of another size), and {proto.name} "
                "would begin anew: its state does not go from one job to the next. Use espalier.jax.Trainer with "
                "epochs=, or drop_last=True"
            )

    def fit(self, segment: Segment, steps: int, callbacks: Sequence[Callback]) -> TrainingResult:
        """Runs steps of a segment as a job."""
        converted, matched = self.converted, self._matched
        assert converted is not None
        assert matched is not None
        used = {v.name for v in converted.graph.proto.values if v.kind == graph_pb2.INPUT}
        columns = {
            name: np.concatenate([batch[i] for batch in segment.batches])
            for i, name in enumerate(converted.inputs)
            if name in used
        }
        rows = len(segment.batches[0][0])
        return fit(
            converted.graph,
            columns,
            optimizer=matched.grouped(converted.params),
            batch_size=rows,
            steps=steps,
            shuffle=False,
            callbacks=callbacks,
            verbose=0,
        )

    def value(self, step: int, name: str) -> float:
        """A number that the job reports of a step."""
        return next(s for s in reversed(self._segments) if s.first <= step).value(step, name)

    def params_after(self, version: int) -> Any:
        """The parameters after so many steps."""
        segment = next((s for s in reversed(self._segments) if s.first < version), None)
        if segment is None:
            return self.params
        converted = self.converted
        assert converted is not None
        weights = segment.weights(version - segment.first)
        return restored(self.params, converted.params, converted, weights)


def batches_of(iterator: Iterator[Any]) -> list[list[np.ndarray[Any, Any]]]:
    """Batches as lists of arrays."""
    return [[np.asarray(a) for a in jax.tree_util.tree_leaves(batch)] for batch in iterator]
