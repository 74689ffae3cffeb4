"""Calls, loops and branches: inlined where what they do is known when the program is converted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from espalier.jax.convert_elementwise import clamped, reshaped, scalar_op, unary
from espalier.jax.convert_shape import concatenated, expanded, sliced, squeezed
from espalier.jax.custom_rules import LOGADDEXP, RELU, RELU6, function_name, verdict
from espalier.jax.registry import handles
from espalier.jax.values import Any3, Opaque, Refused, Value

if TYPE_CHECKING:
    from espalier.jax.interpret import Interpreter


def _closed(equation: Any, *names: str) -> tuple[Any, Any]:
    """Jaxpr and constants of an equation's function."""
    for name in names:
        found = equation.params.get(name)
        if found is not None:
            return (found.jaxpr, found.consts) if hasattr(found, "jaxpr") else (found, ())
    raise Refused("a function that cannot be read")


@handles("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint", "xla_call", "custom_lin")
def _call(it: Interpreter, equation: Any, *values: Any3) -> list[Any3]:
    jaxpr, consts = _closed(equation, "jaxpr", "call_jaxpr")
    result: list[Any3] = it.run(jaxpr, consts, values)
    return result


@handles("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
def _custom(it: Interpreter, equation: Any, *values: Any3) -> list[Any3]:
    jaxpr, consts = _closed(equation, "call_jaxpr", "fun_jaxpr")
    found = verdict(equation)
    if found == RELU:
        # Its derivative at 0 is 0, as that of the operator; that of max(x, 0) is 1/2.
        return [unary(it.context, "relu", it.concrete(values[0]))]
    if found == RELU6:
        x = it.concrete(values[0])
        return [clamped(it.context, it.context.constant(x, 0), x, it.context.constant(x, 6))]
    if found == LOGADDEXP:
        x, y = it.concrete(values[0]), it.concrete(values[1])
        above = unary(it.context, "softplus", scalar_op(it.context, "sub", x, y))
        return [reshaped(scalar_op(it.context, "add", above, y), equation)]
    if found:
        raise Refused(f"{function_name(jaxpr)}: {found}")
    result: list[Any3] = it.run(jaxpr, consts, values)
    return result


@handles("scan")
def _scan(it: Interpreter, equation: Any, *values: Any3) -> list[Any3]:
    p = equation.params
    jaxpr, consts = _closed(equation, "jaxpr")
    length, first, carried = int(p["length"]), int(p["num_consts"]), int(p["num_carry"])
    _check_length(it, length * len(jaxpr.eqns), f"{length} steps of {len(jaxpr.eqns)} operations")
    fixed, carry, inputs = values[:first], list(values[first : first + carried]), values[first + carried :]
    rows = [_rows(it, x, length) for x in inputs]
    outputs: list[list[Value]] = []
    for step in range(length):
        at = length - 1 - step if p["reverse"] else step
        results = it.run(jaxpr, consts, [*fixed, *carry, *(r[at] for r in rows)])
        carry = list(results[:carried])
        outputs.append([it.concrete(y) for y in results[carried:]])
    if p["reverse"]:
        outputs.reverse()
    stacked = [
        concatenated(it.context, [expanded(row[k], [0]) for row in outputs], 0)
        for k in range(len(equation.outvars) - carried)
    ]
    return [*carry, *stacked]


def _check_length(it: Interpreter, operations: int, what: str) -> None:
    if it.equations + operations > it.unroll_limit:
        raise Refused(f"unrolled, its {what} exceed the limit of {it.unroll_limit} operations (unroll_limit)")


def _rows(it: Interpreter, x: Any3, length: int) -> list[Any3]:
    """x[0], x[1], ..."""
    if isinstance(x, Opaque):
        shape = x.shape[1:]
        return [Opaque(x.kind, ("row", x.ident, k), shape, x.dtype) for k in range(length)]
    value = it.concrete(x)
    axis = value.dims[0]
    rows: list[Any3] = []
    if value.is_constant or axis is None or length == 1:
        for k in range(length):
            starts, limits = [0] * len(value.shape), list(value.shape)
            starts[0], limits[0] = k, k + 1
            rows.append(squeezed(it.context, sliced(it.context, value, starts, limits, [1] * len(starts)), [0]))
        return rows
    # One node: the gradients of many slices would each have the size of the whole.
    wire = it.context.stored(value)
    shape = tuple(1 if k == axis else d for k, d in enumerate(wire.shape))
    parts = it.context.program.emit(
        "split", [wire], [shape] * length, [wire.dtype] * length, axis=axis, sizes=[1] * length
    )
    row_shape = (1, *value.shape[1:])
    rows += [squeezed(it.context, Value(row_shape, value.dtype, value.dims, wire=part), [0]) for part in parts]
    return rows


@handles("while")
def _while(it: Interpreter, equation: Any, *values: Any3) -> list[Any3]:
    p = equation.params
    test, test_consts = _closed(equation, "cond_jaxpr")
    body, body_consts = _closed(equation, "body_jaxpr")
    tests, bodies = int(p["cond_nconsts"]), int(p["body_nconsts"])
    of_test, of_body, carry = values[:tests], values[tests : tests + bodies], list(values[tests + bodies :])
    while True:
        (more,) = it.run(test, test_consts, [*of_test, *carry])
        if not isinstance(more, Value) or more.scalar is None:
            raise Refused("the number of its rounds depends on computed values")
        if not bool(more.scalar):
            return carry
        _check_length(it, len(body.eqns), "rounds")
        carry = it.run(body, body_consts, [*of_body, *carry])


@handles("cond")
def _cond(it: Interpreter, equation: Any, which: Any3, *values: Any3) -> list[Any3]:
    number = it.concrete(which).scalar
    if number is None:
        raise Refused("a condition that is computed; jnp.where(condition, a, b) computes both sides")
    branches = equation.params["branches"]
    branch = branches[min(max(int(number), 0), len(branches) - 1)]
    result: list[Any3] = it.run(branch.jaxpr, branch.consts, values)
    return result


@handles("debug_callback", "debug_print")
def _debug(it: Interpreter, equation: Any, *values: Any3) -> list[Any3]:
    it.context.note(f"{equation.primitive.name}: what jax.debug would print is not printed")
    return []
