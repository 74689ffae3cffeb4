"""Plans as they are shown: how each operator is split, where it runs, and what was predicted."""

from __future__ import annotations

import html
import os
from collections import Counter
from dataclasses import dataclass

from espalier.v1 import plan_pb2


def seconds(value: float) -> str:
    """ "1.25 ms", "3.2 s", "12 min"."""
    if value >= 120:
        return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return "0 s" if value <= 0 else f"{value / 1e-9:.3g} ns"


def size(value: float) -> str:
    """ "1.5 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def _split(op: plan_pb2.OperatorPlan) -> str:
    degrees = sorted((axis, degree) for axis, degree in op.degrees.items() if degree > 1)
    return " ".join(f"{axis}={degree}" for axis, degree in degrees) or "whole"


def table_html(head: list[str], rows: list[list[str]]) -> str:
    """A table of texts, for notebooks."""
    cells = "".join(f"<th style='text-align:left'>{html.escape(cell)}</th>" for cell in head)
    lines = [
        "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    ]
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


@dataclass(frozen=True)
class Plan:
    """A plan. `proto` is espalier.v1.Plan (docs/reference/plan-file.md); a notebook shows its tables."""

    proto: plan_pb2.Plan
    text: str  # as `espalier explain` prints it; empty for a session's
    measured_step_seconds: float = 0.0  # median of the job; 0: not measured
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.text:
            return self.text
        each = [
            f"{op.node} ({op.op}): {_split(op)} on {', '.join(map(str, op.devices))}" for op in self.proto.operators
        ]
        return "\n".join([repr(self).strip("<>"), *self._details(), *each])

    def __repr__(self) -> str:
        used = {device for op in self.proto.operators for device in op.devices}
        return (
            f"<Plan: {len(self.proto.operators)} operators on {len(used)} of {len(self.proto.devices)} devices, "
            f"{seconds(self.proto.prediction.step_seconds)} a step predicted>"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as JSON, to be edited and given as search={"imported": path}."""
        from google.protobuf import json_format

        with open(path, "w", encoding="utf-8") as file:
            file.write(json_format.MessageToJson(self.proto, preserving_proto_field_name=True))

    def _summary(self) -> str:
        rows = []
        others = [(other.name, other.prediction, other.refused) for other in self.proto.alternatives]
        for name, cost, refused in [("this plan", self.proto.prediction, ""), *others]:
            if refused:
                rows.append([name, f"cannot run: {refused}", "", "", "", "", ""])
                continue
            peak = max(cost.peak_bytes, default=0)
            measured = seconds(self.measured_step_seconds) if name == "this plan" and self.measured_step_seconds else ""
            rows.append(
                [
                    name,
                    seconds(cost.step_seconds),
                    measured,
                    seconds(cost.compute_seconds),
                    seconds(cost.communication_seconds),
                    size(cost.bytes_moved),
                    size(peak) if peak else "",
                ]
            )
        return table_html(["plan", "step", "measured", "compute", "exchange", "moved", "memory"], rows)

    def _details(self) -> list[str]:
        p = self.proto
        kinds = Counter(_split(op) for op in p.operators)
        lines = [f"{len(p.operators)} operators: " + ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))]
        if p.micro_batches > 1:
            lines.append(f"the batch in {p.micro_batches} micro-batches")
        if p.zero_stage > 0:
            lines.append(f"ZeRO stage {p.zero_stage}")
        if p.batch_tiles > 1:
            lines.append(f"made to fit: operators in up to {p.batch_tiles} batch tiles")
        for device, memory in enumerate(p.memory_plans):
            if memory.evictions:
                lines.append(
                    f"device {device}: {len(memory.evictions)} tensors leave its memory within a step, of "
                    f"{size(memory.bytes_without)} needed"
                )
        return [*lines, *self.notes]

    def _repr_html_(self) -> str:
        operators = [
            [op.node, op.op, _split(op), ", ".join(map(str, op.devices)), seconds(op.predicted_seconds)]
            for op in self.proto.operators
        ]
        details = "".join(f"<div>{html.escape(line)}</div>" for line in self._details())
        return (
            f"<div>{self._summary()}{details}<details><summary>operators</summary>"
            f"{table_html(['operator', 'type', 'split', 'devices', 'predicted'], operators)}</details></div>"
        )
