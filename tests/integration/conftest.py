"""What integration tests share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aerobee.broker.fastpath.choice import choose_backend
from aerobee.network import AsyncioNetwork, Network
from aerobee.remoting.direct import DirectNetwork

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
