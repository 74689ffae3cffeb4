"""Base of callbacks with Keras' hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from espalier import training
from espalier.training import Run, TrainingResult

Logs = dict[str, float]

# What is reported besides losses and metrics.
_NOT_LOGGED = ("gradient_norm", "learning_rate")


class Callback(training.Callback):
    """Base of callbacks with Keras' hooks.

    `logs` of a batch are the values of that step, those of an epoch the means of its steps. `self.model` is the model
    that is trained, `self.run` the running job (espalier.training.Run), `self.params` has epochs and steps. To end the
    training, set self.model.stop_training, as in Keras, or call self.run.stop(reason); a job is cancelled.
    """

    model: Any = None
    run: Run | None = None
    params: dict[str, Any]

    def set_params(self, params: dict[str, Any]) -> None:
        """Before the training: "epochs" and "steps"."""
        self.params = params

    def set_model(self, model: Any) -> None:
        """Before the training."""
        self.model = model

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """When the job is queued."""

    def on_train_end(self, logs: Logs | None = None) -> None:
        """When the job has ended; `logs` are those of the last epoch, and the evaluation as val_..."""

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Before an epoch, from 0."""

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """After an epoch."""

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Before a step, from 0 in each epoch."""
        self.on_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """After a step."""
        self.on_batch_end(batch, logs)

    def on_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Old name of on_train_batch_begin."""

    def on_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Old name of on_train_batch_end."""

    # What a training does, as hooks.

    def on_begin(self, run: Run) -> None:
        """As espalier.training.Callback."""
        self.run = run
        self._last: Logs = {}
        if not hasattr(self, "params"):
            self.set_params({"epochs": run.epochs, "steps": run.steps_per_epoch or None, "verbose": 0})
        self.on_train_begin({})

    def on_step(self, run: Run, step: int, values: Mapping[str, float]) -> None:
        """As espalier.training.Callback."""
        logs = {name: value for name, value in values.items() if name not in _NOT_LOGGED}
        per_epoch = run.steps_per_epoch
        epoch, batch = divmod(step, per_epoch) if per_epoch else (0, step)
        if batch == 0:
            self.on_epoch_begin(epoch, {})
        self.on_train_batch_begin(batch, {})
        self._last = logs
        self.on_train_batch_end(batch, dict(logs))
        self._stop(run)

    def on_epoch(self, run: Run, epoch: int, values: Mapping[str, float]) -> None:
        """As espalier.training.Callback."""
        self._last = {name: value for name, value in values.items() if name not in _NOT_LOGGED}
        self.on_epoch_end(epoch, dict(self._last))
        self._stop(run)

    def _stop(self, run: Run) -> None:
        if getattr(self.model, "stop_training", False):
            run.stop(f"{type(self).__name__} set stop_training")

    def on_end(self, run: Run, result: TrainingResult) -> None:
        """As espalier.training.Callback."""
        held = {f"val_{name}": value for name, value in result.evaluation.items()}
        self.on_train_end({**self._last, **held})


__all__ = ["Callback", "Logs"]
