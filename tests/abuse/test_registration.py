"""No topic, and no number of topics, keeps a broker's other topics from its nameservers."""

from __future__ import annotations

import asyncio
import json
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.membership.registration_parts import PART_BYTES_MAX, PART_TOPICS_MAX, parts_of
from aerobee.nameserver import NameServer, registration_calls
from aerobee.nameserver.config import NameServerConfig
from aerobee.remoting.body.data_version import DataVersion
from aerobee.remoting.body.heartbeat import ConsumerData, HeartbeatData
from aerobee.remoting.body.register_broker import RegisterBrokerBody
from aerobee.remoting.body.topic_config import TopicConfig, TopicConfigSerializeWrapper
from tests.abuse.nameserver_settings import SERVER
from tests.abuse.untrusted_peer import UntrustedPeer, broker_at
from tests.waiting import wait_until

BAD = ("a\nb", "a\x00b", "a b", "", "x" * 600)


def table_of(*names: str) -> dict[str, TopicConfig]:
    return {name: TopicConfig(name, 1, 1) for name in names}


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_bad_topic_of_a_registration_is_left_out_alone(compressed: bool) -> None:
    topics = {**table_of("good", "better", *BAD), "many": TopicConfig("many", 2**40, 1)}
    body = RegisterBrokerBody(TopicConfigSerializeWrapper(topics, DataVersion(0, 1, 1)))
    data = body.encode_compressed() if compressed else body.encode()
    ext = {"clusterName": "c", "brokerName": "b", "brokerAddr": "127.0.0.1:10911", "brokerId": "0",
           "haServerAddr": "127.0.0.1:10912", "compressed": str(compressed).lower(),
           "bodyCrc32": str(zlib.crc32(data) & 0x7FFFFFFF)}  # fmt: skip
    async with NameServer(SERVER) as server, UntrustedPeer(server.address) as peer:
        assert (await peer.call(103, ext, data)).code == 0
        assert set(server.table.topics) >= {"good", "better"}
        assert not set(server.table.topics) & {*BAD, "many"}


async def test_a_broker_with_a_bad_topic_registers_the_others(tmp_path: Path) -> None:
    async with NameServer(SERVER) as server, broker_at(tmp_path, namesrv_addr=server.address) as broker:
        # As an older version would have kept it.
        broker.topics.topics = {**broker.topics.topics, **table_of(*BAD)}
        broker.topics.put(TopicConfig("fine", 1, 1))
        broker.registration.register_all()
        await wait_until(lambda: "fine" in server.table.topics, "the good topic is registered")
        await broker.registration.settled()
        assert not broker.registration.failures
        assert not set(server.table.topics) & set(BAD)


async def test_tens_of_thousands_of_groups_do_not_empty_the_cluster(tmp_path: Path) -> None:
    async with NameServer(SERVER) as server, broker_at(tmp_path, namesrv_addr=server.address) as broker:
        count, beats = 5_000, 10  # clientGroupsMax is 1,000
        for beat in range(beats):
            groups = tuple(ConsumerData(f"{'g' * 100}-{beat}-{n}") for n in range(count // beats))
            async with UntrustedPeer(broker.address) as peer:
                assert (await peer.call(34, {}, HeartbeatData("c", (), groups).encode())).code == 0
        await broker.registration.settled(20)
        # A nameserver that is new takes the whole table.
        sizes: list[int] = []
        async with NameServer(SERVER) as other:
            calls = dict(other.handlers)[103]

            def note(connection: object, request: object) -> object:
                sizes.append(len(request.body))  # type: ignore[attr-defined]
                return calls(connection, request)  # type: ignore[arg-type]

            other._server._endpoint.handlers = {**other.handlers, 103: note}  # type: ignore[dict-item]
            broker.registration.set_nameservers([server.address, other.address])
            await wait_until(lambda: len(other.table.topics) > count, "all topics are registered")
            await wait_until(lambda: not broker.registration.failures, "registered")
            assert len(sizes) >= 3
            assert max(sizes) < 2 * PART_BYTES_MAX
            await asyncio.sleep(0)


def test_parts_hold_everything_once_and_end_with_the_version() -> None:
    version = DataVersion(0, 1_000, 7)
    for total in (0, 1, 2, 3, 2_000, 2_001, 4_001):
        table = table_of(*(f"t{n}" for n in range(total)))
        parts = parts_of(table, version)
        assert {name: config for part, _ in parts for name, config in part.items()} == table
        assert sum(len(part) for part, _ in parts) == total
        assert parts[-1][1] == version
        assert len({each for _, each in parts}) == len(parts)
        assert total < 2 or len(parts[0][0]) >= 2
        assert all(len(part) <= PART_TOPICS_MAX for part, _ in parts)
    wide = {f"t{n}": TopicConfig(f"t{n}", attributes={"x": "\x01" * 500_000}) for n in range(8)}
    for part, each in parts_of(wide, version):
        body = RegisterBrokerBody(TopicConfigSerializeWrapper(part, each)).encode()
        assert len(body) < 16 * 1024 * 1024
    assert [len(part) for part, _ in parts_of(table_of(*map(str, range(7))), version, 3)] == [3, 3, 1]


async def test_a_part_deletes_no_topics_of_the_other_parts() -> None:
    config = NameServerConfig(
        listen_port=0, bind_address="127.0.0.1", delete_topic_with_broker_registration=True
    )
    async with NameServer(config) as server, UntrustedPeer(server.address) as peer:
        parts = parts_of(table_of(*map(str, range(6))), DataVersion(0, 10, 1), 2)
        for part, version in parts:
            data = RegisterBrokerBody(TopicConfigSerializeWrapper(part, version)).encode()
            ext = {"clusterName": "c", "brokerName": "b", "brokerAddr": "127.0.0.1:10911", "brokerId": "0",
                   "haServerAddr": "", "aerobeePart": "true"}  # fmt: skip
            assert (await peer.call(103, ext, data)).code == 0
        assert set(server.table.topics) == set(map(str, range(6)))
        assert json.loads((await peer.call(206)).body)


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_large_table_is_not_read_in_the_event_loop_and_a_broker_that_left_is_not_registered(
    compressed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = table_of(*(f"topic-{n}" for n in range(2_000)))
    body = RegisterBrokerBody(TopicConfigSerializeWrapper(topics, DataVersion(0, 1, 1)))
    data = body.encode_compressed() if compressed else body.encode()
    ext = {"clusterName": "c", "brokerName": "b", "brokerAddr": "127.0.0.1:10911", "brokerId": "0",
           "haServerAddr": "", "compressed": str(compressed).lower()}  # fmt: skip
    decode = registration_calls.RegisterBrokerBody.decode
    read_by: list[threading.Thread] = []
    may_end = threading.Event()

    def slow(*args: Any, **kwargs: Any) -> RegisterBrokerBody:
        if threading.current_thread() is threading.main_thread():
            decode(*args, **kwargs)  # raises as soon as it is too long
        read_by.append(threading.current_thread())
        assert may_end.wait(120)
        return decode(*args, **kwargs)

    monkeypatch.setattr(registration_calls.RegisterBrokerBody, "decode", slow)
    async with NameServer(SERVER) as server:
        async with UntrustedPeer(server.address) as gone:
            gone.send(103, ext, data)
            await wait_until(lambda: bool(read_by), "the table is being read")
            async with UntrustedPeer(server.address) as other:
                assert (await other.call(106)).code == 0, "others are served meanwhile"
        await wait_until(lambda: server.connection_count == 0, "it left")
        may_end.set()
        async with UntrustedPeer(server.address) as peer:
            ext |= {"brokerName": "stays", "brokerAddr": "127.0.0.1:10921"}
            assert (await peer.call(103, ext, data)).code == 0
            assert len(server.table.topics["topic-1999"]) == 1
            assert "stays" in server.table.topics["topic-0"]
    assert threading.main_thread() not in read_by


async def test_a_registration_that_no_broker_writes_is_read_up_to_a_bound_only() -> None:
    text = b'{"filterServerList":["' + b"\\u0001" * (5 << 17) + b"\x01"  # broken at its end
    ext = {
        "clusterName": "c",
        "brokerName": "b",
        "brokerAddr": "127.0.0.1:10911",
        "brokerId": "0",
        "haServerAddr": "",
    }
    async with NameServer(SERVER) as server, UntrustedPeer(server.address) as peer:
        long = await peer.call(103, ext, text + bytes(1 << 21))
        assert long.code != 0
        assert "not standard JSON" in str(long.remark)
