"""Losses and metrics."""
import random

import torch
import torch.nn.functional as F

from cases import case, dims, rand


def labels_of(shape, classes, ignored=None):
    labels = torch.randint(0, classes, shape, dtype=random.choice([torch.int32, torch.int64]))
    if ignored is not None and labels.numel() > 1:
        labels.reshape(-1)[1::3] = ignored
    return labels


def cross_entropy(x, y, weights, smoothing, reduction, counted, ignored):
    """Classes last; the mean is over all labels or over the weights of those that count."""
    c = x.shape[-1]
    x, shape, y = x.reshape(-1, c), y.shape, y.reshape(-1).long()
    values = F.cross_entropy(x, y, weights, reduction="none", label_smoothing=smoothing, ignore_index=ignored)
    if reduction == "none":
        return values.reshape(shape)
    if reduction == "sum":
        return values.sum()
    if not counted:
        return values.mean()
    counts = y != ignored
    w = torch.ones(c, dtype=x.dtype) if weights is None else weights
    return values.sum() / (w[y.clamp(min=0)] * counts).sum()


@case("sparse_categorical_crossentropy", count=24)
def _():
    lead, c = dims(random.randint(1, 3)), random.choice([1, 2, random.randint(3, 40), 700])
    ignored = random.choice([-100, -1])
    reduction, counted = random.choice(["mean", "mean", "sum", "none"]), random.random() < 0.5
    smoothing = random.choice([0.0, 0.1, 0.5]) if c > 1 else 0.0  # with one class the gradient is rounding alone
    weights = 0.1 + torch.rand(c, dtype=torch.float64) if random.random() < 0.5 else None
    attributes = {"reduction": reduction, "mean_over": "counted" if counted else "all", "ignore_index": ignored,
                  "label_smoothing": smoothing}
    return (attributes, [rand(*lead, c, scale=4), labels_of(lead, c, ignored), weights],
            lambda x, y, w: cross_entropy(x, y, w, smoothing, reduction, counted, ignored),
            {"sum": 1000, "no_gradient": [2]})


@case("sparse_categorical_crossentropy", count=1)
def _():
    return ({"reduction": "sum"}, [rand(0, 5), torch.zeros(0, dtype=torch.int64)],
            lambda x, y: x.sum(), {})


@case("negative_log_likelihood", count=20)
def _():
    n, c = random.randint(1, 4), random.randint(1, 9)
    places = dims(random.randint(1, 3)) if random.random() < 0.7 else []
    reduction, counted = random.choice(["mean", "sum", "none"]), random.random() < 0.7
    weights = 0.1 + torch.rand(c, dtype=torch.float64) if random.random() < 0.5 else None
    ignored = random.choice([-100, 0])

    def reference(x, y, w):
        kind = reduction if reduction != "mean" or counted else "sum"
        value = F.nll_loss(x, y.long(), w, ignore_index=ignored, reduction=kind)
        return value / y.numel() if kind != reduction else value

    y = labels_of([n] + places, c, ignored)
    y.reshape(-1)[0] = c - 1
    if ignored == c - 1:
        counted = False  # nothing may be left to count
    return ({"reduction": reduction, "mean_over": "counted" if counted else "all", "ignore_index": ignored},
            [F.log_softmax(rand(n, c, *places), 1), y, weights], reference, {"sum": 300, "no_gradient": [2]})


@case("negative_log_likelihood", count=1)
def _():
    """ONNX's defaults: the mean over the weights of the labels."""
    w = torch.tensor([0.2, 0.3, 0.1], dtype=torch.float64)
    return ({}, [rand(3, 3, 2), labels_of([3, 2], 3), w],
            lambda x, y, w: F.nll_loss(x, y.long(), w), {"no_gradient": [2]})


def pair_loss(name, reference, prediction=rand, target=rand, attributes=None, count=8, **options):
    @case(name, count=count)
    def _():
        shape = dims() if random.random() < 0.9 else [random.randint(500, 1500)]
        return attributes or {}, [prediction(*shape), target(*shape)], reference, {"sum": 1500, **options}


def probabilities(*shape):
    return 0.01 + 0.98 * torch.rand(list(shape), dtype=torch.float64)


def distributions(*shape):
    return torch.softmax(rand(*shape, scale=2), -1)


for how in ("mean", "sum"):
    pair_loss("mean_squared_error", lambda a, b, how=how: F.mse_loss(a, b, reduction=how),
              attributes={"reduction": how})
    pair_loss("mean_absolute_error", lambda a, b, how=how: F.l1_loss(a, b, reduction=how),
              attributes={"reduction": how})

pair_loss("binary_crossentropy", F.binary_cross_entropy_with_logits, lambda *d: rand(*d, scale=6), probabilities)
pair_loss("binary_crossentropy",
          lambda p, t: -(t * torch.log(p) + (1 - t) * torch.log(1 - p)).mean(), probabilities, probabilities,
          attributes={"from_logits": False}, scale=4)


@case("binary_crossentropy", count=1)
def _():
    """Certain predictions: the logarithms end at -100."""
    p = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.25], dtype=torch.float64)
    t = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    return ({"from_logits": False}, [p, t],
            F.binary_cross_entropy, {"forward_only": True})


@case("binary_crossentropy", count=1)
def _():
    """Where a prediction is sure and right, the loss is small but not rounded away."""
    x = torch.tensor([12.0, 9.0, -15.0], dtype=torch.float64)
    t = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    return {}, [x, t], F.binary_cross_entropy_with_logits, {"forward_only": True}


@case("categorical_crossentropy", count=12)
def _():
    shape, smoothing = dims(random.randint(1, 3)), random.choice([0.0, 0.2])
    c = shape[-1]

    def reference(x, t):
        t = t * (1 - smoothing) + smoothing / c
        return -(t * torch.log_softmax(x, -1)).sum(-1).mean()

    return ({"label_smoothing": smoothing}, [rand(*shape, scale=3), distributions(*shape)], reference,
            {"sum": 100, "no_gradient": [1]})


@case("categorical_crossentropy", count=8)
def _():
    shape, smoothing = dims(random.randint(1, 3)), random.choice([0.0, 0.2])
    c = shape[-1]

    def reference(x, t):
        t = t * (1 - smoothing) + smoothing / c
        return -(t * torch.log(x)).sum(-1).mean()

    return ({"from_logits": False, "label_smoothing": smoothing}, [distributions(*shape), distributions(*shape)],
            reference, {"sum": 100, "no_gradient": [1]})


@case("identity_loss")
def _():
    return {}, [rand(*dims())], torch.mean, {"sum": 300}


# Metrics. What is reported of them is checked by metrics_test and the tests of the jobs.
pair_loss("root_mean_squared_error", F.mse_loss, forward_only=True)


@case("perplexity")
def _():
    lead, c = dims(random.randint(1, 2)), random.randint(1, 60)
    return ({}, [rand(*lead, c, scale=4), labels_of(lead, c, -100)],
            lambda x, y: cross_entropy(x, y, None, 0.0, "mean", False, -100), {"sum": 300, "forward_only": True})


@case("top_k_accuracy", count=12)
def _():
    lead, c, k = dims(random.randint(1, 2)), random.randint(1, 30), random.randint(1, 6)
    y = labels_of(lead, c)

    def reference(x, y):
        best = torch.topk(x, min(k, c), -1).indices
        return (best == y.long()[..., None]).any(-1).double().mean()

    return {"k": k}, [rand(*lead, c), y], reference, {"forward_only": True}


@case("top_k_accuracy", count=1)
def _():
    """Of equal logits the first are taken; ignored labels are never right."""
    x = torch.tensor([[1, 1, 1.], [1, 1, 1], [0, 1, 2], [3, 2, 1]], dtype=torch.float64)
    y = torch.tensor([1, 2, 0, -100])
    return ({"k": 2}, [x, y], lambda x, y: torch.tensor(0.25, dtype=torch.float64),
            {"forward_only": True, "fixed_shape": True})


@case("categorical_accuracy", count=8)
def _():
    shape = dims(random.randint(1, 3))
    return ({}, [rand(*shape), distributions(*shape)],
            lambda x, t: (x.argmax(-1) == t.argmax(-1)).double().mean(), {"forward_only": True})


@case("binary_accuracy", count=8)
def _():
    shape, threshold = dims(), random.choice([0.5, 0.0])
    target = torch.randint(0, 2, shape).double()
    return ({"threshold": threshold}, [rand(*shape), target],
            lambda x, t: ((x > threshold) == (t > 0.5)).double().mean(), {"forward_only": True})
