"""Callbacks that direct a training, so that it runs in a session."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from espalier.callback import Callback, Logs
from espalier.errors import InvalidArgument
from espalier.v1 import training_pb2


class _Monitor:
    """Says whether a value is better than the best before."""

    def __init__(self, who: str, monitor: str, mode: str, min_delta: float = 0.0):
        if mode not in ("auto", "min", "max"):
            raise InvalidArgument(f"{who}: mode={mode!r}; accepted are auto, min, max")
        self.who, self.name = who, monitor
        grow = ("acc", "auc", "precision", "recall")
        larger = mode == "max" or (mode == "auto" and any(part in monitor.lower() for part in grow))
        self._sign, self._delta = (1.0 if larger else -1.0), float(min_delta)
        self.best = -math.inf  # times the sign

    def value(self, logs: Logs) -> float:
        """The value that is watched. InvalidArgument if it is not reported."""
        if self.name not in logs:
            remedy = "; give fit validation examples" if self.name.startswith("val_") else ""
            raise InvalidArgument(
                f"{self.who}: monitor={self.name!r} is not reported, only {', '.join(sorted(logs))}{remedy}"
            )
        return logs[self.name]

    def improved(self, value: float) -> bool:
        """Takes a value."""
        if self._sign * value > self.best + self._delta:
            self.best = self._sign * value
            return True
        return False


class ReduceLROnPlateau(Callback):
    """Keras': the learning rate times `factor` after `patience` epochs in which `monitor` did not improve."""

    needs_session = True

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        verbose: int = 0,
        mode: str = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ):
        if not 0 < factor < 1:
            raise InvalidArgument(f"ReduceLROnPlateau: factor={factor}; accepted: above 0, below 1")
        self.monitor, self.factor, self.patience = monitor, float(factor), int(patience)
        self.verbose, self.mode, self.min_delta = int(verbose), mode, float(min_delta)
        self.cooldown, self.min_lr = int(cooldown), float(min_lr)

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Forgets an earlier training."""
        self._watched = _Monitor("ReduceLROnPlateau", self.monitor, self.mode, self.min_delta)
        self._waited = self._cooling = 0

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Compares, and sets the rate."""
        value = self._watched.value(logs or {})
        if logs is not None and self.run is not None:
            logs["learning_rate"] = self.run.learning_rate
        if self._cooling:
            self._cooling -= 1
            self._waited = 0
        if self._watched.improved(value):
            self._waited = 0
        elif not self._cooling:
            self._waited += 1
            if self._waited >= self.patience:
                self._reduce(epoch)

    def _reduce(self, epoch: int) -> None:
        assert self.run is not None
        rate = self.run.learning_rate
        if rate <= self.min_lr:
            return
        new = max(rate * self.factor, self.min_lr)
        self.run.set_learning_rate(new)
        self._cooling, self._waited = self.cooldown, 0
        if self.verbose:
            print(f"Epoch {epoch + 1}: ReduceLROnPlateau reducing learning rate to {new:g}.")


class ModelCheckpoint(Callback):
    """Keras': writes the model after every epoch, or after every `save_freq` batches.

    `filepath` may hold {epoch} and the names of values: "best-{epoch:02d}-{val_loss:.2f}.zip". A model of
    espalier.keras is written as its `save` or `save_weights` writes it, a torch module's state_dict by torch.save, the
    parameters of a graph as .npz or .safetensors. "artifact:NAME" registers a model at the coordinator instead.
    """

    needs_session = True

    def __init__(
        self,
        filepath: str | os.PathLike[str],
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        initial_value_threshold: float | None = None,
    ):
        if save_freq != "epoch" and (isinstance(save_freq, str) or int(save_freq) < 1):
            raise InvalidArgument(f"ModelCheckpoint: save_freq={save_freq!r}; accepted: 'epoch' or a number of batches")
        self.filepath, self.monitor, self.verbose = os.fspath(filepath), monitor, int(verbose)
        self.save_best_only, self.save_weights_only, self.mode = save_best_only, save_weights_only, mode
        self.save_freq, self.initial_value_threshold = save_freq, initial_value_threshold
        _Monitor("ModelCheckpoint", monitor, mode)

    def set_model(self, model: Any) -> None:
        """As Callback. InvalidArgument for a file that the model is not written to."""
        super().set_model(model)
        check = getattr(model, "_check_checkpoint", None)  # of espalier.keras and espalier.jax
        if check is not None and not self.filepath.startswith("artifact:"):
            check(self.filepath, self.save_weights_only)

    def configure_session(self, spec: training_pb2.TrainingSpec) -> None:
        """Checks the name of the file for a graph, as set_model for a model."""
        if self.model is None and not self.filepath.startswith("artifact:"):
            self._check_format(self.filepath)

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Forgets an earlier training."""
        self._watched = _Monitor("ModelCheckpoint", self.monitor, self.mode)
        if self.initial_value_threshold is not None:
            self._watched.improved(self.initial_value_threshold)
        self._epoch = self._batches = 0

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Remembers the epoch."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Writes after every so many batches."""
        self._batches += 1
        if self.save_freq != "epoch" and self._batches % int(self.save_freq) == 0:
            self._save(self._epoch, logs or {}, batch=batch + 1)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Writes after every epoch."""
        if self.save_freq == "epoch":
            self._save(epoch, logs or {})

    def _save(self, epoch: int, logs: Logs, **names: Any) -> None:
        if self.save_best_only:
            before, value = self._watched.best, self._watched.value(logs)
            if not self._watched.improved(value):
                return
            if self.verbose:
                old = f" from {abs(before):.5f}" if math.isfinite(before) else ""
                print(f"Epoch {epoch + 1}: {self.monitor} improved{old} to {value:.5f}")
        try:
            path = self.filepath.format(epoch=epoch + 1, **names, **logs)
        except KeyError as error:
            raise InvalidArgument(
                f"ModelCheckpoint: filepath names {error}; there are epoch, {', '.join(sorted(logs))}"
            ) from None
        if self.verbose:
            print(f"Epoch {epoch + 1}: saving model to {path}")
        self._write(path)

    def _write(self, path: str) -> None:
        assert self.run is not None
        if path.startswith("artifact:"):
            self.run.needs_session("ModelCheckpoint").save(path.removeprefix("artifact:"))
            return
        self.run.refresh_model()
        if hasattr(self.model, "save_weights"):
            (self.model.save_weights if self.save_weights_only else self.model.save)(path, overwrite=True)
            return
        if hasattr(self.model, "state_dict"):
            import torch

            torch.save(self.model.state_dict(), path)
            return
        self._check_format(path)
        parameters = self.run.parameters()
        if path.endswith(".safetensors"):
            from espalier.safetensors_io import save_file

            save_file(parameters, path)
        else:
            np.savez(path, **parameters)  # type: ignore[arg-type]

    @staticmethod
    def _check_format(path: str) -> None:
        if not path.endswith((".npz", ".safetensors")):
            raise InvalidArgument(
                f"ModelCheckpoint: {path}: the parameters of a graph go to .npz, .safetensors or artifact:NAME"
            )


__all__ = ["ModelCheckpoint", "ReduceLROnPlateau"]
