"""`to_graph`: a PyTorch module as a graph, with its loss."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import fx, nn

from espalier.errors import InvalidArgument
from espalier.graph import Graph, Tensor, source_line, zeros
from espalier.torch import convert_loss
from espalier.torch.convert import Converter, operator_name
from espalier.torch.emitter import Emitter, Output
from espalier.torch.export import trace
from espalier.torch.loss_facts import LabelRange, is_mean, label_ranges
from espalier.torch.prune import prune
from espalier.torch.recurrent import check_not_packed
from espalier.torch.structure import leaves, structure_of
from espalier.torch.values import Shape, Value, constant, size
from espalier.v1 import graph_pb2

Columns: TypeAlias = "torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]"
Loss: TypeAlias = "nn.Module | Callable[..., torch.Tensor] | None"

METRICS = ("accuracy",)


@dataclass
class ModuleGraph:
    """What `to_graph` makes of a module."""

    graph: Graph
    inputs: list[str]  # names of the arguments, then of the labels
    labels: list[str]  # names of the labels
    # Parameters and running statistics of the graph -> the tensors of the module that they are.
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    # Buffers of integers -> what a step adds to them.
    counters: dict[str, tuple[torch.Tensor, int]] = field(default_factory=dict)
    fixed_batch: str = ""  # why the graph is for one batch size only; empty: it was traced for any
    # The module's results by name: their shapes, in which sizes that follow the batch are expressions of one symbol.
    outputs: dict[str, tuple[Shape, torch.dtype]] = field(default_factory=dict)
    structure: Any = None  # of what the module returns (structure.py)
    # A reported value that is no mean over examples, so that those of batches do not add up; empty: there is none.
    no_mean: str = ""
    accuracy_of: tuple[str, str] = ("", "")  # output and label of the metric, if there is one
    ranges: list[LabelRange] = field(default_factory=list)  # of labels that the loss reads


class _Names:
    """Names of a traced function's results; torch.export refuses lists of a module that tracing changes."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.structure: Any = None


class _Call(nn.Module):  # type: ignore[misc]
    """A module and its loss as one function of columns."""

    def __init__(self, module: nn.Module, loss: Loss, arguments: list[str], positional: bool, labels: list[str]):
        super().__init__()
        self.module = module
        self.loss = loss if isinstance(loss, nn.Module) else None
        self._function = None if isinstance(loss, nn.Module) else loss
        self._arguments, self._positional, self._labels = arguments, positional, labels
        self.traced = _Names()

    def forward(self, *columns: torch.Tensor) -> tuple[torch.Tensor, ...]:
        count = len(self._arguments)
        given, labels = columns[:count], columns[count:]
        if self._positional:
            outputs = self.module(*given)
        else:
            outputs = self.module(**dict(zip(self._arguments, given, strict=True)))
        named = dict(leaves(outputs))
        loss: Any = self.loss if self.loss is not None else self._function
        if loss is not None:
            value = loss(outputs if self.loss is None else _prediction(outputs), *labels)
            if not isinstance(value, torch.Tensor):
                raise InvalidArgument(f"the loss returned {type(value).__name__}; it must return a tensor")
            named["loss"] = value
        self.traced.names, self.traced.structure = list(named), structure_of(outputs)
        return tuple(named.values())


def _prediction(outputs: Any) -> torch.Tensor:
    """What a loss of torch.nn reads of a module's result."""
    if isinstance(outputs, torch.Tensor):
        return outputs
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else None
    if isinstance(logits, torch.Tensor):
        return logits
    kind = f"{type(outputs).__name__} of {', '.join(name for name, _ in leaves(outputs)) or 'no tensors'}"
    raise InvalidArgument(
        f"the module returns a {kind}, and the loss takes one tensor; "
        "give a function of the outputs and labels, such as loss=lambda y, labels: F.cross_entropy(y[0], labels)"
    )


def _named(columns: Columns | None, names: Sequence[str], what: str) -> dict[str, torch.Tensor]:
    if columns is None:
        return {}
    check_not_packed(columns)
    if isinstance(columns, torch.Tensor):
        columns = [columns]
    if not isinstance(columns, Mapping):
        if len(columns) > len(names):
            raise InvalidArgument(f"{len(columns)} {what}, but there are names for {len(names)}: {', '.join(names)}")
        columns = dict(zip(names, columns, strict=False))
    for name, tensor in columns.items():
        check_not_packed(tensor)
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgument(f"{what} {name}: a {type(tensor).__name__}; tensors are needed")
    return dict(columns)


def argument_names(module: nn.Module) -> list[str]:
    """Names of the positional arguments of the module's forward."""
    names: list[str] = []
    for name, parameter in inspect.signature(module.forward).parameters.items():
        if parameter.kind == inspect.Parameter.VAR_POSITIONAL:
            return [*names, *(f"{name}.{place}" for place in range(16))]
        if parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            names.append(name)
    return names


def _check_module(module: nn.Module) -> None:
    for name, part in module.named_modules():
        norm = isinstance(part, nn.modules.batchnorm._NormBase) and part.training and part.track_running_stats
        if norm and part.momentum is None:
            raise InvalidArgument(
                f"{name or type(part).__name__}: momentum=None, a cumulative average, is not supported; "
                "give a momentum such as 0.1"
            )
    for name, parameter in module.named_parameters():
        if parameter.dtype != torch.float32:
            raise InvalidArgument(
                f"parameter {name} is {parameter.dtype}; parameters are float32: module.float(), and precision='bf16' "
                "of the trainer to compute in 16 bits"
            )


def to_graph(
    module: nn.Module,
    example_inputs: Columns,
    *,
    loss: Loss = None,
    example_labels: Columns | None = None,
    metrics: Sequence[str] = (),
    batch_size: int | None = None,
    name: str | None = None,
    with_data: bool = True,
    trained: Set[int] | None = None,
) -> ModuleGraph:
    """Traces a module with torch.export and converts it.

    `example_inputs`: a tensor, several, or a dict by argument names; dimension 0 is the batch. With `loss`, a module of
    torch.nn or a function of (outputs, *labels), the graph has an output "loss"; without one, a module's own result
    `loss` is taken, as transformers models return it. The module is traced in its present mode (train() or eval()):
    dropout and batch statistics are those of that mode. Parameters with requires_grad=False are frozen.

    `batch_size` is needed only where the module computes with it. With `with_data=False` the graph has no initial
    elements of parameters; they are in `tensors` of the result. `trained`: ids of the parameters to train (None: all).

    UnsupportedOperators lists all operators that cannot be converted, InvalidArgument says what else cannot be.
    """
    _check_module(module)
    arguments = _named(example_inputs, argument_names(module), "example inputs")
    labels = _named(example_labels, ["labels", *(f"labels.{place}" for place in range(1, 16))], "example labels")
    if not arguments:
        raise InvalidArgument("example_inputs: at least one tensor")
    for metric in metrics:
        if metric not in METRICS:
            raise InvalidArgument(f"metric {metric!r}: accepted are {', '.join(METRICS)}")
    positional = not isinstance(example_inputs, Mapping)
    call = _Call(module, loss, list(arguments), positional, list(labels))
    columns = {**arguments, **labels}
    if len(columns) < len(arguments) + len(labels):
        raise InvalidArgument("an argument and a label have the same name; give the labels as a dict of other names")
    traced = trace(call, list(columns.values()), batch_size)
    graph = Graph(name or type(module).__name__)
    converted = ModuleGraph(graph, list(columns), list(labels), fixed_batch=traced.fixed)
    emitter = Emitter(graph, batch_size)
    values, counters = _placeholders(traced.program, call, columns, emitter, converted, with_data, trained)
    caller = source_line(skip=[os.path.dirname(torch.__file__)])
    converter = Converter(emitter, values, counters, caller)
    results = converter.run(traced.program.graph)
    specs = [spec.kind.name == "USER_OUTPUT" for spec in traced.program.graph_signature.output_specs]
    outputs = dict(zip(call.traced.names, [r for r, user in zip(results, specs, strict=True) if user], strict=True))
    tensors = dict(call.named_buffers())
    for buffer, step in converter.counted.items():
        converted.counters[_stripped(buffer)] = (tensors[buffer], step)
    converted.outputs = {name: (value.shape, value.dtype) for name, value in outputs.items()}
    converted.structure = call.traced.structure
    _write_outputs(emitter, outputs, labels, values, metrics, converted)
    converted.ranges = label_ranges(emitter)
    prune(graph)
    used = set(graph.parameters)
    converted.tensors = {key: tensor for key, tensor in converted.tensors.items() if key in used}
    return converted


def _stripped(target: str) -> str:
    return target.removeprefix("module.")


def _placeholders(
    program: Any,
    call: _Call,
    columns: Mapping[str, torch.Tensor],
    emitter: Emitter,
    converted: ModuleGraph,
    with_data: bool,
    chosen: Set[int] | None,
) -> tuple[dict[fx.Node, Any], dict[fx.Node, str]]:
    """Values of the traced module's placeholders: inputs, parameters, buffers, constants."""
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    statistics = _running_statistics(program.graph)
    written = {s.target for s in program.graph_signature.output_specs if s.kind.name == "BUFFER_MUTATION"}
    parameters = dict(call.named_parameters(remove_duplicate=False))
    buffers = dict(call.named_buffers(remove_duplicate=False))
    values: dict[fx.Node, Any] = {}
    counters: dict[fx.Node, str] = {}
    known: dict[int, Value] = {}  # tied tensors are one value
    inputs = iter(columns.items())
    pairs = list(zip(program.graph_signature.input_specs, nodes, strict=True))
    for spec, node in pairs:
        if spec.kind.name == "USER_INPUT":
            key, example = next(inputs)
            shape = (None, *example.shape[1:])
            tensor = emitter.graph.input(key, shape, _input_dtype(key, example))
            rows = size(node.meta["val"].shape[0])
            values[node] = Value(tensor, (rows, *example.shape[1:]), example.dtype, (rows, *example.shape[1:]))
    for spec, node in pairs:
        kind = spec.kind.name
        if kind == "PARAMETER" or (kind == "BUFFER" and node in statistics):
            tensor = parameters[spec.target] if kind == "PARAMETER" else buffers[spec.target]
            trained = kind == "PARAMETER" and tensor.requires_grad and (chosen is None or id(tensor) in chosen)
            if id(tensor) not in known:
                known[id(tensor)] = _parameter(emitter, _stripped(spec.target), tensor, trained, with_data, converted)
            node.meta["state"] = _stripped(spec.target)
            values[node] = known[id(tensor)]
        elif kind == "BUFFER":
            buffer = buffers[spec.target]
            node.meta["state"] = _stripped(spec.target)
            values[node] = constant(buffer.detach())
            if not buffer.dtype.is_floating_point and (spec.target in written or _is_written(node)):
                counters[node] = spec.target
        elif kind == "CONSTANT_TENSOR":
            values[node] = constant(program.constants[spec.target].detach())
        elif kind != "USER_INPUT":
            raise InvalidArgument(f"torch.export made an input of kind {kind}, which is not supported")
    return values, counters


def _input_dtype(name: str, example: torch.Tensor) -> torch.dtype:
    if example.dtype == torch.float64:
        raise InvalidArgument(f"input {name} is float64; use .float()")
    return example.dtype


def _is_written(node: fx.Node) -> bool:
    return any(
        operator_name(user.target).endswith(("_.Tensor", "_.Scalar")) and user.args[0] is node for user in node.users
    )


def _running_statistics(graph: fx.Graph) -> set[fx.Node]:
    """Placeholders that batch normalization moves."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "call_function" and operator_name(node.target) == "batch_norm.default" and node.args[5]:
            found.update(argument for argument in node.args[3:5] if isinstance(argument, fx.Node))
    return found


def _parameter(
    emitter: Emitter, name: str, tensor: torch.Tensor, trained: bool, with_data: bool, converted: ModuleGraph
) -> Value:
    shape = tuple(tensor.shape)
    if with_data:
        made = emitter.graph.parameter(name, data=tensor.detach().cpu().numpy(), trainable=trained)
    else:
        made = emitter.graph.parameter(name, shape, initializer=zeros(), trainable=trained)
    if trained:
        emitter.trainable.add(made.index)
    converted.tensors[made.name] = tensor
    return Value(made, shape, tensor.dtype, shape)


def _write_outputs(
    emitter: Emitter,
    outputs: Mapping[str, Value],
    labels: Mapping[str, torch.Tensor],
    values: Mapping[fx.Node, Any],
    metrics: Sequence[str],
    converted: ModuleGraph,
) -> None:
    emitter.source, emitter.name = "", None
    inputs = {value.held.name: value for value in values.values() if _is_input(value)}
    rows = inputs[converted.inputs[0]].shape[0]
    for name, value in outputs.items():
        emitter.outputs = [Output(value.shape, value.dtype)]
        if name == "loss":
            if value.rank > 0 and all(length == 1 for length in value.shape):
                value = emitter.reshape(value, [])
            if value.rank > 0:
                raise InvalidArgument(f"the loss has shape {value.shape}; it must be one number, such as its mean")
            if not emitter.depends(value):
                raise InvalidArgument("the loss depends on no parameter with requires_grad=True")
            converted.no_mean = "" if is_mean(emitter, value, rows) else "loss"
        emitter.graph.output(name, emitter.tensor(emitter.whole(value)))
    if metrics:
        logits = next((n for n, v in outputs.items() if n != "loss" and v.rank >= 2), "")
        target = next((name for name in inputs if name in labels), "")
        if not logits or not target:
            raise InvalidArgument("metrics need an output of logits [N, classes, ...] and labels of classes")
        accuracy = convert_loss.accuracy(emitter, outputs[logits], inputs[target])
        converted.accuracy_of = (logits, target)
        if not is_mean(emitter, accuracy, rows):
            converted.no_mean = converted.no_mean or "accuracy"
        emitter.graph.output("accuracy", emitter.tensor(accuracy))


def _is_input(value: Any) -> bool:
    held = getattr(value, "held", None)
    return isinstance(held, Tensor) and bool(held.graph.proto.values[held.index].kind == graph_pb2.INPUT)


__all__ = ["METRICS", "ModuleGraph", "argument_names", "to_graph"]
