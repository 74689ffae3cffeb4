"""Writes the table of docs/benchmarks/README.md from docs/benchmarks/results/*.json.

    bazel run //tools/docs:benchmarks_markdown -- --write

Without --write it fails if the table is old, or if a result or history.csv does not follow the schema.

results/BENCHMARK-MACHINE.json holds the newest result of one benchmark on one machine:

    benchmark             name of the program or script, as in tests/benchmarks
    machine               short name of the machine, as in the file's name
    machine_description   processor, cores, accelerator
    area                  one of AREAS
    date                  of the run, YYYY-MM-DD
    commit                what was measured; null if it was not recorded
    command               that gives these numbers (programs are in build/bin/tests/benchmarks)
    rows                  list of results:
      what                the metric, for example "training step, ResNet-50"
      configuration       model, sizes, threads, load
      value, unit         the measured number; null if only the ratio was recorded
      peer, peer_value    what it is compared with, and its number in the same unit; null without
      ratio               how many times better than the peer (above 1: better); null without
      headline            true: the row stands in README.md's table; absent: it stands in the file only
      date, commit, command   only if they differ from those of the file

history.csv has one line per run and number: date,benchmark,machine,commit,metric,value,unit.
tools/docs/record_benchmark.py writes both.
"""
from __future__ import annotations

import csv
import datetime
import json
import os
import sys
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "..", "..", "docs", "benchmarks")
AREAS = ["training", "memory", "planning", "serving", "speculation", "distillation", "quantization", "gpu", "reliability"]
FILE_FIELDS = ["benchmark", "machine", "machine_description", "area", "date", "commit", "command", "rows"]
ROW_FIELDS = ["what", "configuration", "value", "unit", "peer", "peer_value", "ratio"]
OPTIONAL_ROW_FIELDS = ["headline", "date", "commit", "command"]
HISTORY_FIELDS = ["date", "benchmark", "machine", "commit", "metric", "value", "unit"]
BEGIN = "<!-- Generated from results/*.json by `bazel run //tools/docs:benchmarks_markdown -- --write`. -->\n"
END = "<!-- End of the generated table. -->\n"


class SchemaError(Exception):
    pass


def check(result: dict[str, Any], name: str) -> None:
    """Raises SchemaError if `result`, the contents of file `name`, does not follow the schema above."""

    def require(condition: bool, text: str) -> None:
        if not condition:
            raise SchemaError(f"{name}: {text}")

    require(list(result) == FILE_FIELDS, f"fields are {list(result)}, not {FILE_FIELDS}")
    require(name == f"{result['benchmark']}-{result['machine']}.json", "the name is not BENCHMARK-MACHINE.json")
    require(result["area"] in AREAS, f"area '{result['area']}' is none of {AREAS}")
    require(bool(result["rows"]), "no rows")
    dates = [result["date"]]
    for index, row in enumerate(result["rows"]):
        where = f"row {index} ('{row.get('what')}')"
        for field in ROW_FIELDS:
            require(field in row, f"{where}: field '{field}' is missing")
        for field in row:
            require(field in ROW_FIELDS + OPTIONAL_ROW_FIELDS, f"{where}: unknown field '{field}'")
        for field in ("value", "peer_value", "ratio"):
            require(row[field] is None or isinstance(row[field], (int, float)), f"{where}: '{field}' is no number")
        require(row["value"] is not None or row["ratio"] is not None, f"{where}: neither value nor ratio")
        require(row["value"] is None or bool(row["unit"]), f"{where}: a value without unit")
        require(bool(row["peer"]) or (row["ratio"] is None and row["peer_value"] is None), f"{where}: a comparison without peer")
        dates.append(row.get("date", result["date"]))
    for date in dates:
        try:
            datetime.date.fromisoformat(date)
        except ValueError:
            require(False, f"date '{date}' is not YYYY-MM-DD")


def check_history(folder: str) -> None:
    with open(os.path.join(folder, "history.csv"), newline="") as file:
        lines = list(csv.reader(file))
    if lines[0] != HISTORY_FIELDS:
        raise SchemaError(f"history.csv: columns are {lines[0]}, not {HISTORY_FIELDS}")
    for number, line in enumerate(lines[1:], start=2):
        try:
            datetime.date.fromisoformat(line[0])
            float(line[5])
        except (IndexError, ValueError) as error:
            raise SchemaError(f"history.csv:{number}: {error}") from error
        if len(line) != len(HISTORY_FIELDS):
            raise SchemaError(f"history.csv:{number}: {len(line)} fields instead of {len(HISTORY_FIELDS)}")


def load(folder: str) -> list[dict[str, Any]]:
    """All results, by area, benchmark and machine."""
    results = []
    for name in sorted(os.listdir(os.path.join(folder, "results"))):
        with open(os.path.join(folder, "results", name)) as file:
            result = json.load(file)
        check(result, name)
        results.append(result)
    return sorted(results, key=lambda result: (AREAS.index(result["area"]), result["benchmark"], result["machine"]))


def number(value: float) -> str:
    return f"{value:,}" if value == int(value) or abs(value) >= 1000 else f"{value:g}"


def quantity(value: float | None, unit: str | None) -> str:
    return "" if value is None else f"{number(value)} {unit or ''}".strip()


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def table(results: list[dict[str, Any]]) -> str:
    out = ["| area | what | configuration | result | peer | ratio | machine | commit | command |",
           "|---|---|---|--:|---|--:|---|---|---|"]
    for result in results:
        for row in result["rows"]:
            if not row.get("headline"):
                continue
            peer = cell(row["peer"] or "")
            if row["peer_value"] is not None:
                peer += f": {quantity(row['peer_value'], row['unit'])}"
            commit = row.get("commit", result["commit"])
            out.append("| " + " | ".join([
                result["area"], cell(row["what"]), cell(row["configuration"]), quantity(row["value"], row["unit"]), peer,
                "" if row["ratio"] is None else f"{row['ratio']:.2f}", result["machine"],
                f"{row.get('date', result['date'])} {f'`{commit}`' if commit else ''}".strip(),
                f"`{row.get('command', result['command'])}`".replace("|", "\\|") if row.get("command", result["command"]) else ""]) + " |")
    machines = {result["machine"]: result["machine_description"] for result in results}
    out += ["", "| machine | |", "|---|---|"]
    out += [f"| {name} | {cell(machines[name])} |" for name in sorted(machines)]
    return "\n".join(out) + "\n"


def updated(page: str, results: list[dict[str, Any]]) -> str:
    """`page` with its generated part made anew."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{table(results)}\n{END}{after}"


def main() -> int:
    folder = FOLDER
    if "BUILD_WORKSPACE_DIRECTORY" in os.environ:
        folder = os.path.join(os.environ["BUILD_WORKSPACE_DIRECTORY"], "docs", "benchmarks")
    path = os.path.join(folder, "README.md")
    try:
        check_history(folder)
        results = load(folder)
    except SchemaError as error:
        print(f"benchmarks_markdown: {error}", file=sys.stderr)
        return 1
    with open(path) as file:
        page = file.read()
    new = updated(page, results)
    if "--write" in sys.argv[1:]:
        with open(path, "w") as file:
            file.write(new)
    elif new != page:
        print("docs/benchmarks/README.md is old: run `bazel run //tools/docs:benchmarks_markdown -- --write`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
