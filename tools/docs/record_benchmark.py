"""Records what a benchmark measured: updates docs/benchmarks/results/ and appends to docs/benchmarks/history.csv.

    python3 tools/docs/record_benchmark.py weight_streaming --machine=zen3-2c --area=speculation \\
        --command='weight_streaming --rounds=5' --configuration='LLM of 156 MB, 1 request' \\
        'tuned=131.3 tokens/s' 'tuned=3.16 times offload without speculation'

A result is METRIC=VALUE UNIT. A unit "times PEER" makes VALUE the ratio to that peer; given with a value of the same
METRIC, both stand in one row. A row of the same METRIC and configuration is replaced, others stay. The commit is that of HEAD,
with "-dirty" if the working tree has changes, unless --commit says otherwise. Afterwards run
`bazel run //tools/docs:benchmarks_markdown -- --write`, which makes the table anew.
"""
from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import subprocess
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import benchmarks_markdown


def head(folder: str) -> str | None:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", folder, *arguments], stdout=subprocess.PIPE, check=True, text=True).stdout.strip()

    try:
        return git("rev-parse", "--short=7", "HEAD") + ("-dirty" if git("status", "--porcelain") else "")
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None


def parse(text: str) -> tuple[str, float, str]:
    """METRIC=VALUE UNIT. Raises ValueError."""
    metric, equals, rest = text.rpartition("=")
    value, _, unit = rest.strip().partition(" ")
    if not metric or not equals or not unit:
        raise ValueError(f"'{text}' is not METRIC=VALUE UNIT")
    return metric.strip(), float(value.replace(",", "")), unit.strip()


def rows_of(pairs: list[tuple[str, float, str]], configuration: str, headline: bool) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for metric, value, unit in pairs:
        row = rows.setdefault(metric, {"what": metric, "configuration": configuration, "value": None, "unit": None,
                                       "peer": None, "peer_value": None, "ratio": None})
        if headline:
            row["headline"] = True
        if unit.startswith("times "):
            row["peer"], row["ratio"] = unit[len("times "):], value
        else:
            row["value"], row["unit"] = value, unit
    return list(rows.values())


def record(folder: str, result: dict[str, Any], pairs: list[tuple[str, float, str]], headline: bool = False) -> str:
    """Writes `result` (the file's fields, with the configuration of the rows instead of `rows`) and returns the path.

    Rows that stay keep their own date, commit and command.
    """
    configuration = result.pop("configuration")
    rows = rows_of(pairs, configuration, headline)
    name = f"{result['benchmark']}-{result['machine']}.json"
    path = os.path.join(folder, "results", name)
    new = [(row["what"], row["configuration"]) for row in rows]
    if os.path.exists(path):
        with open(path) as file:
            old = json.load(file)
        if not result["machine_description"]:
            result["machine_description"] = old["machine_description"]
        for row in old["rows"]:
            if (row["what"], row["configuration"]) in new:
                replaced = rows[new.index((row["what"], row["configuration"]))]
                if row.get("headline"):
                    replaced["headline"] = True
                continue
            for field in ("date", "commit", "command"):
                value = row.get(field, old[field])
                row.pop(field, None)
                if value != result[field]:
                    row[field] = value
            rows.append(row)
    ordered = {field: {**result, "rows": rows}[field] for field in benchmarks_markdown.FILE_FIELDS}
    benchmarks_markdown.check(ordered, name)
    with open(path, "w") as file:
        file.write(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
    with open(os.path.join(folder, "history.csv"), "a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for metric, value, unit in pairs:
            full = f"{metric}: {configuration}" if configuration else metric
            writer.writerow([result["date"], result["benchmark"], result["machine"], result["commit"] or "", full,
                             f"{value:g}" if value != int(value) else int(value), unit])
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark")
    parser.add_argument("results", nargs="+", metavar="METRIC=VALUE UNIT")
    parser.add_argument("--machine", required=True, help="short name, for example zen3-2c")
    parser.add_argument("--machine-description", default="", help="needed for the first result of a machine")
    parser.add_argument("--area", required=True, choices=benchmarks_markdown.AREAS)
    parser.add_argument("--command", required=True)
    parser.add_argument("--configuration", default="")
    parser.add_argument("--commit", default=None)
    parser.add_argument("--date", default=datetime.datetime.now(datetime.UTC).date().isoformat())
    parser.add_argument("--headline", action="store_true", help="new rows stand in README.md's table")
    flags = parser.parse_args()
    folder = os.path.normpath(benchmarks_markdown.FOLDER)
    try:
        path = record(folder, {
            "benchmark": flags.benchmark, "machine": flags.machine, "machine_description": flags.machine_description,
            "area": flags.area, "date": flags.date, "commit": flags.commit or head(folder), "command": flags.command,
            "configuration": flags.configuration}, [parse(text) for text in flags.results], flags.headline)
    except (ValueError, benchmarks_markdown.SchemaError) as error:
        print(f"record_benchmark: {error}", file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
