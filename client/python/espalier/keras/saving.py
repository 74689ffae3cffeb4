"""Weights and models in files, and configurations of models."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from espalier import safetensors_io
from espalier.errors import AlreadyExists, InvalidArgument, NotFound
from espalier.job_callbacks import LMS
from espalier.keras import saving_compiled
from espalier.keras.layer import Layer
from espalier.keras.serialization import serialize
from espalier.keras.tensor import KerasTensor, Node, transform

if TYPE_CHECKING:
    from espalier.keras.models import Model, Sequential

_FORMATS = (".npz", ".safetensors")


def _format(path: str) -> str:
    for ending in _FORMATS:
        if path.endswith(ending):
            return ending
    raise InvalidArgument(
        f"{path}: the name of a file of weights ends in {' or '.join(_FORMATS)}. Files of Keras are read by Keras: "
        "model.set_weights(keras_model.get_weights()), or espalier.keras.from_keras(keras_model)"
    )


def save_weights(model: Model, filepath: Any, overwrite: bool = True) -> None:
    """Writes all weights by their paths."""
    path = os.fspath(filepath)
    kind = _format(path)
    if not overwrite and os.path.exists(path):
        raise AlreadyExists(f"{path} exists; give overwrite=True to replace it")
    model._name_weights()
    weights = {variable.path: variable.numpy() for variable in model.weights}
    if kind == ".safetensors":
        safetensors_io.save_file(weights, path)
        return
    with open(path, "wb") as file:
        np.savez(file, **weights)  # type: ignore[arg-type]


def load_weights(model: Model, filepath: Any) -> None:
    """Reads weights by their paths; all of them must be there, of the right shapes.

    Where only the numbers of automatic names differ ("dense_2" for "dense", of a model that was built a second time),
    they are taken in the order of these numbers.
    """
    path = os.fspath(filepath)
    kind = _format(path)
    if not os.path.exists(path):
        raise NotFound(f"there is no file {path}")
    if kind == ".safetensors":
        found: Mapping[str, Any] = safetensors_io.load_file(path)
    else:
        with np.load(path) as archive:
            found = {name: archive[name] for name in archive.files}
    assign(model, found, path)


def _numbered(path: str) -> list[tuple[str, int]]:
    # ("dense", 2) for "dense_2", so that it comes before "dense_10".
    parts = [re.fullmatch(r"(.*?)(?:_(\d+))?", part) for part in path.split("/")]
    return [(found[1], int(found[2] or 0)) for found in parts if found is not None]


def _unnumbered(path: str) -> list[str]:
    return [name for name, _ in _numbered(path)]


def assign(model: Model, found: Mapping[str, Any], path: str) -> None:
    """Sets all weights of a model from arrays by path. InvalidArgument listing everything that does not fit."""
    model._name_weights()
    mine = {variable.path: variable for variable in model.weights}
    if set(mine) != set(found):
        ours, theirs = sorted(mine, key=_numbered), sorted(found, key=_numbered)
        if [_unnumbered(name) for name in ours] == [_unnumbered(name) for name in theirs]:
            found = {our: found[their] for our, their in zip(ours, theirs, strict=True)}
    wrong = [f"{name} is missing" for name in mine if name not in found]
    wrong += [f"{name} is no weight of the model" for name in found if name not in mine]
    wrong += [
        f"{name} has shape {tuple(found[name].shape)}, the model's {v.shape}"
        for name, v in mine.items()
        if name in found and tuple(found[name].shape) != v.shape
    ]
    if wrong:
        raise InvalidArgument(f"{path}: " + "; ".join(wrong))
    for name, variable in mine.items():
        variable.assign(found[name])


# Models: config.json and weights in one archive.


def check_checkpoint(model: Model, path: str, weights_only: bool) -> None:
    """InvalidArgument if ModelCheckpoint could not write `model` to a file of this name."""
    if weights_only:
        _format(path)
        return
    _check_name(path)
    _check_class(model)


def _check_name(path: str) -> None:
    if not path.endswith(".zip"):
        raise InvalidArgument(
            f"{path}: models are saved as .zip; a .keras file is Keras' own: espalier.keras.from_keras reads its models"
        )


def _check_class(model: Model) -> None:
    from espalier.keras.models import Model as Base
    from espalier.keras.models import Sequential

    if type(model) not in (Base, Sequential):
        raise InvalidArgument(f"{model.name}: a class of your own has no configuration; save its weights")


def save_model(model: Model, filepath: Any, overwrite: bool = True) -> None:
    """Writes a .zip with the configuration, the weights, and what `compile` was told, with the optimizer's state."""
    path = os.fspath(filepath)
    _check_name(path)
    if not overwrite and os.path.exists(path):
        raise AlreadyExists(f"{path} exists; give overwrite=True to replace it")
    model._name_weights()
    config = to_json(model)
    compiled = None if model._compiled is None else saving_compiled.config(model)
    state = model._optimizer_state()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", config)
        archive.writestr("weights.npz", _npz({v.path: v.numpy() for v in model.weights}))
        if compiled is not None:
            archive.writestr("compile.json", json.dumps(compiled))
        if compiled is not None and state is not None:
            archive.writestr("optimizer.npz", _npz(state.optimizer))


def _npz(arrays: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _arrays(archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    with np.load(io.BytesIO(archive.read(name))) as found:
        return {key: found[key] for key in found.files}


def load_model(
    filepath: Any,
    custom_objects: Mapping[str, Any] | None = None,
    compile: bool = True,
    safe_mode: bool = True,
    *,
    callbacks: Sequence[Any] = (),
) -> Any:
    """The model that Model.save wrote, compiled as it was: optimizer, loss, metrics.

    The optimizer goes on with its state if the model was trained in a session (train_on_batch, or a fit with
    execution='session'); a job keeps no such state, and the next fit says so. compile=False leaves all this out.
    callbacks: LMS objects, for every `fit` of the model, as TFLMS's manual does. No code of the file is run, whatever
    safe_mode says. NotFound without the file, InvalidArgument for other files.
    """
    path = os.fspath(filepath)
    if custom_objects:
        raise InvalidArgument(
            "load_model: custom_objects: a class of your own is not saved; build it, and load_weights"
        )
    for callback in callbacks:
        if not isinstance(callback, LMS):
            raise InvalidArgument(f"load_model: callbacks: {callback!r} belongs to fit; accepted are LMS objects")
    if not os.path.exists(path):
        raise NotFound(f"there is no file {path}")
    if not zipfile.is_zipfile(path):
        raise InvalidArgument(f"{path} is no .zip that Model.save wrote")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if "weights.npz" not in names:
            raise InvalidArgument(
                f"{path} is no file that espalier's Model.save wrote; a .keras file is read by Keras: "
                "espalier.keras.from_keras(keras.models.load_model(...))"
            )
        model = model_from_json(archive.read("config.json").decode())
        assign(model, _arrays(archive, "weights.npz"), path)
        if compile and "compile.json" in names:
            state = _arrays(archive, "optimizer.npz") if "optimizer.npz" in names else None
            saving_compiled.restore(model, json.loads(archive.read("compile.json")), state)
    model._own_callbacks = tuple(callbacks)
    return model


def to_json(model: Model, **kwargs: Any) -> str:
    """A model's configuration as JSON."""
    from espalier.keras.models import Sequential as Stack

    _check_class(model)
    kind = "Sequential" if isinstance(model, Stack) else "Functional"
    return json.dumps({"class_name": kind, "config": model.get_config()}, **kwargs)


def model_from_json(text: str) -> Any:
    """The model of a configuration that to_json wrote."""
    return _made(json.loads(text))


def _made(config: Mapping[str, Any]) -> Any:
    from espalier.keras.layers import layer_class

    kind: Any = layer_class(str(config["class_name"]))
    return kind.from_config(config["config"])


def _layer_config(layer: Layer) -> dict[str, Any]:
    name = type(layer).__name__
    return {"class_name": "Functional" if name == "Model" else name, "config": layer.get_config()}


def sequential_config(model: Sequential) -> dict[str, Any]:
    """Name, input and layers."""
    begin = model._begin
    first = None if begin is None else {"shape": list(begin.shape), "dtype": begin.dtype, "name": begin.name}
    return {
        "name": model.name,
        "trainable": model.trainable,
        "input": first,
        "layers": [_layer_config(layer) for layer in model._stack],
    }


def sequential_from_config(config: Mapping[str, Any]) -> Any:
    """The model of sequential_config's result."""
    from espalier.keras.layers.core import Input
    from espalier.keras.models import Sequential

    model = Sequential(name=config.get("name"), trainable=config.get("trainable", True))
    first = config.get("input")
    if first is not None:
        model.add(Input(first["shape"][1:], dtype=first["dtype"], name=first["name"]))
    for layer in config["layers"]:
        if layer["class_name"] == "InputLayer":
            model.add(_made(layer).output)
        else:
            model.add(_made(layer))
    return model


def functional_config(model: Model) -> dict[str, Any]:
    """Layers, nodes in order, inputs and outputs; tensors as [node, index], inputs as [-1, index]."""
    network = model._needed()
    places: dict[int, list[int]] = {id(t): [-1, i] for i, t in enumerate(network.inputs)}
    nodes = []
    for i, node in enumerate(network.nodes):
        nodes.append(
            {
                "layer": node.layer.name,
                "inputs": [places[id(t)] for t in node.inputs],
                "arguments": serialize(node.arguments),
            }
        )
        places.update({id(t): [i, j] for j, t in enumerate(node.outputs)})
    place = transform(network.outputs_structure, lambda t: {"at": places[id(t)]})
    begin = transform(network.inputs_structure, lambda t: {"shape": list(t.shape), "dtype": t.dtype, "name": t.name})
    return {
        "name": model.name,
        "trainable": model.trainable,
        "inputs": _wrapped(begin),
        "outputs": _wrapped(place),
        "layers": [_layer_config(layer) for layer in network.layers],
        "nodes": nodes,
    }


def _wrapped(structure: Any) -> Any:
    # Leaves are dicts; structures get a mark of their own.
    if isinstance(structure, (list, tuple)):
        return {"list": [_wrapped(item) for item in structure]}
    if isinstance(structure, Mapping) and not ("at" in structure or "shape" in structure):
        return {"dict": {key: _wrapped(item) for key, item in structure.items()}}
    return structure


def _unwrapped(structure: Any, leaf: Any) -> Any:
    if "list" in structure:
        return [_unwrapped(item, leaf) for item in structure["list"]]
    if "dict" in structure:
        return {key: _unwrapped(item, leaf) for key, item in structure["dict"].items()}
    return leaf(structure)


def functional_from_config(config: Mapping[str, Any]) -> Any:
    """The model of functional_config's result."""
    from espalier.keras.layers.core import Input
    from espalier.keras.models import Model

    tensors: dict[tuple[int, int], KerasTensor] = {}

    def begin(item: Any) -> KerasTensor:
        tensor = Input(item["shape"][1:], dtype=item["dtype"], name=item["name"])
        tensors[-1, sum(key[0] == -1 for key in tensors)] = tensor
        return tensor

    inputs = _unwrapped(config["inputs"], begin)
    layers = {item["config"]["name"]: _made(item) for item in config["layers"]}
    for i, node in enumerate(config["nodes"]):
        made = _apply(layers[node["layer"]], [tensors[tuple(at)] for at in node["inputs"]], node["arguments"])
        tensors.update({(i, j): tensor for j, tensor in enumerate(made.outputs)})
    outputs = _unwrapped(config["outputs"], lambda item: tensors[tuple(item["at"])])
    return Model(inputs, outputs, name=config.get("name"), trainable=config.get("trainable", True))


def _apply(layer: Layer, inputs: list[KerasTensor], arguments: Mapping[str, Any]) -> Node:
    # As a call, with the tensors in the order in which the layer keeps them.
    layer._ensure_built([tensor.shape for tensor in inputs])
    node = Node(layer, inputs, arguments, "")
    for i, (shape, dtype) in enumerate(layer._outputs([(t.shape, t.dtype) for t in inputs], arguments)):
        node.outputs.append(KerasTensor(shape, dtype, layer.name, node, i))
    layer._nodes.append(node)
    return node
