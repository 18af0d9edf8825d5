"""A connection with a transport of memory: hostile bytes in any pieces close it and never raise."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee.errors import RequestTimeout
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.connection import Connection, Endpoint
from aerobee.remoting.frame import FrameDecoder, encode_frame
from aerobee.remoting.limits import ConnectionLimits
from aerobee.simulation.simulated_loop import SimulatedClock, SimulatedLoop
from tests.fakes import FakeTransport
from tests.rounds import rounds


def good(opaque: int) -> bytes:
    return encode_frame(RemotingCommand(1, {"k": "v"}, b"body", opaque=opaque))


def opaques(data: bytes) -> list[int]:
    decoder = FrameDecoder()
    decoder.feed(data)
    found = []
    while (command := decoder.next_frame()) is not None:
        found.append(command.opaque)
    assert decoder.unused == 0
    return found


@settings(max_examples=rounds(200), deadline=None)
@given(
    st.lists(st.integers(0, 1000), max_size=5),
    st.binary(max_size=80),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3),
    st.integers(1, 200),
)
def test_hostile_bytes_after_good_frames_close_the_connection_at_most(
    numbers: list[int], tail: bytes, changes: list[tuple[int, int]], step: int
) -> None:
    async def run() -> None:
        transport = FakeTransport()
        limits = ConnectionLimits(frame_bytes_max=10_000)
        connection = Connection(
            Endpoint({1: lambda c, request: request.reply(body=request.body)}, limits=limits)
        )
        connection.connection_made(transport)
        mutated = bytearray(good(7) + tail)
        for at, value in changes:
            mutated[at % len(mutated)] = value
        stream = b"".join(good(number) for number in numbers) + bytes(mutated)
        for at in range(0, len(stream), step):
            connection.data_received(stream[at : at + step])
        answered = opaques(bytes(transport.written))
        assert answered[: len(numbers)] == numbers
        assert connection.is_open != transport.is_closed
        connection.connection_lost(None)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("leaves_unresponsive_peers", "hears_something", "timeout_s", "stays_open"),
    [(True, False, 3.0, False), (True, True, 3.0, True), (True, False, 0.5, True), (False, False, 3.0, True)],
)
def test_a_peer_that_is_silent_for_a_whole_call_is_left(
    leaves_unresponsive_peers: bool, hears_something: bool, timeout_s: float, stays_open: bool
) -> None:
    loop = SimulatedLoop(SimulatedClock())

    async def one_call() -> None:
        connection = Connection(
            Endpoint({}, leaves_unresponsive_peers=leaves_unresponsive_peers), server_side=False
        )
        transport = FakeTransport()
        connection.connection_made(transport)
        call = asyncio.ensure_future(connection.invoke(RemotingCommand(1), timeout_s=timeout_s))
        await asyncio.sleep(timeout_s / 2)
        if hears_something:
            connection.data_received(good(7)[:5])
        with pytest.raises(RequestTimeout):
            await call
        assert (connection.is_open, transport.is_closed) == (stays_open, not stays_open)
        connection.connection_lost(None)

    loop.run_until_complete(one_call())
    loop.close()


@pytest.mark.parametrize(
    ("balancer", "client", "seen"),
    [
        ("10.0.0.5", "203.0.113.7", "203.0.113.7"),
        ("10.0.0.5", "127.0.0.1", "10.0.0.5"),
        ("10.0.0.5", "::1", "10.0.0.5"),
        ("127.0.0.1", "127.0.0.9", "127.0.0.9"),
    ],
)
async def test_no_header_makes_a_client_of_another_machine_one_of_this(
    balancer: str, client: str, seen: str
) -> None:
    """Administrators' requests of loopback addresses are served without users: a balancer's own loopback is not the server's."""
    connection = Connection(Endpoint({}, proxied_from=lambda host: host == balancer))
    connection.connection_made(FakeTransport((balancer, 4)))
    family = "TCP6" if ":" in client else "TCP4"
    connection.data_received(f"PROXY {family} {client} {client} 7 8\r\n".encode() + good(1))
    assert connection.host_port == (seen, 4 if seen == balancer else 7)
    connection.connection_lost(None)
