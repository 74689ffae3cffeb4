"""A small CNN on handwritten digits, of the repository's own data: nothing is downloaded.

python client/python/examples/digits.py              # starts a daemon with two workers, and ends it
python client/python/examples/digits.py HOST:PORT    # trains on that one
"""

import contextlib
import sys
from pathlib import Path

import numpy as np

import espalier
from espalier.keras import Sequential, layers

DATA = Path(__file__).absolute().parents[3] / "tests" / "data" / "digits.npz"


def main() -> None:
    digits = np.load(DATA)
    model = Sequential(
        [
            layers.Conv2D(16, 3, padding="same", activation="relu", input_shape=(8, 8, 1)),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    images = digits["x"].reshape(-1, 8, 8, 1)
    history = model.fit(images, digits["y"], epochs=8, batch_size=32, validation_split=0.2)
    print(model.plan)
    print(f"held-out accuracy {history.history['val_accuracy'][-1]:.2%}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        espalier.set_default_client(espalier.Client(sys.argv[1]))
    with contextlib.nullcontext() if len(sys.argv) > 1 else espalier.local(workers=2):
        main()
