"""Models of the real Keras 3, as models of this package."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from espalier.errors import InvalidArgument, Unsupported, UnsupportedOperators
from espalier.keras import ops
from espalier.keras.layer import Layer
from espalier.keras.layers import layer_class
from espalier.keras.layers.core import Input
from espalier.keras.models import Model, Sequential
from espalier.keras.tensor import KerasTensor, transform

# Entries of Keras' configurations that say nothing about the computation.
_IGNORED = {
    "dtype",
    "quantization_config",
    "autocast",
    "seed",
    "batch_shape",
    "batch_input_shape",
    "renorm_clipping",
    "flash_attention",
    "use_cudnn",
    "unroll",
    "zero_output_for_mask",
    "input_length",
    "lora_alpha",
    "ragged",
    "sparse",
    "optional",
    "synchronized",
    "build_config",
}


def _config(layer: Any) -> dict[str, Any]:
    found: dict[str, Any] = layer.get_config()
    return found


def _plain(config: Mapping[str, Any], kind: type[Layer]) -> dict[str, Any]:
    # What our class takes; InvalidArgument for something else that is not neutral.
    parameters: set[str] = set()
    for base in kind.__mro__:
        if "__init__" in vars(base):
            parameters |= set(inspect.signature(vars(base)["__init__"]).parameters)
    found = {}
    for key, value in config.items():
        if key in _IGNORED and not (key == "dtype" and kind.__name__ == "InputLayer"):
            continue
        if key in parameters:
            found[key] = value
        elif value not in (None, False, 0, 0.0, "auto", [], {}):
            raise InvalidArgument(f"{key}={value!r} is not supported")
    return found


def _named(function: str, *arguments: Any) -> Any:
    return getattr(ops, function)(*arguments)


# Operations of Keras (arithmetic on tensors) by class, as functions of the tensors and of the operation.
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda op, a, b: ops.add(a, b),
    "Subtract": lambda op, a, b: ops.subtract(a, b),
    "Multiply": lambda op, a, b: ops.multiply(a, b),
    "TrueDivide": lambda op, a, b: ops.divide(a, b),
    "Divide": lambda op, a, b: ops.divide(a, b),
    "Power": lambda op, a, b: ops.power(a, b),
    "Maximum": lambda op, a, b: ops.maximum(a, b),
    "Minimum": lambda op, a, b: ops.minimum(a, b),
    "Matmul": lambda op, a, b: ops.matmul(a, b),
    "Square": lambda op, a: ops.square(a),
    "StopGradient": lambda op, a: ops.stop_gradient(a),
    "GetItem": lambda op, a, key: ops.get_item(a, key),
    "Reshape": lambda op, a: ops.reshape(a, op.newshape),
    "Transpose": lambda op, a: ops.transpose(a, op.axes),
    "ExpandDims": lambda op, a: ops.expand_dims(a, op.axis),
    "Squeeze": lambda op, a: ops.squeeze(a, op.axis),
    "Concatenate": lambda op, a: ops.concatenate(a, op.axis),
    "Softmax": lambda op, a: ops.softmax(a, getattr(op, "axis", -1)),
    "Cast": lambda op, a: ops.cast(a, op.dtype),
    "Sum": lambda op, a: _named("sum", a, op.axis, op.keepdims),
    "Mean": lambda op, a: _named("mean", a, op.axis, op.keepdims),
    "Max": lambda op, a: _named("max", a, op.axis, op.keepdims),
    "Min": lambda op, a: _named("min", a, op.axis, op.keepdims),
    "Clip": lambda op, a: ops.clip(a, op.x_min, op.x_max),
    "Relu": lambda op, a: _named("relu", a),
    "Sigmoid": lambda op, a: _named("sigmoid", a),
    "Silu": lambda op, a: _named("silu", a),
    "Tanh": lambda op, a: _named("tanh", a),
    "Softplus": lambda op, a: _named("softplus", a),
    "Exp": lambda op, a: _named("exp", a),
    "Log": lambda op, a: _named("log", a),
    "Sqrt": lambda op, a: _named("sqrt", a),
    "Rsqrt": lambda op, a: _named("rsqrt", a),
    "Absolute": lambda op, a: _named("absolute", a),
    "Negative": lambda op, a: _named("negative", a),
}


class _Converter:
    """Makes layers, each once, and collects what is not supported."""

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}
        self.wrong: dict[str, tuple[str, str]] = {}  # class -> (name of the first layer, reason)
        self.counts: Counter[str] = Counter()

    def refuse(self, layer: Any, reason: str) -> None:
        kind = type(layer).__name__
        self.counts[kind] += 1
        self.wrong.setdefault(kind, (getattr(layer, "name", ""), reason))

    def raise_if_wrong(self) -> None:
        if self.wrong:
            raise UnsupportedOperators(
                "Keras",
                [Unsupported(k, self.counts[k], f"layer {name}", why) for k, (name, why) in self.wrong.items()],
            )

    def survey(self, model: Any) -> None:
        """Makes all layers of a model."""
        for operation in _operations(model):
            if _is_model(operation):
                self.survey(operation)
            elif id(operation) not in self.made and not _is_input(operation):
                if _is_layer(operation):
                    self._layer(operation)
                elif type(operation).__name__ not in _OPERATIONS:
                    self.refuse(operation, "there is no such operation here")

    def _layer(self, layer: Any) -> None:
        kind = type(layer).__name__
        try:
            ours = layer_class(kind)
            if not type(layer).__module__.startswith("keras."):
                raise InvalidArgument("a class of your own; build the model of Keras' layers")
            self.made[id(layer)] = ours.from_config(_plain(_converted(_config(layer)), ours))
        except InvalidArgument as error:
            reason = str(error).removeprefix(f"layer {kind} is not supported: ")
            self.refuse(layer, reason)

    def model(self, model: Any) -> Model:
        """The model; survey must have found nothing wrong."""
        if id(model) in self.made:
            found: Model = self.made[id(model)]
            return found
        if type(model).__name__ == "Sequential":
            made: Model = self._sequential(model)
        else:
            made = self._functional(model)
        self.made[id(model)] = made
        made._trainable = bool(model.trainable)
        for layer in model.layers:
            ours = self.made.get(id(layer))
            if ours is not None:
                _freeze_like(ours, layer)
        return made

    def _sequential(self, model: Any) -> Model:
        if not model.built or not model.inputs:
            raise InvalidArgument(
                f"{model.name} is not built: give its first layer an input, or call build(input_shape)"
            )
        first = model.inputs[0]
        layers = [self.model(x) if _is_model(x) else self.made[id(x)] for x in model.layers if not _is_input(x)]
        return Sequential([Input(first.shape[1:], dtype=str(first.dtype), name=first.name), *layers], name=model.name)

    def _functional(self, model: Any) -> Model:
        tensors: dict[int, KerasTensor] = {}
        inputs = transform(_structure(model, "inputs"), lambda t: Input(t.shape[1:], dtype=str(t.dtype), name=t.name))
        for theirs, ours in zip(_leaves(_structure(model, "inputs")), _leaves(inputs), strict=True):
            tensors[id(theirs)] = ours
        for node in _nodes(model):
            if _is_input(node.operation):
                for theirs in node.outputs:
                    if id(theirs) not in tensors:
                        raise InvalidArgument(f"{model.name} has an input {theirs.name} that is not in its inputs")
                continue
            args, kwargs = transform((node.arguments.args, node.arguments.kwargs), lambda t: tensors.get(id(t), t))
            result = self._call(node.operation, args, kwargs)
            for theirs, ours in zip(node.outputs, _leaves(result), strict=True):
                tensors[id(theirs)] = ours
        outputs = transform(_structure(model, "outputs"), lambda t: tensors[id(t)])
        return Model(inputs, outputs, name=model.name)

    def _call(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _is_model(operation):
            return self.model(operation)(*args, **kwargs)
        if _is_layer(operation):
            return self.made[id(operation)](*args, **kwargs)
        named = {key: value for key, value in kwargs.items() if value is not None}
        return _OPERATIONS[type(operation).__name__](operation, *args, *named.values())


def _freeze_like(ours: Layer, theirs: Any) -> None:
    if isinstance(ours, Model):
        return
    ours._trainable = bool(theirs.trainable)


def _converted(value: Any) -> Any:
    # Nested layers of wrappers, in configurations, lose what our classes do not take.
    if isinstance(value, Mapping):
        if "class_name" in value and isinstance(value.get("config"), Mapping) and "module" in value:
            if str(value["module"]).startswith("keras.layers") or str(value["module"]).startswith("keras.src.layers"):
                kind = layer_class(str(value["class_name"]))
                return {"class_name": value["class_name"], "config": _plain(_converted(value["config"]), kind)}
            if value["class_name"] == "DTypePolicy":
                return None
        return {key: _converted(item) for key, item in value.items()}
    return value


def _is_layer(operation: Any) -> bool:
    return any(c.__name__ == "Layer" and c.__module__.startswith("keras.") for c in type(operation).__mro__)


def _is_model(operation: Any) -> bool:
    return any(c.__name__ == "Model" and c.__module__.startswith("keras.") for c in type(operation).__mro__)


def _is_input(operation: Any) -> bool:
    return type(operation).__name__ == "InputLayer"


def _operations(model: Any) -> list[Any]:
    if not hasattr(model, "operations") and type(model).__name__ != "Sequential":
        raise InvalidArgument(
            f"{getattr(model, 'name', model)!r} is no functional or Sequential model of Keras 3: a class with a `call` "
            "of its own cannot be read; write it with espalier.keras.Model, whose `call` is traced"
        )
    return list(model.layers) if type(model).__name__ == "Sequential" else list(model.operations)


def _nodes(model: Any) -> list[Any]:
    by_depth = model._nodes_by_depth
    return [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]


def _structure(model: Any, which: str) -> Any:
    found = getattr(model, f"_{which}_struct", None)
    return getattr(model, which) if found is None else found


def _leaves(structure: Any) -> list[Any]:
    from espalier.keras.tensor import flatten

    return flatten(structure)


def from_keras(model: Any) -> Model:
    """A functional or Sequential model of the real Keras 3, with its weights, names and frozen layers.

    UnsupportedOperators lists all layers that have no counterpart. Weights are in Keras' order on both sides:
    keras_model.set_weights(model.get_weights()) takes the trained ones back. If the model was compiled, compile this
    one, too.
    """
    converter = _Converter()
    converter.survey(model)
    converter.raise_if_wrong()
    made = converter.model(model)
    theirs = model.weights
    mine = made.weights
    if [tuple(v.shape) for v in theirs] != [v.shape for v in mine]:
        raise InvalidArgument(
            f"{model.name}: weights differ: {[(v.path, tuple(v.shape)) for v in theirs]} and "
            f"{[(v.path, v.shape) for v in mine]}"
        )
    made.set_weights(model.get_weights())
    return made
