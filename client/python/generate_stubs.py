#!/usr/bin/env python3
"""Writes espalier/v1/*_pb2.py and *.pyi from the protocol's .proto files, with the protoc on the PATH.

The stubs are checked in, so that `pip install` needs no protoc. protoc 3.21 is meant: what it writes runs with every
release of Python's protobuf from 4.21 on. With --check, writes nothing and fails if the files differ.

The Open Inference Protocol gets a package of its own: protobuf has one file and one message of a name in a process, and
the clients of Triton and KServe register the protocol's. On the wire only the service's name tells, which
espalier/rpc.py has.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

PACKAGE = pathlib.Path(__file__).absolute().parent
PROTOS = PACKAGE.parent.parent / "proto"


def rename_open_inference(folder: pathlib.Path) -> str:
    """Writes the protocol with our package's name to `folder`; returns the file's path there."""
    text = (PROTOS / "open_inference" / "open_inference.proto").read_text(encoding="utf-8")
    package = "\npackage inference;\n"
    if text.count(package) != 1:
        sys.exit("open_inference.proto: its package is not 'inference' any more")
    to = folder / "espalier" / "v1" / "open_inference.proto"
    to.parent.mkdir(parents=True)
    to.write_text(text.replace(package, "\npackage espalier.open_inference;\n"), encoding="utf-8")
    return str(to.relative_to(folder))


def generate(folder: pathlib.Path) -> None:
    """Writes the stubs to `folder`/espalier/v1."""
    protos = sorted(str(p.relative_to(PROTOS)) for p in (PROTOS / "espalier" / "v1").glob("*.proto"))
    with tempfile.TemporaryDirectory() as renamed:
        protos.append(rename_open_inference(pathlib.Path(renamed)))
        command = ["protoc", f"-I{PROTOS}", f"-I{renamed}", f"--python_out={folder}", f"--pyi_out={folder}", *protos]
        subprocess.run(command, check=True)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    if not check:
        generate(PACKAGE)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        generate(pathlib.Path(folder))
        made = {p.name: p.read_bytes() for p in (pathlib.Path(folder) / "espalier" / "v1").iterdir()}
    kept = {p.name: p.read_bytes() for p in (PACKAGE / "espalier" / "v1").glob("*_pb2.py*")}
    if made == kept:
        return 0
    different = sorted(name for name in made.keys() | kept.keys() if made.get(name) != kept.get(name))
    print(f"differ from the .proto files: {', '.join(different)}; run {sys.argv[0]}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
