"""python -m espalier.flor ls [NAME], show NAME[@VERSION], spool NAME[@VERSION] URL, fetch NAME[@VERSION] URL."""

from __future__ import annotations

import argparse
import json
import sys

from espalier.errors import EspalierError, FailedPrecondition, InvalidArgument
from espalier.flor import fetching, spooling, store, table, targets, values
from espalier.flor.command_line import check_name
from espalier.flor.record import read


def _list(name: str | None) -> None:
    if not (store.versions(check_name(name)) if name else store.experiments()):
        print(f"{store.home()} has no recordings" + (f" of {name}" if name else ""))
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


def _list_spool(name: str | None, url: str) -> None:
    target = targets.open_target(url)
    found = [
        (experiment, number)
        for experiment in ([check_name(name)] if name else target.folders(""))
        for number in spooling.numbers(target, experiment)
    ]
    if not found:
        print(f"{url} has no recordings" + (f" of {name}" if name else ""))
    for experiment, number in found:
        index = spooling.read_index(target, f"{experiment}/{number}")
        described = target.read(f"{experiment}/{number}/version.json") if index and index.files else None
        if index is None or described is None:
            print(f"{experiment}@{number}  nothing is copied yet")
            continue
        about = json.loads(described)
        sizes = [entry.size for name, entry in index.files.items() if name.startswith("checkpoints/")]
        print(
            f"{experiment}@{number}  {about['started']}  {len(sizes)} checkpoints, {sum(sizes) / 1e6:.1f} MB  "
            f"{' '.join([about['script'], *about['arguments']])}"
        )


def _chosen(text: str) -> tuple[str, int]:
    """NAME@VERSION as a name and a number; 0 without a version."""
    name, at, number = text.partition("@")
    if at and not number.isdigit():
        raise InvalidArgument(f"{text}: a version is a number, as in {name}@3")
    return check_name(name), int(number or 0)


def _show(text: str) -> None:
    name, number = _chosen(text)
    version = store.find_version(name, number)
    for row in table.rows(name, (), [version.number]):
        where = " ".join(f"{loop}={index}" for loop, index in row.loops)
        marks = row.source + (" differs" if row.differs else "")
        print(f"{where}\t{row.name}\t{values.shown(values.encode(row.value))}\t{marks}")


def _spool(text: str, url: str) -> bool:
    """Copies what of the recordings is not in a spool; whether everything is there."""
    name, number = _chosen(text)
    target = targets.open_target(url)
    store.find_version(name, number)
    everything = True
    for version in store.versions(name):
        if number in (0, version.number):
            copier = spooling.Copier(lambda: target, version)
            try:
                copier.round(last=True)
            except FailedPrecondition as error:  # another recording is there
                print(f"espalier.flor: {error}", file=sys.stderr)
                everything = False
                continue
            print(f"{version} -> {target.url}: {copier.copied} files copied")
    return everything


def _fetch(text: str, url: str) -> None:
    """Fetches recordings with all of their checkpoints."""
    name, number = _chosen(text)
    for version, count in fetching.bring_version(url, name, number):
        print(f"{version} -> {version.folder}: {count} checkpoints fetched")


def main() -> None:
    """Runs a command."""
    parser = argparse.ArgumentParser(prog="python -m espalier.flor", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("ls", help="recordings")
    listing.add_argument("name", nargs="?")
    listing.add_argument("--spool", metavar="URL", help="of a folder or s3://BUCKET/PREFIX instead of ~/.flor")
    commands.add_parser("show", help="values of one recording").add_argument("name")
    for command, about in (("spool", "copies recordings to a spool"), ("fetch", "fetches recordings from a spool")):
        copying = commands.add_parser(command, help=about)
        copying.add_argument("name", metavar="NAME[@VERSION]")
        copying.add_argument("url", metavar="URL", help="a folder, or s3://BUCKET/PREFIX")
    given = parser.parse_args()
    try:
        if given.command == "ls":
            _list_spool(given.name, given.spool) if given.spool else _list(given.name)
        elif given.command == "show":
            _show(given.name)
        elif given.command == "fetch":
            _fetch(given.name, given.url)
        elif not _spool(given.name, given.url):
            sys.exit(1)
    except (EspalierError, OSError) as error:
        sys.exit(f"espalier.flor: {error}")


if __name__ == "__main__":
    main()
