"""What stands for the module jax in a loop: jit, pmap, value_and_grad and the number of devices; the rest is JAX's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax as _jax

from espalier.flax.compat import loop as _loop
from espalier.notes import warn as _warn


def __getattr__(name: str) -> Any:
    return getattr(_jax, name)


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """As jax.jit; a function of a TrainState becomes a step of the loop's job."""
    if function is None:
        return lambda f: jit(f, **options)
    return _loop.Step(function, _jax.jit(function, **options), mapped=False)


def pmap(function: Callable[..., Any] | None = None, axis_name: Any = None, **options: Any) -> Any:
    """As jax.pmap of one device; a function of a TrainState becomes a step of the loop's job."""
    if function is None:
        return lambda f: pmap(f, axis_name, **options)
    return _loop.Step(function, _jax.pmap(function, axis_name, **options), mapped=True)


def value_and_grad(function: Callable[..., Any], argnums: Any = 0, has_aux: bool = False, **options: Any) -> Any:
    """As jax.value_and_grad. In a step of a loop the gradients are not computed here, but by the job."""
    return _loop.differentiated(
        function, argnums, has_aux, True, lambda: _jax.value_and_grad(function, argnums, has_aux, **options)
    )


def grad(function: Callable[..., Any], argnums: Any = 0, has_aux: bool = False, **options: Any) -> Any:
    """As jax.grad. In a step of a loop the gradients are not computed here, but by the job."""
    return _loop.differentiated(
        function, argnums, has_aux, False, lambda: _jax.grad(function, argnums, has_aux, **options)
    )


def local_device_count(backend: Any = None) -> int:
    """1: the daemon's workers share each batch."""
    return 1


def device_count(backend: Any = None) -> int:
    """1: the daemon's workers share each batch."""
    return 1


def _pmean(tree: Any, axis_name: Any, **options: Any) -> Any:
    return tree if _loop.recording() is not None else _jax.lax.pmean(tree, axis_name, **options)


class _Lax:
    """jax.lax, in which a mean over the dropped axis is the identity: the batch is the whole one."""

    pmean = staticmethod(_pmean)

    def __getattr__(self, name: str) -> Any:
        return getattr(_jax.lax, name)


def _initialize(
    coordinator_address: str | None = None, num_processes: int | None = None, process_id: int | None = None, **_: Any
) -> None:
    """Nothing is connected. Process 0 drives the training; the others end, as the daemon's workers do their work."""
    if (num_processes or 1) > 1 and process_id:
        print(f"process {process_id} ends: the daemon's workers do its part, process 0 drives the training")
        sys.exit(0)
    _warn(
        "jax.distributed.initialize connects nothing here: the workers of the daemon share each batch",
    )


lax = _Lax()
distributed = SimpleNamespace(initialize=_initialize, shutdown=lambda: None)
