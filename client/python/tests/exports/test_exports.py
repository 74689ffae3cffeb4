"""The readers of the formats find what `espalier history` wrote."""

import csv
import json
import os
import struct
import subprocess
from xml.etree import ElementTree

import history_server as made
import numpy as np
import pyarrow.parquet
import pytest
from tbparse import SummaryReader
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from espalier.v1 import replay_pb2

BIN = os.environ["ESPALIER_BIN"]
PROGRAM = next(p for p in (f"{BIN}/client/espalier", f"{BIN}/espalier") if os.path.exists(p))


def bits(number):
    return struct.pack("<d", number)


def history(rows, *flags):
    with made.HistoryServer(rows) as server:
        done = subprocess.run(
            [PROGRAM, f"--coordinator={server.address}", "history", "lm@*", *flags], capture_output=True, check=False
        )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def scalars():
    return {
        (row.version, row.step, row.name): row.value.scalar
        for row in made.sample()
        if row.value.HasField("scalar") and row.replay_id != "r2"
    }


def test_parquet_has_every_value_to_the_bit(tmp_path, scalars):
    file = tmp_path / "lm.parquet"
    history(made.sample(), f"--parquet={file}")
    table = pyarrow.parquet.read_table(file)
    rows = table.to_pylist()
    assert len(rows) == len(made.sample())
    for row, given in zip(rows, made.sample(), strict=True):
        assert (row["experiment"], row["version"], row["job"]) == ("lm", given.version, given.job_id)
        assert (row["step"], row["name"], row["reduction"]) == (given.step, given.name, given.reduction)
        assert (row["source"], row["replay"]) == ("replay" if given.source else "forward", given.replay_id)
        assert row["time"].timestamp() * 1000 == pytest.approx(given.unix_ms)
        if given.value.HasField("scalar"):
            assert bits(row["value"]) == bits(given.value.scalar)
        else:
            assert row["value"] == (0.5 if row["name"] == "scale" else None)
    spread = next(row for row in rows if row["reduction"] == "histogram(4)" and row["step"] == 2)
    assert (spread["low"], spread["high"], spread["counts"], spread["outside"]) == (-1, 3, [1, 2, 3, 2], 5)
    assert (spread["values"], spread["dims"], spread["dtype"]) == (None, None, None)
    parts = next(row for row in rows if row["reduction"].startswith("quantiles"))
    assert (parts["indices"], parts["values"]) == ([0, 1], [-1.5, 0])
    whole = next(row for row in rows if row["reduction"] == "full" and row["name"] == "w")
    assert (whole["dtype"], whole["dims"]) == ("f32", [2, 3])
    np.testing.assert_array_equal(whole["values"], [1.5, 2, 3, 4, 5, np.nan])
    frame = pyarrow.parquet.read_table(file, columns=["step", "value"]).to_pandas()
    assert frame["value"][1] == scalars[1, 1, "loss"]


def test_parquet_of_many_rows_and_of_none(tmp_path):
    file = tmp_path / "lm.parquet"
    rows = [made.row(1, step, f"value {step % 300}", step / 7) for step in range(120_000)]
    history(rows, f"--parquet={file}")
    read = pyarrow.parquet.ParquetFile(file)
    assert (read.num_row_groups, read.metadata.num_rows) == (2, 120_000)
    table = read.read()
    np.testing.assert_array_equal(table["value"].to_numpy(), np.arange(120_000) / 7)
    assert table["name"][119_999].as_py() == "value 299"
    assert os.path.getsize(file) < 4_500_000  # texts are not repeated; the numbers take 3.84 MB
    history([], f"--parquet={file}")
    assert pyarrow.parquet.read_table(file).num_rows == 0


def test_tensorboard_and_tbparse_read_the_event_files(tmp_path, scalars):
    history(made.sample(), f"--tensorboard={tmp_path}")
    events = EventAccumulator(str(tmp_path / "lm@1"), {"histograms": 0, "scalars": 0})
    events.Reload()
    losses = events.Scalars("loss")
    assert [event.step for event in losses] == list(range(20))
    assert [event.value for event in losses] == [np.float32(scalars[1, step, "loss"]) for step in range(20)]
    assert losses[5].wall_time == 1_700_000_000.005
    spread = events.Histograms("histogram(relu_1, 4)")[2]
    assert spread.step == 2
    assert list(spread.histogram_value.bucket_limit) == [0, 1, 2, 3]
    assert list(spread.histogram_value.bucket) == [1, 2, 3, 2]
    assert (spread.histogram_value.min, spread.histogram_value.max, spread.histogram_value.num) == (-1, 3, 8)
    reader = SummaryReader(str(tmp_path), extra_columns={"dir_name"})
    frame = reader.scalars
    assert set(frame["dir_name"]) == {"lm@1", "lm@2", "lm@1/r2"}
    assert set(frame["tag"]) == {"loss", "norm(grad(w))", "scale", "quantiles(w, 0.1)", "quantiles(w, 0.5)"}
    again = frame[frame["dir_name"] == "lm@1/r2"]
    assert (list(again["step"]), list(again["value"])) == ([15], [99])
    assert np.isnan(frame[(frame["dir_name"] == "lm@2") & (frame["step"] == 20)]["value"].item())


def test_csv_and_json_have_every_bit(tmp_path, scalars):
    file = tmp_path / "lm.csv"
    done = history(made.sample(), "--json", f"--csv={file}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    with open(file, newline="", encoding="utf-8") as text:
        cells = list(csv.DictReader(text))
    assert len(lines) == len(cells) == len(made.sample())
    for line, cell, given in zip(lines, cells, made.sample(), strict=True):
        assert (line["step"], int(cell["step"])) == (given.step, given.step)
        if given.value.HasField("scalar"):
            assert bits(float(line["value"])) == bits(float(cell["value"])) == bits(given.value.scalar)
        elif not given.value.HasField("tensor") or given.name == "scale":  # the other has NaN, a text
            assert json.loads(cell["value"]) == line["value"]


def test_svg_is_one_page_with_a_picture_for_each_label(tmp_path):
    file = tmp_path / "lm.svg"
    rows = [*made.sample(), made.row(1, 0, "<b>&\x01]]>", 1.0), made.row(1, 1, "<b>&\x01]]>", 2.0)]
    history(rows, f"--svg={file}")
    page = ElementTree.parse(file).getroot()
    space = "{http://www.w3.org/2000/svg}"
    titles = [text.text for text in page.iter(f"{space}text") if text.get("class") == "title"]
    assert titles == [
        *("loss", "norm(grad(w))", "histogram(relu_1, 4), lm@1, replay"),
        *("quantiles(w, 0.1)", "quantiles(w, 0.5)", "scale", "<b>&\ufffd]]>"),
    ]
    shapes = [path.get("class") for path in page.iter(f"{space}path")]
    assert shapes.count("line") == 2 * (2 + 1 + 1 + 1 + 1 + 1)  # each with its entry in the legend
    height = float(page.get("height"))
    assert all(float(text.get("y")) < height for text in page.iter(f"{space}text"))


def test_what_differs_is_not_mixed(tmp_path):
    """A replayed loss does not replace the recorded one."""
    again = made.row(1, 3, "loss", 5.0, source=replay_pb2.HistoryRow.REPLAY, replay_id="r9")
    history([*made.sample(), again], f"--tensorboard={tmp_path}")
    events = EventAccumulator(str(tmp_path / "lm@1" / "r9"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(3, 5.0)]
