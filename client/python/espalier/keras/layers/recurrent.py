"""Recurrent layers: x [batch, steps, features]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from espalier.errors import InvalidArgument
from espalier.graph import Tensor
from espalier.keras import activations
from espalier.keras.initializers import Initializer
from espalier.keras.initializers import get as initializer_of
from espalier.keras.layer import Layer, Spec
from espalier.keras.layers.regularization import ones_like
from espalier.keras.lowering import Lowering, Value, known
from espalier.keras.tensor import KerasTensor, Shape, flatten
from espalier.keras.variable import Array, Layout, Variable


class _UnitForgetBias(Initializer):
    # Keras' bias of an LSTM: 1 for the forget gate, the layer's initializer for the others.
    def __init__(self, other: Any, units: int):
        self.other, self.units = other, units

    def _draw(self, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
        bias = initializer_of(self.other)(shape)
        bias[self.units : 2 * self.units] = 1
        return bias


class _Recurrent(Layer):
    op = "rnn"
    gates: tuple[int, ...] = (0,)  # of the operator, as indices of Keras' gates
    outputs = 2
    functions = 1  # activations: the gates' first, if there are gates
    _call_arguments = ("initial_state", "training")

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        seed: int | None = None,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        use_cudnn: Any = "auto",
        zero_output_for_mask: bool = False,
        time_major: bool = False,
        **kwargs: Any,
    ):
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        for argument, value in (
            ("recurrent_dropout", recurrent_dropout),
            ("stateful", stateful),
            ("time_major", time_major),
        ):
            if value:
                raise InvalidArgument(f"{self.name}: {argument}={value!r} is not supported")
        self.units = int(units)
        self.activation, self.recurrent_activation = map(activations.get, (activation, recurrent_activation))
        for function in (self.activation, self.recurrent_activation):
            if function.name not in activations.RECURRENT:
                known_names = ", ".join(sorted(activations.RECURRENT))
                raise InvalidArgument(f"{self.name}: activation {function.name}; recurrent layers know {known_names}")
        self.use_bias = use_bias
        self.dropout, self.go_backwards = float(dropout), go_backwards
        self.return_sequences, self.return_state = return_sequences, return_state
        self._kernel = (kernel_initializer, kernel_regularizer, kernel_constraint)
        self._recurrent = (recurrent_initializer, recurrent_regularizer, recurrent_constraint)
        self._bias = (bias_initializer, bias_regularizer, bias_constraint)

    @property
    def _returns_list(self) -> bool:  # type: ignore[override]
        return self.return_state

    def _bind(self, inputs: Any, *args: Any, **kwargs: Any) -> tuple[list[KerasTensor], dict[str, Any]]:
        # Keras also takes the state as [x, h, ...].
        tensors, arguments = super()._bind(inputs, *args, **kwargs)
        tensors += flatten(arguments.pop("initial_state", []))
        return tensors, arguments

    def _build(self, shapes: list[Shape]) -> None:
        if len(shapes[0]) != 3:
            raise InvalidArgument(f"takes [batch, steps, features], got {shapes[0]}")
        if len(shapes) not in (1, self.outputs):
            raise InvalidArgument(f"takes {self.outputs - 1} initial states, got {len(shapes) - 1}")
        (features,) = known(shapes[0][2:], type(self).__name__)
        count, units = len(self.gates), self.units
        reordered = self.gates if self.gates != tuple(range(count)) else None
        initializer, regularizer, constraint = self._kernel
        self.kernel = self.add_weight(
            (features, count * units),
            initializer,
            name="kernel",
            regularizer=regularizer,
            constraint=constraint,
            layout=Layout((count * units, features), (1, 0), reordered),
        )
        initializer, regularizer, constraint = self._recurrent
        self.recurrent_kernel = self.add_weight(
            (units, count * units),
            initializer,
            name="recurrent_kernel",
            regularizer=regularizer,
            constraint=constraint,
            layout=Layout((count * units, units), (1, 0), reordered),
        )
        self.bias: Variable | None = self._make_bias(reordered) if self.use_bias else None

    def _make_bias(self, reordered: tuple[int, ...] | None) -> Variable:
        initializer, regularizer, constraint = self._bias
        shape = (len(self.gates) * self.units,)
        return self.add_weight(
            shape,
            initializer,
            name="bias",
            regularizer=regularizer,
            constraint=constraint,
            layout=Layout(shape, None, reordered),
        )

    def _outputs(self, specs: list[Spec], arguments: Mapping[str, Any]) -> list[Spec]:
        shape = self.compute_output_shape(specs[0][0])
        shapes = shape if self.return_state else [shape]
        return [(s, "float32") for s in shapes]

    def compute_output_shape(self, input_shape: Any) -> Any:
        """[batch, units], with return_sequences [batch, steps, units]; with return_state a list of it and states."""
        first = input_shape[0] if input_shape and isinstance(input_shape[0], (list, tuple)) else input_shape
        state = (first[0], self.units)
        shape = (first[0], first[1], self.units) if self.return_sequences else state
        return [shape, *[state] * (self.outputs - 1)] if self.return_state else shape

    def _attributes(self) -> dict[str, Any]:
        chosen = [self.recurrent_activation] * (self.functions > 1) + [self.activation] * max(1, self.functions - 1)
        known_as = [activations.RECURRENT[a.name] for a in chosen]
        attributes: dict[str, Any] = {
            "hidden": self.units,
            "direction": "reverse" if self.go_backwards else "forward",
        }
        if [k[0] for k in known_as] != ["sigmoid", "tanh", "tanh"][-len(known_as) :] or self.functions == 1:
            attributes["activations"] = ",".join(k[0] for k in known_as)
            attributes["alpha"] = [float(k[1]) for k in known_as]
            attributes["beta"] = [float(k[2]) for k in known_as]
        return attributes

    def _bias_tensor(self, g: Lowering) -> Tensor | None:
        # The operator adds two biases, Keras' has one.
        if self.bias is None:
            return None
        size = len(self.gates) * self.units
        zeros = g.constant(np.zeros(size, np.float32))
        both = g.op("concat", [g.weight(self.bias), zeros], {"axis": 0}, shape=(2 * size,))
        return g.op("unsqueeze", [both], {"axes": [0]}, shape=(1, 2 * size))

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = g.plain(inputs[0])
        (steps,) = known(inputs[0].shape[1:2], type(self).__name__)
        if self.dropout > 0 and self._trains(g, arguments):
            # One choice for all steps.
            one = ones_like(g, g.reduce("reduce_max", x, [1], keepdims=True))
            x = g.broadcast("multiply", x, g.op("dropout", [one], {"rate": self.dropout}, shape=one.shape or ()))
        x = g.transpose(x, [1, 0, 2])
        kernel = g.unsqueeze(g.weight(self.kernel), 0)
        recurrent = g.unsqueeze(g.weight(self.recurrent_kernel), 0)
        states = [g.unsqueeze(g.plain(v), 0) for v in inputs[1:]]
        operands = [x, kernel, recurrent, self._bias_tensor(g), None, *states]
        while operands[-1] is None:
            operands.pop()
        state: Shape = (1, None, self.units)
        made = g.op_n(
            self.op, operands, self._attributes(), [(steps, 1, None, self.units), *[state] * (self.outputs - 1)]
        )
        last = [g.squeeze(t, 0) for t in (made[1:] if self.return_state else made[1:2])]
        results = [Value(t, (None, self.units)) for t in last]
        if self.return_sequences:
            y = g.transpose(g.squeeze(made[0], 1), [1, 0, 2])
            if self.go_backwards and not arguments.get("in_time"):
                # Keras' steps are then in the order in which they were made.
                y = g.op("reverse", [y], {"axes": [1]}, shape=y.shape or ())
            first = Value(y, (None, steps, self.units))
        else:
            first = results[0]
        return [first, *results] if self.return_state else [first]


class SimpleRNN(_Recurrent):
    """h = activation(x kernel + h recurrent_kernel + bias)."""

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ):
        super().__init__(
            units,
            activation=activation,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            recurrent_initializer=recurrent_initializer,
            bias_initializer=bias_initializer,
            **kwargs,
        )


class LSTM(_Recurrent):
    """Long short-term memory; gates in Keras' order i, f, c, o."""

    op, outputs, functions = "lstm", 3, 3
    gates = (0, 3, 1, 2)  # the operator's are i, o, f, c

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        unit_forget_bias: bool = True,
        **kwargs: Any,
    ):
        super().__init__(
            units,
            activation=activation,
            recurrent_activation=recurrent_activation,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            recurrent_initializer=recurrent_initializer,
            bias_initializer=_UnitForgetBias(bias_initializer, int(units)) if unit_forget_bias else bias_initializer,
            **kwargs,
        )


class GRU(_Recurrent):
    """Gated recurrent unit; gates in Keras' order z, r, h."""

    op, functions = "gru", 2
    gates = (0, 1, 2)

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        reset_after: bool = True,
        **kwargs: Any,
    ):
        super().__init__(
            units,
            activation=activation,
            recurrent_activation=recurrent_activation,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            recurrent_initializer=recurrent_initializer,
            bias_initializer=bias_initializer,
            **kwargs,
        )
        self.reset_after = reset_after

    def _make_bias(self, reordered: tuple[int, ...] | None) -> Variable:
        if not self.reset_after:
            return super()._make_bias(reordered)
        initializer, regularizer, constraint = self._bias
        return self.add_weight(
            (2, 3 * self.units),
            initializer,
            name="bias",
            regularizer=regularizer,
            constraint=constraint,
            layout=Layout((1, 6 * self.units)),
        )

    def _bias_tensor(self, g: Lowering) -> Tensor | None:
        if self.bias is None or not self.reset_after:
            return super()._bias_tensor(g)
        return g.weight(self.bias)

    def _attributes(self) -> dict[str, Any]:
        return super()._attributes() | {"linear_before_reset": self.reset_after}


def reversed_copy(layer: Layer) -> Layer:
    """The layer that reads the steps from the end, with weights of its own."""
    if not isinstance(layer, _Recurrent):
        raise InvalidArgument(f"{layer.name} is no recurrent layer")
    config = layer.get_config()
    config["go_backwards"] = not layer.go_backwards
    config["name"] = f"backward_{layer.name.removeprefix('forward_')}"
    return type(layer).from_config(config)
