"""The stream of a session: numbered commands and their answers, taken up again when the connection breaks."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

from espalier import errors
from espalier.graph import dtype_name, proto_dtype
from espalier.held_interrupts import wait_for
from espalier.npz import Array
from espalier.rpc import Connection, error_of_code, method, typed
from espalier.v1 import graph_pb2, session_pb2

Command = session_pb2.SessionCommand

_PART_BYTES = 1 << 22
_KEEP_ALIVE_SECONDS = 60.0  # the coordinator cuts a silent stream off after 300
_LONGEST_PAUSE = 2.0


# Of commands that go as one message; larger ones go alone.
_GROUP_BYTES = 1 << 20


def _grouped(requests: queue.SimpleQueue[Command | None]) -> Iterator[Command]:
    """The messages of a queue until None. Whole commands that wait there go as one: gRPC takes 0.3 ms for a message."""
    message = requests.get()
    while message is not None:
        following: Command | None = None
        ended = False
        group: Command | None = None
        size = message.ByteSize()
        while message.number and not message.more:
            try:
                following = requests.get_nowait()
            except queue.Empty:
                break
            ended = following is None
            if following is None or following.more:
                break
            size += following.ByteSize()
            if size > _GROUP_BYTES:
                break
            if group is None:
                group = Command()
                group.CopyFrom(message)  # the stream keeps the messages, to send them again
            group.following.append(following)
            following = None
        yield group or message
        if ended:
            return
        message = following or requests.get()


def numpy_dtype(number: int) -> np.dtype[Any]:
    """The NumPy type of a graph_pb2.DataType; bfloat16 by ml_dtypes."""
    if number == graph_pb2.BF16:
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    else:
        found = np.dtype(dtype_name(graph_pb2.DataType.Name(number).lower())).newbyteorder("<")
    return found


def parts_of(arrays: Mapping[str, Array], kind: int = 0) -> Iterator[session_pb2.TensorPart]:
    """Arrays as messages of at most 4 MiB; `kind` is a SessionTensorKind, 0 for inputs."""
    for name, array in arrays.items():
        dense = np.ascontiguousarray(array).reshape(array.shape)  # it makes one dimension out of none
        data = memoryview(dense.reshape(-1).view(np.uint8)) if dense.size else memoryview(b"")
        for offset in range(0, max(len(data), 1), _PART_BYTES):
            yield session_pb2.TensorPart(
                kind=kind,  # type: ignore[arg-type]
                name=name,
                dtype=proto_dtype(dense.dtype),
                dims=dense.shape,
                offset=offset,
                data=bytes(data[offset : offset + _PART_BYTES]),
            )


@dataclass
class Answer:
    """The whole answer of a command: the last reply, and the tensors of all of them by (kind, name)."""

    reply: session_pb2.SessionReply
    tensors: dict[tuple[int, str], Array] = field(default_factory=dict)


class _Assembler:
    """Puts the parts of tensors together."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, str], tuple[session_pb2.TensorPart, bytearray]] = {}

    def add(self, parts: Sequence[session_pb2.TensorPart]) -> None:
        for part in parts:
            _, data = self._parts.setdefault((part.kind, part.name), (part, bytearray()))
            if part.offset != len(data):
                raise errors.DataLoss(f"tensor {part.name}: a part begins at byte {part.offset}, not at {len(data)}")
            data.extend(part.data)

    def arrays(self) -> dict[tuple[int, str], Array]:
        return {
            key: np.frombuffer(data, numpy_dtype(first.dtype)).reshape(tuple(first.dims))
            for key, (first, data) in self._parts.items()
        }


@dataclass
class Sent:
    """A command that was sent; it has an answer or an error once that has come."""

    number: int
    what: str
    messages: list[Command]
    answer: Answer | None = None
    error: errors.EspalierError | None = None

    @property
    def has_answer(self) -> bool:
        """Whether one has come, perhaps an error."""
        return self.answer is not None or self.error is not None


class Stream:
    """Sends commands and reads answers, in order. Thread-safe.

    A broken connection is taken up again for `grace_seconds`; no command is carried out twice. While nothing is asked,
    a thread tells the coordinator every minute that the client is there.
    """

    def __init__(self, connection: Connection, session_id: str, grace_seconds: float):
        self._connection = connection
        self._id = session_id
        self._grace = grace_seconds
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._answered = 0
        self._sent: deque[Sent] = deque()  # whose answers were not looked at
        self._late: errors.EspalierError | None = None  # of a command that nobody waited for
        self._lost: errors.EspalierError | None = None  # no command works any more
        self._requests: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._replies: Any = None
        self._arrived: deque[session_pb2.SessionReply] = deque()  # of the last message, not looked at yet
        self._interrupted = False  # a Ctrl-C has ended the stream, or come while answers were read
        # Streams that were given up before their first answer. The coordinator may begin one of them after a later
        # one, and cut that off.
        self._given_up = 0
        self._streams = 0
        self._last = time.monotonic()
        self._closed = threading.Event()
        self._progress = session_pb2.SessionProgress()
        with self._lock:
            self._attach()
        self._thread = threading.Thread(target=self._keep_alive, name=f"espalier-{session_id}", daemon=True)
        self._thread.start()

    # Commands. A Ctrl-C may come between any two lines: what is known of a command changes by one assignment at a time,
    # in an order that another try can go on from.

    def send(self, what: str, parts: Iterator[session_pb2.TensorPart] | None = None, **command: Any) -> Sent:
        """Sends a command without waiting for its answer; `what` names it in errors, which the next `ask` raises."""
        with self._lock:
            self._check()
            number = 1 + (self._sent[-1].number if self._sent else self._answered)
            messages = []
            part: session_pb2.TensorPart | None = None
            for following in parts or ():
                if part is not None:
                    messages.append(Command(number=number, tensors=[part], more=True))
                part = following
            messages.append(Command(number=number, tensors=[] if part is None else [part], **command))
            sent = Sent(number, what, messages)
            try:
                self._sent.append(sent)
                for message in messages:
                    message.answered = self._answered
                    self._requests.put(message)
            except BaseException:
                self._interrupted = True  # another stream brings it
                raise
            self._last = time.monotonic()
            return sent

    def ask(self, what: str, parts: Iterator[session_pb2.TensorPart] | None = None, **command: Any) -> Answer:
        """Sends a command and waits for its answer. Raises what the coordinator refused, of earlier commands first."""
        with self._lock:
            sent = self.send(what, parts, **command)
            self._read_answers()
            assert sent.answer is not None
            return sent.answer

    def wait(self, sent: Sent) -> Answer:
        """The answer to a command; waits for it. Errors as ask."""
        with self._lock:
            if not sent.has_answer:
                self._check()
                self._read_answers()
            if sent.answer is None:
                assert sent.error is not None
                raise sent.error
            return sent.answer

    def _read_answers(self) -> None:
        """Waits for the answers to all commands; raises what was refused, the earliest first."""
        refused: errors.EspalierError | None = None
        while self._sent and (self._lost is None or self._sent[0].has_answer):
            sent = self._sent[0]
            try:
                if not sent.has_answer:
                    self._receive(sent)
            except errors.EspalierError as error:
                refused = refused or error
                break
            except BaseException:
                self._interrupted = True  # what was read of an answer is gone: another stream brings it again
                raise
            refused = refused or sent.error
            self._answered = sent.number
            self._sent.popleft()
        if self._sent:
            refused = refused or self._lost
        if self._late is not None:
            refused, self._late = self._late, None
        if refused is not None:
            raise refused

    @property
    def progress(self) -> session_pb2.SessionProgress:
        """How far the session is after all commands; waits for them. What was refused, the next `ask` raises."""
        with self._lock:
            if self._sent and self._lost is None:
                try:
                    self._read_answers()
                except errors.EspalierError as error:
                    self._late = error
            return self._progress

    @property
    def ended(self) -> bool:
        """Whether no command works any more."""
        return self._lost is not None

    def close(self) -> None:
        """Ends the session. No error if it has ended already."""
        self._closed.set()
        if self._process != os.getpid():
            return
        self._requests.put(None)
        found = method("Sessions", "Close")
        settings = self._connection.settings
        # Suppressed: it has ended, ends after its grace time, or ended with its coordinator.
        with contextlib.suppress(grpc.RpcError, errors.EspalierError):
            call = self._connection.channel().unary_unary(
                found.path,
                request_serializer=found.request.SerializeToString,
                response_deserializer=found.reply.FromString,
            )
            call(found.request(session_id=self._id), timeout=settings.call_timeout, metadata=settings.metadata)
        if self._replies is not None:
            wait_for(self._replies.cancel)
        self._lost = self._lost or errors.FailedPrecondition(f"session {self._id} was closed")

    # The connection.

    def _check(self) -> None:
        if self._process != os.getpid():
            raise errors.FailedPrecondition(
                f"session {self._id} belongs to process {self._process}, from which this one was forked: open a "
                "session of its own here"
            )
        if self._lost is not None:
            raise self._lost

    def _attach(self) -> None:
        """Begins a stream; what the session has not had is sent again."""
        found = method("Sessions", "Run")
        self._arrived.clear()
        self._requests = queue.SimpleQueue()
        self._requests.put(Command(session_id=self._id, answered=self._answered))
        call = self._connection.channel().stream_stream(
            found.path,
            request_serializer=found.request.SerializeToString,
            response_deserializer=found.reply.FromString,
        )
        replies: Any = None

        def begin() -> session_pb2.SessionReply:
            nonlocal replies
            replies = call(_grouped(self._requests), metadata=self._connection.settings.metadata)
            first: session_pb2.SessionReply = next(replies)
            return first

        try:
            hello = wait_for(begin, lambda: replies is not None and replies.cancel())
        except BaseException:
            self._requests.put(None)
            self._given_up += 1
            raise
        self._replies = replies
        self._streams += 1
        self._progress = hello.progress
        for sent in self._sent:
            if sent.number > hello.progress.commands:
                for message in sent.messages:
                    self._requests.put(message)
        self._interrupted = False

    def _attach_again(self, broken: grpc.RpcError | None) -> None:
        self._requests.put(None)
        give_up, pause = time.monotonic() + self._grace, 0.1
        while True:
            if broken is not None and broken.code() != grpc.StatusCode.UNAVAILABLE and not self._is_cut_off(broken):
                raise self._end(broken)
            try:
                self._attach()
                return
            except StopIteration:
                broken = None
            except grpc.RpcError as error:
                broken = error
            except errors.Unavailable as error:
                if time.monotonic() + pause > give_up:
                    self._lost = error
                    raise
            if time.monotonic() + pause > give_up:
                if broken is not None:
                    raise self._end(broken)
                self._lost = errors.Unavailable(f"the stream of session {self._id} ends again and again")
                raise self._lost
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _is_cut_off(self, broken: grpc.RpcError) -> bool:
        if self._given_up == 0 or broken.code() not in (grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED):
            return False
        self._given_up -= 1
        return True

    def _end(self, error: grpc.RpcError) -> errors.EspalierError:
        remedy = ""
        if error.code() == grpc.StatusCode.NOT_FOUND:
            remedy = (
                ": the coordinator was restarted, or nobody came within the grace time. What was not saved is gone; "
                "open another session, with what was saved as its initial parameters"
            )
        base = typed(error, self._connection.settings)
        self._lost = type(base)(f"session {self._id}: {base}{remedy}")
        return self._lost

    def _next(self) -> session_pb2.SessionReply:
        if self._interrupted:
            self._attach_again(None)
        if self._arrived:
            return self._arrived.popleft()
        while True:
            replies = self._replies
            try:
                reply: session_pb2.SessionReply = wait_for(lambda: next(replies), replies.cancel)  # noqa: B023
                self._arrived.extend(reply.following)
                return reply
            except StopIteration:
                self._attach_again(None)
            except grpc.RpcError as error:
                self._attach_again(error)

    def _receive(self, sent: Sent) -> None:
        """Waits for the answer to the first command. Raises if the session is lost."""
        assembler, stream = _Assembler(), self._streams
        while True:
            reply = self._next()
            if stream != self._streams:  # answers come again whole
                assembler, stream = _Assembler(), self._streams
            if reply.number < sent.number:
                continue  # a hello, or an answer that came again
            if reply.number > sent.number:
                # The coordinator keeps a limited number of bytes of answers for a client that comes again.
                sent.error = errors.DataLoss(
                    f"{sent.what}: the answer was lost with the connection; it was carried out"
                )
                self._interrupted = True  # another stream brings this reply again
                return
            assembler.add(reply.tensors)
            if not reply.more:
                break
        self._progress = reply.progress
        self._last = time.monotonic()
        if not reply.code:
            sent.answer = Answer(reply, assembler.arrays())
            return
        error = error_of_code(reply.code, f"{sent.what}: {reply.error}")
        if reply.ended:
            self._lost = error
        sent.error = error

    def _keep_alive(self) -> None:
        while not self._closed.wait(_KEEP_ALIVE_SECONDS / 4):
            with self._lock:
                if self._lost is not None:
                    return
                if time.monotonic() - self._last < _KEEP_ALIVE_SECONDS:
                    continue
                try:
                    self.ask("keep alive", keep_alive=Command.KeepAlive())
                except errors.EspalierError as error:
                    if self._lost is None:
                        self._late = error


__all__ = ["Answer", "Sent", "Stream", "numpy_dtype", "parts_of"]
