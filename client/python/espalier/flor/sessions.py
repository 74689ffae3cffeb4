"""Espalier's sessions: their parameters, optimizer and progress."""

from __future__ import annotations

import sys
from typing import Any

from espalier.errors import FailedPrecondition
from espalier.flor.trees import Node, State

_NUMBERS = ("updates", "forwards", "next_batch")


def is_session(value: Any) -> bool:
    """Whether a value is an espalier.Session."""
    module = sys.modules.get("espalier.session")
    return module is not None and isinstance(value, module.Session)


def capture(session: Any, path: str, state: State) -> Node:
    """The node of a session."""
    from google.protobuf import json_format

    progress = session.state()
    node: dict[str, Any] = {"$": "session", "type": "Session"}
    node |= {number: getattr(progress, number) for number in _NUMBERS}
    tensors = {"parameter": session.parameters(), "optimizer_state": progress.optimizer}
    for kind, arrays in tensors.items():
        node[kind] = {name: state.add(f"{path}.{kind}.{name}", array) for name, array in arrays.items()}
    node["plan"] = json_format.MessageToJson(session.plan.proto, preserving_proto_field_name=True)
    return node


def restore(session: Any, node: Node, path: str, state: State) -> None:
    """Sets a session back: it is opened anew, with the plan of the recording, if its progress differs."""
    from google.protobuf import json_format

    from espalier.v1 import plan_pb2, session_pb2

    have = {(kind, name) for kind, name, _ in session.tensors if kind in ("parameter", "optimizer_state")}
    want = {(kind, name) for kind in ("parameter", "optimizer_state") for name in node[kind]}
    if have != want:
        raise FailedPrecondition(f"{path}: the session has other parameters than the recorded one")
    now = session.state()
    if any(getattr(now, number) != node[number] for number in _NUMBERS):
        options = session._request.spec.search
        options.imported.CopyFrom(json_format.Parse(node["plan"], plan_pb2.Plan()))
        options.strategy = plan_pb2.SearchOptions.IMPORTED
        begin = session_pb2.SessionProgress(**{number: node[number] for number in _NUMBERS})
        session._request.begin.CopyFrom(begin)
        session.close()
        session._open(session.graph)
    session.set_parameters({name: state.get(key) for name, key in node["parameter"].items()})
    session.set_optimizer_state({name: state.get(key) for name, key in node["optimizer_state"].items()})


__all__ = ["capture", "is_session", "restore"]
