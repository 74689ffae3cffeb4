"""Datasets from files that you have; nothing is downloaded.

mnist, cifar10 and reuters read Keras' own formats, from `path` or from the folder where Keras keeps them
(~/.keras/datasets, or KERAS_HOME). digits are scikit-learn's, which come with that package.
"""

from espalier.keras.datasets import cifar10, digits, mnist, reuters

__all__ = ["cifar10", "digits", "mnist", "reuters"]
