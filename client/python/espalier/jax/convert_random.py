"""jax.random inside a loss: drawing uniform and normal numbers, as dropout and sampling do.

The daemon's numbers are other ones than JAX's, new in each step. What comes from one key is one tensor here, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from espalier.jax.context import Context
from espalier.jax.ir import Shape, Wire, is_static
from espalier.jax.registry import handles, handles_opaque
from espalier.jax.values import Any3, Opaque, Refused, Size, Value, of_array, of_wire

if TYPE_CHECKING:
    from espalier.jax.interpret import Interpreter

NOTE = "random numbers are the daemon's, new in each step; they follow from the job's seed, not from JAX's keys"


def _shape(equation: Any) -> Shape:
    return tuple(equation.outvars[0].aval.shape)


def _dtype(equation: Any) -> str:
    return str(equation.outvars[0].aval.dtype)


def _ident(value: Any3) -> Any:
    if isinstance(value, Opaque):
        return value.ident
    if isinstance(value, Size):
        return str(value.size)
    return value.array.tobytes() if value.array is not None else ("wire", id(value.wire))


def _derived(equation: Any, kind: str, *values: Any3) -> Opaque:
    """What an equation makes of keys: known by its operands and parameters."""
    params = tuple(sorted((k, str(v)) for k, v in equation.params.items()))
    ident = (equation.primitive.name, params, *(_ident(v) for v in values))
    return Opaque(kind, ident, _shape(equation), _dtype(equation))


def _concrete(equation: Any, values: tuple[Any3, ...]) -> Any | None:
    """Keys of constants are computed by JAX itself. None: an operand is not known."""
    operands = []
    for value in values:
        if isinstance(value, Value) and value.array is not None and all(is_static(d) for d in value.shape):
            operands.append(value.array.reshape([int(d) for d in value.shape]) if None not in value.dims else None)
        elif isinstance(value, Opaque) and value.ident[0] == "key" and value.kind in ("key", "raw"):
            data = np.frombuffer(value.ident[1], np.uint32)
            raw = data.reshape((*value.shape, -1) if value.kind == "key" else value.shape)
            operands.append(jax.random.wrap_key_data(raw) if value.kind == "key" else raw)
        else:
            return None
    if any(o is None for o in operands):
        return None
    if not all(is_static(d) for d in _shape(equation)):
        return None
    return equation.primitive.bind(*operands, **equation.params)


def _from_array(result: Any, equation: Any) -> Opaque:
    dtype = _dtype(equation)
    if dtype.startswith("key<"):
        return Opaque("key", ("key", np.asarray(jax.random.key_data(result)).tobytes()), _shape(equation), dtype)
    return Opaque("raw", ("key", np.asarray(result).tobytes()), _shape(equation), dtype)


@handles_opaque(
    "random_seed", "random_wrap", "random_unwrap", "random_split", "random_fold_in", "random_clone", "slice", "squeeze",
    "reshape", "dynamic_slice", "gather", "broadcast_in_dim", "concatenate", "transpose", "copy", "copy_p", "select_n",
    "convert_element_type", "expand_dims",
)  # fmt: skip
def _keys(it: Interpreter, equation: Any, *values: Any3) -> Opaque:
    known = _concrete(equation, values)
    if known is not None:
        return _from_array(known, equation)
    kinds = {v.kind for v in values if isinstance(v, Opaque)}
    if not kinds <= {"key", "raw", "counter"}:
        raise Refused("of random bits: only drawing uniform and normal numbers is converted")
    name = equation.primitive.name
    first = values[0]
    if name in ("random_wrap", "random_unwrap") and isinstance(first, Opaque):
        kind = "key" if name == "random_wrap" else "raw"
        return Opaque(kind, first.ident, _shape(equation), _dtype(equation))
    kind = "key" if _dtype(equation).startswith("key<") else "counter" if kinds == {"counter"} else "raw"
    return _derived(equation, kind, *values)


@handles("random_wrap")
def _wrap(it: Interpreter, equation: Any, raw: Value) -> Opaque:
    known = _concrete(equation, (raw,))
    if known is None:
        raise Refused("a random key that is computed")
    return _from_array(known, equation)


@handles_opaque("add")
def _count(it: Interpreter, equation: Any, *values: Any3) -> Opaque:
    if any(isinstance(v, Opaque) and v.kind != "counter" for v in values):
        raise Refused("of random bits: only drawing uniform and normal numbers is converted")
    return _derived(equation, "counter", *values)


@handles_opaque("random_bits")
def _bits(it: Interpreter, equation: Any, key: Opaque) -> Any3:
    known = _concrete(equation, (key,))
    if known is not None:
        return of_array(np.asarray(known))
    if key.shape:
        raise Refused("of several keys at once")
    return Opaque("bits", ("bits", key.ident, str(_shape(equation))), _shape(equation), _dtype(equation))


def _step(before: str, after: str, constant: int, name: str) -> None:
    """One of the steps by which JAX makes a number of [1, 2) of 32 random bits."""

    def handler(it: Interpreter, equation: Any, x: Any3, y: Any3 | None = None) -> Opaque:
        fits = isinstance(x, Opaque) and x.kind == before and x.dtype in ("uint32", "float32")
        if fits and y is not None:
            fits = isinstance(y, Value) and y.scalar is not None and int(y.scalar) == constant
        if not fits or not isinstance(x, Opaque):
            raise Refused("of random bits: only drawing uniform and normal numbers is converted")
        return Opaque(after, x.ident, _shape(equation), _dtype(equation))

    handles_opaque(name)(handler)


_step("bits", "shifted", 9, "shift_right_logical")
_step("shifted", "mantissa", 0x3F800000, "or")
_step("mantissa", "one_to_two", 0, "bitcast_convert_type")


@handles_opaque("sub")
def _uniform(it: Interpreter, equation: Any, x: Any3, one: Any3) -> Value:
    fits = isinstance(x, Opaque) and x.kind == "one_to_two" and x.dtype == "float32"
    if not fits or not isinstance(one, Value) or one.scalar != 1.0:
        raise Refused("of random bits: only drawing uniform and normal numbers is converted")
    context = it.context
    context.note(NOTE)
    assert isinstance(x, Opaque)
    drawn = context.drawn
    if x.ident not in drawn:
        drawn[x.ident] = of_wire(draw(context, _shape(equation), distribution="uniform", a=0.0, b=1.0))
    made: Value = drawn[x.ident]
    return made


def draw(context: Context, shape: Shape, **attributes: Any) -> Wire:
    """Random numbers of a shape."""
    rank = len(shape)
    symbolic = [i for i, d in enumerate(shape) if not is_static(d)]
    if not symbolic:
        like = context.emit("fill", [], shape, "bool", dims=[int(d) for d in shape], dtype="bool")
    else:
        like = context.unsqueeze(context.batch_false(), [i for i in range(rank) if i != symbolic[0]])
        like = context.broadcast(like, shape)
    return context.emit("random_like", [like], shape, "float32", **attributes)


@handles("erf_inv")
def _erf_inv(it: Interpreter, equation: Any, x: Value) -> Value:
    """sqrt(2) erf_inv(u) of a uniform u in (-1, 1) is how JAX draws normal numbers."""
    context = it.context
    node = x.wire.node if x.wire is not None else None
    if node is not None and node.op == "maximum":
        node = next((w.node for w in node.inputs if w is not None and w.node is not None), None)
    chain: list[tuple[str, float]] = []
    while node is not None and node.op in ("add_scalar", "multiply_scalar") and len(chain) < 3:
        chain.append((node.op, node.number("value")))
        node = node.inputs[0].node if node.inputs[0] is not None else None
    fits = len(chain) == 2 and [op for op, _ in chain] == ["add_scalar", "multiply_scalar"]
    fits = fits and abs(chain[0][1] + 1) < 1e-6 and abs(chain[1][1] - 2) < 1e-6
    if not fits or node is None or node.op != "random_like" or node.attributes["distribution"] != "uniform":
        raise Refused("no counterpart, but for drawing normal numbers")
    key = ("normal", id(node))
    if key not in context.drawn:
        context.drawn[key] = of_wire(draw(context, x.shape, distribution="normal", a=0.0, b=float(np.sqrt(0.5))))
    made: Value = context.drawn[key]
    return made
