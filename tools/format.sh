#!/usr/bin/env bash
# Formats the tracked C++ and CUDA files, or the files named. With --check, changes nothing and
# fails if a file is not formatted.
set -euo pipefail
cd "$(dirname "$0")/.."

check=no
if [ "${1:-}" = --check ]; then
  check=yes
  shift
fi
if ! command -v clang-format > /dev/null; then
  echo "format: clang-format is missing; run deploy/install.sh --tests" >&2
  exit 1
fi

if [ $# -gt 0 ]; then
  files=("$@")
elif git rev-parse --is-inside-work-tree > /dev/null 2>&1; then
  # A file deleted but not yet staged is still listed.
  mapfile -t files < <(git ls-files -- '*.h' '*.cc' '*.cu' '*.cuh' |
    while IFS= read -r f; do if [ -f "$f" ]; then echo "$f"; fi; done)
else
  mapfile -t files < <(find . -path './bazel-*' -prune -o -path ./build -prune -o \
    -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print)
fi
if [ ${#files[@]} -eq 0 ]; then
  echo "format: no files"
  exit 0
fi

if [ $check = no ]; then
  clang-format -i -- "${files[@]}"
  echo "format: ${#files[@]} files"
  exit 0
fi
if ! report=$(clang-format --dry-run -Werror -- "${files[@]}" 2>&1); then
  sed -n 's/^\([^:]*:[0-9]*\):[0-9]*: error: code should be clang-formatted.*/\1/p' <<< "$report" |
    sort -s -u -t: -k1,1 >&2
  echo "format: the files above differ; run tools/format.sh" >&2
  exit 1
fi
echo "format: ${#files[@]} files are formatted"
