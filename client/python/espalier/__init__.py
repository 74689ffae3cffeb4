"""Espalier: distributed training and LLM serving, from Python."""

from espalier.version import __version__

__all__ = ["__version__"]
