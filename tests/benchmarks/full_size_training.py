#!/usr/bin/python3
"""Seconds per training step of models of real size: Espalier against PyTorch 2, eager and compiled, in turns.

    python3 -m venv DIR && DIR/bin/pip install torch numpy onnx
    bazel build --config=release //tests/benchmarks:full_size_training
    DIR/bin/python build/bin/tests/benchmarks/full_size_training.runfiles/espalier/tests/benchmarks/full_size_training.py

Each model starts from the file that PyTorch exports. SGD, float32, one batch, the same number of threads. In each round the contenders take
turns: a job of one worker, steps of torch.compile's module, steps of the module itself. The first step of a turn does not count; a
turn's time is the median of the others, and a ratio the median over the rounds: what else the machine does meets all of
them. torch.compile needs a C++ compiler; its compilation is not in the times. The first losses of all must be equal.
"""
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # beside the programs, not where the link points

import full_size  # noqa: E402
import torch  # noqa: E402
from full_size import progress  # noqa: E402

OURS, EAGER, COMPILED = "Espalier", "eager", "compiled"


class Ours:
    def __init__(self, cluster, model, folder, steps):
        self.cluster, self.flags = cluster, [*full_size.train_flags(model, folder, steps), "--name=model"]

    def run(self):
        """Losses and seconds of the steps of a job."""
        job_id, _, reports = full_size.run_job(self.cluster, self.flags)
        self.cluster.cli("jobs", "delete", job_id, check=False)
        return [(r["values"]["loss"], float(r["seconds"])) for r in reports]


class Torch:
    def __init__(self, step, forward, steps):
        self.step, self.forward, self.steps = step, forward, steps

    def run(self):
        self.step.forward = self.forward
        return [self.step.run() for _ in range(self.steps)]


def measure(model, options, folder):
    """A row: the seconds of each contender's turns, the loads of the machine, the ratios."""
    step = full_size.Step(model)
    full_size.export(model, step, options.exporter, folder)
    state = {name: x.clone() for name, x in step.module.state_dict().items()}
    steps = options.steps + 1
    with full_size.cluster_of(1, options) as cluster:
        contenders = {OURS: Ours(cluster, model, folder, steps), COMPILED: Torch(step, torch.compile(step.module), steps),
                      EAGER: Torch(step, step.module, steps)}
        start = time.monotonic()
        step.forward = contenders[COMPILED].forward
        first = {COMPILED: step.run()[0]}
        step.module.load_state_dict(state)
        progress(f"{model.name}: compiled in {time.monotonic() - start:.0f} s")
        turns, loads = {name: [] for name in contenders}, []
        for number in range(options.rounds):
            for name, contender in contenders.items():
                loads.append(os.getloadavg()[0])
                time.sleep(0.5)  # the others' idle threads stop spinning
                if number == 0:
                    step.module.load_state_dict(state)
                done = contender.run()
                first.setdefault(name, done[0][0])
                turns[name].append(statistics.median(seconds for _, seconds in done[1:]))
                progress(f"{model.name}, round {number + 1}, {name}: {turns[name][-1]:.3f} s")
    error = full_size.largest_error(f"{model.name}, first step", list(first.values()), [first[EAGER]] * len(first))
    ratios = {name: statistics.median(theirs / ours for theirs, ours in zip(turns[name], turns[OURS])) for name in (EAGER, COMPILED)}
    return {"model": model.name, "batch": model.batch, "threads": options.threads, "torch": torch.__version__, "seconds": turns,
            "ratios": ratios, "loads": loads, "first_loss_error": error}


def main():
    parser = full_size.option_parser(__doc__, threads=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="that count, of each turn")
    options = parser.parse_args()
    if not hasattr(torch, "compile"):
        raise SystemExit(f"this is PyTorch {torch.__version__}; the comparison needs 2.0 or newer")
    rows = []
    print(f"PyTorch {torch.__version__}, {options.threads} threads, {options.rounds} rounds of {options.steps} steps\n")
    print("| model | batch | Espalier, s | eager, s | compiled, s | eager / ours | compiled / ours | load of the machine |\n" + "|---" * 8
          + "|", flush=True)
    for model, folder in full_size.each(options):
        row = measure(model, options, folder)
        torch._dynamo.reset()
        rows.append(row)
        seconds = {name: statistics.median(turns) for name, turns in row["seconds"].items()}
        print(f"| {model.name} | {model.batch} | {seconds[OURS]:.2f} | {seconds[EAGER]:.2f} | {seconds[COMPILED]:.2f} | "
              f"{row['ratios'][EAGER]:.2f} | {row['ratios'][COMPILED]:.2f} | {min(row['loads']):.1f} to {max(row['loads']):.1f} |", flush=True)
        full_size.write_rows(rows, options)


if __name__ == "__main__":
    main()
