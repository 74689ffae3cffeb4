"""Espalier: distributed training and LLM serving, from Python.

    import espalier

    with espalier.local(workers=2):
        result = espalier.fit(graph, {"x": x, "labels": y}, optimizer="adam", batch_size=64, epochs=3)

What needs gRPC, NumPy or a framework is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from espalier.version import __version__

if TYPE_CHECKING:
    from espalier import aio, data, datasets, errors, generation, graph, ops, optimizers, plan, safetensors_io, training
    from espalier.client import Client, default_client, set_default_client
    from espalier.errors import EspalierError, EspalierWarning, JobFailed, ReplayDiffers, ReplayFailed
    from espalier.graph import Graph
    from espalier.job import History, Job
    from espalier.local_cluster import local
    from espalier.plan import Plan
    from espalier.replay import Replay
    from espalier.session import Session
    from espalier.training import TrainingResult, fit

__all__ = [
    "Client",
    "EspalierError",
    "EspalierWarning",
    "Graph",
    "History",
    "Job",
    "JobFailed",
    "Plan",
    "Replay",
    "ReplayDiffers",
    "ReplayFailed",
    "Session",
    "TrainingResult",
    "__version__",
    "aio",
    "data",
    "datasets",
    "default_client",
    "errors",
    "fit",
    "generation",
    "graph",
    "local",
    "ops",
    "optimizers",
    "plan",
    "safetensors_io",
    "set_default_client",
    "training",
]

_NAMES = {
    "Client": "client",
    "EspalierError": "errors",
    "EspalierWarning": "errors",
    "Graph": "graph",
    "History": "job",
    "Job": "job",
    "JobFailed": "errors",
    "Plan": "plan",
    "Replay": "replay",
    "ReplayDiffers": "errors",
    "ReplayFailed": "errors",
    "Session": "session",
    "TrainingResult": "training",
    "default_client": "client",
    "fit": "training",
    "local": "local_cluster",
    "set_default_client": "client",
}
# Parts of the package that `import espalier` alone gives: espalier.keras.Sequential.
_MODULES = frozenset(
    [
        "aio",
        "callbacks",
        "compat",
        "core",
        "data",
        "datasets",
        "errors",
        "flax",
        "flor",
        "generation",
        "graph",
        "jax",
        "keras",
        "onnx",
        "ops",
        "optimizers",
        "plan",
        "safetensors_io",
        "torch",
        "training",
    ]
)


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        found = getattr(importlib.import_module(f"espalier.{_NAMES[name]}"), name)
        globals()[name] = found
        return found
    if name in _MODULES:
        try:
            return importlib.import_module(f"espalier.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"espalier.{name}":
                raise
    raise AttributeError(f"module 'espalier' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
