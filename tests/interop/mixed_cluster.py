"""A cluster with brokers of both products."""

from __future__ import annotations

import pathlib

from tests.interop.rocketmq import Broker, NameServer


class Mix:
    """A NameServer and brokers, each of a given product."""

    def __init__(self, root: pathlib.Path, nameserver: str, brokers: tuple[str, ...]) -> None:
        self.nameserver = NameServer(nameserver, root / "nameserver")
        self.namesrv = self.nameserver.address
        self.brokers = [
            Broker(kind, root / f"broker-{suffix}", self.namesrv, brokerName=f"broker-{suffix}")
            for suffix, kind in zip("abc", brokers, strict=False)
        ]

    def kill(self) -> None:
        for server in (*self.brokers, self.nameserver):
            server.kill()
