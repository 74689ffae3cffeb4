"""What a model's callbacks see and change while `fit` runs: the weights and the learning rate.

In a session they are the session's. A job does not wait for callbacks: there both are refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from espalier.errors import EspalierError, FailedPrecondition
from espalier.keras.heads import LossGraph
from espalier.keras.live_weights import LiveWeights
from espalier.keras.optimizers import LearningRateSchedule
from espalier.notes import warn
from espalier.session_state import SessionState
from espalier.training import Callback, Run, TrainingResult

if TYPE_CHECKING:
    from espalier.keras.training import Trainer


class NeedsSession(FailedPrecondition):
    """A callback wanted of a job what only a session can do."""


class Directing:
    """`first` and `last` stand around the callbacks of a fit."""

    def __init__(self, model: Trainer, built: LossGraph):
        self.model, self.built = model, built
        self.run: Run | None = None
        self.weights: LiveWeights | None = None
        self.state: SessionState | None = None  # of the optimizer, at the end of a session
        self.first: Callback = _First(self)
        self.last: Callback = _Last(self)
        self.in_session = False
        self.took_weights = False  # of a job
        self.plan: Any = None  # gives the plan
        self._rate: Any = None

    @property
    def _variables(self) -> Mapping[str, Any]:
        return self.built.lowering.variables

    def begin(self, run: Run) -> None:
        """The training begins."""
        model = self.model
        self.run, self._rate = run, model.optimizer.learning_rate
        self.in_session = run.session is not None
        model._point_out_metrics("fit")
        if run.session is None:
            job = run.job
            self.plan = lambda: job.plan
        else:
            plan = run.plan
            self.plan = lambda: plan
        goes_on = run.session is not None and model._state is not None
        if model._trained_before and not goes_on and model._has_moments():
            warn(
                f"{model.name} is trained again: its weights go on, the moments of the optimizer begin anew. Trainings "
                "with execution='session', one after the other, keep them",
            )
        if run.session is None:
            why = NeedsSession(
                f"{model.name}: a job trains it by itself, and its weights are not here until it ends. Callbacks that "
                "read or set them, or that evaluate or predict, have needs_session = True; or call "
                "fit(execution='session')"
            )
            for variable in self._variables.values():
                variable.locked = why
            return
        self.weights = LiveWeights(run.session, self._variables, sent=True)
        run.rate_observer = self._rate_is
        model._live = self

    def _rate_is(self, rate: float) -> None:
        self._rate = self.model.optimizer.learning_rate = rate

    def moved(self) -> None:
        """A step has changed the parameters."""
        if self.weights is not None:
            self.weights.moved()

    def push(self) -> None:
        """Sends what callbacks have set."""
        rate = self.model.optimizer.learning_rate
        if rate is not self._rate and rate != self._rate:
            assert self.run is not None
            if self.run.session is None:
                raise NeedsSession(
                    f"{self.model.name}: a callback has set the learning rate, but a job trains by itself. Its class "
                    "has needs_session = True; or call fit(execution='session')"
                )
            if isinstance(rate, LearningRateSchedule):
                raise FailedPrecondition("the learning rate of a running training is a number, not a schedule")
            self.run.set_learning_rate(rate)
        if self.weights is not None:
            self.weights.push()

    def initial_state(self) -> SessionState | None:
        """The optimizer of an earlier session, for the weights that are trained now."""
        state = self.model._state
        if state is None:
            return None
        trained = {name for name, variable in self._variables.items() if variable.trainable}
        return replace(state, optimizer={n: a for n, a in state.optimizer.items() if n.rsplit(".", 1)[0] in trained})

    def ended(self, run: Run, result: TrainingResult) -> None:
        """The last callbacks get the trained weights."""
        if self.weights is not None:
            self.weights.moved(result.weights())
            return
        for variable in self._variables.values():
            variable.locked = None
        self.took_weights = result.has_weights
        self.model._take(self.built.lowering, result)

    def keep(self) -> None:
        """Before the session ends."""
        if self.weights is not None and self.run is not None and self.run.session is not None:
            self.weights.detach()
            with contextlib.suppress(EspalierError):  # lost: the weights say so
                self.state = self.run.session.state()

    def state_after(self, before: SessionState | None) -> SessionState | None:
        """The optimizer's state for the weights that the model has now; `before`: as the training found it."""
        if self.weights is not None:
            return self.state
        return None if self.took_weights else before  # a fit that was refused has changed nothing

    def end(self, refused: bool = False) -> None:
        """The training has ended, in any way. `refused`: by NeedsSession, so that nobody waits for the job."""
        for variable in self._variables.values():
            variable.locked = None
        self.model._live = None
        if refused and self.run is not None and self.run.session is None:
            with contextlib.suppress(EspalierError):
                self.run.job.cancel()


class _First(Callback):
    def __init__(self, directing: Directing):
        self._directing = directing

    def initial_state(self) -> SessionState | None:
        return self._directing.initial_state()

    def on_begin(self, run: Run) -> None:
        self._directing.begin(run)

    def on_step(self, run: Run, step: int, values: Mapping[str, float]) -> None:
        self._directing.moved()

    def on_end(self, run: Run, result: TrainingResult) -> None:
        self._directing.ended(run, result)

    def on_failure(self, run: Run) -> None:
        self._directing.keep()


class _Last(Callback):
    def __init__(self, directing: Directing):
        self._directing = directing

    def on_begin(self, run: Run) -> None:
        self._directing.push()

    def before_step(self, run: Run, step: int) -> None:
        self._directing.push()

    def on_step(self, run: Run, step: int, values: Mapping[str, float]) -> None:
        self._directing.push()

    def on_epoch(self, run: Run, epoch: int, values: Mapping[str, float]) -> None:
        self._directing.push()

    def on_end(self, run: Run, result: TrainingResult) -> None:
        if run.session is not None:
            self._directing.push()
            self._directing.keep()


__all__ = ["Directing", "NeedsSession"]
