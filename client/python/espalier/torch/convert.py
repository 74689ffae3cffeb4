"""Walks a traced module and converts operator by operator; collects all that cannot be converted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from espalier.errors import InvalidArgument, Unsupported, UnsupportedOperators
from espalier.torch import handlers as _handlers  # noqa: F401  (registers them)
from espalier.torch import places
from espalier.torch.emitter import Emitter, Output
from espalier.torch.mutations import functional
from espalier.torch.registry import ELEMENTWISE, HANDLERS
from espalier.torch.values import CannotConvert, NeedsBatchSize, Value, constant, is_known, same_shape, sizes
from espalier.torch.writes import Writes

# Checks and hints that compute nothing.
_IGNORED = ("_assert", "sym_constrain_range")
# Operators whose results are other numbers at every call.
_RANDOM = ("espalier.recurrent", "bernoulli", "rand", "dropout", "normal", "uniform", "multinomial", "exponential")
_INLINED = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


def operator_name(target: Any) -> str:
    """Name of an operator as in the registry: "conv2d.default"."""
    return str(target).removeprefix("aten.")


def _shown(node: fx.Node) -> str:
    """Name of an operator for readers, as PyTorch knows it."""
    name = operator_name(node.target)
    return f"aten.{node.args[3]}.input" if name == "espalier.recurrent.default" else f"aten.{name}"


class Converter:
    """Converts the nodes of a traced module. `values`: those of its placeholders, by node.

    `caller`: the user's line that asked for it, named where a node has no line of its own.
    """

    def __init__(
        self, emitter: Emitter, values: Mapping[fx.Node, Any], counters: Mapping[fx.Node, str], caller: str = ""
    ):
        self.emitter = emitter
        self._caller = caller
        self.env: dict[fx.Node, Any] = dict(values)
        self.counters = dict(counters)  # placeholders of buffers of integers, such as num_batches_tracked
        self.counted: dict[str, int] = {}  # how much a step adds to each
        self._problems: dict[str, Unsupported] = {}
        self._frozen = 0  # depth of torch.no_grad()

    def run(self, graph: fx.Graph) -> list[Any]:
        """Converts all nodes and returns the values of the outputs. UnsupportedOperators names all that cannot be."""
        results = self._walk(graph)
        if self._problems:
            raise UnsupportedOperators("PyTorch", list(self._problems.values()))
        return results

    def _walk(self, graph: fx.Graph) -> list[Any]:
        writes = Writes(self.emitter, self.env, graph, self._convert)
        for node in graph.nodes:
            if node.op == "get_attr":
                self.env[node] = self._attribute(node)
            elif node.op == "call_function":
                self._call(node, writes)
            elif node.op == "output":
                return [self._known(argument) for argument in node.args[0]]
        raise AssertionError("a traced module has an output")

    def _attribute(self, node: fx.Node) -> Any:
        found: Any = node.graph.owning_module
        for part in str(node.target).split("."):
            found = getattr(found, part)
        return constant(found.detach()) if isinstance(found, torch.Tensor) else found

    def _known(self, argument: Any) -> Any:
        return fx.node.map_arg(argument, lambda node: self.env[node])

    def _call(self, node: fx.Node, writes: Writes) -> None:
        name = operator_name(node.target)
        result = node.meta.get("val")
        if name.startswith(_IGNORED):
            self.env[node] = None
            return
        if result is not None and not isinstance(result, (torch.Tensor, tuple, list)):
            self.env[node] = result  # a size, or a number computed from sizes
            return
        self.emitter.source = places.line_of(node, self._caller)
        self.emitter.name = self._layer(node)
        try:
            if getattr(node.target, "__name__", "") in _INLINED:
                self.env[node] = self._inline(node)
            elif self._is_counter(node):
                self._count(node)
            elif name == "<built-in function getitem>":
                made, index = self._known(node.args)
                self.env[node] = made[index]
            else:
                replaced = functional(node.target)
                value = self._convert(node, replaced if replaced is not None else node.target)
                self.env[node] = value
                if replaced is not None:
                    writes.write(node, value)
        except CannotConvert as error:
            self._problem(node, str(error))
        except NeedsBatchSize as error:
            layer = places.layer_of(node)
            where = f"{self.emitter.source or 'an unknown line'}{f', in {layer}' if layer else ''}"
            raise InvalidArgument(f"aten.{name} at {where}: {error}") from error

    def _problem(self, node: fx.Node, reason: str) -> None:
        name = _shown(node)
        known = self._problems.get(name)
        library = places.library_line_of(node)
        self._problems[name] = Unsupported(
            op=name,
            count=known.count + 1 if known else 1,
            source=known.source if known else self.emitter.source,
            reason=known.reason if known else reason,
            layer=known.layer if known else ", ".join(filter(None, (places.layer_of(node), library))),
        )
        # The rest is looked at as if it could be converted.
        shapes = self._outputs(node)
        made = [
            Value(self.emitter.graph.op("unsupported", [], source=""), output.shape, output.dtype, output.shape)
            for output in shapes
        ]
        self.env[node] = tuple(made) if isinstance(node.meta.get("val"), (tuple, list)) else made[0]

    @staticmethod
    def _outputs(node: fx.Node) -> list[Output]:
        result = node.meta.get("val")
        tensors = result if isinstance(result, (tuple, list)) else [result]
        return [Output(sizes(t.shape), t.dtype) for t in tensors if isinstance(t, torch.Tensor)]

    def _layer(self, node: fx.Node) -> str:
        """A name for nodes of the graph: the layer's, as in state_dict, or the operator's."""
        operator = operator_name(node.target).partition(".")[0].strip("_")
        layer, _ = places.layer_path(node)
        return f"{layer}.{operator}" if layer else operator

    # Buffers that count steps.

    def _is_counter(self, node: fx.Node) -> bool:
        return bool(node.args) and node.args[0] in self.counters and functional(node.target) is not None

    def _count(self, node: fx.Node) -> None:
        buffer = self.counters[node.args[0]]
        step = self._known(node.args[1]) if len(node.args) > 1 else None
        if isinstance(step, Value) and step.is_constant and step.rank == 0:
            step = step.elements().item()
        if operator_name(node.target) not in ("add_.Tensor", "add_.Scalar") or not isinstance(step, int):
            raise CannotConvert(f"it changes buffer {buffer}, of integers, by other than a constant")
        self.counted[buffer] = self.counted.get(buffer, 0) + step
        self.env[node] = self.env[node.args[0]]

    # Regions with settings of their own, such as torch.no_grad().

    def _inline(self, node: fx.Node) -> Any:
        settings, arguments = self._split_settings(node)
        (module,) = [a for a in node.args if isinstance(a, fx.Node) and isinstance(self.env[a], fx.GraphModule)]
        graph = self.env[module].graph
        operands = self._known(arguments)
        frozen = node.target.__name__ == "wrap_with_set_grad_enabled" and not settings[0]
        autocast = node.target.__name__ == "wrap_with_autocast"
        if autocast and settings[2]:
            raise CannotConvert("torch.autocast is on inside of the module; leave it out and give precision= instead")
        for placeholder, operand in zip([n for n in graph.nodes if n.op == "placeholder"], operands, strict=True):
            self.env[placeholder] = operand
        self._frozen += frozen
        results = self._walk(graph)
        self._frozen -= frozen
        return tuple(results)

    @staticmethod
    def _split_settings(node: fx.Node) -> tuple[list[Any], list[Any]]:
        for place, argument in enumerate(node.args):
            if isinstance(argument, fx.Node) and argument.op == "get_attr":
                return list(node.args[:place]), list(node.args[place + 1 :])
        raise CannotConvert("its body is not a traced graph")

    # One operator.

    def _convert(self, node: fx.Node, target: Any = None) -> Any:
        target = node.target if target is None else target
        name = operator_name(target)
        args, kwargs = self._known(node.args), self._known(node.kwargs)
        outputs = self.emitter.outputs = self._outputs(node)
        if name == "zeros_like.default":  # also of zero_
            args = args[:1]
        folded = self._fold(name, target, args, kwargs)
        if folded is not None:
            return folded
        handler = HANDLERS.get(name)
        if handler is None:
            raise CannotConvert("")
        kwargs = {key: value for key, value in kwargs.items() if key not in ("layout", "device", "pin_memory")}
        made = handler(self.emitter, *args, **kwargs)
        if self._frozen:
            made = self._stop(made)
        self._check(name, made, outputs)
        return made

    def _stop(self, made: Any) -> Any:
        if isinstance(made, tuple):
            return tuple(self.emitter.stop_gradient(value) for value in made)
        return self.emitter.stop_gradient(made)

    def _check(self, name: str, made: Any, outputs: list[Output]) -> None:
        values = made if isinstance(made, tuple) else (made,)
        for value, output in zip(values, outputs, strict=False):
            if value is not None and (not same_shape(value.shape, output.shape) or value.dtype != output.dtype):
                raise AssertionError(
                    f"aten.{name} at {self.emitter.source}: converted to {value.dtype} {value.shape}, "
                    f"but PyTorch says {output.dtype} {output.shape}"
                )

    def _fold(self, name: str, target: Any, args: Any, kwargs: Any) -> Any | None:
        """The result of an operator on known elements, computed by PyTorch."""
        if name.startswith(_RANDOM) or not isinstance(target, torch._ops.OpOverload):
            return None
        operands: list[Any] = []
        fx.node.map_aggregate((args, kwargs), lambda item: operands.append(item))
        tensors = [item for item in operands if isinstance(item, Value)]
        if any(not value.is_constant for value in tensors):
            return None
        if any(isinstance(item, (torch.SymInt, torch.SymFloat)) and not _is_number(item) for item in operands):
            return None
        held = name in ELEMENTWISE
        outputs = self.emitter.outputs
        if not held and not (all(is_known(v.shape) for v in tensors) and all(is_known(o.shape) for o in outputs)):
            return None
        if any(math.prod(output.shape) > 1 << 24 for output in outputs if is_known(output.shape)):
            return None

        def known(item: Any) -> Any:
            if isinstance(item, Value):
                return item.held if held else item.elements()
            return int(item) if isinstance(item, torch.SymInt) else item

        kwargs = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory")}
        with torch.no_grad():
            result = target(*fx.node.map_aggregate(args, known), **fx.node.map_aggregate(kwargs, known))
        if isinstance(result, torch.Tensor):
            return constant(result, outputs[0].shape)
        return tuple(constant(r, o.shape) for r, o in zip(result, outputs, strict=True))


def _is_number(item: Any) -> bool:
    return not item.node.expr.free_symbols
