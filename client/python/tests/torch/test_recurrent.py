"""LSTM, GRU, RNN and their cells give PyTorch's values, states and gradients, and train as there."""

import pytest
import torch
from torch import nn

from espalier.errors import EspalierError
from espalier.torch import Trainer, to_graph

ROWS, STEPS, FEATURES, HIDDEN = 4, 6, 3, 5


class Tagger(nn.Module):
    """A recurrent module whose sequence and states all count in the loss."""

    def __init__(self, make, use):
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.use = make(), use
        self.start = nn.Parameter(torch.randn(4, 1, HIDDEN))
        self.weights = nn.Parameter(torch.linspace(0.5, 1.5, 2 * HIDDEN))

    def forward(self, x):
        total = 0.0
        for place, value in enumerate(self.use(self, x)):
            # Squares, so that each element has a gradient of its own.
            total = total + (place + 1) * (value.square() * self.weights[: value.shape[-1]]).sum() / x.shape[0]
        return {"loss": total}


def plain(m, x):
    y, states = m.rnn(x)
    return [y, *(states if isinstance(states, tuple) else [states])]


def steps_first(m, x):
    y, *states = plain(m, x.transpose(0, 1))
    return [y.transpose(0, 1)[:, 1:], *states]


def started(m, x):
    count = m.rnn.num_layers * (2 if m.rnn.bidirectional else 1)
    start = m.start[:count].expand(-1, x.shape[0], -1).contiguous()
    y, states = m.rnn(x, (start, start * 2) if isinstance(m.rnn, nn.LSTM) else start)
    return [y, *(states if isinstance(states, tuple) else [states])]


def one_sequence(m, x):
    y, _ = m.rnn(m.start[0].expand(STEPS, HIDDEN)[:, :FEATURES])
    return [y + x[:, :, :1]]


def cell(m, x):
    state = m.rnn(x[:, 0])
    for step in (1, 2):
        state = m.rnn(x[:, step], state)
    return list(state) if isinstance(state, tuple) else [state]


def lstm(**options):
    return lambda: nn.LSTM(FEATURES, HIDDEN, **{"batch_first": True, **options})


def gru(**options):
    return lambda: nn.GRU(FEATURES, HIDDEN, **{"batch_first": True, **options})


def rnn(**options):
    return lambda: nn.RNN(FEATURES, HIDDEN, **{"batch_first": True, **options})


CASES = {
    "lstm": (lstm(), plain),
    "lstm layers": (lstm(num_layers=2, bidirectional=True), plain),
    "lstm steps first": (lstm(batch_first=False, bias=False), steps_first),
    "lstm started": (lstm(num_layers=2, bidirectional=True), started),
    "lstm projected": (lstm(num_layers=2, bidirectional=True, proj_size=2), plain),
    "lstm projected without bias": (lstm(proj_size=2, bias=False), plain),
    "lstm one sequence": (lstm(), one_sequence),
    "lstm cell": (lambda: nn.LSTMCell(FEATURES, HIDDEN), cell),
    "gru": (gru(), plain),
    "gru layers": (gru(num_layers=2, bidirectional=True), plain),
    "gru started": (gru(num_layers=2), started),
    "gru without bias": (gru(bias=False), plain),
    "gru cell": (lambda: nn.GRUCell(FEATURES, HIDDEN), cell),
    "rnn": (rnn(num_layers=2, bidirectional=True), started),
    "rnn relu": (rnn(nonlinearity="relu", bidirectional=True), plain),
    "rnn cell": (lambda: nn.RNNCell(FEATURES, HIDDEN, bias=False, nonlinearity="relu"), cell),
}


@pytest.mark.parametrize("name", CASES)
def test_values_states_and_gradients(daemon, name):
    module = Tagger(*CASES[name])
    x = torch.randn(ROWS, STEPS, FEATURES, generator=torch.Generator().manual_seed(1))
    loss = module(x)["loss"]
    loss.backward()
    before = {n: p.detach().clone() for n, p in module.named_parameters() if p.grad is not None}
    trainer = Trainer(module, optimizer=torch.optim.SGD(module.parameters(), 1 / 16))
    result = trainer.fit((x,), steps=1, batch_size=ROWS, shuffle=False, verbose=0)
    assert result.history["loss"][0] == pytest.approx(loss.item(), rel=1e-5)
    assert len(before) > 2
    for n, p in module.named_parameters():
        if n in before:
            torch.testing.assert_close((before[n] - p.detach()) * 16, p.grad, rtol=1e-4, atol=1e-4, msg=f"{n}")


class Last(nn.Module):
    def __init__(self, layer):
        super().__init__()
        torch.manual_seed(0)
        self.rnn = layer(FEATURES, 8, 2, batch_first=True, dropout=0.5)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        y, state = self.rnn(x)
        last = state[0] if isinstance(state, tuple) else state
        return self.head(y[:, -1] + last[0])


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_dropout_between_layers_follows_the_mode(daemon, layer):
    """Of equal rows, the outputs are equal in evaluation, and in training as far apart as PyTorch's."""
    module = Last(layer)
    x = torch.randn(1, STEPS, FEATURES, generator=torch.Generator().manual_seed(1)).repeat(512, 1, 1)
    trainer = Trainer(module, loss=lambda y, _: y.var(0).sum(), optimizer=torch.optim.SGD(module.parameters(), 0.0))
    spread = module(x).var(0).sum().item()
    assert spread > 1e-4
    assert trainer.evaluate((x, x[:, 0]), batch_size=512)["loss"] < 1e-9
    found = trainer.fit((x, x[:, 0]), steps=2, batch_size=512, verbose=0).history["loss"]
    assert found[0] != found[1]
    assert found == pytest.approx([spread, spread], rel=0.3)


def test_the_graph_does_not_grow_with_the_steps():
    module = Last(nn.LSTM)
    sizes = [len(to_graph(module, torch.randn(2, steps, FEATURES)).graph.proto.nodes) for steps in (4, 32)]
    assert sizes[0] == sizes[1] < 40


def packed(m, x):
    lengths = torch.full((x.shape[0],), 3)
    sequence = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    return [nn.utils.rnn.pad_packed_sequence(m.rnn(sequence)[0], batch_first=True)[0]]


@pytest.mark.parametrize(
    ("make", "use", "message"),
    [
        (gru(batch_first=False), plain, "steps are the examples of a batch.*use batch_first=True"),
        (lstm(), packed, "packed sequences are not supported; give the padded tensor"),
        (gru(), packed, "y.gather.*has the last steps"),
        (
            lstm(proj_size=2),
            lambda m, x: [m.rnn(x, (x[None, :, 0, :2], m.start[:1].expand(-1, 4, -1)))[0]],
            "proj_size with an initial state is not supported: call it without",
        ),
    ],
    ids=["steps are examples", "packed lstm", "packed gru", "projected from a state"],
)
def test_what_is_not_supported_says_what_to_do(make, use, message):
    with pytest.raises(EspalierError, match=message):
        to_graph(Tagger(make, use), torch.randn(4, STEPS, FEATURES), batch_size=4)


def test_packed_data_are_refused_and_padded_ones_give_what_packed_ones_would(daemon):
    x, lengths = torch.randn(8, STEPS, FEATURES), torch.tensor([5, 1, 3, 2, 4, 5, 1, 2])
    assert int(lengths.max()) <= STEPS
    sequence = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)

    class Ends(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(FEATURES, 4, batch_first=True)

        def forward(self, x, lengths):
            y, _ = self.rnn(x)
            return y.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, y.shape[2]))

    module = Ends()
    with pytest.raises(EspalierError, match="packed sequences are not supported; give the padded tensor"):
        to_graph(module.rnn, sequence)
    with pytest.raises(EspalierError, match="packed sequences are not supported; give the padded tensor"):
        Trainer(module.rnn, loss=nn.MSELoss(), optimizer="sgd").fit((sequence, x), batch_size=8, epochs=1)
    # What the message says to do.
    want = module.rnn(sequence)[1][0]
    found = Trainer(module, loss=None, optimizer="sgd").predict((x, lengths), batch_size=8)
    torch.testing.assert_close(found[:, 0], want)
