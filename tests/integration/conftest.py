"""What integration tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from aerobee.broker.fastpath.choice import choose_backend
from aerobee.clock import SystemClock
from aerobee.network import AsyncioNetwork, Network
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.direct import DirectNetwork
from aerobee.testing.local_cluster import LocalCluster
from tests.integration.failover_pair import failover  # noqa: F401  a fixture
from tests.integration.replica_pair import Pair
from tests.integration.secured_cluster import secured  # noqa: F401  a fixture
from tests.integration.tls_serving import authority  # noqa: F401  a fixture

_MAKE_SOCKETS = choose_backend("").make_sockets
_KINDS = ("event loop",) if _MAKE_SOCKETS is None else ("event loop", "native sockets")


@pytest.fixture(params=_KINDS)
def server_network(request: pytest.FixtureRequest) -> Callable[[], Network]:
    """Makes the network of a server: its sockets read by the event loop, and by native code where that is installed."""
    if request.param == "event loop":
        return AsyncioNetwork
    assert _MAKE_SOCKETS is not None
    make_sockets = _MAKE_SOCKETS
    return lambda: DirectNetwork(make_sockets)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    """A master and slaves that a test starts; they stop in reverse order."""
    client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    pair = Pair(tmp_path, client)
    yield pair
    for broker in reversed(pair.brokers):
        await broker.stop()
    await client.close()


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    """A broker and a NameServer in this process, with the topic `orders` of one queue."""
    async with LocalCluster() as started:
        await started.create_topic("orders", queues=1)
        yield started
