"""A small CNN on scikit-learn's digits: nothing is downloaded.

python digits.py starts a daemon with two workers; with ESPALIER_COORDINATOR=HOST:PORT it uses that one.
"""

import contextlib
import os

import espalier
from espalier.keras import Sequential, layers, optimizers
from espalier.keras.callbacks import CSVLogger
from espalier.keras.datasets import digits


def main():
    (x, y), _ = digits.load_data()
    model = Sequential(
        [
            layers.Conv2D(16, 3, padding="same", activation="relu", input_shape=(8, 8, 1)),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(optimizers.Adam(0.003), "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(x, y, epochs=8, batch_size=32, validation_split=0.1, callbacks=[CSVLogger("digits.csv")])
    print(history)
    print(model.plan)
    model.save_weights("digits.safetensors")


if __name__ == "__main__":
    there = os.environ.get("ESPALIER_COORDINATOR")
    with contextlib.nullcontext() if there else espalier.local(workers=2):
        main()
