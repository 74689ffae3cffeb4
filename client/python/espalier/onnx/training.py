"""fit of ONNX models: as `espalier train --onnx=FILE`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from espalier import data as datasets
from espalier import errors, kept_sessions, streaming
from espalier.client import Client, default_client
from espalier.graph import Graph
from espalier.interrupt import submit_or_cancel
from espalier.job import History
from espalier.npz import temporary_folder
from espalier.onnx.files import prepared, save_in_one_file, source_of
from espalier.onnx.objective import DEFAULT_LOSS, ClassWeights, Losses, Metrics, make_objective
from espalier.onnx.streams import stream_of
from espalier.optimizers import Optimizer
from espalier.progress import Printer
from espalier.spelling import checked
from espalier.training import Callback, TrainingResult, follow, make_spec, needs_session
from espalier.v1 import program_pb2, training_pb2

_OF_DATA = ("validation_split", "columns", "shuffle")


class OnnxResult(TrainingResult):
    """What came out of a training; the trained model can be written as a file."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the trained model: to an ONNX file, or, if `path` has no suffix, all its files to a folder.

        Above 2 GB a file has its weights beside it. FailedPrecondition if there is no model, as the job was stopped,
        or if ONNX lacks one of its operators: the folder then has the weights as model.safetensors.
        """
        if not self.model:
            raise errors.FailedPrecondition("the job was stopped before its end, so there is no trained model")
        client, to = self._client, Path(path)
        if not to.suffix:
            client.download(self.model, to)
            return to
        with temporary_folder() as folder:
            client.download(self.model, folder)
            made = folder / "model.onnx"
            if not made.is_file():
                raise errors.FailedPrecondition(
                    f"model {self.model} has no ONNX file: ONNX has no counterpart for one of its operators; save it "
                    "to a folder, which has the weights as model.safetensors"
                )
            to.parent.mkdir(parents=True, exist_ok=True)
            save_in_one_file(made, to)
        return to

    _client: Client


def _patterns(given: str | Sequence[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


@contextlib.contextmanager
def _specified(
    model: Any, data: Any, client: Client, given: Mapping[str, Any]
) -> Iterator[tuple[training_pb2.TrainingSpec, Callable[[], None]]]:
    """The specification of a job without its files, and what uploads them into it."""
    spec = _without_files(given)
    split, columns, shuffle = (given[name] for name in _OF_DATA)
    if not 0 <= split < 1:
        raise errors.InvalidArgument(f"validation_split is {split}; accepted: 0 or more, less than 1")
    most = spec.batch_size * spec.steps if spec.steps else None
    with source_of(model) as source, prepared(data, source, columns, most) as found:

        def upload() -> None:
            spec.onnx_artifact = source.upload(client)
            uri = found.uri
            if found.path is not None:
                uri = "artifact:" + client._upload_file(found.path, found.stem)
            spec.dataset.CopyFrom(datasets.dataset_message(found, uri, split, shuffle))

        yield spec, upload


def _without_files(given: Mapping[str, Any]) -> training_pb2.TrainingSpec:
    options = {name: value for name, value in given.items() if name not in _OF_DATA}
    objective = make_objective(options.pop("loss"), options.pop("metrics"), options.pop("class_weight"))
    freeze, train_only = _patterns(options.pop("freeze")), _patterns(options.pop("train_only"))
    # make_spec checks what all jobs have in common, and wants the loss that the coordinator adds to this model.
    graph = Graph("onnx")
    graph.proto.outputs.add(name="loss")
    spec = make_spec(graph, **options)
    spec.objective.CopyFrom(objective)
    spec.freeze.extend(freeze)
    spec.train_only.extend(train_only)
    return spec


@checked
def fit(
    model: Any,
    data: Any,
    *,
    optimizer: str | Optimizer | program_pb2.Optimizer,
    batch_size: int,
    loss: Losses = DEFAULT_LOSS,
    class_weight: ClassWeights | None = None,
    metrics: Metrics | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    validation_split: float = 0.0,
    shuffle: bool = True,
    freeze: str | Sequence[str] = (),
    train_only: str | Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    seed: int = 0,
    name: str = "",
    client: Client | None = None,
    search: Mapping[str, object] | None = None,
    precision: str | None = None,
    checkpoint_every: int = 0,
    record: str | Mapping[str, object] | None = None,
    priority: int = 0,
    time_limit: float | timedelta | None = None,
    callbacks: Sequence[Callback] = (),
    verbose: int = 1,
    extra: Callable[[training_pb2.TrainingSpec], None] | None = None,
    stream: bool = False,
) -> OnnxResult:
    """Trains an ONNX model and waits for the result.

    model: the path of an ONNX file, with its weights inside or beside it, or of a folder that holds one;
    "artifact:NAME" for one that was uploaded or trained; or an onnx.ModelProto. data: (x, labels) in the order of the
    model's inputs, a dict of arrays by input, with "labels" (for a loss on another output "labels.OUTPUT", if there is
    one), an .npz file, the name of an artifact, or an iterable of these as batches or examples; `columns` says which
    column an input reads, as {"labels": "y"}. loss, metrics: names of operators, Loss, Metric, or lists of these; a
    softmax or sigmoid that ends the model is not applied twice. class_weight: of the only loss, as of Loss. freeze:
    patterns of names that are not trained. train_only: train nothing else; "*" stands for any characters. stream: push
    arrays or an iterable while the job trains; an .npz file or an artifact is refused. The other arguments, and errors,
    as espalier.fit, by a job: callbacks that direct the training are refused.
    """
    given = {
        "optimizer": optimizer,
        "batch_size": batch_size,
        "loss": loss,
        "class_weight": class_weight,
        "metrics": metrics,
        "epochs": epochs,
        "steps": steps,
        "validation_split": validation_split,
        "shuffle": shuffle,
        "freeze": freeze,
        "train_only": train_only,
        "columns": columns,
        "seed": seed,
        "name": name,
        "search": search,
        "precision": precision,
        "checkpoint_every": checkpoint_every,
        "record": record,
        "priority": priority,
        "time_limit": time_limit,
    }
    client = client or default_client()
    printer = Printer(verbose)

    def configure(spec: training_pb2.TrainingSpec) -> None:
        for callback in callbacks:
            callback.configure(spec)
        if extra is not None:
            extra(spec)

    def begin(spec: training_pb2.TrainingSpec) -> None:
        decisive = needs_session(spec, callbacks, 0, False, False, "job")
        if decisive:
            raise errors.InvalidArgument(f"{decisive}; an ONNX file trains by a job, whose callbacks only look on")
        kept_sessions.release(client)

    if stream:
        with source_of(model) as source:
            spec = _without_files(given)
            begin(spec)
            data, inputs, types = stream_of(data, source, columns)
            spec.onnx_artifact = source.upload(client)
        result = streaming.train(
            None,
            data,
            spec,
            client=client,
            columns=columns,
            validation_split=validation_split,
            epochs=0 if steps is not None else int(spec.epochs),
            configure=configure,
            follow=lambda job, per_epoch: follow(client, job, spec, per_epoch, callbacks, printer),
            inputs=inputs,
            types=types,
        )
    else:
        with _specified(model, data, client, given) as (spec, upload):
            begin(spec)
            upload()
            configure(spec)
            job = submit_or_cancel(client, spec, None)
        result = follow(client, job, spec, 0, callbacks, printer)
    history = History(result.history)
    made = OnnxResult(history, result.evaluation, model=result.model, notes=result.notes, job=result.job)
    made._client = client
    return made


def dry_run(
    model: Any,
    data: Any,
    *,
    optimizer: str | Optimizer | program_pb2.Optimizer = "adam",
    batch_size: int = 16,
    loss: Losses = DEFAULT_LOSS,
    class_weight: ClassWeights | None = None,
    metrics: Metrics | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    validation_split: float = 0.0,
    shuffle: bool = True,
    freeze: str | Sequence[str] = (),
    train_only: str | Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    seed: int = 0,
    name: str = "",
    client: Client | None = None,
    search: Mapping[str, object] | None = None,
    precision: str | None = None,
) -> training_pb2.DryRunReply:
    """Checks and plans what fit would train, with the same arguments, without queueing it.

    The reply has problems, all unsupported operators with their numbers, the memory and time that are predicted, and
    of every tensor whether it is trained, and why (docs/reference/grpc-api.md, DryRunReply).
    """
    given = {
        "optimizer": optimizer,
        "batch_size": batch_size,
        "loss": loss,
        "class_weight": class_weight,
        "metrics": metrics,
        "epochs": epochs,
        "steps": steps,
        "validation_split": validation_split,
        "shuffle": shuffle,
        "freeze": freeze,
        "train_only": train_only,
        "columns": columns,
        "seed": seed,
        "name": name,
        "search": search,
        "precision": precision,
    }
    client = client or default_client()
    with _specified(model, data, client, given) as (spec, upload):
        upload()
        return client.dry_run(spec)
