"""Rewrites of a converted program: what libraries spell out in several operators becomes one.

Each matches exactly what it replaces, values and gradients alike. Attention, norms and layers are left to the
coordinator's own fusion rules.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from espalier.jax.ir import Node, Program, Wire, same


def made_by(wire: Wire | None, op: str) -> Node | None:
    """The node that computes a wire, if it applies `op`."""
    return wire.node if wire is not None and wire.node is not None and wire.node.op == op else None


def number_of(wire: Wire | None) -> float | None:
    """The element of a constant of one element."""
    return (
        float(wire.data.reshape(-1)[0]) if wire is not None and wire.data is not None and wire.data.size == 1 else None
    )


def _through(wire: Wire | None, *ops: str) -> Wire | None:
    """Past nodes of one operand."""
    while wire is not None and wire.node is not None and wire.node.op in ops:
        wire = wire.node.inputs[0]
    return wire


def _stopped_maximum(wire: Wire | None) -> tuple[Wire, tuple[int, ...]] | None:
    """x and axes of stop_gradient(max(x over axes)), with or without dimensions of size 1, or 0 for infinite ones."""
    wire = _through(wire, "unsqueeze", "reshape", "stop_gradient", "identity")
    node = made_by(wire, "where")
    if node is not None and number_of(node.inputs[2]) == 0:
        finite, value, _ = node.inputs
        test = made_by(finite, "less")
        if test is None or made_by(test.inputs[0], "abs") is None:
            return None
        wire = value
    node = made_by(_through(wire, "unsqueeze", "stop_gradient"), "reduce_max")
    if node is None or node.inputs[0] is None:
        return None
    return node.inputs[0], tuple(node.ints("axes"))


def _contains_stop(wire: Wire | None) -> bool:
    """Whether a stop_gradient lies between a wire and the maximum it is made from."""
    for _ in range(8):
        if wire is None or wire.node is None or wire.node.op == "reduce_max":
            return False
        if wire.node.op == "stop_gradient":
            return True
        wire = wire.node.inputs[1 if wire.node.op == "where" else 0]
    return False


def _shifted(wire: Wire | None) -> tuple[Wire, tuple[int, ...], Wire] | None:
    """x, axes and the maximum m of x - stop_gradient(m)."""
    node = made_by(wire, "subtract")
    if node is None:
        return None
    found = _stopped_maximum(node.inputs[1])
    if found is None or found[0] is not node.inputs[0] or not _contains_stop(node.inputs[1]):
        return None
    assert node.inputs[1] is not None
    return found[0], found[1], node.inputs[1]


def _magnitude(wire: Wire | None) -> Wire | None:
    """x of where(x >= 0, x, -x): of a sum of exponentials nothing else."""
    node = made_by(_through(wire, "unsqueeze", "reshape"), "where")
    negative = made_by(node.inputs[2], "neg") if node is not None else None
    if node is not None and negative is not None and negative.inputs[0] is node.inputs[1]:
        return node.inputs[1]
    return wire


def _sum_of_exponentials(wire: Wire | None) -> tuple[Wire, tuple[int, ...], Wire] | None:
    """x, axes and m of sum(exp(x - stop_gradient(m)) over axes)."""
    total = made_by(_through(_magnitude(wire), "unsqueeze", "reshape"), "reduce_sum")
    exponential = made_by(total.inputs[0], "exp") if total is not None else None
    found = _shifted(exponential.inputs[0]) if exponential is not None else None
    if found is None or total is None or tuple(total.ints("axes")) != found[1]:
        return None
    return found


def fuse_softmax(program: Program) -> int:
    """softmax, log_softmax and logsumexp, whose maxima are behind stop_gradient. Returns how many."""
    count = 0
    for node in list(program.nodes):
        new = _softmax(program, node) or _log_softmax(program, node) or _log_sum_exp(program, node)
        if new is not None:
            program.replace(node.outputs[0], new)
            count += 1
    return count


def _emit_before(program: Program, node: Node, op: str, inputs: list[Wire | None], **attributes: Any) -> Wire:
    program.source, program.scope = node.source, node.scope
    like = node.outputs[0]
    made: Wire = program.emit(op, inputs, attributes.pop("shape", like.shape), like.dtype, **attributes)
    return made


def _softmax(program: Program, node: Node) -> Wire | None:
    if node.op != "divide":
        return None
    exponential = made_by(node.inputs[0], "exp")
    below = _sum_of_exponentials(node.inputs[1])
    above = _shifted(exponential.inputs[0]) if exponential is not None else None
    if below is None or above is None or below[0] is not above[0] or len(below[1]) != 1:
        return None
    return _emit_before(program, node, "softmax", [below[0]], axis=below[1][0])


def _log_softmax(program: Program, node: Node) -> Wire | None:
    if node.op != "subtract":
        return None
    logarithm = made_by(_through(node.inputs[1], "unsqueeze", "reshape"), "log")
    total = _sum_of_exponentials(logarithm.inputs[0]) if logarithm is not None else None
    above = _shifted(node.inputs[0])
    if total is None or above is None or above[0] is not total[0] or len(total[1]) != 1:
        return None
    return _emit_before(program, node, "log_softmax", [total[0]], axis=total[1][0])


def _log_sum_exp(program: Program, node: Node) -> Wire | None:
    if node.op != "add":
        return None
    for first, second in ((0, 1), (1, 0)):
        logarithm = made_by(_through(node.inputs[first], "unsqueeze", "reshape"), "log")
        total = _sum_of_exponentials(logarithm.inputs[0]) if logarithm is not None else None
        if total is None:
            continue
        maximum = _stopped_maximum(node.inputs[second])
        if maximum is None or maximum[0] is not total[0] or maximum[1] != total[1]:
            continue
        if not _contains_stop(node.inputs[second]):
            continue
        shape = node.outputs[0].shape
        axes = [int(a) for a in total[1]]
        left = tuple(d for i, d in enumerate(total[0].shape) if i not in axes)
        kept = tuple(1 if i in axes else d for i, d in enumerate(total[0].shape))
        for keepdims, wanted in ((False, left), (True, kept)):
            if len(wanted) == len(shape) and all(same(a, b) for a, b in zip(shape, wanted, strict=True)):
                return _emit_before(program, node, "reduce_log_sum_exp", [total[0]], axes=axes, keepdims=keepdims)
    return None


def drop_cancelling_stops(program: Program) -> None:
    """stop_gradient(s) as s in exp(x - s) / sum(exp(x - s)), masked or not: the quotient does not depend on s."""
    users = program.users()

    def readers(wire: Wire) -> list[Node]:
        """Readers of a wire and of its views."""
        found: list[Node] = []
        for node in users.get(id(wire), []):
            found += readers(node.outputs[0]) if node.op in ("unsqueeze", "reshape", "squeeze") else [node]
        return found

    def masked(wires: list[Wire]) -> list[Wire]:
        """Wires, and those that are they or 0, by a mask."""
        zeroed = [n.outputs[0] for w in wires for n in users.get(id(w), []) if n.op == "where"]
        return wires + [z for z in zeroed if z.node is not None and number_of(z.node.inputs[2]) == 0]

    for node in [n for n in program.nodes if n.op == "stop_gradient"]:
        shifts = readers(node.outputs[0])
        if any(n.op != "subtract" or _through(n.inputs[1], *_VIEWS) is not node.outputs[0] for n in shifts):
            continue
        powers = [n for shift in shifts for n in readers(shift.outputs[0])]
        if not powers or any(n.op != "exp" for n in powers):
            continue
        exponentials = masked([n.outputs[0] for n in powers])
        known = {id(w) for w in exponentials}
        uses = [n for w in exponentials for n in users.get(id(w), []) if id(n.outputs[0]) not in known]
        sums = [n for n in uses if n.op == "reduce_sum"]
        divisions = [n for n in uses if n.op == "divide"] + [d for n in sums for d in readers(n.outputs[0])]
        totals = {id(n.outputs[0]) for n in sums}
        if len(uses) == len(sums) + sum(n.op == "divide" for n in uses) and all(
            d.op == "divide" and id(d.inputs[0]) in known and id(_through(d.inputs[1], *_VIEWS)) in totals
            for d in divisions
        ):
            assert node.inputs[0] is not None
            program.replace(node.outputs[0], node.inputs[0])
            users = program.users()


_VIEWS = ("unsqueeze", "reshape", "squeeze")


def fuse_dropout(program: Program) -> int:
    """where(random < keep, x / keep, 0), and (random < keep) * x / keep, as the operator dropout. Returns how many."""
    users = program.users()
    count = 0
    for node in list(program.nodes):
        found = _dropout_where(node, users) or _dropout_product(node, users)
        if found is None:
            continue
        x, keep = found
        new = _emit_before(program, node, "dropout", [x], rate=1.0 - keep)
        program.replace(node.outputs[0], new)
        count += 1
    return count


def _keep(wire: Wire | None, users: dict[int, list[Node]], like: Wire) -> float | None:
    """The probability of `random < keep`, of uniform numbers of the shape of `like` that nothing else reads."""
    test = made_by(wire, "less")
    drawn = made_by(test.inputs[0], "random_like") if test is not None else None
    keep = number_of(test.inputs[1]) if test is not None else None
    if drawn is None or keep is None or drawn.attributes.get("distribution") != "uniform" or not 0 < keep <= 1:
        return None
    if drawn.attributes["a"] != 0.0 or drawn.attributes["b"] != 1.0 or len(users[id(drawn.outputs[0])]) != 1:
        return None
    shape = drawn.outputs[0].shape
    if len(shape) != len(like.shape) or not all(same(a, b) for a, b in zip(shape, like.shape, strict=True)):
        return None
    return keep


def _dropout_where(node: Node, users: dict[int, list[Node]]) -> tuple[Wire, float] | None:
    if node.op != "where" or number_of(node.inputs[2]) != 0:
        return None
    scaled = made_by(node.inputs[1], "divide_scalar")
    if scaled is None or scaled.inputs[0] is None:
        return None
    keep = _keep(node.inputs[0], users, scaled.inputs[0])
    mask = node.inputs[0]
    if keep is None or mask is None or len(users[id(mask)]) != 1 or not _near(scaled.attributes["value"], keep):
        return None
    return scaled.inputs[0], keep


def _dropout_product(node: Node, users: dict[int, list[Node]]) -> tuple[Wire, float] | None:
    if node.op != "divide_scalar":
        return None
    product = made_by(node.inputs[0], "multiply")
    if product is None or len(users[id(product.outputs[0])]) != 1:
        return None
    for first, second in ((0, 1), (1, 0)):
        mask, x = made_by(product.inputs[first], "cast"), product.inputs[second]
        if mask is None or x is None or len(users[id(mask.outputs[0])]) != 1:
            continue
        keep = _keep(mask.inputs[0], users, x)
        if keep is not None and _near(node.attributes["value"], keep):
            return x, keep
    return None


def _near(a: Any, b: float) -> bool:
    return abs(float(a) - b) <= 1e-6 * abs(b)


def merge_scalars(program: Program) -> None:
    """x * a / b with numbers a and b as one product, and none for a = b: averages of windows."""
    for node in list(program.nodes):
        inner = made_by(node.inputs[0], "multiply_scalar") if node.op == "divide_scalar" else None
        if inner is None or inner.inputs[0] is None:
            continue
        factor = inner.number("value") / node.number("value")
        if factor == 1:
            program.replace(node.outputs[0], inner.inputs[0])


def fuse_bias(program: Program) -> None:
    """A convolution and the bias that is added to it as one operator."""
    users = program.users()
    for node in list(program.nodes):
        if node.op != "add":
            continue
        for first, second in ((0, 1), (1, 0)):
            operand = node.inputs[first]
            convolution = operand.node if operand is not None else None
            view = made_by(node.inputs[second], "unsqueeze")
            bias = view.inputs[0] if view is not None else None
            if convolution is None or bias is None or len(bias.shape) != 1 or len(convolution.inputs) != 3:
                continue
            fits = convolution.op in _CONVOLUTIONS and convolution.inputs[2] is None
            channels = convolution.outputs[0].shape
            if fits and len(users[id(convolution.outputs[0])]) == 1 and same(bias.shape[0], channels[1]):
                spatial = list(range(1, len(channels) - 1))
                if view is not None and view.ints("axes") == spatial:
                    convolution.inputs[2] = bias
                    program.replace(node.outputs[0], convolution.outputs[0])
                    break


_CONVOLUTIONS = tuple(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3))


def fuse_cross_entropy(program: Program) -> None:
    """logsumexp(x) - x[label], as optax writes it, as one operator; a mean of it is that operator's."""
    for node in list(program.nodes):
        found = _cross_entropy(node)
        if found is None:
            continue
        logits, labels = found
        new = _emit_before(program, node, "sparse_categorical_crossentropy", [logits, labels], reduction="none")
        program.replace(node.outputs[0], new)


def _cross_entropy(node: Node) -> tuple[Wire, Wire] | None:
    total = made_by(node.inputs[0], "reduce_log_sum_exp") if node.op == "subtract" else None
    taken = made_by(node.inputs[1], "squeeze") if total is not None else None
    lookup = made_by(taken.inputs[0], "gather_elements") if taken is not None else None
    if total is None or lookup is None or lookup.inputs[0] is not total.inputs[0] or total.attributes["keepdims"]:
        return None
    logits, labels = total.inputs[0], made_by(lookup.inputs[1], "unsqueeze")
    assert logits is not None
    last = len(logits.shape) - 1
    if labels is None or labels.inputs[0] is None or lookup.attributes["axis"] != last:
        return None
    if total.ints("axes") != [last] or labels.ints("axes") != [last]:
        return None
    return (logits, labels.inputs[0]) if labels.inputs[0].kind == "input" else None


def name_means(program: Program) -> None:
    """Outputs that are means over everything become operators of losses, which may end in a part of a batch."""
    for name, wire in program.outputs.items():
        node = made_by(wire, "reduce_mean")
        if node is None or node.inputs[0] is None or wire.shape or wire.dtype != "float32":
            continue
        program.source, program.scope = node.source, node.scope
        inner = made_by(node.inputs[0], "sparse_categorical_crossentropy")
        op, inputs = (inner.op, inner.inputs) if inner is not None else ("identity_loss", [node.inputs[0]])
        program.outputs[name] = program.emit(op, inputs, (), "float32")


def store_transposed(program: Program) -> dict[str, tuple[int, ...]]:
    """Lets parameters that are only read transposed be stored so. Returns the permutations, by parameter."""
    users = program.users()
    outputs = {id(w) for w in program.outputs.values()}
    stored: dict[str, tuple[int, ...]] = {}
    for wire in program.parameters:
        readers = users.get(id(wire), [])
        if not readers or id(wire) in outputs or any(n.op != "transpose" for n in readers):
            continue
        perms = {tuple(n.ints("perm")) for n in readers}
        if len(perms) != 1 or wire.data is None:
            continue
        (perm,) = perms
        for reader in readers:
            program.replace(reader.outputs[0], wire)
        wire.data = np.ascontiguousarray(np.transpose(wire.data, perm))
        wire.shape = wire.data.shape
        stored[wire.name] = tuple(int(p) for p in perm)
    return stored
