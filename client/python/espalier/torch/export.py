"""Traces a module with torch.export, so that the batch size stays a symbol."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from espalier.errors import InvalidArgument
from espalier.torch import places
from espalier.torch.recurrent import AsOneOperator

# Rows of the examples that are traced: PyTorch takes sizes 0 and 1 for constants.
_ROWS = 3


@dataclass
class Traced:
    """A traced module. `fixed`: why the trace is for one batch size only; empty: it is for any."""

    program: Any  # torch.export.ExportedProgram
    fixed: str = ""


def with_rows(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """`tensor` with `rows` in dimension 0: the first ones, or repeated ones."""
    if tensor.dim() == 0 or tensor.shape[0] == 0:
        raise InvalidArgument(
            f"example input of shape {tuple(tensor.shape)}: dimension 0 must be the examples of a batch, at least one"
        )
    repeats = -(-rows // tensor.shape[0])
    return tensor.repeat(repeats, *(1,) * (tensor.dim() - 1))[:rows].clone()


def _reason(error: Exception, module: nn.Module) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}{places.of_error(error, module)}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps PyTorch from logging errors of a trace, which are raised, and may be repeated for one batch size."""
    loggers = [logging.getLogger(name) for name in ("torch._subclasses.fake_tensor", "torch.fx", "torch.export")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _export(module: nn.Module, inputs: Sequence[torch.Tensor], batch: Any) -> Any:
    dynamic = None if batch is None else (tuple({0: batch} for _ in inputs),)
    with warnings.catch_warnings(), _quiet(), AsOneOperator():
        warnings.simplefilter("ignore")
        return torch.export.export(module, tuple(inputs), dynamic_shapes=dynamic, strict=False)


def trace(module: nn.Module, inputs: Sequence[torch.Tensor], batch_size: int | None) -> Traced:
    """Traces `module(*inputs)`, whose forward takes *inputs.

    Where the module fixes the batch size, as by `x.view(8, -1)` or int(x.shape[0]), it is traced for `batch_size`;
    without one InvalidArgument says why it cannot follow the batch.
    """
    symbolic: Exception
    rows = [with_rows(tensor, _ROWS) for tensor in inputs]
    try:
        return Traced(_export(module, rows, torch.export.Dim("batch", min=2, max=1 << 20)))
    except InvalidArgument as error:
        raise InvalidArgument(f"{error}{places.of_error(error, module)}") from error
    except Exception as error:
        symbolic = error
    if batch_size is None:
        raise InvalidArgument(
            "the module cannot be traced for a batch of any size; give batch_size= to trace it for one. "
            + _reason(symbolic, module)
        ) from symbolic
    try:
        program = _export(module, [with_rows(tensor, batch_size) for tensor in inputs], None)
    except InvalidArgument as error:
        raise InvalidArgument(f"{error}{places.of_error(error, module)}") from error
    except Exception as error:
        raise InvalidArgument(f"torch.export cannot trace the module: {_reason(error, module)}") from error
    return Traced(program, _reason(symbolic, module))
