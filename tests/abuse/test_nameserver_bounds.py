"""What one peer may make a NameServer keep: at a bound it gets a clear error, the log a warning, other peers nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aerobee.nameserver import NameServer
from aerobee.nameserver.config import NameServerConfig
from aerobee.remoting.body.data_version import DataVersion
from aerobee.remoting.body.register_broker import RegisterBrokerBody
from aerobee.remoting.body.topic_config import TopicConfig, TopicConfigSerializeWrapper
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.command import RemotingCommand
from tests.abuse.untrusted_peer import UntrustedPeer
from tests.loops import event_loop_policy  # noqa: F401

REGISTER, UNREGISTER, PUT_KV, GET_KV, DELETE_KV, LIST_KV, REGISTER_TOPIC, ROUTE = (
    103,
    104,
    100,
    101,
    102,
    219,
    217,
    105,
)
BOUNDS = NameServerConfig(
    listen_port=0,
    bind_address="127.0.0.1",
    registered_broker_nums_max=3,
    broker_group_members_max=2,
    broker_address_nums_max=2,
    broker_topic_nums_max=5,
    route_entry_nums_max=9,
    kv_config_keys_max=4,
    kv_config_bytes_max=100,
)


async def register(
    peer: UntrustedPeer,
    name: str,
    *topics: str,
    port: int = 10911,
    broker_id: int = 0,
    version: int = 1,
    **more: str,
) -> RemotingCommand:
    wrapper = TopicConfigSerializeWrapper(
        {topic: TopicConfig(topic, 1, 1) for topic in topics}, DataVersion(0, 1, version)
    )
    ext = {"clusterName": "c", "brokerName": name, "brokerAddr": f"127.0.0.1:{port}", "brokerId": str(broker_id),
           "haServerAddr": "127.0.0.1:10912", **more}  # fmt: skip
    return await peer.call(REGISTER, ext, RegisterBrokerBody(wrapper).encode())


def assert_refused(reply: RemotingCommand, key: str, caplog: pytest.LogCaptureFixture) -> None:
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert f"({key})" in (reply.remark or "")
    assert any(f"({key})" in record.getMessage() for record in caplog.records), "the operator gets a warning"


async def test_a_broker_with_too_many_topics_keeps_those_that_it_has(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        NameServer(BOUNDS) as server,
        UntrustedPeer(server.address) as good,
        UntrustedPeer(server.address) as bad,
    ):
        assert (await register(good, "good", "mine", "ours", port=1)).code == 0
        assert (await register(bad, "bad", "a", "b", "c", port=2)).code == 0
        seen_ms = server.table.live["c", "127.0.0.1:2"].last_seen_ms
        assert_refused(await register(bad, "bad", *"abcdef", port=2, version=2), "brokerTopicNumsMax", caplog)
        assert {topic for topic in "abcdef" if topic in server.table.topics} == {"a", "b", "c"}
        assert server.table.live["c", "127.0.0.1:2"].last_seen_ms >= seen_ms, "it counts as alive"
        assert (await register(bad, "bad", *"abcde", port=2, version=3)).code == 0, (
            "up to the bound it is taken"
        )
        assert (await register(good, "good", "mine", "ours", "more", port=1, version=2)).code == 0
        assert server.table.entry_count == 8
        assert_refused(
            await register(good, "good", "mine", "ours", "more", "x", "y", port=1, version=3),
            "routeEntryNumsMax",
            caplog,
        )
        assert (await good.call(ROUTE, {"topic": "more"})).code == 0
        # A removed broker frees space.
        gone = {"clusterName": "c", "brokerName": "bad", "brokerAddr": "127.0.0.1:2", "brokerId": "0"}
        assert (await bad.call(UNREGISTER, gone)).code == 0
        assert server.table.entry_count == 3
        assert (await register(good, "good", "mine", "ours", "more", "x", "y", port=1, version=4)).code == 0


async def test_brokers_processes_and_addresses_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    async with NameServer(BOUNDS) as server, UntrustedPeer(server.address) as peer:
        assert (await register(peer, "one", "a", "b", port=1)).code == 0
        assert (await register(peer, "one", "a", "b", port=2, broker_id=1)).code == 0
        assert_refused(
            await register(peer, "one", "a", "b", port=3, broker_id=2), "brokerGroupMembersMax", caplog
        )
        assert (await register(peer, "two", "a", "b", port=4)).code == 0
        assert_refused(await register(peer, "three", "a", "b", port=5), "registeredBrokerNumsMax", caplog)
        many = ",".join(f"name{number}=h:{number + 1}" for number in range(3))
        assert_refused(
            await register(peer, "two", "a", "b", port=4, aerobeeListeners=many),
            "brokerAddressNumsMax",
            caplog,
        )
        assert (await register(peer, "one", "a", "b", port=1, version=2)).code == 0, (
            "a known broker continues"
        )
        assert server.bounds.reached_count == 3


@pytest.mark.parametrize("field", ["clusterName", "brokerName", "brokerAddr", "__ZONE_NAME"])
async def test_names_have_a_length(field: str) -> None:
    async with NameServer(BOUNDS) as server, UntrustedPeer(server.address) as peer:
        text = "x" * 400 + ":1" if field == "brokerAddr" else "x" * 400
        reply = await register(peer, "one", "a", "b", **{field: text})
        assert reply.code != 0
        assert not server.table.live


async def test_topics_by_hand_are_counted_with_those_of_their_broker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with NameServer(BOUNDS) as server, UntrustedPeer(server.address) as peer:
        assert (await register(peer, "one", *"abcd")).code == 0
        body = json.dumps(
            {"queueDatas": [{"brokerName": "one", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}]}
        )
        assert (await peer.call(REGISTER_TOPIC, {"topic": "e"}, body.encode())).code == 0
        assert (await peer.call(REGISTER_TOPIC, {"topic": "e"}, body.encode())).code == 0
        assert_refused(
            await peer.call(REGISTER_TOPIC, {"topic": "f"}, body.encode()), "brokerTopicNumsMax", caplog
        )


async def test_the_kv_configuration_has_a_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "kvConfig.json"
    async with NameServer(BOUNDS) as memory, UntrustedPeer(memory.address) as peer:

        async def put(key: str, value: str, namespace: str = "n") -> RemotingCommand:
            return await peer.call(PUT_KV, {"namespace": namespace, "key": key, "value": value})

        for key in "abc":
            assert (await put(key, "v")).code == 0
        assert_refused(await put("d", "v"), "kvConfigKeysMax", caplog)
        assert_refused(await put("k", "v", namespace="other"), "kvConfigKeysMax", caplog)
        assert (await put("a", "w" * 50)).code == 0, "an existing value may change"
        assert_refused(await put("b", "é" * 40), "kvConfigBytesMax", caplog)
        assert (await peer.call(GET_KV, {"namespace": "n", "key": "b"})).ext == {"value": "v"}
        assert (await peer.call(DELETE_KV, {"namespace": "n", "key": "c"})).code == 0
        assert (await put("d", "v")).code == 0
    # A file that is larger than a bound that was set later is served, and may shrink.
    path.write_text(json.dumps({"configTable": {"n": dict.fromkeys("abcdef", "v" * 50)}}))
    late = NameServerConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        kv_config_path=str(path),
        kv_config_keys_max=4,
        kv_config_bytes_max=100,
    )
    async with NameServer(late) as server, UntrustedPeer(server.address) as peer:
        assert (await peer.call(GET_KV, {"namespace": "n", "key": "f"})).code == 0
        assert (await peer.call(PUT_KV, {"namespace": "n", "key": "f", "value": "v"})).code == 0
        assert_refused(
            await peer.call(PUT_KV, {"namespace": "n", "key": "f", "value": "vv"}), "kvConfigKeysMax", caplog
        )
