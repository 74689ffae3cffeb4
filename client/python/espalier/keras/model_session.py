"""The session that a model keeps open between calls of evaluate, predict and train_on_batch."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from espalier import kept_sessions
from espalier.errors import EspalierError, ResourceExhausted
from espalier.keras.heads import LossGraph
from espalier.keras.live_weights import LiveWeights
from espalier.notes import warn
from espalier.session import Session, SessionState
from espalier.v1 import graph_pb2, program_pb2

if TYPE_CHECKING:
    from espalier.client import Client

_IDLE_SECONDS = 30.0  # then the workers are free for others
_WAIT_SECONDS = 60.0  # for workers that others use


@dataclass
class Wanted:
    """What a session must be for a call."""

    client: Client
    network: Any
    compiled: Any  # None: predictions only
    shapes: tuple[Any, ...]  # of the inputs
    optimizer: program_pb2.Optimizer
    frozen: tuple[str, ...]  # weights
    batch_size: int
    exact_batch: bool  # training steps and sums depend on the batch
    search: dict[str, Any] = field(default_factory=dict)

    def fits(self, other: Wanted) -> bool:
        """Whether a session that was opened for `other` serves this."""
        return (
            self.client is other.client
            and self.network is other.network
            and (self.compiled is None or self.compiled is other.compiled)
            and self.shapes == other.shapes
            and self.search == other.search
            and (self.batch_size == other.batch_size or not self.exact_batch)
            and (self.compiled is None or _rest(self.optimizer) == _rest(other.optimizer))
            and (self.compiled is None or self.frozen == other.frozen)
        )


def _rest(optimizer: program_pb2.Optimizer) -> bytes:
    # All but a rate that can be set.
    other = program_pb2.Optimizer()
    other.CopyFrom(optimizer)
    if other.learning_rate.kind == program_pb2.LearningRateSchedule.CONSTANT:
        other.learning_rate.peak = 0
    return other.SerializeToString(deterministic=True)


class ModelSession:
    """A session with the weights of a model, which is closed when it is idle or others need its workers.

    on_close: gets the state of the optimizer, if there were training steps.
    """

    def __init__(
        self,
        wanted: Wanted,
        built: LossGraph,
        seed: int,
        state: SessionState | None,
        on_close: Callable[[SessionState], None],
    ):
        self.wanted, self.built, self.client = wanted, built, wanted.client
        self.trained = self.closed = False
        self._on_close = on_close
        self._rate = wanted.optimizer.learning_rate.peak
        graph = _without_values(built)

        def opened(wait_seconds: float) -> Session:
            return Session(
                graph,
                optimizer=wanted.optimizer,
                batch_size=wanted.batch_size,
                seed=seed,
                search=wanted.search or None,
                client=wanted.client,
                state=None if state is None else replace(state, optimizer={}, next_batch=0),
                wait_seconds=wait_seconds,
            )

        try:
            with kept_sessions.spared():  # models that are used in turn each keep a session, if there are workers
                self.session = opened(0)
        except ResourceExhausted:
            self.session = opened(_WAIT_SECONDS)
        if state is not None:
            have = {name: shape for kind, name, shape in self.session.tensors if kind == "optimizer_state"}
            fitting = {n: a for n, a in state.optimizer.items() if have.get(n) == a.shape}
            self.session.set_optimizer_state(fitting)
        for note in self.session.notes if wanted.compiled is not None else ():  # about losses
            warn(note)
        self.weights = LiveWeights(self.session, built.lowering.variables, sent=False)
        self._timer: threading.Timer | None = None
        self._used = 0.0
        kept_sessions.keep(self)

    def __reduce__(self) -> Any:
        return (type(None), ())  # copies of the model have no session

    @contextlib.contextmanager
    def use(self) -> Iterator[Session]:
        """The session with the model's weights, which stays open as long."""
        with self.weights.lock:
            try:
                self.weights.push()
                yield self.session
            except EspalierError:
                self.closed = self.closed or self.session.ended  # lost: the next call opens another one
                raise
            finally:
                self._used = time.monotonic()
                if self._timer is None:
                    self._start_timer(_IDLE_SECONDS)

    def _start_timer(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, _end_if_idle, [weakref.ref(self)])
        self._timer.daemon = True
        self._timer.start()

    def set_learning_rate(self, rate: float) -> None:
        """The rate of the next steps, if it is another one."""
        if rate != self._rate:
            self.session.set_learning_rate(rate)
            self._rate = rate

    def release(self) -> None:
        """As kept_sessions.Kept."""
        with self.weights.lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self.closed:
                return
            self.closed = True
            self.weights.detach()
            if self.trained:
                with contextlib.suppress(EspalierError):  # lost: the weights say so
                    self._on_close(self.session.state())
            self.session.close()


def _end_if_idle(reference: weakref.ref[ModelSession]) -> None:
    found = reference()
    if found is None:
        return
    with found.weights.lock:
        left = found._used + _IDLE_SECONDS - time.monotonic()
        if left <= 0:
            found.release()
        elif not found.closed:
            found._start_timer(left)


def _without_values(built: LossGraph) -> Any:
    # Weights that are known come after the opening, in any number of messages.
    graph = built.lowering.graph
    for value in graph.proto.values:
        if value.kind == graph_pb2.PARAMETER and value.name in built.lowering.variables and value.data:
            value.ClearField("data")
            value.initializer.kind = graph_pb2.Initializer.ZEROS
    return graph


__all__ = ["ModelSession", "Wanted"]
