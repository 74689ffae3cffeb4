"""Runs the Python of the documentation's pages."""

import re
from pathlib import Path

GUIDE = Path(__file__).absolute().parents[3] / "docs" / "guide"


def run(page, names, marked=False):
    """Runs a page's blocks of Python in `names`, which it returns; with `marked`, those after a line `<!-- run -->`."""
    path = GUIDE / page
    text = path.read_text(encoding="utf-8")
    blocks = list(re.finditer(rf"{'<!-- run -->.' if marked else ''}```python\n(.*?)```", text, re.DOTALL))
    assert blocks, f"{path} has no Python to run"
    names["__name__"] = "__main__"  # where dataclasses and flax look for their module
    for block in blocks:
        # Lines of errors are those of the page.
        lines = "\n" * text[: block.start(1)].count("\n")
        exec(compile(lines + block[1], str(path), "exec"), names)
    return names
