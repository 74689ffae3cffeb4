"""Priorities, time limits, deletion and lists of jobs, with a daemon."""

import asyncio
from datetime import datetime, timedelta

import pytest
import small

import espalier
from espalier import errors
from espalier.aio import AsyncClient
from espalier.training_spec import make_spec

ENDLESS = 10_000_000


def spec_on(client, name, **arguments):
    spec = make_spec(small.graph(), optimizer="sgd", batch_size=32, name=name, **arguments)
    spec.dataset.uri, spec.dataset.format = f"artifact:{client.upload(small.examples())}", 1
    return spec


def ids(listing):
    return [info.id for info in listing]


def test_a_time_limit_keeps_what_was_trained(daemon):
    job = daemon.submit(spec_on(daemon, "limited", steps=ENDLESS, time_limit=timedelta(seconds=2)))
    with pytest.raises(espalier.JobFailed, match="time limit: the job has had workers for"):
        job.wait(timeout=60)
    trained = job.record.checkpoint_step
    assert trained > 0
    assert job.record.running_seconds >= 2
    job.resume()
    with pytest.raises(espalier.JobFailed, match="time limit"):
        job.wait(timeout=60)
    assert job.record.checkpoint_step > trained
    job.delete()
    with pytest.raises(errors.NotFound):
        daemon.job(job.id)


def test_queued_jobs_start_by_priority_and_are_listed(daemon):
    holder = daemon.submit(spec_on(daemon, "queue-holder", steps=ENDLESS))
    try:
        later = daemon.submit(spec_on(daemon, "queue-later", epochs=1))
        sooner = daemon.submit(spec_on(daemon, "queue-sooner", epochs=1, priority=5))
        assert sooner.record.queue_position == 1
        assert later.record.queue_position == 2
        assert later.update(priority=6, time_limit=3600) == "queued"
        assert later.record.queue_position == 1
        assert later.record.time_limit_seconds == 3600
        with pytest.raises(errors.InvalidArgument, match="priority is 1001"):
            later.update(priority=1001)
        with pytest.raises(errors.FailedPrecondition, match="espalier jobs cancel"):
            holder.delete()

        assert ids(daemon.jobs(state="queued", name="queue-*")) == [later.id, sooner.id]
        assert ids(daemon.jobs(state="queued", name="queue-*", newest_first=True, limit=1)) == [sooner.id]
        assert ids(daemon.jobs(name=later.id)) == [later.id]
        assert ids(daemon.jobs(model="queue-l*", since=timedelta(hours=1))) == [later.id]
        assert ids(daemon.jobs(name="queue-*", until=timedelta(hours=1))) == []
        assert ids(daemon.jobs(name="queue-*", since=datetime.now() + timedelta(hours=1))) == []
        assert len(daemon.jobs(limit=0)) == 0

        async def listed():
            async with AsyncClient(daemon.address) as client:
                return ids(await client.jobs(state=["queued", "failed"], name="queue-*", limit=2))

        assert asyncio.run(listed()) == [later.id, sooner.id]
    finally:
        holder.cancel()
    for job in (later, sooner):
        job.wait(timeout=60)
    assert later.record.started_unix_ms <= sooner.record.started_unix_ms
    for job in (holder, later, sooner):
        job.delete()
    assert ids(daemon.jobs(name="queue-*")) == []
    # Their models stay.
    assert [info.name for info in daemon.artifacts(name="queue-*", kind="model")] == ["queue-later", "queue-sooner"]
    assert [info.name for info in daemon.artifacts(name="queue-*", newest_first=True, limit=1)] == ["queue-sooner"]


def test_a_session_has_no_place_in_the_queue(daemon):
    data = small.examples()
    for arguments in ({"priority": 3}, {"time_limit": 60}, {"record": "off"}):
        with pytest.raises(errors.InvalidArgument, match="only a job"):
            espalier.fit(
                small.graph(), data, optimizer="sgd", batch_size=32, client=daemon, execution="session", **arguments
            )
