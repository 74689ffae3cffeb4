"""Matrix products and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from espalier.torch.emitter import Emitter
from espalier.torch.registry import handles
from espalier.torch.values import CannotConvert, Size, Value, broadcast, product


@handles("linear.default")
def _linear(emit: Emitter, x: Value, weight: Value, bias: Value | None = None) -> Value:
    if weight.rank == 1:
        x, weight = emit.whole(x), emit.reshape(weight, [1, weight.shape[0]])
        made = emit.op("linear", [x, weight, None], shape=(*x.shape[:-1], 1))
        made = emit.reshape(made, x.shape[:-1])
        return made if bias is None else emit.arithmetic("add", made, bias)
    if x.rank == 1:
        made = emit.op("linear", [emit.reshape(x, [1, *x.shape]), emit.whole(weight), bias], shape=(1, weight.shape[0]))
        return emit.reshape(made, [weight.shape[0]])
    return emit.op("linear", [emit.whole(x), emit.whole(weight), None if bias is None else emit.whole(bias)])


def matmul(emit: Emitter, a: Value, b: Value, transpose_b: bool = False) -> Value:
    """a b, or a b^T, of matrices with leading dimensions that broadcast."""
    columns = b.shape[-2 if transpose_b else -1]
    shape = (*broadcast(a.shape[:-2], b.shape[:-2]), a.shape[-2], columns)
    attributes = {"transpose_b": True} if transpose_b else None
    return emit.op("matmul", [_matrices(emit, a), _matrices(emit, b)], attributes, shape=shape, dtype=a.dtype)


def _matrices(emit: Emitter, value: Value) -> Value:
    """`value` with its last two dimensions whole; the operator broadcasts the others."""
    held = emit.padded(value)
    target = (*held[:-2], *value.shape[-2:])
    return emit.whole(Value(value.held, target, value.dtype, value.held_shape))


@handles("matmul.default", "mm.default", "bmm.default", "mv.default", "dot.default", "vdot.default")
def _matmul(emit: Emitter, a: Value, b: Value) -> Value:
    row, column = a.rank == 1, b.rank == 1
    if row:
        a = emit.reshape(a, [1, a.shape[0]])
    if column:
        b = emit.reshape(b, [b.shape[0], 1])
    made = matmul(emit, a, b)
    return emit.reshape(made, emit.output.shape) if row or column else made


@handles("addmm.default", "baddbmm.default", "addbmm.default")
def _addmm(emit: Emitter, x: Value, a: Value, b: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    made = matmul(emit, a, b)
    if made.rank == 3 and len(emit.output.shape) == 2:
        from espalier.torch.convert_reduce import reduce

        made = reduce(emit, "reduce_sum", made, [0])
    made = emit.arithmetic("multiply", made, alpha)
    return emit.arithmetic("add", made, emit.arithmetic("multiply", x, beta))


@handles("outer.default", "ger.default")
def _outer(emit: Emitter, a: Value, b: Value) -> Value:
    return emit.elementwise("multiply", [emit.reshape(a, [a.shape[0], 1]), emit.reshape(b, [1, b.shape[0]])])


@handles("bilinear.default")
def _bilinear(emit: Emitter, a: Value, b: Value, weight: Value, bias: Value | None = None) -> Value:
    made = einsum(emit, "...i,oij,...j->...o".replace("...", "abcdefgh"[: a.rank - 1].upper()), [a, weight, b])
    return made if bias is None else emit.arithmetic("add", made, bias)


@handles("einsum.default")
def _einsum(emit: Emitter, equation: str, operands: Sequence[Value], path: Any = None) -> Value:
    return einsum(emit, equation, list(operands))


def einsum(emit: Emitter, equation: str, operands: list[Value]) -> Value:
    """torch.einsum by matrix products of two operands at a time, from the left."""
    left, _, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if "..." in left:
        terms, right = _without_ellipsis(terms, right, operands)
    if "->" not in equation:
        letters = "".join(terms)
        right = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    if any(len(set(term)) < len(term) for term in terms):
        raise CannotConvert("a diagonal in einsum")
    value, term = operands[0], terms[0]
    for place in range(1, len(operands)):
        kept = set(right) | set("".join(terms[place + 1 :]))
        value, term = _pair(emit, value, term, operands[place], terms[place], kept)
    value, term = _summed(emit, value, term, set(right))
    return emit.transpose(value, [term.index(c) for c in right])


def _without_ellipsis(terms: list[str], right: str, operands: list[Value]) -> tuple[list[str], str]:
    spare = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in "".join(terms)]
    longest = max(value.rank - len(term) + 3 for term, value in zip(terms, operands, strict=True) if "..." in term)
    letters = "".join(spare[:longest])
    made = []
    for term, value in zip(terms, operands, strict=True):
        count = value.rank - len(term) + 3
        made.append(term.replace("...", letters[longest - count :] if "..." in term else ""))
    return made, right.replace("...", letters)


def _summed(emit: Emitter, value: Value, term: str, kept: set[str]) -> tuple[Value, str]:
    from espalier.torch.convert_reduce import reduce

    gone = [place for place, letter in enumerate(term) if letter not in kept]
    if not gone:
        return value, term
    return reduce(emit, "reduce_sum", value, gone), "".join(letter for letter in term if letter in kept)


def _pair(emit: Emitter, a: Value, at: str, b: Value, bt: str, kept: set[str]) -> tuple[Value, str]:
    a, at = _summed(emit, a, at, kept | set(bt))
    b, bt = _summed(emit, b, bt, kept | set(at))
    batch = [c for c in at if c in bt and c in kept]
    inner = [c for c in at if c in bt and c not in kept]
    rows = [c for c in at if c not in bt]
    columns = [c for c in bt if c not in at]
    sizes: dict[str, Size] = {**dict(zip(bt, b.shape, strict=True)), **dict(zip(at, a.shape, strict=True))}
    a = emit.transpose(a, [at.index(c) for c in (*batch, *rows, *inner)])
    b = emit.transpose(b, [bt.index(c) for c in (*batch, *inner, *columns)])
    lead = [sizes[c] for c in batch]
    a = emit.reshape(a, [*lead, product(sizes[c] for c in rows), product(sizes[c] for c in inner)])
    b = emit.reshape(b, [*lead, product(sizes[c] for c in inner), product(sizes[c] for c in columns)])
    made = matmul(emit, a, b)
    term = "".join((*batch, *rows, *columns))
    return emit.reshape(made, [sizes[c] for c in term]), term


@handles("dropout.default", "native_dropout.default")
def _dropout(emit: Emitter, x: Value, p: Any, train: bool = True) -> Value:
    return dropout(emit, x, float(emit.scalar(p)) if train else 0.0)


def dropout(emit: Emitter, x: Value, rate: float) -> Value:
    """Zeros with probability `rate` while training."""
    if rate == 0.0:
        return x
    if rate >= 1.0:
        return emit.arithmetic("multiply", x, 0.0)
    return emit.op("dropout", [emit.whole(x)], {"rate": rate}, shape=x.shape, dtype=x.dtype)


@handles("feature_dropout.default")
def _feature_dropout(emit: Emitter, x: Value, p: Any, train: bool) -> Value:
    """Dropout of whole channels."""
    rate = float(emit.scalar(p))
    if not train or rate == 0.0:
        return x
    shape = (*x.shape[:2], *(1,) * (x.rank - 2))
    kept = dropout(emit, emit.whole(emit.fill(1.0, x.dtype, shape)), rate)
    return emit.elementwise("multiply", [x, kept])


@handles("cosine_similarity.default")
def _cosine_similarity(emit: Emitter, a: Value, b: Value, dim: int = 1, eps: Any = 1e-8) -> Value:
    from espalier.torch.convert_reduce import reduce

    shape = broadcast(a.shape, b.shape)
    a, b = (Value(v.held, shape, v.dtype, v.held_shape) for v in (a, b))
    normal = []
    for value in (a, b):
        length = reduce(emit, "reduce_l2", value, [dim], True)
        length = emit.elementwise("maximum", [length, float(eps)], dtype=value.dtype)
        normal.append(emit.elementwise("divide", [value, length], dtype=value.dtype))
    return reduce(emit, "reduce_sum", emit.elementwise("multiply", normal, dtype=a.dtype), [dim])
