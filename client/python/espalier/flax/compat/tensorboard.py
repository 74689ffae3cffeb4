"""flax.metrics.tensorboard, imported when something of it is used: it needs TensorFlow."""

from typing import Any


def __getattr__(name: str) -> Any:
    from flax.metrics import tensorboard

    return getattr(tensorboard, name)
