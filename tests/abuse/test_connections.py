"""Peers that take places and give nothing: too many connections, half handshakes, frames a byte at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import struct
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.clock import SystemClock
from aerobee.network import AsyncioNetwork
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import FrameDecoder, encode_frame
from aerobee.remoting.loop_watch import HELD_LIMIT_S
from aerobee.remoting.server import Listener, RemotingServer, connections_max
from aerobee.remoting.tls import server_tls
from tests.abuse.untrusted_peer import UntrustedPeer, broker_at
from tests.loops import event_loop_policy  # noqa: F401
from tests.waiting import wait_until

TIMES: dict[str, Any] = {"tls_handshake_timeout_millis": 200, "frame_receive_timeout_millis": 400}


async def open_one(broker: Broker) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = broker.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def is_closed(reader: asyncio.StreamReader, wait_s: float = 120.0) -> bool:
    try:
        async with asyncio.timeout(wait_s):
            while await reader.read(65_536):
                pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


async def drip(writer: asyncio.StreamWriter, data: bytes, pause_s: float = 0.05) -> None:
    """A byte now and then, again and again."""
    with contextlib.suppress(ConnectionError):
        for byte in data:
            writer.write(bytes((byte,)))
            await writer.drain()
            await asyncio.sleep(pause_s)


async def test_one_connection_too_many_is_closed_and_the_others_are_served(tmp_path: Path) -> None:
    async with (
        broker_at(tmp_path, server_connections_max=3) as broker,
        UntrustedPeer(broker.address) as first,
    ):
        assert (await first.send_message("t")).code == 0
        others = [await open_one(broker) for _ in range(2)]
        await wait_until(lambda: len(broker.connections) == 3, "all are open")
        for _ in range(3):
            reader, writer = await open_one(broker)
            assert await is_closed(reader)
            writer.close()
        assert (await first.send_message("t")).code == 0
        info = await first.call(28)
        assert b'"refusedConnections":"0"' not in info.body
        # The bound is the operator's to move while the broker runs.
        assert (await first.call(25, {}, b"serverConnectionsMax=4")).code == 0
        async with UntrustedPeer(broker.address) as fourth:
            assert (await fourth.send_message("t")).code == 0
        assert (await first.call(25, {}, b"serverConnectionsMax=3")).code == 0
        for _, writer in others:
            writer.close()
        await wait_until(lambda: len(broker.connections) == 1, "the others have gone")
        async with UntrustedPeer(broker.address) as again:
            assert (await again.send_message("t")).code == 0


def test_the_store_keeps_half_of_the_descriptors_unless_a_number_is_set() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert connections_max(0) == limit // 2
    assert connections_max(7) == 7


@pytest.mark.parametrize(
    "beginning",
    [
        b"\x00",
        b"\x00\x00\x01",
        struct.pack(">II", 5_000, 100) + b"{",
        encode_frame(RemotingCommand(310, {"a": "x"}, b"y" * 400))[:-100],
        encode_frame(RemotingCommand(14, {"topic": "x" * 2_000}, b"y" * 9_000))[:-8_999],
    ],
)
async def test_a_frame_that_comes_a_byte_at_a_time_has_an_end(tmp_path: Path, beginning: bytes) -> None:
    async with broker_at(tmp_path, **TIMES) as broker:
        reader, writer = await open_one(broker)
        writer.write(encode_frame(RemotingCommand(28)))
        await reader.read(10)
        writer.write(beginning)
        dripping = asyncio.create_task(drip(writer, b"\x00" * 10_000 if len(beginning) > 8 else b"", 0.02))
        assert await is_closed(reader)
        dripping.cancel()
        writer.close()
        async with UntrustedPeer(broker.address) as other:
            info = await other.call(28, None)
            assert info.code == 0
        assert broker.ports.main.too_slow_count == 1


async def test_a_peer_that_always_has_a_frame_under_way_is_served(tmp_path: Path) -> None:
    """Every look finds it in the middle of a frame, and each time of another one."""
    async with broker_at(tmp_path, **TIMES) as broker:
        reader, writer = await open_one(broker)
        frames = [
            encode_frame(
                RemotingCommand(code, {"consumerGroup": "g", "topic": "t", "queueId": "0"}, opaque=number)
            )
            for number, code in enumerate([14, 28, 30, 310] * 10)
        ]
        stream, cut = b"".join(frames), 0
        while cut < len(stream):
            step = len(stream) // 60
            writer.write(stream[cut : cut + step])
            cut += step
            await asyncio.sleep(0.03)
        decoder, answers = FrameDecoder(), 0
        async with asyncio.timeout(60):
            while answers < len(frames):
                data = await reader.read(65_536)
                assert data
                decoder.feed(data)
                while decoder.next_frame() is not None:
                    answers += 1
        writer.close()


async def test_a_tls_hello_that_never_ends_has_an_end(tmp_path: Path) -> None:
    broker_tls = server_tls({})
    async with broker_at(tmp_path, **TIMES) as broker:
        broker.ports.main._endpoint.tls = broker_tls
        reader, writer = await open_one(broker)
        hello = b"\x16\x03\x01\x02\x00" + b"\x01" + b"\x00" * 500
        dripping = asyncio.create_task(drip(writer, hello, 0.1))
        assert await is_closed(reader)
        dripping.cancel()
        writer.close()


async def test_who_holds_the_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]

    class Clock(SystemClock):
        def monotonic(self) -> float:
            return now[0]

    def slow(peer: object, request: RemotingCommand) -> RemotingCommand:
        now[0] += HELD_LIMIT_S * 3
        return request.reply()

    async def slow_step(peer: object, request: RemotingCommand) -> RemotingCommand:
        await asyncio.sleep(0)
        now[0] += HELD_LIMIT_S * 2
        await asyncio.sleep(0)
        return request.reply(body=b"done")

    async def waits(peer: object, request: RemotingCommand) -> RemotingCommand:
        await asyncio.sleep(0)
        return request.reply()

    server = RemotingServer(
        clock=Clock(), network=AsyncioNetwork(), handlers={34: slow, 17: slow_step, 18: waits}
    )
    await server.start([Listener("default", "127.0.0.1", 0)])
    host, port = server.address_of()
    with caplog.at_level(logging.WARNING):
        async with UntrustedPeer(f"{host}:{port}") as caller:
            for _ in range(5):
                assert (await caller.call(34)).code == 0
            assert (await caller.call(17)).body == b"done"
            assert (await caller.call(18)).code == 0
            own_host, own_port = caller.writer.get_extra_info("sockname")
    await server.stop(go_away=False)
    assert server.watch.held_count == 6
    address = f"{own_host}:{own_port}"
    assert server.watch.longest == f"HEART_BEAT (34) of {address}"
    said = [record.getMessage() for record in caplog.records]
    assert (
        sum(f"HEART_BEAT (34) of {address} blocked the event loop for 150 ms" in text for text in said) == 1
    )
    assert (
        sum(
            f"UPDATE_AND_CREATE_TOPIC (17) of {address} blocked the event loop for 100 ms" in text
            for text in said
        )
        == 1
    )
