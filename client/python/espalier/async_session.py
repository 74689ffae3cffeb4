"""Session for asyncio: the blocking one, on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from espalier import session as blocking
from espalier.client import AsyncClient, Client
from espalier.errors import EspalierError, FailedPrecondition
from espalier.optimizers import Optimizer
from espalier.plan import Plan
from espalier.session_state import SessionState
from espalier.v1 import program_pb2, training_pb2

if TYPE_CHECKING:
    from espalier.graph import Graph

P = ParamSpec("P")
T = TypeVar("T")


class _Command(Generic[P, T]):
    """A method of the blocking session as one that returns a coroutine."""

    def __init__(self, method: Callable[Concatenate[blocking.Session, P], T]):
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, instance: None, owner: Any) -> _Command[P, T]: ...
    @overload
    def __get__(self, instance: Session, owner: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self

        def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
            return instance._run(lambda session: self._method(session, *args, **kwargs))  # type: ignore[no-any-return]

        call.__doc__ = self.__doc__
        return call


class _Known(Generic[T]):
    """An attribute of the blocking session that needs no waiting."""

    def __init__(self, name: str, doc: str):
        self._name, self.__doc__ = name, doc

    def __get__(self, instance: Session, owner: Any) -> T:
        return getattr(instance._opened(), self._name)  # type: ignore[no-any-return]


class Session:
    """As espalier.Session, with coroutines for methods:

        async with espalier.aio.Session(graph, {"x": x, "labels": y}, optimizer="adam", batch_size=64) as session:
            values = await session.step(steps=100)

    Or `session = await espalier.aio.Session(...)`, and `await session.close()` at the end. Commands of one session are
    carried out one after the other, in the order of the calls; those of several sessions at once. The command of a
    coroutine that is cancelled is carried out nevertheless, once, and the next one comes after it; what went wrong in
    it is raised by the next one, which is not carried out then. What recompile_when is given runs on the session's
    thread, with an espalier.Session. client: also an AsyncClient. Arguments and errors as espalier.Session; not
    thread-safe.
    """

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
        client: Client | AsyncClient | None = None,
        extra: Callable[[training_pb2.TrainingSpec], None] | None = None,
        state: SessionState | None = None,
    ):
        def make() -> blocking.Session:
            return blocking.Session(
                graph,
                data,
                optimizer=optimizer,
                batch_size=batch_size,
                columns=columns,
                keep=keep,
                validation_split=validation_split,
                shuffle=shuffle,
                seed=seed,
                name=name,
                search=search,
                precision=precision,
                grace_seconds=grace_seconds,
                wait_seconds=wait_seconds,
                client=client._blocking() if isinstance(client, AsyncClient) else client,
                extra=extra,
                state=state,
            )

        self._make = make
        self._thread: ThreadPoolExecutor | None = None
        self._session: blocking.Session | None = None
        self._closed = False
        self._late: EspalierError | None = None  # of a command whose coroutine was cancelled

    # The thread.

    async def _wait(self, function: Callable[[], T], when_cancelled: Callable[[Future[T]], None]) -> T:
        assert self._thread is not None
        future = self._thread.submit(function)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            # Before the thread begins with the next command.
            future.add_done_callback(when_cancelled)
            raise

    async def _run(self, command: Callable[[blocking.Session], T]) -> T:
        session = self._opened()
        if self._closed:
            raise FailedPrecondition(f"session {session.id} was closed")

        def carry_out() -> T:
            if self._late is not None:
                error, self._late = self._late, None
                raise error
            return command(session)

        return await self._wait(carry_out, self._keep_error)

    def _keep_error(self, future: Future[Any]) -> None:
        error = future.exception()
        if isinstance(error, EspalierError):
            self._late = error

    def _opened(self) -> blocking.Session:
        if self._session is None:
            raise FailedPrecondition("the session is not open: async with espalier.aio.Session(...), or await it")
        return self._session

    async def _open(self) -> Session:
        if self._thread is not None:
            raise FailedPrecondition("a session is opened once; make another one")
        self._thread = ThreadPoolExecutor(1, "espalier-session")
        try:
            self._session = await self._wait(self._make, _close_unwanted)
        except BaseException:
            self._thread.shutdown(wait=False)
            raise
        return self

    def __await__(self) -> Generator[Any, None, Session]:
        return self._open().__await__()

    async def __aenter__(self) -> Session:
        return self if self._session is not None else await self._open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the session, after the commands before; its workers are free."""
        if self._session is None or self._thread is None or self._closed:
            return
        self._closed = True
        try:
            await self._wait(self._session.close, lambda _: None)
        finally:
            self._thread.shutdown(wait=False)

    def __repr__(self) -> str:
        return f"<async {self._session!r}>" if self._session is not None else "<espalier.aio.Session, not open>"

    # Commands.

    forward = _Command(blocking.Session.forward)
    zero_gradients = _Command(blocking.Session.zero_gradients)
    backward = _Command(blocking.Session.backward)
    step = _Command(blocking.Session.step)
    set_learning_rate = _Command(blocking.Session.set_learning_rate)
    reset_metrics = _Command(blocking.Session.reset_metrics)
    evaluate = _Command(blocking.Session.evaluate)
    predict = _Command(blocking.Session.predict)
    get = _Command(blocking.Session.get)
    parameters = _Command(blocking.Session.parameters)
    gradients = _Command(blocking.Session.gradients)
    optimizer_state = _Command(blocking.Session.optimizer_state)
    set_parameters = _Command(blocking.Session.set_parameters)
    set_gradients = _Command(blocking.Session.set_gradients)
    set_optimizer_state = _Command(blocking.Session.set_optimizer_state)
    save = _Command(blocking.Session.save)
    recompile = _Command(blocking.Session.recompile)
    recompile_when = _Command(blocking.Session.recompile_when)
    state = _Command(blocking.Session.state)

    async def update(self) -> dict[str, float]:
        """Updates the parameters by the optimizer; returns "learning_rate" and what else the update reports."""
        return await self._run(lambda session: dict(session.update()))

    # What is known.

    id = _Known[str]("id", "The coordinator's name of the session.")
    graph = _Known["Graph"]("graph", "The graph.")
    plan = _Known[Plan]("plan", "The plan by which it runs.")
    notes = _Known[tuple[str, ...]]("notes", "What differs from what one may expect, one sentence each.")
    columns = _Known[dict[str, Any]]("columns", "Type and shape of an example of each column.")
    tensors = _Known[list[Any]]("tensors", "Kind, name and shape of what can be read.")
    batch_size = _Known[int]("batch_size", "Examples of a step.")
    examples = _Known[int]("examples", "Examples of the data that are trained on.")
    held_out = _Known[bool]("held_out", "Whether evaluate() has examples.")
    parameter_count = _Known[int]("parameter_count", "Elements of all parameters.")
    means = _Known[dict[str, float]]("means", "Means over all batches since reset_metrics.")
    steps = _Known[list[dict[str, float]]]("steps", "Values of each step of the last `step`.")
    ended = _Known[bool]("ended", "Whether no command works any more, because the session was closed or lost.")

    @property
    def updates(self) -> Awaitable[int]:
        """Number of updates after the commands before: `await session.updates`."""
        return self._run(lambda session: session.updates)

    @property
    def forwards(self) -> Awaitable[int]:
        """Number of training passes after the commands before: `await session.forwards`."""
        return self._run(lambda session: session.forwards)


def _close_unwanted(opened: Future[blocking.Session]) -> None:
    if opened.exception() is not None:
        return
    session = opened.result()

    def close() -> None:
        with contextlib.suppress(EspalierError):
            session.close()

    # Not on a thread of the event loop.
    threading.Thread(target=close, daemon=True).start()


__all__ = ["Session"]
