"""Makes the Helm chart of what kustomize renders of deploy/kubernetes: its base, with each component behind a value.

    python3 tools/helm/chart.py --write      writes deploy/helm/espalier (needs deploy/install.sh --tests, for kubectl)
"""
from __future__ import annotations

import itertools
import json
import os
import re
import sys
from typing import Any

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "tests", "kubernetes")]
from rendering import CHART, overlay  # noqa: E402
from values import ADDITIONS, COMPONENTS, EXCLUSIVE, NEEDED, VALUES  # noqa: E402
from variants import Condition, Leaf, Mapping, Node, Sequence, merge_documents  # noqa: E402

GENERATED = "Made by tools/helm/chart.py of deploy/kubernetes: edit that, then run it with --write."
PLAIN = re.compile(r"^[A-Za-z/][-A-Za-z0-9_./]*$")
NAMESPACE = re.compile(r"\.espalier\.svc$")  # of cert-manager's certificates


def scalar(value: Any) -> str:
    """In YAML, on one line."""
    if isinstance(value, str) and PLAIN.match(value) and value.lower() not in ("true", "false", "null", "yes", "no", "on", "off", "y", "n"):
        return value
    return json.dumps(value, ensure_ascii=False)


def expression(condition: Condition) -> str:
    values = [f".Values.{COMPONENTS[name][0]}.enabled" for name in condition.names]
    any_of = values[0] if len(values) == 1 else f"or {' '.join(values)}"
    return any_of if condition.wanted else f"not ({any_of})" if len(values) > 1 else f"not {any_of}"


def guarded(condition: Condition, lines: list[str]) -> list[str]:
    return [f"{{{{- if {expression(condition)} }}}}", *lines, "{{- end }}"]


class Chart:
    """The templates, and the defaults that the manifests hold."""

    def __init__(self) -> None:
        self.defaults: dict[str, Any] = {addition.name: addition.default for addition in ADDITIONS}
        base = overlay(())
        variants = {name: overlay((name,)) for name in COMPONENTS}
        self.templates = {f"{name.replace('/', '-').lower()}.yaml": self.template(name, condition, node)
                          for name, (condition, node) in merge_documents(base, variants).items()}
        missing = {value.name for value in VALUES} - self.defaults.keys()
        if missing:
            raise ValueError(f"the manifests have no place for {', '.join(sorted(missing))}")

    def template(self, name: str, condition: Condition | None, node: Node) -> str:
        lines = self.lines(name, "", node, 0)
        return "\n".join([f"# {GENERATED}", *(lines if condition is None else guarded(condition, lines)), ""])

    def lines(self, document: str, path: str, node: Node, depth: int) -> list[str]:
        indent = "  " * depth
        if isinstance(node, Leaf):
            return [f"{indent}{self.text(document, path, node.value)}"]
        if all(entry.condition is not None for entry in node.entries):
            raise ValueError(f"{document} {path} would be empty without components")
        lines = []
        for condition, group in itertools.groupby(enumerate(node.entries), lambda pair: pair[1].condition):
            own = [line for number, _ in group for line in self.entry_lines(document, path, node, number, depth)]
            lines += own if condition is None else guarded(condition, own)
        return lines + self.additions(document, path, depth)

    def entry_lines(self, document: str, path: str, node: Mapping | Sequence, number: int, depth: int) -> list[str]:
        entry, indent = node.entries[number], "  " * depth
        if isinstance(node, Mapping):
            below = f"{path}/{entry.key}".lstrip("/")
            if isinstance(entry.node, Leaf):
                return [f"{indent}{scalar(entry.key)}: {self.text(document, below, entry.node.value)}"]
            return [f"{indent}{scalar(entry.key)}:", *self.lines(document, below, entry.node, depth + 1)]
        named = isinstance(entry.node, Mapping) and any(part.key == "name" for part in entry.node.entries)
        # An argument of a component goes by the component's name, as its text varies.
        added = isinstance(entry.node, Leaf) and entry.condition is not None and entry.condition.wanted
        key = entry.key if named else entry.condition.names[0] if added and entry.condition is not None else str(number)
        below = f"{path}/{key}"
        if isinstance(entry.node, Leaf):
            return [f"{indent}- {self.text(document, below, entry.node.value)}"]
        lines = self.lines(document, below, entry.node, depth + 1)
        if lines[0].startswith("{{-"):
            raise ValueError(f"{document} {below}: the first key of an item cannot have a condition")
        return [f"{indent}- {lines[0].lstrip()}", *lines[1:]]

    def text(self, document: str, path: str, value: Any) -> str:
        """A scalar, with what values may vary."""
        found: list[tuple[int, int, str]] = []
        default: str | int
        for row in VALUES:
            for place in row.places:
                match = re.fullmatch(place.pattern, str(value)) if (place.document, place.path) == (document, path) else None
                if match is None:
                    continue
                default = match.group(row.group)
                if row.schema.get("type") == "integer":
                    default = int(default)
                if self.defaults.setdefault(row.name, default) != default:
                    raise ValueError(f"{row.name} is {self.defaults[row.name]!r} in one place and {default!r} in {document} {path}")
                found.append((*match.span(row.group), row.name))
        if not found:
            if isinstance(value, str) and NAMESPACE.search(value):
                return scalar(NAMESPACE.sub(".{{ .Release.Namespace }}.svc", value))
            return scalar(value)
        if not isinstance(value, str):
            return f"{{{{ .Values.{found[0][2]} }}}}"
        for begin, end, name in sorted(found, reverse=True):
            value = f"{value[:begin]}{{{{ .Values.{name} }}}}{value[end:]}"
        return f'"{value}"'

    def additions(self, document: str, path: str, depth: int) -> list[str]:
        lines = []
        for addition in ADDITIONS:
            if (document, path) not in addition.places:
                continue
            indent = "  " * depth
            if not addition.key:
                lines += [f"{{{{- range .Values.{addition.name} }}}}", f"{indent}- {{{{ . | quote }}}}", "{{- end }}"]
            elif isinstance(addition.default, str):
                lines += [f"{{{{- with .Values.{addition.name} }}}}", f"{indent}{addition.key}: {{{{ . | quote }}}}", "{{- end }}"]
            else:
                lines += [f"{{{{- with .Values.{addition.name} }}}}", f"{indent}{addition.key}:",
                          f"{indent}  {{{{- toYaml . | nindent {2 * depth + 2} }}}}", "{{- end }}"]
        return lines

    def tree(self) -> dict[str, Any]:
        """Name in values.yaml, nested: (description, default, schema), or a mapping of these."""
        tree: dict[str, Any] = {}
        for row in (*VALUES, *ADDITIONS):
            *groups, last = row.name.split(".")
            at = tree
            for group in groups:
                at = at.setdefault(group, {})
            at[last] = (row.description, self.defaults[row.name], row.schema)
        for key, description in COMPONENTS.values():
            tree[key] = {"enabled": (description, False, {"type": "boolean"}), **tree.get(key, {})}
        return tree

    def values(self) -> str:
        return "\n".join([f"# {GENERATED}", *self.value_lines(self.tree(), 0), ""])

    def value_lines(self, tree: dict[str, Any], depth: int) -> list[str]:
        indent, lines = "  " * depth, []
        for key, part in tree.items():
            if isinstance(part, dict):
                lines += [f"{indent}{key}:", *self.value_lines(part, depth + 1)]
            else:
                description, default, _ = part
                lines += [f"{indent}# {description}", f"{indent}{key}: {scalar(default)}"]
        return lines

    def schema(self) -> str:
        def of(part: Any) -> dict[str, Any]:
            if isinstance(part, dict):
                return {"type": "object", "additionalProperties": False, "properties": {key: of(below) for key, below in part.items()}}
            description, _, schema = part
            return {"description": description, **schema}

        def on(key: str) -> dict[str, Any]:
            return {"properties": {key: {"properties": {"enabled": {"const": True}}, "required": ["enabled"]}}, "required": [key]}

        root = of(self.tree())
        # Helm's own, for charts that have this one as a part.
        root["properties"]["global"] = {"type": "object"}
        schema = {"$schema": "https://json-schema.org/draft-07/schema#", "title": "Values of Espalier", **root,
                  "allOf": [*({"not": {"allOf": [on(first), on(second)]}} for first, second in EXCLUSIVE),
                            *({"if": on(key), "then": {"anyOf": [on(name) for name in group]}}
                              for key, groups in NEEDED.items() for group in groups)]}
        return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"

    def files(self) -> dict[str, str]:
        """Text by path in the chart."""
        description = {"apiVersion": "v2", "name": "espalier", "type": "application", "version": "0.1.0", "appVersion": "0.1.0",
                       "description": "Espalier: a coordinator and workers that train and serve models", "kubeVersion": ">=1.27.0-0"}
        return {"Chart.yaml": f"# {GENERATED}\n" + yaml.safe_dump(description, sort_keys=False), "values.yaml": self.values(),
                "values.schema.json": self.schema(), **{f"templates/{name}": text for name, text in self.templates.items()}}


def written() -> dict[str, str]:
    """What lies in deploy/helm/espalier."""
    found = {}
    for folder, _, names in os.walk(CHART, followlinks=True):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, encoding="utf-8") as file:
                found[os.path.relpath(path, CHART)] = file.read()
    return found


def main() -> None:
    files, old = Chart().files(), written()
    if sys.argv[1:] != ["--write"]:
        sys.exit("" if files == old else f"deploy/helm/espalier is not what deploy/kubernetes makes; remedy: {__doc__}")
    for name in old.keys() - files.keys():
        os.remove(os.path.join(CHART, name))
    for name, text in files.items():
        path = os.path.join(CHART, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
