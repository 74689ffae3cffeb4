"""Trainer trains as a loop of PyTorch's does, with its optimizers, losses, schedules and data."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import espalier
from espalier import callbacks, ops
from espalier.errors import InvalidArgument
from espalier.graph import Graph
from espalier.torch import Trainer

ROWS = 8


def tensors(seed=1, rows=ROWS):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 6, generator=generator), torch.randint(0, 4, (rows,), generator=generator)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


def loop(module, optimizer, loss, data, steps, scheduler=None, clip=0.0):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(module(data[0]), *data[1:])
        value.backward()
        if clip:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(value.item())
    return losses


def fit(trainer, data, steps=6, **more):
    options = {"steps": steps, "batch_size": ROWS, "shuffle": False, "verbose": 0, **more}
    return trainer.fit(data, **options)


def assert_same(module, reference, atol=1e-5):
    theirs = reference.state_dict()
    assert set(module.state_dict()) == set(theirs)
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        lambda p: torch.optim.Adam(p, 0.01, betas=(0.8, 0.99), weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
        lambda p: torch.optim.Adagrad(p, 0.05, lr_decay=0.1, initial_accumulator_value=0.1),
        lambda p: torch.optim.RMSprop(p, 0.01, alpha=0.9, momentum=0.5, centered=True),
        lambda p: torch.optim.Adafactor(p, 0.05, eps=(1e-30, 1e-3)),
    ],
    ids=["sgd", "adam", "adamw", "adagrad", "rmsprop", "adafactor"],
)
def test_optimizers(daemon, make):
    module, data = Net(), tensors()
    reference = copy.deepcopy(module)
    losses = loop(reference, make(reference.parameters()), nn.CrossEntropyLoss(), data, 6)
    result = fit(Trainer(module, loss=nn.CrossEntropyLoss(), optimizer=make(module.parameters())), data)
    assert result.history["loss"] == pytest.approx(losses, rel=1e-4)
    assert_same(module, reference, atol=2e-4)
    assert module.norm.num_batches_tracked == 6


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
        lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.8),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 6, 0.01),
        lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.1, 4),
        lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.25, 1.0, 3),
        lambda o: torch.optim.lr_scheduler.PolynomialLR(o, 7, 2.0),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.2, 10, cycle_momentum=False),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 3),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: min(1.0, step / 4)),
        lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.1, 0.2, step_size_up=2, cycle_momentum=False),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [torch.optim.lr_scheduler.LinearLR(o, 0.1, 1.0, 2), torch.optim.lr_scheduler.ExponentialLR(o, 0.5)],
            [2],
        ),
    ],
    ids=[
        *("step", "exponential", "cosine", "linear", "rising", "polynomial", "one-cycle"),
        *("cosine that rises again", "warm-up from 0", "cyclic", "one after the other"),
    ],
)
def test_schedulers(daemon, make):
    module, data = Net(), tensors()
    reference = copy.deepcopy(module)
    sgd = torch.optim.SGD(reference.parameters(), 0.1)
    losses = loop(reference, sgd, nn.CrossEntropyLoss(), data, 6, make(sgd))
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    scheduler = make(optimizer)
    before = optimizer.param_groups[0]["lr"]
    result = fit(Trainer(module, loss=nn.CrossEntropyLoss(), optimizer=optimizer, scheduler=scheduler), data)
    assert result.history["loss"] == pytest.approx(losses, rel=1e-5)
    assert optimizer.param_groups[0]["lr"] == before


def test_groups_of_parameters(daemon):
    """Learning rates and weight decay of their own, as with torch, also under a schedule."""

    def groups(module):
        norms = [p for n, p in module.named_parameters() if p.ndim == 1]
        matrices = [p for n, p in module.named_parameters() if p.ndim > 1]
        return torch.optim.AdamW(
            [
                {"params": matrices[:1], "lr": 0.01, "weight_decay": 0.2},
                {"params": matrices[1:], "lr": 0.03, "weight_decay": 0.2},
                {"params": norms, "lr": 0.01, "weight_decay": 0.0},
            ]
        )

    module, data = Net(), tensors()
    reference = copy.deepcopy(module)
    theirs, ours = groups(reference), groups(module)
    scheduler = torch.optim.lr_scheduler.LambdaLR(ours, lambda step: 1 / (1 + step))
    losses = loop(
        reference,
        theirs,
        nn.CrossEntropyLoss(),
        data,
        6,
        torch.optim.lr_scheduler.LambdaLR(theirs, lambda step: 1 / (1 + step)),
    )
    result = fit(Trainer(module, loss=nn.CrossEntropyLoss(), optimizer=ours, scheduler=scheduler), data)
    assert result.history["loss"] == pytest.approx(losses, rel=1e-4)
    assert_same(module, reference, atol=2e-4)


def regression(shape=(4,)):
    generator = torch.Generator().manual_seed(5)
    return tensors()[0], torch.rand(ROWS, *shape, generator=generator)


LOSSES = {
    "cross entropy": (nn.CrossEntropyLoss(), tensors()),
    "smoothed": (nn.CrossEntropyLoss(label_smoothing=0.2), tensors()),
    "weighted": (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5, 3.0])), tensors()),
    "ignored": (nn.CrossEntropyLoss(ignore_index=2, weight=torch.tensor([1.0, 2.0, 0.5, 3.0])), tensors()),
    "summed": (nn.CrossEntropyLoss(reduction="sum"), tensors()),
    "soft": (nn.CrossEntropyLoss(label_smoothing=0.1), (tensors()[0], torch.softmax(regression()[1], 1))),
    "softmax twice": (lambda y, labels: nn.functional.cross_entropy(y.softmax(1), labels), tensors()),
    "nll": (lambda y, labels: nn.NLLLoss()(y.log_softmax(1), labels), tensors()),
    "mse": (nn.MSELoss(), regression()),
    "mse sum": (nn.MSELoss(reduction="sum"), regression()),
    "l1": (nn.L1Loss(), regression()),
    "smooth l1": (nn.SmoothL1Loss(beta=0.3), regression()),
    "huber": (nn.HuberLoss(delta=0.3, reduction="sum"), regression()),
    "bce logits": (nn.BCEWithLogitsLoss(), regression()),
    "bce weights": (nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0, 3.0, 0.5])), regression()),
    "bce": (lambda y, t: nn.BCELoss()(y.sigmoid(), t), regression()),
    "kl": (lambda y, t: nn.KLDivLoss(reduction="batchmean")(y.log_softmax(1), t.softmax(1)), regression()),
    "kl log": (lambda y, t: nn.KLDivLoss(log_target=True)(y.log_softmax(1), t.log_softmax(1)), regression()),
    "two": (lambda y, labels: nn.functional.cross_entropy(y, labels) + 0.1 * y.square().mean(), tensors()),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(daemon, name):
    loss, data = LOSSES[name]
    module = Net()
    reference = copy.deepcopy(module)
    losses = loop(reference, torch.optim.SGD(reference.parameters(), 0.02), loss, data, 3)
    result = fit(Trainer(module, loss=loss, optimizer=torch.optim.SGD(module.parameters(), 0.02)), data, steps=3)
    assert result.history["loss"] == pytest.approx(losses, rel=1e-5)
    assert_same(module, reference)


def test_frozen_tied_and_unused_parameters(daemon):
    class Tied(Net):
        def __init__(self):
            super().__init__()
            self.again = nn.Linear(6, 16, bias=False)
            self.again.weight = self.first.weight
            self.unused = nn.Linear(3, 3)

        def forward(self, x):
            return self.last(torch.tanh(self.norm(self.first(x)) + self.again(x)))

    module, data = Tied(), tensors()
    module.last.bias.requires_grad_(False)
    reference = copy.deepcopy(module)
    parameters = [p for name, p in reference.named_parameters() if name != "norm.weight"]
    loop(reference, torch.optim.SGD(parameters, 0.1), nn.CrossEntropyLoss(), data, 6)
    parameters = [p for name, p in module.named_parameters() if name != "norm.weight"]
    fit(Trainer(module, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD(parameters, 0.1)), data)
    assert_same(module, reference)
    assert module.again.weight is module.first.weight


def test_layers_in_eval_keep_their_statistics(daemon):
    module, data = Net(), tensors()
    module.norm.running_mean.copy_(torch.linspace(-1, 1, 16))
    module.train().norm.eval()
    reference = copy.deepcopy(module)
    loop(reference, torch.optim.SGD(reference.parameters(), 0.1), nn.CrossEntropyLoss(), data, 4)
    fit(Trainer(module, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD(module.parameters(), 0.1)), data, 4)
    assert_same(module, reference)
    assert not module.norm.training


def test_a_data_loader_is_read_as_it_is(daemon):
    module, (x, labels) = Net(), tensors(rows=3 * ROWS)
    reference = copy.deepcopy(module)
    optimizer = torch.optim.SGD(reference.parameters(), 0.1)
    for _ in range(2):
        for first in range(0, 3 * ROWS, ROWS):
            batch = (x[first : first + ROWS], labels[first : first + ROWS])
            loop(reference, optimizer, nn.CrossEntropyLoss(), batch, 1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, labels), batch_size=ROWS)
    trainer = Trainer(
        module, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD(module.parameters(), 0.1), metrics=["accuracy"]
    )
    result = trainer.fit(loader, epochs=2, verbose=0)
    assert len(result.history["loss"]) == len(result.history["accuracy"]) == 6
    assert_same(module, reference)


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, a, b):
        return self.net(a + b)


def test_lists_of_numbers_are_arrays(daemon):
    x, labels = tensors()
    rows, numbers = x.tolist(), labels.tolist()
    examples = [((a, a), b) for a, b in zip(x, labels, strict=True)]
    several = [((x, x), labels), ((rows, rows), numbers), ([x, x], labels), examples]
    for module, kinds in [
        (Net(), [(x, labels), (rows, numbers), (x, tuple(numbers)), (list(x), labels), {"x": rows, "labels": numbers}]),
        (Sum(), several),
    ]:
        losses = []
        for data in kinds:
            if isinstance(data, list):  # a loader makes a list of the tuple of inputs
                data = torch.utils.data.DataLoader(data, batch_size=ROWS)
            trainer = Trainer(copy.deepcopy(module), loss=nn.CrossEntropyLoss(), optimizer="sgd")
            losses.append(fit(trainer, data, steps=3).history["loss"])
            assert losses[-1] == pytest.approx(losses[0], rel=1e-5)
    trainer = Trainer(Net(), loss=nn.CrossEntropyLoss(), optimizer="sgd")
    assert trainer.evaluate((rows, numbers)) == pytest.approx(trainer.evaluate((x, labels)))
    predicted = trainer.predict(x)
    for data in (rows, (rows, numbers), [x[:3], x[3:5], x[5:]]):
        torch.testing.assert_close(trainer.predict(data), predicted)
    with trainer.session(example=(rows, numbers)) as session:
        assert session.batch_size == ROWS
    for data, message in [
        ((x, ["cat"] * ROWS), "column 1 has elements of type <U3; accepted: numbers"),
        (([[1.0, 2.0], [3.0]], [0, 1]), "column 0 is no array of one shape"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            fit(trainer, data)
    with pytest.raises(InvalidArgument, match="only a job is recorded"):
        fit(trainer, (x, labels), execution="session", record="off")


class Named(torch.utils.data.Dataset):
    """Examples as dicts, with what they are called, which nothing reads."""

    def __init__(self, **labels):
        self.x, self.labels = tensors()
        self.given = labels

    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        return {"x": self.x[i], "name": f"row {i}", "labels": int(self.labels[i]), **self.given}


def test_texts_that_nothing_reads_are_left_out(daemon):
    x, labels = tensors()
    named = {"x": x, "name": [f"row {i}" for i in range(ROWS)], "target": labels}
    losses = []
    for data in ((x, labels), Named(), torch.utils.data.DataLoader(Named(), batch_size=ROWS), named):
        losses.append(fit(Trainer(Net(), loss=nn.CrossEntropyLoss(), optimizer="sgd"), data, steps=2).history["loss"])
        assert losses[-1] == pytest.approx(losses[0], rel=1e-5)
    with pytest.raises(InvalidArgument, match="labels has elements of type <U3; accepted: numbers"):
        fit(Trainer(Net(), loss=nn.CrossEntropyLoss(), optimizer="sgd"), Named(labels="cat"))


class Endless(torch.utils.data.IterableDataset):
    """Examples again and again, so that it has no length."""

    def __iter__(self):
        while True:
            yield from zip(*tensors(rows=3 * ROWS), strict=True)


def test_streams(daemon):
    x, labels = tensors(rows=3 * ROWS)
    known = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, labels), batch_size=ROWS)
    found = []
    for data, given in [
        ((x, labels), {"steps": 6}),
        ((x, labels), {"steps": 6, "stream": True}),
        (known, {"steps": None, "epochs": 2, "stream": True}),
        (torch.utils.data.DataLoader(Endless(), batch_size=ROWS), {"steps": 6, "stream": True}),
    ]:
        trainer = Trainer(Net(), loss=nn.CrossEntropyLoss(), optimizer="adam")
        result = fit(trainer, data, **given)
        found.append((result.history["loss"], [t.sum().item() for t in trainer.module.parameters()]))
        assert trainer.module.norm.num_batches_tracked == 6
    for losses, sums in found[1:]:
        assert losses == pytest.approx(found[0][0], rel=1e-5)
        assert sums == pytest.approx(found[0][1], rel=1e-4, abs=1e-5)
    with pytest.raises(InvalidArgument, match="stream=True needs steps"):
        fit(trainer, torch.utils.data.DataLoader(Endless(), batch_size=ROWS), steps=None, stream=True)
    with pytest.raises(InvalidArgument, match="stream=True: only a job reads a stream, and validation_data needs"):
        fit(trainer, known, stream=True, validation_data=(x, labels))


def test_gradients_are_clipped_as_in_torch(daemon):
    module, data = Net(), tensors()
    reference = copy.deepcopy(module)
    sgd = torch.optim.SGD(reference.parameters(), 0.5)
    losses = loop(reference, sgd, nn.CrossEntropyLoss(), data, 4, clip=0.1)
    optimizer = torch.optim.SGD(module.parameters(), 0.5)
    result = fit(Trainer(module, loss=nn.CrossEntropyLoss(), optimizer=optimizer, clip_norm=0.1), data, 4)
    assert result.history["loss"] == pytest.approx(losses, rel=1e-5)


def test_several_inputs_and_labels_by_name(daemon):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(6, 1)

        def forward(self, left, right, *, scale=None):
            return self.layer(left * right) if scale is None else self.layer(left * right) * scale

    module, x = Pair(), tensors()[0]
    columns = {"labels": torch.ones(ROWS, 1), "right": x, "left": x + 1, "spare": torch.arange(ROWS)}
    reference = copy.deepcopy(module)
    loss = nn.functional.mse_loss(reference(columns["left"], columns["right"]), columns["labels"])
    trainer = Trainer(module, loss=nn.MSELoss(), optimizer=torch.optim.SGD(module.parameters(), 0.1))
    result = fit(trainer, {key: columns[key] for key in ("labels", "right", "left")}, steps=1)
    assert result.history["loss"][0] == pytest.approx(loss.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda p: torch.optim.Adam(p, amsgrad=True), "amsgrad=True is not supported"),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.5), "dampening=0.5 is not supported"),
        (lambda p: torch.optim.Adafactor(p), r"eps=\(None, 0.001\) means something else here"),
        (lambda p: torch.optim.LBFGS(p), "LBFGS is not supported: it computes the loss several times"),
        (lambda p: torch.optim.Adam, r"the class Adam; give an object: Adam\(module.parameters"),
        (lambda p: "adammw", "optimizer 'adammw': accepted are"),
        (lambda p: torch.optim.Rprop(p), "Rprop is not supported; accepted of torch.optim are SGD"),
        (
            lambda p: torch.optim.AdamW([{"params": p[:2], "eps": 1e-6}, {"params": p[2:]}]),
            "groups of parameters have eps 1e-06 and 1e-08",
        ),
    ],
)
def test_optimizers_that_differ_are_refused_by_name(optimizer, message):
    module = Net()
    made = optimizer(list(module.parameters()))
    with pytest.raises(InvalidArgument, match=message):
        Trainer(module, loss=nn.CrossEntropyLoss(), optimizer=made)


def test_the_optimizer_of_another_module_is_refused():
    other = torch.optim.Adam(nn.Linear(2, 2).parameters())
    with pytest.raises(InvalidArgument, match=r"none of the module's parameters.*torch\.optim\.Adam\("):
        Trainer(nn.Linear(2, 2), optimizer=other, loss=nn.MSELoss())


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        (lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o), "ReduceLROnPlateau is not supported"),
        (lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.1, 0.2), "CyclicLR changes the momentum"),
        (
            lambda o: torch.optim.lr_scheduler.LambdaLR(o, [lambda step: 1.0, lambda step: 1 / (step + 1)]),
            "learning rate of group 1 is 0.05, which is not 1 times",
        ),
    ],
)
def test_schedulers_that_differ_are_refused(scheduler, message):
    module = Net()
    first, *others = module.parameters()
    optimizer = torch.optim.SGD([{"params": [first]}, {"params": others}], 0.1, momentum=0.9)
    trainer = Trainer(module, loss=nn.CrossEntropyLoss(), optimizer=optimizer, scheduler=scheduler(optimizer))
    with pytest.raises(InvalidArgument, match=message):
        fit(trainer, tensors())


def test_misspelled_keywords():
    trainer = Trainer(Net(), loss=nn.CrossEntropyLoss(), optimizer="sgd")
    for call, wrong, meant in [
        (trainer.fit, "batchsize", "batch_size"),
        (trainer.session, "suffle", "shuffle"),
        (trainer.evaluate, "batch_sizes", "batch_size"),
        (trainer.predict, "batchsize", "batch_size"),
        (Trainer, "optimiser", "optimizer"),
    ]:
        with pytest.raises(TypeError, match=f"'{wrong}'; did you mean '{meant}'"):
            call(tensors(), **{wrong: 8})


@pytest.mark.parametrize("count", [0, -4, 2.5, True, "8"])
def test_counts_that_cannot_be_are_refused(count):
    """Before anything is sent: there is no daemon."""
    trainer = Trainer(Net(), loss=nn.CrossEntropyLoss(), optimizer="sgd")
    calls = [(name, trainer.fit) for name in ("batch_size", "epochs", "steps")]
    calls += [("batch_size", call) for call in (trainer.session, trainer.evaluate, trainer.predict)]
    for name, call in calls:
        with pytest.raises(InvalidArgument, match=f"^{name} is {count!r}; accepted: an integer above 0$"):
            call(tensors(), **{"batch_size": 8, name: count})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": "cross_entropy"}, r"loss='cross_entropy' is a name.*did you mean nn.CrossEntropyLoss\(\)\?"),
        ({"loss": "mse"}, r"did you mean nn.MSELoss\(\)\?"),
        ({"loss": "mean_absolute_error"}, r"did you mean nn.L1Loss\(\)\?"),
        ({"loss": nn.CrossEntropyLoss}, r"loss is the class CrossEntropyLoss; give an object: CrossEntropyLoss\(\)"),
        ({"loss": 3}, "loss is a int; accepted"),
        ({"metrics": ["acuracy"]}, "metric 'acuracy': accepted are accuracy; did you mean 'accuracy'"),
        ({"metrics": "accuracy"}, "give a list"),
        ({"module": Net}, r"give an object: Net\("),
        ({"module": len}, "a torch.nn.Module is needed"),
    ],
)
def test_a_trainer_refuses_at_once_what_it_could_not_use(given, message):
    with pytest.raises(InvalidArgument, match=message):
        Trainer(**{"module": Net(), "loss": nn.CrossEntropyLoss(), "optimizer": "sgd", **given})


@pytest.mark.parametrize("path", ["x.keras", "{epoch}-{val_loss:.2f}.h5", "x.safetensors"])
def test_checkpoints_in_files_of_others_are_refused_before_training(path):
    trainer = Trainer(Net(), loss=nn.CrossEntropyLoss(), optimizer="sgd")
    with pytest.raises(InvalidArgument, match=r"the state_dict is written.*name it .pt or .pth"):
        trainer.fit(None, callbacks=[callbacks.ModelCheckpoint(path)])


def test_a_trained_module_is_served(daemon):
    module, (x, y) = Net(), tensors(rows=64)
    trainer = Trainer(module, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD(module.parameters(), 0.1))
    result = fit(trainer, (x, y), name="module")
    served = daemon.serve(result.model, max_batch_size=16)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=20)
    module.eval()
    for inputs in (x, loader):
        (found,) = daemon.predict(served, inputs).values()
        torch.testing.assert_close(torch.from_numpy(found), module(x).detach(), rtol=1e-4, atol=1e-5)
    daemon.unserve("module")


@pytest.mark.parametrize(("name", "dtype"), [("bf16", "bfloat16"), ("f16", "float16")])
def test_predictions_of_half_precision(daemon, name, dtype):
    graph = Graph("half")
    x = graph.input("x", (None, 3), dtype)
    y = ops.multiply(ops.cast(x, to="f32"), graph.parameter("w", data=np.full(1, 3, np.float32)))
    graph.output("half", ops.cast(y, to=name))
    graph.output("loss", ops.identity_loss(ops.reduce_mean(y)))
    with espalier.Session(graph, optimizer="sgd", batch_size=1) as session:
        served = daemon.serve(session.save(name))
    given = torch.tensor([[0.1, 1.0, -7.25]])
    found = daemon.predict(served, given)["half"]
    assert found.dtype.name == dtype
    expected = (3 * given.to(getattr(torch, dtype)).float()).to(getattr(torch, dtype))
    assert found.astype(np.float32).tolist() == expected.float().tolist()
    daemon.unserve(name)


def test_a_second_fit_warns_of_its_new_optimizer_state(daemon):
    x = torch.randn(32, 4)
    for make, warns in (
        (lambda p: torch.optim.SGD(p, 0.1), False),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), True),
        (lambda p: torch.optim.Adam(p, 0.1), True),
    ):
        module = nn.Linear(4, 2)
        trainer = Trainer(module, loss=nn.MSELoss(), optimizer=make(module.parameters()))
        for number in range(2):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                trainer.fit((x, x[:, :2]), steps=2, batch_size=16, verbose=0)
            said = [str(w.message) for w in caught if "new state of the optimizer" in str(w.message)]
            assert len(said) == (1 if warns and number else 0), (said, number)
