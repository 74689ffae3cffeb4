"""Models: Sequential, functional, nested, and classes of your own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from espalier.errors import InvalidArgument
from espalier.graph import Graph
from espalier.keras import saving, summary
from espalier.keras.inference import Inference
from espalier.keras.layer import Layer, Spec
from espalier.keras.layers.core import Input, InputLayer
from espalier.keras.lowering import Lowering, Value
from espalier.keras.network import Network
from espalier.keras.tensor import KerasTensor, Shape, flatten, transform
from espalier.keras.variable import Variable

# Keras has them here, too.
load_model, model_from_json = saving.load_model, saving.model_from_json


class Model(Inference, Layer):
    """Layers between inputs and outputs: Model(inputs, outputs).

    A class of your own defines `call(inputs)`, made of layers, arithmetic and espalier.keras.ops. It is run once, to
    see how the layers are connected.
    """

    def __init__(
        self, inputs: Any = None, outputs: Any = None, name: str | None = None, trainable: bool = True, **kwargs: Any
    ):
        if "input" in kwargs and "output" in kwargs:  # Keras 1, in FlexFlow's programs
            inputs, outputs = kwargs.pop("input"), kwargs.pop("output")
        super().__init__(name=name, trainable=trainable, **kwargs)
        self._network: Network | None = None
        if (inputs is None) != (outputs is None):
            raise InvalidArgument(f"{self.name}: give inputs and outputs, or neither in a class with a `call`")
        if inputs is not None:
            self._connect(Network(inputs, outputs))

    def _connect(self, network: Network) -> None:
        self._network = network
        self.built = True
        self._name_weights()

    # Structure.

    def _sublayers(self) -> list[Layer]:
        if type(self).call is Layer.call and self._network is not None:
            return [layer for layer in self._network.layers if not isinstance(layer, InputLayer)]
        skipped = ("_arguments", "_nodes", "_network", "optimizer", "history", "_kept", "_live", "_state")
        found: list[Layer] = []
        for key, value in vars(self).items():
            leaves = [] if key in skipped else flatten(value)
            found += [leaf for leaf in leaves if isinstance(leaf, Layer) and all(leaf is not f for f in found)]
        return found

    def _path_prefix(self) -> str:
        # Names of weights in files and jobs begin with the layer's.
        return ""

    def _needed(self) -> Network:
        if self._network is None:
            self._need_built("the model")
            raise InvalidArgument(f"{self.name} was called on other tensors only; call build(input_shape)")
        return self._network

    @property
    def layers(self) -> list[Layer]:
        """The layers, in the order in which they are applied."""
        if self._network is not None and type(self).call is Layer.call:
            begins = [t.origin for t in self._network.inputs if t.origin is not None]
            return [*begins, *self._network.layers]
        return self._sublayers()

    def get_layer(self, name: str | None = None, index: int | None = None) -> Layer:
        """The layer of a name or index; InvalidArgument for one that is not there."""
        if name is None and index is not None:
            return self.layers[index]
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise InvalidArgument(f"{self.name} has no layer {name!r}; it has {', '.join(x.name for x in self.layers)}")

    @property
    def inputs(self) -> list[KerasTensor]:
        """The inputs."""
        return list(self._needed().inputs)

    @property
    def outputs(self) -> list[KerasTensor]:
        """The outputs."""
        return list(self._needed().outputs)

    @property
    def input(self) -> Any:
        """The input, or as it was given for several."""
        return self._needed().inputs_structure

    @property
    def output(self) -> Any:
        """The output, or as it was given for several."""
        return self._needed().outputs_structure

    @property
    def input_shape(self) -> Any:
        """The input's shape, or those of all inputs as they were given."""
        return transform(self.input, lambda tensor: tensor.shape)

    @property
    def output_shape(self) -> Any:
        """The output's shape, or those of all outputs as they were given."""
        return transform(self.output, lambda tensor: tensor.shape)

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs."""
        return self._needed().input_names()

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs: those of their layers."""
        return self._needed().output_names()

    def build(self, input_shape: Any = None) -> None:
        """Makes the weights for inputs of this shape, batch first; float32."""
        if self._network is None:
            self._trace_inputs(transform_shapes(input_shape))

    def _trace_inputs(self, structure: Any) -> None:
        # `structure` holds a (shape, dtype) in each place of an input.
        inputs = _inputs_like(structure)
        outputs = self(inputs)
        self._connect(Network(inputs, outputs))

    # As a layer.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Applies the model to tensors, with the same weights; of arrays, computes the outputs as `predict` does."""
        computed = self._compute(args, kwargs)
        if computed is not NotImplemented:
            return computed
        if type(self).call is Layer.call:
            self._needed()
        made = super().__call__(*args, **kwargs)
        if type(self).call is Layer.call and self._network is not None:
            leaves = iter(flatten(made))
            return transform(self._network.outputs_structure, lambda _: next(leaves))
        return made

    def _outputs(self, specs: list[Spec], arguments: Mapping[str, Any]) -> list[Spec]:
        return self._needed().infer(specs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Shapes of the outputs for those of the inputs."""
        shapes = input_shape if isinstance(input_shape[0], (list, tuple)) else [input_shape]
        specs: list[Spec] = [(tuple(shape), tensor.dtype) for shape, tensor in zip(shapes, self.inputs, strict=True)]
        found = iter([shape for shape, _ in self._needed().infer(specs)])
        return transform(self.output, lambda _: next(found))

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        before = g.training
        training = arguments.get("training")
        if training is not None:
            g.training = bool(training) and before is not False
        try:
            return self._needed().lower(g, inputs, arguments)
        finally:
            g.training = before

    # In graphs, files and text.

    def to_graph(self, shapes: Mapping[str, Shape] | None = None) -> tuple[Lowering, list[Value]]:
        """The model's operators in a new graph, without a loss, and its outputs there.

        `shapes` are those of the inputs by name, where the model has unknown sizes.
        """
        network = self._needed()
        self._name_weights()
        g = Lowering(Graph(self.name))
        values = []
        for name, tensor in zip(network.input_names(), network.inputs, strict=True):
            shape = (None, *((shapes or {}).get(name, tensor.shape))[1:])
            unknown = any(d is None for d in shape[1:])
            if unknown:
                raise InvalidArgument(f"input {name} has shape {tensor.shape}; all but the batch must be known")
            values.append(Value(g.graph.input(name, shape, tensor.dtype), shape))
        return g, network.lower(g, values, {})

    def summary(self, line_length: int | None = None, print_fn: Any = print, **_: Any) -> None:
        """Prints layers, shapes of their results and numbers of weights."""
        print_fn(summary.text(self, line_length))

    def save_weights(self, filepath: Any, overwrite: bool = True) -> None:
        """Writes all weights by their paths ("dense/kernel") to a .npz or .safetensors file."""
        self._need_built("save_weights")
        saving.save_weights(self, filepath, overwrite)

    def load_weights(self, filepath: Any) -> None:
        """Reads what save_weights wrote. InvalidArgument naming all that does not fit."""
        self._need_built("load_weights")
        saving.load_weights(self, filepath)

    def save(self, filepath: Any, overwrite: bool = True) -> None:
        """Writes configuration and weights to a folder or .zip that `load_model` reads."""
        self._need_built("save")
        saving.save_model(self, filepath, overwrite)

    def _check_checkpoint(self, filepath: str, weights_only: bool) -> None:
        saving.check_checkpoint(self, filepath, weights_only)

    def to_json(self, **kwargs: Any) -> str:
        """The configuration as JSON, for model_from_json."""
        return saving.to_json(self, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Layers and their connections, as plain values. InvalidArgument for a class of your own."""
        if type(self) is not Model:
            return super().get_config()
        return saving.functional_config(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any:
        """The model of a configuration."""
        if cls is Model and "layers" in config:
            return saving.functional_from_config(config)
        return super().from_config(config)


def transform_shapes(structure: Any) -> Any:
    """Shapes as given to `build`, as (shape, dtype) in the same structure."""
    if isinstance(structure, Mapping):
        return {key: transform_shapes(item) for key, item in structure.items()}
    if structure is not None and len(structure) > 0 and isinstance(structure[0], (list, tuple)):
        return [transform_shapes(item) for item in structure]
    return _Leaf(tuple(structure), "float32")


class _Leaf:
    def __init__(self, shape: Shape, dtype: str):
        self.shape, self.dtype = shape, dtype


def leaf(shape: Sequence[int | None], dtype: str) -> Any:
    """An input that is to be made, for `_trace_inputs`."""
    return _Leaf((None, *tuple(shape)[1:]), dtype)


def _inputs_like(structure: Any) -> Any:
    if isinstance(structure, Mapping):
        return {key: Input(item.shape[1:], dtype=item.dtype, name=str(key)) for key, item in structure.items()}
    return transform(structure, lambda item: Input(item.shape[1:], dtype=item.dtype))


class Sequential(Model):
    """Layers one after the other.

    Shapes are known from an Input or the first layer's input_shape; otherwise from the data that `fit` gets.
    """

    def __init__(self, layers: Sequence[Any] | None = None, trainable: bool = True, name: str | None = None):
        super().__init__(name=name, trainable=trainable)
        self._stack: list[Layer] = []
        self._begin: KerasTensor | None = None
        for layer in layers or ():
            self.add(layer)

    def add(self, layer: Any, rebuild: bool = True) -> None:
        """Puts a layer at the end."""
        if isinstance(layer, KerasTensor):
            layer = layer.origin
        if not isinstance(layer, Layer):
            raise InvalidArgument(f"{self.name}: add takes a layer or an Input, got {layer!r}")
        if any(layer is other for other in self._stack):
            raise InvalidArgument(f"{self.name}: layer {layer.name} is in the model already; make another one")
        if any(layer.name == other.name for other in self._stack):
            raise InvalidArgument(f"{self.name}: two layers are named {layer.name!r}; give one of them another name")
        if isinstance(layer, InputLayer):
            if self._stack or self._begin is not None:
                raise InvalidArgument(f"{self.name}: an Input stands at the beginning")
            self._begin = layer.output
            return
        if not self._stack and self._begin is None:
            if layer._first_shape is not None:
                dtype = "int32" if type(layer).__name__ == "Embedding" else "float32"
                self._begin = Input(layer._first_shape[1:], dtype=dtype, name=f"{layer.name}_input")
            elif isinstance(layer, Model) and layer._network is not None:
                first = layer.inputs[0]
                self._begin = Input(first.shape[1:], dtype=first.dtype, name=f"{layer.name}_input")
        self._stack.append(layer)
        self._reconnect()

    def pop(self, rebuild: bool = True) -> Layer:
        """Takes the last layer away, and returns it."""
        if not self._stack:
            raise InvalidArgument(f"{self.name}: there is no layer to take away")
        layer = self._stack.pop()
        self._reconnect()
        return layer

    def _reconnect(self) -> None:
        if self._begin is None or not self._stack:
            self._network, self.built = None, False
            return
        tensor: Any = self._begin
        if self._network is not None and self._stack[:-1] == self._network.layers:
            tensor = self._stack[-1](self._network.outputs[0])
        else:
            for layer in self._stack:
                tensor = layer(tensor)
        if not isinstance(tensor, KerasTensor):
            raise InvalidArgument(f"{self.name}: layer {self._stack[-1].name} has several outputs; use Model")
        self._connect(Network(self._begin, tensor))

    def _sublayers(self) -> list[Layer]:
        return list(self._stack)

    @property
    def layers(self) -> list[Layer]:
        """The layers, in order, without the input."""
        return list(self._stack)

    def _trace_inputs(self, structure: Any) -> None:
        if not isinstance(structure, _Leaf):
            raise InvalidArgument(f"{self.name} takes one input")
        name = f"{self._stack[0].name}_input" if self._stack else None
        self._begin = Input(structure.shape[1:], dtype=structure.dtype, name=name)
        self._reconnect()
        self._needed()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Applies the layers to a tensor, with the same weights; of arrays, computes the outputs as `predict` does."""
        if self._network is None and self._stack:
            tensor = flatten(args)[0] if args else None
            if isinstance(tensor, KerasTensor):
                self._trace_inputs(_Leaf(tensor.shape, tensor.dtype))
        return super().__call__(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Layers, as plain values."""
        return saving.sequential_config(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any:
        """The model of a configuration."""
        return saving.sequential_from_config(config)


def numbered_weights(model: Model) -> Iterator[tuple[str, Variable]]:
    """Weights by path, each once."""
    seen: set[str] = set()
    for variable in model.weights:
        path = variable.path
        for i in itertools.count(1):
            if path not in seen:
                break
            path = f"{variable.path}_{i}"
        seen.add(path)
        yield path, variable
