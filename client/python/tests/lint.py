"""Checks Python sources: lint.py ruff|mypy|repository.

ruff and mypy look at the package, its tests and examples, by the settings of pyproject.toml. They look at a copy: among
Bazel's runfiles every file is a link, which neither follows as it walks. "repository" is ruff over the Python files of
the rest, by the settings of ruff.toml.
"""

import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from lint_environment import ENVIRONMENT  # noqa: E402

FOLDER = os.path.dirname(HERE)
COMMANDS = {
    "ruff": [["ruff", "check", "--no-cache", "."], ["ruff", "format", "--no-cache", "--check", "."]],
    "mypy": [["mypy", "--strict", "--cache-dir", os.devnull]],
}


def copy_of_sources(to):
    """All that the two read, which is at least the modules of the package."""
    shutil.copyfile(os.path.join(FOLDER, "pyproject.toml"), os.path.join(to, "pyproject.toml"))
    count = 0
    for base in ("", "espalier", "examples", "tests"):
        for folder, _, names in os.walk(os.path.join(FOLDER, base)) if base else [(FOLDER, [], os.listdir(FOLDER))]:
            target = os.path.join(to, os.path.relpath(folder, FOLDER))
            for name in names:
                if name.endswith((".py", ".pyi", "py.typed")):
                    os.makedirs(target, exist_ok=True)
                    shutil.copyfile(os.path.join(folder, name), os.path.join(target, name))
                    count += 1
    if not os.path.exists(os.path.join(to, "espalier", "client.py")) or count < 100:
        raise SystemExit(f"lint: {FOLDER} has {count} Python files, which is not the package")


def repository(tools):
    root = os.path.dirname(os.path.dirname(FOLDER))
    listed = subprocess.run(
        ["git", "ls-files", "*.py", ":!client/python"], cwd=root, check=True, stdout=subprocess.PIPE
    )
    # A file deleted but not yet staged is still listed.
    files = [name for name in listed.stdout.decode().split() if os.path.exists(os.path.join(root, name))]
    return subprocess.run([os.path.join(tools, "ruff"), "check", "--no-cache", *files], cwd=root).returncode


def main():
    tools = os.path.dirname(ENVIRONMENT.python())
    if sys.argv[1] == "repository":
        raise SystemExit(repository(tools))
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as copy:
        copy_of_sources(copy)
        status = 0
        for name, *arguments in COMMANDS[sys.argv[1]]:
            status |= subprocess.run([os.path.join(tools, name), *arguments], cwd=copy).returncode
    raise SystemExit(status)


if __name__ == "__main__":
    main()
