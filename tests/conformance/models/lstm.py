"""A tagger: words to a bidirectional two-layer LSTM to a tag for each word."""
from torch import nn

from . import Model, classes, tokens


class Tagger(nn.Module):
    def __init__(self, vocabulary, width, hidden, tags):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(2 * hidden, tags)

    def forward(self, tokens):
        return self.tags(self.lstm(self.words(tokens))[0])


MODELS = [
    Model("LSTM tagger", lambda: Tagger(300, 32, 48, 17), tokens(300, 19), classes(17, 19), batch=6,
          learning_rate=0.1),
]
