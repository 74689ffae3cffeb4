"""Several coordinators that stand by for each other, as a client sees them; tests/e2e/standby_test.py has real ones."""

import asyncio
import threading
import time
from concurrent import futures

import grpc
import pytest

from espalier import errors, leader
from espalier.aio import AsyncClient
from espalier.client import Client
from espalier.rpc import make_settings
from espalier.v1 import cluster_pb2


class Coordinator(grpc.GenericRpcHandler):
    """Answers Cluster.Status with its address while it leads; otherwise every call as one that stands by."""

    def __init__(self, port=0, leads=False):
        self.leads = leads
        self.calls = 0
        self.server = grpc.server(futures.ThreadPoolExecutor(4), [self], options=[("grpc.so_reuseport", 0)])
        self.port = self.server.add_insecure_port(f"127.0.0.1:{port}")
        self.address = f"127.0.0.1:{self.port}"
        self.server.start()

    def service(self, details):
        def answer(request, context):
            self.calls += 1
            if not self.leads:
                # As the coordinator's own answers, and unlike those of a connection that broke.
                context.set_trailing_metadata([("grpc-status-details-bin", b"\x08\x0e")])
                context.abort(grpc.StatusCode.UNAVAILABLE, "standby; the leader is elsewhere")
            if not details.method.endswith("Cluster/Status"):
                context.abort(grpc.StatusCode.UNIMPLEMENTED, "")
            return cluster_pb2.ClusterStatusReply(grpc_address=self.address).SerializeToString()

        return grpc.unary_unary_rpc_method_handler(answer)

    def end(self):
        self.server.stop(None).wait()


@pytest.fixture
def pair():
    """Two of them; the second one leads."""
    both = [Coordinator(), Coordinator(leads=True)]
    yield both
    for one in both:
        one.end()


def address_of(both):
    return ",".join(one.address for one in both)


def test_calls_go_to_the_one_that_leads(pair):
    client = Client(address_of(pair))
    for _ in range(3):
        assert client.status().grpc_address == pair[1].address
    assert pair[0].calls == 1, "it is asked once whether it leads"


def test_calls_follow_the_leader(pair):
    client = Client(address_of(pair))
    assert client.status().grpc_address == pair[1].address

    def take_over():
        time.sleep(0.5)
        pair[0].leads = True

    pair[1].end()
    other = threading.Thread(target=take_over)
    other.start()
    assert client.status().grpc_address == pair[0].address, "while nobody leads, the call waits"
    other.join()


def test_asynchronous_calls_follow_the_leader(pair):
    async def run():
        client = AsyncClient(address_of(pair))
        assert (await client.status()).grpc_address == pair[1].address
        pair[1].end()
        pair[0].leads = True
        assert (await client.status()).grpc_address == pair[0].address

    asyncio.run(run())


def test_without_a_leader_the_error_says_what_the_others_are(pair, monkeypatch):
    monkeypatch.setattr(leader, "TAKEOVER", 0.5)
    pair[1].leads = False
    with pytest.raises(errors.Unavailable, match="standby; the leader is elsewhere"):
        Client(address_of(pair)).status()


@pytest.mark.parametrize("address", ["a:1,", "a:1,b", "a:1,b:x"])
def test_every_address_is_checked(address):
    with pytest.raises(errors.InvalidArgument, match=r"HOST:PORT|the port must be"):
        make_settings(address)
