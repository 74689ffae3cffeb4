"""What a watch emits when its connection breaks: nothing twice, nothing lost; what wait logs of it."""

import pytest

from espalier import errors
from espalier.job import Job, Position, watch
from espalier.rpc import Settings
from espalier.steps import Emit, Lost, Open, Read, Sleep
from espalier.v1 import training_pb2


def message(text, level="INFO"):
    return training_pb2.JobEvent(message=training_pb2.JobMessage(text=text, level=level))


def step(number):
    return training_pb2.JobEvent(step=training_pb2.StepReport(step=number))


def job(state, checkpoint=0):
    return training_pb2.JobEvent(job=training_pb2.Job(state=state, checkpoint_step=checkpoint))


class Call:
    def cancel(self):
        pass


def follow(*connections, settings=None, position=None):
    """What is emitted, and the requests made; each connection is its events, and what ends it (None: the end)."""
    settings = settings or Settings("somewhere:1")
    steps = watch("job-1", settings, position or Position())
    requests, emitted, left = [], [], [list(events) for events in connections]
    current, result, error = [], None, None
    while True:
        try:
            made = steps.throw(error) if error else steps.send(result)
        except StopIteration:
            return emitted, requests
        result = error = None
        if isinstance(made, Emit):
            emitted.append(made.value)
        elif isinstance(made, Open):
            requests.append(made.request)
            current, result = left.pop(0), Call()
        elif isinstance(made, Read):
            result = current.pop(0)
            if isinstance(result, Exception):
                result, error = None, result
        else:
            assert isinstance(made, Sleep)


LOST = Lost(errors.Unavailable("gone"))


def test_a_second_connection_goes_on_behind_the_first():
    first = [job(training_pb2.RUNNING), message("a"), step(0), step(1), message("b"), LOST]
    second = [job(training_pb2.RUNNING), message("a"), message("b"), step(2), message("c"), None]
    emitted, requests = follow(first, second)
    lost = message("connection to the coordinator at somewhere:1 lost, trying for 120 s", "WARNING")
    assert emitted == [*first[:-1], lost, second[0], step(2), message("c")]
    assert [request.from_step for request in requests] == [0, 2]


def test_steps_after_a_checkpoint_are_read_again():
    first = [step(0), step(1), step(2), job(training_pb2.RECOVERING, checkpoint=1), LOST]
    emitted, requests = follow(first, [step(1), step(2), None])
    assert [event.step.step for event in emitted if event.HasField("step")] == [0, 1, 2, 1, 2]
    assert [request.from_step for request in requests] == [0, 1]


def test_a_coordinator_that_drops_a_slow_reader_is_asked_again():
    emitted, requests = follow([step(0), errors.Cancelled("idle")], [step(1), None])
    assert [event.step.step for event in emitted if event.HasField("step")] == [0, 1]
    assert len(requests) == 2


def test_other_errors_and_the_end_of_patience_are_raised():
    with pytest.raises(errors.NotFound, match="no job"):
        follow([errors.NotFound("no job")])
    with pytest.raises(errors.Unavailable, match=r"gone.*wait for it: client\.job\('job-1'\)\.wait\(\)"):
        follow([LOST], settings=Settings("somewhere:1", watch_retry_for=0.1))


def test_a_job_that_is_over_needs_no_other_connection():
    emitted, requests = follow([job(training_pb2.SUCCEEDED), LOST])
    assert len(emitted) == len(requests) == 1


def test_wait_logs_messages_and_warnings_as_such(caplog):
    class Over(Job):
        def _watch(self, **_):
            yield from map(Emit, [message("lost", "WARNING"), message("fused", "DETAIL"), message("room again")])
            yield Emit(job(training_pb2.SUCCEEDED))

    caplog.set_level("INFO", logger="espalier")
    assert Over(None, "job-1").wait().state == training_pb2.SUCCEEDED
    logged = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert logged == [("WARNING", "job job-1: lost"), ("INFO", "job job-1: fused"), ("INFO", "job job-1: room again")]
