"""A group of brokers whose master the controllers elect."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.state.role import Role
from aerobee.ha.controller.controller import Controller
from aerobee.nameserver.config import NameServerConfig
from aerobee.nameserver.server import NameServer
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.command import RemotingCommand
from tests.integration.broker_calls import make_broker, send_request
from tests.integration.controller_quorum import configs, leader_of
from tests.integration.replica_pair import log_bytes
from tests.waiting import wait_until

SYNC = {"all_ack_in_sync_state_set": True}


class Group:
    """A NameServer, controllers, and brokers of one name."""

    def __init__(self, path: Path, client: RemotingClient, stack: AsyncExitStack) -> None:
        self.path = path
        self.client = client
        self.controllers: list[Controller] = []
        self.brokers: dict[str, Broker] = {}
        self._stack = stack
        self.nameserver: NameServer

    async def begin(self, controllers: int = 1) -> None:
        nameserver = NameServer(NameServerConfig(listen_port=0, bind_address="127.0.0.1"))
        self.nameserver = await self._stack.enter_async_context(nameserver)
        for config in configs(self.path / "controllers", controllers):
            self.controllers.append(await self._stack.enter_async_context(Controller(config)))
        await leader_of(self.controllers)

    async def start(self, name: str, *, store: dict[str, Any] | None = None, **config: Any) -> Broker:
        broker = make_broker(
            self.path / name,
            store=store,
            name="broker-g",
            enable_controller_mode=True,
            controller_addr=";".join(each.address for each in self.controllers),
            namesrv_addr=self.nameserver.address,
            **config,
        )
        await broker.start()
        self.brokers[name] = broker
        return broker

    async def stop(self) -> None:
        for broker in self.brokers.values():
            await broker.stop()

    def master(self) -> Broker | None:
        masters = [
            each for each in self.brokers.values() if each._is_running and each.role.role is Role.MASTER
        ]
        return masters[0] if len(masters) == 1 else None

    async def has_master(self, *, other_than: Broker | None = None) -> Broker:
        def found() -> bool:
            master = self.master()
            return master is not None and master is not other_than

        await wait_until(found, "a master", timeout_s=60)
        master = self.master()
        assert master is not None
        return master

    async def send(self, broker: Broker, body: bytes, topic: str = "t") -> RemotingCommand:
        return await self.client.invoke(broker.address, send_request(topic, body), timeout_s=60)

    async def sent(self, broker: Broker, bodies: list[bytes]) -> None:
        for body in bodies:
            async with asyncio.timeout(60):
                # Refused while there is no lease yet, or a member has just left.
                while (await self.send(broker, body)).code != 0:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    def members(self) -> frozenset[int]:
        leader = next(each for each in self.controllers if each.status.is_serving)
        return leader.state.groups["broker-g"].in_sync


async def same(*brokers: Broker) -> None:
    """Wait until all have one log."""
    await wait_until(lambda: len({each.store.log.end for each in brokers}) == 1, "one end", timeout_s=60)
    assert len({log_bytes(each) for each in brokers}) == 1
