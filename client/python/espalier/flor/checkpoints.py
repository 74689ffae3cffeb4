"""What one checkpoint of a block has: its objects, random generators, and parameters that only an optimizer knows."""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import Any

from espalier.errors import FailedPrecondition, InvalidArgument
from espalier.flor import objects, randomness, sources, trees
from espalier.flor.messages import say
from espalier.flor.trees import Node, State


def names_of(values: Sequence[Any], frame: FrameType) -> list[str]:
    """What the program calls the objects; their place where it has no variable for them."""
    names = []
    written = sources.arguments(frame, len(values))
    for number, value in enumerate(values):
        # Equal numbers may be one object, so that another variable may have it, too: their names are those written.
        name = sources.name_of(value, frame) if not isinstance(value, (int, float, str, type(None))) else ""
        names.append(name or written[number] or f"object{number}")
    return names


def check_assigned(values: Sequence[Any], names: Sequence[str], frame: FrameType) -> None:
    """InvalidArgument if an object cannot change in place and the program drops what end() returns."""
    if not sources.result_is_dropped(frame):
        return
    for value, name in zip(values, names, strict=True):
        if not objects.in_place(value):
            objects.capture(value, name, State())  # what cannot be saved at all is refused for that
            variables = ", ".join(names)
            raise InvalidArgument(
                f"SkipBlock.end: {name} is a {type(value).__name__}, which cannot be restored in place, and its result "
                f"is not used: write {variables} = flor.SkipBlock.end({variables})"
            )


def capture(block: str, values: Sequence[Any], names: Sequence[str], frame: FrameType) -> tuple[Node, State]:
    """A checkpoint of these objects. InvalidArgument, naming it, for an object that cannot be saved."""
    state = State()
    nodes = []
    for value, name in zip(values, names, strict=True):
        nodes.append(objects.capture(value, name, state))
    alone = []
    for place, tensors in objects.uncovered(list(values)):
        objects.warn_uncovered(names[place], block)
        kept = [trees.tensor_node(each, f"{names[place]}.parameters.{n}", state) for n, each in enumerate(tensors)]
        alone.append([place, kept])
    node = {
        "names": list(names),
        "objects": nodes,
        "parameters": alone,
        "random": randomness.capture_global(state),
        "generators": randomness.capture_variables(frame, state),
    }
    return node, state


def restore(
    block: str, values: Sequence[Any], names: Sequence[str], frame: FrameType, checkpoint: tuple[Node, State]
) -> list[Any]:
    """The objects as the checkpoint has them, changed in place where they can be; random generators, too."""
    node, state = checkpoint
    if len(node["objects"]) != len(values):
        raise FailedPrecondition(
            f"block {block!r}: the recording has the objects {', '.join(node['names']) or 'none'}; the program gives "
            f"{', '.join(names) or 'none'}. Restore the recorded ones, in their order, or replay with probed=True"
        )
    restored = [
        objects.restore(value, inner, name, state)
        for value, inner, name in zip(values, node["objects"], names, strict=True)
    ]
    for value, now, name in zip(values, restored, names, strict=True):
        if now is not value and objects.in_place(value):
            raise FailedPrecondition(
                f"block {block!r}: {name} is {_form(value)}, the recording has {_form(now)}: it cannot be restored"
            )
    alone = dict(objects.uncovered(list(values)))
    for place, kept in node["parameters"]:
        for tensor, inner in zip(alone.get(place, ()), kept, strict=False):
            objects.restore(tensor, inner, names[place], state)
    missing = randomness.restore_variables(frame, node["generators"], state)
    if missing:
        say(f"block {block!r}: the program has no random generator {', '.join(missing)} any more")
    randomness.restore_global(node["random"], state)
    return restored


def _form(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" + ("" if shape is None else f" of {value.dtype} {tuple(shape)}")


__all__ = ["capture", "check_assigned", "names_of", "restore"]
