"""Configurations: plain values that say how an object of this package was made.

{"class_name": "Dense", "config": {"units": 10, ...}}, as Keras writes them; `module` and `registered_name` of Keras'
own configurations are ignored.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from espalier.errors import InvalidArgument
from espalier.spelling import meant

C = TypeVar("C", bound="Configurable")


class Configurable:
    """Remembers the arguments that it was made with."""

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        made = super().__new__(cls)
        made._arguments = (args, kwargs)
        return made

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal object, as plain values."""
        bound = inspect.signature(type(self).__init__).bind(self, *self._arguments[0], **self._arguments[1])
        bound.apply_defaults()
        config: dict[str, Any] = {}
        for name, parameter in inspect.signature(type(self).__init__).parameters.items():
            if name == "self":
                continue
            value = bound.arguments.get(name)
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                config.update({key: serialize(item) for key, item in (value or {}).items()})
            else:
                config[name] = serialize(value)
        return config

    @classmethod
    def from_config(cls: type[C], config: Mapping[str, Any]) -> C:
        """An object made with these arguments."""
        return cls(**dict(config))


def serialize(value: Any) -> Any:
    """`value` as plain values; InvalidArgument for functions, which have no configuration."""
    if isinstance(value, Configurable):
        return {"class_name": type(value).__name__, "config": value.get_config()}
    if isinstance(value, Mapping):
        return {str(key): serialize(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(serialize(item) for item in value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if callable(value) and getattr(value, "__module__", "").startswith("espalier.keras"):
        return str(value.__name__)
    raise InvalidArgument(f"{value!r} has no configuration")


def named(config: Any) -> tuple[str, dict[str, Any]] | None:
    """Class and arguments of a configuration; None for anything else."""
    if isinstance(config, Mapping) and "class_name" in config:
        return str(config["class_name"]), dict(config.get("config") or {})
    return None


def of_keras(identifier: Any) -> Any:
    """An object of the real Keras as its configuration; anything else as it is."""
    kind = type(identifier)
    if kind.__module__.startswith("keras.") and hasattr(identifier, "get_config"):
        # Some losses of Keras leave arguments out of their configuration.
        return {
            "class_name": kind.__name__,
            "config": {**getattr(identifier, "_fn_kwargs", {}), **identifier.get_config()},
        }
    return identifier


def find(kind: str, identifier: Any, classes: Mapping[str, Callable[..., Any]], base: type) -> Any:
    """The object that a name, a configuration, a class or an object itself stands for.

    `classes` has classes by name and alias. `kind` is for the error message: "initializer".
    """
    if isinstance(identifier, base):
        return identifier
    identifier = of_keras(identifier)
    if isinstance(identifier, type) and issubclass(identifier, base):
        return identifier()
    made = named(identifier)
    name, config = made if made is not None else (identifier, {})
    if isinstance(name, str):
        if name in classes:
            return classes[name](**config)
        hint = meant(name, classes) or f"; known are {', '.join(sorted(classes))}"
        raise InvalidArgument(f"unknown {kind} {name!r}{hint}")
    raise InvalidArgument(f"{identifier!r} is no {kind}; known are {', '.join(sorted(classes))}")
