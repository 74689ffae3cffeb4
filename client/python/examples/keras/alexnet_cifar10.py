"""AlexNet on CIFAR-10: the program of FlexFlow's README and of its manual's chapter 7.1, with its imports changed.

The README leaves layers and the enlargement of the images out; they are filled in here. SAMPLES, EPOCHS and OPTIMIZER
may be set in the environment. It needs Keras' CIFAR-10 files (espalier.keras.datasets) and a coordinator.
"""

import os

import numpy as np

from espalier.keras.flexflow.datasets import cifar10
from espalier.keras.flexflow.layers import Activation, Conv2D, Dense, Flatten, MaxPooling2D
from espalier.keras.flexflow.models import Sequential

SAMPLES = int(os.environ.get("SAMPLES", "10000"))
EPOCHS = int(os.environ.get("EPOCHS", "30"))
OPTIMIZER = os.environ.get("OPTIMIZER", "adam")  # the manual's is "sgd"
WIDTH = int(os.environ.get("WIDTH", "4096"))  # of the dense layers


def enlarged(images, size=229):
    """Images of `size` pixels, by the nearest one, from 0 to 1."""
    at = np.arange(size) * images.shape[-1] // size
    return images[:, :, at][:, :, :, at].astype("float32") / 255


def top_level_task():
    model = Sequential()
    model.add(
        Conv2D(
            filters=64,
            input_shape=(3, 229, 229),
            kernel_size=(11, 11),
            strides=(4, 4),
            padding=(2, 2),
            activation="relu",
        )
    )
    model.add(MaxPooling2D(pool_size=(3, 3), strides=(2, 2), padding="valid"))
    model.add(Conv2D(filters=192, kernel_size=(5, 5), strides=(1, 1), padding=(2, 2), activation="relu"))
    model.add(MaxPooling2D(pool_size=(3, 3), strides=(2, 2), padding="valid"))
    model.add(Conv2D(filters=384, kernel_size=(3, 3), strides=(1, 1), padding=(1, 1), activation="relu"))
    model.add(Conv2D(filters=256, kernel_size=(3, 3), strides=(1, 1), padding=(1, 1), activation="relu"))
    model.add(Conv2D(filters=256, kernel_size=(3, 3), strides=(1, 1), padding=(1, 1), activation="relu"))
    model.add(MaxPooling2D(pool_size=(3, 3), strides=(2, 2), padding="valid"))
    model.add(Flatten())
    model.add(Dense(WIDTH, activation="relu"))
    model.add(Dense(WIDTH, activation="relu"))
    model.add(Dense(10))
    model.add(Activation("softmax"))
    ## Model compilation
    model.compile(optimizer=OPTIMIZER, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.summary()
    ## Model training
    (x_train, y_train), _ = cifar10.load_data(SAMPLES)
    model.fit(enlarged(x_train), y_train, epochs=EPOCHS)


if __name__ == "__main__":
    top_level_task()
