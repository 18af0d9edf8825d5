"""A broker and its nameservers: registration at start, on change, after a loss, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee.broker.state.config import BrokerConfig
from aerobee.clock import SystemClock
from aerobee.errors import ConfigError
from aerobee.nameserver.config import NameServerConfig
from aerobee.nameserver.server import NameServer
from aerobee.network import AsyncioNetwork
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.command import RemotingCommand
from aerobee.testing.local_cluster import LocalCluster
from tests.integration.broker_calls import make_broker, send_request
from tests.ports import free_port
from tests.waiting import wait_until


async def start_nameserver(path: Path, port: int = 0) -> NameServer:
    server = NameServer(
        NameServerConfig(
            listen_port=port or free_port(),
            bind_address="127.0.0.1",
            kv_config_path=str(path / "kvConfig.json"),
            shutdown_wait_time_seconds=0,
        )
    )
    await server.start()
    return server


@pytest.fixture
async def nameserver(tmp_path: Path) -> AsyncIterator[NameServer]:
    server = await start_nameserver(tmp_path)
    yield server
    await server.stop()


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    yield client
    await client.close()


async def test_a_started_broker_is_routed_to_and_a_stopped_one_is_not(
    tmp_path: Path, nameserver: NameServer
) -> None:
    broker = make_broker(tmp_path / "store", namesrv_addr=nameserver.address)
    await broker.start()
    assert "broker-a" in nameserver.table.topics["TBW102"]
    assert set(broker.topics.topics) == set(nameserver.table.topics)
    await broker.stop()
    assert "broker-a" not in nameserver.table.topics.get("TBW102", {})


async def test_a_new_topic_is_routed_at_once(
    tmp_path: Path, nameserver: NameServer, client: RemotingClient
) -> None:
    broker = make_broker(tmp_path / "store", namesrv_addr=nameserver.address)
    await broker.start()
    try:
        assert (await client.invoke(broker.address, send_request("TopicAuto"))).code == 0
        await wait_until(lambda: "TopicAuto" in nameserver.table.topics, "the created topic is routed")
        broker.topics.put(TopicConfig("TopicAuto", 7, 7))
        await broker.registration.settled()
        assert nameserver.table.topics["TopicAuto"]["broker-a"].read_queue_count == 7
    finally:
        await broker.stop()


async def test_nameservers_that_are_down_do_not_block_and_are_told_when_they_are_back(tmp_path: Path) -> None:
    up = await start_nameserver(tmp_path / "up")
    down = await start_nameserver(tmp_path / "down")
    port = int(down.address.rpartition(":")[2])
    await down.stop()
    broker = make_broker(tmp_path / "store", namesrv_addr=f"{down.address};{up.address}")
    await broker.start()
    try:
        assert "TBW102" in up.table.topics
        assert list(broker.registration.failures) == [f"127.0.0.1:{port}"]
        back = await start_nameserver(tmp_path / "down", port)
        await wait_until(
            lambda: "TBW102" in back.table.topics, "the broker registered at the nameserver that came back"
        )
        await back.stop()
        again = await start_nameserver(tmp_path / "down", port)
        await wait_until(
            lambda: "TBW102" in again.table.topics, "a lost connection is a reason to register again"
        )
        await again.stop()
    finally:
        await broker.stop()
        await up.stop()


async def test_without_force_only_what_the_nameserver_does_not_know_is_sent(
    tmp_path: Path, nameserver: NameServer
) -> None:
    broker = make_broker(tmp_path / "store", namesrv_addr=nameserver.address, force_register=False)
    await broker.start()
    try:
        first = dict(broker.registration.registered_at_ms)
        assert list(first) == [nameserver.address]
        broker.registration.register_all()
        await broker.registration.settled()
        assert broker.registration.registered_at_ms == first
        broker.topics.put(TopicConfig("TopicNew", 2, 2))
        await broker.registration.settled()
        assert "TopicNew" in nameserver.table.topics
    finally:
        await broker.stop()


async def test_a_slave_registers_as_one(
    tmp_path: Path, nameserver: NameServer, client: RemotingClient
) -> None:
    master = make_broker(tmp_path / "master", namesrv_addr=nameserver.address)
    slave = make_broker(
        tmp_path / "slave", namesrv_addr=nameserver.address, broker_id=1, store={"broker_role": "SLAVE"}
    )
    await master.start()
    await slave.start()
    try:
        reply = await client.invoke(nameserver.address, RemotingCommand(106))
        assert master.address.encode() in reply.body
        assert slave.address.encode() in reply.body
        assert (await client.invoke(slave.address, send_request("BenchmarkTest"))).code == 14
    finally:
        await slave.stop()
        await master.stop()


async def test_named_listeners_are_advertised_each_to_its_own_clients(
    tmp_path: Path, nameserver: NameServer, client: RemotingClient
) -> None:
    broker = make_broker(
        tmp_path / "store",
        namesrv_addr=nameserver.address,
        listeners="internal://127.0.0.1:0,external://127.0.0.1:0",
        advertised_listeners="external://127.0.0.99:7000",
    )
    await broker.start()
    try:
        listeners = dict(broker.identity.listeners)
        assert broker.address == listeners["internal"]
        assert listeners["external"] == "127.0.0.99:7000"
        assert (await client.invoke(listeners["internal"], send_request("BenchmarkTest"))).code == 0
    finally:
        await broker.stop()


async def test_the_vip_port_serves_as_the_other_one(tmp_path: Path, client: RemotingClient) -> None:
    broker = make_broker(tmp_path / "store", enable_vip_listener=True)
    await broker.start()
    try:
        host, _, port = broker.address.rpartition(":")
        assert (await client.invoke(f"{host}:{int(port) - 2}", send_request("BenchmarkTest"))).code == 0
    finally:
        await broker.stop()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"broker_id": -1}, "brokerId is -1"),
        ({"listen_port": 70_000}, "listenPort is 70000"),
        ({"broker_name": "a b"}, "brokerName is 'a b'"),
        ({"namesrv_addr": "localhost"}, "namesrvAddr has 'localhost'"),
        ({"listeners": "internal//10"}, "listeners holds"),
        ({"listeners": "a://h:1,a://h:2"}, "twice"),
        ({"advertised_listeners": "b://h:1", "listeners": "a://h:1"}, "'b', which listeners does not have"),
        ({"broker_permission": 8}, "brokerPermission is 8"),
        ({"flush_consumer_offset_interval": 0}, "must be above 0"),
    ],
)
def test_wrong_settings_are_refused_with_key_value_and_reason(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BrokerConfig(**fields)  # type: ignore[arg-type]


async def test_a_broker_that_may_not_be_written_takes_the_write_bit_from_its_topics(
    tmp_path: Path, nameserver: NameServer
) -> None:
    broker = make_broker(tmp_path / "store", namesrv_addr=nameserver.address)
    await broker.start()
    try:
        broker.live.replace(broker_permission=4)
        await broker.registration.settled()
        assert nameserver.table.topics["BenchmarkTest"]["broker-a"].perm == 4
        assert broker.topics.topics["BenchmarkTest"].perm == 6
    finally:
        await broker.stop()


async def test_two_changed_topics_at_once_do_not_make_a_nameserver_forget_the_others():
    """What a broker tells of changes is no whole table, also where a nameserver deletes what a table lacks."""
    settings = {"deleteTopicWithBrokerRegistration": "true"}
    async with LocalCluster(nameserver_config=settings) as cluster:
        await cluster.create_topic("others")
        async with cluster.admin() as admin:
            await asyncio.gather(*(admin.create_topic(f"new-{number}") for number in range(8)))
            await wait_until(lambda: admin.topic_exists("new-7"))
            assert {"others", *(f"new-{number}" for number in range(8))} <= set(await admin.topics())
