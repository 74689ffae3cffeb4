#!/usr/bin/python3
"""Training tokens/s of the quickstart's LLM on one machine: Espalier against PyTorch, in turns.

    tests/benchmarks/training_throughput.py --program build/bin/tests/benchmarks/training_steps

Both train the same LLaMA (hidden 256, 6 layers, 8 heads, 4 KV heads, intermediate 704, vocabulary 256) in
float32 with AdamW and gradients clipped to norm 1, on batches of 16 windows of 128 bytes of the same text,
with the same number of threads. PyTorch runs eagerly. Ours also computes the accuracy in every step.
"""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time

# PyTorch's loops run on OpenMP's threads and its matrix products on OpenBLAS's own. If the former spin while they wait,
# the two fight for the cores and a step takes half as long again. Ours has one pool and is started without this.
OUR_ENVIRONMENT = dict(os.environ)
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import nn
from torch.nn import functional as F

HIDDEN, LAYERS, HEADS, KV_HEADS, INTERMEDIATE, VOCABULARY = 256, 6, 8, 4, 704, 256
BATCH, SEQUENCE = 16, 128
HEAD = HIDDEN // HEADS


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_norm, self.post_norm = Norm(), Norm()
        self.q = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.k = nn.Linear(HIDDEN, KV_HEADS * HEAD, bias=False)
        self.v = nn.Linear(HIDDEN, KV_HEADS * HEAD, bias=False)
        self.o = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate = nn.Linear(HIDDEN, INTERMEDIATE, bias=False)
        self.up = nn.Linear(HIDDEN, INTERMEDIATE, bias=False)
        self.down = nn.Linear(INTERMEDIATE, HIDDEN, bias=False)

    def forward(self, x, cos, sin, mask):
        b, s, _ = x.shape
        h = self.input_norm(x)
        q = rotate(self.q(h).view(b, s, HEADS, HEAD).transpose(1, 2), cos, sin)
        k = rotate(self.k(h).view(b, s, KV_HEADS, HEAD).transpose(1, 2), cos, sin)
        v = self.v(h).view(b, s, KV_HEADS, HEAD).transpose(1, 2)
        k = k.repeat_interleave(HEADS // KV_HEADS, dim=1)
        v = v.repeat_interleave(HEADS // KV_HEADS, dim=1)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(HEAD) + mask
        a = torch.matmul(F.softmax(scores, dim=-1), v)
        x = x + self.o(a.transpose(1, 2).reshape(b, s, HIDDEN))
        h = self.post_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                residual = name.endswith(("o.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * LAYERS) if residual else 1))
        angles = torch.outer(torch.arange(SEQUENCE).float(),
                             10000.0 ** (-torch.arange(0, HEAD, 2).float() / HEAD))
        angles = torch.cat((angles, angles), dim=-1)
        self.cos, self.sin = angles.cos(), angles.sin()
        self.mask = torch.full((SEQUENCE, SEQUENCE), float("-inf")).triu(1)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin, self.mask)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


class Torch:
    def __init__(self, text):
        torch.manual_seed(7)
        self.data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.model = Llama()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.01)
        self.windows = (len(self.data) * 9 // 10 - 1) // SEQUENCE

    def step(self):
        rows = torch.randint(self.windows, (BATCH,)) * SEQUENCE
        index = rows[:, None] + torch.arange(SEQUENCE)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(self.data[index], self.data[index + 1])
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def run(self, steps):
        start = time.monotonic()
        for _ in range(steps):
            loss = self.step()
        return {"seconds": time.monotonic() - start, "loss": loss}


class Ours:
    def __init__(self, program, threads):
        self.process = subprocess.Popen([program, "--workload=llm", f"--threads={threads}"], text=True, env=OUR_ENVIRONMENT,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.about = json.loads(self.process.stdout.readline())

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def run(self, steps):
        return self.ask(f"run {steps}")


def markdown(title, columns, rows):
    cells = [columns] + [[f"{c:.2f}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    right = [not isinstance(c, str) for c in rows[0]]
    line = lambda row: "| " + " | ".join(
        c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right)) + " |"
    rule = "|" + "|".join("-" * (w + 1) + (":" if r else "-") for w, r in zip(widths, right)) + "|"
    return "\n".join([f"### {title}", "", line(cells[0]), rule] + [line(row) for row in cells[1:]]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/bin/tests/benchmarks/training_steps")
    parser.add_argument("--text", default="tests/data/genesis.txt")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--json_file", default="", help="also write the JSON here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with open(options.text, "rb") as file:
        theirs = Torch(file.read())
    ours = Ours(options.program, options.threads)
    tokens = BATCH * SEQUENCE * options.steps
    assert ours.about["tokens_per_step"] == BATCH * SEQUENCE

    first = {"Espalier": ours.run(2)["loss"], "PyTorch": theirs.run(2)["loss"]}  # warm-up
    rates, losses = {"Espalier": [], "PyTorch": []}, {}
    for _ in range(options.rounds):
        for name, runner in (("Espalier", ours), ("PyTorch", theirs)):
            time.sleep(0.3)  # the other's idle threads stop spinning
            result = runner.run(options.steps)
            rates[name].append(tokens / result["seconds"])
            losses[name] = result["loss"]
    profile = sorted(ours.ask("profile 3")["profile"], key=lambda row: -row["seconds"])
    ours.process.stdin.close()
    ours.process.wait()

    summary = [[name, statistics.median(r), min(r), max(r), BATCH * SEQUENCE * 1e3 / statistics.median(r),
                first[name], losses[name]] for name, r in rates.items()]
    ratio = summary[0][1] / summary[1][1]
    total = sum(row["seconds"] for row in profile)
    operators = [[row["op"], row["seconds"] * 1e3, 100 * row["seconds"] / total, row["instructions"]]
                 for row in profile[:16]]
    columns = ["", "tokens/s, median", "least", "most", "ms per step", "loss at first", "loss at last"]
    operator_columns = ["instruction", "ms per step", "%", "instructions"]
    result = {
        "benchmark": "training_throughput",
        "description": ours.about["description"],
        "threads": options.threads,
        "torch": torch.__version__,
        "ratio": ratio,
        "tables": [
            {"title": "tokens/s", "rows": [dict(zip(columns, row)) for row in summary]},
            {"title": "profile", "rows": [dict(zip(operator_columns, row)) for row in operators]},
        ],
    }
    if options.json_file:
        with open(options.json_file, "w") as file:
            json.dump(result, file, indent=1)
    if options.json:
        print(json.dumps(result, indent=1))
        return
    print(markdown(f"Training, {ours.about['description']}, {options.threads} threads", columns, summary))
    print(f"Espalier / PyTorch {torch.__version__} (eager): {ratio:.2f}, medians of {options.rounds} rounds of "
          f"{options.steps} steps in turns.\n")
    print(markdown("Where our step goes", operator_columns, operators))
    print(f"{sum(r['instructions'] for r in profile)} instructions, {total * 1e3:.1f} ms in all; peak memory "
          f"{ours.about['peak_bytes'] / 2**20:.0f} MiB.\n")


if __name__ == "__main__":
    sys.exit(main())
