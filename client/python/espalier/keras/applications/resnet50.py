"""Keras' module of this name."""

from espalier.keras.applications.resnet import ResNet50

__all__ = ["ResNet50"]
