"""Callbacks that are written into a job before it begins: they decide in the daemon, not here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from espalier import training
from espalier.callback import shared_logs
from espalier.errors import FailedPrecondition, InvalidArgument
from espalier.training import Run
from espalier.v1 import program_pb2, training_pb2

_MODES = {
    "auto": training_pb2.EarlyStopping.AUTO,
    "min": training_pb2.EarlyStopping.MIN,
    "max": training_pb2.EarlyStopping.MAX,
}
_SLICE = re.compile(r"^(-?\d+)?(:(-?\d+)?){0,2}$")


class LMS(training.Callback):
    """TFLMS's callback: tensors leave the device and come back, so that a model larger than its memory trains.

    A step that fits the memory is left alone. What the planner then does is in docs/guide/memory.md; results have the
    same bits. Arguments are TFLMS's; -1 stands for a choice by simulation:

    swapout_threshold: a tensor stays if its next use is at most so many instructions away. swapin_ahead: a copy back
    begins so many instructions before the use. swapin_groupby: uses at most so many instructions apart share one copy
    back. sync_mode: computation waits for 0 nothing, 1 copies out, 2 copies in, 3 both. The least distance of the first
    three is 1; 0 counts as 1.

    serialization, serialization_by_size: operators of one level of the graph one after the other. That is so here in
    any case: a device runs its instructions in one order, and the planner counts memory so. They are checked, and
    change nothing. debug=True prints the plan with its swaps when the job begins; debug_level=2 also each tensor that
    was swapped or computed again.
    """

    def __init__(
        self,
        swapout_threshold: int = -1,
        swapin_ahead: int = -1,
        swapin_groupby: int = -1,
        sync_mode: int = 0,
        serialization: Sequence[int | str] = (),
        serialization_by_size: float = 0,
        debug: bool = False,
        debug_level: int = 1,
    ):
        for name, value in (
            ("swapout_threshold", swapout_threshold),
            ("swapin_ahead", swapin_ahead),
            ("swapin_groupby", swapin_groupby),
        ):
            if isinstance(value, bool) or int(value) != value or value < -1:
                raise InvalidArgument(f"LMS: {name}={value!r}; accepted: -1 (chosen), or an integer above")
        if sync_mode not in (0, 1, 2, 3):
            raise InvalidArgument(f"LMS: sync_mode={sync_mode!r}; accepted are 0, 1, 2 and 3")
        for level in serialization:
            if not (isinstance(level, int) or (isinstance(level, str) and level and _SLICE.match(level))):
                raise InvalidArgument(f"LMS: serialization holds {level!r}; accepted are integers and slices as '3:5'")
        if serialization_by_size < 0:
            raise InvalidArgument(f"LMS: serialization_by_size={serialization_by_size}; accepted: 0 or more GiB")
        if debug_level not in (1, 2):
            raise InvalidArgument(f"LMS: debug_level={debug_level!r}; accepted are 1 and 2")
        self.swapout_threshold = int(swapout_threshold)
        self.swapin_ahead, self.swapin_groupby = int(swapin_ahead), int(swapin_groupby)
        self.sync_mode = int(sync_mode)
        self.serialization, self.serialization_by_size = list(serialization), serialization_by_size
        self.debug, self.debug_level = bool(debug), debug_level
        self.batch_size: int | None = None  # TFLMS's: the job knows its batch
        self._shown = False

    def run(self, graph: Any = None, keras: bool = False) -> None:
        """TFLMS's way into sessions. InvalidArgument: here a job is told, by fit(callbacks=[LMS()])."""
        raise InvalidArgument(
            "LMS.run: there is no default graph to edit; give the object to fit: fit(..., callbacks=[lms])"
        )

    def configure(self, spec: training_pb2.TrainingSpec) -> None:
        """Sets the job's memory options."""
        self._shown = False
        memory = spec.search.memory
        for name in ("swapout_threshold", "swapin_ahead", "swapin_groupby"):
            value = getattr(self, name)
            setattr(memory, name, 0 if value < 0 else max(1, value))
        memory.sync_mode = self.sync_mode

    def on_step(self, run: Run, step: int, values: Mapping[str, float]) -> None:
        """Prints the plan once, with debug."""
        if not self.debug or self._shown:
            return
        self._shown = True
        try:
            plan = run.plan
        except FailedPrecondition:  # of a job that was planned anew
            return
        print(plan.text)
        if self.debug_level > 1:
            for device, part in enumerate(plan.proto.memory_plans):
                for eviction in part.evictions:
                    how = "computed again" if eviction.recompute else "swapped"
                    print(
                        f"device {device}: {eviction.tensor} ({eviction.bytes} bytes) {how} after {eviction.after}, "
                        f"back before {eviction.before}"
                    )


class LearningRateScheduler(training.Callback):
    """Keras': schedule(epoch, learning rate) gives the rate of each epoch, which the job follows.

    The function is asked for all epochs before a job begins. Rates that stay the same, or that change by one factor
    every so many epochs, become the job's schedule. For others fit trains in a session, in which the function is asked
    at each epoch's beginning, with the rate as it is then.
    """

    # Told by the front end; 0: not known.
    steps_per_epoch = 0

    def __init__(self, schedule: Callable[..., float], verbose: int = 0):
        self.schedule, self.verbose = schedule, verbose
        self._found: tuple[list[float], int, float] | None = None  # of the training that begins

    def _rate(self, epoch: int, rate: float) -> float:
        try:
            return float(self.schedule(epoch, rate))
        except TypeError:  # Keras 1's function of the epoch alone
            return float(self.schedule(epoch))

    def _check(self, spec: training_pb2.TrainingSpec) -> None:
        message = spec.optimizer.learning_rate
        if message.kind != program_pb2.LearningRateSchedule.CONSTANT or message.warmup_steps:
            raise InvalidArgument("LearningRateScheduler: the optimizer has a schedule already; give it a number")

    def _follow(self, spec: training_pb2.TrainingSpec) -> tuple[list[float], int, float]:
        # The rates of all epochs, and the (epochs, factor) of their changes. InvalidArgument if a job has no such ones.
        if not spec.epochs:
            raise InvalidArgument("the job has a number of steps; give epochs")
        rates, rate = [], spec.optimizer.learning_rate.peak
        for epoch in range(int(spec.epochs)):
            rate = self._rate(epoch, rate)
            rates.append(rate)
        found = _staircase(rates)
        if found is None:
            raise InvalidArgument(
                f"no schedule of the coordinator gives the rates {_shown(rates)}. It follows rates that stay, or "
                "change by one factor every so many epochs; by steps also those of espalier.keras.optimizers.schedules"
            )
        if found[1] != 1 and not self.steps_per_epoch:
            raise InvalidArgument("the number of examples is not known before training")
        return rates, *found

    def why_session(self, spec: training_pb2.TrainingSpec) -> str:
        """What a job cannot follow."""
        self._check(spec)
        self._found = None
        try:
            self._found = self._follow(spec)
        except InvalidArgument as error:
            return str(error)
        return ""

    def configure_session(self, spec: training_pb2.TrainingSpec) -> None:
        """Checks: the rates are set from epoch to epoch. InvalidArgument for an optimizer with a schedule."""
        self._check(spec)

    def before_step(self, run: Run, step: int) -> None:
        """Sets the rate of an epoch that begins."""
        if not run.steps_per_epoch:
            raise InvalidArgument("LearningRateScheduler: the training has a number of steps; give epochs")
        epoch, batch = divmod(step, run.steps_per_epoch)
        if batch == 0:
            run.set_learning_rate(self._rate(epoch, run.learning_rate))
            if self.verbose:
                print(f"Epoch {epoch + 1}: LearningRateScheduler setting learning rate to {run.learning_rate:g}.")

    def on_epoch(self, run: Run, epoch: int, values: Mapping[str, float]) -> None:
        """Adds the rate to the logs, as Keras does."""
        shared_logs(run, values)["learning_rate"] = run.learning_rate

    def configure(self, spec: training_pb2.TrainingSpec) -> None:
        """Writes the schedule into the job. InvalidArgument for one that it cannot follow exactly."""
        self._check(spec)
        try:
            rates, every, factor = self._found or self._follow(spec)
        except InvalidArgument as error:
            raise InvalidArgument(f"LearningRateScheduler: {error}; or train with execution='session'") from None
        self._found = None
        message = spec.optimizer.learning_rate
        message.peak = rates[0]
        if factor != 1:
            message.kind = program_pb2.LearningRateSchedule.STEP
            message.step_size, message.gamma = every * self.steps_per_epoch, factor
            message.floor = 0.0
        if self.verbose:
            print(f"learning rates of the epochs: {_shown(rates)}")


class EarlyStopping(training.Callback):
    """Keras': the training ends when validation stops improving. The coordinator watches a job, not this program.

    monitor: "val_loss", "val_accuracy", ...; for a value of the training itself, such as "loss", fit trains in a
    session. patience: validations (epochs, unless the job says otherwise) without improvement, at least 1; Keras' 0
    counts as 1. restore_best_weights: the model gets the weights of the best one, and the evaluation is theirs.
    start_from_epoch: what earlier epochs give is not looked at; fit then trains in a session.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0,
        patience: int = 0,
        verbose: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
        start_from_epoch: int = 0,
    ):
        # The coordinator compares validations, from the first one on.
        self._of_training = not monitor.startswith("val_")
        self.needs_session = self._of_training or start_from_epoch > 0
        if mode not in _MODES:
            raise InvalidArgument(f"EarlyStopping: mode={mode!r}; accepted are auto, min, max")
        if patience < 0 or min_delta < 0 or start_from_epoch < 0:
            raise InvalidArgument("EarlyStopping: patience, min_delta and start_from_epoch are at least 0")
        self.start_from_epoch = int(start_from_epoch)
        self.monitor, self.min_delta, self.patience = monitor, float(min_delta), max(1, int(patience))
        self.mode, self.baseline, self.restore_best_weights = mode, baseline, restore_best_weights

    def configure(self, spec: training_pb2.TrainingSpec) -> None:
        """Writes the rule into the job. InvalidArgument if nothing is validated."""
        if not spec.dataset.holdout_fraction and not spec.validation.HasField("dataset"):
            raise InvalidArgument("EarlyStopping: there are no validation examples; give validation_split")
        spec.validation.SetInParent()
        self._write(spec.early_stopping)

    def configure_session(self, spec: training_pb2.TrainingSpec) -> None:
        """As configure; the means of an epoch are always there."""
        if self._of_training:
            self._write(spec.early_stopping)
        else:
            self.configure(spec)

    def _write(self, rule: training_pb2.EarlyStopping) -> None:
        rule.monitor, rule.patience, rule.min_delta = self.monitor, self.patience, self.min_delta
        larger = self.mode == "auto" and self.monitor.endswith(
            ("auc", "precision", "recall")
        )  # accuracies are known to the coordinator
        rule.mode = _MODES["max" if larger else self.mode]
        rule.keep_best = self.restore_best_weights
        if self.baseline is not None:
            rule.baseline = self.baseline


def _shown(rates: Sequence[float]) -> str:
    text = ", ".join(f"{rate:g}" for rate in rates[:8])
    return f"{text}, ..." if len(rates) > 8 else text


def _staircase(rates: Sequence[float]) -> tuple[int, float] | None:
    """(epochs, factor) so that rate i is rates[0] * factor ** (i // epochs); None if there is none."""
    change = next((i for i, rate in enumerate(rates) if rate != rates[0]), None)
    if change is None:
        return 1, 1.0
    if rates[0] <= 0 or rates[change] <= 0:
        return None
    factor = rates[change] / rates[0]
    fits = all(abs(rate - rates[0] * factor ** (i // change)) <= 1e-9 * rates[0] for i, rate in enumerate(rates))
    return (change, factor) if fits else None
