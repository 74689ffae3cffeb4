#!/usr/bin/env bash
# Builds the documentation site of docs/. Warnings, such as broken links, are errors.
#
#   tools/docs/site.sh [FOLDER]     default: build/site; open FOLDER/index.html
#
# Makes the virtual environment of MkDocs at the first call, which needs PyPI; afterwards it needs no network.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(realpath -m "${1:-build/site}")
python3 tools/docs/site_environment.py
exec python3 tools/docs/site_test.py "--out=$folder"
