"""TFLMS's mnist_cnn_keras.py: the CNN of Keras' examples, with LMS among the callbacks.

It needs Keras' mnist.npz (espalier.keras.datasets) and a coordinator. SAMPLES and EPOCHS may be set in the environment.
"""

import os

from espalier.keras import utils
from espalier.keras.callbacks import LMS
from espalier.keras.datasets import mnist
from espalier.keras.layers import Conv2D, Dense, Dropout, Flatten, MaxPooling2D
from espalier.keras.models import Sequential

batch_size = 128
num_classes = 10
epochs = int(os.environ.get("EPOCHS", "12"))
samples = int(os.environ.get("SAMPLES", "60000"))

(x_train, y_train), _ = mnist.load_data()
x_train = x_train[:samples].reshape(-1, 28, 28, 1).astype("float32") / 255
y_train = utils.to_categorical(y_train[:samples], num_classes)


def batches():
    while True:
        for i in range(0, len(x_train) - batch_size + 1, batch_size):
            yield x_train[i : i + batch_size], y_train[i : i + batch_size]


model = Sequential()
model.add(Conv2D(32, kernel_size=(3, 3), activation="relu", input_shape=(28, 28, 1)))
model.add(Conv2D(64, (3, 3), activation="relu"))
model.add(MaxPooling2D(pool_size=(2, 2)))
model.add(Dropout(0.25))
model.add(Flatten())
model.add(Dense(128, activation="relu"))
model.add(Dropout(0.5))
model.add(Dense(num_classes, activation="softmax"))
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])

lms_callback = LMS()
model.fit_generator(
    generator=batches(), steps_per_epoch=len(x_train) // batch_size, epochs=epochs, callbacks=[lms_callback]
)
