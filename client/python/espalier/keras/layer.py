"""The base class of layers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from espalier.errors import InvalidArgument
from espalier.graph import dtype_name, source_line
from espalier.keras import backend, constraints, initializers, regularizers
from espalier.keras.lowering import Lowering, Value
from espalier.keras.serialization import Configurable
from espalier.keras.tensor import KerasTensor, Node, Shape, flatten
from espalier.keras.variable import Array, Layout, Variable
from espalier.spelling import meant

# What `_outputs` returns: shape and element type of each output.
Spec = tuple[Shape, str]


# Arguments of all layers that a configuration has only where they were given.
_BASE = ("dtype", "input_shape", "batch_input_shape", "batch_shape", "input_dim", "activity_regularizer")


class Layer(Configurable):
    """Base of all layers.

    A class of your own may define `build(input_shape)` and `call(inputs)`. `call` is run once, with tensors that have
    no elements, to see of which layers, arithmetic and espalier.keras.ops the result is made.
    """

    # Arguments of a call, besides its tensors.
    _call_arguments: tuple[str, ...] = ("training",)

    def __init__(
        self,
        *,
        activity_regularizer: Any = None,
        trainable: bool = True,
        dtype: Any = None,
        name: str | None = None,
        input_shape: Sequence[int | None] | int | None = None,
        batch_input_shape: Sequence[int | None] | None = None,
        batch_shape: Sequence[int | None] | None = None,
        input_dim: int | None = None,
        autocast: bool = True,
        **unknown: Any,
    ):
        kind = type(self).__name__
        if unknown:
            known = [*inspect.signature(type(self).__init__).parameters, "name", "trainable", *_BASE]
            hint = "".join(meant(name, known) for name in sorted(unknown))
            raise InvalidArgument(f"{kind}: no argument {', '.join(map(repr, sorted(unknown)))}{hint}")
        if isinstance(dtype, Mapping):  # Keras' configuration of a policy
            dtype = dict(dtype.get("config") or {}).get("name")
        if dtype is not None and dtype_name(dtype) != "float32" and not getattr(self, "_any_dtype", False):
            raise InvalidArgument(
                f"{kind}: dtype={dtype!r}: weights are float32; fit(precision='bfloat16') computes in 16 bits"
            )
        self.name = name or backend.automatic_name(backend.snake_case(kind))
        self.activity_regularizer = regularizers.get(activity_regularizer)
        self.built = False
        self._trainable = bool(trainable)
        self._own: list[Variable] = []
        self._nodes: list[Node] = []
        if isinstance(input_shape, int):
            input_shape = (input_shape,)
        whole = batch_shape if batch_shape is not None else batch_input_shape
        if whole is None and input_shape is not None:
            whole = (None, *input_shape)
        if whole is None and input_dim is not None:
            whole = (None, input_dim)
        self._first_shape: Shape | None = None if whole is None else (None, *tuple(whole)[1:])

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer of the same name."""
        config = {key: value for key, value in super().get_config().items() if not (key in _BASE and value is None)}
        config.pop("autocast", None)
        if "data_format" in config:
            # What it was made with, not what the process is set to when it is made again.
            config["data_format"] = getattr(self, "data_format", None)
        config["name"] = self.name
        config["trainable"] = self._trainable
        return config

    # Weights.

    def add_weight(
        self,
        shape: Sequence[int] = (),
        initializer: Any = "glorot_uniform",
        *,
        name: str = "weight",
        trainable: bool = True,
        regularizer: Any = None,
        constraint: Any = None,
        layout: Layout | None = None,
    ) -> Variable:
        """A weight of this layer. `layout` says how it lies in the graph."""
        constraints.refuse(f"{type(self).__name__} {self.name}: {name}_constraint", constraint)
        variable = Variable(
            name,
            shape,
            initializers.get(initializer),
            trainable=trainable,
            regularizer=regularizers.get(regularizer),
            layout=layout,
        )
        self._own.append(variable)
        return variable

    def _sublayers(self) -> list[Layer]:
        found: list[Layer] = []
        for key, value in vars(self).items():
            if key in ("_arguments", "_nodes"):
                continue
            for leaf in flatten(value):
                if isinstance(leaf, Layer) and all(leaf is not other for other in found):
                    found.append(leaf)
        return found

    def _all_weights(self) -> Iterator[tuple[Variable, str]]:
        # Weights with their paths below this layer.
        for variable in self._own:
            yield variable, variable.name
        for layer in self._sublayers():
            for variable, path in layer._all_weights():
                yield variable, f"{layer.name}/{path}"

    def _name_weights(self) -> None:
        self._apply_trainable(True)
        seen: set[int] = set()
        for variable, path in self._all_weights():
            if id(variable) not in seen:
                variable.path = f"{self._path_prefix()}{path}"
                seen.add(id(variable))

    def _path_prefix(self) -> str:
        return f"{self.name}/"

    @property
    def weights(self) -> list[Variable]:
        """All weights, in Keras' order."""
        found: list[Variable] = []
        for variable, _ in self._all_weights():
            if all(variable is not other for other in found):
                found.append(variable)
        return found

    @property
    def variables(self) -> list[Variable]:
        """As weights."""
        return self.weights

    @property
    def trainable_weights(self) -> list[Variable]:
        """The weights that training changes by their gradients."""
        self._apply_trainable(True)
        return [v for v in self.weights if v.trainable]

    @property
    def non_trainable_weights(self) -> list[Variable]:
        """Frozen weights and running statistics."""
        self._apply_trainable(True)
        return [v for v in self.weights if not v.trainable]

    trainable_variables = trainable_weights
    non_trainable_variables = non_trainable_weights

    @property
    def trainable(self) -> bool:
        """Whether training changes the weights; set before `fit`. Setting it also sets it for the layers inside."""
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self._trainable = bool(value)
        for layer in self._sublayers():
            layer.trainable = value

    def _apply_trainable(self, outer: bool) -> None:
        trains = outer and self._trainable
        for variable in self._own:
            variable.trainable = trains and variable.can_train
        for layer in self._sublayers():
            layer._apply_trainable(trains)

    def get_weights(self) -> list[Array]:
        """The elements of all weights, in Keras' layout and order."""
        self._need_built("get_weights")
        return [variable.numpy() for variable in self.weights]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets the elements of all weights; InvalidArgument for another number of them or another shape."""
        self._need_built("set_weights")
        mine = self.weights
        if len(mine) != len(weights):
            raise InvalidArgument(f"{self.name} has {len(mine)} weights, {len(weights)} were given")
        for variable, value in zip(mine, weights, strict=True):
            if tuple(getattr(value, "shape", ())) not in (variable.shape, ()):
                raise InvalidArgument(f"weight {variable.path} has shape {variable.shape}, not {tuple(value.shape)}")
        for variable, value in zip(mine, weights, strict=True):
            variable.assign(value)

    def count_params(self) -> int:
        """Number of elements of all weights."""
        self._need_built("count_params")
        return sum(variable.size for variable in self.weights)

    def _need_built(self, what: str) -> None:
        if not self.built:
            raise InvalidArgument(
                f"{what}: {self.name} has no weights yet, because the shape of its input is not known; give it "
                "input_shape, begin the model with an Input, or call build(input_shape)"
            )

    # Calls.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Applies the layer to tensors of `Input` or of other layers."""
        source = source_line()
        if type(self).call is not Layer.call:
            return self._trace(args, kwargs)
        inputs, arguments = self._bind(*args, **kwargs)
        tensors = flatten(inputs)
        for tensor in tensors:
            if not isinstance(tensor, KerasTensor):
                raise InvalidArgument(
                    f"{type(self).__name__} {self.name} at {source}: called on {type(tensor).__name__}; a layer is "
                    "called on what Input or another layer returned"
                )
        try:
            self._ensure_built([tensor.shape for tensor in tensors])
            specs = self._outputs([(tensor.shape, tensor.dtype) for tensor in tensors], arguments)
        except InvalidArgument as error:
            raise InvalidArgument(f"{type(self).__name__} {self.name} at {source}: {error}") from None
        node = Node(self, tensors, arguments, source)
        for i, (shape, dtype) in enumerate(specs):
            name = self.name if len(specs) == 1 else f"{self.name}.{i}"
            node.outputs.append(KerasTensor(shape, dtype, name, node, i))
        self._nodes.append(node)
        return node.outputs[0] if len(specs) == 1 and not self._returns_list else list(node.outputs)

    _returns_list = False
    # Made by arithmetic on tensors: nobody gave it its name, which may change.
    _named_by_call = False

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Of a class of your own: the result for the inputs, made of layers, arithmetic and espalier.keras.ops."""
        raise NotImplementedError

    def build(self, input_shape: Any) -> None:
        """Makes the weights for inputs of this shape, batch first."""
        shapes = [tuple(input_shape)]
        if input_shape and isinstance(input_shape[0], (list, tuple)):
            shapes = [tuple(shape) for shape in input_shape]
        self._ensure_built(shapes)

    def _ensure_built(self, shapes: list[Shape]) -> None:
        if not self.built:
            self._build(shapes)
            self.built = True
            self._name_weights()

    def _trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.built:
            shapes = [tensor.shape for tensor in flatten(args) if isinstance(tensor, KerasTensor)]
            if not type(self).build.__module__.startswith("espalier.keras."):
                self.build(shapes[0] if len(shapes) == 1 else shapes)
            self.built = True
        given = {key: value for key, value in kwargs.items() if not (key == "training" and value is None)}
        made = self.call(*args, **given)
        self._name_weights()
        return made

    def _bind(self, inputs: Any, *args: Any, **kwargs: Any) -> tuple[list[KerasTensor], dict[str, Any]]:
        # Tensors and other arguments of a call.
        arguments = dict(zip(self._call_arguments, args, strict=False))
        arguments.update(kwargs)
        if arguments.pop("mask", None) is not None:
            raise InvalidArgument(f"{self.name}: masks are not supported; pad the data and weigh it by sample_weight")
        unknown = sorted(set(arguments) - set(self._call_arguments))
        if unknown or len(args) > len(self._call_arguments):
            raise InvalidArgument(f"{type(self).__name__} {self.name}: a call takes no argument {', '.join(unknown)}")
        return flatten(inputs), {key: value for key, value in arguments.items() if value is not None}

    # What each layer defines.

    def _build(self, shapes: list[Shape]) -> None:
        """Makes the weights."""

    def _outputs(self, specs: list[Spec], arguments: Mapping[str, Any]) -> list[Spec]:
        return [(self.compute_output_shape(specs[0][0]), specs[0][1])]

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Shape of the result for inputs of this shape, batch first."""
        raise NotImplementedError

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        raise NotImplementedError

    def _trains(self, g: Lowering, arguments: Mapping[str, Any]) -> bool:
        # Whether this application behaves as in training while the model is trained.
        training = arguments.get("training")
        return g.training is not False if training is None else bool(training)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name}>"


def lower_layer(
    layer: Layer, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any], source: str = ""
) -> list[Value]:
    """The operators of one application of a layer."""
    with g.layer(layer.name, source):
        try:
            outputs = layer._lower(g, inputs, arguments)
        except InvalidArgument as error:
            if source and source not in str(error):
                raise InvalidArgument(f"{type(layer).__name__} {layer.name} at {source}: {error}") from None
            raise
        if layer.activity_regularizer is not None:
            g.penalties.extend((value, layer.activity_regularizer) for value in outputs)
        return outputs


def only_one(what: str, shapes: Sequence[Shape]) -> Shape:
    """The shape of the only input."""
    if len(shapes) != 1:
        raise InvalidArgument(f"{what} takes one tensor, got {len(shapes)}")
    return shapes[0]
