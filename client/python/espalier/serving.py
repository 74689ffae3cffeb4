"""The request to serve a model."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from espalier.errors import InvalidArgument
from espalier.rpc import idempotency_key
from espalier.spelling import meant
from espalier.v1 import inference_pb2

# Of ServeModelRequest, besides those with a parameter of their own and what only the coordinator fills in.
_OPTIONS = frozenset(inference_pb2.ServeModelRequest.DESCRIPTOR.fields_by_name) - {
    "name",
    "artifact",
    "idempotency_key",
    "chosen",
    "fitted_kv_cache_tokens",
    "owner",
    "versions",
}
_OF_GRAPHS = ("max_batch_size", "max_queue_delay_ms")
_LONGEST_DELAY_MS = 10_000  # as the coordinator


def serve_request(
    artifact: str,
    name: str | None,
    max_batch_size: int | None,
    max_queue_delay_ms: float | None,
    options: Mapping[str, Any],
) -> inference_pb2.ServeModelRequest:
    """A request with a key of its own. InvalidArgument for what none can have."""
    if not isinstance(artifact, str):
        raise InvalidArgument(f"serve: artifact is a {type(artifact).__name__}; give a name, as TrainingResult.model")
    if not artifact:
        raise InvalidArgument(
            "serve: artifact is empty; a training in a session leaves none: give fit(execution='job'), or "
            "Session.save('name')"
        )
    for option in options:
        if option not in _OPTIONS:
            known = [*sorted(_OPTIONS), *_OF_GRAPHS]
            raise InvalidArgument(
                f"serve: there is no option {option!r}{meant(option, known) or '; options are ' + ', '.join(known)}"
            )
    try:
        request = inference_pb2.ServeModelRequest(artifact=artifact, name=name or "", **options)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"serve: {error}; options are the fields of ServeModelRequest") from None
    if max_batch_size is not None:
        if (
            isinstance(max_batch_size, bool)
            or not isinstance(max_batch_size, Integral)
            or not 0 < max_batch_size < 2**31
        ):
            raise InvalidArgument(f"serve: max_batch_size={max_batch_size!r}; accepted: an integer above 0")
        request.graph.max_batch_size = int(max_batch_size)
    if max_queue_delay_ms is not None:
        if not isinstance(max_queue_delay_ms, Real) or not 0 <= max_queue_delay_ms <= _LONGEST_DELAY_MS:
            raise InvalidArgument(
                f"serve: max_queue_delay_ms={max_queue_delay_ms!r}; accepted: 0 to {_LONGEST_DELAY_MS} milliseconds"
            )
        request.graph.max_queue_delay_microseconds = round(1000 * max_queue_delay_ms)
    request.idempotency_key = idempotency_key()
    return request


__all__ = ["serve_request"]
