"""Ctrl-C while a job runs: nothing hangs, and the user decides what becomes of the job."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from espalier import errors
from espalier.job import Job, going_on
from espalier.rpc import idempotency_key

if TYPE_CHECKING:
    from espalier.client import Client
    from espalier.graph import Graph
    from espalier.v1 import training_pb2


def submit_or_cancel(client: Client, spec: training_pb2.TrainingSpec, graph: Graph | None) -> Job:
    """Queues a job without showing its notes. After a Ctrl-C meanwhile, none stays queued."""
    key = idempotency_key()
    try:
        return client._submit_quietly(spec, key, graph)
    except KeyboardInterrupt:
        # The coordinator may have queued it already: the same key gives that job, and it is cancelled.
        with contextlib.suppress(errors.EspalierError):
            client._submit_quietly(spec, key, graph).cancel()
        raise


def _has_terminal() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def _cancel(job: Job) -> None:
    try:
        job.cancel()
    except errors.FailedPrecondition:
        return  # it has just ended
    except (errors.EspalierError, KeyboardInterrupt) as error:
        print(
            f"job {job.id} could not be cancelled and may go on: {error or 'interrupted'}; later: espalier jobs cancel "
            f"{job.id}",
            file=sys.stderr,
        )
        return
    hint = ""
    with contextlib.suppress(errors.EspalierError, KeyboardInterrupt):
        hint = f"; {going_on(job.record)}"
    print(f"job {job.id} was cancelled{hint}", file=sys.stderr)


def ask(job: Job) -> bool:
    """After a Ctrl-C: whether to wait on. Asks in a terminal; elsewhere, and at a second Ctrl-C, cancels the job."""
    if not _has_terminal():
        _cancel(job)
        return False
    question = f"job {job.id} runs. [w]ait on, [c]ancel it, or [l]eave it running? "
    while True:
        try:
            print(question, end="", file=sys.stderr, flush=True)
            # Nothing, not even a line's end: the terminal has gone.
            answer = (sys.stdin.readline() or "c").strip().lower()[:1]
        except KeyboardInterrupt:
            answer = "c"
            print(file=sys.stderr)
        if answer == "w":
            return True
        if answer == "l":
            print(f"job {job.id} goes on; wait for it: client.job('{job.id}').wait()", file=sys.stderr)
            return False
        if answer == "c":
            _cancel(job)
            return False
