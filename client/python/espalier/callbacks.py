"""Callbacks of training, with Keras' hooks, for every front end.

    model.fit(x, y, epochs=3, callbacks=[CSVLogger("log.csv"), TerminateOnNaN()])
    espalier.fit(graph, data, ..., callbacks=[TensorBoard("logs")])

A job does not wait for callbacks: they are told what it reports. LMS, EarlyStopping and LearningRateScheduler are
written into the job before it begins. What decides later, such as ReduceLROnPlateau, ModelCheckpoint and classes with
`needs_session`, makes fit train in a session, as fit(execution="session") does: there `self.run` sets the learning rate
and reads the parameters.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from espalier import training
from espalier.callback import Callback, Logs
from espalier.errors import EspalierError, InvalidArgument
from espalier.job_callbacks import LMS, EarlyStopping, LearningRateScheduler
from espalier.session_callbacks import ModelCheckpoint, ReduceLROnPlateau
from espalier.v1 import training_pb2


def prepared(
    callbacks: Sequence[Any],
    model: Any,
    epochs: int,
    steps_per_epoch: int | None = None,
    counted_steps: int = 0,
) -> list[training.Callback]:
    """Callbacks of a fit, told about the model. InvalidArgument for what is no callback here.

    `steps_per_epoch`: of a training with a number of steps instead of epochs. `counted_steps`: those that an epoch has;
    0: not known.
    """
    found: list[training.Callback] = []
    for callback in callbacks:
        if not isinstance(callback, training.Callback):
            kind = type(callback)
            hint = ""
            if kind.__module__.startswith(("keras.", "tensorflow.", "tf_keras.")):
                hint = f"; import {kind.__name__} from espalier.keras.callbacks"
            raise InvalidArgument(f"{kind.__module__}.{kind.__name__} is no espalier.callbacks.Callback{hint}")
        if isinstance(callback, LearningRateScheduler):
            callback.steps_per_epoch = counted_steps
        if isinstance(callback, Callback):
            callback.set_params({"epochs": epochs, "steps": steps_per_epoch, "verbose": 0})
            callback.set_model(model)
        found.append(callback)
    return found


class History(Callback):
    """The means of each epoch: `history["loss"]`; `epoch` has their numbers. `fit` returns one."""

    def __init__(self) -> None:
        self.history: dict[str, list[float]] = {}
        self.epoch: list[int] = []
        self._rows: dict[str, list[int]] = {}  # the epochs of each name's values

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Keeps the epoch's values."""
        if epoch in self.epoch:  # repeated after a lost worker
            self.epoch = [before for before in self.epoch if before < epoch]
            for name, rows in self._rows.items():
                kept = sum(row < epoch for row in rows)
                del rows[kept:], self.history[name][kept:]
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)
            self._rows.setdefault(name, []).append(epoch)

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Keeps the evaluation, if no epoch was validated."""
        for name, value in (logs or {}).items():
            if name.startswith("val_") and name not in self.history:
                self.history[name], self._rows[name] = [value], self.epoch[-1:]

    def dataframe(self) -> Any:
        """The values as a pandas DataFrame, a row for each epoch; of epochs that were not validated, NaN."""
        import pandas

        columns = {name: pandas.Series(self.history[name], index=rows) for name, rows in self._rows.items() if rows}
        return pandas.DataFrame(columns, index=pandas.Index(self.epoch, name="epoch"))

    def __repr__(self) -> str:
        last = ", ".join(f"{name} {values[-1]:.4g}" for name, values in self.history.items() if values)
        return f"<History of {len(self.epoch)} epochs: {last}>"


class LambdaCallback(Callback):
    """Functions as hooks: LambdaCallback(on_epoch_end=lambda epoch, logs: print(logs))."""

    def __init__(
        self,
        on_epoch_begin: Callable[..., Any] | None = None,
        on_epoch_end: Callable[..., Any] | None = None,
        on_train_begin: Callable[..., Any] | None = None,
        on_train_end: Callable[..., Any] | None = None,
        on_train_batch_begin: Callable[..., Any] | None = None,
        on_train_batch_end: Callable[..., Any] | None = None,
        on_batch_begin: Callable[..., Any] | None = None,
        on_batch_end: Callable[..., Any] | None = None,
    ):
        given = {
            "on_epoch_begin": on_epoch_begin,
            "on_epoch_end": on_epoch_end,
            "on_train_begin": on_train_begin,
            "on_train_end": on_train_end,
            "on_train_batch_begin": on_train_batch_begin or on_batch_begin,
            "on_train_batch_end": on_train_batch_end or on_batch_end,
        }
        for name, function in given.items():
            if function is not None:
                setattr(self, name, function)


class TerminateOnNaN(Callback):
    """Ends the training when the loss is infinite. At a NaN a job fails by itself, and says where it arose."""

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Looks at the loss."""
        loss = (logs or {}).get("loss", 0.0)
        if not math.isfinite(loss) and self.run is not None:
            self.run.stop(f"the loss of batch {batch} is {loss}")


class CSVLogger(Callback):
    """One line for each epoch: its number and its values."""

    def __init__(self, filename: str | os.PathLike[str], separator: str = ",", append: bool = False):
        self.filename, self.separator, self.append = os.fspath(filename), separator, append
        self._rows: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._old = ""

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Begins the file; OSError if it cannot be written."""
        self._rows, self._names, self._old = [], [], ""
        if self.append and os.path.exists(self.filename):
            with open(self.filename, newline="", encoding="utf-8") as file:
                self._old = file.read()
            lines = self._old.splitlines()
            self._names = lines[0].split(self.separator) if lines else []
        with open(self.filename, "a" if self.append else "w", encoding="utf-8"):
            pass

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Writes the line."""
        self._rows = [row for row in self._rows if row["epoch"] < epoch]
        self._rows.append({"epoch": epoch, **(logs or {})})
        self._write()

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Adds the evaluation to the last line, if no epoch was validated."""
        held = {name: value for name, value in (logs or {}).items() if name.startswith("val_")}
        if self._rows and held and not any(name in row for row in self._rows for name in held):
            self._rows[-1].update(held)
            self._write()

    def _write(self) -> None:
        names = self._names or ["epoch", *sorted({name for row in self._rows for name in row} - {"epoch"})]
        with open(self.filename, "w", newline="", encoding="utf-8") as file:
            file.write(self._old)
            writer = csv.DictWriter(file, names, delimiter=self.separator, extrasaction="ignore", restval="NA")
            if not self._old:
                writer.writeheader()
            writer.writerows(self._rows)


class ProgressBar(Callback):
    """FlexFlow's and Keras' ProgbarLogger: a job shows its progress by itself, with fit(verbose=1)."""

    def __init__(self, count_mode: str = "steps", stateful_metrics: Any = None):
        if count_mode not in ("steps", "samples"):
            raise InvalidArgument(f"count_mode={count_mode!r}; accepted are steps, samples")


ProgbarLogger = BaseLogger = ProgressBar


class TensorBoard(Callback):
    """Event files for TensorBoard: the values of epochs, and with update_freq="batch" or a number also of steps.

    As Keras' own: log_dir/train has "epoch_loss", log_dir/validation the same name for "val_loss", and
    "evaluation_loss_vs_iterations" of an evaluation.

    Needs the package tensorboard: pip install 'espalier[tensorboard]'.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] = "logs",
        histogram_freq: int = 0,
        write_graph: bool = False,
        write_images: bool = False,
        write_steps_per_second: bool = False,
        update_freq: str | int = "epoch",
        profile_batch: Any = 0,
        embeddings_freq: int = 0,
        embeddings_metadata: Any = None,
    ):
        for name, value in (
            ("histogram_freq", histogram_freq),
            ("write_images", write_images),
            ("profile_batch", profile_batch),
            ("embeddings_freq", embeddings_freq),
        ):
            if value:
                raise InvalidArgument(f"TensorBoard: {name}={value!r} is not supported; losses and metrics are written")
        self.log_dir = os.fspath(log_dir)
        self._every = 1 if update_freq == "batch" else update_freq if isinstance(update_freq, int) else 0
        self._writers: dict[str, Any] = {}
        self._step = 0
        self._validated = self._training = False

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Opens the file; ImportError with the remedy without the package."""
        self._step, self._validated, self._training = 0, False, True
        self._open("train")

    def _open(self, folder: str) -> Any:
        if folder not in self._writers:
            try:
                from tensorboard.summary.writer.event_file_writer import EventFileWriter
            except ImportError:
                raise ImportError(
                    "TensorBoard needs the package tensorboard: pip install 'espalier[tensorboard]'"
                ) from None
            self._writers[folder] = EventFileWriter(os.path.join(self.log_dir, folder))
        return self._writers[folder]

    def _close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _write(self, folder: str, tag: str, logs: Mapping[str, float], step: int) -> None:
        # `tag` has {} for the name of a value.
        if not logs:
            return
        import time

        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag.format(name), simple_value=value) for name, value in logs.items()]
        self._open(folder).add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Writes the step's values, if they are wanted."""
        if self._every and self._step % self._every == 0:
            self._write("train", "batch_{}", logs or {}, self._step)
        self._step += 1

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Writes the epoch's values."""
        held = _held_out(logs)
        self._validated |= bool(held)
        self._write("train", "epoch_{}", {k: v for k, v in (logs or {}).items() if not k.startswith("val_")}, epoch)
        self._write("validation", "epoch_{}", held, epoch)
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Writes the evaluation, if no epoch was validated, and closes the files."""
        if not self._validated:
            self._write("validation", "evaluation_{}_vs_iterations", _held_out(logs), self._step)
        self._training = False
        self._close()

    def on_test_end(self, logs: Logs | None = None) -> None:
        """Writes what `evaluate` returns."""
        updates = getattr(getattr(self.model, "optimizer", None), "iterations", self._step)
        self._write("validation", "evaluation_{}_vs_iterations", logs or {}, int(updates))
        if not self._training:
            self._close()


class MLflow(Callback):
    """Values, job and options to the running experiment of MLflow, or to a new run of it.

    Needs the package mlflow or mlflow-skinny. `every_steps` also logs every so many steps; 0: epochs only.
    """

    def __init__(self, run_name: str | None = None, every_steps: int = 0, tags: Mapping[str, str] | None = None):
        self._run_name, self._every, self._tags = run_name, int(every_steps), dict(tags or {})
        self._spec: training_pb2.TrainingSpec | None = None
        self._ours = False
        self._step = 0

    def configure(self, spec: training_pb2.TrainingSpec) -> None:
        """Remembers the options."""
        self._spec = spec

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Begins a run, unless one is active; ImportError with the remedy without the package."""
        try:
            import mlflow
        except ImportError:
            raise ImportError("MLflow needs the package mlflow or mlflow-skinny") from None
        self._step = 0
        self._ours = mlflow.active_run() is None
        if self._ours:
            mlflow.start_run(run_name=self._run_name, tags=self._tags)
        elif self._tags:
            mlflow.set_tags(self._tags)
        if self._spec is not None:
            optimizer = self._spec.optimizer
            mlflow.log_params(
                {
                    "batch_size": self._spec.batch_size,
                    "epochs": self._spec.epochs,
                    "optimizer": optimizer.name,
                    "learning_rate": optimizer.learning_rate.peak,
                    "seed": self._spec.seed,
                }
            )
        if self.run is not None:
            mlflow.set_tag("espalier.job", self.run.id)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Logs the step's values, if they are wanted."""
        import mlflow

        if self._every and self._step % self._every == 0:
            mlflow.log_metrics({f"batch_{name}": value for name, value in (logs or {}).items()}, step=self._step)
        self._step += 1

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Logs the epoch's values."""
        import mlflow

        mlflow.log_metrics(dict(logs or {}), step=epoch)

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Logs the evaluation, and ends the run if it began here."""
        import mlflow

        held = {name: value for name, value in (logs or {}).items() if name.startswith("val_")}
        if held:
            mlflow.log_metrics(held)
        if self._ours:
            mlflow.end_run()


def _held_out(logs: Logs | None) -> Logs:
    return {name[4:]: value for name, value in (logs or {}).items() if name.startswith("val_")}


class VerificationFailed(EspalierError, AssertionError):
    """A model did not reach the accuracy that VerifyMetrics wants."""


def _fraction(accuracy: Any) -> float:
    # FlexFlow's accuracies are percents, in enums.
    value = float(getattr(accuracy, "value", accuracy))
    return value / 100 if value > 1 else value


class VerifyMetrics(Callback):
    """FlexFlow's: VerificationFailed unless the last epoch's accuracy reaches `accuracy`, in percent (90) or as 0.9."""

    def __init__(self, accuracy: Any):
        self.accuracy = _fraction(accuracy)

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Compares."""
        _verify(self.accuracy, logs or {})


class EpochVerifyMetrics(Callback):
    """FlexFlow's: ends the training after the epoch whose accuracy reaches `accuracy`, in percent (90) or as 0.9.

    VerificationFailed if none does. With early_stop=False all epochs run.
    """

    def __init__(self, accuracy: Any, early_stop: bool = True):
        self.accuracy, self.early_stop = _fraction(accuracy), early_stop
        self._best: Logs = {}

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Forgets an earlier training."""
        self._best = {}

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Compares the epoch."""
        have = _accuracy(logs or {})
        if not self._best or have > _accuracy(self._best):
            self._best = dict(logs or {})
        if self.early_stop and have >= self.accuracy and self.run is not None and epoch + 1 < self.run.epochs:
            self.run.stop(f"epoch {epoch + 1} reached an accuracy of {have:.4f}")

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Compares the best epoch."""
        _verify(self.accuracy, self._best)


def _accuracy(logs: Mapping[str, float]) -> float:
    found = [value for name, value in logs.items() if name.endswith("accuracy") and not name.startswith("val_")]
    if not found:
        raise InvalidArgument("VerifyMetrics: the model reports no accuracy; compile it with metrics=['accuracy']")
    return found[0]


def _verify(wanted: float, logs: Mapping[str, float]) -> None:
    have = _accuracy(logs)
    if have < wanted:
        raise VerificationFailed(f"the accuracy is {have:.4f}, {wanted:.4f} was wanted")


__all__ = [
    "LMS",
    "BaseLogger",
    "CSVLogger",
    "Callback",
    "EarlyStopping",
    "EpochVerifyMetrics",
    "History",
    "LambdaCallback",
    "LearningRateScheduler",
    "MLflow",
    "ModelCheckpoint",
    "ProgbarLogger",
    "ProgressBar",
    "ReduceLROnPlateau",
    "TensorBoard",
    "TerminateOnNaN",
    "VerificationFailed",
    "VerifyMetrics",
    "prepared",
]
