"""What Client lists, as tables."""

import copy
import math
import pickle
import time
from datetime import datetime, timedelta, timezone

import pytest

from espalier.counts import seconds_of, unix_ms_of
from espalier.errors import InvalidArgument
from espalier.listing import ArtifactInfo, JobInfo, Listing, ServedInfo, page_requests, states_of
from espalier.record_options import record_options
from espalier.replays import _estimate_of as estimate_of
from espalier.runs import RunInfo, run_diff
from espalier.v1 import inference_pb2, models_pb2, recording_pb2, replay_pb2, training_pb2


def test_a_listing_is_a_table():
    record = training_pb2.Job(id="job-1", state=training_pb2.RUNNING, steps_done=30, total_steps=120)
    record.spec.name = "a <b>\x1b[31m"
    assert JobInfo(record, None).progress == 0.25
    failed = training_pb2.Job(id="job-12", state=training_pb2.FAILED, error="no room\n" * 20)
    jobs = Listing(JobInfo, [JobInfo(record, None), JobInfo(failed, None)])
    head, first, second = str(jobs).splitlines()
    assert head.split() == ["job", "name", "state", "progress", "created", "error"]  # no model, no owner
    assert first.split()[:6] == ["job-1", "a", "<b>", "[31m", "running", "30/120"]
    assert second.index("failed") == first.index("running") == head.index("state")
    assert second.endswith("...")
    assert "<td style='text-align:left'>a &lt;b&gt; [31m</td>" in jobs._repr_html_()
    assert repr(jobs[1]).startswith("<JobInfo job-12 failed ")
    assert pickle.loads(pickle.dumps(jobs)) == copy.deepcopy(jobs) == jobs
    frame = jobs.dataframe()
    assert list(frame["state"]) == ["running", "failed"]
    assert list(frame["progress"]) == [0.25, 0]

    artifact = models_pb2.Artifact(name="data", kind=models_pb2.Artifact.DATASET, bytes=1536, files=["a", "b"])
    artifacts = str(Listing(ArtifactInfo, [ArtifactInfo(artifact)])).splitlines()
    assert artifacts[1].split()[:5] == ["data", "dataset", "1.5", "KiB", "2"]
    model = inference_pb2.ServedModel(name="lm", state="ready", parameters=12345, max_sequence_length=64)
    served = str(Listing(ServedInfo, [ServedInfo(model)])).splitlines()
    assert served[1].split()[:6] == ["lm", "ready", "12,345", "64", "the", "coordinator"]
    assert repr(Listing(JobInfo, [])) == "no jobs"


def test_runs_are_a_table():
    record = recording_pb2.Recording(experiment="lm", version=3)
    record.job.MergeFrom(training_pb2.Job(id="job-7", state=training_pb2.SUCCEEDED, steps_done=60, total_steps=60))
    record.job.recorded_checkpoints, record.job.recorded_bytes = 4, 6 << 20
    record.all_checkpoints, record.copied_checkpoints, record.copied_bytes = 7, 5, 8 << 20
    record.losses.MergeFrom(recording_pb2.LossSummary(first=4, last=1.5, best=1.25, best_step=40))
    off = recording_pb2.Recording(experiment="lm", version=4)
    off.job.spec.record.mode = training_pb2.RecordOptions.OFF
    runs = Listing(RunInfo, [RunInfo(record, None), RunInfo(off, None)])
    head, first, second = str(runs).splitlines()
    assert head.split()[:4] == ["run", "job", "state", "steps"]
    wanted = ["lm@3", "job-7", "succeeded", "60/60", "4", "1.5", "1.25", "7", "6", "MiB"]
    assert first.split() == [*wanted, "5,", "8", "MiB", "uncompressed"]
    assert second.split()[:2] == ["lm@4", "job_state_unspecified"]
    assert second.split()[-1] == "off"
    assert (runs[0].best_step, runs[1].best_loss, runs[1].recorded) == (40, None, False)
    assert list(runs.dataframe()["name"]) == ["lm@3", "lm@4"]

    reply = recording_pb2.DiffRunsReply(first_different_step=-1, common_steps=60)
    assert repr(runs[0]).startswith(
        "<RunInfo run: lm@3, job: job-7, state: succeeded, steps: 60/60, first loss: 4, last: 1.5,"
    )
    assert repr(run_diff(reply)).splitlines() == [
        "they do not differ",
        "the losses of 60 steps are the same to the bit",
    ]
    assert run_diff(reply).first_different_step is None
    reply.differences.add(field="spec.seed", a="0", b="7")
    reply.first_different_step = 0
    diff = pickle.loads(pickle.dumps(run_diff(reply)))
    assert str(diff).splitlines()[1].split() == ["spec.seed", "0", "7"]
    assert str(diff).splitlines()[-1] == "their losses differ from step 0 on, of 60 that both have"
    assert (diff.first_different_step, diff.common_steps, diff[0].field) == (0, 60, "spec.seed")


def test_an_estimate_says_what_is_copied_back_from_a_spool():
    found = replay_pb2.ReplayEstimate(steps=10)
    assert "back from" not in repr(estimate_of(found))
    found.fetched.add(spool="s3://bucket/runs", checkpoints=2, bytes=3 << 20)
    assert estimate_of(found).fetched == {"s3://bucket/runs": (2, 3 << 20)}
    assert repr(estimate_of(found)).endswith("; copies 2 checkpoints, 3 MiB, back from s3://bucket/runs>")


def test_a_recording_is_asked_for_by_mode_or_by_fields():
    made = record_options("every:50")
    assert (made.mode, made.every_steps) == (training_pb2.RecordOptions.EVERY, 50)
    assert record_options({"every_steps": 50}) == made
    assert record_options(None) is None
    assert record_options("off").mode == training_pb2.RecordOptions.OFF
    made = record_options({"overhead": 0.02, "max_bytes": 1 << 40, "keep": 3})
    assert (made.mode, made.overhead, made.max_bytes, made.keep) == (0, 0.02, 1 << 40, 3)


def asked(request, limit, there):
    """The sizes of the pages that are asked for of a list of `there` items, and how many items come."""
    sizes, items = [], 0
    for pages in page_requests(request, limit):
        assert pages.request.page_token == (str(items) if sizes else "")
        sizes.append(pages.request.page_size)
        items += min(pages.request.page_size or 1000, there - items)
        pages.take(str(items) if items < there else "", items)
    return sizes, items


def test_pages_are_asked_for_until_there_is_enough():
    assert asked(training_pb2.ListJobsRequest(), None, 2500) == ([0, 0, 0], 2500)
    assert asked(training_pb2.ListJobsRequest(), 1200, 2500) == ([1000, 200], 1200)
    assert asked(training_pb2.ListJobsRequest(), 50, 20) == ([50], 20)
    assert asked(training_pb2.ListJobsRequest(), 1000, 1000) == ([1000], 1000)
    assert asked(training_pb2.ListJobsRequest(), 0, 20) == ([], 0)
    with pytest.raises(InvalidArgument, match="limit is -1"):
        asked(training_pb2.ListJobsRequest(), -1, 20)


def test_states_are_named():
    assert states_of(None) == []
    assert states_of("running") == [training_pb2.RUNNING]
    assert states_of(["queued", "failed"]) == [training_pb2.QUEUED, training_pb2.FAILED]
    with pytest.raises(InvalidArgument, match="did you mean 'running'"):
        states_of("runing")


def test_times_are_dates_or_before_now():
    assert unix_ms_of("since", datetime(1970, 1, 2, tzinfo=timezone.utc)) == 86_400_000
    assert abs(unix_ms_of("since", timedelta(hours=1)) / 1000 + 3600 - time.time()) < 60
    with pytest.raises(InvalidArgument, match="since is 'yesterday'"):
        unix_ms_of("since", "yesterday")
    assert seconds_of("time_limit", timedelta(minutes=2)) == seconds_of("time_limit", 120) == 120.0
    for bad in (-1, math.nan, True, "2h", math.inf):
        with pytest.raises(InvalidArgument, match="time_limit is"):
            seconds_of("time_limit", bad)
