"""Two brokers that take the mastership in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.clock import SystemClock
from aerobee.errors import StoreError
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.command import RemotingCommand
from tests.integration.broker_calls import send_request
from tests.integration.replica_pair import Pair, log_bytes, same
from tests.waiting import wait_until


class Failover:
    """Brokers A and B with one log; the mastership goes to and fro while both processes live."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.epoch = 0
        self.a: Broker
        self.b: Broker

    async def begin(self, **config: Any) -> None:
        self.a = await self.pair.start("a", **config)
        self.b = await self.pair.start_slave(self.a, "b", **config)
        await self.pair.send(self.a, 1, topic="first")
        await same(self.a, self.b)

    def lead(self, broker: Broker) -> None:
        """It leads; the other one may not know it yet."""
        self.epoch += 1
        broker.replication.become_master(self.epoch)

    async def follow(self, broker: Broker, master: Broker) -> None:
        broker.replication.become_slave(master.identity.ha_address, self.epoch, master_address=master.address)
        await wait_until(lambda: log_bytes(broker) == log_bytes(master), "one log", timeout_s=60)
        await wait_until(lambda: served(master), "everything is served", timeout_s=60)

    async def switch(self, master: Broker) -> Broker:
        """`master` leads from now on, with all of the log; the other one follows."""
        other = self.b if master is self.a else self.a
        await same(other, master)
        self.lead(master)
        await self.follow(other, master)
        return master

    async def ask(self, broker: Broker, request: RemotingCommand) -> RemotingCommand:
        return await self.pair.client.invoke(broker.address, request, timeout_s=60)


def served(broker: Broker) -> bool:
    return not broker._serving.parts.unserved.reasons


@pytest.fixture
async def failover(tmp_path: Path) -> AsyncIterator[Failover]:
    client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    pair = Pair(tmp_path, client)
    yield Failover(pair)
    for broker in reversed(pair.brokers):
        await broker.stop()
    await client.close()


async def send(
    failover: Failover, broker: Broker, key: str, properties: str = "", **ext: str
) -> RemotingCommand:
    request = send_request("t", key.encode(), properties=f"UNIQ_KEY\x01{key}\x02{properties}")
    assert request.ext is not None
    request.ext |= ext
    reply = await failover.ask(broker, request)
    assert reply.code == 0, reply
    return reply


def break_feature(monkeypatch: pytest.MonkeyPatch, broker: Broker, name: str) -> None:
    """Its files cannot be read when the broker takes over."""

    async def take_over() -> None:
        raise StoreError("its file is damaged")

    (feature,) = (each for each in broker.features if each.name == name)
    monkeypatch.setattr(feature, "take_over", take_over)
