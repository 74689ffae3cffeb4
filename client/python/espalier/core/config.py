"""FFConfig: settings from the command line, and what they mean for the search for a plan."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from espalier.client import Client, default_client
from espalier.core.flags import Flag, parse
from espalier.errors import InvalidArgument
from espalier.notes import warn


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


_FLAGS = [
    Flag("epochs", ("-e", "--epochs"), _count, "an integer above 0"),
    Flag("batch_size", ("-b", "--batch-size"), _count, "an integer above 0"),
    Flag("print_freq", ("-p", "--print-freq"), _count, "an integer above 0"),
    Flag("dataset_path", ("-d", "--dataset"), str, "a path"),
    Flag("learning_rate", ("--lr", "--learning-rate"), float, "a number"),
    Flag("weight_decay", ("--wd", "--weight-decay"), float, "a number"),
    Flag("search_budget", ("--budget", "--search-budget"), int, "an integer"),
    Flag("search_alpha", ("--alpha", "--search-alpha"), float, "a number"),
    Flag("import_strategy_file", ("--import", "--import-strategy"), str, "a plan's file"),
    Flag("export_strategy_file", ("--export", "--export-strategy"), str, "a path"),
    Flag("only_data_parallel", ("--only-data-parallel",), None),
    Flag("enable_parameter_parallel", ("--enable-parameter-parallel",), None),
    Flag("enable_attribute_parallel", ("--enable-attribute-parallel",), None),
    Flag("memory_search", ("--memory-search",), None),
    Flag("task_graph_file", ("--taskgraph",), str, "a path"),
    Flag("computation_graph_file", ("--compgraph",), str, "a path"),
    Flag("include_costs_dot_graph", ("--include-costs-dot-graph",), None),
]
# Flags that are accepted and change nothing: what takes their place.
_UNUSED = [
    (("--nodes", "--search-num-nodes", "--search-num-workers"), "the workers that have joined the daemon are used"),
    (("--machine-model-version", "--machine-model-file"), "plans are made for the workers as they are; `espalier "
     "plan --machine` plans for others"),
    (("--substitution-json",), "the daemon has rules of its own (rewrite_budget of search options)"),
    (("--simulator-workspace-size", "--simulator-segment-size", "--simulator-max-num-segments",
      "--base-optimize-threshold"), "the daemon's simulator needs no such setting"),
    (("--fusion", "--overlap", "--enable-propagation", "--enable-inplace-optimizations"),
     "the daemon does it where it helps"),
    (("--profiling", "--allow-tensor-op-math-conversion", "--disable-control-replication"),
     "there is nothing like it"),
    (("--python-data-loader-type",), "there is one kind of data loader"),
]  # fmt: skip


class FFConfig:
    """Settings of a model, read from `argv` (by default the program's arguments) as FlexFlow reads them.

    batch_size (64), epochs (1), print_freq (10; fit prints every so many steps if -p is given), dataset_path,
    learning_rate, weight_decay; search_budget, search_alpha, import_strategy_file, export_strategy_file,
    only_data_parallel, enable_parameter_parallel, enable_attribute_parallel, memory_search, max_devices (0: all
    workers): the search for a plan. seed, precision ("bf16", "f16", None) and client (None: the default one) have no
    flag.

    Flags of Legion and of FlexFlow's simulator are accepted with an EspalierWarning. Flags that FlexFlow does not know
    belong to the program. InvalidArgument for a value that cannot be read.
    """

    def __init__(self, argv: Sequence[str] | None = None):
        self.batch_size = 64
        self.epochs = 1
        self.print_freq = 10
        self.dataset_path = ""
        self.learning_rate = 0.01
        self.weight_decay = 0.0001
        self.search_budget: int | None = None
        self.search_alpha: float | None = None
        self.import_strategy_file: str | None = None
        self.export_strategy_file: str | None = None
        self.only_data_parallel = False
        self.enable_parameter_parallel = True
        self.enable_attribute_parallel = True
        self.memory_search = False
        self.task_graph_file: str | None = None
        self.computation_graph_file: str | None = None
        self.include_costs_dot_graph = False
        self.max_devices = 0
        self.seed = 0
        self.precision: str | None = None
        self.client: Client | None = None
        self.enable_control_replication = True
        self.python_data_loader_type = 2
        self._prints_steps = False
        self.parse_args(argv)

    def parse_args(self, argv: Sequence[str] | None = None) -> None:
        """Reads flags; those that are absent change nothing."""
        given = list(sys.argv[1:] if argv is None else argv)
        values = parse(given, _FLAGS)
        for key, value in values.items():
            setattr(self, key, value)
        self._prints_steps = self._prints_steps or "print_freq" in values
        _note_unused(given)

    def _cluster(self) -> Any:
        return (self.client or default_client()).status()

    @property
    def num_nodes(self) -> int:
        """Number of machines on which workers of the daemon run."""
        return len({worker.host for worker in self._cluster().workers}) or 1

    @property
    def workers_per_node(self) -> int:
        """Workers of the daemon, on each machine if there are several."""
        return len(self._cluster().workers) // self.num_nodes

    @property
    def cpus_per_node(self) -> int:
        """As workers_per_node."""
        return self.workers_per_node

    def get_batch_size(self) -> int:
        """Examples of a step."""
        return self.batch_size

    def get_epochs(self) -> int:
        """Epochs of -e."""
        return self.epochs

    def get_workers_per_node(self) -> int:
        """As workers_per_node."""
        return self.workers_per_node

    def get_num_nodes(self) -> int:
        """As num_nodes."""
        return self.num_nodes

    def get_current_time(self) -> float:
        """Microseconds, since some moment."""
        return time.perf_counter() * 1e6

    def begin_trace(self, trace_id: int) -> None:
        """Nothing: a plan is compiled once, there is nothing to trace."""

    def end_trace(self, trace_id: int) -> None:
        """Nothing, as begin_trace."""

    def search(self) -> dict[str, object]:
        """Fields of SearchOptions (docs/reference/grpc-api.md) for these settings.

        A budget of 0 means no search, as in FlexFlow: data parallelism. Without a budget the daemon chooses one.
        """
        fields: dict[str, object] = {}
        if self.only_data_parallel or (self.search_budget is not None and self.search_budget <= 0):
            fields["strategy"] = "data_parallel"
        elif self.search_budget is not None:
            fields["budget"] = self.search_budget
        if self.search_alpha is not None:
            fields["alpha"] = self.search_alpha
        if self.import_strategy_file is not None:
            if fields.get("strategy"):
                raise InvalidArgument("--import names a plan, and --only-data-parallel or --budget 0 says to use none")
            fields["imported"] = self.import_strategy_file
        if not self.enable_parameter_parallel:
            fields["disable_parameter_parallel"] = True
        if not self.enable_attribute_parallel:
            fields["disable_attribute_parallel"] = True
        if self.memory_search:
            fields["memory_search"] = True
        if self.max_devices:
            fields["max_devices"] = self.max_devices
        return fields


def _note_unused(given: Sequence[str]) -> None:
    legion = [word for word in given if word.startswith(("-ll:", "-lg:", "-level", "-logfile"))]
    if legion:
        warn(
            f"{' '.join(legion)}: flags of Legion change nothing; a program runs on the workers of its daemon "
            "(espalier.local(workers=...), espalier-worker)"
        )
    for names, instead in _UNUSED:
        found = [word for word in given if word.partition("=")[0] in names]
        if found:
            warn(f"{' '.join(found)} changes nothing: {instead}")


def flexflow_python_binding() -> str:
    """FlexFlow's name of the library that calls its C++; here there is none: "espalier"."""
    return "espalier"
