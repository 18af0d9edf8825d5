"""Connections over real sockets: replies, calls of both sides, bounds, broken peers, orderly stop."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from aerobee.clock import ManualClock, SystemClock
from aerobee.errors import (
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    RemoteSystemError,
    RequestTimeout,
    TopicNotExist,
    TransportError,
    UsageError,
)
from aerobee.host_port import split_address
from aerobee.network import Network
from aerobee.remoting.client import checked
from aerobee.remoting.command import FLAG_ONEWAY, RemotingCommand
from aerobee.remoting.connection import Connection
from aerobee.remoting.frame import FrameDecoder, decode_frame, encode_frame
from aerobee.remoting.limits import ConnectionLimits
from aerobee.remoting.server import Listener, RemotingServer, parse_listeners
from tests.fakes import FakeTransport
from tests.integration.remoting_calls import (
    BIG,
    BIG_BODY,
    BROKEN,
    CALL_BACK,
    ECHO,
    FAIL,
    NETWORKS,
    PARK,
    REFUSE,
    WAIT,
    Harness,
    client,
    request,
    serving,
)
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def _on_every_network(server_network: Callable[[], Network]) -> Iterator[None]:
    """Servers of these tests run on each kind of network in turn."""
    NETWORKS.append(server_network)
    yield
    NETWORKS.pop()


class RawPeer:
    """A socket that speaks bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def frame(self) -> RemotingCommand:
        async with asyncio.timeout(60):
            head = await self.reader.readexactly(4)
            return decode_frame(head + await self.reader.readexactly(struct.unpack(">I", head)[0]))

    async def at_end(self) -> bool:
        async with asyncio.timeout(60):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True


@asynccontextmanager
async def raw_peer(address: str, limit: int = 1 << 16) -> AsyncIterator[RawPeer]:
    host, port = split_address(address)
    reader, writer = await asyncio.open_connection(host, port, limit=limit)
    try:
        yield RawPeer(reader, writer)
    finally:
        writer.close()


async def test_many_calls_at_once_get_their_own_replies() -> None:
    async with serving() as harness, client() as caller:

        async def one(number: int) -> None:
            answer = await caller.invoke(
                harness.address, RemotingCommand(ECHO, {"n": str(number)}, b"%d" % number), timeout_s=60
            )
            assert (answer.ext, answer.body) == ({"n": str(number)}, b"%d" % number)

        await asyncio.gather(*(one(number) for number in range(500)))
        assert len(harness.server.connections) == 1


async def test_pipelined_requests_are_answered_in_the_order_of_their_frames() -> None:
    async with serving() as harness, raw_peer(harness.address) as peer:
        peer.writer.write(b"".join(request(ECHO, opaque) for opaque in range(100)))
        assert [(await peer.frame()).opaque for _ in range(100)] == list(range(100))


async def test_replies_of_one_read_leave_in_one_write() -> None:
    harness = Harness()
    transport = FakeTransport()
    connection = Connection(harness.server._endpoint)
    connection.connection_made(transport)
    connection.data_received(b"".join(request(ECHO, opaque) for opaque in range(50)))
    (data,) = transport.writes
    decoder = FrameDecoder()
    decoder.feed(data)
    assert [decoder.next_frame().opaque for _ in range(50)] == list(range(50))  # type: ignore[union-attr]
    connection.connection_lost(None)


async def test_a_handler_may_call_its_caller_over_the_same_connection() -> None:
    def notified(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.reply(ext={"seen": request.text("n")}, body=b"from the client")

    async with serving() as harness, client(handlers={40: notified}) as caller:
        answers = await asyncio.gather(
            *(caller.invoke(harness.address, RemotingCommand(CALL_BACK)) for _ in range(20))
        )
        assert all(answer.ext == {"seen": "1"} and answer.body == b"from the client" for answer in answers)


async def test_oneway_requests_are_never_answered() -> None:
    async with serving() as harness, raw_peer(harness.address) as peer:
        for code in (ECHO, FAIL, REFUSE, 999, BROKEN):
            peer.writer.write(request(code, code, flag=FLAG_ONEWAY))
        peer.writer.write(request(ECHO, 77))
        assert (await peer.frame()).opaque == 77


async def test_oneway_of_the_client_arrives() -> None:
    async with serving() as harness, client() as caller:
        await caller.invoke_oneway(harness.address, RemotingCommand(ECHO, {"a": "b"}))
        await wait_until(lambda: len(harness.seen) == 1)
        assert harness.seen[0].is_oneway


async def test_failures_of_handlers_become_codes_and_remarks(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as harness, client() as caller:
        unknown = await caller.invoke(harness.address, RemotingCommand(999))
        assert (unknown.code, unknown.remark) == (3, " request type 999 not supported")
        failed = await caller.invoke(harness.address, RemotingCommand(FAIL))
        assert (failed.code, failed.remark) == (1, "ZeroDivisionError: a fault")
        assert sum("a fault" in str(record.exc_info) for record in caplog.records) == 1
        refused = await caller.invoke(harness.address, RemotingCommand(REFUSE))
        assert (refused.code, refused.remark) == (17, "no such topic")
        with pytest.raises(TopicNotExist, match=r"ask at .* was answered with code 17: no such topic"):
            checked(refused, address=harness.address, request="ask")
        with pytest.raises(RemoteSystemError):
            checked(failed, address=harness.address, request="ask")
        too_large = await caller.invoke(harness.address, RemotingCommand(BROKEN))
        assert too_large.code == 1
        assert "at most" in (too_large.remark or "")


async def test_a_deferred_reply_is_sent() -> None:
    async with serving() as harness, client() as caller:
        call = asyncio.create_task(caller.invoke(harness.address, RemotingCommand(PARK)))
        await wait_until(lambda: bool(harness.parked))
        assert (await caller.invoke(harness.address, RemotingCommand(ECHO))).code == 0
        connection, parked = harness.parked[0]
        connection.send(parked.reply(19))
        assert (await call).code == 19


async def test_a_reply_in_the_type_of_the_request() -> None:
    async with serving() as harness, client() as caller:
        answer = await caller.invoke(harness.address, RemotingCommand(ECHO, {"a": "b"}, serialize_type=1))
        assert (answer.serialize_type, answer.ext) == (1, {"a": "b"})


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x02ab",
        b"\x7f\xff\xff\xff",
        b"\x00\x00\x00\x09\x00\x00\x00\x05hello",
    ],
)
async def test_garbage_closes_its_connection_and_disturbs_nothing(garbage: bytes) -> None:
    async with serving() as harness, client() as caller, raw_peer(harness.address) as peer:
        await caller.invoke(harness.address, RemotingCommand(ECHO))
        peer.writer.write(request(ECHO, 5) + garbage)
        assert (await peer.frame()).opaque == 5  # what came before is still answered
        assert await peer.at_end()
        assert (await caller.invoke(harness.address, RemotingCommand(ECHO))).code == 0
        assert len(harness.server.connections) == 1


async def test_a_frame_in_slow_halves_is_served() -> None:
    async with serving() as harness, raw_peer(harness.address) as peer:
        frame = request(ECHO, 9, b"x" * 1000)
        for at in range(0, len(frame), 97):
            peer.writer.write(frame[at : at + 97])
            await peer.writer.drain()
            await asyncio.sleep(0)
        assert (await peer.frame()).body == b"x" * 1000


async def test_a_peer_that_does_not_read_is_not_read_from() -> None:
    async with serving() as harness, raw_peer(harness.address, limit=1024) as peer:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        count = 400  # of 256 KiB each, far beyond what sockets buffer
        peer.writer.write(b"".join(request(BIG, opaque) for opaque in range(count)))
        (connection,) = await one_connection(harness)
        await wait_until(lambda: connection.congested)
        served = harness.big_served
        for _ in range(20):
            await asyncio.sleep(0)
        assert harness.big_served == served < count
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert [(await peer.frame()).opaque for _ in range(count)] == list(range(count))


async def one_connection(harness: Harness) -> list[Connection]:
    await wait_until(lambda: len(harness.server.connections) == 1)
    return list(harness.server.connections)


async def test_a_peer_that_lets_parked_replies_pile_up_is_disconnected() -> None:
    limits = ConnectionLimits(write_high_bytes=64 * 1024, write_max_bytes=8 << 20)
    async with serving(limits=limits) as harness, raw_peer(harness.address, limit=1024) as peer:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.writer.write(request(PARK, 1))
        await wait_until(lambda: bool(harness.parked))
        connection, parked = harness.parked[0]
        for _ in range(400):
            connection.send(parked.reply(body=BIG_BODY))
            await asyncio.sleep(0)
        await wait_until(lambda: not harness.server.connections)
        assert not connection.is_open


async def test_waiting_handlers_are_bounded_by_pausing_the_reads() -> None:
    limits = ConnectionLimits(handler_tasks_max=4)
    async with serving(limits=limits) as harness, raw_peer(harness.address) as peer:
        peer.writer.write(b"".join(request(WAIT, opaque) for opaque in range(20)))
        await wait_until(lambda: harness.running == 4)
        for _ in range(20):
            await asyncio.sleep(0)
        assert harness.running == 4
        harness.release.set()
        assert sorted([(await peer.frame()).opaque for _ in range(20)]) == list(range(20))


async def test_bodies_held_by_waiting_handlers_are_bounded() -> None:
    limits = ConnectionLimits(handler_bytes_max=100_000)
    async with serving(limits=limits) as harness, raw_peer(harness.address) as peer:
        peer.writer.write(b"".join(request(WAIT, opaque, bytes(40_000)) for opaque in range(8)))
        await wait_until(lambda: harness.running == 3)
        for _ in range(20):
            await asyncio.sleep(0)
        assert harness.running == 3
        harness.release.set()
        assert sorted([(await peer.frame()).opaque for _ in range(8)]) == list(range(8))


async def test_a_lost_connection_fails_each_pending_call_once() -> None:
    async with serving() as harness, client() as caller:
        calls = [asyncio.create_task(caller.invoke(harness.address, RemotingCommand(PARK))) for _ in range(5)]
        await wait_until(lambda: len(harness.parked) == 5)
        lost: list[Connection] = []
        connection = caller.connection_to(harness.address)
        assert connection is not None
        connection.on_close(lost.append)
        harness.parked[0][0].close("for the test")
        for call in calls:
            with pytest.raises(
                ConnectionLost, match=r"closed before QUERY|closed before request \(5\)"
            ) as failure:
                await call
            assert failure.value.address == harness.address
        assert lost == [connection]
        assert caller.connection_to(harness.address) is None
        connection.on_close(lost.append)
        assert lost == [connection, connection]  # late callbacks run immediately
        assert (await caller.invoke(harness.address, RemotingCommand(ECHO))).code == 0  # over a new one


async def test_a_time_out_names_address_request_and_duration_and_keeps_the_connection() -> None:
    async with serving() as harness, client() as caller:
        await caller.connect(harness.address)  # what that takes is part of the time allowed
        with pytest.raises(RequestTimeout) as failure:
            await caller.invoke(harness.address, RemotingCommand(PARK), timeout_s=0.05)
        assert failure.value.address == harness.address
        assert failure.value.request == "request (5)"
        assert failure.value.elapsed_s >= 0.045
        before = caller.connection_to(harness.address)
        connection, parked = harness.parked[0]
        connection.send(parked.reply())  # too late: no caller waits
        assert (await caller.invoke(harness.address, RemotingCommand(ECHO))).code == 0
        assert caller.connection_to(harness.address) is before


async def test_cancelled_calls_leave_nothing_behind() -> None:
    async with serving() as harness, client() as caller:
        call = asyncio.create_task(caller.invoke(harness.address, RemotingCommand(PARK), timeout_s=30))
        await wait_until(lambda: bool(harness.parked))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        connection = caller.connection_to(harness.address)
        assert connection is not None
        await wait_until(lambda: not connection.pending)


async def test_pending_calls_are_bounded() -> None:
    async with serving() as harness, client(limits=ConnectionLimits(pending_calls_max=2)) as caller:
        calls = [asyncio.create_task(caller.invoke(harness.address, RemotingCommand(PARK))) for _ in range(2)]
        await wait_until(lambda: len(harness.parked) == 2)
        with pytest.raises(TransportError, match="pending_calls_max"):
            await caller.invoke(harness.address, RemotingCommand(ECHO))
        for connection, parked in harness.parked:
            connection.send(parked.reply())
        await asyncio.gather(*calls)


async def test_concurrent_connects_share_one_attempt() -> None:
    opened: list[Connection] = []
    async with serving() as harness, client(on_connect=opened.append) as caller:
        connections = await asyncio.gather(*(caller.connect(harness.address) for _ in range(30)))
        assert len(set(connections)) == len(opened) == 1


async def test_one_caller_giving_up_does_not_fail_the_others() -> None:
    async with serving() as harness, client() as caller:
        first = asyncio.create_task(caller.connect(harness.address))
        second = asyncio.create_task(caller.connect(harness.address))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).is_open


async def test_connect_failures_say_where_and_why() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        async with client() as caller:
            with pytest.raises(ConnectFailed, match=rf"no connection to {address}: .*refused") as failure:
                await caller.invoke(address, RemotingCommand(ECHO))
            assert failure.value.address == address
            for wrong in ("localhost", "localhost:", ":1", "h:0", "h:65536", "h:x"):
                with pytest.raises(UsageError, match=r"host:port|a port is"):
                    await caller.invoke(wrong, RemotingCommand(ECHO))


async def test_a_closed_client_says_so() -> None:
    async with serving() as harness:
        async with client() as caller:
            call = asyncio.create_task(caller.invoke(harness.address, RemotingCommand(PARK)))
            await wait_until(lambda: bool(harness.parked))
        with pytest.raises(ConnectionLost, match="closed"):
            await call
        with pytest.raises(UsageError, match="closed"):
            await caller.invoke(harness.address, RemotingCommand(ECHO))


async def test_idle_connections_are_closed_and_busy_ones_are_not() -> None:
    clock = ManualClock()
    async with serving(clock=clock) as harness, client() as caller, raw_peer(harness.address) as idle:
        await caller.invoke(harness.address, RemotingCommand(ECHO))
        await wait_until(lambda: len(harness.server.connections) == 2)
        for _ in range(5):
            clock.advance(30)
            await caller.invoke(harness.address, RemotingCommand(ECHO))
        assert await idle.at_end()
        assert len(harness.server.connections) == 1
        assert (await caller.invoke(harness.address, RemotingCommand(ECHO))).code == 0


async def test_an_idle_peer_that_does_not_take_the_close_is_aborted() -> None:
    clock = ManualClock()
    async with serving(clock=clock) as harness, raw_peer(harness.address, limit=1024) as peer:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.writer.write(b"".join(request(BIG, opaque) for opaque in range(100)))
        (connection,) = await one_connection(harness)
        await wait_until(lambda: connection.congested)
        for _ in range(6):
            clock.advance(30)
        assert not connection.is_open
        await wait_until(lambda: not harness.server.connections)


async def test_a_handler_whose_connection_closes_before_it_began_leaves_no_warning() -> None:
    async with serving() as harness, raw_peer(harness.address) as peer:
        peer.writer.write(request(WAIT, 1) + b"\xff" * 8)
        assert await peer.at_end()
        await wait_until(lambda: harness.running == 0)


async def test_requests_while_stopping_are_answered_go_away_to_those_who_know_it() -> None:
    async with serving() as harness, raw_peer(harness.address) as new, raw_peer(harness.address) as old:
        new.writer.write(request(WAIT, 1))
        old.writer.write(request(WAIT, 1, version=475))
        await wait_until(lambda: harness.running == 2)
        stop = asyncio.create_task(harness.server.stop())
        await asyncio.sleep(0)
        new.writer.write(request(ECHO, 2))
        old.writer.write(request(ECHO, 2, version=475))
        answer = await new.frame()
        assert (answer.opaque, answer.code) == (2, 1500)
        harness.release.set()
        assert ((await new.frame()).opaque, (await old.frame()).opaque) == (1, 1)  # what ran was finished
        await stop
        assert await new.at_end()
        assert await old.at_end()
        assert not harness.server.connections
        assert [seen.code for seen in harness.seen] == []
        with pytest.raises(OSError):
            await asyncio.open_connection(*split_address(harness.address))


async def test_a_client_repeats_over_a_new_connection_after_go_away() -> None:
    answers = iter([1500, 0])
    connections: set[Connection] = set()

    def serve(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        connections.add(connection)
        return request.reply(next(answers))

    server = RemotingServer(clock=SystemClock(), network=NETWORKS[-1](), handlers={ECHO: serve})
    await server.start([Listener("default", "127.0.0.1", 0)])
    async with client() as caller:
        answer = await caller.invoke("{}:{}".format(*server.address_of()), RemotingCommand(ECHO))
        assert answer.code == 0
        assert len(connections) == 2
        await wait_until(lambda: len(caller.connections) == 1)
    await server.stop()


async def test_a_handler_that_hangs_does_not_hold_up_the_stop() -> None:
    async with serving() as harness, client() as caller:
        call = asyncio.create_task(caller.invoke(harness.address, RemotingCommand(WAIT)))
        await wait_until(lambda: harness.running == 1)
        await harness.server.stop(drain_s=0.05)
        with pytest.raises(ConnectionLost):
            await call
        await wait_until(lambda: harness.running == 0)  # its task was cancelled


async def test_listeners_have_names_and_an_address_in_use_is_named() -> None:
    harness = Harness()
    names: list[str] = []
    harness.server._endpoint.on_made = lambda connection: names.append(connection.listener)
    await harness.server.start([Listener("internal", "127.0.0.1", 0), Listener("external", "127.0.0.1", 0)])
    for name in ("external", "internal"):
        async with raw_peer("{}:{}".format(*harness.server.address_of(name))) as peer:
            peer.writer.write(request(ECHO, 1))
            await peer.frame()
    assert names == ["external", "internal"]
    taken = harness.server.address_of("internal")[1]
    with pytest.raises(OSError, match=rf"cannot listen at 127.0.0.1:{taken} \(listener other\)"):
        await Harness().server.start([Listener("other", "127.0.0.1", taken)])
    harness.server._endpoint.on_made = None
    await harness.server.stop(drain_s=0)


def test_listeners_are_parsed() -> None:
    assert parse_listeners("internal://10.0.0.1:10911, external://[::1]:0") == (
        Listener("internal", "10.0.0.1", 10911),
        Listener("external", "::1", 0),
    )
    for wrong in ("10.0.0.1:10911", "a://b", "a://b:x", "a://h:99999", "a://h:1,a://h:2", "://h:1"):
        with pytest.raises(ConfigError, match="listener"):
            parse_listeners(wrong)


async def test_the_burst_hook_is_called_first_and_again_after_each_frame_it_leaves() -> None:
    calls: list[tuple[int, int]] = []
    hot = encode_frame(RemotingCommand(310, opaque=1))

    def burst(connection: Connection, buffer: bytes | bytearray, position: int) -> int:
        start = position
        while buffer[position : position + len(hot)] == hot:
            position += len(hot)
            connection.write(encode_frame(RemotingCommand(0, opaque=310, flag=1)))
        calls.append((start, position))
        return position

    async with serving(burst=burst) as harness, raw_peer(harness.address) as peer:
        slow = request(ECHO, 2)
        peer.writer.write(hot + hot + slow + hot + slow + hot[:10])
        assert [(await peer.frame()).opaque for _ in range(5)] == [310, 310, 2, 310, 2]
        peer.writer.write(hot[10:])
        assert (await peer.frame()).opaque == 310
        assert calls[0] == (0, 2 * len(hot))
        assert (calls[1][0], calls[1][1]) == (2 * len(hot) + len(slow), 3 * len(hot) + len(slow))


async def test_a_burst_hook_that_stops_when_congested_is_called_again_when_the_peer_drained() -> None:
    hot = encode_frame(RemotingCommand(310, opaque=1))
    served = 0

    def burst(connection: Connection, buffer: bytes | bytearray, position: int) -> int:
        nonlocal served
        while buffer[position : position + len(hot)] == hot and not connection.congested:
            position += len(hot)
            served += 1
            connection.write(encode_frame(RemotingCommand(0, body=BIG_BODY, opaque=served, flag=1)))
        return position

    async with serving(burst=burst) as harness, raw_peer(harness.address, limit=1024) as peer:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.writer.write(hot * 300)
        (connection,) = await one_connection(harness)
        await wait_until(lambda: connection.congested)
        assert served < 300
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert [(await peer.frame()).opaque for _ in range(300)] == list(range(1, 301))


async def test_a_failing_burst_hook_costs_its_connection_only() -> None:
    def burst(connection: Connection, buffer: bytes | bytearray, position: int) -> int:
        raise ZeroDivisionError("a fault")

    async with serving(burst=burst) as harness, raw_peer(harness.address) as peer:
        peer.writer.write(request(ECHO, 1))
        assert await peer.at_end()


async def test_a_client_waits_while_the_server_takes_no_bytes() -> None:
    # From Python 3.13 on a writer that is dropped closes its connection.
    stopped: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stopped.append(writer)
        writer.transport.pause_reading()  # type: ignore[attr-defined]

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=1024)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with client() as caller:
        connection = await caller.connect(address)
        await wait_until(lambda: bool(stopped))
        while not connection.congested:
            connection.invoke_oneway(RemotingCommand(ECHO, body=BIG_BODY))
            await asyncio.sleep(0)
        with pytest.raises(RequestTimeout, match="took no bytes"):
            await caller.invoke(address, RemotingCommand(ECHO), timeout_s=0.05)
        with pytest.raises(RequestTimeout, match="took no bytes"):
            await caller.invoke_oneway(address, RemotingCommand(ECHO), timeout_s=0.05)
    server.close()


UVLOOP_CASES: list[Callable[[], Awaitable[None]]] = [
    test_many_calls_at_once_get_their_own_replies,
    test_a_peer_that_does_not_read_is_not_read_from,
    test_waiting_handlers_are_bounded_by_pausing_the_reads,
    test_requests_while_stopping_are_answered_go_away_to_those_who_know_it,
    test_a_burst_hook_that_stops_when_congested_is_called_again_when_the_peer_drained,
    test_a_lost_connection_fails_each_pending_call_once,
]


@pytest.mark.parametrize("case", UVLOOP_CASES, ids=lambda case: case.__name__.removeprefix("test_"))
def test_under_uvloop(case: Callable[[], Awaitable[None]]) -> None:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(case())  # type: ignore[arg-type]
