"""A small classifier as a graph and as NumPy: softmax regression with one hidden layer."""

import numpy as np

from espalier.graph import Graph

FEATURES, HIDDEN, CLASSES = 6, 5, 3


def initial(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "w1": rng.normal(size=(HIDDEN, FEATURES)).astype(np.float32) / 2,
        "b1": np.zeros(HIDDEN, np.float32),
        "w2": rng.normal(size=(CLASSES, HIDDEN)).astype(np.float32) / 2,
        "b2": np.zeros(CLASSES, np.float32),
    }


def graph(name="small", seed=0):
    g = Graph(name)
    x = g.input("x", (None, FEATURES))
    labels = g.input("labels", (None,), "int64")
    p = {key: g.parameter(key, data=value) for key, value in initial(seed).items()}
    hidden = g.op("linear", [x, p["w1"], p["b1"]], {"activation": "tanh"})
    logits = g.op("linear", [hidden, p["w2"], p["b2"]])
    g.output("loss", g.op("sparse_categorical_crossentropy", [logits, labels]))
    g.output("accuracy", g.op("accuracy", [logits, labels]))
    return g


def examples(count=256, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, FEATURES)).astype(np.float32)
    return {"x": x, "labels": (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0.3)}


def loss_and_gradients(p, x, labels):
    hidden = np.tanh(x @ p["w1"].T + p["b1"])
    logits = hidden @ p["w2"].T + p["b2"]
    shifted = logits - logits.max(1, keepdims=True)
    probabilities = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(probabilities[rows, labels]).mean()
    accuracy = (logits.argmax(1) == labels).mean()
    d = probabilities.copy()
    d[rows, labels] -= 1
    d /= len(labels)
    dh = (d @ p["w2"]) * (1 - hidden**2)
    return loss, accuracy, {"w1": dh.T @ x, "b1": dh.sum(0), "w2": d.T @ hidden, "b2": d.sum(0)}


def train(data, steps, batch, rate, seed=0):
    """Losses and accuracies of plain SGD over the examples in order, and the parameters after it."""
    p = {key: value.astype(np.float64) for key, value in initial(seed).items()}
    losses, accuracies = [], []
    per_epoch = len(data["x"]) // batch
    for step in range(steps):
        rows = slice(step % per_epoch * batch, (step % per_epoch + 1) * batch)
        loss, accuracy, gradients = loss_and_gradients(p, data["x"][rows].astype(np.float64), data["labels"][rows])
        losses.append(loss)
        accuracies.append(accuracy)
        for key, gradient in gradients.items():
            p[key] -= rate * gradient
    return losses, accuracies, p
