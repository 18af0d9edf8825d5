"""A broker and a NameServer with access control, and clients of its users."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aerobee import Message, Producer
from aerobee.access.config import AccessConfig
from aerobee.broker.assembly.broker import Broker
from aerobee.broker.state.config import BrokerConfig
from aerobee.client.base.config import ClientConfig
from aerobee.clock import SystemClock
from aerobee.errors import AerobeeError
from aerobee.nameserver.config import NameServerConfig
from aerobee.nameserver.server import NameServer
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.signature import Credentials
from aerobee.store.files.config import StoreConfig

USERS = AccessConfig(
    authentication_enabled=True,
    authorization_enabled=True,
    init_authentication_user='{"username":"root","password":"rootsecret"}',
    inner_client_authentication_credentials='{"accessKey":"inner","secretKey":"innersecret"}',
)


class Cluster:
    """One NameServer, one broker, both with access control."""

    def __init__(self, root: Path, access: AccessConfig, settings_path: str | None = None) -> None:
        self.access = access
        self.settings_path = settings_path
        self.root = root
        self.server: NameServer
        self.broker: Broker

    async def start(self) -> None:
        config = NameServerConfig(
            listen_port=0, bind_address="127.0.0.1", kv_config_path=str(self.root / "ns" / "kvConfig.json")
        )
        self.server = NameServer(config, access=self.access, settings_path=self.settings_path)
        await self.server.start()
        await self.start_broker()

    async def start_broker(self) -> None:
        config = BrokerConfig(
            listen_port=0,
            bind_address="127.0.0.1",
            broker_ip1="127.0.0.1",
            broker_name="broker-a",
            namesrv_addr=self.server.address,
        )
        store = StoreConfig(store_path_root_dir=str(self.root / "store"), mapped_file_size_commit_log=1 << 20)
        self.broker = Broker(config, store, access=self.access, settings_path=self.settings_path)
        await self.broker.start()

    async def stop(self) -> None:
        await self.broker.stop()
        await self.server.stop()


@asynccontextmanager
async def running(cluster: Cluster) -> AsyncIterator[Cluster]:
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


def client(user: str = "", secret: str = "") -> ClientConfig:
    return ClientConfig(access_key=user, secret_key=secret or f"{user}secret" if user else "")


async def sent(cluster: Cluster, topic: str, config: ClientConfig) -> str:
    """ "" for a message that was stored, else what the client says."""
    try:
        async with Producer(cluster.server.address, client=config) as producer:
            await producer.send(Message(topic, b"x"))
    except AerobeeError as error:
        return str(error)
    return ""


async def asked(
    address: str, code: int, ext: dict[str, str], body: Any = None, keys: Credentials | None = None
) -> RemotingCommand:
    remoting = RemotingClient(clock=SystemClock(), network=AsyncioNetwork(), credentials=keys)
    try:
        data = b"" if body is None else json.dumps(body).encode()
        return await remoting.invoke(address, RemotingCommand(code, ext, data), timeout_s=60)
    finally:
        await remoting.close()


ROOT = Credentials("root", "rootsecret")


async def make_consumer(cluster: Cluster, name: str) -> None:
    """A user who may read orders as the group of his name, at the broker."""
    address = cluster.broker.address
    body = {"username": name, "password": f"{name}secret", "userType": "Normal"}
    made = await asked(address, RequestCode.AUTH_CREATE_USER, {"username": name}, body, ROOT)
    assert made.code == 0, made.remark
    entries = [
        {"resource": each, "actions": ["Sub"], "decision": "Allow"}
        for each in ("Topic:orders", f"Group:{name}")
    ]
    policy = {"subject": f"User:{name}", "policies": [{"policyType": "Custom", "entries": entries}]}
    given = await asked(address, RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, policy, ROOT)
    assert given.code == 0, given.remark
