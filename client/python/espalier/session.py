"""Sessions: a model on leased workers that trains as far as the program tells it to, command by command.

with espalier.Session(graph, {"x": x, "labels": y}, optimizer="adam", batch_size=64) as session:
    for _ in range(100):
        session.zero_gradients()
        values = session.forward()
        session.backward()
        session.update()
    probabilities = session.predict({"x": new})["probabilities"]
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from espalier import data as datasets
from espalier import errors, kept_sessions
from espalier.client import Client, default_client
from espalier.counts import check_count
from espalier.npz import Array, as_array
from espalier.optimizers import Optimizer
from espalier.plan import Plan
from espalier.rpc import method
from espalier.session_state import SessionState
from espalier.session_stream import Answer, Command, Sent, Stream, numpy_dtype, parts_of
from espalier.spelling import checked
from espalier.steps import Unary, drive
from espalier.training import make_spec
from espalier.v1 import graph_pb2, program_pb2, session_pb2, training_pb2
from espalier.values import separate_values

if TYPE_CHECKING:
    from espalier.graph import Graph

logger = logging.getLogger("espalier")

_SILENT_SECONDS = 3.0  # that a session waits for workers without a word
_KINDS = {
    "parameter": session_pb2.SESSION_PARAMETER,
    "gradient": session_pb2.SESSION_GRADIENT,
    "optimizer_state": session_pb2.SESSION_OPTIMIZER_STATE,
    "output": session_pb2.SESSION_OUTPUT,
}
# One batch: None for the next one of the data in the order of a job; arrays by column; rows of the data by index.
Batch = Any


class Session:
    """A graph on leased workers: forward, backward and update by command, and its tensors to read and set.

    graph, data, columns, optimizer, batch_size, validation_split, shuffle, seed, search, precision, client: as
    espalier.fit takes them. Without `data` every batch comes with its command. keep: names of computed values of the
    graph, besides its named outputs, that `get` shall read. name: shown in lists. grace_seconds: how long the workers
    stay leased when the connection breaks. wait_seconds: how long to wait for idle workers. extra: may change the
    specification before it is sent. state: goes on with another session's optimizer (`state()`) and behind its batches;
    on data of another number of examples, or in batches of another size, with a whole epoch, as espalier.fit does.

    A loop of zero_gradients, forward, backward and update gives the bits of `step`, and of espalier.fit with the same
    plan, seed and examples. Thread-safe. zero_gradients, backward and update return before they are carried out: what
    goes wrong in them is raised by the next call that waits.

    ResourceExhausted if too few workers are idle or the model does not fit them; otherwise errors as espalier.fit.
    Unavailable from any call if a worker or the coordinator was lost: the session is gone then, as `save` left it.
    """

    @checked
    def __init__(
        self,
        graph: Graph,
        data: Any = None,
        *,
        optimizer: str | Optimizer | program_pb2.Optimizer,
        batch_size: int,
        columns: Mapping[str, str] | None = None,
        keep: Sequence[str] = (),
        validation_split: float = 0.0,
        shuffle: bool = True,
        seed: int = 0,
        name: str = "",
        search: Mapping[str, object] | None = None,
        precision: str | None = None,
        grace_seconds: float = 30.0,
        wait_seconds: float = 60.0,
        client: Client | None = None,
        extra: Callable[[training_pb2.TrainingSpec], None] | None = None,
        state: SessionState | None = None,
    ):
        if not 0 <= validation_split < 1:
            raise errors.InvalidArgument(f"validation_split is {validation_split}; accepted: 0 or more, less than 1")
        self.batch_size = check_count("batch_size", batch_size)
        self._given_columns = dict(columns or {})
        spec = make_spec(
            graph, optimizer=optimizer, batch_size=batch_size, seed=seed, name=name, search=search, precision=precision
        )
        spec.ClearField("epochs")
        spec.ClearField("output_model")
        client = client or default_client()
        examples = 0  # 0: only the coordinator knows
        with contextlib.ExitStack() as files:
            if data is None:
                spec.dataset.columns.update(self._given_columns)
            else:
                prepared = files.enter_context(datasets.prepare(data, graph, columns))
                uri, examples = prepared.uri, prepared.examples
                if prepared.path is not None:
                    uri = "artifact:" + client._upload_file(prepared.path, prepared.stem)
                spec.dataset.CopyFrom(datasets.dataset_message(prepared, uri, validation_split, shuffle))
        if extra is not None:
            extra(spec)
        spec.ClearField("model")
        self._request = session_pb2.OpenSessionRequest(
            spec=spec, keep=keep, grace_seconds=grace_seconds, wait_seconds=wait_seconds
        )
        if state is not None:
            trained = examples - int(examples * spec.dataset.holdout_fraction)
            state = state.on(trained, self.batch_size)
            for number in ("updates", "forwards", "next_batch"):
                setattr(self._request.begin, number, getattr(state, number))
        self._client = client
        self._hook: tuple[Callable[[Session], bool], Callable[[Session], Graph]] | None = None
        self.means: dict[str, float] = {}  # over all batches since reset_metrics
        self.steps: list[dict[str, float]] = []  # values of each step of the last `step`
        kept_sessions.release(client)
        self._open(graph)
        if state is not None:
            try:
                self._check_place(state)
                self.set_optimizer_state(state.optimizer)
            except errors.EspalierError:
                self.close()
                raise

    def _open(self, graph: Graph) -> None:
        request = session_pb2.OpenSessionRequest()
        request.CopyFrom(self._request)
        request.spec.graph.CopyFrom(graph.proto)
        separate_values(request.spec, self._client)
        try:
            reply = self._opened(request)
        except errors.EspalierError as error:
            raise type(error)(graph.with_sources(str(error))) from None
        self.graph = graph
        self.id = str(reply.session_id)
        self.plan = Plan(reply.plan, "", 0.0, tuple(reply.notes))
        self.notes = tuple(reply.notes)
        self.parameter_count = int(reply.parameters)
        self.examples = int(reply.examples)
        self.held_out = request.spec.dataset.holdout_fraction > 0  # whether evaluate() has examples
        self.columns = {
            name: (numpy_dtype(type_.dtype), tuple(type_.dims)) for name, type_ in sorted(reply.columns.items())
        }
        self.tensors = [
            (_kind_name(tensor.kind), str(tensor.name), tuple(tensor.type.dims)) for tensor in reply.tensors
        ]
        self._stream = Stream(self._client._connection, self.id, request.grace_seconds or 30.0)
        self._end = weakref.finalize(self, self._stream.close)

    def _check_place(self, state: SessionState) -> None:
        if state.on(self.examples, self.batch_size).next_batch != state.next_batch:
            raise errors.InvalidArgument(
                f"state: its training ended within an epoch of {state.examples} examples by {state.batch_size}; these "
                f"data have {self.examples}, by {self.batch_size}: give dataclasses.replace(state, next_batch=0)"
            )

    def _opened(self, request: session_pb2.OpenSessionRequest) -> session_pb2.OpenSessionReply:
        """The reply; says so if it takes a while until workers are idle."""
        wait, silent = request.wait_seconds, min(request.wait_seconds, _SILENT_SECONDS)
        began = time.monotonic()
        while True:
            request.wait_seconds = silent
            timeout = self._client._settings.plan_timeout + request.wait_seconds
            call = Unary(method("Sessions", "Open"), request, timeout)
            try:
                reply: session_pb2.OpenSessionReply = drive(self._client._connection, _once(call))
                return reply
            except errors.ResourceExhausted as error:
                # Sooner: it does not fit the workers, however long it waits.
                if silent == wait or time.monotonic() - began < silent:
                    raise
                logger.warning("%s. Waiting for up to %g s", str(error).partition(":")[0], wait - silent)
                wait = silent = wait - silent

    # Batches.

    def _typed(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Arrays by column, of the element types that the columns have. InvalidArgument if a number would change."""
        typed = {}
        for name, array in arrays.items():
            dtype = self.columns[name][0] if name in self.columns else array.dtype
            if array.dtype != dtype and dtype.kind in "iu" and array.size:
                limits = np.iinfo(dtype)
                if array.min() < limits.min or array.max() > limits.max:
                    raise errors.InvalidArgument(f"column {name}: {array.max()} does not fit {dtype.name}")
            typed[name] = array.astype(dtype, copy=False)
        return typed

    def _batch(
        self, batch: Batch, partial: bool = False
    ) -> tuple[session_pb2.SessionBatch, Iterator[session_pb2.TensorPart] | None]:
        if batch is None:
            return session_pb2.SessionBatch(next=True), None
        if isinstance(batch, (Mapping, tuple)) or hasattr(batch, "iloc"):
            arrays = self._typed(datasets.inline_batch(batch, self.graph, self._given_columns, partial=partial))
            return session_pb2.SessionBatch(given=True), parts_of(arrays)
        rows = np.asarray(batch)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise errors.InvalidArgument(
                f"a batch is a {type(batch).__name__}; accepted: None (the next one), arrays by column, or the indices "
                "of rows of the data"
            )
        return session_pb2.SessionBatch(rows=graph_pb2.IntList(values=rows.tolist())), None

    def _ask(self, what: str, parts: Iterator[session_pb2.TensorPart] | None = None, **command: Any) -> Answer:
        return self._with_sources(lambda: self._stream.ask(what, parts, **command))

    def _with_sources(self, call: Callable[[], Answer]) -> Answer:
        try:
            return call()
        except errors.EspalierError as error:
            text = self.graph.with_sources(str(error))
            raise (error if text == str(error) else type(error)(text)) from None

    # Training.

    def forward(self, batch: Batch = None) -> dict[str, float]:
        """Computes outputs, losses and metrics of one batch, with dropout; returns the losses and metrics."""
        source, parts = self._batch(batch)
        reply = self._ask("forward", parts, forward=Command.Forward(batch=source)).reply
        self.means = dict(reply.means)
        return dict(reply.values)

    def zero_gradients(self) -> None:
        """Sets the gradients to zero."""
        self._stream.send("zero_gradients", zero_gradients=Command.ZeroGradients())

    def backward(self) -> None:
        """Adds the gradients of the last forward to those since zero_gradients.

        FailedPrecondition, raised by the next call that returns something, if there was no forward, or something in
        between dropped it: another backward, step, update, evaluate, predict, or new parameters.
        """
        self._stream.send("backward", backward=Command.Backward())

    def update(self) -> Mapping[str, float]:
        """Updates the parameters by the optimizer; returns "learning_rate" and what else the update reports.

        Does not wait, until one of the values is read. Errors as of backward.
        """
        values = UpdateValues(self, self._stream.send("update", update=Command.Update()))
        self._ask_hook()
        return values

    def _wait(self, sent: Sent) -> Answer:
        return self._with_sources(lambda: self._stream.wait(sent))

    @checked
    def step(self, batch: Batch = None, steps: int = 1) -> dict[str, float]:
        """zero_gradients, forward, backward and update, `steps` times; returns the values of the last.

        `self.steps` has those of each. The batches follow one another in the data; a batch that is given serves all.
        """
        count = check_count("steps", steps)
        source, parts = self._batch(batch)
        reply = self._ask("step", parts, step=Command.Step(steps=count, batch=source)).reply
        self.means = dict(reply.means)
        self.steps = [dict(report.values) for report in reply.steps]
        self._ask_hook()
        return dict(reply.values)

    def set_learning_rate(self, value: float | None) -> None:
        """The rate of the next updates; None: that of the optimizer's schedule again."""
        self._ask("set_learning_rate", set_learning_rate=Command.SetLearningRate(value=value))

    def reset_metrics(self) -> dict[str, float]:
        """Begins the means over batches anew; returns those until now."""
        reply = self._ask("reset_metrics", reset_metrics=Command.ResetMetrics()).reply
        self.means = {}
        return dict(reply.means)

    # Inference.

    @checked
    def evaluate(self, data: Any = None) -> dict[str, float]:
        """Losses and metrics over all examples of `data`, each once, without dropout; None: the held-out ones."""
        if data is None:
            if not self.held_out:
                raise errors.FailedPrecondition(
                    "evaluate: the session holds no examples out; give some, or open it with validation_split=0.1"
                )
            source, parts = session_pb2.SessionBatch(held_out=True), None
        elif _is_rows(data):
            source, parts = self._batch(data)
        else:
            arrays = self._typed(datasets.inline_batch(data, self.graph, self._given_columns))
            source, parts = session_pb2.SessionBatch(given=True), parts_of(arrays)
        return dict(self._ask("evaluate", parts, evaluate=Command.Evaluate(batch=source)).reply.values)

    @checked
    def predict(self, data: Any, outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Named outputs of any number of examples, by name; all of them without `outputs`.

        Inputs that they do not depend on, such as labels, may be left out.
        """
        if _is_rows(data):
            source, parts = self._batch(data)
        else:
            arrays = self._typed(datasets.inline_batch(data, self.graph, self._given_columns, partial=True))
            source, parts = session_pb2.SessionBatch(given=True), parts_of(arrays)
        command = Command.Predict(batch=source, outputs=list(outputs or ()))
        return {name: array for (_, name), array in self._ask("predict", parts, predict=command).tensors.items()}

    # Tensors.

    def get(self, name: str, kind: str = "parameter") -> Array:
        """One tensor, whole. kind: "parameter", "gradient", "optimizer_state" or "output" (of the last pass)."""
        found = self._get(kind, name)
        if name not in found:
            raise errors.NotFound(f"the session has no {kind} {name}")
        return found[name]

    def _get(self, kind: str, pattern: str) -> dict[str, Array]:
        choice = Command.GetTensors.Choice(kind=_kind_number(kind), name=pattern)  # type: ignore[arg-type]
        answer = self._ask("get", get_tensors=Command.GetTensors(tensors=[choice]))
        return {name: array for (_, name), array in answer.tensors.items()}

    def parameters(self) -> dict[str, Array]:
        """All parameters by name, running statistics included."""
        return self._get("parameter", "*")

    def gradients(self) -> dict[str, Array]:
        """The gradients by parameter, summed since zero_gradients."""
        return self._get("gradient", "*")

    def optimizer_state(self) -> dict[str, Array]:
        """The optimizer's tensors, as "<parameter>.adam_m"; empty if it has none."""
        if not any(kind == "optimizer_state" for kind, _, _ in self.tensors):
            return {}
        return self._get("optimizer_state", "*")

    def _set(self, kind: str, arrays: Mapping[str, Any]) -> None:
        shapes = {name: shape for have, name, shape in self.tensors if have == kind}
        given = {}
        for name, value in arrays.items():
            array = as_array(value, f"{kind} {name}")
            if name not in shapes:
                raise errors.NotFound(f"the session has no {kind} {name}; it has {', '.join(shapes) or 'none'}")
            if array.shape != shapes[name]:
                raise errors.InvalidArgument(f"{kind} {name} has the shape {shapes[name]}, not {array.shape}")
            given[name] = array
        if given:
            self._ask("set", parts_of(given, _kind_number(kind)), set_tensors=Command.SetTensors())

    def set_parameters(self, arrays: Mapping[str, Any]) -> None:
        """Sets whole parameters; the others stay. All or none."""
        self._set("parameter", arrays)

    def set_gradients(self, arrays: Mapping[str, Any]) -> None:
        """Sets the gradients that the next update takes."""
        self._set("gradient", arrays)

    def set_optimizer_state(self, arrays: Mapping[str, Any]) -> None:
        """Sets whole tensors of the optimizer."""
        self._set("optimizer_state", arrays)

    def save(self, name: str) -> str:
        """Registers the parameters as a model, another version each time; returns the artifact's name."""
        return str(self._ask("save", save_checkpoint=Command.SaveCheckpoint(artifact=name)).reply.artifact)

    # Another graph.

    def recompile(self, graph: Graph) -> list[str]:
        """Goes on with another graph: parameters and optimizer states of equal names and shapes keep their elements.

        The others begin as the graph says; their names are returned. Updates, batches and random numbers go on being
        counted. Gradients and means are dropped. If the graph cannot be opened, the session goes on with the old one,
        and the error is raised.
        """
        before, old = self._all_tensors(), self.graph
        begin = session_pb2.SessionProgress()
        begin.CopyFrom(self._stream.progress)
        begin.commands = 0
        self._request.begin.CopyFrom(begin)
        self.close()
        try:
            self._open(graph)
        except errors.EspalierError:
            self._open(old)
            self._restore(before)
            raise
        return self._restore(before)

    def recompile_when(
        self, trigger: Callable[[Session], bool] | None, alter: Callable[[Session], Graph] | None = None
    ) -> None:
        """After each `update` and `step`, asks `trigger`; where it returns True, recompile(alter(session)).

        `alter` changes and returns session.graph.copy(). FlexFlow's dynamic recompilation: for example another
        capacity_factor of experts once their load is known. None ends it.
        """
        if (trigger is None) != (alter is None):
            raise errors.InvalidArgument("recompile_when: give trigger and alter, or None")
        self._hook = None if trigger is None or alter is None else (trigger, alter)

    def _ask_hook(self) -> None:
        if self._hook is not None:
            trigger, alter = self._hook
            if trigger(self):
                self.recompile(alter(self))

    def _all_tensors(self) -> dict[tuple[str, str], Array]:
        found = {("parameter", name): array for name, array in self.parameters().items()}
        return found | {("optimizer_state", name): array for name, array in self.optimizer_state().items()}

    def _restore(self, before: Mapping[tuple[str, str], Array]) -> list[str]:
        fresh = []
        kept: dict[str, dict[str, Array]] = {"parameter": {}, "optimizer_state": {}}
        for kind, name, shape in self.tensors:
            if kind not in kept:
                continue
            array = before.get((kind, name))
            if array is not None and array.shape == shape:
                kept[kind][name] = array
            else:
                fresh.append(name)
        for kind, arrays in kept.items():
            self._set(kind, arrays)
        return fresh

    def state(self) -> SessionState:
        """The optimizer's tensors, and how far the session is: for Session(state=...) of the same parameters."""
        done = self._stream.progress
        numbers = (int(done.updates), int(done.forwards), int(done.next_batch))
        return SessionState(self.optimizer_state(), *numbers, examples=self.examples, batch_size=self.batch_size)

    @property
    def updates(self) -> int:
        """Number of updates until now."""
        return int(self._stream.progress.updates)

    @property
    def forwards(self) -> int:
        """Number of training passes until now."""
        return int(self._stream.progress.forwards)

    @property
    def ended(self) -> bool:
        """Whether no command works any more, because the session was closed or lost."""
        return self._stream.ended

    def close(self) -> None:
        """Ends the session; its workers are free."""
        self._end()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Session {self.id}: {self.graph.proto.name}, {self.updates} updates>"


class UpdateValues(Mapping[str, float]):
    """What an update reports; reading it waits for the update."""

    def __init__(self, session: Session, sent: Sent):
        self._session, self._sent = session, sent

    @functools.cached_property
    def _values(self) -> dict[str, float]:
        return dict(self._session._wait(self._sent).reply.values)

    def __getitem__(self, name: str) -> float:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


def _once(call: Unary) -> Any:
    return (yield call)


def _is_rows(data: Any) -> bool:
    """Whether `data` are indices of rows: a range, or integers in one dimension."""
    if isinstance(data, np.ndarray):
        return data.ndim == 1 and data.dtype.kind in "iu"
    if isinstance(data, list):
        return bool(data) and all(isinstance(item, (int, np.integer)) for item in data)
    return isinstance(data, range)


def _kind_number(kind: str) -> int:
    if kind not in _KINDS:
        raise errors.InvalidArgument(f"kind {kind!r}: accepted are {', '.join(_KINDS)}")
    return int(_KINDS[kind])


def _kind_name(number: int) -> str:
    return next(name for name, known in _KINDS.items() if known == number)


__all__ = ["Session", "SessionState"]
