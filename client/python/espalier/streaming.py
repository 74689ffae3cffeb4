"""Examples that this program brings while a job trains: `fit(stream=True)`, `Job.push`.

They need not fit into a file or the memory, and their number need not be known. The coordinator keeps them by step
until the job has succeeded: a job that is resumed or loses a worker trains on the same ones again.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from espalier import data as datasets
from espalier import errors
from espalier.interrupt import submit_or_cancel
from espalier.notes import warn
from espalier.npz import Array
from espalier.rpc import method
from espalier.steps import Send
from espalier.v1 import graph_pb2, training_pb2
from espalier.values import separate_values

if TYPE_CHECKING:
    from espalier.client import Client
    from espalier.graph import Graph
    from espalier.job import Job
    from espalier.training import TrainingResult

_CALL_BYTES = 16 << 20  # of a call, unless a batch is larger; so many are read ahead
_MESSAGE_BYTES = 8 << 20
_DEFAULT_BACKLOG = 64  # as ExampleStream.backlog
_CALL_TIMEOUT = 300.0  # of a call that waits for room, or brings a large batch
_FLOATS = (graph_pb2.F32, graph_pb2.BF16, graph_pb2.F16)
# As the coordinator reads an .npz; other types are widened to one of these.
_TYPES: dict[str, graph_pb2.DataType] = {
    "float32": graph_pb2.F32,
    "float16": graph_pb2.F16,
    "int8": graph_pb2.I8,
    "uint8": graph_pb2.U8,
    "int32": graph_pb2.I32,
    "int64": graph_pb2.I64,
    "bool": graph_pb2.BOOL,
}
_WIDENED = {"int16": np.int32, "uint16": np.int32, "uint32": np.int64}

Batch = Mapping[str, Array]
Encoded = list[training_pb2.PushExamplesRequest]  # a batch


def _message_type(array: Array, column: str) -> tuple[Array, graph_pb2.DataType]:
    name = array.dtype.name
    if name in _WIDENED:
        array = array.astype(_WIDENED[name])
    elif name == "uint64":
        if array.size and array.max() > np.iinfo(np.int64).max:
            raise errors.InvalidArgument(f"column {column} holds {array.max()}, which no int64 can hold")
        array = array.astype(np.int64)
    return array, _TYPES[array.dtype.name]


def _encoded(batch: Batch) -> Encoded:
    """A copy, as messages of a call: the data may use their buffers again."""
    examples = len(next(iter(batch.values())))
    row = sum(array.nbytes for array in batch.values()) // examples
    rows = max(1, _MESSAGE_BYTES // max(1, row))
    messages = []
    for first in range(0, examples, rows):
        message = training_pb2.PushExamplesRequest()
        for name, array in batch.items():
            part, dtype = _message_type(array[first : first + rows], name)
            value = message.columns[name]
            value.dtype = dtype
            value.dims.extend(part.shape)
            value.data = np.ascontiguousarray(part, part.dtype.newbyteorder("<")).tobytes()
        messages.append(message)
    return messages


def _call(
    job_id: str, first_step: int, batches: Sequence[Encoded], end: bool
) -> list[training_pb2.PushExamplesRequest]:
    messages = [message for batch in batches for message in batch] or [training_pb2.PushExamplesRequest()]
    messages[0].job_id, messages[0].first_step, messages[-1].end = job_id, first_step, end
    return messages


def _send(job: Job, first_step: int, batches: Sequence[Encoded], end: bool, stop: Callable[[], bool]) -> bool:
    """One call, until it is taken; False if `stop` said so first. It may be repeated, as steps are numbered."""
    settings = job._connection.settings
    messages = _call(job.id, first_step, batches, end)
    give_up, pause = math.inf, 0.2
    while not stop():
        try:
            call = Send(method("Training", "PushExamples"), lambda: iter(messages), _CALL_TIMEOUT)
            reply = call.run(job._connection)
        except (errors.Unavailable, errors.DeadlineExceeded, errors.Cancelled) as error:
            if give_up == math.inf:
                give_up = time.monotonic() + settings.watch_retry_for
            if time.monotonic() + pause > give_up:
                raise errors.Unavailable(
                    f"{error}. What was pushed is kept; go on: job = client.job('{job.id}'), then job.push(...) with "
                    f"the examples from step {first_step} on (job.stream_position)"
                ) from None
            time.sleep(pause)
            pause = min(2 * pause, 2.0)
            continue
        except errors.InvalidArgument as error:
            raise errors.InvalidArgument(job._with_sources(str(error))) from None
        give_up, pause = math.inf, 0.2
        if not reply.full:
            return True
    return False


class _Reader:
    """Reads batches on a thread of its own, some ahead, so that reading and pushing take turns for nobody."""

    def __init__(self, batches: Iterator[Batch]):
        self._batches = batches
        self._changed = threading.Condition()
        self._read: collections.deque[tuple[Encoded, int]] = collections.deque()  # with their bytes
        self._bytes = 0
        self._over = False  # no more batches come
        self._error: BaseException | None = None  # that reading raised
        self._ended = False  # nobody takes more
        # A daemon: an iterator may wait for ever for its next element.
        threading.Thread(target=self._run, name="espalier-stream-reader", daemon=True).start()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            for batch in self._batches:
                if not self._put(_encoded(batch)):
                    return
        except BaseException as raised:  # for the one who pushes
            error = raised
        with self._changed:
            self._over, self._error = True, error
            self._changed.notify_all()

    def _put(self, batch: Encoded) -> bool:
        size = sum(message.ByteSize() for message in batch)
        with self._changed:
            while self._read and self._bytes + size > _CALL_BYTES and not self._ended:
                self._changed.wait()
            self._read.append((batch, size))
            self._bytes += size
            self._changed.notify_all()
            return not self._ended

    def take(self, most: int, stop: Callable[[], bool]) -> tuple[list[Encoded], bool]:
        """One batch or more, as many as are there, and whether they are the last; none once `stop` says so.

        What reading raised is raised behind the batches before it.
        """
        taken: list[Encoded] = []
        with self._changed:
            while not self._read and not self._over and not stop():
                self._changed.wait(0.2)
            while self._read and len(taken) < most:
                batch, size = self._read.popleft()
                taken.append(batch)
                self._bytes -= size
            self._changed.notify_all()
            if not taken and self._error is not None:
                raise self._error
            return taken, self._over and not self._read and self._error is None

    def end(self) -> None:
        """No more is taken."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


def _push_all(
    job: Job, batches: Iterator[Batch], first_step: int, backlog: int, end: bool, stop: Callable[[], bool]
) -> int:
    """Pushes all batches; returns the number that the job has then."""
    # Half of the backlog: one call is on its way while the job trains on what another brought.
    most = max(1, backlog // 2)
    reader = _Reader(batches)
    position, last = first_step, False
    try:
        while not last and not stop():
            taken, last = reader.take(most, stop)
            if (taken or (last and end)) and not _send(job, position, taken, end and last, stop):
                break
            position += len(taken)
    finally:
        reader.end()
    return position


def _passes(data: Any, read: Callable[[Any], Iterator[Batch]], most: int) -> Iterator[Batch]:
    """At most so many batches: of one pass over an iterator, of several over what can be begun again."""
    left = most
    while left > 0:
        found = False
        for batch in read(data):
            found = True
            yield batch
            left -= 1
            if left == 0:
                return
        if not found or (hasattr(data, "__next__") and iter(data) is data):
            return


def element_type(array: Array, column: str) -> graph_pb2.DataType:
    """The type in which an array's elements are pushed."""
    return _message_type(array[:0], column)[1]


def train(
    graph: Graph | None,
    data: Any,
    spec: training_pb2.TrainingSpec,
    *,
    client: Client,
    columns: Mapping[str, str] | None,
    validation_split: float,
    epochs: int,
    configure: Callable[[training_pb2.TrainingSpec], None],
    follow: Callable[[Job, int], TrainingResult],
    inputs: Sequence[datasets.Input] = (),
    types: Mapping[str, graph_pb2.TensorType] | None = None,
) -> TrainingResult:
    """fit(stream=True). `epochs`: 0 if `spec` has steps. `follow` waits for the job, given the steps of an epoch.

    Without a graph `inputs` and `types`, those of an example by column, say what it reads.
    """
    if validation_split:
        raise errors.InvalidArgument(
            "validation_split: the last examples of a stream are not known; give others: fit(validation_data=...)"
        )
    inputs, size = inputs if graph is None else datasets.inputs_of(graph), spec.batch_size
    per_epoch = (datasets.length(data, inputs, columns) or 0) // size
    if epochs:
        if not per_epoch:
            raise errors.InvalidArgument(
                f"stream=True needs steps=..., the most to train: a {type(data).__name__} does not tell how many "
                f"batches of {size} it has"
            )
        spec.steps, spec.epochs = epochs * per_epoch, 0
    spec.dataset.Clear()
    spec.dataset.format = training_pb2.Dataset.STREAM
    spec.dataset.columns.update(datasets.stream_columns(inputs, columns))
    for column, example in (types or {}).items():
        spec.dataset.stream.columns[column].CopyFrom(example)
    separate_values(spec, client)
    configure(spec)
    if spec.HasField("validation") and not spec.validation.every_steps and per_epoch:
        # Callbacks want it after epochs, which a stream does not have.
        spec.validation.every_steps = per_epoch * (spec.validation.every_epochs or 1)
        spec.validation.every_epochs = 0
    batches = _passes(data, lambda given: datasets.batches(given, inputs, columns, size), spec.steps)
    job = submit_or_cancel(client, spec, graph)
    with _pushing(job, batches, spec.dataset.stream.backlog or _DEFAULT_BACKLOG):
        return follow(job, per_epoch)


@contextlib.contextmanager
def _pushing(job: Job, batches: Iterator[Batch], backlog: int) -> Iterator[None]:
    """Pushes on a thread while the context waits for the job.

    What reading the data raises cancels the job, and is raised at the end.
    """
    stopped = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            _push_all(job, batches, 0, backlog, True, stopped.is_set)
        except errors.FailedPrecondition as error:
            # The job is over, as by early stopping: what became of it, its record says.
            with contextlib.suppress(errors.EspalierError):
                if job.state in ("succeeded", "failed", "cancelled"):
                    return
            failed.append(error)
        except BaseException as error:
            failed.append(error)
        if failed:
            with contextlib.suppress(errors.EspalierError):
                job.cancel()

    thread = threading.Thread(target=run, name="espalier-stream", daemon=True)
    thread.start()
    try:
        yield
    except errors.JobFailed as error:
        if not failed:
            raise
        raise failed[0] from error
    finally:
        stopped.set()
        thread.join(5.0)


def push(job: Job, data: Any, *, end: bool, columns: Mapping[str, str] | None) -> int:
    """As Job.push."""
    record = job.record
    if record.spec.dataset.format != training_pb2.Dataset.STREAM:
        raise errors.FailedPrecondition(f"job {job.id} has a dataset; only one of fit(stream=True) takes examples")
    dataset = record.spec.dataset
    graph = job._graph
    if graph is not None:
        inputs = datasets.inputs_of(graph)
        names: Mapping[str, str] | None = columns or dict(dataset.columns)
    else:
        inputs = [
            datasets.Input(name, tuple(column.dims), column.dtype in _FLOATS)
            for name, column in sorted(dataset.stream.columns.items())
        ]
        names = None
    if job.state == "succeeded":
        raise errors.FailedPrecondition(f"job {job.id} has succeeded, and takes no more examples")
    most = record.spec.steps - record.steps_pushed
    if most <= 0:
        raise errors.FailedPrecondition(f"job {job.id} trains {record.spec.steps} steps, and has the examples of all")
    left: list[int] = []
    batches = _batches_of_push(
        datasets.batches(data, inputs, names, record.spec.batch_size, graph is not None, left.append),
        record.spec.batch_size,
        most,
        left,
    )
    backlog = dataset.stream.backlog or _DEFAULT_BACKLOG
    try:
        pushed = _push_all(job, batches, record.steps_pushed, backlog, end, lambda: False)
    except errors.FailedPrecondition:
        # The answer to the last call was lost, or early stopping needs no more.
        if job.state != "succeeded":
            raise
        return int(job.record.steps_pushed)
    if sum(left):
        warn(f"the last {sum(left)} examples do not fill a batch of {record.spec.batch_size}: nothing trains on them")
    return pushed


def _batches_of_push(batches: Iterator[Batch], size: int, most: int, left: Sequence[int]) -> Iterator[Batch]:
    """At most so many. InvalidArgument if the data do not fill one. `left` has the number of examples left out."""
    count = 0
    for batch in itertools.islice(batches, most):
        count += 1
        yield batch
    if count == 0:
        raise errors.InvalidArgument(f"data has {sum(left)} examples; a batch of the job has {size}: push more at once")
