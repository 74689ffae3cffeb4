"""Layers around a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from espalier.errors import InvalidArgument
from espalier.keras.layer import Layer, Spec, lower_layer
from espalier.keras.layers.recurrent import reversed_copy
from espalier.keras.lowering import Lowering, Value
from espalier.keras.serialization import named
from espalier.keras.tensor import KerasTensor, Shape, flatten


def _layer(layer: Any) -> Layer:
    # A layer or its configuration.
    made = named(layer)
    if made is not None:
        from espalier.keras.layers import layer_class

        layer = layer_class(made[0]).from_config(made[1])
    if not isinstance(layer, Layer):
        raise InvalidArgument(f"{layer!r} is no layer")
    return layer


class TimeDistributed(Layer):
    """A layer applied to every step of [batch, steps, ...]."""

    def __init__(self, layer: Any, **kwargs: Any):
        super().__init__(**kwargs)
        self.layer = _layer(layer)

    def _build(self, shapes: list[Shape]) -> None:
        if len(shapes) != 1 or len(shapes[0]) < 3:
            raise InvalidArgument(f"takes [batch, steps, ...], got {shapes}")
        self.layer._ensure_built([(None, *shapes[0][2:])])

    def _outputs(self, specs: list[Spec], arguments: Mapping[str, Any]) -> list[Spec]:
        shape, dtype = specs[0]
        made = self.layer._outputs([((None, *shape[2:]), dtype)], arguments)
        return [((shape[0], shape[1], *inner[1:]), inner_dtype) for inner, inner_dtype in made]

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The batch and the steps, then the layer's shape."""
        return (*input_shape[:2], *self.layer.compute_output_shape((None, *input_shape[2:]))[1:])

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = g.merge_batch(g.plain(inputs[0]), 2)
        steps = inputs[0].shape[1]
        if steps is None:
            raise InvalidArgument(f"the number of steps must be known, got {inputs[0].shape}")
        made = lower_layer(self.layer, g, [Value(x, x.shape or ())], arguments)
        split = [g.split_batch(g.plain(v), (None, steps)) for v in made]
        return [Value(t, t.shape or ()) for t in split]


class Bidirectional(Layer):
    """A recurrent layer and its like that reads the steps from the end.

    merge_mode is "concat", "sum", "mul", "ave", or None for both results.
    """

    _call_arguments = ("initial_state", "training")

    def __init__(
        self,
        layer: Any,
        merge_mode: str | None = "concat",
        weights: Any = None,
        backward_layer: Any = None,
        **kwargs: Any,
    ):
        layer = _layer(layer)
        super().__init__(**kwargs)
        if merge_mode not in ("concat", "sum", "mul", "ave", None):
            raise InvalidArgument(f"{self.name}: merge_mode={merge_mode!r}; accepted are concat, sum, mul, ave, None")
        self.merge_mode = merge_mode
        config = layer.get_config()
        config["name"] = f"forward_{layer.name.removeprefix('forward_')}"
        self.forward_layer: Any = type(layer).from_config(config)
        backward: Any = reversed_copy(layer) if backward_layer is None else _layer(backward_layer)
        self.backward_layer = backward
        if self.backward_layer.go_backwards == self.forward_layer.go_backwards:
            raise InvalidArgument(f"{self.name}: backward_layer reads the steps in the same order as layer")
        self._initial = weights

    @property
    def _returns_list(self) -> bool:  # type: ignore[override]
        return bool(self.forward_layer.return_state) or self.merge_mode is None

    def _bind(self, inputs: Any, *args: Any, **kwargs: Any) -> tuple[list[KerasTensor], dict[str, Any]]:
        tensors, arguments = super()._bind(inputs, *args, **kwargs)
        tensors += flatten(arguments.pop("initial_state", []))
        return tensors, arguments

    def _build(self, shapes: list[Shape]) -> None:
        half = (len(shapes) - 1) // 2
        self.forward_layer._ensure_built(shapes[: 1 + half])
        self.backward_layer._ensure_built([shapes[0], *shapes[1 + half :]])
        if self._initial is not None:
            self.built = True
            self.set_weights(self._initial)

    def _outputs(self, specs: list[Spec], arguments: Mapping[str, Any]) -> list[Spec]:
        one = self.forward_layer._outputs(specs[:1], arguments)
        states = [*one[1:], *one[1:]]
        shape = one[0][0]
        if self.merge_mode is None:
            return [one[0], one[0], *states]
        if self.merge_mode == "concat":
            shape = (*shape[:-1], 2 * int(shape[-1] or 0))
        return [(shape, "float32"), *states]

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Shape of the merged results; a list of several."""
        shapes = [shape for shape, _ in self._outputs([(tuple(input_shape), "float32")], {})]
        return shapes if self._returns_list else shapes[0]

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        half = (len(inputs) - 1) // 2
        forward = lower_layer(self.forward_layer, g, inputs[: 1 + half], {**arguments, "in_time": True})
        backward = lower_layer(self.backward_layer, g, [inputs[0], *inputs[1 + half :]], {**arguments, "in_time": True})
        a, b = g.plain(forward[0]), g.plain(backward[0])
        states = [*forward[1:], *backward[1:]]
        if self.merge_mode is None:
            return [forward[0], backward[0], *states]
        if self.merge_mode == "concat":
            assert a.shape is not None
            shape = (*a.shape[:-1], 2 * int(a.shape[-1] or 0))
            y = g.op("concat", [a, b], {"axis": len(shape) - 1}, shape=shape)
        elif self.merge_mode == "mul":
            y = g.broadcast("multiply", a, b)
        else:
            y = g.broadcast("add", a, b)
            if self.merge_mode == "ave":
                y = g.scalar("multiply_scalar", y, 0.5)
        return [Value(y, y.shape or ()), *states]
