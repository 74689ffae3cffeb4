"""A coordinator that has nothing but a history, and rows for it."""

import struct
from concurrent import futures

import grpc

from espalier.v1 import cluster_pb2, graph_pb2, replay_pb2

ROWS_IN_A_REPLY = 7


class HistoryServer(grpc.GenericRpcHandler):
    """Answers Replay.Query with `rows`, whatever is asked, and keeps the requests."""

    def __init__(self, rows):
        self.rows = rows
        self.requests = []
        self.broken = 0  # this many queries break off
        self.server = grpc.server(futures.ThreadPoolExecutor(4), [self])
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stop(None).wait()

    def service(self, details):
        if details.method.endswith("Cluster/Status"):
            reply = cluster_pb2.ClusterStatusReply(grpc_address=self.address)
            return grpc.unary_unary_rpc_method_handler(lambda request, context: reply.SerializeToString())
        if details.method.endswith("Replay/Query"):
            return grpc.unary_stream_rpc_method_handler(self.query)
        return None

    def query(self, request, context):
        asked = replay_pb2.QueryHistoryRequest.FromString(request)
        self.requests.append(asked)
        if asked.run.startswith("no"):
            context.abort(grpc.StatusCode.NOT_FOUND, f"no run {asked.run}; there is lm")
        rows = [row for row in self.rows if not asked.log or row.name in asked.log]
        for at in range(0, len(rows), ROWS_IN_A_REPLY):
            yield replay_pb2.QueryHistoryReply(rows=rows[at : at + ROWS_IN_A_REPLY]).SerializeToString()
            if self.broken > 0:
                self.broken -= 1
                context.abort(grpc.StatusCode.UNAVAILABLE, "broken off")


def row(version, step, name, scalar=None, reduction="", **more):
    made = replay_pb2.HistoryRow(
        experiment="lm",
        version=version,
        job_id=f"job-{version}",
        step=step,
        name=name,
        reduction=reduction,
        unix_ms=1_700_000_000_000 + step,
        **more,
    )
    if scalar is not None:
        made.value.scalar = scalar
    return made


def replayed(version, step, name, reduction, scalar=None, replay="r1"):
    return row(version, step, name, scalar, reduction, source=replay_pb2.HistoryRow.REPLAY, replay_id=replay)


def histogram(version, step, name, low, high, counts, outside=0):
    made = replayed(version, step, name, f"histogram({len(counts)})")
    made.value.histogram.low, made.value.histogram.high = low, high
    made.value.histogram.counts.extend(counts)
    made.value.histogram.outside = outside
    return made


def quantiles(version, step, name, values):
    made = replayed(version, step, name, "quantiles(0.1, 0.5)")
    made.value.elements.indices.extend(range(len(values)))
    made.value.elements.values.extend(values)
    return made


def tensor(version, step, name, values, dims):
    made = replayed(version, step, name, "full")
    made.value.tensor.dtype = graph_pb2.F32
    made.value.tensor.dims.extend(dims)
    made.value.tensor.data = struct.pack(f"<{len(values)}f", *values)
    return made


def sample():
    """Rows of every kind of two versions."""
    rows = [row(version, step, "loss", 4 / (step + version) / 3) for version in (1, 2) for step in range(20)]
    rows += [replayed(1, step, "grad(w)", "norm", 0.1 * step) for step in range(0, 20, 5)]
    rows.append(replayed(1, 15, "grad(w)", "norm", 99.0, replay="r2"))
    rows += [histogram(1, step, "relu_1", -1, 1 + step, [1, 2, 3, step], outside=5) for step in range(3)]
    rows += [quantiles(1, step, "w", [-1.5, 0.5 * step]) for step in range(3)]
    rows.append(tensor(1, 2, "w", [1.5, 2, 3, 4, 5, float("nan")], [2, 3]))
    rows.append(tensor(1, 3, "scale", [0.5], []))
    rows.append(row(2, 20, "loss", float("nan")))
    return rows
