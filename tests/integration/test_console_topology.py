"""The console's topology: NameServers, controllers, roles and in-sync sets, and the changes from there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from aerobee import Message
from aerobee.broker.state.role import Role
from aerobee.client import ConsumeFrom, ConsumerConfig, PushConsumer, ReceivedMessage, reject
from aerobee.clock import SystemClock
from aerobee.console import snapshot as console_snapshot
from aerobee.console import topology as console_topology
from aerobee.console.config import ConsoleConfig
from aerobee.console.server import ConsoleServer
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.testing import LocalCluster
from tests.integration.console_server import console
from tests.integration.controller_group import SYNC, Group
from tests.integration.test_console import act
from tests.waiting import wait_until


async def topology(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with session.get(f"{url}api/topology") as answer:
        document: dict[str, Any] = await answer.json()
        assert answer.status == 200, document
        return document


@asynccontextmanager
async def elected(path: Path) -> AsyncIterator[Group]:
    client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    async with AsyncExitStack() as stack:
        group = Group(path, client, stack)
        await group.begin()
        for name in "ab":
            await group.start(name, store=SYNC)
        await wait_until(lambda: group.members() == {1, 2}, timeout_s=60)
        yield group
        await group.stop()
        await client.close()


async def test_an_election_from_the_topology_and_what_is_wrong_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_topology, "FRESH_S", 0.0)
    async with elected(tmp_path) as group, AsyncExitStack() as stack:
        server = ConsoleServer(ConsoleConfig(nameserver=group.nameserver.address, port=0, refresh_s=0.2))
        await server.start()
        stack.push_async_callback(server.stop)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        found: dict[str, Any] = {}

        async def is_whole() -> bool:
            nonlocal found
            found = await topology(session, server.url)
            rows = [row for each in found["groups"] for row in each["brokers"]]
            return [row["role"] for row in rows] == ["master", "slave"] and not any(
                row["trouble"] for row in rows
            )

        await wait_until(is_whole, timeout_s=60)
        (nameserver,), (quorum,), (brokers,) = found["nameservers"], found["controllers"], found["groups"]
        assert (nameserver["address"], nameserver["brokers"], nameserver["trouble"]) == (
            group.nameserver.address,
            2,
            "",
        )
        assert (quorum["leader"], quorum["trouble"]) == ("n0", "")
        assert [each["role"] for each in quorum["members"]] == ["leader"]
        assert (brokers["name"], brokers["trouble"]) == ("broker-g", "")
        assert [(row["controller_id"], row["is_in_sync"], row["epoch"]) for row in brokers["brokers"]] == [
            (1, True, 1),
            (2, True, 1),
        ]
        fields = {"broker": "broker-g", "id": 2}
        status, answer = await act(session, server.url, "elect", {**fields, "dry_run": True})
        assert (status, answer["command"].split(" --controller ")[0]) == (200, "aerobee ha elect broker-g 2")
        assert group.brokers["a"].role.role is Role.MASTER
        status, answer = await act(session, server.url, "elect", fields)
        assert (status, answer["text"]) == (200, f"{group.brokers['b'].address} is master of broker-g")
        await wait_until(lambda: group.brokers["b"].role.role is Role.MASTER, timeout_s=60)
        await group.brokers["a"].kill()

        async def is_noticed() -> bool:
            rows = [
                row for each in (await topology(session, server.url))["groups"] for row in each["brokers"]
            ]
            return any(row["trouble"] for row in rows if row["address"] == group.brokers["a"].address)

        await wait_until(is_noticed, timeout_s=120)


async def test_a_group_is_made_read_only_and_writable_again(cluster: LocalCluster) -> None:
    broker = cluster.broker()
    name = broker.config.broker_name
    async with console(cluster) as server, aiohttp.ClientSession() as session:
        found = await topology(session, server.url)
        assert (found["controllers"], [each["trouble"] for each in found["groups"]]) == ([], [""])
        status, answer = await act(session, server.url, "read-only", {"broker": name, "dry_run": True})
        assert (status, answer["command"].startswith(f"aerobee cluster drain {name} --yes")) == (200, True)
        assert (await act(session, server.url, "read-only", {"broker": name}))[0] == 200
        async with cluster.admin() as admin:
            assert (await admin.broker_config(broker.address))["brokerPermission"] == "4"
            assert (await act(session, server.url, "writable", {"broker": name}))[0] == 200
            assert (await admin.broker_config(broker.address))["brokerPermission"] == "6"
        for action in ("read-only", "writable"):
            status, answer = await act(session, server.url, action, {"broker": "absent"})
            assert (status, answer["error"]) == (400, "the cluster has no broker group 'absent'")
        status, answer = await act(session, server.url, "elect", {"broker": name, "id": 2})
        assert (status, "no broker is in controller mode" in answer["error"]) == (400, True)


async def test_a_nameserver_that_does_not_answer_is_named(cluster: LocalCluster) -> None:
    addresses = f"{cluster.nameserver_address};127.0.0.1:1"
    server = ConsoleServer(ConsoleConfig(nameserver=addresses, port=0, refresh_s=0.2))
    await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            rows = {each["address"]: each for each in (await topology(session, server.url))["nameservers"]}
            assert rows[cluster.nameserver_address]["trouble"] == ""
            assert rows["127.0.0.1:1"]["brokers"] is None
            assert "127.0.0.1:1" in rows["127.0.0.1:1"]["trouble"]
    finally:
        await server.stop()


async def test_the_overview_counts_dead_letters(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_snapshot, "DEAD_LETTERS_S", 0.0)
    refused: list[str] = []

    async def refuse(message: ReceivedMessage) -> None:
        refused.append(message.message_id)
        raise reject("it is refused")

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    async with cluster.producer() as producer:
        await producer.send(Message("orders", b"dead"))
    async with PushConsumer(
        cluster.nameserver_address, "billing", subscriptions={"orders": "*"}, handler=refuse, config=config
    ):
        await wait_until(lambda: refused, timeout_s=60)
    async with console(cluster) as server, aiohttp.ClientSession() as session:

        async def is_counted() -> bool:
            async with session.get(f"{server.url}api/overview") as answer:
                document = await answer.json()
            return document["dead_letters"] == 1 and [
                (each["what"], each["name"]) for each in document["problems"]
            ] == [("Dead letters", "billing")]

        await wait_until(is_counted, timeout_s=60)
