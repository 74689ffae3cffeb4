"""What the functions of flor call: a Runtime that does nothing, and what recording and replaying share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from espalier.errors import FailedPrecondition, InvalidArgument
from espalier.flor.command_line import Flags
from espalier.flor.coordinates import Place
from espalier.flor.messages import say


def cast(text: str, default: Any, name: str) -> Any:
    """A text of the command line as a value of the default's type. InvalidArgument if it is none."""
    if isinstance(default, bool):
        if text.lower() in ("1", "true", "t", "yes", "y", "on"):
            return True
        if text.lower() in ("0", "false", "f", "no", "n", "off", ""):
            return False
        raise InvalidArgument(f"--kwargs {name}={text}: accepted are true and false")
    if isinstance(default, (int, float)):
        try:
            return type(default)(text)
        except ValueError:
            raise InvalidArgument(f"--kwargs {name}={text}: accepted is a {type(default).__name__}") from None
    if default is None:
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
    if default is None or isinstance(default, str):
        return text
    raise InvalidArgument(f"--kwargs {name}: a {type(default).__name__} cannot be given on the command line")


class Failing:
    """Around what flor does for the program: whether that has raised an error."""

    failed = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.failed = self.failed or kind is not None


class Runtime:
    """Does nothing, so that a script runs as without flor. Recorder and Replayer do something."""

    active = False

    def __init__(self, flags: Flags):
        self.flags = flags
        self.failing = Failing()
        self.asked: set[str] = set()  # names of flor.arg

    def main_loop(self, name: str, iterable: Iterable[Any], frame: FrameType) -> Iterator[Any]:
        """The iterations of the main loop."""
        return iter(iterable)

    def loop(self, name: str, iterable: Iterable[Any], probed: bool | None, frame: FrameType) -> Iterator[Any]:
        """The iterations of a named loop."""
        return iter(iterable)

    def step_into(self, name: str, probed: bool | None, frame: FrameType) -> bool:
        """Whether to execute a block."""
        return True

    def end(self, values: tuple[Any, ...], frame: FrameType) -> list[Any]:
        """Ends a block; returns its objects."""
        return list(values)

    def log(self, name: str, value: Any) -> None:
        """Logs a value."""

    def arg(self, name: str, default: Any, required: bool) -> Any:
        """An argument of the program."""
        if name in self.flags.KWARGS:
            return cast(self.flags.KWARGS[name], default, name)
        if required:
            raise InvalidArgument(f"flor.arg({name!r}) has no default: give --kwargs {name}=VALUE")
        return default

    def set_objects(self, objects: dict[str, Any]) -> None:
        """The objects that flor.loop saves; none: no more."""

    def flush(self) -> None:
        """Waits until everything is on disk."""

    def close(self) -> None:
        """The end of the program."""
        unused = [f"{name}={text}" for name, text in self.flags.KWARGS.items() if name not in self.asked]
        if unused:
            asked = ", ".join(sorted(self.asked)) or "none"
            say(f"WARNING: --kwargs {' '.join(unused)} was not used: the names given to flor.arg are: {asked}")

    def abandon(self) -> None:
        """What a child of the program, made by a fork, does with the program's runtime."""


class Working(Runtime):
    """What recording and replaying share: the place, and how loops and blocks nest."""

    active = True

    def __init__(self, flags: Flags):
        super().__init__(flags)
        self.place = Place()
        self.objects: dict[str, Any] = {}
        self.main: str | None = None  # the label of the main loop while it runs
        self.blocks: list[Any] = []
        self.blocks_in_iteration = 0
        self.not_ended: dict[str, int] = {}  # how often blocks were left without end(), by label

    def set_objects(self, objects: dict[str, Any]) -> None:
        """The objects that flor.loop saves."""
        self.objects = objects

    def loop(self, name: str, iterable: Iterable[Any], probed: bool | None, frame: FrameType) -> Iterator[Any]:
        """The outermost loop is the main one; one directly in it is a block, if there are objects to save."""
        if self.main is None and not self.blocks:
            return self.main_loop(name, iterable, frame)
        if self.objects and not self.blocks and self.place.depth == 1:
            return self._block_loop(name, iterable, probed, frame)
        return self._plain_loop(name, iterable)

    def _plain_loop(self, name: str, iterable: Iterable[Any]) -> Iterator[Any]:
        label = self.place.label("loop", name)
        depth = self.place.depth
        for index, value in enumerate(iterable):
            self.place.enter_iteration(label, index, value)
            yield value
            self.leave(depth)
        self.leave(depth)

    def _block_loop(self, name: str, iterable: Iterable[Any], probed: bool | None, frame: FrameType) -> Iterator[Any]:
        raise NotImplementedError

    def leave(self, depth: int) -> None:
        """Closes scopes, and blocks that the program has left without end()."""
        for scope in self.place.close_to(depth):
            if not self.failing.failed:  # otherwise the program is leaving because of that error
                count = self.not_ended[scope.label] = self.not_ended.get(scope.label, 0) + 1
                if count == 1:
                    say(f"block {scope.label!r} was entered and not ended: SkipBlock.end belongs behind it")
            self.blocks.pop()
        self.failing.failed = False

    def ended(self) -> Any:
        """The block that end() ends."""
        if not self.blocks:
            raise FailedPrecondition("SkipBlock.end: no block was entered; call SkipBlock.step_into(name) before")
        return self.blocks.pop()


__all__ = ["Failing", "Runtime", "Working", "cast"]
