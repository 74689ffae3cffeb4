"""Compares all models of the zoo with PyTorch and writes the table of docs/guide/pytorch.md.

python client/python/tests/torch/write_table.py        # with the environment of requirements.txt, and ESPALIER_BIN
"""

from __future__ import annotations

import collections
import sys
import time
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import conformance
from zoo import ZOO, Entry

import espalier
from espalier.errors import UnsupportedOperators

PAGE = Path(__file__).resolve().parents[4] / "docs" / "guide" / "pytorch.md"
BEGIN = "<!-- Made by client/python/tests/torch/write_table.py; do not edit. -->"
END = "<!-- end -->"


def row(entry: Entry, found: conformance.Result) -> str:
    curve = max(found.curve.values(), key=lambda d: d.here)
    weights = max(found.weights.values(), key=lambda d: d.here)
    cells = [f"{d.here:.0e} ({d.torch:.0e})" for d in (found.loss, found.gradient, curve, weights)]
    return f"| {' | '.join([entry.name, entry.library, *cells])} |"


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows, unsupported, sources = [], collections.Counter(), {}
    with espalier.local(workers=2, flags=["--worker-threads=1", "--measure-seconds=0"]):
        for name in names or ZOO:
            began = time.monotonic()
            try:
                rows.append(row(ZOO[name], conformance.compare(ZOO[name])))
            except UnsupportedOperators as error:
                rows.append(f"| {name} | {ZOO[name].library} | not supported | | | |")
                for operator in error.operators:
                    unsupported[operator.op] += operator.count
                    sources.setdefault(operator.op, f"{name}: {operator.reason}".rstrip(": "))
            except espalier.EspalierError as error:
                rows.append(f"| {name} | {ZOO[name].library} | {type(error).__name__} | | | |")
                print(f"{name}: {error}", file=sys.stderr)
            print(rows[-1], f"{time.monotonic() - began:.1f} s", flush=True)
    if names:
        return
    lines = [
        BEGIN,
        "| model | library | loss | gradient | 10 steps | weights |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        "Operators of these models that are not supported: "
        + (", ".join(f"{op} ({count} times, {sources[op]})" for op, count in unsupported.items()) or "none")
        + ".",
        END,
    ]
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + "\n".join(lines) + after)


if __name__ == "__main__":
    main(sys.argv[1:])
