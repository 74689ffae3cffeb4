"""Options of the search for a plan, as Python writes them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from espalier.errors import InvalidArgument
from espalier.plan import Plan
from espalier.spelling import meant
from espalier.v1 import plan_pb2


def _plan(given: Any) -> plan_pb2.Plan:
    if isinstance(given, Plan):
        return given.proto
    if isinstance(given, plan_pb2.Plan):
        return given
    from google.protobuf import json_format

    try:
        with open(os.fspath(given), encoding="utf-8") as file:
            return json_format.Parse(file.read(), plan_pb2.Plan())
    except (TypeError, OSError, json_format.ParseError) as error:
        raise InvalidArgument(
            f"search: imported holds no plan ({error}); accepted: job.plan, or a file that Plan.save wrote"
        ) from None


def search_options(search: Mapping[str, object] | None, seed: int = 0) -> plan_pb2.SearchOptions:
    """The message for fields of SearchOptions by name (docs/reference/grpc-api.md).

    "strategy" also in lower case: "search", "data_parallel", "single_device", "imported"; "imported" may be a Plan or a
    file, and alone means to use it without a search. InvalidArgument for unknown fields, naming them.
    """
    from google.protobuf import json_format

    fields = dict(search or {})
    options = plan_pb2.SearchOptions(seed=seed)
    imported = fields.pop("imported", None)
    if isinstance(fields.get("strategy"), str):
        strategies = [name.lower() for name in plan_pb2.SearchOptions.Strategy.DESCRIPTOR.values_by_name]
        given = str(fields["strategy"]).lower()
        if given not in strategies:
            hint = meant(given, strategies)
            raise InvalidArgument(f"search: strategy {given!r}; accepted are {', '.join(strategies)}{hint}")
        fields["strategy"] = given.upper()
    unknown = sorted(set(fields) - set(options.DESCRIPTOR.fields_by_name))
    if unknown:
        known = ", ".join(options.DESCRIPTOR.fields_by_name)
        hint = meant(unknown[0], options.DESCRIPTOR.fields_by_name)
        raise InvalidArgument(f"search has no field {unknown[0]!r}; it has {known}{hint}")
    try:
        json_format.Parse(json.dumps(fields), options)
    except (TypeError, json_format.ParseError) as error:
        raise InvalidArgument(f"search: {error}") from None
    if imported is not None:
        options.imported.CopyFrom(_plan(imported))
        if "strategy" not in fields:
            options.strategy = plan_pb2.SearchOptions.IMPORTED
    return options
