#!/usr/bin/env python3
"""Finds functions of the same name in the unnamed namespaces of two sources of one folder.

usage: check_local_names.py [ROOT]

Sources of a library are compiled as one (tools/build/cc.bzl), and their unnamed namespaces become one. Types and constants
of the same name then fail to compile; functions may become overloads of each other, and a call may reach the wrong one.
Prints each name with its files; exits with 1 if there is one.
"""
import collections
import os
import re
import sys

# Folders whose sources are compiled one by one (unity = 1), or in libraries that share no name.
SEPARATE = ("ops/cpu", "ops/cuda", "ops/onnx", "tests", "tools")
COMMENTS_AND_TEXTS = re.compile(r'R"(\w*)\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.S)
DIRECTIVES = re.compile(r"^\s*#.*(?:\\\n.*)*$", re.M)
UNNAMED = re.compile(r"\bnamespace\s*\{")
TEMPLATE = re.compile(r"template\s*<[^()]*>")
TYPE = re.compile(r"\b(?:struct|class|enum)\s+\w+[^()]*$|^using\b|^static_assert\b")
FUNCTION = re.compile(r"(\w+)\s*\(")


def local_functions(text):
    """The names of the functions that the unnamed namespaces of a source define or declare."""
    text = DIRECTIVES.sub("", COMMENTS_AND_TEXTS.sub('""', text))
    names = set()
    for match in UNNAMED.finditer(text):
        depth, outer = 1, ""
        for character in text[match.end():]:
            depth += {"{": 1, "}": -1}.get(character, 0)
            if depth == 0:
                break
            if depth == 1:
                outer += ";" if character == "}" else character
        for declaration in outer.split(";"):
            declaration = TEMPLATE.sub("", declaration).strip()
            if TYPE.search(declaration) or "operator" in declaration or "=" in declaration.split("(")[0]:
                continue
            function = FUNCTION.search(declaration)
            if function:
                names.add(function.group(1))
    return names


def check(root):
    """The list of complaints."""
    complaints = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in ("build", "third_party"))
        path = os.path.relpath(folder, root)
        if path.startswith(SEPARATE):
            continue
        files_of = collections.defaultdict(list)
        for name in sorted(files):
            if name.endswith(".cc") and not name.endswith(("_test.cc", "_benchmark.cc", "_fuzz.cc")):
                with open(os.path.join(folder, name), encoding="utf-8") as source:
                    for function in local_functions(source.read()):
                        files_of[function].append(os.path.join(path, name))
        for function, where in sorted(files_of.items()):
            if len(where) > 1:
                complaints.append(f"{function} is a local function of {' and '.join(where)}: rename all but one")
    return complaints


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    complaints = check(root)
    print("\n".join(complaints) if complaints else "local functions: every name is of one file of its folder")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
