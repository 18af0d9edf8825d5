"""The PROXY protocol at a broker's and a NameServer's ports, by raw bytes, with both backends' sockets."""

from __future__ import annotations

import asyncio
import json
import ssl
import struct
from collections.abc import AsyncIterator

import pytest

from aerobee.grpc.frame_scanner import PREFACE
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import FrameDecoder, encode_frame
from aerobee.remoting.proxy_header import V2_SIGNATURE
from aerobee.remoting.tls import ServerTls
from aerobee.testing import LocalCluster
from tests.ports import free_port

V1 = b"PROXY TCP4 203.0.113.7 10.0.0.1 51324 8081\r\n"
V2 = V2_SIGNATURE + b"\x21\x11\0\x0c" + bytes((203, 0, 113, 7, 10, 0, 0, 1)) + struct.pack(">HH", 51_324, 1)
CLIENT = "203.0.113.7:51324"
TRUSTED, ELSEWHERE = "127.0.0.0/8;::1", "192.0.2.1"


@pytest.fixture(params=["native", "python"], autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AEROBEE_FAST_PATH", request.param)


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    settings = {
        "proxyProtocolFrom": TRUSTED,
        "grpcServerPort": free_port(),
        "frameReceiveTimeoutMillis": 1_000,
    }
    async with LocalCluster(broker_config=settings) as started:
        await started.create_topic("orders", queues=1)
        yield started


async def dial(
    address: str, tls: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port), ssl=tls)


async def reply(reader: asyncio.StreamReader) -> RemotingCommand:
    """The next frame."""
    decoder = FrameDecoder(1 << 20, 1 << 20)
    async with asyncio.timeout(120):
        while (frame := decoder.next_frame()) is None:
            data = await reader.read(65_536)
            assert data, "the connection is closed"
            decoder.feed(data)
    return frame


def heartbeat(client_id: str) -> bytes:
    data = {
        "clientID": client_id,
        "producerDataSet": [{"groupName": "makers"}],
        "consumerDataSet": [],
    }
    return encode_frame(RemotingCommand(RequestCode.HEART_BEAT, {}, json.dumps(data).encode(), opaque=1))


def administration() -> bytes:
    """A request that is served to this machine only."""
    return encode_frame(
        RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=6\n", opaque=2)
    )


@pytest.mark.parametrize("header", [V1, V2])
async def test_the_client_that_a_balancer_names_is_the_peer(cluster: LocalCluster, header: bytes) -> None:
    broker = cluster.broker()
    reader, writer = await dial(broker.address)
    data = header + heartbeat("c1")
    for position in range(0, len(data), 5):  # the header in pieces
        writer.write(data[position : position + 5])
        await writer.drain()
        await asyncio.sleep(0)
    assert (await reply(reader)).code == ResponseCode.SUCCESS
    (member,) = broker.producers.members("makers")
    assert member.peer.address == CLIENT
    assert member.peer.host_port == ("203.0.113.7", 51_324)  # what access control sees
    writer.close()


async def test_a_connection_without_a_header_keeps_its_address(cluster: LocalCluster) -> None:
    reader, writer = await dial(cluster.broker().address)
    writer.write(heartbeat("c0"))
    assert (await reply(reader)).code == ResponseCode.SUCCESS
    (member,) = cluster.broker().producers.members("makers")
    assert member.peer.host_port[0] == "127.0.0.1"
    writer.close()


@pytest.mark.parametrize("header", [V1, V2])
async def test_a_client_names_no_other_address_behind_its_balancers_header(
    cluster: LocalCluster, header: bytes
) -> None:
    """A balancer's header often arrives before its client's first byte: what comes then is the client's."""
    broker = cluster.broker()
    reader, writer = await dial(broker.address)
    writer.write(header)
    async with asyncio.timeout(120):
        while not (  # noqa: ASYNC110
            found := [each for each in broker.ports.connections if each.address == CLIENT]
        ):
            await asyncio.sleep(0.001)
    writer.write(b"PROXY TCP4 127.0.0.1 10.0.0.1 1 1\r\n" + administration())
    async with asyncio.timeout(120):
        assert (await reader.read())[
            3:4
        ] == b"\x04"  # SETTINGS: it is a bad preface of HTTP/2, and no administrator's request
    assert found[0].address == CLIENT
    writer.close()


@pytest.mark.parametrize("header", [V1, V2])
async def test_http2_follows_a_header_at_each_port(cluster: LocalCluster, header: bytes) -> None:
    broker = cluster.broker()
    for port in (broker.ports.grpc_port, broker.ports.main.address_of()[1]):
        reader, writer = await dial(f"127.0.0.1:{port}")
        writer.write(header + PREFACE)
        async with asyncio.timeout(120):
            assert (await reader.readexactly(9))[3] == 4  # SETTINGS
        (peer,) = (each for each in broker.ports.connections if each.protocol == "grpc")
        assert peer.address == CLIENT
        writer.close()
        async with asyncio.timeout(120):
            while peer.is_open:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


async def test_tls_follows_a_header(cluster: LocalCluster) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    cluster.broker().ports.main._endpoint.tls = ServerTls()
    reader, writer = await dial(cluster.broker().address)
    writer.write(V2)
    await writer.drain()
    async with asyncio.timeout(120):
        await writer.start_tls(context)
    writer.write(heartbeat("c2"))
    assert (await reply(reader)).code == ResponseCode.SUCCESS
    (member,) = cluster.broker().producers.members("makers")
    assert member.peer.address == CLIENT
    writer.close()


@pytest.mark.parametrize(
    "data", [V1.replace(b"51324", b"99999"), V2[:12] + b"\x41" + V2[13:], b"PROXY " + b"x" * 200]
)
async def test_a_broken_header_ends_its_connection_alone(cluster: LocalCluster, data: bytes) -> None:
    reader, writer = await dial(cluster.broker().address)
    writer.write(data)
    async with asyncio.timeout(120):
        assert await reader.read() == b""
    writer.close()
    await test_a_connection_without_a_header_keeps_its_address(cluster)


async def test_a_header_of_an_unnamed_address_is_refused() -> None:
    """It is no frame, and no HTTP/2: any client could call itself any address."""
    async with LocalCluster(broker_config={"proxyProtocolFrom": ELSEWHERE}) as cluster:
        for header in (V1, V2):
            reader, writer = await dial(cluster.broker().address)
            writer.write(header + heartbeat("c3"))
            async with asyncio.timeout(120):
                answered = await reader.read()
            assert b"SUCCESS" not in answered
            assert cluster.broker().producers.members("makers") == []
            writer.close()


async def test_a_header_is_given_limited_time() -> None:
    settings = {"proxyProtocolFrom": TRUSTED, "tlsHandshakeTimeoutMillis": 300}
    async with LocalCluster(broker_config=settings) as cluster:
        reader, writer = await dial(cluster.broker().address)
        writer.write(V2[:20])
        async with asyncio.timeout(120):
            assert await reader.read() == b""
        writer.close()


async def test_a_nameserver_takes_headers(cluster: LocalCluster) -> None:
    async with LocalCluster(nameserver_config={"proxyProtocolFrom": TRUSTED}) as other:
        reader, writer = await dial(other.nameserver_address)
        writer.write(V1 + encode_frame(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO, {}, opaque=3)))
        assert (await reply(reader)).code == ResponseCode.SUCCESS
        (peer,) = (
            each for each in other.nameserver()._server.connections if each.host_port[0] == "203.0.113.7"
        )
        assert peer.address == CLIENT
        writer.close()
