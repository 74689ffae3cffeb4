"""Sequences and texts as arrays."""

from espalier.keras.preprocessing import sequence, text

__all__ = ["sequence", "text"]
