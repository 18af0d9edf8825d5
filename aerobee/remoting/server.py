"""A server of the remoting protocol: listeners, dispatch by request code, TLS on the same port, orderly stop.

Follows NettyRemotingServer (RocketMQ). One server may listen at several addresses; each listener has a name,
which its connections carry, so that the server can advertise addresses that the client can reach.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aerobee.clock import Clock
from aerobee.errors import ConfigError
from aerobee.host_port import PORT_MAX, bare_host, join_address
from aerobee.log_throttle import LogThrottle
from aerobee.network import Network, NetworkServer
from aerobee.remoting.connection import Burst, Connection, Endpoint
from aerobee.remoting.connection_set import ConnectionSet
from aerobee.remoting.limits import ConnectionLimits
from aerobee.remoting.loop_watch import LoopWatch
from aerobee.remoting.other_protocol import OtherProtocol
from aerobee.remoting.peer import Handler
from aerobee.remoting.request_stats import RequestStats
from aerobee.remoting.tls import ServerTls
from aerobee.system import open_files_max
from aerobee.words import plural

GO_AWAY_LINGER_S = 0.05  # requests in flight still get GO_AWAY during this time
DRAIN_POLL_S = 0.01
_LOG = logging.getLogger("aerobee.remoting")


@dataclass(frozen=True, slots=True)
class Listener:
    """Address of a listener. Port 0 takes a free one; an empty host means every address of the machine."""

    name: str
    host: str
    port: int


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """Read `internal://10.0.0.1:10911,external://0.0.0.0:20911`. Raises ConfigError naming the part that is wrong."""
    found: dict[str, Listener] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, separator, address = part.partition("://")
        host, colon, port = address.rpartition(":")
        if not (name and separator and colon and port.isascii() and port.isdigit()):
            raise ConfigError(f"listener {part!r} must look like name://host:port")
        if int(port[:6]) > PORT_MAX:
            raise ConfigError(f"listener {part!r} has port {port}, at most {PORT_MAX}")
        if name in found:
            raise ConfigError(f"listener {part!r}: the name {name!r} occurs twice")
        found[name] = Listener(name, bare_host(host), int(port))
    return tuple(found.values())


def connections_max(wanted: int) -> int:
    """Maximum number of open connections: the setting, or half of the process's limit of open files."""
    return wanted or max(16, open_files_max() // 2)


class RemotingServer:
    """`handlers` answer requests by code, `default` those of other codes, `burst` sees all bytes first.

    `connections` are the open ones. `admits` bounds their number, `limits` the resources of each.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        network: Network,
        handlers: Mapping[int, Handler],
        burst: Burst | None = None,
        default: Handler | None = None,
        tls: ServerTls | None = None,
        limits: ConnectionLimits | None = None,
        admits: Callable[[], bool] | None = None,
        watch: LoopWatch | None = None,
        stats: RequestStats | None = None,
        proxied_from: Callable[[str], bool] = lambda host: False,
    ) -> None:
        """`admits` is called for each new connection, which is closed immediately if it returns False. `proxied_from` says whether
        connections from a host may begin with a PROXY header."""
        limits = limits or ConnectionLimits()
        self._admits = admits
        self._refused = LogThrottle(_LOG, clock.monotonic)
        self._set = ConnectionSet(clock, limits)
        self.connections = self._set.connections
        self._network = network
        self._endpoint = Endpoint(
            handlers,
            default,
            burst,
            limits,
            tls,
            proxied_from,
            watch=watch or LoopWatch(clock.monotonic),
            stats=stats or RequestStats(),
            on_made=self._made,
            on_lost=self._set.lost,
        )
        self._listening: dict[str, NetworkServer] = {}

    @property
    def watch(self) -> LoopWatch:
        """Requests that blocked the event loop."""
        return self._endpoint.watch

    @property
    def refused_count(self) -> int:
        """Connections that were closed because there were too many."""
        return self._refused.count

    @property
    def too_slow_count(self) -> int:
        """Connections that were closed because they sent too slowly."""
        return self._set.too_slow_count

    def _made(self, connection: Connection) -> None:
        if self._admits is not None and not self._admits():
            self._refused.warn(
                "full",
                "%s is refused: %d connections are open, no more are taken (serverConnectionsMax)",
                connection.address,
                len(self.connections),
            )
            connection.abort("too many connections")
            return
        self._set.made(connection)

    def use_burst(self, burst: Burst) -> None:
        """Pass all bytes to this hook first, from now on."""
        self._endpoint.burst = burst

    def use_http2(self, http2: Callable[[Connection], OtherProtocol]) -> None:
        """Use this factory for connections that begin with HTTP/2's preface, from now on."""
        self._endpoint.http2 = http2

    async def start(self, listeners: Sequence[Listener]) -> None:
        """Listen at every address, or at none: raises OSError naming the address that cannot be bound."""
        self._endpoint.going_away = False
        try:
            for listener in listeners:
                self._listening[listener.name] = await self._listen(listener)
        except BaseException:
            self._close_listeners()
            raise
        self._set.start_sweeping()

    def address_of(self, name: str = "default") -> tuple[str, int]:
        """Return ("ip", port) of a listener, the chosen port if the configured one is 0."""
        return self._listening[name].address

    async def stop(self, *, go_away: bool = True, drain_s: float = 3.0) -> None:
        """Stop listening, let what is being served finish for at most `drain_s`, close every connection.

        Until then new requests are answered GO_AWAY when the peer knows it (version above 475) and ignored when not:
        older peers just see the close. With `go_away` false they are served to the end.
        """
        self._close_listeners()
        self._set.stop_sweeping()
        if self.connections:
            self._endpoint.going_away = go_away
            if go_away:
                for connection in list(self.connections):
                    connection.go_away()
            try:
                async with asyncio.timeout(drain_s):
                    await asyncio.sleep(GO_AWAY_LINGER_S if go_away else 0)
                    # Polling: a connection stops being busy in its transport, which has no callback for that.
                    while any(connection.is_busy for connection in self.connections):  # noqa: ASYNC110
                        await asyncio.sleep(DRAIN_POLL_S)
            except TimeoutError:
                busy = sum(connection.is_busy for connection in self.connections)
                if busy:
                    _LOG.warning("%s still busy after %.1f s: closed", plural(busy, "connection"), drain_s)
        await self._set.close_all("the server is shutting down")

    async def _listen(self, listener: Listener) -> NetworkServer:
        def connection() -> Connection:
            return Connection(self._endpoint, listener=listener.name)

        try:
            return await self._network.create_server(connection, bare_host(listener.host), listener.port)
        except OSError as error:
            address = join_address(listener.host or "*", listener.port)
            raise OSError(
                error.errno,
                f"cannot listen at {address} (listener {listener.name}): {error.strerror or error}",
            ) from error

    def _close_listeners(self) -> None:
        for server in self._listening.values():
            server.close()
