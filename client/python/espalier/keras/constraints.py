"""Constraints on weights are not supported: the coordinator's optimizers have none."""

from __future__ import annotations

from typing import Any

from espalier.errors import InvalidArgument


def refuse(what: str, constraint: Any) -> None:
    """InvalidArgument unless the constraint is None."""
    if constraint is not None:
        raise InvalidArgument(
            f"{what}: constraints on weights are not supported. Use a regularizer, or clip the gradients with the "
            "optimizer's global_clipnorm"
        )
