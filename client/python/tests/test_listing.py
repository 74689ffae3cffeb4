"""What Client lists, as tables."""

import copy
import pickle

from espalier.listing import ArtifactInfo, JobInfo, Listing, ServedInfo
from espalier.v1 import inference_pb2, models_pb2, training_pb2


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
