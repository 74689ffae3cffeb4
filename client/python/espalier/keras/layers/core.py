"""Dense, embedding and activation layers, inputs, and arithmetic on constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from espalier.errors import InvalidArgument
from espalier.graph import dtype_name
from espalier.keras import activations, backend, constraints
from espalier.keras.layer import Layer, Spec, only_one
from espalier.keras.lowering import Lowering, Value, known
from espalier.keras.tensor import KerasTensor, Shape
from espalier.keras.variable import Layout

# Activations that the operators of Dense and of convolutions apply themselves. Sigmoid is left apart for losses.
FUSED = ("relu", "tanh")


def apply_activation(g: Lowering, x: Value, activation: activations.Activation) -> Value:
    """The activation of x, unless its operator applied it."""
    return x if activation.name in ("linear", *FUSED) else activation.lower(g, x)


def fused(activation: activations.Activation) -> dict[str, str]:
    """The operator's attribute for an activation that it applies itself."""
    return {"activation": activation.name} if activation.name in FUSED else {}


class InputLayer(Layer):
    """The beginning of a model: what `Input` makes."""

    _any_dtype = True

    def __init__(
        self,
        shape: Sequence[int | None] | None = None,
        batch_size: int | None = None,
        dtype: Any = None,
        sparse: bool | None = None,
        batch_shape: Sequence[int | None] | None = None,
        name: str | None = None,
        ragged: bool | None = None,
        optional: bool = False,
        input_shape: Sequence[int | None] | None = None,
        batch_input_shape: Sequence[int | None] | None = None,
        trainable: bool = True,
        **kwargs: Any,
    ):
        kwargs.pop("input_tensor", None)
        super().__init__(name=name, dtype=dtype, **kwargs)
        if sparse or ragged or optional:
            raise InvalidArgument(f"{self.name}: sparse, ragged and optional inputs are not supported")
        whole = batch_shape if batch_shape is not None else batch_input_shape
        own = shape if shape is not None else input_shape
        if (whole is None) == (own is None):
            raise InvalidArgument(f"{self.name}: give either shape or batch_shape")
        if isinstance(own, int):
            own = (own,)
        # The job's batch size counts, not one that is given here.
        dims = tuple(whole)[1:] if whole is not None else tuple(own or ())
        if isinstance(dtype, Mapping):
            dtype = dict(dtype.get("config") or {}).get("name")
        self.shape: Shape = (None, *(None if d is None else int(d) for d in dims))
        self.dtype = dtype_name(dtype or "float32")
        self.built = True
        self.output = KerasTensor(self.shape, self.dtype, self.name)
        self.output.origin = self

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the input."""
        return self.shape

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        return inputs


def Input(  # noqa: N802
    shape: Sequence[int | None] | None = None,
    batch_size: int | None = None,
    dtype: Any = None,
    sparse: bool | None = None,
    batch_shape: Sequence[int | None] | None = None,
    name: str | None = None,
    tensor: Any = None,
    optional: bool = False,
) -> KerasTensor:
    """A tensor that is fed at every step; `shape` is without the batch, float32 unless `dtype` says otherwise."""
    if tensor is not None:
        raise InvalidArgument("Input: an existing tensor is not supported; give its shape")
    layer = InputLayer(
        shape=shape,
        batch_size=batch_size,
        dtype=dtype,
        sparse=sparse,
        batch_shape=batch_shape,
        name=name or backend.automatic_name("keras_tensor"),
        optional=optional,
    )
    return layer.output


class Dense(Layer):
    """activation(x kernel + bias) over the last dimension; the kernel is [inputs, units]."""

    def __init__(
        self,
        units: int,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        lora_rank: int | None = None,
        lora_alpha: float | None = None,
        quantization_config: Any = None,
        **kwargs: Any,
    ):
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        if int(units) <= 0:
            raise InvalidArgument(f"{self.name}: units={units}; accepted: above 0")
        if lora_rank is not None or quantization_config is not None:
            raise InvalidArgument(f"{self.name}: LoRA and quantized layers are not trained here")
        self.units = int(units)
        self.activation = activations.get(activation)
        self.use_bias = use_bias
        self._kernel = (kernel_initializer, kernel_regularizer, kernel_constraint)
        self._bias = (bias_initializer, bias_regularizer, bias_constraint)

    def _build(self, shapes: list[Shape]) -> None:
        shape = only_one("Dense", shapes)
        if len(shape) < 2 or shape[-1] is None:
            raise InvalidArgument(f"the input needs at least two dimensions and a known last one, got {shape}")
        layout = Layout((self.units, shape[-1]), (1, 0))
        initializer, regularizer, constraint = self._kernel
        self.kernel = self.add_weight(
            (shape[-1], self.units),
            initializer,
            name="kernel",
            regularizer=regularizer,
            constraint=constraint,
            layout=layout,
        )
        self.bias = None
        if self.use_bias:
            initializer, regularizer, constraint = self._bias
            self.bias = self.add_weight(
                (self.units,), initializer, name="bias", regularizer=regularizer, constraint=constraint
            )

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape, with `units` last."""
        if self.built and input_shape[-1] not in (None, self.kernel.shape[0]):
            raise InvalidArgument(
                f"the input's last dimension is {input_shape[-1]}; the kernel was made for {self.kernel.shape[0]}"
            )
        return (*input_shape[:-1], self.units)

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = g.plain(inputs[0])
        shape = (*inputs[0].shape[:-1], self.units)
        bias = None if self.bias is None else g.weight(self.bias)
        y = g.op("linear", [x, g.weight(self.kernel), bias], fused(self.activation), shape=shape)
        return [apply_activation(g, Value(y, shape), self.activation)]


class Activation(Layer):
    """An activation function as a layer."""

    def __init__(self, activation: Any, **kwargs: Any):
        super().__init__(**kwargs)
        self.activation = activations.get(activation)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape."""
        return input_shape

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        return [self.activation.lower(g, inputs[0])]


class Identity(Layer):
    """The input."""

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape."""
        return input_shape

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        return inputs[:1]


class Embedding(Layer):
    """Rows of a table: ids [...] give [..., output_dim]."""

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        weights: Any = None,
        input_length: int | None = None,
        lora_rank: int | None = None,
        lora_alpha: float | None = None,
        quantization_config: Any = None,
        **kwargs: Any,
    ):
        super().__init__(input_shape=None if input_length is None else (input_length,), **kwargs)
        if mask_zero:
            raise InvalidArgument(
                f"{self.name}: mask_zero=True: masks are not supported. Layers behind it would read the padding as "
                "steps; use mask_zero=False and weigh padded labels by sample_weight"
            )
        if lora_rank is not None or quantization_config is not None:
            raise InvalidArgument(f"{self.name}: LoRA and quantized layers are not trained here")
        self.input_dim, self.output_dim = int(input_dim), int(output_dim)
        constraints.refuse(f"{self.name}: embeddings_constraint", embeddings_constraint)
        self.embeddings = self.add_weight(
            (self.input_dim, self.output_dim),
            embeddings_initializer,
            name="embeddings",
            regularizer=embeddings_regularizer,
        )
        if weights is not None:
            self.embeddings.assign(np.asarray(weights[0] if isinstance(weights, (list, tuple)) else weights))
        self.built = True
        self._name_weights()

    def _outputs(self, specs: list[Spec], arguments: Mapping[str, Any]) -> list[Spec]:
        return [(self.compute_output_shape(specs[0][0]), "float32")]

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the ids and output_dim."""
        return (*input_shape, self.output_dim)

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        ids = g.plain(inputs[0])
        if ids.dtype not in ("int32", "int64"):
            ids = g.cast(ids, "int32")
        shape = (*inputs[0].shape, self.output_dim)
        return [Value(g.op("embedding", [ids, g.weight(self.embeddings)], shape=shape), shape)]


class Rescaling(Layer):
    """x * scale + offset, for numbers or one number for each channel (the last dimension)."""

    def __init__(self, scale: Any, offset: Any = 0.0, data_format: str | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.scale, self.offset = np.asarray(scale, np.float32), np.asarray(offset, np.float32)

    def _outputs(self, specs: list[Spec], arguments: Mapping[str, Any]) -> list[Spec]:
        return [(specs[0][0], "float32")]

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape."""
        return input_shape

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = inputs[0]
        if self.scale.ndim == 0 and self.offset.ndim == 0:
            x = Value(g.cast(x.tensor, "float32"), x.shape, x.order)
            x = g.map(x, "multiply_scalar", {"value": float(self.scale)})
            return [x if self.offset == 0 else g.map(x, "add_scalar", {"value": float(self.offset)})]
        y = g.broadcast("multiply", g.cast(g.plain(x), "float32"), g.constant(self.scale))
        return [Value(g.broadcast("add", y, g.constant(self.offset)), x.shape)]


class Normalization(Layer):
    """(x - mean) / sqrt(variance) with given or adapted numbers, one for each index of `axis`."""

    def __init__(self, axis: Any = -1, mean: Any = None, variance: Any = None, invert: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.axis = axis if axis is None or isinstance(axis, (list, tuple)) else (int(axis),)
        if (mean is None) != (variance is None):
            raise InvalidArgument(f"{self.name}: give mean and variance, or neither and call adapt(data)")
        self.invert = invert
        self.mean = None if mean is None else np.asarray(mean, np.float32)
        self.variance = None if variance is None else np.asarray(variance, np.float32)

    def adapt(self, data: Any) -> None:
        """Takes mean and variance from an array of examples."""
        array = np.asarray(data, np.float64)
        kept = [d % array.ndim for d in self.axis or ()]
        others = tuple(d for d in range(array.ndim) if d not in kept)
        self.mean, self.variance = array.mean(others).astype(np.float32), array.var(others).astype(np.float32)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape."""
        return input_shape

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        if self.mean is None or self.variance is None:
            raise InvalidArgument("has no mean and variance yet: call adapt(data) before training")
        x = inputs[0]
        kept = [d % len(x.shape) for d in self.axis or ()]
        sizes = [x.shape[d] if d in kept else 1 for d in range(len(x.shape))]
        dims = known(sizes, "Normalization")
        count = int(np.prod(dims))
        mean = np.broadcast_to(self.mean.reshape(-1), (count,)).reshape(dims)
        deviation = np.maximum(np.sqrt(np.broadcast_to(self.variance.reshape(-1), (count,)).reshape(dims)), 1e-7)
        tensor = g.cast(g.plain(x), "float32")
        if self.invert:
            y = g.broadcast("add", g.broadcast("multiply", tensor, g.constant(deviation)), g.constant(mean))
        else:
            y = g.broadcast("divide", g.broadcast("subtract", tensor, g.constant(mean)), g.constant(deviation))
        return [Value(y, x.shape)]
