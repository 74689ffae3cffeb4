#!/usr/bin/env python3
"""Writes espalier/ops.py, a function for each operator, from docs/reference/operators.md.

That page is made from the operator registry and compared with it by a test. With --check, writes nothing and fails if
the file differs.
"""

import argparse
import keyword
import pathlib
import re
import sys
import textwrap
from dataclasses import dataclass, field

PACKAGE = pathlib.Path(__file__).absolute().parent
PAGE = PACKAGE.parent.parent / "docs" / "reference" / "operators.md"
TARGET = PACKAGE / "espalier" / "ops.py"

# What only lowered programs contain.
INTERNAL = re.compile(
    r".*_update|adafactor_.*|clip_scale|loss_scale|scale_learning_rate|unscale_gradients|paged_attention"
)
KINDS = {
    "integer": "int",
    "number": "float",
    "bool": "bool",
    "string": "str",
    "integers": "Sequence[int]",
    "numbers": "Sequence[float]",
}
WIDTH = 120

HEADER = '''"""The operators as functions: each applies one to tensors of a graph and returns its output.

    hidden = ops.linear(x, weight, bias, activation="relu")

Made by generate_ops.py from docs/reference/operators.md; do not edit. Numbers and arrays among the inputs become
constants of the graph. `name` is that of the node. Shapes are checked by the coordinator, which names the node and the
user's line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from espalier.errors import InvalidArgument
from espalier.graph import AttributeValue, Graph, Tensor

Operand = Tensor | float | npt.NDArray[np.generic]
'''


@dataclass
class Attribute:
    """An attribute of an operator."""

    name: str
    kind: str
    required: bool
    default: str  # as Python writes it; empty: none
    doc: str


@dataclass
class Operator:
    """What the page says of an operator."""

    name: str
    doc: str = ""
    inputs: list[tuple[str, bool]] = field(default_factory=list)  # name, optional
    variadic: bool = False  # the last input
    outputs: int = 1  # -1: as the attributes say
    attributes: list[Attribute] = field(default_factory=list)


def identifier(name: str) -> str:
    """A name of the page as a name of Python."""
    name = re.sub(r"\W", "_", name)
    return name + "_" if keyword.iskeyword(name) else name


def parse_default(text: str) -> str:
    """A default of the page as Python writes it."""
    if text in ("true", "false"):
        return text.capitalize()
    if text.startswith("["):
        inside = text[1:-1]
        return f"({inside},)" if inside and "," not in inside else f"({inside})"
    return {"inf": 'float("inf")', "-inf": '-float("inf")'}.get(text, text)


def parse(page: str) -> list[Operator]:
    """The operators of the page."""
    found = []
    for section in page.split("\n## ")[1:]:
        name, _, body = section.partition("\n")
        operator = Operator(name.strip())
        # The page ends with tables of ONNX operators.
        lines = re.split(r"\n#+ |\n\|", body)[0].strip().splitlines()
        paragraphs = "\n".join(lines).split("\n\n")
        operator.doc = "" if paragraphs[0].startswith("- ") else " ".join(paragraphs[0].split())
        for line in lines:
            if line.startswith("- Inputs: ") and line != "- Inputs: none":
                for item in line[len("- Inputs: ") :].split(", "):
                    matched = re.fullmatch(r"`([^`]*)`( \(optional\))?(\.\.\.)?", item)
                    if matched is None:
                        raise SystemExit(f"operator {name}: cannot read the input {item!r}")
                    operator.inputs.append((identifier(matched[1]), bool(matched[2])))
                    operator.variadic = operator.variadic or bool(matched[3])
            elif line.startswith("- Outputs: "):
                count = line[len("- Outputs: ") :]
                operator.outputs = int(count) if count.isdigit() else -1
            elif line.startswith("- Attribute "):
                matched = re.fullmatch(r"- Attribute `(\w+)` \((\w+), (.*?)\): ?(.*)", line)
                if matched is None:
                    raise SystemExit(f"operator {name}: cannot read {line!r}")
                if matched[4].endswith("filled in"):
                    continue
                given = matched[3]
                none = given in ("required", "optional")
                default = "" if none else parse_default(given)
                operator.attributes.append(Attribute(matched[1], matched[2], given == "required", default, matched[4]))
        found.append(operator)
    return [operator for operator in found if not INTERNAL.fullmatch(operator.name)]


def parameters(operator: Operator) -> list[str]:
    """The parameters of the function."""
    names = [name for name, _ in operator.inputs]
    made = [] if names else ["graph: Graph"]
    for i, (name, optional) in enumerate(operator.inputs):
        if operator.variadic and i == len(names) - 1:
            made.append(f"*{name}: Operand")
        elif optional and not operator.variadic:
            made.append(f"{name}: Operand | None = None")
        else:
            made.append(f"{name}: Operand")
    if not operator.variadic:
        made.append("*")
    for a in operator.attributes:
        kind, attribute = KINDS[a.kind], identifier(a.name)
        if a.required:
            made.append(f"{attribute}: {kind}")
        elif a.default:
            made.append(f"{attribute}: {kind} = {a.default}")
        else:
            made.append(f"{attribute}: {kind} | None = None")
    return [*made, "name: str | None = None"]


def wrapped(text: str, indent: str, later: str) -> list[str]:
    """Lines of at most WIDTH characters."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )


def docstring(operator: Operator) -> list[str]:
    """The docstring's lines."""
    text = operator.doc.replace("\\", "\\\\").replace('"""', "'''")
    text = text[:1].upper() + text[1:] if not re.match(r"\w+\d*(\[|\s*=|,)", text) else text
    notes = [f"{identifier(a.name)}: {a.doc.replace(chr(92), chr(92) * 2)}" for a in operator.attributes if a.doc]
    first = f'    """{text}.'
    if not notes and len(first) + 3 <= WIDTH:
        return [first + '"""']
    lines = wrapped(f'"""{text}.', "    ", "    ")
    if notes:
        lines.append("")
        for note in notes:
            lines += wrapped(note, "    ", "        ")
    return [*lines, '    """']


def function(operator: Operator) -> list[str]:
    """The function's lines."""
    many = operator.outputs != 1
    result = "tuple[Tensor, ...]" if many else "Tensor"
    given = parameters(operator)
    line = f"def {identifier(operator.name)}({', '.join(given)}) -> {result}:"
    if len(line) > WIDTH:
        inner = "    " + ", ".join(given)
        body = [inner] if len(inner) <= WIDTH else [f"    {item}," for item in given]
        head = [f"def {identifier(operator.name)}(", *body, f") -> {result}:"]
    else:
        head = [line]
    inputs = ", ".join(
        f"*{n}" if operator.variadic and i == len(operator.inputs) - 1 else n
        for i, (n, _) in enumerate(operator.inputs)
    )
    pairs = [f'"{a.name}": {identifier(a.name)}' for a in operator.attributes]
    attributes = "{" + ", ".join(pairs) + "}"
    outputs = f", {operator.outputs if operator.outputs > 0 else count_of(operator)}" if many else ""
    if not operator.inputs:
        return [*head, *docstring(operator), f'    return graph.op("{operator.name}", [], {attributes}, name=name)']
    call = f'_{"many" if many else "one"}("{operator.name}", [{inputs}], {attributes}, name{outputs})'
    if len(call) + 11 > WIDTH:
        items = [
            f'"{operator.name}"',
            f"[{inputs}]",
            *([attributes] if len(attributes) + 9 <= WIDTH else [None]),
            "name",
        ]
        body = []
        for item in items:
            if item is None:
                body += ["        {", *(f"            {pair}," for pair in pairs), "        },"]
            else:
                body.append(f"        {item},")
        if many:
            body.append(f"        {outputs[2:]},")
        return [*head, *docstring(operator), f"    return _{'many' if many else 'one'}(", *body, "    )"]
    return [*head, *docstring(operator), f"    return {call}"]


def count_of(operator: Operator) -> str:
    """The number of outputs of an operator whose attributes say it."""
    for a in operator.attributes:
        if a.name in ("sizes", "experts", "n", "parts"):
            return f"len({a.name})" if a.kind == "integers" else identifier(a.name)
    raise SystemExit(f"operator {operator.name}: which attribute says how many outputs it has?")


HELPERS = """

def _tensors(op: str, inputs: Sequence[Operand | None]) -> tuple[Graph, list[Tensor | None]]:
    first = next((item for item in inputs if isinstance(item, Tensor)), None)
    if first is None:
        raise InvalidArgument(f"{op}: at least one input must be a tensor of a graph")
    graph, dtype = first.graph, first.dtype or "float32"
    return graph, [
        item if item is None or isinstance(item, Tensor) else graph.constant(item, dtype=dtype) for item in inputs
    ]


def _given(attributes: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    return {key: value for key, value in attributes.items() if value is not None}


def _one(
    op: str, inputs: Sequence[Operand | None], attributes: Mapping[str, AttributeValue | None], name: str | None
) -> Tensor:
    graph, tensors = _tensors(op, inputs)
    return graph.op(op, tensors, _given(attributes), name=name)


def _many(
    op: str,
    inputs: Sequence[Operand | None],
    attributes: Mapping[str, AttributeValue | None],
    name: str | None,
    outputs: int,
) -> tuple[Tensor, ...]:
    graph, tensors = _tensors(op, inputs)
    return graph.op(op, tensors, _given(attributes), outputs=outputs, name=name)
"""


def generate() -> str:
    """The text of the module."""
    operators = parse(PAGE.read_text(encoding="utf-8"))
    names = sorted(identifier(operator.name) for operator in operators)
    parts = [HEADER, "\n__all__ = [\n", *(f'    "{name}",\n' for name in names), "]\n", HELPERS]
    for operator in operators:
        parts.append("\n\n" + "\n".join(function(operator)) + "\n")
    return "".join(parts)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    made = generate()
    if not parser.parse_args().check:
        TARGET.write_text(made, encoding="utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == made:
        return 0
    print(f"{TARGET} differs from {PAGE}; run {sys.argv[0]}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
