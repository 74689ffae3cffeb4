"""The Python of docs/guide/python.md and flexflow.md runs as it stands there."""

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).absolute().parents[3] / "docs" / "guide"
PAGE = GUIDE / "python.md"


def run(page, count):
    """The names that the page's blocks of Python leave behind."""
    text = page.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"<!-- run -->\n```python\n(.*?)```", text, re.DOTALL))
    assert len(blocks) == text.count("```python") == count
    names = {}
    try:
        for block in blocks:
            # Lines of errors are those of the page.
            lines = "\n" * text[: block.start(1)].count("\n")
            exec(compile(lines + block[1], str(page), "exec"), names)
    finally:
        names["cluster"].stop()
    return names


def test_the_guide_runs(capsys):
    text = PAGE.read_text(encoding="utf-8")
    names = run(PAGE, 5)
    assert names["result"].evaluation["accuracy"] > 0.8
    assert names["values"].keys() >= {"loss", "accuracy"}
    assert names["held_out"]["accuracy"] > 0.5
    assert names["model"] == "by-hand"
    assert names["weights"]["w1"].shape == (32, 20)
    line = next(i for i, line in enumerate(text.splitlines(), 1) if 'name="narrow"' in line)
    assert f"(narrow was made at {PAGE}:{line})" in capsys.readouterr().out


def test_the_guide_to_flexflow_runs():
    names = run(GUIDE / "flexflow.md", 2)
    assert names["ffmodel"].get_perf_metrics().get_accuracy() > 90
    assert names["weights"].shape == (64, 20)
    assert names["gradients"].any()
    assert names["probabilities"].sum(1) == pytest.approx([1] * 4)


def test_the_guide_names_all_errors():
    import espalier.errors as errors

    text = PAGE.read_text(encoding="utf-8")
    named = [
        name
        for name, found in vars(errors).items()
        if isinstance(found, type) and issubclass(found, errors.EspalierError) and name != "UnsupportedOperators"
    ]
    missing = [name for name in named if f"`{name}`" not in text]
    if missing:
        pytest.fail(f"{PAGE} does not name {', '.join(missing)}")
