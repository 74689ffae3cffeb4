"""Puts the three programs into a wheel, so that `pip install` alone is enough on Linux.

python platform_wheel.py WHEEL PROGRAMS OUT    # writes OUT/espalier-...-py3-none-manylinux_2_NN_ARCH.whl and prints it

WHEEL is the package's pure wheel, PROGRAMS a folder with espalierd, espalier-worker and espalier, as deploy/bundle.sh
makes it; their libraries lie beneath it in lib/. The tag says the newest glibc that one of these files asks for.
deploy/wheel.sh does all of it. Needs nothing but Python.
"""

from __future__ import annotations

import base64
import hashlib
import platform
import re
import sys
import zipfile
from pathlib import Path

PROGRAMS = ("espalierd", "espalier-worker", "espalier")
FOLDER = "espalier/bin"
# Only this wheel has the command: in others it would hide a program of this name.
ENTRY_POINTS = "[console_scripts]\nespalier = espalier.command:main\n"


def files_of(folder: Path) -> dict[str, Path]:
    """What goes into the wheel, by its path there. SystemExit if a program is missing."""
    missing = [name for name in PROGRAMS if not (folder / name).is_file()]
    if missing:
        raise SystemExit(f"platform_wheel: {folder} has no {', '.join(missing)}; deploy/bundle.sh makes such a folder")
    found = {f"{FOLDER}/{name}": folder / name for name in PROGRAMS}
    for path in sorted(folder.glob("lib/*")):
        found[f"{FOLDER}/lib/{path.name}"] = path
    for path in sorted(folder.glob("libespalier_*.so")):  # the CUDA plug-in
        found[f"{FOLDER}/{path.name}"] = path
    return found


def glibc_of(contents: list[bytes]) -> tuple[int, int]:
    """The newest glibc whose symbols ELF files ask for."""
    versions = {
        (int(major), int(minor))
        for content in contents
        for major, minor in re.findall(rb"\x00GLIBC_(\d+)\.(\d+)(?:\.\d+)?(?=\x00)", content)
    }
    if not versions:
        raise SystemExit("platform_wheel: the programs name no version of glibc, so they are not for Linux with glibc")
    return max(versions)


def _record(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}"


def make(wheel: Path, programs: Path, out: Path) -> Path:
    """Writes the wheel and returns its path."""
    added = {name: path.read_bytes() for name, path in files_of(programs).items()}
    major, minor = glibc_of(list(added.values()))
    tag = f"py3-none-manylinux_{major}_{minor}_{platform.machine()}"
    if not wheel.name.endswith("-py3-none-any.whl"):
        raise SystemExit(f"platform_wheel: {wheel.name} is no pure wheel")
    made = out / wheel.name.replace("py3-none-any", tag)
    out.mkdir(parents=True, exist_ok=True)
    records = []
    with zipfile.ZipFile(wheel) as pure, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as target:

        def write(name: str, content: bytes, mode: int = 0o644) -> None:
            info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            info.external_attr = (0o100000 | mode) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(info, content)
            records.append(_record(name, content))

        (metadata,) = {name.split("/")[0] for name in pure.namelist() if ".dist-info/" in name}
        for entry in pure.infolist():
            content = pure.read(entry)
            if entry.filename == f"{metadata}/RECORD":
                continue
            if entry.filename == f"{metadata}/WHEEL":
                lines = [
                    line for line in content.decode().splitlines() if not line.startswith(("Root-Is-Pure", "Tag:"))
                ]
                content = "\n".join(
                    [*(line for line in lines if line), "Root-Is-Purelib: false", f"Tag: {tag}", ""]
                ).encode()
            write(entry.filename, content)
        for name, content in added.items():
            write(name, content, 0o755)
        write(f"{metadata}/entry_points.txt", ENTRY_POINTS.encode())
        target.writestr(f"{metadata}/RECORD", "\n".join([*records, f"{metadata}/RECORD,,", ""]))
    return made


def main() -> None:
    """The command line."""
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    print(make(*(Path(argument) for argument in sys.argv[1:])))


if __name__ == "__main__":
    main()
