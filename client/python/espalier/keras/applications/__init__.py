"""Keras' models by name. Nothing is downloaded: weights are random, or of a file that `Model.save_weights` wrote."""

from espalier.keras.applications.resnet import ResNet50, ResNet101, ResNet152

__all__ = ["ResNet50", "ResNet101", "ResNet152"]
