"""The flags of flor: --flor, --replay_flor [weak|strong] [k/n], --flor_spool, --kwargs, and the environment."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from espalier.errors import InvalidArgument

EPSILON = 1 / 15  # of the run time that recording may take, as FLOR's default
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}")
_SEGMENT = re.compile(r"(\d+)/(\d+)")
_PAIR = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_COUNTED = re.compile(r"(pid|ngpus):(\d+)")
_NEARLY_SEGMENT = re.compile(r"[+-]?\d.*", re.DOTALL)
_NEARLY_FORM = re.compile(r"(pid|ngpus)(\W.*)?|(weak|strong)([\s:=,/].*)?", re.DOTALL | re.IGNORECASE)


@dataclass
class Flags:
    """What the command line and the environment say.

    NAME: the experiment; None: flor does nothing. VERSION: the recording to replay; 0: the newest. SEGMENT: (k, n), k
    from 1 to n. STRONG: initialise a segment through all epochs before it. EPSILON: the part of the run time that
    checkpoints may take. EVERY: 0: adaptive; n: a checkpoint at every n-th execution of a block. STRICT: a value that
    differs from the record ends the replay. SPOOL: the URL that recordings are copied to, and fetched from for a
    replay. SPOOL_TIMEOUT: seconds that the end of the program waits for it. KWARGS: texts for flor.arg.
    """

    NAME: str | None = None
    VERSION: int = 0
    REPLAY: bool = False
    SEGMENT: tuple[int, int] = (1, 1)
    STRONG: bool = False
    EPSILON: float = EPSILON
    EVERY: int = 0
    STRICT: bool = False
    SPOOL: str | None = None
    SPOOL_TIMEOUT: float = 60.0
    KWARGS: dict[str, str] = field(default_factory=dict)


def check_name(name: str) -> str:
    """The name of an experiment, which is the name of a folder. InvalidArgument if it cannot be."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"--flor {name!r}: the name of an experiment has letters, digits, '_', '-' and '.', begins with a letter, "
            "digit or '_', and has at most 100 characters"
        )
    return name


def segment_of(k: int, n: int) -> tuple[int, int]:
    """Segment k of n, numbered from 1. InvalidArgument if there is none, with both readings."""
    if not 1 <= k <= n:
        tenth = f"the one-based segment {k + 1}/{n}" if k < n else f"no segment of {n} in either"
        raise InvalidArgument(
            f"--replay_flor {k}/{n}: segments are numbered from 1 to {max(n, 1)} here. FLOR's README also counts from "
            f"0; by that reading you mean {tenth}. Write k/n with 1 <= k <= n, or 'pid:K ngpus:N' with 0 <= K < N"
        )
    return k, n


def _number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidArgument(f"{what} is {text!r}; accepted: a number") from None


def _set_name(flags: Flags, text: str) -> None:
    name, at, version = text.removeprefix("name:").partition("@")
    flags.NAME = check_name(name)
    if at:
        if not version.isdigit() or int(version) < 1:
            raise InvalidArgument(f"--flor {text}: a version is a number from 1, as in {name}@3")
        flags.VERSION = int(version)


def _no_segment(what: str) -> InvalidArgument:
    return InvalidArgument(
        f"--replay_flor: {what}; accepted directly behind it are k/n, such as 3/4, or 'pid:K ngpus:N', and weak or "
        "strong. Arguments of the program itself belong before --replay_flor, or behind --"
    )


def _take_replay(flags: Flags, words: list[str]) -> None:
    """Takes the optional words behind --replay_flor off the front of `words`.

    InvalidArgument for a word that may be meant as a segment and is none: without one, everything would be replayed.
    """
    flags.REPLAY = True
    counted: dict[str, int] = {}
    segment: tuple[int, int] | None = None
    while words:
        found = _SEGMENT.fullmatch(words[0])
        pid = _COUNTED.fullmatch(words[0])
        if (found and (segment or counted)) or (pid and (segment or pid[1] in counted)):
            raise _no_segment(f"{words[0]!r} would be a second segment")
        if words[0] in ("weak", "strong"):
            flags.STRONG = words[0] == "strong"
        elif found:
            segment = segment_of(int(found[1]), int(found[2]))
        elif pid:
            counted[pid[1]] = int(pid[2])
        else:
            break
        words.pop(0)
    if counted:
        if set(counted) != {"pid", "ngpus"} or counted["pid"] >= counted["ngpus"]:
            raise InvalidArgument(
                "--replay_flor: 'pid:K ngpus:N' counts from 0, so that 0 <= K < N; the form k/n counts from 1"
            )
        segment = counted["pid"] + 1, counted["ngpus"]
    if words and (_NEARLY_FORM.fullmatch(words[0]) or (segment is None and _NEARLY_SEGMENT.fullmatch(words[0]))):
        raise _no_segment(f"{words[0]!r} is no segment")
    if segment is not None:
        flags.SEGMENT = segment
        return
    for word in itertools.takewhile(lambda word: word != "--", words):
        if _SEGMENT.fullmatch(word) or _COUNTED.fullmatch(word):
            raise _no_segment(f"is {word!r}, which follows later, the segment?")


def parse(words: list[str], environment: Mapping[str, str]) -> tuple[Flags, list[str]]:
    """The flags, and the words that are left for the script. InvalidArgument for what cannot be."""
    flags = Flags()
    left: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, text = word.partition("=")
        if flag == "--flor":
            if not equals:
                if not rest or rest[0].startswith("-"):
                    raise InvalidArgument("--flor needs the name of an experiment: --flor NAME")
                text = rest.pop(0)
            _set_name(flags, text)
        elif flag == "--replay_flor":
            if equals:
                rest.insert(0, text)
                before = len(rest)
                _take_replay(flags, rest)
                if len(rest) == before:
                    raise InvalidArgument(f"{word}: accepted are k/n, weak and strong")
            else:
                _take_replay(flags, rest)
        elif flag == "--flor_spool":
            if not equals:
                if not rest or rest[0].startswith("-"):
                    raise InvalidArgument("--flor_spool needs a folder or s3://BUCKET/PREFIX: --flor_spool URL")
                text = rest.pop(0)
            flags.SPOOL = text
        elif word == "--kwargs" and rest and _PAIR.fullmatch(rest[0]):
            while rest and _PAIR.fullmatch(rest[0]):
                name, _, value = rest.pop(0).partition("=")
                flags.KWARGS[name] = value
        elif word == "--":
            left += [word, *rest]
            break
        else:
            left.append(word)
    if flags.SPOOL is not None and flags.NAME is None:
        raise InvalidArgument("--flor_spool needs the experiment: --flor NAME --flor_spool URL")
    _read_environment(flags, environment)
    if flags.REPLAY and flags.NAME is None:
        raise InvalidArgument("--replay_flor needs the experiment: --flor NAME --replay_flor")
    if flags.VERSION and not flags.REPLAY:
        raise InvalidArgument(
            f"--flor {flags.NAME}@{flags.VERSION}: a version is chosen for a replay only; recording makes a new one"
        )
    return flags, left


def _read_environment(flags: Flags, environment: Mapping[str, str]) -> None:
    epsilon = environment.get("FLOR_EPSILON")
    if epsilon:
        flags.EPSILON = _number(epsilon, "FLOR_EPSILON")
        if not 0 < flags.EPSILON <= 1:
            raise InvalidArgument(f"FLOR_EPSILON is {epsilon}; accepted: more than 0, at most 1")
    every = environment.get("FLOR_EVERY")
    if every:
        if not every.isdigit() or int(every) < 1:
            raise InvalidArgument(f"FLOR_EVERY is {every!r}; accepted: 1 (a checkpoint each time), 2, ...")
        flags.EVERY = int(every)
    flags.SPOOL = flags.SPOOL or environment.get("FLOR_SPOOL") or None
    timeout = environment.get("FLOR_SPOOL_TIMEOUT")
    if timeout:
        flags.SPOOL_TIMEOUT = _number(timeout, "FLOR_SPOOL_TIMEOUT")
        if not 0 <= flags.SPOOL_TIMEOUT <= 86400:
            raise InvalidArgument(f"FLOR_SPOOL_TIMEOUT is {timeout}; accepted: seconds from 0 to 86400")
    flags.STRICT = environment.get("FLOR_STRICT", "") not in ("", "0")


__all__ = ["EPSILON", "Flags", "check_name", "parse", "segment_of"]
