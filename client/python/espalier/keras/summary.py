"""The table that Model.summary prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from espalier.keras.models import Model


def _rows(model: Model) -> list[tuple[str, str, str]]:
    network = model._network
    shapes: dict[int, Any] = {}
    if network is not None:
        for node in network.nodes:
            made = [tensor.shape for tensor in node.outputs]
            shapes.setdefault(id(node.layer), made[0] if len(made) == 1 else made)
        for tensor in network.inputs:
            if tensor.origin is not None:
                shapes[id(tensor.origin)] = tensor.shape
    rows = []
    for layer in model.layers:
        count = f"{layer.count_params():,}" if layer.built else "not built"
        rows.append((f"{layer.name} ({type(layer).__name__})", str(shapes.get(id(layer), "?")), count))
    return rows


def text(model: Model, line_length: int | None = None) -> str:
    """Layers, shapes and numbers of weights, as text."""
    rows = [("Layer (type)", "Output shape", "Param #"), *_rows(model)]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    if line_length is not None:
        widths[0] = max(widths[0], line_length - widths[1] - widths[2] - 4)
    lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows]
    rule = "-" * len(lines[0])
    if not model.built:
        totals = ["The shape of the input is not known yet, so there are no weights."]
    else:
        trained = sum(v.size for v in model.trainable_weights)
        fixed = sum(v.size for v in model.non_trainable_weights)
        totals = [
            f"Total params: {trained + fixed:,} ({4 * (trained + fixed) / 2**20:.2f} MiB)",
            f"Trainable params: {trained:,}",
            f"Non-trainable params: {fixed:,}",
        ]
    return "\n".join([f"Model: {model.name}", rule, lines[0], rule, *lines[1:], rule, *totals])
