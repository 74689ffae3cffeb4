"""The Python of docs/guide/python.md and flexflow.md runs as it stands there."""

import pytest
from pages import GUIDE, run

PAGE = GUIDE / "python.md"


def run_with_daemon(page):
    """The names that the page's blocks leave behind: all of them, of which the first one starts a daemon."""
    text = (GUIDE / page).read_text(encoding="utf-8")
    assert text.count("<!-- run -->\n```python\n") == text.count("```python")
    names = {}
    try:
        return run(page, names)
    finally:
        names["cluster"].stop()


def test_the_guide_runs(capsys):
    text = PAGE.read_text(encoding="utf-8")
    names = run_with_daemon("python.md")
    assert names["result"].evaluation["accuracy"] > 0.8
    assert names["values"].keys() >= {"loss", "accuracy"}
    assert names["held_out"]["accuracy"] > 0.5
    assert names["model"] == "by-hand"
    assert (names["predictions"].argmax(1) == names["data"]["labels"]).mean() > 0.8
    assert (names["best"] == names["predictions"][:5].argmax(1)).all()
    assert names["weights"]["w1"].shape == (32, 20)
    line = next(i for i, line in enumerate(text.splitlines(), 1) if 'name="narrow"' in line)
    assert f"node 'narrow' (linear, {PAGE}:{line}): " in capsys.readouterr().out


def test_the_guide_to_flexflow_runs():
    names = run_with_daemon("flexflow.md")
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
