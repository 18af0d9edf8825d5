"""Untrusted peers at the HA port, and a master that sends anything: neither harms the log; memory and connections are bounded."""

from __future__ import annotations

import asyncio
import gc
import struct
from asyncio import sslproto
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.replication import keyed_connection, tls_connection
from aerobee.broker.replication.unproven_connections import SLAVES_MAX, UNPROVEN_MAX
from aerobee.clock import SystemClock
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from tests.integration.broker_calls import make_broker, send_request
from tests.integration.certificates import identity
from tests.integration.replica_pair import Pair, log_bytes, same
from tests.loops import event_loop_policy  # noqa: F401
from tests.waiting import wait_until

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    pair = Pair(tmp_path, client)
    yield pair
    for broker in reversed(pair.brokers):
        await broker.stop()
    await client.close()


async def connect(broker: Broker) -> Stream:
    host, _, port = broker.identity.ha_address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def is_closed(stream: Stream, timeout_s: float = 20.0) -> bool:
    """Whether the other side closes, reading what comes before."""
    try:
        async with asyncio.timeout(timeout_s):
            while await stream[0].read(1 << 16):
                pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    finally:
        stream[1].close()
    return True


@pytest.mark.parametrize("report", [-1, -(2**63), 2**63 - 1, 10_000_000])
async def test_a_report_that_cannot_be_ends_the_connection(pair: Pair, report: int) -> None:
    master = await pair.start("master")
    await pair.send(master, 5)
    stream = await connect(master)
    stream[1].write(struct.pack(">q", report))
    assert await is_closed(stream)
    assert master.replication.state().replicas == ()


async def test_a_report_behind_the_end_confirms_nothing(pair: Pair) -> None:
    sync = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2, "total_replicas": 2, "slave_timeout": 200}
    master = await pair.start("master", store=sync)
    stream = await connect(master)
    stream[1].write(struct.pack(">q", 0) + struct.pack(">q", 1 << 40))
    assert await is_closed(stream)
    assert master.replication.acks.value == 0


async def test_where_a_slave_wants_to_begin_confirms_nothing(pair: Pair) -> None:
    sync = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2, "total_replicas": 2, "slave_timeout": 200}
    master = await pair.start("master", store=sync)
    slave = await pair.start_slave(master)
    await pair.send(master, 5)
    await slave.stop()
    stream = await connect(master)
    stream[1].write(struct.pack(">q", master.store.log.end))
    await wait_until(lambda: bool(master.replication.state().replicas))
    assert master.replication.state().replicas[0].acknowledged == 0
    stream[1].close()


async def test_who_says_nothing_is_sent_away(pair: Pair) -> None:
    master = await pair.start("master", store={"ha_housekeeping_interval": 300})
    assert await is_closed(await connect(master))


async def test_silent_connections_keep_no_slave_away(pair: Pair) -> None:
    master = await pair.start("master")
    await pair.send(master, 5)
    silent = [await connect(master) for _ in range(SLAVES_MAX)]
    slave = await pair.start_slave(master)
    await same(master, slave)
    assert await is_closed(silent[0])
    for _, writer in silent:
        writer.close()


async def test_a_slave_counts_once_while_its_dead_connection_hangs(pair: Pair) -> None:
    """Its machine lost power and is back: two connections of one slave are one copy."""
    sync = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 3, "total_replicas": 3, "slave_timeout": 200}
    master = await pair.start("master", store=sync)
    await pair.client.invoke(master.address, send_request("t", b"stored, and not confirmed"))
    end = struct.pack(">q", master.store.log.end)

    async def follow() -> Stream:
        before = len(master.replication.state().replicas)
        stream = await connect(master)
        stream[1].write(struct.pack(">q", 0))
        await wait_until(lambda: len(master.replication.state().replicas) == before + 1)
        await wait_until(lambda: master.replication.state().replicas[before].sent == master.store.log.end)
        stream[1].write(end)
        await wait_until(lambda: master.replication.state().replicas[before].acknowledged > 0)
        return stream

    dead, back = await follow(), await follow()
    assert master.replication.acks.value == 0, "two copies of three"
    dead[1].write(end)  # it is another slave of that host after all
    await wait_until(lambda: master.replication.acks.value == master.store.log.end)
    for _, writer in (dead, back):
        writer.close()


async def test_slaves_come_from_the_allowed_hosts_only(pair: Pair) -> None:
    master = await pair.start("master", store={"ha_allowed_hosts": "127.0.0.2"})
    assert await is_closed(await connect(master))
    assert not master.replication.state().replicas


async def test_connections_are_bounded(pair: Pair) -> None:
    master = await pair.start("master")
    streams = [await connect(master) for _ in range(SLAVES_MAX)]
    for _, writer in streams:
        writer.write(struct.pack(">q", 0))
    await wait_until(lambda: len(master.replication.state().replicas) == SLAVES_MAX)
    assert await is_closed(await connect(master))
    for _, writer in streams:
        writer.close()
    await wait_until(lambda: not master.replication.state().replicas)


@pytest.mark.parametrize("kind", ["key", "tls", "tls-and-key"])
async def test_those_who_do_not_say_who_they_are_are_bounded_and_keep_no_slave_away(
    pair: Pair, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_connection, "EXCHANGE_TIMEOUT_S", 3600.0)
    monkeypatch.setattr(tls_connection, "HANDSHAKE_TIMEOUT_S", 3600.0)
    store: dict[str, str] = {}
    if "key" in kind:
        store["ha_shared_key"] = "a key of sixteen or more"
    if "tls" in kind:
        own = identity(tmp_path, "authority")
        signed = identity(tmp_path, "broker", own)
        store["ha_tls_cert_path"], store["ha_tls_key_path"] = str(signed.cert_path), str(signed.key_path)
        store["ha_tls_trust_cert_path"] = str(own.cert_path)
    master = await pair.start("master", store=store)
    await pair.send(master, 5)
    silent = [await connect(master) for _ in range(UNPROVEN_MAX + 10)]
    for stream in silent[:10]:
        assert await is_closed(stream)
    slave = await pair.start_slave(master, store=store)
    await same(master, slave)
    for _, writer in silent:
        writer.close()


async def test_bursts_of_connections_leave_no_more_tls_than_is_allowed(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is sent away in the turn in which it came begins no handshake."""
    monkeypatch.setattr(tls_connection, "HANDSHAKE_TIMEOUT_S", 3600.0)
    own = identity(tmp_path, "authority")
    signed = identity(tmp_path, "broker", own)
    store = {"ha_tls_cert_path": str(signed.cert_path), "ha_tls_key_path": str(signed.key_path)}
    store["ha_tls_trust_cert_path"] = str(own.cert_path)
    master = await pair.start("master", store=store)

    def handshakes() -> int:
        gc.collect()
        return sum(isinstance(each, sslproto.SSLProtocol) for each in gc.get_objects())

    before = handshakes()
    streams: list[Stream] = []
    for _ in range(3):
        streams += await asyncio.gather(*(connect(master) for _ in range(100)))
    await wait_until(lambda: handshakes() - before <= UNPROVEN_MAX)
    for _, writer in streams:
        writer.close()
    await wait_until(lambda: handshakes() == before)


async def test_a_slave_that_reads_nothing_is_sent_no_more_than_buffers_hold(pair: Pair) -> None:
    master = await pair.start("master")
    for _ in range(8):
        await pair.send(master, 1, size=2_000_000)
    end = master.store.log.end
    assert end > 12_000_000
    _, writer = await connect(master)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(struct.pack(">q", 0))
    await wait_until(lambda: bool(master.replication.state().replicas))
    sent = -1
    while sent != master.replication.state().replicas[0].sent:
        sent = master.replication.state().replicas[0].sent
        await asyncio.sleep(0.3)
    assert sent < end
    await pair.send(master, 1)
    writer.close()


class FakeMaster:
    """Listens, and gives each connection what `serve` writes."""

    def __init__(self, serve: Callable[[Stream], Awaitable[None]]) -> None:
        self._serve = serve
        self.count = 0

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        try:
            await self._serve((reader, writer))
        except ConnectionError:
            pass  # the slave left, as it should
        finally:
            writer.close()

    def close(self) -> None:
        self._server.close()


FRAMES = {
    "a size below 0": struct.pack(">qi", 0, -1),
    "a size of gigabytes": struct.pack(">qi", 0, 2**31 - 1),
    "an offset below 0": struct.pack(">qi", -5, 4) + b"abcd",
    "no record": struct.pack(">qi", 0, 64) + bytes(range(64)),
    "zeros": struct.pack(">qi", 0, 64) + bytes(64),
    "bytes of another offset": struct.pack(">qi", 4096, 64) + bytes(64),
    "a record of a gigabyte": struct.pack(">qi", 0, 64) + struct.pack(">I", 1 << 30) + bytes(60),
}


@pytest.mark.parametrize("name", FRAMES)
async def test_a_master_that_sends_anything_leaves_an_empty_log_empty(pair: Pair, name: str) -> None:
    async def serve(stream: Stream) -> None:
        await stream[0].readexactly(8)
        stream[1].write(FRAMES[name])
        await stream[1].drain()
        await stream[0].read()

    fake = FakeMaster(serve)
    address = await fake.start()
    slave = await pair.start("slave", store={"broker_role": "SLAVE"}, broker_id=1)
    slave.replication.become_slave(address)
    await wait_until(lambda: fake.count > 1)  # it has left the first connection, and tries again
    following = slave.replication.state().following
    assert following is not None
    assert following.trouble
    assert not slave.store.log.segments or slave.store.log.end == 0
    fake.close()


async def test_a_bit_that_flips_on_the_way_is_noticed_and_the_rest_comes_again(pair: Pair) -> None:
    master = await pair.start("master")
    await pair.send(master, 40)
    end, data = master.store.log.end, log_bytes(master)
    damaged = bytearray(data)
    damaged[data.index(b"20 20 ")] ^= 1  # in a body: what has no checksum is the network's to keep

    async def serve(stream: Stream) -> None:
        begin = max(0, struct.unpack(">q", await stream[0].readexactly(8))[0])
        bytes_now = data if fake.count > 2 else bytes(damaged)
        for at in range(begin, end, 1000):
            body = bytes_now[at : min(end, at + 1000)]
            stream[1].write(struct.pack(">qi", at, len(body)) + body)
        await stream[1].drain()
        await stream[0].read()

    fake = FakeMaster(serve)
    address = await fake.start()
    slave = await pair.start("slave", store={"broker_role": "SLAVE"}, broker_id=1)
    slave.replication.become_slave(address)
    await same(master, slave)
    assert slave.store.max_offset("t", 0) == 40
    assert fake.count > 1
    fake.close()


def test_the_ha_port_is_asked_for_by_name(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, store={"ha_listen_port": 65_535})
    assert broker.store.config.ha_listen_port == 65_535
