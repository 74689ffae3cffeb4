#!/usr/bin/env python3
"""Compares the #include edges between components and folders with tools/structure/components.txt.

usage: check_includes.py [ROOT]

Prints each include that the table does not allow as FILE:LINE, and each cycle between folders; exits with 1 if there is one.
"""
import collections
import os
import re
import sys

TABLE = "tools/structure/components.txt"
INCLUDE = re.compile(r'^#include "([^"]+)"')
SOURCES = (".h", ".cc", ".cu", ".cuh")
# Generated headers are included by their path below proto/.
PROTO_ROOTS = ("espalier/", "grpc_health/", "open_inference/")


class Table:
    """components.txt: "NAME: ALLOWED..." per line. ALLOWED is a component, a folder or a header; "*" is everything.

    NAME is a component, a folder or a file; the lines of all that hold a file add up. COMPONENT_test holds for the tests,
    fixtures and fakes of a component, and adds to what the component may include.
    """

    def __init__(self, text):
        self.rules = {}
        for number, line in enumerate(text.splitlines(), 1):
            line = line.split("#")[0].strip()
            if not line:
                continue
            name, colon, allowed = line.partition(":")
            if not colon:
                raise ValueError(f"{TABLE}:{number}: expected NAME: ALLOWED...")
            self.rules[name.strip()] = allowed.split()

    def allows(self, source, included):
        component = source.split("/")[0]
        if included.split("/")[0] == component:
            return True
        allowed = [a for name, rule in self.rules.items() if source == name or source.startswith(name + "/") for a in rule]
        if is_test(source):
            allowed += self.rules.get(component + "_test", [])
        return any(a == "*" or included == a or included.startswith(a + "/") for a in allowed)


def is_test(path):
    name = os.path.basename(path)
    return bool(re.search(r"_(test|fixture|test_util|benchmark|fuzz)\.|/testing/|/fake_|/rpc_test", "/" + path)) or name.startswith("fake_")


def includes(root):
    """(file, line, included path) of all includes of the tree's own headers."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in ("build", "third_party"))
        for name in sorted(files):
            if not name.endswith(SOURCES):
                continue
            path = os.path.join(folder, name)
            with open(path, encoding="utf-8") as source:
                for number, line in enumerate(source, 1):
                    match = INCLUDE.match(line)
                    if not match:
                        continue
                    target = match.group(1)
                    if target.startswith(PROTO_ROOTS):
                        target = "proto/" + target
                    if "/" in target and os.path.isdir(os.path.join(root, target.split("/")[0])):
                        yield os.path.relpath(path, root), number, target


def cycles(edges):
    """Strongly connected groups of more than one folder (Tarjan)."""
    graph = collections.defaultdict(set)
    for source, target in edges:
        graph[source].add(target)
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = stack[stack.index(node):]
            del stack[stack.index(node):]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def check(root):
    """The list of complaints."""
    with open(os.path.join(root, TABLE), encoding="utf-8") as table_file:
        table = Table(table_file.read())
    complaints, edges, where = [], set(), {}
    for source, line, target in includes(root):
        if not table.allows(source, target):
            complaints.append(f"{source}:{line}: {source.split('/')[0]} may not include {target}; {TABLE} has what it may")
        a, b = os.path.dirname(source), os.path.dirname(target)
        if a != b and not is_test(source):
            edges.add((a, b))
            where.setdefault((a, b), f"{source}:{line}")
    for group in cycles(edges):
        inside = [f"  {where[edge]}: {edge[0]} -> {edge[1]}" for edge in sorted(edges) if set(edge) <= set(group)]
        complaints.append("folders include each other: " + ", ".join(group) + "\n" + "\n".join(inside))
    return complaints


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    complaints = check(root)
    print("\n".join(complaints) if complaints else "includes: every edge is in the table, no folders include each other")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
