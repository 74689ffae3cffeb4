"""Functions with derivatives of their own (jax.custom_jvp, jax.custom_vjp).

The daemon differentiates what a function computes. That is the same if the rule is only a faster or stabler way to the
derivative, and wrong if it is another one, as in a straight-through estimator. So both are compared at random points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from espalier.jax.ir import is_static

_BATCH = 3
_TOLERANCE = 1e-4


class _Unknown(Exception):
    pass


def _size(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_size(v) for v in value)
    if isinstance(value, list):
        return [_size(v) for v in value]
    if hasattr(value, "_evaluate") and hasattr(value, "_get_vars"):
        return value._evaluate(dict.fromkeys(value._get_vars(), _BATCH))
    return value


def evaluate(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """The outputs of a jaxpr, with a small batch in place of the symbolic one. Functions with rules are inlined."""
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, arguments, strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, core.Literal) else env[variable]

    for equation in jaxpr.eqns:
        values = [read(v) for v in equation.invars]
        params = equation.params
        inner = params.get("call_jaxpr") or params.get("jaxpr") or params.get("fun_jaxpr")
        name = equation.primitive.name
        if name == "dim_as_value":
            results: Any = [np.int32(_size(params["dim"]))]
        elif inner is not None and name not in ("scan", "while", "cond"):
            closed = hasattr(inner, "consts")
            results = evaluate(inner.jaxpr if closed else inner, inner.consts if closed else (), values)
        elif any(hasattr(v, "jaxpr") or hasattr(v, "eqns") for v in params.values()):
            raise _Unknown(f"it calls {name}")
        else:
            static = [
                v for v, variable in zip(values, equation.invars, strict=True) if not _is_size(equation, variable)
            ]
            results = equation.primitive.bind(*static, **{k: _size(v) for k, v in params.items()})
            if not equation.primitive.multiple_results:
                results = [results]
        env.update(zip(equation.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _is_size(equation: Any, variable: Any) -> bool:
    """Whether an operand only says a dynamic size."""
    return equation.primitive.name in ("broadcast_in_dim", "reshape", "iota") and variable is not equation.invars[0]


def _points(avals: Sequence[Any]) -> list[list[np.ndarray[Any, Any]]]:
    """Operands at which to compare: random ones, then zeros and ties."""
    random = np.random.default_rng(0)
    shapes = [tuple(int(_size(d)) for d in a.shape) for a in avals]
    normal = [np.asarray(random.normal(size=s) * 2).astype(a.dtype) for s, a in zip(shapes, avals, strict=True)]
    positive = [np.abs(x) + np.asarray(0.1).astype(x.dtype) if x.dtype.kind == "f" else np.abs(x) for x in normal]
    zeros = [np.zeros(s, a.dtype) for s, a in zip(shapes, avals, strict=True)]
    sixes = [np.full(s, 6, a.dtype) for s, a in zip(shapes, avals, strict=True)]
    return [normal, positive, zeros, sixes]


RELU, RELU6, LOGADDEXP = "relu", "relu6", "logaddexp"
# What operators compute, with their derivatives also where the function has corners.
_KNOWN: dict[str, Any] = {
    RELU: lambda x: jax.numpy.where(x > 0, x, 0),
    RELU6: lambda x: jax.numpy.where(x <= 0, 0, jax.numpy.where(x >= 6, 6, x)),
    LOGADDEXP: lambda x, y: jax.numpy.logaddexp(x, y),
}
_verdicts: dict[Any, str] = {}  # a comparison takes a while, and a network has many equal ones


def function_name(jaxpr: Any) -> str:
    """Name and place of the function that a jaxpr was traced from."""
    info = getattr(jaxpr, "debug_info", None)
    return str(getattr(info, "func_src_info", "") or "a function")


def _structure(jaxpr: Any) -> Any:
    """What a jaxpr computes but for the sizes of dimensions."""
    parts: list[Any] = [tuple((v.aval.ndim, str(v.aval.dtype)) for v in jaxpr.invars)]
    for equation in jaxpr.eqns:
        literals = tuple(str(v.val) for v in equation.invars if isinstance(v, core.Literal))
        inner = [v for v in equation.params.values() if hasattr(v, "eqns") or hasattr(v, "jaxpr")]
        nested = tuple(_structure(getattr(v, "jaxpr", v)) for v in inner)
        parts.append((equation.primitive.name, literals, nested))
    return tuple(parts)


def verdict(equation: Any) -> str:
    """What may stand for a function with a rule: empty, its body; a name in _KNOWN; otherwise why nothing may."""
    inner = equation.params.get("call_jaxpr") or equation.params.get("fun_jaxpr")
    key = (equation.primitive.name, function_name(inner.jaxpr), _structure(inner.jaxpr))
    if key not in _verdicts:
        _verdicts[key] = _verdict(equation)
    return _verdicts[key]


def _verdict(equation: Any) -> str:
    try:
        if _same(equation):
            return ""
        for name, known in _KNOWN.items():
            if len(equation.invars) == known.__code__.co_argcount and _same(equation, known):
                return name
        return "it has a derivative of its own that is not that of what it computes; there is no operator for that"
    except _Unknown as error:
        return f"its derivative could not be compared with that of what it computes: {error}"
    except (TypeError, ValueError, KeyError, AttributeError, NotImplementedError) as error:
        first = (str(error).splitlines() or [""])[0][:200]
        return f"its derivative could not be compared with that of what it computes: {type(error).__name__}: {first}"


def _same(equation: Any, known: Any = None) -> bool:
    """Whether a rule is the derivative of what the function computes; or, with it, of `known` if it computes that."""
    params = equation.params
    inner = params.get("call_jaxpr") or params.get("fun_jaxpr")
    avals = [v.aval for v in equation.invars]
    floats = [i for i, a in enumerate(avals) if np.issubdtype(a.dtype, np.floating) or str(a.dtype) == "bfloat16"]
    if not floats:
        return True
    if any(not is_static(_size(d)) for a in avals for d in a.shape):
        raise _Unknown("its sizes are not known")

    by_jvp = "jvp_jaxpr_fun" in params
    if by_jvp and len(floats) != len(avals):
        raise _Unknown("some operands are integers")

    def compare(point: list[Any], directions: list[Any]) -> Any:
        """What is computed and what `known` computes; derivatives by the rule and by differentiation."""
        outputs = evaluate(inner.jaxpr, inner.consts, point)

        def plain(*moved: Any) -> list[Any]:
            arguments = list(point)
            for i, value in zip(floats, moved, strict=True):
                arguments[i] = value
            return evaluate(inner.jaxpr, inner.consts, arguments) if known is None else [known(*arguments)]

        moved = [point[i] for i in floats]
        pair = _by_jvp if by_jvp else _by_vjp
        return (
            outputs[:1],
            outputs[:1] if known is None else [known(*point)],
            *pair(params, plain, moved, point, directions),
        )

    # One compilation: operation by operation, each would have one of its own.
    compiled = jax.jit(compare)
    random = np.random.default_rng(1)
    along = inner.jaxpr.invars if by_jvp else inner.jaxpr.outvars
    shapes = [tuple(int(_size(d)) for d in v.aval.shape) for v in along]
    directions = [random.normal(size=s).astype(v.aval.dtype) for s, v in zip(shapes, along, strict=True)]
    for point in _points(avals):
        value, wanted, found, expected = compiled([jax.numpy.asarray(x) for x in point], directions)
        for a, b in zip([*value, *found], [*wanted, *expected], strict=True):
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            if not np.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
                return False
    return True


def _by_jvp(params: Any, plain: Any, moved: list[Any], point: list[Any], directions: list[Any]) -> tuple[Any, Any]:
    """Directional derivatives by a custom_jvp's rule, and by differentiating what it computes."""
    rule, consts, zeros = params["jvp_jaxpr_fun"].call_wrapped(*([False] * len(point)))[:3]
    results = evaluate(rule, consts, [*moved, *directions])
    expected = jax.jvp(plain, moved, directions)[1]
    found = results[len(results) - sum(not zero for zero in zeros) :]
    return found, [t for t, zero in zip(expected, zeros, strict=True) if not zero]


def _by_vjp(params: Any, plain: Any, moved: list[Any], point: list[Any], directions: list[Any]) -> tuple[Any, Any]:
    """Gradients by a custom_vjp's rule, and by differentiating what it computes."""
    first = int(params["num_consts"])
    if first:
        raise _Unknown("it closes over computed values")
    _, pullback = jax.vjp(plain, *moved)
    made = params["fwd_jaxpr_thunk"].call_wrapped(*([False] * len(point)))
    results = evaluate(made[0], made[1], point)
    kept = iter(results[: len(results) - len(directions)])
    # Residuals that are operands are not among the results.
    out_tree, residual_tree, places = params["out_trees"]()
    residuals = [next(kept) if place is None else point[place] for place in places]
    unflatten = jax.tree_util.tree_unflatten
    # The user's own function: what JAX wraps it in insists on the symbolic batch.
    pulled = params["bwd"].f(unflatten(residual_tree, residuals), unflatten(out_tree, directions))
    found = jax.tree_util.tree_leaves(pulled, is_leaf=lambda x: x is None)
    of_floats = [i for i, x in enumerate(point) if any(x is m for m in moved)]
    return [found[i] for i in of_floats], list(pullback(directions))
