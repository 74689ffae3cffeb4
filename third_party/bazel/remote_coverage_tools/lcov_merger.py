#!/usr/bin/python3
"""Offline stand-in for Bazel's LcovMerger: the gcov JSON of one test becomes one lcov file."""
import collections
import glob
import gzip
import json
import os
import sys

args = dict(a[2:].split("=", 1) for a in sys.argv[1:] if a.startswith("--") and "=" in a)
keep = None
if "source_file_manifest" in args:
    with open(args["source_file_manifest"]) as manifest:
        keep = {line.strip() for line in manifest}

hits = collections.defaultdict(lambda: collections.defaultdict(int))
pattern = os.path.join(args["coverage_dir"], "**", "*.gcov.json.gz")
for path in glob.glob(pattern, recursive=True):
    with gzip.open(path) as report:
        sources = json.load(report)["files"]
    for source in sources:
        name = source["file"]
        if name.startswith(("/", "external/")) or (keep is not None and name not in keep):
            continue
        for line in source["lines"]:
            hits[name][line["line_number"]] += line["count"]

with open(args["output_file"], "w") as out:
    for name in sorted(hits):
        lines = hits[name]
        out.write(f"SF:{name}\n")
        for number in sorted(lines):
            out.write(f"DA:{number},{lines[number]}\n")
        out.write(f"LH:{sum(1 for count in lines.values() if count)}\nLF:{len(lines)}\nend_of_record\n")
