"""A broker whose second or HA port another process has for a moment serves at it later."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.clock import SystemClock
from aerobee.errors import ConfigError
from aerobee.nameserver.config import NameServerConfig
from aerobee.nameserver.server import NameServer
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from tests.integration.broker_calls import make_broker, send_request
from tests.integration.replica_pair import SLAVE, Pair, figures, same
from tests.ports import free_broker_port
from tests.waiting import wait_until


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    pair = Pair(tmp_path, client)
    yield pair
    for broker in reversed(pair.brokers):
        await broker.stop()
    await client.close()


async def test_a_slave_follows_once_the_masters_ha_port_is_free(pair: Pair) -> None:
    config = NameServerConfig(listen_port=0, bind_address="127.0.0.1")
    port = free_broker_port()
    async with NameServer(config) as nameserver:
        with socket.create_server(("127.0.0.1", port + 1)):
            master = await pair.start("master", listen_port=port, namesrv_addr=nameserver.address)
            assert (await figures(pair, master))["portsNotBound"] == (
                f"{port + 1}, where slaves connect: Address already in use"
            )
            assert master.identity.ha_address == f"127.0.0.1:{port + 1}"
            await pair.send(master, 5)
            slave = await pair.start("slave", store=SLAVE, broker_id=1, namesrv_addr=nameserver.address)
            await wait_until(lambda: slave.replication.master is not None)
        await same(master, slave)
        assert (await figures(pair, master))["portsNotBound"] == ""


async def test_the_second_port_serves_once_it_is_free(pair: Pair) -> None:
    port = free_broker_port()
    second = f"127.0.0.1:{port - 2}"
    with socket.create_server(("127.0.0.1", port - 2)):
        broker = await pair.start("broker", listen_port=port, enable_vip_listener=None)
        assert (await figures(pair, broker))["portsNotBound"].startswith(
            f"{port - 2}, for clients before 4.5"
        )

    async def is_bound() -> bool:
        return (await figures(pair, broker))["portsNotBound"] == ""

    await wait_until(is_bound)
    assert (await pair.client.invoke(second, send_request("BenchmarkTest"), timeout_s=60)).code == 0


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_stopped_broker_binds_no_missing_port(tmp_path: Path, how: str) -> None:
    port = free_broker_port()
    holders = [socket.create_server(("127.0.0.1", each)) for each in (port - 2, port + 1)]
    broker = make_broker(tmp_path, listen_port=port, enable_vip_listener=None)
    try:
        await broker.start()
        await getattr(broker, how)()
    finally:
        for holder in holders:
            holder.close()
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("bind-")] == []
    for each in (port - 2, port + 1):
        socket.create_server(("127.0.0.1", each)).close()


@pytest.mark.parametrize("fields", [{"ha_listen_port": True}, {"broker_role": "SYNC_MASTER"}, SLAVE])
async def test_a_required_ha_port_in_use_fails_the_start(tmp_path: Path, fields: dict[str, object]) -> None:
    port = free_broker_port()
    store = {**fields, "ha_listen_port": port + 1} if "ha_listen_port" in fields else dict(fields)
    broker_id = 1 if fields == SLAVE else 0
    with closing(socket.create_server(("127.0.0.1", port + 1))):
        broker = make_broker(tmp_path, store=store, listen_port=port, broker_id=broker_id)
        with pytest.raises(OSError, match="already in use"):
            await broker.start()


async def test_a_main_port_without_a_port_above_it_needs_ha_listen_port(tmp_path: Path) -> None:
    broker: Broker = make_broker(tmp_path, listen_port=65_535)
    with pytest.raises(ConfigError, match="would be 65536: set haListenPort"):
        await broker.start()
