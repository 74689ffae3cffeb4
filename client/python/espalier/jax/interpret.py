"""Walks a jaxpr and applies the handlers of its primitives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend import core

from espalier.errors import EspalierError, InternalError
from espalier.jax.context import Context
from espalier.jax.fold import fold
from espalier.jax.ir import Wire, is_static
from espalier.jax.registry import HANDLERS, OPAQUE, REFUSED
from espalier.jax.source import line_of
from espalier.jax.values import Any3, Opaque, Refused, Size, Value, of_array, of_wire


def dtype_of(aval: Any) -> str:
    """Name of an abstract value's element type: "float32", "key<fry>"."""
    return str(aval.dtype)


class Interpreter:
    """Converts the equations of jaxprs to nodes of a context's program."""

    def __init__(self, context: Context, unroll_limit: int):
        self.context = context
        self.unroll_limit = unroll_limit
        self.equations = 0  # converted so far

    def run(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any3]) -> list[Any3]:
        """The outputs of a jaxpr. `consts` are arrays or values."""
        env: dict[Any, Any3] = {}
        for variable, const in zip(jaxpr.constvars, consts, strict=True):
            env[variable] = const if isinstance(const, (Value, Size, Opaque)) else self.literal(const, variable.aval)
        env.update(zip(jaxpr.invars, arguments, strict=True))

        def read(variable: Any) -> Any3:
            if isinstance(variable, core.Literal):
                return self.literal(variable.val, variable.aval)
            return env[variable]

        program = self.context.program
        outer = program.source, program.scope
        for equation in jaxpr.eqns:
            self.equations += 1
            program.source = line_of(equation.source_info) or outer[0]
            stack = str(equation.source_info.name_stack)
            program.scope = "/".join(part for part in (outer[1], stack) if part)
            values = self.equation(equation, [read(v) for v in equation.invars])
            env.update(zip(equation.outvars, values, strict=True))
            program.source, program.scope = outer
        return [read(v) for v in jaxpr.outvars]

    def literal(self, value: Any, aval: Any) -> Any3:
        """A constant of the program."""
        dtype = dtype_of(aval)
        if dtype.startswith("key<"):
            import jax

            return Opaque("key", ("key", np.asarray(jax.random.key_data(value)).tobytes()), aval.shape, dtype)
        return of_array(np.asarray(value, dtype=aval.dtype))

    def equation(self, equation: Any, values: list[Any3]) -> list[Any3]:
        """The values of an equation's outputs."""
        name = equation.primitive.name
        try:
            if name in REFUSED:
                raise Refused(REFUSED[name])
            opaque = any(isinstance(v, Opaque) for v in values) or name in ("random_seed",)
            if opaque:
                handler = OPAQUE.get(name) or (HANDLERS.get(name) if has_jaxpr(equation) else None)
                if handler is None:
                    raise Refused("of random bits: only drawing uniform and normal numbers is converted")
                result = handler(self, equation, *values)
            else:
                if not has_jaxpr(equation) and name not in KEEPS_SIZES:
                    values = [self.concrete(v) for v in values]
                folded = self.fold(equation, values)
                if folded is not None:
                    return folded
                handler = HANDLERS.get(name)
                if handler is None:
                    raise Refused("no counterpart")
                result = handler(self, equation, *values)
        except Refused as refusal:
            return self.missing(equation, values, str(refusal))
        except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, EspalierError):
                raise
            raise InternalError(
                f"converting {name} at {self.context.program.source or 'an unknown line'} failed with "
                f"{type(error).__name__}: {error}; please report it with the loss function"
            ) from error
        return list(result) if isinstance(result, (list, tuple)) else [result]

    def missing(self, equation: Any, values: Sequence[Any3], reason: str) -> list[Any3]:
        """Stand-ins for the outputs of an equation that cannot be converted."""
        inputs = [v.wire for v in values if isinstance(v, Value) and v.wire is not None]
        avals = [v.aval for v in equation.outvars]
        wires = self.context.program.missing(
            equation.primitive.name, reason, inputs, [a.shape for a in avals], [dtype_of(a) for a in avals]
        )
        return [of_wire(wire) for wire in wires]

    def concrete(self, value: Any3) -> Value:
        """A size becomes a constant: the value at the job's batch size."""
        if isinstance(value, Size):
            number = self.context.at(value.size, self.context.batch_size)
            made = of_array(np.asarray(number, value.dtype))
            made.sized = not is_static(value.size)
            return made
        assert isinstance(value, Value)
        return value

    def fold(self, equation: Any, values: Sequence[Any3]) -> list[Any3] | None:
        """Computes an equation of constants. None: it has other operands, or sizes that depend on the batch."""
        constants = [v for v in values if isinstance(v, Value) and v.is_constant]
        if not values or len(constants) < len(values) or has_jaxpr(equation):
            return None
        found = fold(self.context, equation, constants)
        for value in found or ():
            value.sized = any(v.sized for v in constants)
        return None if found is None else list(found)


# Handlers that take Size operands.
KEEPS_SIZES = {"convert_element_type", "mul", "add", "sub", "div", "broadcast_in_dim", "dim_as_value", "max", "min"}


def has_jaxpr(equation: Any) -> bool:
    """Whether an equation calls a function."""
    return any(
        hasattr(v, "eqns") or hasattr(v, "jaxpr") or (isinstance(v, tuple) and v and hasattr(v[0], "jaxpr"))
        for v in equation.params.values()
    )


def wire_of(context: Context, value: Any3) -> Wire:
    """The wire of an output of the program, all its elements in order."""
    if not isinstance(value, Value):
        raise Refused("a random key or a size as a result")
    return context.dense(value)
