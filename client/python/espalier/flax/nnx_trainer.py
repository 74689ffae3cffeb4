"""Trainer of flax.nnx models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from espalier import jax as front
from espalier.client import Client
from espalier.errors import InvalidArgument
from espalier.session import Session
from espalier.training import TrainingResult


class Trainer:
    """Trains an nnx model in place: its nnx.Param variables, and running statistics of batch normalization.

    loss_fn(model, *batch), of which the batch is a tuple, a dict or an array, gives the loss; with `has_aux`, (loss,
    aux). Dropout draws the daemon's numbers. The optimizer is one of optax or of espalier.optimizers.
    """

    def __init__(
        self,
        model: Any,
        loss_fn: Callable[..., Any],
        optimizer: Any,
        *,
        has_aux: bool = False,
        client: Client | None = None,
        unroll_limit: int = 20000,
    ):
        if not isinstance(model, nnx.Module):
            raise InvalidArgument(
                f"model is a {type(model).__name__}; accepted: an nnx.Module. Models of linen and haiku train by "
                "espalier.jax.Trainer"
            )
        self.model = model
        structure, params, state = nnx.split(model, nnx.Param, ...)
        stateful = bool(jax.tree_util.tree_leaves(state))

        def loss(params: Any, *rest: Any) -> Any:
            state_now, batch = (rest[0], rest[1:]) if stateful else (state, rest)
            merged = nnx.merge(structure, params, state_now, copy=True)
            result = loss_fn(merged, *batch)
            if not stateful:
                return result
            after = nnx.state(merged, nnx.Not(nnx.Param))
            return (result[0], (after, result[1])) if has_aux else (result, after)

        loss.__signature__ = _signature(loss_fn, stateful)  # type: ignore[attr-defined]
        loss.__name__ = getattr(loss_fn, "__name__", "loss")
        self._trainer = front.Trainer(
            loss,
            params,
            optimizer,
            state=state if stateful else None,
            has_aux=has_aux,
            client=client,
            unroll_limit=unroll_limit,
        )
        self._trainer._taken = self._update

    def fit(self, data: Any, batch_size: int, epochs: int | None = None, **arguments: Any) -> Any:
        """Trains the model, and returns it. Arguments and errors of espalier.jax.Trainer.fit."""
        self._split()
        self._trainer.fit(data, batch_size, epochs, **arguments)
        return self.model

    def evaluate(self, data: Any, batch_size: int = 32, **arguments: Any) -> dict[str, float]:
        """Loss and metrics of all examples. Arguments of espalier.jax.Trainer.evaluate."""
        self._split()
        return self._trainer.evaluate(data, batch_size, **arguments)

    def session(self, data: Any = None, batch_size: int | None = None, **arguments: Any) -> Session:
        """A session for a training loop of your own. Arguments of espalier.jax.Trainer.session."""
        self._split()
        return self._trainer.session(data, batch_size, **arguments)

    def register(self, inputs: Any, name: str) -> str:
        """Registers model(inputs), as after model.eval() if that was called, as a model; returns the artifact's name.

            model.eval()
            client.serve(trainer.register(x[:2], "digits"))

        As espalier.jax.Trainer.register.
        """
        self._split()
        structure, _, state = nnx.split(self.model, nnx.Param, ...)

        def call(params: Any, *rest: Any) -> Any:
            now, inputs = (state, rest) if self._trainer.state is None else (rest[0], rest[1:])
            return nnx.merge(structure, params, now, copy=True)(*inputs)

        call.__signature__ = _signature(type(self.model).__call__, self._trainer.state is not None)  # type: ignore[attr-defined]
        return self._trainer.register(call, inputs, name)

    def write_back(self, session: Session) -> Any:
        """Puts the present parameters of a session of `session` into the model, and returns it."""
        self._trainer.write_back(session)
        return self.model

    def _split(self) -> None:
        _, params, state = nnx.split(self.model, nnx.Param, ...)
        self._trainer.params = params
        if self._trainer.state is not None:
            self._trainer.state = state

    def _update(self) -> None:
        nnx.update(self.model, self._trainer.params)
        if self._trainer.state is not None:
            nnx.update(self.model, self._trainer.state)

    @property
    def result(self) -> TrainingResult | None:
        """Of the last fit: history, evaluation, the job."""
        return self._trainer.result

    @property
    def history(self) -> dict[str, list[float]]:
        """Loss and metrics of each step of the last fit."""
        return self._trainer.history


def _signature(loss_fn: Any, stateful: bool) -> Any:
    """The names of the batch's arrays are those of loss_fn's arguments."""
    import inspect

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = list(inspect.signature(loss_fn).parameters)[1:]
    first = ["params", "state"] if stateful else ["params"]
    return inspect.Signature([inspect.Parameter(n, kind) for n in [*first, *(n for n in names if n not in first)]])
