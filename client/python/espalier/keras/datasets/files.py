"""Where files of datasets are."""

from __future__ import annotations

import os
from pathlib import Path

from espalier.errors import NotFound


def find(path: str | os.PathLike[str] | None, names: tuple[str, ...], what: str) -> Path:
    """The file or folder `path`, or the first of `names` in Keras' folder. NotFound saying where to put it."""
    home = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras")) / "datasets"
    if path is not None and (Path(path).is_absolute() or Path(path).exists()):
        candidates = [Path(path)]
    elif path is not None:
        candidates = [home / path, Path(path)]
    else:
        candidates = [home / name for name in names]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    looked = ", ".join(map(str, candidates))
    raise NotFound(
        f"{what} is not there: looked for {looked}. Datasets are not downloaded: put Keras' file {names[0]} there, or "
        "name another place: load_data(path=...)"
    )
