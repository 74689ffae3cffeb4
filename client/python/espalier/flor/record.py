"""What a recording has, read for a replay."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from espalier.flor import store


def key_of(at: list[Any]) -> str:
    """The key of a place, as Place.key has it, from what the journal says of it."""
    parts = [quote(e, safe="#") if isinstance(e, str) else f"{quote(e[0], safe='#')}={e[1]}" for e in at]
    return "".join(f"/{part}" for part in parts)


@dataclass
class Record:
    """Arguments, values by place, name and ordinal, finished iterations, and the blocks of each iteration."""

    version: store.Version
    args: dict[str, Any] = field(default_factory=dict)
    values: dict[tuple[str, str, int], Any] = field(default_factory=dict)
    iterations: dict[str, int] = field(default_factory=dict)  # finished ones by main loop
    bodies: dict[str, str] = field(default_factory=dict)
    blocks: dict[tuple[str, int], list[tuple[str, str]]] = field(default_factory=dict)  # directly in an iteration
    names: set[str] = field(default_factory=set)  # of all blocks
    # The random generators as a block began, by its label and place: texts of randomness.as_texts.
    random: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    complete: bool = False

    def restorable(self, loop: str) -> set[int]:
        """The iterations of a main loop after which all of its blocks have checkpoints."""
        return {
            index
            for (label, index), found in self.blocks.items()
            if label == loop
            and index < self.iterations.get(loop, 0)
            and all(self.version.has_checkpoint(block, place) for block, place in found)
        }


def read(version: store.Version) -> Record:
    """Reads the journal of a recording, also of one that was killed."""
    record = Record(version)
    generators: dict[str, str] = {}
    for line in store.read_lines(version.journal):
        if "log" in line:
            record.values[key_of(line["at"]), line["log"], line["n"]] = line["value"]
        elif "arg" in line:
            record.args[line["arg"]] = line["value"]
        elif "iteration" in line:
            record.iterations[line["iteration"]] = line["index"] + 1
        elif "block" in line:
            if "random" in line:  # those that have changed
                generators |= line["random"]
                record.random[line["block"], line["place"]] = dict(generators)
            record.names.add(line["block"])
            if line.get("body"):
                record.bodies[line["block"]] = line["body"]
            if len(line["at"]) == 1 and isinstance(line["at"][0], list):
                label, index = line["at"][0][:2]
                record.blocks.setdefault((label, index), []).append((line["block"], line["place"]))
        elif "end" in line:
            record.complete = True
    return record


__all__ = ["Record", "key_of", "read"]
