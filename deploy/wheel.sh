#!/usr/bin/env bash
# Makes build/wheels/espalier-VERSION-py3-none-manylinux_2_NN_ARCH.whl: the Python package with the three programs and
# their libraries, for which `pip install` alone is enough on Linux with the same or a newer glibc.
#
#   deploy/wheel.sh
#   pip install build/wheels/espalier-*-manylinux*.whl
set -euo pipefail
cd "$(dirname "$0")/.."

deploy/bundle.sh
out=build/wheels
rm -rf "$out"
mkdir -p "$out"
work=$(mktemp -d -t espalier-wheel.XXXXXX)
trap 'rm -rf "$work"' EXIT
# A copy: setuptools writes into the folder that it builds.
cp -r client/python/espalier client/python/pyproject.toml client/python/README.md "$work/"
find "$work" -name __pycache__ -prune -exec rm -rf {} +
python3 -m venv "$work/venv"
"$work/venv/bin/pip" --disable-pip-version-check wheel --quiet --no-deps -w "$work/pure" "$work"
python3 client/python/platform_wheel.py "$work"/pure/espalier-*-py3-none-any.whl build/espalier-bundle "$out"
