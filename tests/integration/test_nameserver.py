"""A NameServer behind a real socket: captured conversations played again, then what no capture holds."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee.clock import AdvancingClock
from aerobee.errors import StoreError
from aerobee.nameserver.config import NameServerConfig
from aerobee.nameserver.server import NameServer
from aerobee.network import AsyncioNetwork
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import decode_frame, encode_frame
from tests.unit.nameserver.capture import Captured, load, pairs
from tests.waiting import wait_until


class Peer:
    """A plain socket that speaks frames, so that answers are seen as they are on the wire."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._opaque = 1_000

    async def call(self, code: int, body: bytes = b"", *, version: int = 513, **ext: str) -> RemotingCommand:
        self._opaque += 1
        request = RemotingCommand(code, ext or None, body, opaque=self._opaque, version=version)
        return await self.exchange(encode_frame(request))

    async def exchange(self, frame: bytes) -> RemotingCommand:
        self.writer.write(frame)
        return decode_frame(await self.read_frame())

    async def read_frame(self) -> bytes:
        async with asyncio.timeout(60):
            head = await self.reader.readexactly(4)
            return head + await self.reader.readexactly(struct.unpack(">I", head)[0])

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Peer]:
    host, _, port = address.rpartition(":")
    peer = Peer(*await asyncio.open_connection(host, int(port)))
    try:
        yield peer
    finally:
        await peer.close()


@asynccontextmanager
async def serving(clock: AdvancingClock | None = None, **settings: Any) -> AsyncIterator[NameServer]:
    settings.setdefault("listen_port", 0)
    settings.setdefault("bind_address", "127.0.0.1")
    config = NameServerConfig(**settings)
    server = NameServer(config, clock=clock or AdvancingClock(), network=AsyncioNetwork())
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


REGISTRATION = {
    "brokerName": "broker-a",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "C",
    "haServerAddr": "10.0.0.1:10912",
    "brokerId": "0",
}


def registration_body(*topics: str, counter: int = 1) -> bytes:
    table = {name: {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for name in topics}
    version = {"counter": counter, "stateVersion": 0, "timestamp": 1}
    wrapper = {"topicConfigTable": table, "dataVersion": version}
    return json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}).encode()


async def same_answer(peer: Peer, request: Captured, expected: Captured) -> None:
    """Send a captured frame; the answer must mean what the captured answer meant."""
    reply = await peer.exchange(request.frame)
    frame_name = f"request {request.code} opaque {request.opaque} ({request.label})"
    assert (reply.code, reply.opaque) == (expected.code, expected.opaque), frame_name
    assert (reply.ext or {}) == expected.ext, frame_name
    assert reply.body == expected.body, frame_name
    if expected.code == 17:
        assert expected.header is not None
        assert reply.remark == expected.header["remark"]


@pytest.mark.parametrize("name", ["broker-register", "broker-register-needless"])
async def test_a_captured_broker_gets_the_captured_answers(name: str) -> None:
    async with serving() as server, connected(server.address) as peer:
        for request, reply in pairs(load(name)):
            assert reply is not None
            await same_answer(peer, request, reply)


async def test_the_captured_compressed_registration_and_its_route(tmp_path: Path) -> None:
    # That nameserver had used and emptied the namespace of order configurations.
    kv_path = tmp_path / "kvConfig.json"
    kv_path.write_text('{"configTable":{"ORDER_TOPIC_CONFIG":{}}}')
    async with (
        serving(kv_config_path=str(kv_path)) as server,
        connected(server.address) as peer,
    ):
        for request, reply in pairs(load("broker-register-compressed")):
            assert reply is not None
            await same_answer(peer, request, reply)


async def test_a_broker_whose_header_denies_compression_is_accepted() -> None:
    async with serving() as server, connected(server.address) as peer:
        request = next(f for f in load("broker-register-compressed-broken") if f.code == 103)
        assert (await peer.exchange(request.frame)).code == 0
        assert (await peer.call(105, topic="TBW102")).code == 0


async def test_a_binary_registration_is_answered_in_binary() -> None:
    async with serving() as server, connected(server.address) as peer:
        request = next(f for f in load("binary-broker-register") if f.code == 103)
        assert request.frame[4] == 1
        peer.writer.write(request.frame)
        frame = await peer.read_frame()
        assert frame[4] == 1
        assert decode_frame(frame).code == 0


@pytest.mark.parametrize("name", ["broker-acting-master", "broker-acting-master-904"])
async def test_a_captured_acting_master_group_gets_the_captured_answers(name: str) -> None:
    """Each captured connection is one here. The master is killed where its slave was notified so (905)."""
    frames = load(name)
    replies = {(f.conn, f.opaque): f for f in frames if f.reply}
    peers: dict[int, Peer] = {}
    masters: set[int] = set()
    compared = 0
    async with serving(support_acting_master=True) as server, AsyncExitStack() as stack:
        for index, frame in enumerate(frames):
            if frame.code == 905 and "offlineBrokerAddr" in frame.ext:
                for conn in masters:
                    await peers.pop(conn).close()
                masters.clear()
                await wait_until(lambda: len(server.table.live) == 1)
            if frame.reply or not frame.tap.startswith("ns"):
                continue
            if frame.conn not in peers:
                peers[frame.conn] = await stack.enter_async_context(connected(server.address))
                if frame.tap == "ns-master":
                    masters.add(frame.conn)
            if frame.oneway:
                peers[frame.conn].writer.write(frame.frame)
                continue
            reply = await peers[frame.conn].exchange(frame.frame)
            expected = replies.get((frame.conn, frame.opaque))
            if expected is not None and _settled(frames, index):
                frame_name = f"{frame.code} opaque {frame.opaque} ({frame.label})"
                assert (reply.code, reply.body) == (expected.code, expected.body), frame_name
                assert frame.code != 103 or (reply.ext or {}) == expected.ext, frame_name
                compared += 1
    assert compared > 80


def _settled(frames: list[Captured], index: int) -> bool:
    """No other request that changes the table was under way near this one: it may be answered before or after."""
    frame = frames[index]
    return not any(
        other is not frame and other.code in (103, 104, 905) and abs(other.t_ms - frame.t_ms) < 700
        for other in frames
        if not other.reply
    )


async def test_every_list_and_table_of_a_registered_broker() -> None:
    async with serving() as server, connected(server.address) as peer:
        await peer.call(103, registration_body("orders", "TBW102"), **REGISTRATION)
        assert json.loads((await peer.call(206)).body) == {"topicList": ["orders", "TBW102"]}
        assert json.loads((await peer.call(224, cluster="C")).body)["topicList"] == ["orders", "TBW102"]
        assert json.loads((await peer.call(224, cluster="D")).body) == {"topicList": []}
        system = json.loads((await peer.call(304)).body)
        assert system == {"brokerAddr": "10.0.0.1:10911", "topicList": ["C", "broker-a"]}
        for code in (311, 312, 313):
            assert json.loads((await peer.call(code)).body) == {"topicList": []}
        assert (await peer.call(205, brokerName="broker-a")).ext == {"wipeTopicCount": "2"}
        assert json.loads((await peer.call(105, topic="orders")).body)["queueDatas"][0]["perm"] == 4
        assert (await peer.call(327, brokerName="broker-a")).ext == {"addTopicCount": "2"}
        assert (await peer.call(216, topic="orders", clusterName="C")).code == 0
        assert (await peer.call(105, topic="orders")).code == 17
        route = json.loads((await peer.call(105, topic="TBW102")).body)
        assert (await peer.call(217, json.dumps(route).encode(), topic="made")).code == 0
        assert json.loads((await peer.call(105, topic="made")).body) == route


async def test_switched_off_lists_are_refused() -> None:
    async with (
        serving(enable_all_topic_list=False, enable_topic_list=False) as server,
        connected(server.address) as peer,
    ):
        assert (await peer.call(206)).code == 1
        reply = await peer.call(311)
        assert reply.code == 1
        assert "enableTopicList" in (reply.remark or "")


async def test_kv_configuration_survives_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "kvConfig.json")
    async with serving(kv_config_path=path) as server, connected(server.address) as peer:
        assert (await peer.call(101, namespace="NS1", key="k1")).code == 22
        assert (await peer.call(219, namespace="NS1")).code == 22
        assert (await peer.call(100, namespace="NS1", key="k1", value="v1")).code == 0
        assert (await peer.call(100, namespace="NS1", key="k2", value="é 2")).code == 0
        assert (await peer.call(102, namespace="NS1", key="k1")).code == 0
    async with serving(kv_config_path=path) as server, connected(server.address) as peer:
        assert (await peer.call(101, namespace="NS1", key="k2")).ext == {"value": "é 2"}
        assert json.loads((await peer.call(219, namespace="NS1")).body) == {"table": {"k2": "é 2"}}
        reply = await peer.call(100, namespace="NS1", key="k2")
        assert reply.code == 1
        assert "value" in (reply.remark or "")


async def test_a_broken_kv_file_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text("{")
    server = NameServer(NameServerConfig(listen_port=0, kv_config_path=str(path)))
    with pytest.raises(StoreError, match="kvConfig"):
        await server.start()
    await server.stop()


async def test_order_configuration_goes_to_brokers_and_when_enabled_to_clients() -> None:
    async with serving() as server, connected(server.address) as peer:
        await peer.call(100, namespace="ORDER_TOPIC_CONFIG", key="orders", value="broker-a:4")
        reply = await peer.call(103, registration_body("orders", "TBW102"), **REGISTRATION)
        assert json.loads(reply.body) == {"table": {"orders": "broker-a:4"}}
        assert "orderTopicConf" not in json.loads((await peer.call(105, topic="orders")).body)
        assert (await peer.call(318, b"orderMessageEnable=true\n")).code == 0
        assert json.loads((await peer.call(105, topic="orders")).body)["orderTopicConf"] == "broker-a:4"
        assert "orderTopicConf" not in json.loads((await peer.call(105, topic="TBW102")).body)


async def test_both_dialects_of_a_route() -> None:
    async with serving() as server, connected(server.address) as peer:
        await peer.call(103, registration_body("orders", "TBW102"), **REGISTRATION)
        assert b'{"0":"' in (await peer.call(105, topic="orders", version=401)).body
        assert b'{0:"' in (await peer.call(105, topic="orders", version=399)).body
        reply = await peer.call(105, topic="orders", version=399, acceptStandardJsonOnly="true")
        assert b'{"0":"' in reply.body


async def test_a_zone_sees_its_own_brokers() -> None:
    async with serving() as server, connected(server.address) as peer:
        await peer.call(103, registration_body("orders", "t"), **REGISTRATION, __ZONE_NAME="east")
        other = {**REGISTRATION, "brokerName": "broker-b", "brokerAddr": "10.0.0.2:10911"}
        await peer.call(103, registration_body("orders", "t"), **other, __ZONE_NAME="west")
        reply = await peer.call(105, topic="orders", __ZONE_MODE="true", __ZONE_NAME="east")
        route = json.loads(reply.body)
        assert [(data["brokerName"], data["zoneName"]) for data in route["brokerDatas"]] == [
            ("broker-a", "east")
        ]
        assert len(json.loads((await peer.call(105, topic="orders")).body)["brokerDatas"]) == 2


async def test_settings_are_read_changed_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.conf"
    async with serving(config_store_path=str(path)) as server, connected(server.address) as peer:
        text = (await peer.call(319)).body.decode()
        assert "orderMessageEnable=false\n" in text
        assert text.splitlines() == sorted(text.splitlines())
        assert (await peer.call(318, b"orderMessageEnable=true\ndefaultThreadPoolNums=8\n")).code == 0
        assert server.config.order_message_enable
        assert "orderMessageEnable=true\n" in path.read_text()
        refused = await peer.call(318, b"kvConfigPath=/etc/passwd\n")
        assert refused.code == 16
        for body, reason in [
            (b"orderMessageEnabled=true", "did you mean orderMessageEnable?"),
            (b"orderMessageEnable=maybe", "true or false"),
            (b"scanNotActiveBrokerInterval=0", "above 0"),
            (b"listenPort=1", "at start only"),
            (b"\xff\xfe", "UTF-8"),
        ]:
            refused = await peer.call(318, body)
            assert refused.code == 29, body
            assert reason in (refused.remark or "")


async def test_a_silent_broker_is_forgotten_and_its_connection_closed() -> None:
    clock = AdvancingClock()
    async with serving(clock) as server, connected(server.address) as broker:
        await broker.call(
            103, registration_body("orders", "t"), **REGISTRATION, heartbeatTimeoutMillis="10000"
        )
        clock.advance(9)
        await broker.call(904, clusterName="C", brokerAddr="10.0.0.1:10911", brokerName="broker-a")
        clock.advance(9)
        assert (await broker.call(105, topic="orders")).code == 0
        clock.advance(6)
        await wait_until(lambda: not server.table.live)
        async with asyncio.timeout(60):
            assert await broker.reader.read() == b""
        async with connected(server.address) as peer:
            assert (await peer.call(105, topic="orders")).code == 17


async def test_a_broker_whose_connection_dies_is_forgotten_at_once() -> None:
    async with serving() as server, connected(server.address) as peer:
        async with connected(server.address) as broker:
            await broker.call(103, registration_body("orders", "t"), **REGISTRATION)
            assert (await peer.call(105, topic="orders")).code == 0
        await wait_until(lambda: not server.table.live)
        assert (await peer.call(105, topic="orders")).code == 17


async def test_survivors_are_told_about_the_smallest_broker_id() -> None:
    told: asyncio.Queue[RemotingCommand] = asyncio.Queue()

    async def slave_port(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told.put_nowait(decode_frame(await Peer(reader, writer).read_frame()))
        writer.close()

    listening = await asyncio.start_server(slave_port, "127.0.0.1", 0)
    slave_address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with (
        listening,
        serving(support_acting_master=True, notify_min_broker_id_changed=True) as server,
        connected(server.address) as slave,
    ):
        async with connected(server.address) as master:
            acting = {"enableActingMaster": "true"}
            await master.call(103, registration_body("orders", "t"), **REGISTRATION, **acting)
            as_slave = {**REGISTRATION, "brokerId": "1", "brokerAddr": slave_address}
            await slave.call(103, registration_body("orders", "t"), **as_slave, **acting)
        async with asyncio.timeout(60):
            notice = await told.get()
        assert notice.code == 905
        assert notice.is_oneway
        assert notice.ext == {
            "minBrokerId": "1",
            "minBrokerAddr": slave_address,
            "offlineBrokerAddr": "10.0.0.1:10911",
        }


async def test_each_listener_shows_its_own_addresses() -> None:
    listeners = "internal://127.0.0.1:0,external://127.0.0.1:0"
    async with serving(listeners=listeners) as server, connected(server.address) as broker:
        assert server.address == server.address_of("internal")
        await broker.call(
            103,
            registration_body("orders", "t"),
            **REGISTRATION,
            aerobeeListeners="internal=10.0.0.1:10911,external=mq.example.org:30911",
        )
        async with connected(server.address_of("external")) as outsider:
            for code, ext in ((105, {"topic": "orders"}), (106, {})):
                body = (await outsider.call(code, **ext)).body
                assert b"mq.example.org:30911" in body
                assert b"10.0.0.1" not in body
        assert b"10.0.0.1:10911" in (await broker.call(105, topic="orders")).body


async def test_routes_are_refused_while_the_server_waits_for_brokers() -> None:
    clock = AdvancingClock()
    async with (
        serving(clock, need_wait_for_service=True) as server,
        connected(server.address) as peer,
    ):
        await peer.call(103, registration_body("orders", "t"), **REGISTRATION)
        reply = await peer.call(105, topic="orders")
        assert reply.code == 1
        assert "not ready" in (reply.remark or "")
        clock.advance(45)
        assert (await peer.call(105, topic="orders")).code == 0


@pytest.mark.parametrize(
    ("code", "body", "ext", "answer", "reason"),
    [
        (103, b"", {**REGISTRATION, "bodyCrc32": "5"}, 1, "crc32 not match"),
        (103, b"{", REGISTRATION, 1, ""),
        (103, b"\x78\x9c\xff\xff", REGISTRATION, 1, "zlib"),
        (103, b"", {**REGISTRATION, "brokerId": "-1"}, 1, "brokerId"),
        (103, b"", {**REGISTRATION, "brokerId": "x"}, 1, "brokerId"),
        (103, b"", {**REGISTRATION, "brokerAddr": "nowhere"}, 1, "host:port"),
        (103, b"", {**REGISTRATION, "brokerAddr": "h:99999"}, 1, "host:port"),
        (103, b"", {**REGISTRATION, "aerobeeListeners": "internal"}, 1, "name=host:port"),
        (103, b"", {}, 1, "missing"),
        (103, registration_body("one"), REGISTRATION, 1, "register broker failed"),
        (103, registration_body("a b", "c"), REGISTRATION, 1, "one topic only"),
        (105, b"", {}, 1, "topic"),
        (216, b"", {"topic": "a b"}, 29, "topic name 'a b'"),
        (216, b"", {"topic": ""}, 29, "0 characters"),
        (217, b"[", {"topic": "t"}, 1, ""),
        (217, b'{"queueDatas":[{}]}', {"topic": "t"}, 1, "brokerName"),
        (322, b"nonsense", REGISTRATION, 1, ""),
        (4711, b"", {}, 3, "4711"),
    ],
)
async def test_bad_requests_get_an_answer_that_says_why(
    code: int, body: bytes, ext: dict[str, str], answer: int, reason: str
) -> None:
    async with serving() as server, connected(server.address) as peer:
        reply = await peer.call(code, body, **ext)
        assert reply.code == answer
        assert reason in (reply.remark or "")
        assert server.table.groups == {}
        assert (await peer.call(206)).code == 0


async def test_damaged_requests_are_answered_and_none_is_a_fault_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Captured requests with bytes of their body and values of their fields changed at random, from one seed."""
    chance = random.Random(20_876)
    names = ("broker-register", "mqadmin", "broker-acting-master", "broker-register-compressed")
    captured = [f for name in names for f in load(name) if not f.reply and f.tap.startswith("ns")]
    values = ("", "x", "-1", "9" * 30, "\0", "é", "true", "1e5", "h:99999", "a,b=c")
    async with serving() as server, connected(server.address) as peer:
        for _ in range(400):
            request = decode_frame(chance.choice(captured).frame)
            body = bytearray(request.body)
            for _ in range(chance.randint(0, 4) if body else 0):
                body[chance.randrange(len(body))] = chance.randrange(256)
            ext = {key: value for key, value in (request.ext or {}).items() if key != "bodyCrc32"}
            if ext and chance.random() < 0.5:
                ext[chance.choice(list(ext))] = chance.choice(values)
            reply = await peer.call(request.code, bytes(body[: chance.randint(0, len(body)) or None]), **ext)
            assert reply.code in (0, 1, 16, 17, 22, 29)
            assert reply.code == 0 or reply.remark
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_peers_that_read_none_of_their_answers_go_when_they_are_too_many() -> None:
    clock = AdvancingClock()
    async with serving(clock, pending_reply_bytes_max=4 << 20) as server, AsyncExitStack() as stack:
        reader = await stack.enter_async_context(connected(server.address))
        for number in range(30):
            await reader.call(100, namespace="BIG", key=f"key{number}", value="v" * 30_000)
        listing = encode_frame(RemotingCommand(219, {"namespace": "BIG"}, opaque=1))
        unresponsive = [await stack.enter_async_context(connected(server.address)) for _ in range(6)]
        for peer in unresponsive:
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            peer.writer.write(listing * 40)
        await wait_until(lambda: server.connection_count == 7)
        for _ in range(6):
            clock.advance(1)
            await reader.call(219, namespace="BIG")  # one that reads stays
        await wait_until(lambda: server.connection_count <= 3)
        assert (await reader.call(219, namespace="BIG")).code == 0
