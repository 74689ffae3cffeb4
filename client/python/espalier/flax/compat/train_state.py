"""flax.training.train_state."""

from espalier.flax.compat.loop import TrainState

__all__ = ["TrainState"]
