"""python -m espalier.flor ls [NAME], show NAME[@VERSION], spool NAME FOLDER."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from espalier.errors import EspalierError
from espalier.flor import store, table, values
from espalier.flor.command_line import check_name
from espalier.flor.record import read


def _list(name: str | None) -> None:
    for experiment in [check_name(name)] if name else store.experiments():
        for version in store.versions(experiment):
            record, about = read(version), version.description()
            files = list((version.folder / "checkpoints").rglob("*.safetensors"))
            size = sum(path.stat().st_size for path in files)
            loops = ", ".join(f"{count} of {loop}" for loop, count in record.iterations.items()) or "no iterations"
            state = "complete" if record.complete else "not ended"
            print(
                f"{version}  {about['started']}  {loops}  {len(files)} checkpoints, {size / 1e6:.1f} MB  "
                f"{len(version.replays())} replays  {state}  {' '.join([about['script'], *about['arguments']])}"
            )


def _show(text: str) -> None:
    name, _, number = text.partition("@")
    version = store.find_version(check_name(name), int(number) if number.isdigit() else 0)
    for row in table.rows(name, (), [version.number]):
        where = " ".join(f"{loop}={index}" for loop, index in row.loops)
        marks = row.source + (" differs" if row.differs else "")
        print(f"{where}\t{row.name}\t{values.shown(values.encode(row.value))}\t{marks}")


def _spool(name: str, folder: str) -> None:
    """Copies an experiment; FLOR_HOME=FOLDER replays from there."""
    for version in store.versions(check_name(name)):
        target = Path(folder) / name / str(version.number)
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(version.folder.rglob("*")):
            to = target / path.relative_to(version.folder)
            if path.is_dir():
                to.mkdir(exist_ok=True)
            elif not path.name.startswith(".incomplete-") and path.name != "version.json":
                part = to.with_name(f".incomplete-{to.name}")
                shutil.copyfile(path, part)
                part.replace(to)
        store.write_json(target / "version.json", version.description())
        print(f"{version} -> {target}")


def main() -> None:
    """Runs a command."""
    parser = argparse.ArgumentParser(prog="python -m espalier.flor", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("ls", help="recordings").add_argument("name", nargs="?")
    commands.add_parser("show", help="values of one recording").add_argument("name")
    spool = commands.add_parser("spool", help="copies an experiment to a folder")
    spool.add_argument("name")
    spool.add_argument("folder")
    given = parser.parse_args()
    try:
        if given.command == "ls":
            _list(given.name)
        elif given.command == "show":
            _show(given.name)
        else:
            _spool(given.name, given.folder)
    except (EspalierError, OSError) as error:
        sys.exit(f"espalier.flor: {error}")


if __name__ == "__main__":
    main()
