"""Hindsight logging: a PyTorch network on handwritten digits, of the repository's own data; nothing is downloaded.

python client/python/examples/flor_digits.py --flor digits                        # records
python client/python/examples/flor_digits.py --flor digits --replay_flor          # the confusion matrices, no training
python client/python/examples/flor_digits.py --flor digits --replay_flor 10/20    # only of the tenth epoch

The call of `confusion` may be written after the recording: that is the point. docs/guide/flor.md.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import espalier.flor as flor

DATA = Path(__file__).absolute().parents[3] / "tests" / "data" / "digits.npz"


def main() -> None:
    digits = np.load(DATA)
    x = torch.from_numpy(digits["x"].reshape(-1, 64).astype(np.float32))
    y = torch.from_numpy(digits["y"].astype(np.int64))
    split = len(x) * 4 // 5
    loader = DataLoader(TensorDataset(x[:split], y[:split]), batch_size=flor.arg("batch_size", 32), shuffle=True)
    hidden = flor.arg("hidden", 256)
    net = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=flor.arg("lr", 1e-3))

    for epoch in flor.it(range(flor.arg("epochs", 20))):
        if flor.SkipBlock.step_into("training_loop"):
            net.train()
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(inputs), labels)
                loss.backward()
                optimizer.step()
            flor.log("loss", loss.item())
        flor.SkipBlock.end(net, optimizer)
        net.eval()
        with torch.no_grad():
            predicted = net(x[split:]).argmax(1)
        accuracy = flor.log("accuracy", (predicted == y[split:]).float().mean().item())
        flor.log("confusion", confusion(predicted, y[split:]))
        print(f"epoch {epoch}: {accuracy:.2%}")


def confusion(predicted: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (labels * 10 + predicted).bincount(minlength=100).reshape(10, 10)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
