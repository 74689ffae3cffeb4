"""Sessions of Trainer, as in PyTorch: evaluate, predict, callbacks that see the module, loops of one's own."""

import copy

import pytest
import torch
from torch import nn

from espalier import callbacks, errors
from espalier.torch import Trainer

ROWS = 8


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16)
        self.drop, self.last = nn.Dropout(0.0), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(self.drop(torch.tanh(self.norm(self.first(x)))))


def tensors(rows, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 6, generator=generator), torch.randint(0, 4, (rows,), generator=generator)


def trainer_of(module, lr=0.1, **more):
    return Trainer(module, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD(module.parameters(), lr=lr), **more)


def by_torch(module, x):
    was = module.training
    module.eval()
    with torch.no_grad():
        found = module(x)
    module.train(was)
    return found


def close(have, want, **options):
    torch.testing.assert_close(have, want, **({"rtol": 1e-5, "atol": 1e-6} | options))


def same(module, reference):
    for name, tensor in reference.state_dict().items():
        close(module.state_dict()[name], tensor, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def epochs_by_torch(reference, optimizer, x, y, epochs, hook=lambda epoch: None):
    for epoch in range(epochs):
        for i in range(0, len(x), ROWS):
            optimizer.zero_grad()
            nn.functional.cross_entropy(reference(x[i : i + ROWS]), y[i : i + ROWS]).backward()
            optimizer.step()
        hook(epoch)


@pytest.mark.parametrize("training", [True, False])
def test_evaluate_and_predict(daemon, training):
    module = Net()
    module.drop.p = 0.5
    module.norm.running_mean.normal_()
    module.norm.running_var.uniform_(0.5, 2)
    module.train(training)
    x, y = tensors(27)
    trainer = trainer_of(module, metrics=["accuracy"])
    want = by_torch(module, x)
    close(trainer.predict(x), want)
    close(trainer.predict([(x[:10], y[:10]), (x[10:], y[10:])], batch_size=4), want)
    values = trainer.evaluate((x, y))
    assert values["loss"] == pytest.approx(nn.functional.cross_entropy(want, y).item(), rel=1e-5)
    assert values["accuracy"] == pytest.approx((want.argmax(1) == y).float().mean().item())
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=10)
    assert trainer.evaluate(loader) == pytest.approx(values, rel=1e-6)
    assert module.training == training


class Several(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.a, self.b = kind, nn.Linear(6, 3), nn.Embedding(5, 3)
        self.requires_grad_(False)

    def forward(self, x, ids, scale=None):
        first, second = self.a(x), self.b(ids).sum(1)
        if self.kind == "tuple":
            return first, second
        return {"logits": first + second, "ids": ids + 1}


@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_outputs_have_the_modules_structure(daemon, kind):
    module = Several(kind)  # frozen as a whole
    x, ids = tensors(9)[0], torch.arange(18).reshape(9, 2) % 5
    trainer = Trainer(module, optimizer="sgd")
    want = module(x, ids)
    for have in (trainer.predict((x, ids)), trainer.predict({"ids": ids, "x": x}, batch_size=4)):
        assert type(have) is type(want)
        for a, b in zip(*((m.values() if kind == "dict" else m) for m in (have, want)), strict=True):
            close(a, b)


def test_callbacks_see_and_change_the_module(daemon, tmp_path):
    module = Net()
    reference = copy.deepcopy(module)
    x, y = tensors(4 * ROWS)
    sgd = torch.optim.SGD(reference.parameters(), 0.1)
    want, have = [], []

    def hook(epoch):
        want.append((copy.deepcopy(reference.state_dict()), by_torch(reference, x[:5])))
        if epoch == 0:
            sgd.param_groups[0]["lr"] = 0.02
        if epoch == 1:
            with torch.no_grad():
                reference.last.weight.mul_(0.5)

    epochs_by_torch(reference, sgd, x, y, 3, hook)

    class Watch(callbacks.Callback):
        needs_session = True

        def on_epoch_end(self, epoch, logs=None):
            values = trainer.evaluate((x[:11], y[:11]))
            have.append((copy.deepcopy(self.model.state_dict()), trainer.predict(x[:5]), values["loss"]))
            if epoch == 0:
                trainer.optimizer.param_groups[0]["lr"] = 0.02
            if epoch == 1:
                with torch.no_grad():
                    self.model.last.weight.mul_(0.5)

    trainer = trainer_of(module)
    checkpoints = callbacks.ModelCheckpoint(tmp_path / "{epoch}-{batch}.pt", save_freq=3)
    result = trainer.fit((x, y), epochs=3, batch_size=ROWS, shuffle=False, verbose=0, callbacks=[Watch(), checkpoints])
    assert result.job is None
    assert len(have) == 3
    for (state, predicted, loss), (their_state, their_prediction) in zip(have, want, strict=True):
        for name, tensor in their_state.items():
            close(state[name], tensor, rtol=1e-4, atol=1e-5)
        close(predicted, their_prediction, rtol=1e-4, atol=1e-5)
        assert loss > 0
    same(module, reference)
    files = {path.name: torch.load(path) for path in tmp_path.iterdir()}
    assert set(files) == {"1-3.pt", "2-2.pt", "3-1.pt", "3-4.pt"}
    for name, tensor in module.state_dict().items():
        close(files["3-4.pt"][name], tensor)
    assert (files["1-3.pt"]["last.weight"] - files["3-4.pt"]["last.weight"]).abs().max() > 0


def test_the_rate_falls_in_the_optimizer_too(daemon):
    module = Net()
    trainer = trainer_of(module)
    rule = callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=10)
    trainer.fit(tensors(2 * ROWS), epochs=3, batch_size=ROWS, verbose=0, callbacks=[rule])
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.025)


def test_a_job_refuses_another_rate(daemon):
    module = Net()
    trainer = trainer_of(module)

    class Slow(callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            trainer.optimizer.param_groups[0]["lr"] = 0.01

    with pytest.raises(errors.FailedPrecondition, match="execution='session'"):
        trainer.fit(tensors(2 * ROWS), epochs=3, batch_size=ROWS, verbose=0, callbacks=[Slow()])

    class Look(callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            trainer.predict(tensors(3)[0])

    trainer.optimizer.param_groups[0]["lr"] = 0.1
    with pytest.raises(errors.FailedPrecondition, match="execution='session'"):
        trainer.fit(tensors(2 * ROWS), epochs=3, batch_size=ROWS, verbose=0, callbacks=[Look()])


def test_a_loop_of_ones_own(daemon):
    module = Net()
    reference = copy.deepcopy(module)
    x, y = tensors(3 * ROWS)
    optimizer = torch.optim.SGD(reference.parameters(), 0.1)
    losses = []
    for i in range(0, len(x), ROWS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(reference(x[i : i + ROWS]), y[i : i + ROWS])
        loss.backward()
        gradient = reference.first.weight.grad.clone()
        optimizer.step()
        losses.append(loss.item())
    trainer = trainer_of(module)
    with trainer.session(example=(x[:ROWS], y[:ROWS])) as session:
        for i in range(0, len(x), ROWS):
            session.zero_gradients()
            values = session.forward((x[i : i + ROWS], y[i : i + ROWS]))
            session.backward()
            found = session.get("first.weight", "gradient")
            session.update()
            assert values["loss"] == pytest.approx(losses[i // ROWS], rel=1e-5)
            trainer.write_back(session)
        assert set(session.parameters()) <= set(module.state_dict())
    close(torch.from_numpy(found.copy()), gradient, rtol=1e-4, atol=1e-5)
    same(module, reference)
    assert module.norm.num_batches_tracked == 3
    with trainer.session((x, y), batch_size=ROWS, shuffle=False) as session:
        first = session.step()["loss"]
    assert first == pytest.approx(nn.functional.cross_entropy(reference(x[:ROWS]), y[:ROWS]).item(), rel=1e-4)
    with pytest.raises(errors.InvalidArgument, match="give data, or an example"):
        trainer.session()
    with pytest.raises(errors.InvalidArgument, match="not one of this trainer's"):
        trainer_of(module).write_back(session)
