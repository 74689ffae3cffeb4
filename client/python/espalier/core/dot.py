"""Graphviz files of a model's plan: FlexFlow's --taskgraph and --compgraph."""

from __future__ import annotations

from espalier.client import Client
from espalier.core.config import FFConfig
from espalier.graph import Graph
from espalier.plan import Plan
from espalier.v1 import plan_pb2


def export_dot(client: Client, graph: Graph, batch_size: int, plan: Plan, config: FFConfig) -> None:
    """Writes the files that `config` names, of a graph that runs by `plan`."""
    search = plan_pb2.SearchOptions(strategy=plan_pb2.SearchOptions.IMPORTED, imported=plan.proto)
    request = plan_pb2.ExplainRequest(
        plan=plan_pb2.PlanRequest(graph=graph.proto, batch_size=batch_size, search=search, devices=plan.proto.devices),
        task_graph=config.task_graph_file is not None,
        computation_graph=config.computation_graph_file is not None,
        costs_in_graph=config.include_costs_dot_graph,
    )
    reply = client.call("Planner", "Explain", request)
    for path, text in (
        (config.task_graph_file, reply.task_graph),
        (config.computation_graph_file, reply.computation_graph),
    ):
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
