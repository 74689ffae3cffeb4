"""evaluate, and fit's validation_data, give what the module and its loss give in eval() for all examples at once."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from espalier import callbacks, errors
from espalier.torch import Trainer
from espalier.torch.evaluating import accuracy

ROWS = 8
WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 3.0])
F = nn.functional


class Net(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16)
        self.drop, self.last = nn.Dropout(0.4), nn.Linear(16, classes)

    def forward(self, x):
        return self.last(self.drop(torch.tanh(self.norm(self.first(x)))))


class Named(Net):
    def forward(self, x):
        return {"out": super().forward(x), "aux": (x * 2, x), "kind": "named"}


class WithLoss(Net):
    def __init__(self, reduction):
        super().__init__()
        self.reduction = reduction

    def forward(self, x, labels):
        logits = super().forward(x)
        return {"loss": F.cross_entropy(logits, labels, WEIGHTS, reduction=self.reduction), "logits": logits}


def tensors(rows, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 6, generator=generator), torch.randint(0, 4, (rows,), generator=generator)


def by_torch(module, loss, x, y):
    module = copy.deepcopy(module).eval()
    with torch.no_grad():
        return loss(module(x), y).item()


LOSSES = {
    "plain": nn.CrossEntropyLoss(),
    "weighted": nn.CrossEntropyLoss(WEIGHTS),
    "ignored": nn.CrossEntropyLoss(ignore_index=2),
    "weighted, ignored, smoothed": nn.CrossEntropyLoss(WEIGHTS, ignore_index=2, label_smoothing=0.1),
    "nll": lambda y, labels: F.nll_loss(y.log_softmax(1), labels, WEIGHTS),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "two": lambda y, labels: F.cross_entropy(y, labels, WEIGHTS) + 0.1 * y.square().mean(),
    "twice": lambda y, labels: 0.5 * F.cross_entropy(y, labels) + 0.25 * F.cross_entropy(y * 2, labels),
    "root": lambda y, labels: F.cross_entropy(y, labels).sqrt(),
    "labels that are computed": lambda y, labels: F.cross_entropy(y, torch.where(labels > 1, labels, -100)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_any_number_of_examples_is_evaluated_as_one_batch(daemon, name):
    module, loss = Net(), LOSSES[name]
    x, y = tensors(27)
    trainer = Trainer(module, loss=loss, optimizer="sgd", metrics=["accuracy"])
    for count in (27, 24, 3):
        found = trainer.evaluate((x[:count], y[:count]), batch_size=ROWS)
        assert found["loss"] == pytest.approx(by_torch(module, loss, x[:count], y[:count]), rel=1e-5), count
        right = (copy.deepcopy(module).eval()(x[:count]).argmax(1) == y[:count]).float().mean().item()
        assert found["accuracy"] == pytest.approx(right), count


def test_a_loss_reads_the_modules_outputs_in_their_structure(daemon):
    def loss(outputs, labels):
        return F.cross_entropy(outputs["out"], labels, WEIGHTS) + outputs["aux"][1].abs().max()

    module, (x, y) = Named(), tensors(13)
    trainer = Trainer(module, loss=loss, optimizer="sgd")
    found = trainer.evaluate({"x": x, "labels": y}, batch_size=ROWS)
    assert found["loss"] == pytest.approx(by_torch(module, loss, x, y), rel=1e-5)
    assert torch.equal(trainer.predict(x)["aux.1"], x)


def test_a_mean_inside_of_the_module_is_that_of_all_examples(daemon):
    module, (x, y) = WithLoss("mean"), tensors(19)
    trainer = Trainer(module, optimizer="sgd")
    wanted = copy.deepcopy(module).eval()(x, y)["loss"].item()
    data = {"x": x, "labels": y}
    assert trainer.evaluate(data, batch_size=ROWS)["loss"] == pytest.approx(wanted, rel=1e-5)
    trainer = Trainer(module, optimizer=torch.optim.SGD(module.parameters(), 0.1))
    result = trainer.fit({"x": x[:8], "labels": y[:8]}, batch_size=ROWS, validation_data=data, verbose=0)
    wanted = copy.deepcopy(module).eval()(x, y)["loss"].item()
    assert result.history["val_loss"] == [pytest.approx(wanted, rel=1e-5)]


def test_another_loss_inside_of_the_module_is_that_of_each_batch(daemon):
    module, (x, y) = WithLoss("sum"), tensors(19)
    trainer = Trainer(module, optimizer="sgd")
    still = copy.deepcopy(module).eval()
    parts = [(len(a), still(a, b)["loss"].item()) for a, b in ((x[:8], y[:8]), (x[8:16], y[8:16]), (x[16:], y[16:]))]
    wanted = sum(count * value for count, value in parts) / 19
    assert trainer.evaluate({"x": x, "labels": y}, batch_size=ROWS)["loss"] == pytest.approx(wanted, rel=1e-5)
    data = {"x": x[:8], "labels": y[:8]}
    with pytest.raises(errors.InvalidArgument, match="a multiple of batch_size 8, not 19"):
        trainer.fit(data, batch_size=ROWS, validation_data={"x": x, "labels": y}, verbose=0)


def test_accuracy_is_the_operators():
    logits = np.array([[0.1, 0.9], [0.5, 0.5], [np.nan, 0.1], [0.2, 0.1]], np.float32)
    assert accuracy(logits, np.array([1, 0, 0, -100])) == pytest.approx(2 / 3)
    assert accuracy(logits.reshape(2, 2, 2), np.array([[1, 1], [0, 0]])) == pytest.approx(2 / 4)


class Recorder(callbacks.Callback):
    def __init__(self):
        self.logs, self.states = [], []

    def on_epoch_end(self, epoch, logs=None):
        self.logs.append(dict(logs or {}))
        self.states.append(copy.deepcopy(self.model.state_dict()))


def loader(x, y, size):
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=size)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("plain", "tuple"), ("plain", "loader"), ("plain", "dataset"), ("plain", "dict"), ("weighted", "loader")],
)
def test_each_epoch_is_validated_as_the_module_in_eval(daemon, name, kind):
    module, loss = Net(), LOSSES[name]
    held = tensors(13, seed=2)
    given = {
        "tuple": held,
        "loader": loader(*held, 5),
        "dataset": torch.utils.data.TensorDataset(*held),
        "dict": {"x": held[0], "labels": held[1]},
    }[kind]
    recorder = Recorder()
    trainer = Trainer(module, loss=loss, optimizer=torch.optim.SGD(module.parameters(), 0.1), metrics=["accuracy"])
    result = trainer.fit(
        loader(*tensors(3 * ROWS), ROWS), epochs=3, validation_data=given, callbacks=[recorder], verbose=0
    )
    assert len(result.history["loss"]) == 9
    assert len(recorder.states) == len(result.history["val_loss"]) == len(result.history["val_accuracy"]) == 3
    for epoch, state in enumerate(recorder.states):
        reference = Net()
        reference.load_state_dict(state)
        wanted = by_torch(reference, loss, *held)
        assert result.history["val_loss"][epoch] == pytest.approx(wanted, rel=1e-5)
        assert recorder.logs[epoch]["val_loss"] == result.history["val_loss"][epoch]
        right = (reference.eval()(held[0]).argmax(1) == held[1]).float().mean().item()
        assert result.history["val_accuracy"][epoch] == pytest.approx(right)
    assert result.evaluation["loss"] == pytest.approx(by_torch(module, loss, *held), rel=1e-5)
    assert result.history.rows["val_loss"] == [2, 5, 8]


def test_early_stopping_watches_the_validation(daemon):
    module = Net()
    x, y = tensors(2 * ROWS)
    held = (x, (y + 1) % 4)  # what is learned makes it worse
    recorder = Recorder()
    rule = callbacks.EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True)
    trainer = Trainer(module, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD(module.parameters(), 1.0))
    result = trainer.fit(
        (x, y), epochs=40, batch_size=ROWS, validation_data=held, callbacks=[recorder, rule], verbose=0
    )
    losses = result.history["val_loss"]
    best = losses.index(min(losses))
    assert len(losses) == best + 3 < 40
    for name, tensor in module.named_parameters():
        torch.testing.assert_close(tensor, recorder.states[best][name], rtol=1e-6, atol=1e-6)


def test_what_cannot_be_validated_is_refused_before_training(daemon):
    module, data = Net(), tensors(ROWS)
    trainer = Trainer(module, loss=nn.CrossEntropyLoss(), optimizer="sgd")
    with pytest.raises(errors.InvalidArgument, match="validation_data and validation_split: give one"):
        trainer.fit(data, batch_size=ROWS, validation_data=data, validation_split=0.5)
    with pytest.raises(errors.InvalidArgument, match="execution='session'"):
        trainer.fit(data, batch_size=ROWS, validation_data=data, execution="job")
    with pytest.raises(errors.InvalidArgument, match="data has 1 arrays, the graph 2 inputs"):
        trainer.fit(data, batch_size=ROWS, validation_data=(data[0],))


@pytest.mark.parametrize("name", ["plain", "weighted", "nll"])
def test_a_label_that_is_no_class_is_named_by_its_row(daemon, name):
    module, (x, y) = Net(), tensors(27)
    trainer = Trainer(module, loss=LOSSES[name], optimizer="sgd")
    y[19] = 4
    with pytest.raises(errors.InvalidArgument, match="labels of example 19 is 4; accepted are 0 to 3, or -100 to"):
        trainer.evaluate(loader(x, y, ROWS))
    with pytest.raises(errors.InvalidArgument, match="labels of example 3 is 4"):
        trainer.fit((x[:16], y[:16]), batch_size=ROWS, validation_data=(x[16:], y[16:]), verbose=0)
    y[19] = -100
    loss = LOSSES[name]
    assert trainer.evaluate(loader(x, y, ROWS))["loss"] == pytest.approx(by_torch(module, loss, x, y), rel=1e-5)
