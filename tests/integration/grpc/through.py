"""The same tests at a broker's own port, and through `aerobee proxy` in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aerobee.proxy.config import ProxyConfig
from aerobee.proxy.server import ProxyServer
from aerobee.testing import LocalCluster

BOTH = ("broker", "proxy")


@asynccontextmanager
async def served(cluster: LocalCluster, through: str) -> AsyncIterator[str]:
    """The address that serves gRPC: the first broker's, or a proxy's."""
    if through == "broker":
        yield cluster.broker().address
        return
    proxy = ProxyServer(ProxyConfig(nameservers=cluster.nameserver_address, host="127.0.0.1", port=0))
    await proxy.start()
    try:
        yield proxy.address
    finally:
        await proxy.stop()
