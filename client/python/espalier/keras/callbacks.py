"""Callbacks: those of espalier.callbacks, under Keras' name."""

from espalier.callbacks import *  # noqa: F403
from espalier.callbacks import __all__ as __all__
