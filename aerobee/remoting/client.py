"""A client of the remoting protocol: one connection to an address, shared by all calls to it.

Follows NettyRemotingClient (RocketMQ), with two differences on purpose: a call that times out does not close the
connection (it would fail every other call on it), and calls of one loop pass leave in one write.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping

from aerobee.clock import Clock
from aerobee.errors import ConfigError, ConnectFailed, ConnectionLost, UsageError, remote_error
from aerobee.host_port import split_address
from aerobee.network import Network
from aerobee.remoting.codes import ResponseCode, request_name
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.connection import Burst, Connection, Endpoint
from aerobee.remoting.connection_set import ConnectionSet
from aerobee.remoting.frame import ANSWER_HEADER_BYTES_MAX
from aerobee.remoting.limits import ConnectionLimits
from aerobee.remoting.peer import Handler
from aerobee.remoting.signature import Credentials
from aerobee.remoting.tls import ClientTls
from aerobee.shared_task import SharedTask

CONNECT_TIMEOUT_S = 3.0  # NettyClientConfig.connectTimeoutMillis
LEAVE_WAIT_S = 30.0  # time for which a connection that received GO_AWAY stays open for its pending calls

_LOG = logging.getLogger("aerobee.remoting")


class RemotingClient:
    """`handlers` serve requests that peers send over the client's connections (a broker notifies its
    consumers this way).

    If a call times out and its connection received no byte meanwhile, the client closes the connection, and
    the next call opens another: the operating system may not notice a dead network path for minutes (the Java
    client closes on each time-out, clientCloseSocketIfTimeout).

    `on_connect` is called with each new connection, `connections` holds all that are open, `by_address` those that new
    calls use. `burst` takes responses out of each read (connection.py).
    """

    def __init__(
        self,
        *,
        clock: Clock,
        network: Network,
        handlers: Mapping[int, Handler] | None = None,
        default: Handler | None = None,
        tls: ClientTls | None = None,
        limits: ConnectionLimits | None = None,
        on_connect: Callable[[Connection], None] | None = None,
        burst: Burst | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """`credentials` sign every request that is passed as a RemotingCommand."""
        limits = limits or ConnectionLimits(header_bytes_max=ANSWER_HEADER_BYTES_MAX)
        self._set = ConnectionSet(clock, limits)
        self.connections = self._set.connections
        self._network = network
        self._tls = tls
        self._on_connect = on_connect
        self._endpoint = Endpoint(
            {} if handlers is None else handlers,  # the caller may fill an empty dict later
            default,
            burst,
            limits,
            leaves_unresponsive_peers=True,
            credentials=credentials,
            on_made=self._set.made,
            on_lost=self._connection_lost,
        )
        self.by_address: dict[str, Connection] = {}
        self._connecting: dict[str, SharedTask[Connection]] = {}
        self._is_closed = False

    @property
    def credentials(self) -> Credentials | None:
        """Credentials that sign requests."""
        return self._endpoint.credentials

    async def invoke(
        self, address: str, command: RemotingCommand, *, timeout_s: float = 3.0
    ) -> RemotingCommand:
        """Send a request and return its response, whatever its code (see checked()). `timeout_s` covers connecting.

        After a GO_AWAY response the client repeats the request once, over a new connection. Raises
        ConnectFailed, ConnectionLost, RequestTimeout.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        connection = self.by_address.get(address)
        if connection is None or not connection.is_open:
            connection = await self._connect(address, timeout_s, request_name(command.code))
        response = await connection.invoke(command, timeout_s=timeout_s - (loop.time() - started))
        if response.code != ResponseCode.GO_AWAY:
            return response
        self.leave(connection)
        connection = await self._connect(
            address, timeout_s - (loop.time() - started), request_name(command.code)
        )
        return await connection.invoke(command, timeout_s=timeout_s - (loop.time() - started))

    async def invoke_oneway(self, address: str, command: RemotingCommand, *, timeout_s: float = 3.0) -> None:
        """Send a oneway request; waits while the peer reads nothing.

        Raises ConnectFailed, ConnectionLost, RequestTimeout.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        connection = await self._connect(address, timeout_s, request_name(command.code))
        await connection.wait_writable(timeout_s - (loop.time() - started), request_name(command.code))
        connection.invoke_oneway(command)

    async def connect(self, address: str, timeout_s: float = CONNECT_TIMEOUT_S) -> Connection:
        """Return the open connection to "host:port", or open one; concurrent callers share one attempt.

        Raises ConnectFailed.
        """
        return await self._connect(address, timeout_s, "")

    def connection_to(self, address: str) -> Connection | None:
        """Return the open connection to an address, or None when there is none."""
        connection = self.by_address.get(address)
        return connection if connection is not None and connection.is_open else None

    def leave(self, connection: Connection) -> None:
        """Use this connection for no new call; it closes when its pending calls are answered, within 30 s.

        For a peer that answered GO_AWAY.
        """
        for address, known in list(self.by_address.items()):
            if known is connection:
                del self.by_address[address]
        if connection.is_open:
            connection.close_when_answered(LEAVE_WAIT_S)

    async def close(self) -> None:
        """Close every connection; pending calls fail with ConnectionLost. The client is not used afterwards."""
        self._is_closed = True
        self._set.stop_sweeping()
        connecting = [attempt.task for attempt in self._connecting.values()]
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        await self._set.close_all("this client was closed")

    async def _connect(self, address: str, timeout_s: float, request: str) -> Connection:
        connection = self.by_address.get(address)
        if connection is not None and connection.is_open:
            return connection
        if self._is_closed:
            raise UsageError("this remoting client was closed")
        attempt = self._connecting.get(address)
        if attempt is None:
            task = asyncio.create_task(self._open(address), name=f"connect-{address}")
            task.add_done_callback(lambda _: self._connecting.pop(address, None))
            attempt = self._connecting[address] = SharedTask(task)
        try:
            async with asyncio.timeout(timeout_s):
                return await attempt.outcome()
        except TimeoutError as error:
            text = f"no connection to {address} within {max(timeout_s, 0.0):.1f} s"
            raise ConnectFailed(
                text,
                address=address,
                request=request,
                elapsed_s=timeout_s,
                reason=f"no connection within {max(timeout_s, 0.0):.1f} s",
            ) from error
        except asyncio.CancelledError:
            if attempt.task.cancelled() and self._is_closed:
                raise ConnectionLost("this remoting client was closed", address=address) from None
            raise

    async def _open(self, address: str) -> Connection:
        host, port = split_address(address)
        try:
            pump = None if self._tls is None else self._tls.pump(host)
        except ConfigError as error:
            raise ConnectFailed(f"no TLS connection to {address}: {error}", address=address) from error
        made: list[Connection] = []

        def factory() -> Connection:
            connection = Connection(self._endpoint, address=address, tls=pump, server_side=False)
            made.append(connection)
            return connection

        started = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._network.create_connection(factory, host, port)
                connection = made[-1]
                await connection.handshake()
        except (OSError, ConnectionLost, asyncio.CancelledError) as error:
            for connection in made:
                connection.abort("it was not ready in time")
            if isinstance(error, asyncio.CancelledError):
                raise
            elapsed = asyncio.get_running_loop().time() - started
            why = (
                f"not within {CONNECT_TIMEOUT_S:.0f} s" if isinstance(error, TimeoutError) else _reason(error)
            )
            text = f"no connection to {address}: {why}. Does a server run there, reachable from this machine?"
            raise ConnectFailed(text, address=address, elapsed_s=elapsed, reason=why) from error
        if not connection.is_open:
            why = connection.close_reason or "the peer closed the connection immediately"
            raise ConnectFailed(f"no connection to {address}: {why}", address=address, reason=why)
        _LOG.debug("connected to %s%s", address, " with TLS" if pump is not None else "")
        self.by_address[address] = connection
        self._set.start_sweeping()
        if self._on_connect is not None:
            try:
                self._on_connect(connection)
            except Exception:
                _LOG.exception("on_connect for %s failed", address)
        return connection

    def _connection_lost(self, connection: Connection) -> None:
        self._set.lost(connection)
        for address, known in list(self.by_address.items()):
            if known is connection:
                del self.by_address[address]


def checked(response: RemotingCommand, *, address: str, request: str) -> RemotingCommand:
    """Return a response whose code is 0. Raises the RemoteError of any other code."""
    if response.code == ResponseCode.SUCCESS:
        return response
    raise remote_error(
        response.code, response.remark, address=address, request=request, opaque=response.opaque
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)  # asyncio replaces the system's text, such as "Connection refused"
    if isinstance(error, OSError) and error.strerror:  # an unknown host name has a negative number
        return error.strerror
    return str(error) or type(error).__name__
