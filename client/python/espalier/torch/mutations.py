"""In-place operators: what they change, and which other tensors of the module see it."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

# Operators whose result shares its elements with the first argument.
VIEWS = {
    "aten.slice.Tensor",
    "aten.select.int",
    "aten.view.default",
    "aten.unsqueeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.default",
    "aten.squeeze.dims",
    "aten.transpose.int",
    "aten.permute.default",
    "aten.expand.default",
    "aten.expand_as.default",
    "aten.narrow.int",
    "aten.swapaxes.default",
    "aten.t.default",
    "aten.unflatten.int",
    "aten.alias.default",
    "aten.detach.default",
    "aten.view_as.default",
}
# Operators whose result may share them, or be a copy.
MAYBE_VIEWS = {
    "aten.reshape.default",
    "aten.flatten.using_ints",
    "aten.contiguous.default",
    "aten.to.dtype",
    "aten.to.device",
    "aten.to.dtype_layout",
    "aten.type_as.default",
    "aten.chunk.default",
    "aten.split.Tensor",
    "aten.split_with_sizes.default",
    "aten.unbind.int",
    "<built-in function getitem>",
    "aten.dropout.default",
    "aten.expand_as.default",
}


def functional(target: Any) -> Any | None:
    """The operator that gives what an in-place one writes (add for add_); None: `target` is not in place."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    name = target._schema.name.partition("::")[2]
    if not target._schema.is_mutable:
        return None
    packet = getattr(torch.ops.aten, name[:-1], None) if name.endswith("_") else None
    if name == "zero_":
        packet = torch.ops.aten.zeros_like
    elif name == "fill_":
        packet = torch.ops.aten.fill
    if packet is None:
        return None
    for overload in (target._overloadname, "default"):
        if overload in packet.overloads():
            return getattr(packet, overload)
    return None


def _shares(node: fx.Node) -> bool:
    """Whether the result of `node` has elements in common with its first argument."""
    if node.op != "call_function" or not node.args:
        return False
    return str(node.target) in VIEWS or str(node.target) in MAYBE_VIEWS or functional(node.target) is not None


def views_of(node: fx.Node) -> list[fx.Node]:
    """The nodes that share elements with `node`, those that do so through others included, and `node` itself."""
    root = node
    while _shares(root) and isinstance(root.args[0], fx.Node):
        root = root.args[0]
    found, pending = [root], [root]
    while pending:
        base = pending.pop()
        for user in base.users:
            if _shares(user) and user.args[0] is base and user not in found:
                found.append(user)
                pending.append(user)
    return found
