"""What is kept of a job, so that it can be replayed, as Python writes it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from espalier.counts import check_count
from espalier.errors import InvalidArgument
from espalier.spelling import meant
from espalier.v1 import training_pb2

_MODES = ("adaptive", "off", "every:N")


def record_options(record: str | Mapping[str, object] | None) -> training_pb2.RecordOptions | None:
    """The message for a mode, "adaptive", "off" or "every:N", or for fields of RecordOptions by name, of which "mode"
    may be such a mode: {"mode": "adaptive", "overhead": 0.02}. None: as the coordinator does it.

    InvalidArgument for anything else, naming it.
    """
    if record is None:
        return None
    if not isinstance(record, (str, Mapping)):
        raise _wrong(record)
    fields: dict[str, Any] = {"mode": record} if isinstance(record, str) else dict(record)
    options = training_pb2.RecordOptions()
    known = options.DESCRIPTOR.fields_by_name
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise InvalidArgument(
            f"record has no field {unknown[0]!r}; it has {', '.join(known)}{meant(str(unknown[0]), known)}"
        )
    mode = fields.pop("mode", "every" if "every_steps" in fields else "adaptive")
    every = "every_steps" in fields
    if isinstance(mode, str) and mode.startswith("every:") and not every:
        fields["every_steps"] = _steps(record, mode[len("every:") :])
        mode = "every"
    if mode not in ("adaptive", "off", "every") or (mode == "every") != ("every_steps" in fields):
        raise _wrong(record)
    for name in ("every_steps", "max_bytes", "keep"):
        if name in fields:
            fields[name] = check_count(f"record: {name}", fields[name])
    overhead = fields.get("overhead", 0.5)
    if isinstance(overhead, bool) or not isinstance(overhead, (int, float)) or not 0 < overhead < 1:
        raise InvalidArgument(f"record: overhead is {overhead!r}; accepted: a part of the training time, as 0.05")
    if "overhead" in fields and mode != "adaptive":
        raise InvalidArgument(f"record: overhead goes with 'adaptive', not with {mode!r}")
    if mode == "off" and fields:
        raise InvalidArgument(
            f"record: 'off' keeps nothing that {', '.join(fields)} could limit; leave one of them out"
        )
    from google.protobuf import json_format

    json_format.Parse(json.dumps({**fields, "mode": mode.upper()}), options)
    return options


def _steps(record: object, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0 or math.log2(int(text)) >= 63:
        raise _wrong(record)
    return int(text)


def _wrong(record: object) -> InvalidArgument:
    hint = meant(record, _MODES) if isinstance(record, str) else ""
    return InvalidArgument(
        f"record is {record!r}; accepted: {', '.join(map(repr, _MODES))}, or fields of RecordOptions, as "
        f"{{'mode': 'adaptive', 'overhead': 0.02}}{hint}"
    )


__all__ = ["record_options"]
