"""Losses and metrics with weights of examples: each value of example n counts weights[n] times in the mean."""
import random

import torch
import torch.nn.functional as F

from cases import case, dims, rand
from cases.losses import distributions, labels_of, probabilities


def weights_of(n):
    """Some are zero, as those of padding."""
    weights = 2 * torch.rand(n, dtype=torch.float64)
    weights[torch.rand(n) < 0.2] = 0
    return weights


def mean(values, weights):
    return (values * weights.reshape(-1, *[1] * (values.dim() - 1))).mean()


def label_case(name, values, class_weights=False, classes_second=False, **options):
    """`values(scores, labels)` has the shape of the labels; classes are in the last dimension, or in the second."""
    @case(name, count=10)
    def _():
        lead, c = dims(random.randint(1, 3)), random.randint(2, 30)
        shape = [lead[0], c, *lead[1:]] if classes_second else [*lead, c]
        labels = labels_of(lead, c, -100)
        labels.reshape(-1)[0] = c - 1
        attributes = {"mean_over": "all"} if class_weights else {}
        inputs = [rand(*shape, scale=3), labels] + ([None] if class_weights else []) + [weights_of(lead[0])]

        def reference(*args):
            scores, labels, weights = args[0], args[1], args[-1]
            kept = labels != -100
            return mean(values(scores, labels.long().clamp(min=0)) * kept, weights)

        return attributes, inputs, reference, {
            "sum": 500, "fixed_shape": True, "no_gradient": [len(inputs) - 1], **options}


def cross_entropy(x, y):
    return F.cross_entropy(x.movedim(-1, 1) if x.dim() > 2 else x, y, reduction="none")


label_case("sparse_categorical_crossentropy", cross_entropy, class_weights=True)
label_case("negative_log_likelihood", lambda x, y: F.nll_loss(x, y, reduction="none"), class_weights=True,
           classes_second=True)
label_case("perplexity", cross_entropy, forward_only=True)
label_case("accuracy", lambda x, y: (x.argmax(-1) == y).double(), forward_only=True)
label_case("top_k_accuracy",
           lambda x, y: (torch.topk(x, min(5, x.shape[-1]), -1).indices == y[..., None]).any(-1).double(),
           forward_only=True)


def pair_case(name, values, prediction=rand, target=rand, attributes=None, **options):
    """`values(prediction, target)`: one per element."""
    @case(name, count=6)
    def _():
        shape = dims() if random.random() < 0.7 else [random.randint(2, 4), random.randint(400, 1500)]
        return attributes or {}, [prediction(*shape), target(*shape), weights_of(shape[0])], \
            lambda a, b, w: mean(values(a, b), w), \
            {"sum": 1500, "fixed_shape": True, "no_gradient": [2], **options}


def squares(a, b):
    return (a - b) ** 2


def binary_loss(x, t):
    return F.binary_cross_entropy_with_logits(x, t, reduction="none")


pair_case("mean_squared_error", squares)
pair_case("mean_absolute_error", lambda a, b: (a - b).abs())
pair_case("binary_crossentropy", binary_loss, target=probabilities)
pair_case("root_mean_squared_error", squares, forward_only=True)
pair_case("binary_accuracy", lambda x, t: ((x > 0.5) == (t > 0.5)).double(), forward_only=True)


def row_case(name, values, **options):
    """`values(prediction, target)`: one per row of classes."""
    @case(name, count=8)
    def _():
        shape = dims(random.randint(2, 4))
        return {}, [rand(*shape, scale=3), distributions(*shape), weights_of(shape[0])], \
            lambda x, t, w: mean(values(x, t), w), \
            {"sum": 200, "fixed_shape": True, "no_gradient": [1, 2], **options}


row_case("categorical_crossentropy", lambda x, t: -(t * torch.log_softmax(x, -1)).sum(-1))
row_case("categorical_accuracy", lambda x, t: (x.argmax(-1) == t.argmax(-1)).double(), forward_only=True)


@case("identity_loss", count=6)
def _():
    shape = dims()
    return {}, [rand(*shape), weights_of(shape[0])], mean, \
        {"sum": 300, "fixed_shape": True, "no_gradient": [1]}
