"""The coordinator's API: training jobs, artifacts, served models.

Calls carry a deadline, `predict` if one is given. While the coordinator is unavailable, calls that only read or that
carry an idempotency key (all but `generate`) are retried for 10 seconds. Errors are those of espalier.errors, in the
coordinator's words.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from espalier import errors, transfer
from espalier.counts import unix_ms_of
from espalier.generation import GenerationMethods
from espalier.history import HistoryMethods
from espalier.job import AsyncJob, Job, download, download_weights
from espalier.listing import ArtifactInfo, JobInfo, Listing, ServedInfo, page_requests, states_of
from espalier.notes import warn
from espalier.plan import Plan
from espalier.prediction import PredictionMethods
from espalier.replay import AsyncReplay, Replay, ReplayMethods
from espalier.replays import ReplayCalls
from espalier.rpc import AsyncConnection, Connection, Settings, idempotency_key, make_settings, method
from espalier.runs import RunDiff, RunInfo, RunValue, run_diff
from espalier.serving import serve_request
from espalier.steps import Asynchronous, Blocking, Send, Step, Steps, Unary, Work, drive, operation
from espalier.transfer import PathLike, Progress
from espalier.v1 import cluster_pb2, inference_pb2, models_pb2, plan_pb2, recording_pb2, training_pb2

if TYPE_CHECKING:
    import numpy as np

    from espalier.graph import Graph

J = TypeVar("J")
R = TypeVar("R", bound=ReplayMethods)


class _Replace(NamedTuple):
    """What an upload does with an artifact of its name."""

    replace: bool
    force: bool  # even if recorded runs need it


_KEEP = _Replace(replace=False, force=False)


class ClientMethods(GenerationMethods, HistoryMethods, PredictionMethods, ReplayCalls[R], Generic[J, R]):
    """What Client and AsyncClient have in common; `J` is their class of jobs, `R` that of replays."""

    _connection: Any
    _settings: Settings
    _make_job: Callable[[str, Graph | None, tuple[str, ...]], J]

    @property
    def address(self) -> str:
        """HOST:PORT of the coordinator."""
        return self._settings.address

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}>"

    @operation
    def call(self, service: str, name: str, request: Any, *, timeout: float | None = None) -> Steps[Any]:
        """Any call that answers once (docs/reference/grpc-api.md): call("Planner", "Machines", MachinesRequest()).

        An empty idempotency_key of the request is filled in, in a copy. NotFound for an unknown service or call.
        """
        found = method(service, name)
        if not isinstance(request, found.request):
            wanted = found.request.DESCRIPTOR.full_name
            raise errors.InvalidArgument(f"{service}.{name} takes {wanted}, not {type(request).__name__}")
        if "idempotency_key" in request.DESCRIPTOR.fields_by_name and not request.idempotency_key:
            keyed = found.request()
            keyed.CopyFrom(request)
            keyed.idempotency_key = idempotency_key()
            request = keyed
        return (yield Unary(found, request, timeout))

    # Training.

    @operation
    def submit(
        self, spec: training_pb2.TrainingSpec, *, key: str | None = None, graph: Graph | None = None
    ) -> Steps[J]:
        """Queues a job, durably. Its notes are shown as warnings (EspalierWarning).

        A `key` makes the call idempotent across processes. `graph` adds the user's lines to errors that name a node.
        """
        job, notes = yield from self._submit(spec, key, graph)
        for note in notes:
            warn(note)
        return job

    def _submit(
        self, spec: training_pb2.TrainingSpec, key: str | None, graph: Graph | None
    ) -> Steps[tuple[J, tuple[str, ...]]]:
        request = training_pb2.SubmitRequest(spec=spec, idempotency_key=key or idempotency_key())
        try:
            reply = yield Unary(method("Training", "Submit"), request, self._settings.plan_timeout)
        except errors.EspalierError as error:
            raise _with_sources(error, graph) from None
        notes = tuple(reply.notes)
        return self._make_job(reply.job_id, graph, notes), notes

    @operation
    def dry_run(
        self, spec: training_pb2.TrainingSpec, *, graph: Graph | None = None
    ) -> Steps[training_pb2.DryRunReply]:
        """Checks and plans a job without queueing it: problems, memory, predicted time, what is trained."""
        request = training_pb2.DryRunRequest(spec=spec)
        reply: training_pb2.DryRunReply = yield Unary(
            method("Training", "DryRun"), request, self._settings.plan_timeout
        )
        if graph is not None:
            reply.problems[:] = [graph.with_sources(problem) for problem in reply.problems]
        return reply

    @operation
    def jobs(
        self,
        *,
        state: str | Sequence[str] | None = None,
        name: str = "",
        model: str = "",
        owner: str = "",
        since: datetime | timedelta | None = None,
        until: datetime | timedelta | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Steps[Listing[JobInfo[J]]]:
        """Jobs, also finished ones, as they are now: a list that prints a table. `job` of each is as of `job`.

        state: "queued", "planning", "running", "recovering", "succeeded", "failed" or "cancelled", or several. name: of
        the job, or its id. model: that it makes or starts from. In both "*" stands for any characters. owner: for
        admins. since, until: when it was submitted; a timedelta is before now. limit: at most so many, the first in
        this order: that of submission, or the newest first.
        """
        request = training_pb2.ListJobsRequest(
            states=states_of(state), name=name, model=model, owner=owner, newest_first=newest_first
        )
        if since is not None:
            request.submitted_from_unix_ms = unix_ms_of("since", since)
        if until is not None:
            request.submitted_before_unix_ms = unix_ms_of("until", until)
        records: list[training_pb2.Job] = []
        for pages in page_requests(request, limit):
            reply = yield Unary(method("Training", "List"), pages.request)
            records.extend(reply.jobs)
            pages.take(reply.next_page_token, len(records))
        return Listing(JobInfo, (JobInfo(record, self._make_job(record.id, None, ())) for record in records))

    @operation
    def job(self, job_id: str) -> Steps[J]:
        """A job. NotFound if there is none of this id."""
        yield Unary(method("Training", "Get"), training_pb2.GetJobRequest(job_id=job_id))
        return self._make_job(job_id, None, ())

    @operation
    def runs(self, run: str = "", *, limit: int | None = None) -> Steps[Listing[RunInfo[J]]]:
        """Runs of experiments, which are jobs by name and version: a list that prints a table.

        run: "NAME": all versions; "NAME@V": one; "*" in NAME stands for any characters; empty: all. limit: at most so
        many, the first ones by experiment and version. NotFound if a name or version is not there.
        """
        records: list[recording_pb2.Recording] = []
        for pages in page_requests(recording_pb2.ListRunsRequest(run=run), limit):
            reply = yield Unary(method("Recordings", "List"), pages.request)
            records.extend(reply.runs)
            pages.take(reply.next_page_token, len(records))
        return Listing(RunInfo, map(self._run_info, records))

    @operation
    def run(self, run: str) -> Steps[RunInfo[J]]:
        """A run with its attempts and checkpoints: "NAME@V", "NAME" (the newest version), or a job's id."""
        reply = yield Unary(method("Recordings", "Get"), recording_pb2.GetRunRequest(run=run))
        return self._run_info(reply.run)

    @operation
    def run_values(self, run: str, pattern: str = "") -> Steps[Listing[RunValue]]:
        """What a replay can log of a run: a list that prints a table. `log` of each is its name as probes write it.

        pattern: of names, in which "*" stands for any characters; of one kind only as probes are written: "param(*)",
        "grad(*)", "state(*, adam_m)". Empty: all. NotFound if nothing matches.
        """
        request = recording_pb2.ListRunValuesRequest(run=run, pattern=pattern)
        reply = yield Unary(method("Recordings", "ListValues"), request, self._settings.plan_timeout)
        for note in reply.notes:
            warn(note)
        return Listing(RunValue, map(RunValue, reply.values))

    @operation
    def diff_runs(self, a: str, b: str) -> Steps[RunDiff]:
        """How two runs, named as for `run`, differ: in what was asked for, data, plan, workers and losses."""
        return run_diff((yield Unary(method("Recordings", "Diff"), recording_pb2.DiffRunsRequest(a=a, b=b))))

    def _run_info(self, record: recording_pb2.Recording) -> RunInfo[J]:
        return RunInfo(record, self._make_job(record.job.id, None, ()))

    @operation
    def make_plan(self, request: plan_pb2.PlanRequest, *, graph: Graph | None = None) -> Steps[Plan]:
        """Searches a plan for a graph on the workers that have joined, or on devices that need not exist."""
        explain = plan_pb2.ExplainRequest(plan=request)
        try:
            reply = yield Unary(method("Planner", "Explain"), explain, self._settings.plan_timeout)
        except errors.EspalierError as error:
            raise _with_sources(error, graph) from None
        return Plan(reply.plan, reply.text, 0.0, tuple(reply.notes))

    # Artifacts.

    @operation
    def artifacts(
        self,
        *,
        kind: str | None = None,
        name: str = "",
        owner: str = "",
        since: datetime | timedelta | None = None,
        until: datetime | timedelta | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Steps[Listing[ArtifactInfo]]:
        """Datasets, ONNX files and models: a list that prints a table.

        kind: "dataset", "onnx" or "model". The other arguments as of `jobs`; the order is that of names, or the newest
        first.
        """
        request = models_pb2.ListArtifactsRequest(name=name, owner=owner, newest_first=newest_first)
        if kind is not None:
            request.kinds.append(transfer.kind_number(kind))  # type: ignore[arg-type]
        if since is not None:
            request.created_from_unix_ms = unix_ms_of("since", since)
        if until is not None:
            request.created_before_unix_ms = unix_ms_of("until", until)
        return Listing(ArtifactInfo, map(ArtifactInfo, (yield from _artifacts(request, limit)).artifacts))

    @operation
    def upload(
        self,
        files: PathLike | Sequence[PathLike] | Mapping[str, Any],
        kind: str | None = None,
        name: str | None = None,
        *,
        replace: bool = False,
        force: bool = False,
        progress: Progress | None = None,
    ) -> Steps[str]:
        """Uploads a file, a folder, several files, or arrays by name (a dataset); returns the artifact's name.

        Without `name`, an artifact of this kind and content is found again, and nothing is sent. Kinds are "onnx" (an
        .onnx file, or a folder that holds one; the files beside it that hold its weights are taken along), "model" (a
        folder or .gguf file) and "dataset" (others); None: by `files`. AlreadyExists if `name` is taken, unless
        `replace`. FailedPrecondition if what would be replaced is needed as for `delete`; by recorded runs, unless
        `force` or the content is the same. InvalidArgument for files that cannot be read, or are no ONNX model.
        """
        how = _Replace(replace, force)
        if isinstance(files, Mapping):
            from espalier.data import temporary_npz

            kind = kind or "dataset"
            with temporary_npz(files) as path:
                return (yield from self._upload({"data.npz": path}, "arrays", kind, name, how, progress))
        kind = kind or transfer.kind_of(files)
        found = yield Work(functools.partial(transfer.local_files, files, kind))
        first = files if isinstance(files, (str, os.PathLike)) else next(iter(found.values()))
        return (yield from self._upload(found, transfer.stem(first), kind, name, how, progress))

    def _upload(
        self,
        files: Mapping[str, Path],
        stem: str,
        kind: str,
        name: str | None,
        replace: _Replace = _KEEP,
        progress: Progress | None = None,
    ) -> Steps[str]:
        number = transfer.kind_number(kind)
        if name is not None:
            return (yield from self._send(files, name, number, replace, progress))
        sums = yield Work(lambda: {file: transfer.sha256_of(path) for file, path in files.items()})
        content = transfer.content_sha256(sums)
        known = yield from _artifacts(models_pb2.ListArtifactsRequest(), None)
        if found := _uploaded(known, number, content):
            return found
        name = f"{stem}-{transfer.name_digest(known.upload_salt, content)}"
        try:
            return (yield from self._send(files, name, number, _KEEP, progress))
        except errors.AlreadyExists:
            # Another client of this owner has uploaded it meanwhile, or the name is taken by chance.
            known = yield from _artifacts(models_pb2.ListArtifactsRequest(), None)
            if found := _uploaded(known, number, content):
                return found
            return (yield from self._send(files, f"{name}-{idempotency_key()[:8]}", number, _KEEP, progress))

    def _send(
        self, files: Mapping[str, Path], name: str, kind: int, replace: _Replace, progress: Progress | None
    ) -> Steps[str]:
        header = models_pb2.UploadHeader(
            name=name,
            kind=kind,  # type: ignore[arg-type]
            idempotency_key=idempotency_key(),
            replace=replace.replace,
            force=replace.force,
            files=len(files),
        )
        messages = functools.partial(transfer.upload_messages, header, files, progress)
        timeout = transfer.upload_timeout(files, self._settings.call_timeout)
        reply = yield Send(method("Models", "Upload"), messages, timeout)
        return str(reply.artifact.name)

    @operation
    def download(self, name: str, folder: PathLike, *, progress: Progress | None = None) -> Steps[ArtifactInfo]:
        """Writes an artifact's files to a folder, which it makes. DataLoss if the content's hash is wrong."""
        return ArtifactInfo((yield from download(name, Path(folder), progress)))

    @operation
    def weights(self, name: str) -> Steps[dict[str, np.ndarray[Any, Any]]]:
        """The tensors of a model artifact by name."""
        return (yield from download_weights(name))

    @operation
    def delete(self, name: str, *, force: bool = False) -> Steps[None]:
        """Deletes an artifact. FailedPrecondition if a job that is not over or a served model needs it.

        Also if recorded runs need it to be replayed, unless `force`: they cannot be replayed then.
        """
        request = models_pb2.DeleteArtifactRequest(name=name, force=force, idempotency_key=idempotency_key())
        yield Unary(method("Models", "Delete"), request)

    # Cluster.

    @operation
    def status(self) -> Steps[cluster_pb2.ClusterStatusReply]:
        """Version, workers, numbers of jobs, served models, addresses."""
        reply: cluster_pb2.ClusterStatusReply = yield Unary(
            method("Cluster", "Status"), cluster_pb2.ClusterStatusRequest()
        )
        return reply

    # Serving.

    @operation
    def serve(
        self,
        /,
        artifact: str,
        *,
        name: str | None = None,
        max_batch_size: int | None = None,
        max_queue_delay_ms: float | None = None,
        **options: Any,
    ) -> Steps[ServedInfo]:
        """Serves a model artifact, as TrainingResult.model: a language model, or a graph that `predict` asks.

        name: by which requests name it; None: the artifact's. Of a graph: max_batch_size, examples of a pass (32);
        max_queue_delay_ms, how long a request waits for others that fill its pass (0); max_queue, waiting requests
        (256). Of a language model `options` are fields of ServeModelRequest (docs/reference/grpc-api.md), as
        ssm_artifacts, weights, kv_cache. It is served until `unserve`, also after restarts of the coordinator.

        NotFound for an unknown artifact; AlreadyExists if the name is taken; InvalidArgument for what cannot be served,
        or an option of the other kind of model; ResourceExhausted if it does not fit into the memory.
        """
        request = serve_request(artifact, name, max_batch_size, max_queue_delay_ms, options)
        reply: inference_pb2.ServeModelReply = yield Unary(
            method("Inference", "Serve"), request, self._settings.serve_timeout
        )
        return ServedInfo(reply.model)

    @operation
    def unserve(self, name: str) -> Steps[None]:
        """Ends the serving of a model."""
        request = inference_pb2.UnserveModelRequest(name=name, idempotency_key=idempotency_key())
        yield Unary(method("Inference", "Unserve"), request)

    @operation
    def served(self) -> Steps[Listing[ServedInfo]]:
        """All served models: a list that prints a table."""
        reply = yield Unary(method("Inference", "ListServed"), inference_pb2.ListServedRequest())
        return Listing(ServedInfo, map(ServedInfo, reply.models))


def _artifacts(
    request: models_pb2.ListArtifactsRequest, limit: int | None
) -> Generator[Step, Any, models_pb2.ListArtifactsReply]:
    """The pages of a list, in one reply."""
    known = models_pb2.ListArtifactsReply()
    for pages in page_requests(request, limit):
        reply = yield Unary(method("Models", "List"), pages.request)
        known.MergeFrom(reply)
        pages.take(reply.next_page_token, len(known.artifacts))
    return known


def _uploaded(known: models_pb2.ListArtifactsReply, kind: int, content: str) -> str:
    """The artifact with this content that is the caller's owner's or nobody's; empty if there is none.

    An admin's list has what belongs to others, too, who may delete it.
    """
    for artifact in known.artifacts:
        usable = artifact.owner in ("", known.owner)
        if usable and artifact.kind == kind and artifact.sha256 == content and "temporary" not in artifact.metadata:
            return str(artifact.name)
    return ""


def _with_sources(error: errors.EspalierError, graph: Graph | None) -> errors.EspalierError:
    """The error with the user's line, if it names a node of the graph."""
    return error if graph is None else type(error)(graph.with_sources(str(error)))


class Client(ClientMethods[Job, Replay], Blocking):
    """A client of one coordinator. Thread-safe; usable in a child made by fork. Connects at the first call.

    Without arguments it finds coordinator, key and TLS as the command line does: ESPALIER_COORDINATOR, else the
    coordinator of `espalier up` or `espalier login`, with its key and CA, else 127.0.0.1:7070; ESPALIER_TOKEN_FILE,
    ESPALIER_TOKEN, ESPALIER_CA_FILE, ESPALIER_CERT_FILE, ESPALIER_KEY_FILE. `ca_file` (PEM) implies TLS; tls=True
    trusts the usual authorities.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        tls: bool | None = None,
        ca_file: PathLike | None = None,
        cert_file: PathLike | None = None,
        key_file: PathLike | None = None,
    ):
        self._settings = make_settings(
            address, token=token, tls=tls, ca_file=ca_file, cert_file=cert_file, key_file=key_file
        )
        self._connection = Connection(self._settings)
        self._make_job = functools.partial(Job, self._connection)
        self._make_replay = functools.partial(Replay, self._connection)

    def _submit_quietly(self, spec: training_pb2.TrainingSpec, key: str, graph: Graph | None) -> Job:
        """As submit, for those who show the notes themselves."""
        return drive(self._connection, self._submit(spec, key, graph))[0]

    def _upload_file(self, path: Path, stem: str) -> str:
        """Uploads a dataset of one file, unless it is there."""
        return drive(self._connection, self._upload({path.name: path}, stem, "dataset", None))

    def close(self) -> None:
        """Closes the connection; a later call opens another."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(ClientMethods[AsyncJob, AsyncReplay], Asynchronous):
    """As Client, for asyncio: its methods are coroutines, its streams asynchronous iterators."""

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        tls: bool | None = None,
        ca_file: PathLike | None = None,
        cert_file: PathLike | None = None,
        key_file: PathLike | None = None,
    ):
        self._settings = make_settings(
            address, token=token, tls=tls, ca_file=ca_file, cert_file=cert_file, key_file=key_file
        )
        self._connection = AsyncConnection(self._settings)
        self._make_job = functools.partial(AsyncJob, self._connection)
        self._make_replay = functools.partial(AsyncReplay, self._connection)

    def _blocking(self) -> Client:
        """A client with the same settings."""
        made = Client(self.address)
        made._settings = self._settings
        made._connection = Connection(self._settings)
        made._make_job = functools.partial(Job, made._connection)
        made._make_replay = functools.partial(Replay, made._connection)
        return made

    async def close(self) -> None:
        """Closes the connection; a later call opens another."""
        await self._connection.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


_lock = threading.Lock()
_defaults: list[Client] = []  # those of espalier.local(), the innermost last


def default_client() -> Client:
    """The client that `fit` uses without client=: that of the innermost espalier.local(), else Client()."""
    with _lock:
        if not _defaults:
            _defaults.append(Client())
        return _defaults[-1]


def set_default_client(client: Client | None) -> None:
    """Makes a client the default; None: the next default_client() makes one from the environment."""
    with _lock:
        _defaults.clear()
        if client is not None:
            _defaults.append(client)


def push_default_client(client: Client) -> None:
    """Makes a client the default until it is removed."""
    with _lock:
        _defaults.append(client)


def remove_default_client(client: Client) -> None:
    """Undoes push_default_client."""
    with _lock:
        if client in _defaults:
            _defaults.remove(client)
