#!/usr/bin/python3
"""Writes compile_commands.json for clangd and clang-tidy, from the commands that Bazel would run.

Build once first, so that generated headers exist. Passes its arguments to Bazel:
    tools/compile_commands.py --config=release
"""
import json
import os
import subprocess
import sys

GCC_ONLY = {"-fno-canonical-system-headers"}

root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
os.chdir(root)
command = ["bazel", "aquery", "--output=jsonproto", "--include_artifacts=false", "--define=unity=no", *sys.argv[1:],
           "mnemonic('CppCompile', //...)"]
query = subprocess.run(command, stdout=subprocess.PIPE)
if query.returncode:
    sys.exit(query.returncode)


def without_precompiled(arguments):
    """Removes gcc's precompiled headers (tools/build/precompiled.bzl), which clang cannot read."""
    kept = []
    for argument in arguments:
        if kept and kept[-1] == "-include" and argument.endswith("/precompiled.h"):
            kept.pop()
        else:
            kept.append(argument)
    return kept


entries = []
for action in json.loads(query.stdout).get("actions", []):
    arguments = without_precompiled([a for a in action["arguments"] if a not in GCC_ONLY])
    source = arguments[arguments.index("-c") + 1]
    if not source.startswith("external/"):
        entries.append({"directory": root, "file": source, "arguments": arguments})
with open("compile_commands.json", "w") as out:
    json.dump(entries, out, indent=1)
print(f"compile_commands.json: {len(entries)} files")
