"""What a replay is asked: the arguments of client.replay, estimate_replay and Job.replay, which are listed once."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from google.protobuf.message import DecodeError

from espalier.counts import check_count
from espalier.errors import InvalidArgument
from espalier.spelling import meant
from espalier.step_range import StepsOf, step_bounds
from espalier.steps import Steps
from espalier.v1 import graph_pb2, replay_pb2, training_pb2

if TYPE_CHECKING:
    from espalier.graph import Graph

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
Segment: TypeAlias = tuple[int, int]


class OnnxModel(Protocol):
    """An onnx.ModelProto."""

    graph: Any

    def SerializeToString(self) -> bytes:  # noqa: N802 (protobuf's)
        """The bytes of an ONNX file."""


AnyGraph: TypeAlias = "Graph | OnnxModel | bytes | str | os.PathLike[str]"


def replay_spec(
    run: str,
    *,
    log: str | Sequence[str] = (),
    graphs: Mapping[str, AnyGraph] | None = None,
    steps: StepsOf = None,
    every: int = 1,
    segment: Segment | None = None,
    workers: int | None = None,
    any_plan: bool = False,
    at: str | None = None,
    evaluate: str | None = None,
) -> replay_pb2.ReplaySpec:
    """The message for the arguments of client.replay. InvalidArgument for what cannot be meant."""
    first, end, stride = step_bounds(steps)
    check_count("every", every)
    if stride != 1 and every != 1:
        raise InvalidArgument(f"steps={steps!r} and every={every} both say which steps are logged; give one of them")
    spec = replay_pb2.ReplaySpec(
        run=run,
        log=[log] if isinstance(log, str) else list(log),
        graphs=_graphs(graphs or {}),
        first_step=first,
        end_step=end,
        every=every * stride,
        max_workers=0 if workers is None else check_count("workers", workers),
        any_plan=any_plan,
    )
    if segment is not None:
        if not isinstance(segment, tuple) or len(segment) != 2:
            raise InvalidArgument(f"segment={segment!r}: accepted is (k, n), part k of n, from 1 on")
        if segment[0] == 0:
            raise InvalidArgument(f"segment={segment!r}: the first part is 1 (FLOR's pid:ngpus counts from 0)")
        spec.segments = check_count("segment: n", segment[1], 1, (1 << 31) - 1)
        spec.segment = check_count("segment: k", segment[0], 1, spec.segments)
    if at is not None:
        if at != "checkpoints":
            raise InvalidArgument(f"at={at!r}: accepted is 'checkpoints'{meant(str(at), ['checkpoints'])}")
        spec.at_checkpoints = True
    if evaluate is not None:
        if at is None:
            raise InvalidArgument("evaluate: checkpoints are evaluated: give at='checkpoints', too")
        if evaluate == "holdout":
            spec.evaluate_holdout = True
        else:
            spec.evaluate.CopyFrom(_dataset(evaluate))
    return spec


def _dataset(given: str) -> training_pb2.Dataset:
    """Without a format, which is that of the job's dataset."""
    if not isinstance(given, str) or not given:
        raise InvalidArgument(
            f"evaluate is {given!r}; accepted: 'holdout', the name of a dataset of client.upload, or 's3://...'"
        )
    is_uri = given.startswith(("artifact:", "s3://", "/"))
    return training_pb2.Dataset(uri=given if is_uri else f"artifact:{given}")


def _graphs(given: Mapping[str, AnyGraph]) -> list[replay_pb2.ReplayGraph]:
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"graphs is a {type(given).__name__}; accepted: a dict of graphs by the answers' names")
    return [_graph(name, graph) for name, graph in given.items()]


def _graph(name: str, given: AnyGraph) -> replay_pb2.ReplayGraph:
    from espalier.graph import Graph

    if isinstance(given, Graph):
        return replay_pb2.ReplayGraph(name=name, graph=given.proto)
    if isinstance(given, bytes):
        return replay_pb2.ReplayGraph(name=name, onnx=given)
    if isinstance(given, (str, os.PathLike)):
        return _graph_in(name, Path(given))
    if hasattr(given, "graph") and hasattr(given, "SerializeToString"):
        return replay_pb2.ReplayGraph(name=name, onnx=given.SerializeToString())
    raise InvalidArgument(
        f"graphs[{name!r}] is a {type(given).__name__}; accepted: an espalier.Graph, an onnx.ModelProto, the bytes of "
        "an ONNX file, or the path of one or of a graph"
    )


def _graph_in(name: str, path: Path) -> replay_pb2.ReplayGraph:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"graphs[{name!r}]: {path}: {error.strerror}") from None
    if path.suffix == ".onnx":
        return replay_pb2.ReplayGraph(name=name, onnx=content)
    graph = graph_pb2.Graph()
    try:
        graph.ParseFromString(content)
    except DecodeError:
        graph.Clear()
    if not graph.nodes:
        raise InvalidArgument(
            f"graphs[{name!r}]: {path} holds no graph; accepted: an .onnx file, or a binary espalier.v1.Graph with "
            "nodes"
        )
    return replay_pb2.ReplayGraph(name=name, graph=graph)


def _with_arguments(method: Callable[..., Any], body: Callable[..., Any], left_out: int) -> None:
    """Shows the arguments of replay_spec as those of the method."""
    functools.update_wrapper(method, body)
    own = inspect.signature(body)
    itself = next(iter(own.parameters.values()))
    arguments = list(inspect.signature(replay_spec).parameters.values())[left_out:]
    signature = inspect.Signature([itself, *arguments], return_annotation=own.return_annotation)
    setattr(method, "__signature__", signature)  # noqa: B010 (a function has no such attribute for mypy)


def _check_arguments(method: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """TypeError that names the method, not replay_spec."""
    try:
        inspect.signature(method).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{method.__name__}() {error}") from None


def asks(
    make: Callable[P, replay_pb2.ReplaySpec],
) -> Callable[[Callable[[S, replay_pb2.ReplaySpec], Steps[T]]], Callable[Concatenate[S, P], Steps[T]]]:
    """Gives a method that takes a message the arguments of replay_spec, which `make` is, in the message's place."""

    def decorate(body: Callable[[S, replay_pb2.ReplaySpec], Steps[T]]) -> Callable[Concatenate[S, P], Steps[T]]:
        def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Steps[T]:
            _check_arguments(method, self, *args, **kwargs)
            return (yield from body(self, make(*args, **kwargs)))

        _with_arguments(method, body, left_out=0)
        return method

    return decorate


class HasId(Protocol):
    """What a run is named by."""

    id: str


J = TypeVar("J", bound=HasId)


def asks_itself(
    make: Callable[Concatenate[str, P], replay_pb2.ReplaySpec],
) -> Callable[[Callable[[J, replay_pb2.ReplaySpec], Steps[T]]], Callable[Concatenate[J, P], Steps[T]]]:
    """As asks, of a run that has the method itself."""

    def decorate(body: Callable[[J, replay_pb2.ReplaySpec], Steps[T]]) -> Callable[Concatenate[J, P], Steps[T]]:
        def method(self: J, /, *args: P.args, **kwargs: P.kwargs) -> Steps[T]:
            _check_arguments(method, self, *args, **kwargs)
            return (yield from body(self, make(self.id, *args, **kwargs)))

        _with_arguments(method, body, left_out=1)
        return method

    return decorate
