"""FlexFlow's NetConfig and DLRMConfig: settings of example programs, from the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from espalier.core.flags import Flag, parse


def _sizes(text: str) -> list[int]:
    return [int(part) for part in text.split("-")]


class NetConfig:
    """`dataset_path`: the value of -d or --dataset; empty without it."""

    def __init__(self, argv: Sequence[str] | None = None):
        given = sys.argv[1:] if argv is None else argv
        values = parse(given, [Flag("dataset_path", ("-d", "--dataset"), str, "a path")])
        self.dataset_path: str = values.get("dataset_path", "")


class DLRMConfig:
    """Settings of DLRM, with FlexFlow's flags and defaults."""

    def __init__(self, argv: Sequence[str] | None = None):
        given = sys.argv[1:] if argv is None else argv
        values = parse(
            given,
            [
                Flag("dataset_path", ("-d", "--dataset"), str, "a path"),
                Flag("arch_interaction_op", ("--arch-interaction-op",), str, "cat"),
                Flag("sparse_feature_size", ("--arch-sparse-feature-size",), int, "an integer"),
                Flag("sigmoid_bot", ("--sigmoid-bot",), int, "the number of a layer"),
                Flag("sigmoid_top", ("--sigmoid-top",), int, "the number of a layer"),
                Flag("embedding_bag_size", ("--embedding-bag-size",), int, "an integer"),
                Flag("loss_threshold", ("--loss-threshold",), float, "a number"),
                Flag("mlp_bot", ("--arch-mlp-bot",), _sizes, "sizes such as 13-512-64"),
                Flag("mlp_top", ("--arch-mlp-top",), _sizes, "sizes such as 256-64-1"),
                Flag("embedding_size", ("--arch-embedding-size",), _sizes, "sizes such as 1000-500"),
            ],
        )
        self.dataset_path: str = values.get("dataset_path", "")
        self.arch_interaction_op: str = values.get("arch_interaction_op", "cat")
        self.sparse_feature_size: int = values.get("sparse_feature_size", 2)
        self.sigmoid_bot: int = values.get("sigmoid_bot", -1)
        self.sigmoid_top: int = values.get("sigmoid_top", -1)
        self.embedding_bag_size: int = values.get("embedding_bag_size", 1)
        self.loss_threshold: float = values.get("loss_threshold", 0.0)
        self.mlp_bot: list[int] = values.get("mlp_bot", [4, 2])
        self.mlp_top: list[int] = values.get("mlp_top", [8, 2])
        self.embedding_size: list[int] = values.get("embedding_size", [4])
