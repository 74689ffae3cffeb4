"""The exceptions of the package. All derive from EspalierError."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class EspalierError(Exception):
    """Base of all exceptions that the package raises on purpose."""


class EspalierWarning(UserWarning):
    """A note of the coordinator: what differs from what one may expect."""


class InvalidArgument(EspalierError, ValueError):
    """An argument, a graph or a job that cannot be; the message says where, and what would be accepted."""


class NotFound(EspalierError, LookupError):
    """No job, artifact or model of this name."""


class AlreadyExists(EspalierError):
    """The name is taken."""


class FailedPrecondition(EspalierError):
    """Not possible in the present state, such as resuming a job that runs."""


class PermissionDenied(EspalierError):
    """The key's role or owner may not do this."""


class Unauthenticated(EspalierError):
    """No key was given where one is needed, or a wrong one."""


class Unavailable(EspalierError, ConnectionError):
    """No coordinator answers at the address; the message says how to start or name one."""


class DeadlineExceeded(EspalierError, TimeoutError):
    """The coordinator did not answer in time."""


class Cancelled(EspalierError):
    """The call was cancelled."""


class ResourceExhausted(EspalierError):
    """A limit was reached: memory, disk, message size, load."""


class DataLoss(EspalierError):
    """What arrived is not what was sent: its hash differs."""


class InternalError(EspalierError):
    """A fault of the coordinator or of a worker; its log has more."""


class JobFailed(EspalierError):
    """A training job ended as FAILED or CANCELLED; `job_id` names it."""

    def __init__(self, job_id: str, message: str):
        super().__init__(message)
        self.job_id = job_id


class ReplayFailed(EspalierError):
    """A replay has failed or was cancelled; `replay_id` names it."""

    def __init__(self, replay_id: str, message: str):
        super().__init__(message)
        self.replay_id = replay_id


class ReplayDiffers(ReplayFailed):
    """A replayed loss is not the recorded one.

    job_id and step say which, replayed and recorded are its values. node: the operator whose results differ first;
    empty: not known. cause: what is known of the reason, a sentence.
    """

    def __init__(
        self,
        replay_id: str,
        message: str,
        *,
        job_id: str,
        step: int,
        replayed: float,
        recorded: float,
        node: str,
        cause: str,
    ):
        super().__init__(replay_id, message)
        self.job_id = job_id
        self.step = step
        self.replayed = replayed
        self.recorded = recorded
        self.node = node
        self.cause = cause


@dataclass(frozen=True)
class Unsupported:
    """An operator of a framework that has no counterpart here."""

    op: str  # name in the framework, such as "aten.lstm.input"
    count: int  # nodes with this operator
    source: str  # line of the user's program at the first one, "model.py:12"; empty: unknown
    reason: str = ""  # such as "only with batch_first=True"
    layer: str = ""  # of the model at the first one, "self.encoder.layers.0 (Block)"; empty: unknown


class UnsupportedOperators(EspalierError):
    """A model uses operators that cannot be converted; `operators` lists all of them, not only the first."""

    def __init__(self, framework: str, operators: Sequence[Unsupported]):
        self.framework = framework
        self.operators = tuple(operators)
        lines = [f"{framework} operators that cannot be converted:"]
        for o in self.operators:
            times = "once" if o.count == 1 else f"{o.count} times"
            where = (f", first at {o.source}" if o.source else "") + (f", in {o.layer}" if o.layer else "")
            lines.append(f"  {o.op} ({times}{where})" + (f": {o.reason}" if o.reason else ""))
        super().__init__("\n".join(lines))
