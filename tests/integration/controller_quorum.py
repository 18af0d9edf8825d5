"""A quorum of controllers and the requests of brokers to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from aerobee.clock import SystemClock
from aerobee.ha.controller.config import ControllerConfig
from aerobee.ha.controller.controller import Controller
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from tests.ports import free_ports
from tests.waiting import wait_until

GROUP = "broker-a"
ADDRESSES = {1: "127.0.0.1:1", 2: "127.0.0.1:2", 3: "127.0.0.1:3"}


def configs(directory: Path, count: int, **settings: Any) -> list[ControllerConfig]:
    ports = free_ports(count)
    peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
    return [
        ControllerConfig(
            controller_d_leger_group="quorum",
            controller_d_leger_peers=peers,
            controller_d_leger_self_id=f"n{number}",
            controller_store_path=str(directory),
            bind_address="127.0.0.1",
            **settings,
        )
        for number in range(count)
    ]


class Tool:
    """Asks controllers, as a broker or an administrator does."""

    def __init__(self, client: RemotingClient) -> None:
        self._client = client

    async def call(self, address: str, code: int, body: bytes = b"", **ext: object) -> RemotingCommand:
        texts = {key: str(value) for key, value in ext.items()}
        return await self._client.invoke(address, RemotingCommand(code, texts or None, body), timeout_s=60)

    async def beat(self, address: str, broker_id: int, **ext: object) -> RemotingCommand:
        return await self.call(
            address,
            RequestCode.BROKER_HEARTBEAT,
            clusterName="C",
            brokerName=GROUP,
            brokerAddr=ADDRESSES[broker_id],
            brokerId=broker_id,
            **{"epoch": -1, "maxOffset": 0, "confirmOffset": 0, "heartbeatTimeoutMills": 10_000, **ext},
        )

    async def join(self, address: str, broker_id: int) -> RemotingCommand:
        """Take an id and register, as a broker does at its first start."""
        common = {"clusterName": "C", "brokerName": GROUP}
        taken = await self.call(
            address,
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            **common,
            appliedBrokerId=broker_id,
            registerCheckCode=f"{ADDRESSES[broker_id]};{broker_id}",
        )
        assert taken.code == 0, taken.remark
        return await self.call(
            address,
            RequestCode.CONTROLLER_REGISTER_BROKER,
            **common,
            brokerId=broker_id,
            brokerAddress=ADDRESSES[broker_id],
        )

    async def elect(self, address: str, broker_id: int, *, designate: bool = False) -> RemotingCommand:
        return await self.call(
            address,
            RequestCode.CONTROLLER_ELECT_MASTER,
            clusterName="C",
            brokerName=GROUP,
            brokerId=broker_id,
            designateElect="true" if designate else "false",
        )

    async def alter(
        self, address: str, master: int, epoch: int, members: list[int], set_epoch: int, **ext: object
    ) -> RemotingCommand:
        body = json.dumps({"syncStateSet": members, "syncStateSetEpoch": set_epoch}).encode()
        return await self.call(
            address,
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            body,
            brokerName=GROUP,
            masterBrokerId=master,
            masterEpoch=epoch,
            **ext,
        )

    async def info(self, address: str) -> RemotingCommand:
        return await self.call(address, RequestCode.CONTROLLER_GET_REPLICA_INFO, brokerName=GROUP)


@asynccontextmanager
async def tool() -> AsyncIterator[Tool]:
    client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    try:
        yield Tool(client)
    finally:
        await client.close()


@asynccontextmanager
async def quorum(directory: Path, count: int = 3, **settings: Any) -> AsyncIterator[list[Controller]]:
    async with AsyncExitStack() as stack:
        controllers = [
            await stack.enter_async_context(Controller(config))
            for config in configs(directory, count, **settings)
        ]
        await leader_of(controllers)
        yield controllers


async def leader_of(controllers: list[Controller]) -> Controller:
    def leading() -> list[Controller]:
        return [each for each in controllers if each.status.is_serving]

    await wait_until(lambda: bool(leading()), timeout_s=60)
    return leading()[0]
