"""Failover where every peer authenticates: clients by their keys, controllers and brokers by theirs, replicas at the HA port."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.state.config import BrokerConfig
from aerobee.broker.state.role import Role
from aerobee.client import Admin, Producer
from aerobee.clock import SystemClock
from aerobee.errors import AerobeeError, NoPermission
from aerobee.ha.controller.controller import Controller
from aerobee.message import Message
from aerobee.nameserver.config import NameServerConfig
from aerobee.nameserver.server import NameServer
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.signature import Credentials
from aerobee.store.files.config import StoreConfig
from tests.integration.access_cluster import USERS, client
from tests.integration.broker_calls import STORE, pull_request, records_of
from tests.integration.controller_quorum import configs, leader_of
from tests.waiting import wait_until

KEY = "a key of sixteen or more"
TOPIC = "orders"


async def sent(producer: Producer, body: bytes) -> None:
    """Until it is taken: without a leader, sends fail."""
    async with asyncio.timeout(120):
        while True:
            try:
                await producer.send(Message(TOPIC, body))
            except NoPermission:
                raise
            except AerobeeError:
                await asyncio.sleep(0.05)
            else:
                return


async def ha_status(controller: str, **keys: str) -> tuple[int, dict[str, Any]]:
    """Exit code and answer of `aerobee ha status`, with these keys in its environment."""
    environment = {f"AEROBEE_{name.upper()}": value for name, value in keys.items()}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aerobee.ops", "ha", "status", "--json", "-a", controller),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, json.loads(output)


async def test_a_group_with_access_control_fails_over(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            NameServer(
                NameServerConfig(
                    listen_port=0,
                    bind_address="127.0.0.1",
                    kv_config_path=str(tmp_path / "ns" / "kvConfig.json"),
                ),
                access=USERS,
            )
        )
        inner = USERS.inner_client_authentication_credentials
        controllers = [
            await stack.enter_async_context(
                Controller(
                    replace(
                        config, authentication_enabled=True, inner_client_authentication_credentials=inner
                    )
                )
            )
            for config in configs(tmp_path / "controllers", 3)
        ]
        leader = await leader_of(controllers)
        brokers = []
        for name in ("a", "b"):
            broker = Broker(
                BrokerConfig(
                    broker_name="broker-g",
                    bind_address="127.0.0.1",
                    broker_ip1="127.0.0.1",
                    listen_port=0,
                    enable_controller_mode=True,
                    controller_addr=";".join(each.address for each in controllers),
                    namesrv_addr=server.address,
                ),
                StoreConfig(
                    store_path_root_dir=str(tmp_path / name),
                    **{**STORE, "ha_shared_key": KEY, "all_ack_in_sync_state_set": True},
                ),
                access=USERS,
            )
            await broker.start()
            stack.push_async_callback(broker.stop)
            brokers.append(broker)
        first, second = brokers

        def in_sync() -> int:
            leading = next(each for each in controllers if each.status.is_serving)
            return len(leading.state.groups["broker-g"].in_sync)

        await wait_until(lambda: in_sync() == 2, "both in sync", timeout_s=120)
        assert (first.role.role, second.role.role) == (Role.MASTER, Role.SLAVE)
        async with Admin(server.address, client=client("root")) as admin:
            await admin.create_topic(TOPIC, queue_count=1)
            await admin.create_user("alice", "alicesecret")
            await admin.put_policy("alice", [f"Topic:{TOPIC}"], ["Pub"], is_allowed=True)
        producer = await stack.enter_async_context(Producer(server.address, client=client("alice")))
        bodies = [b"%d" % number for number in range(20)]
        for body in bodies[:10]:
            await sent(producer, body)
        # The controllers refuse requests without a key, and the command line signs with those of its environment.
        code, said = await ha_status(leader.address)
        assert (code, "not signed" in said["error"]["message"]) == (5, True), said
        code, said = await ha_status(leader.address, access_key="inner", secret_key="innersecret")
        assert (code, len(said["broker_groups"][0]["brokers"])) == (0, 2), said

        await first.kill()
        await wait_until(lambda: second.role.role is Role.MASTER, "the other one leads", timeout_s=120)
        for body in bodies[10:]:
            await sent(producer, body)
        root = RemotingClient(
            clock=SystemClock(), network=AsyncioNetwork(), credentials=Credentials("root", "rootsecret")
        )
        stack.push_async_callback(root.close)
        stored: list[bytes] = []

        async def all_are_there() -> bool:
            answer = await root.invoke(second.address, pull_request(TOPIC))
            stored[:] = [record.body for record in records_of(answer)] if answer.code == 0 else []
            return set(bodies) <= set(stored)

        await wait_until(all_are_there, "every message at the new master", timeout_s=60)
        assert stored[:10] == bodies[:10]
        # The new master checks permissions, too.
        async with Producer(server.address, client=client("alice")) as other:
            with pytest.raises(NoPermission, match="no permission to access Topic:bills"):
                await other.send(Message("bills", b"x"))
        async with Producer(server.address, client=client("alice", "wrong")) as peer:
            with pytest.raises(NoPermission):
                await peer.send(Message(TOPIC, b"x"))
