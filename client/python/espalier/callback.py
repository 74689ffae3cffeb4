"""Base of callbacks with Keras' hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from espalier import training
from espalier.training import Run, TrainingResult

Logs = dict[str, float]

# What is reported besides losses and metrics.
_NOT_LOGGED = ("gradient_norm", "learning_rate")


def shared_logs(run: Run, values: Mapping[str, float]) -> Logs:
    """The logs of a step or epoch with these values: one dict for all callbacks, which may add to it, as in Keras."""
    if run.logs is None or run.logs[0] is not values:
        run.logs = (values, {name: values[name] for name in sorted(values) if name not in _NOT_LOGGED})
    return run.logs[1]


class Callback(training.Callback):
    """Base of callbacks with Keras' hooks.

    `logs` of a batch are the values of that step, those of an epoch the means of its steps. `self.model` is the model
    that is trained, `self.run` the running job or session (espalier.training.Run), `self.params` has epochs and steps.
    To end the training, set self.model.stop_training, as in Keras, or call self.run.stop(reason); a job is cancelled.

    A class that reads or sets weights or the learning rate says `needs_session = True`: a job does not wait for it.
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
        """When the training has ended; `logs` are those of the last epoch, with the evaluation as val_..."""

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

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """Before `evaluate`."""

    def on_test_end(self, logs: Logs | None = None) -> None:
        """After `evaluate`, with what it returns."""

    def on_test_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Before a batch of `evaluate`, from 0."""

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """After a batch of `evaluate`, with the means until then."""

    def on_predict_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Before `predict`."""

    def on_predict_end(self, logs: dict[str, Any] | None = None) -> None:
        """After `predict`."""

    def on_predict_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Before a batch of `predict`, from 0."""

    def on_predict_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """After a batch of `predict`: `logs["outputs"]`."""

    # What a training does, as hooks.

    def on_begin(self, run: Run) -> None:
        """As espalier.training.Callback."""
        self.run = run
        self._last: Logs = {}
        if not hasattr(self, "params"):
            self.set_params({"epochs": run.epochs, "steps": run.steps_per_epoch or None, "verbose": 0})
        self.on_train_begin({})

    def before_step(self, run: Run, step: int) -> None:
        """As espalier.training.Callback."""
        per_epoch = run.steps_per_epoch
        self._before(*(divmod(step, per_epoch) if per_epoch else (0, step)))
        self._stop(run)

    def _before(self, epoch: int, batch: int) -> None:
        if batch == 0:
            self.on_epoch_begin(epoch, {})
        self.on_train_batch_begin(batch, {})

    def on_step(self, run: Run, step: int, values: Mapping[str, float]) -> None:
        """As espalier.training.Callback."""
        logs = shared_logs(run, values)
        per_epoch = run.steps_per_epoch
        epoch, batch = divmod(step, per_epoch) if per_epoch else (0, step)
        if run.session is None:
            self._before(epoch, batch)
        self._last = logs
        self.on_train_batch_end(batch, logs)
        self._stop(run)

    def on_epoch(self, run: Run, epoch: int, values: Mapping[str, float]) -> None:
        """As espalier.training.Callback."""
        self._last = shared_logs(run, values)
        self.on_epoch_end(epoch, self._last)
        self._stop(run)

    def _stop(self, run: Run) -> None:
        if getattr(self.model, "stop_training", False):
            run.stop(f"{type(self).__name__} set stop_training")

    def on_end(self, run: Run, result: TrainingResult) -> None:
        """As espalier.training.Callback."""
        held = {f"val_{name}": value for name, value in result.evaluation.items()}
        self.on_train_end({**held, **self._last})


__all__ = ["Callback", "Logs"]
