"""What fit trains, as the message that a job or a session is made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from espalier import errors
from espalier.counts import check_count, check_counts, seconds_of
from espalier.optimizers import Optimizer, resolve
from espalier.record_options import record_options
from espalier.search import search_options
from espalier.spelling import meant
from espalier.v1 import graph_pb2, program_pb2, training_pb2

if TYPE_CHECKING:
    from datetime import timedelta

    from espalier.graph import Graph

_PRECISIONS = {
    "f32": graph_pb2.F32,
    "float32": graph_pb2.F32,
    "bf16": graph_pb2.BF16,
    "bfloat16": graph_pb2.BF16,
    "f16": graph_pb2.F16,
    "float16": graph_pb2.F16,
}


def make_spec(
    graph: Graph,
    *,
    optimizer: str | Optimizer | program_pb2.Optimizer,
    batch_size: int,
    epochs: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    name: str = "",
    search: Mapping[str, object] | None = None,
    precision: str | None = None,
    checkpoint_every: int = 0,
    record: str | Mapping[str, object] | None = None,
    priority: int = 0,
    time_limit: float | timedelta | None = None,
) -> training_pb2.TrainingSpec:
    """The specification of a job, without its dataset. InvalidArgument for what cannot be."""
    if epochs is not None and steps is not None:
        raise errors.InvalidArgument("give epochs or steps, not both")
    check_count("batch_size", batch_size)
    check_counts(epochs=epochs, steps=steps)
    check_counts(0, checkpoint_every=checkpoint_every)
    seed = check_count("seed", seed, 0, (1 << 64) - 1)
    if precision is not None and precision not in _PRECISIONS:
        accepted = f"accepted are {', '.join(_PRECISIONS)}{meant(str(precision), _PRECISIONS)}"
        raise errors.InvalidArgument(f"precision {precision!r}: {accepted}")
    if not any(output.name == "loss" for output in graph.proto.outputs):
        raise errors.InvalidArgument(
            f"graph {graph.proto.name} has no output 'loss', which training minimizes; name one: "
            "graph.output('loss', ...)"
        )
    spec = training_pb2.TrainingSpec(
        name=name,
        output_model=name,
        graph=graph.proto,
        batch_size=int(batch_size),
        epochs=0 if steps is not None else int(epochs or 1),
        steps=int(steps or 0),
        optimizer=resolve(optimizer),
        search=search_options(search, seed),
        seed=seed,
        checkpoint_every_steps=checkpoint_every,
        priority=check_count("priority", priority, -1000, 1000),
        time_limit_seconds=0.0 if time_limit is None else seconds_of("time_limit", time_limit),
    )
    recorded = record_options(record)
    if recorded is not None:
        if recorded.every_steps and checkpoint_every not in (0, recorded.every_steps):
            raise errors.InvalidArgument(
                f"record={record!r} and checkpoint_every={checkpoint_every} both say how often a checkpoint is "
                "written; give one of them"
            )
        spec.record.CopyFrom(recorded)
    if precision is not None:
        spec.precision = _PRECISIONS[precision]
    return spec
