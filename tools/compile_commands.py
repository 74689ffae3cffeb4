#!/usr/bin/python3
"""Writes compile_commands.json for clangd and clang-tidy, from what Bazel would run.

Build once first, so that generated headers exist. Arguments are passed on to Bazel:
    tools/compile_commands.py --config=release
"""
import json
import os
import subprocess
import sys

GCC_ONLY = {"-fno-canonical-system-headers"}

root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
os.chdir(root)
command = ["bazel", "aquery", "--output=jsonproto", "--include_artifacts=false", *sys.argv[1:],
           "mnemonic('CppCompile', //...)"]
query = subprocess.run(command, stdout=subprocess.PIPE)
if query.returncode:
    sys.exit(query.returncode)

entries = []
for action in json.loads(query.stdout).get("actions", []):
    arguments = [a for a in action["arguments"] if a not in GCC_ONLY]
    source = arguments[arguments.index("-c") + 1]
    if not source.startswith("external/"):
        entries.append({"directory": root, "file": source, "arguments": arguments})
with open("compile_commands.json", "w") as out:
    json.dump(entries, out, indent=1)
print(f"compile_commands.json: {len(entries)} files")
