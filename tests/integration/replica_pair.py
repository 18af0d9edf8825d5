"""A master and its slave in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aerobee.broker.assembly.broker import Broker
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.fastjson import loads
from tests.integration.broker_calls import make_broker, send_request
from tests.waiting import wait_until

SLAVE = {"broker_role": "SLAVE"}


class Pair:
    """Starts masters and slaves, and ends what still runs."""

    def __init__(self, path: Path, client: RemotingClient) -> None:
        self.path = path
        self.client = client
        self.brokers: list[Broker] = []

    async def start(self, name: str, *, store: dict[str, Any] | None = None, **config: Any) -> Broker:
        broker = make_broker(self.path / name, store=store, **config)
        await broker.start()
        self.brokers.append(broker)
        return broker

    async def start_slave(
        self, master: Broker, name: str = "slave", *, store: dict[str, Any] | None = None, **config: Any
    ) -> Broker:
        slave = await self.start(name, store={**SLAVE, **(store or {})}, broker_id=1, **config)
        slave.replication.become_slave(master.identity.ha_address, master_address=master.address)
        return slave

    async def send(self, broker: Broker, count: int, *, topic: str = "t", size: int = 100) -> None:
        for number in range(count):
            body = f"{number} ".encode() * (size // 2)
            reply = await self.client.invoke(broker.address, send_request(topic, body))
            assert reply.code == 0, reply


def log_bytes(broker: Broker) -> bytes:
    """Everything that is in the log."""
    log = broker.store.log
    return b"".join(
        bytes(segment.file.buffer[: min(segment.end, log.end) - segment.base]) for segment in log.segments
    )


async def same(master: Broker, slave: Broker) -> None:
    """Wait until the slave has the whole log."""
    await wait_until(lambda: slave.store.log.end == master.store.log.end)
    assert log_bytes(slave) == log_bytes(master)


async def figures(pair: Pair, broker: Broker) -> dict[str, str]:
    """What a broker says of itself (28)."""
    reply = await pair.client.invoke(broker.address, RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
    table: dict[str, str] = loads(reply.body)["table"]
    return table
