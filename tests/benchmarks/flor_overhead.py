"""What espalier.flor costs a small loop of PyTorch: seconds of the main loop without it, recording, and recording with a spool, in turns.

A network of 20,000 parameters and one with a convolution learn handwritten digits by Adam, on one thread. Compares the medians of the
rounds: of the time, and of the processor's time of the process, which other processes on the machine disturb less.

    flor_overhead.py [--rounds=9] [--seconds=6]
"""
import argparse
import glob
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(HERE, "..", "..", "client", "python")
sys.path[:0] = [HERE, os.path.join(PACKAGE, "tests"), os.path.join(PACKAGE, "tests", "torch"), PACKAGE]
DIGITS = os.path.join(HERE, "..", "data", "digits.npz")
PROGRAM = """
import sys, time
import numpy as np
import torch
from torch import nn
import espalier.flor as flor

torch.set_num_threads(1)
path, kind, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3])
digits = np.load(path)
x = torch.from_numpy(digits["x"].reshape(-1, 1, 8, 8).astype(np.float32))
y = torch.from_numpy(digits["y"].astype(np.int64))
mlp = [nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10)]
cnn = [nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 128), nn.ReLU(), nn.Linear(128, 10)]
net = nn.Sequential(*{"mlp": mlp, "cnn": cnn}[kind])
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=True)
began, processor = time.perf_counter(), time.process_time()
for epoch in flor.it(range(epochs)):
    if flor.SkipBlock.step_into("training_loop"):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(inputs), labels)
            loss.backward()
            optimizer.step()
            flor.log("loss", loss.item())
    flor.SkipBlock.end(net, optimizer)
print(time.perf_counter() - began, time.process_time() - processor)
"""


def seconds(python, folder, kind, epochs, *words):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLOR_")}
    environment |= {"PYTHONPATH": PACKAGE, "FLOR_HOME": os.path.join(folder, "home")}
    command = [python, os.path.join(folder, "train.py"), DIGITS, kind, str(epochs), *words]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    count = len(glob.glob(os.path.join(folder, "home", "x", "1", "checkpoints", "*", "*.safetensors")))
    for name in ("home", "spool"):
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    return *map(float, done.stdout.split()), count


def main():
    from torch_environment import ENVIRONMENT

    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=6, help="of the loop, about")
    options = parser.parse_args()
    python = ENVIRONMENT.python()
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "train.py"), "w") as file:
            file.write(PROGRAM)
        ways = {"without": [], "recording": ["--flor", "x"],
                "with a spool": ["--flor", "x", "--flor_spool", os.path.join(folder, "spool")]}
        for kind in ("mlp", "cnn"):
            epochs = max(5, int(options.seconds / (seconds(python, folder, kind, 5)[0] / 5)))
            took, counts = {way: [] for way in ways}, []
            processor = {way: [] for way in ways}
            for number in range(options.rounds):
                for way in sorted(ways, reverse=number % 2 == 1):
                    wall, busy, count = seconds(python, folder, kind, epochs, *ways[way])
                    took[way].append(wall)
                    processor[way].append(busy)
                    if way == "recording":
                        counts.append(count)
            print(f"{kind}: {epochs} epochs in {statistics.median(took['without']):.2f} s; {statistics.median(counts):g} checkpoints; "
                  f"load {os.getloadavg()[0]:.1f}")
            for way in ("recording", "with a spool"):
                of_time, of_processor = (
                    (statistics.median(each[way]) / statistics.median(each["without"]) - 1) * 100 for each in (took, processor))
                print(f"{kind}, {way}: {of_time:+.1f} % of the time, {of_processor:+.1f} % of the processor's", flush=True)


if __name__ == "__main__":
    main()
