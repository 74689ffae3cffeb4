"""Makes in-place operators visible in the other tensors that share elements with what they change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from espalier.torch.emitter import Emitter
from espalier.torch.mutations import MAYBE_VIEWS, VIEWS, functional, views_of
from espalier.torch.shapes import concat, slice_range, sliced
from espalier.torch.values import CannotConvert, Value, axis, constant, same


class Writes:
    """In-place operators of one traced graph. `env` has the values of its nodes, `convert` converts a node again."""

    def __init__(self, emitter: Emitter, env: dict[fx.Node, Any], graph: fx.Graph, convert: Callable[..., Any]):
        self._emitter = emitter
        self._env = env
        self._order = {node: place for place, node in enumerate(graph.nodes)}
        self._convert = convert

    def write(self, node: fx.Node, value: Value) -> None:
        """`node` has written `value` into its first argument."""
        target = node.args[0]
        assert isinstance(target, fx.Node)
        self._refuse_buffers(node, target)
        self._env[target] = value
        now = self._order[node]
        others = [n for n in views_of(target) if n not in (target, node)]
        if not any(self._order[user] > now for other in others for user in other.users if user in self._order):
            return
        path = self._upwards(target, value)
        for other in sorted(others, key=lambda n: self._order.get(n, 0)):
            if other in path or other not in self._env or self._order[other] > now:
                continue
            if functional(other.target) is not None:
                self._env[other] = self._env[other.args[0]]
                continue
            if str(other.target) in MAYBE_VIEWS:
                raise CannotConvert(
                    f"it changes a tensor in place that may share memory with {other.name}; add .clone()"
                )
            self._env[other] = self._convert(other)

    def _refuse_buffers(self, node: fx.Node, target: fx.Node) -> None:
        for place in views_of(target):
            if place.op == "placeholder" and "state" in place.meta:
                raise CannotConvert(
                    f"it changes {place.meta['state']} in place; of parameters and buffers only running statistics of "
                    "batch normalization, and counters, are changed by a step"
                )

    def _upwards(self, node: fx.Node, value: Value) -> list[fx.Node]:
        """Writes `value` of a view into what it is a view of, and so on."""
        path = [node]
        while node.op == "call_function" and node.args and isinstance(node.args[0], fx.Node):
            parent = node.args[0]
            if functional(node.target) is None:
                if str(node.target) not in VIEWS:
                    if str(node.target) in MAYBE_VIEWS:
                        raise CannotConvert("it changes in place what may be a view or a copy; add .clone() or .view()")
                    break
                value = self._into(self._env[parent], node, value)
            self._env[parent] = value
            path.append(parent)
            node = parent
        return path

    def _into(self, base: Value, view: fx.Node, value: Value) -> Value:
        """`base` with `value` in the place that `view` shows."""
        emit, name = self._emitter, str(view.target)
        arguments = fx.node.map_arg(view.args[1:], lambda node: self._env[node])
        if name in ("aten.slice.Tensor", "aten.select.int", "aten.narrow.int"):
            dim = axis(int(arguments[0]) if arguments else 0, base.rank)
            if name == "aten.select.int":
                first = emit.number(arguments[1])
                first = first + emit.number(base.shape[dim]) if first < 0 else first
                start: Any = first
                end: Any = first + 1
                value = emit.reshape(value, [*base.shape[:dim], 1, *base.shape[dim + 1 :]])
            elif name == "aten.narrow.int":
                start, end = arguments[1], arguments[1] + arguments[2]
            else:
                start, end, step = slice_range(base.shape[dim], *arguments[1:])
                if step != 1:
                    raise CannotConvert("it writes to a slice with a step")
            parts = [value]
            if not same(start, 0):
                parts.insert(0, sliced(emit, base, dim, 0, start))
            if not same(end, base.shape[dim]):
                parts.append(sliced(emit, base, dim, end, base.shape[dim]))
            return concat(emit, parts, dim) if len(parts) > 1 else value
        if name in ("aten.transpose.int", "aten.swapaxes.default"):
            order = list(range(base.rank))
            a, b = (axis(int(d), base.rank) for d in arguments)
            order[a], order[b] = order[b], order[a]
            return emit.transpose(value, order)
        if name == "aten.permute.default":
            order = [0] * base.rank
            for place, dim in enumerate(arguments[0]):
                order[axis(int(dim), base.rank)] = place
            return emit.transpose(value, order)
        if name in ("aten.expand.default", "aten.expand_as.default"):
            raise CannotConvert("it writes to an expanded tensor")
        if isinstance(value.held, torch.Tensor) and value.is_whole:
            return constant(value.held.reshape(base.shape)) if not base.is_constant else emit.reshape(value, base.shape)
        return emit.reshape(value, base.shape)
