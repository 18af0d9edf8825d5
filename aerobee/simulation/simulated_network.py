"""A network in memory: ordered, delayed, and broken on demand. Implements network.Network.

Each party (a broker, a client) gets an endpoint by its name. `isolate` stops all bytes from and to a party
without notifying the peers, as a pulled cable does, and `cut` the bytes from one party to another. With
`resends` they arrive once the link is restored as with TCP, unless the connection broke meanwhile; else they
are lost, and the connection is useless. `sever` breaks a party's connections, and both sides are notified.
Bytes of a connection arrive in order; the bytes of one write arrive together.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import struct
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

from aerobee.clock import Clock
from aerobee.errors import UsageError
from aerobee.host_port import join_address

Factory = Callable[[], asyncio.BaseProtocol]
FIRST_PORT = 20_000
_AT = struct.Struct("<d")
RESEND_S = 0.2  # interval of checks whether a link is restored
GIVE_UP_S = 15.0  # TCP retries for this time; then the connection is broken
CONNECT_S = 3.0  # time-out of a connect


class Busy(Protocol):
    """A machine whose loop may be busy. A protocol, because host.py, whose HostClock it is, lies above."""

    busy_until: float  # time of the simulation's clock until which the loop is busy


class _Transport(asyncio.Transport):
    """One side of a connection."""

    def __init__(
        self, network: SimulatedNetwork, owner: str, local: tuple[str, int], peer: tuple[str, int]
    ) -> None:
        super().__init__({"sockname": local, "peername": peer})
        self.owner = owner
        self.other: _Transport
        self.protocol: asyncio.Protocol
        self.closed = False
        self._network = network
        self._arrives_at = 0.0  # arrival time of the newest bytes: later bytes do not overtake them
        self._paused = False
        self._held: list[bytes] = []
        # Bytes in flight: arrival time and the callback at the receiver.
        self._wire: deque[tuple[float, Callable[..., None], tuple[Any, ...]]] = deque()
        self._cut_since: float | None = None
        self.hangs = False
        self.way = b""  # link to this side, "sender>receiver"

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closed and data:
            self._send(self.other.receive, bytes(data))

    def _send(self, deliver: Callable[..., None], *args: Any) -> None:
        network = self._network
        now = network.clock.monotonic()
        self._arrives_at = max(self._arrives_at, network.free_at(self.owner, now) + network.delay_s())
        if not network.resends:
            network.clock.call_later(self._arrives_at - now, self._arrive_once, deliver, args)
            return
        self._wire.append((self._arrives_at, deliver, args))
        if len(self._wire) == 1:
            network.clock.call_later(self._arrives_at - now, self._arrive)

    def _arrive_once(self, deliver: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self._network.is_cut(self.owner, self.other.owner):
            deliver(*args)

    def _arrive(self) -> None:
        network, wire = self._network, self._wire
        now = network.clock.monotonic()
        while wire and wire[0][0] <= now:
            if self.hangs or network.is_cut(self.owner, self.other.owner):
                self._cut_since = now if self._cut_since is None else self._cut_since
                if now - self._cut_since < GIVE_UP_S:
                    network.clock.call_later(RESEND_S, self._arrive)
                    return
                wire.clear()
                self.end(TimeoutError(110, "nothing was confirmed for a long time"))
                return
            self._cut_since = None
            free_at = network.free_at(self.other.owner, now)
            if free_at > now:
                network.clock.call_later(free_at - now, self._arrive)
                return
            _, deliver, args = wire.popleft()
            deliver(*args)
        if wire:
            network.clock.call_later(wire[0][0] - now, self._arrive)

    def receive(self, data: bytes) -> None:
        if self.closed:
            return
        self._network.note(self.way)
        if self._paused:
            self._held.append(data)
        else:
            self.protocol.data_received(data)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        held, self._held = self._held, []
        for data in held:
            self.receive(data)

    def end(self, error: Exception | None) -> None:
        """The other side closed the connection, or it broke."""
        if not self.closed:
            self.closed = True
            self._network.forget(self)
            self.protocol.connection_lost(error)

    def close(self) -> None:
        if not self.closed:
            self._send(self.other.end, None)
            asyncio.get_running_loop().call_soon(self.end, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self.closed

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return


class _Server:
    def __init__(
        self, network: SimulatedNetwork, owner: str, factory: Factory, address: tuple[str, int]
    ) -> None:
        self.owner = owner
        self.factory = factory
        self.address = address
        self._network = network

    def close(self) -> None:
        self._network.servers.pop(self.address[1], None)


class SimulatedNetwork:
    """All connections of one simulation. Every server has a distinct port; hosts are ignored."""

    def __init__(
        self, rng: random.Random, clock: Clock, *, delay_max_s: float = 0.002, resends: bool = False
    ) -> None:
        self.resends = resends
        self.rng = rng
        self.clock = clock
        self.delay_max_s = delay_max_s
        self.servers: dict[int, _Server] = {}
        self.trace = 0  # checksum of all arrivals (sender, receiver, time): equal runs have equal checksums
        self.loops: dict[str, Busy] = {}  # machines whose loop may be busy
        self._open: dict[_Transport, None] = {}
        self._isolated: set[str] = set()
        self._cut: set[tuple[str, str]] = set()
        self._hanging = "", 0
        self._next_port = FIRST_PORT

    def note(self, way: bytes) -> None:
        """Record an arrival on this link, "sender>receiver"."""
        self.trace = zlib.crc32(_AT.pack(self.clock.monotonic()), zlib.crc32(way, self.trace))

    def free_at(self, name: str, now: float) -> float:
        """Time at which a party's loop is free: now, unless it is busy."""
        loop = self.loops.get(name)
        return now if loop is None else max(now, loop.busy_until)

    def endpoint(self, name: str) -> Endpoint:
        """The network as one party sees it."""
        return Endpoint(self, name)

    def isolate(self, name: str) -> None:
        self._isolated.add(name)

    def rejoin(self, name: str) -> None:
        self._isolated.discard(name)

    def cut(self, one: str, other: str) -> None:
        """Stop bytes from `one` to `other`; the reverse link stays open."""
        self._cut.add((one, other))

    def uncut(self, one: str, other: str) -> None:
        """Restore the link from `one` to `other`."""
        self._cut.discard((one, other))

    def mend(self) -> None:
        """Restore all links."""
        self._cut.clear()
        self._isolated.clear()

    def sever(self, name: str) -> None:
        """Break the connections of a party; both sides are notified."""
        for transport in self._of(name):
            transport.other.end(ConnectionResetError("severed"))
            transport.end(ConnectionResetError("severed"))

    def close_servers(self, name: str) -> None:
        """Close all listeners of this party."""
        for port in [port for port, server in self.servers.items() if server.owner == name]:
            del self.servers[port]

    def hang(self, one: str, other: str) -> None:
        """Open connections between two parties carry no bytes from now on; new connections are not affected."""
        for transport in self._open:
            if {transport.owner, transport.other.owner} == {one, other}:
                transport.hangs = True

    def hang_at(self, name: str, port: int) -> None:
        """Connections that this party opens to the port from now on carry no bytes. Replaces an earlier call; no port is 0."""
        self._hanging = name, port

    def is_cut(self, one: str, other: str) -> bool:
        """Whether the link from `one` to `other` is cut."""
        return one in self._isolated or other in self._isolated or (one, other) in self._cut

    def delay_s(self) -> float:
        return self.rng.random() * self.delay_max_s

    def forget(self, transport: _Transport) -> None:
        self._open.pop(transport, None)

    def _of(self, name: str) -> list[_Transport]:
        return [transport for transport in self._open if transport.owner == name]

    async def listen(self, owner: str, factory: Factory, host: str, port: int) -> _Server:
        if port == 0:
            port, self._next_port = self._next_port, self._next_port + 10
        if port in self.servers:
            raise OSError(98, f"port {port} is taken")
        server = self.servers[port] = _Server(self, owner, factory, (host, port))
        return server

    async def connect(self, owner: str, factory: Factory, host: str, port: int) -> None:
        await self.clock.sleep(self.delay_s())
        give_up_at = self.clock.monotonic() + CONNECT_S
        while True:
            server = self.servers.get(port)
            if server is None:
                raise ConnectionRefusedError(111, f"nothing listens at {join_address(host, port)}")
            if not self.is_cut(owner, server.owner) and not self.is_cut(server.owner, owner):
                break
            if not self.resends or self.clock.monotonic() >= give_up_at:
                raise TimeoutError(110, f"{join_address(host, port)} does not answer")
            await self.clock.sleep(RESEND_S)
        self._next_port += 1
        near, far = (host, self._next_port), (host, port)
        client = _Transport(self, owner, near, far)
        accepted = _Transport(self, server.owner, far, near)
        client.other, accepted.other = accepted, client
        client.hangs = accepted.hangs = (owner, port) == self._hanging
        client.way, accepted.way = f"{server.owner}>{owner}".encode(), f"{owner}>{server.owner}".encode()
        client.protocol = cast(asyncio.Protocol, factory())
        accepted.protocol = cast(asyncio.Protocol, server.factory())
        self._open[client] = self._open[accepted] = None
        accepted.protocol.connection_made(accepted)
        client.protocol.connection_made(client)


class Endpoint:
    """One party's Network."""

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self._network = network
        self._name = name

    async def create_server(self, factory: Factory, host: str, port: int) -> _Server:
        return await self._network.listen(self._name, factory, host, port)

    async def create_connection(self, factory: Factory, host: str, port: int) -> None:
        await self._network.connect(self._name, factory, host, port)

    async def start_tls(
        self,
        transport: asyncio.WriteTransport,
        protocol: asyncio.BaseProtocol,
        context: ssl.SSLContext,
        *,
        server_side: bool,
    ) -> asyncio.Transport:
        raise UsageError("a simulated network has no TLS")
