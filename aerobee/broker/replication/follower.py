"""A slave's half of replication, for both modes (HAClient of RocketMQ): connects and reconnects, sends reports, and
ends silent connections.

A mode (classic_follower.py, auto_switch_follower.py) adds the handshake and the handling of received bytes.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar, cast

from aerobee.broker.replication.byte_rate import ByteRate
from aerobee.broker.replication.ha_mode import FollowState, MasterAddress
from aerobee.clock import Clock, Timer
from aerobee.errors import AerobeeError, StoreError
from aerobee.host_port import split_address
from aerobee.network import Network
from aerobee.store.message_store import MessageStore

log = logging.getLogger(__name__)
Received = TypeVar("Received")
HA_READ_BYTES = 256 << 10  # of one read, as asyncio's
RETRY_S = 1.0  # RocketMQ: 5 s
# First retry pause for a master of a new epoch, doubled each time: slaves learn of the new master at the same
# moment as the master itself, and an early slave must not miss the sync state set, in case this master fails
# as well.
FIRST_RETRY_S = 0.1
CONNECT_TIMEOUT_S = 3.0


class CannotFollow(AerobeeError):
    """This log cannot follow the master's without an operator; the text states the reason and the remedy."""


def why(error: Exception) -> str:
    """The master cannot be followed; the text is the reason."""
    if isinstance(error, TimeoutError) and not str(error):
        return f"no connection, with its TLS handshake if there is one, within {CONNECT_TIMEOUT_S:.0f} s"
    return str(error) or type(error).__name__


class MasterConnection(asyncio.BufferedProtocol, ABC):
    """One connection to a master. `closed` is done when it has ended, with the reason as its exception.

    A plain TCP connection reads into one buffer, and the bytes of a large frame where they are appended from. TLS, a
    connection with a key, and a simulation call data_received().
    """

    def __init__(self, owner: Follower) -> None:
        self._buffer = memoryview(bytearray(HA_READ_BYTES))
        self._is_direct = False  # the bytes of the next read go into _space()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self._unreported: int | None = None

    @abstractmethod
    def _greet(self, transport: asyncio.Transport) -> None:
        """Send the first request of the exchange."""

    @abstractmethod
    def _read(self, data: bytes | memoryview) -> None:
        """Handle bytes from the master. Keeps no view of them. Raises WireError, StoreError, CannotFollow."""

    @abstractmethod
    def _space(self) -> memoryview | None:
        """Where the next bytes of a large frame belong; None when the next bytes are for _read()."""

    @abstractmethod
    def _on_space_filled(self, count: int) -> None:
        """`count` bytes have been written into _space(). Raises as _read()."""

    @abstractmethod
    def _encode_report(self, offset: int) -> bytes:
        """The report that this log ends at `offset`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.closed.done():  # given up while the connection was made
            self._transport.abort()
            return
        self._greet(self._transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the transport writes its next read."""
        space = None if self.closed.done() else self._space()
        self._is_direct = space is not None
        return self._buffer if space is None else space

    def buffer_updated(self, nbytes: int) -> None:
        """The transport has read `nbytes` bytes into the buffer of get_buffer()."""
        if self._is_direct:
            self._handle(self._on_space_filled, nbytes)
        else:
            self._handle(self._read, self._buffer[:nbytes])

    def data_received(self, data: bytes) -> None:
        """Bytes that are in no buffer of this connection."""
        self._handle(self._read, data)

    def _handle(self, handle: Callable[[Received], None], what: Received) -> None:
        if self.closed.done():
            return
        try:
            self._owner.on_read()
            handle(what)
        except AerobeeError as error:
            self.end(error)
        except Exception as error:
            log.exception("following the master failed")
            self.end(StoreError(f"an internal error of this broker: {error!r}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(exc or ConnectionResetError("the master closed the connection"))

    def report(self, offset: int) -> None:
        """Report this log's end to the master, after it has read enough of the earlier reports."""
        if self._is_paused:
            self._unreported = offset
        elif self._transport is not None and not self._transport.is_closing():
            self._owner.on_write()
            self._transport.write(self._encode_report(offset))

    def pause_writing(self) -> None:
        """The master does not read: keep only the newest report meanwhile."""
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        if (offset := self._unreported) is not None:
            self._unreported = None
            self.report(offset)

    def end(self, error: BaseException | None) -> None:
        """Close the connection; without an error the follower reconnects without a pause."""
        if self._transport is not None:
            self._transport.abort()
        if self.closed.done():
            return
        if error is None:
            self.closed.set_result(None)
        else:
            self.closed.set_exception(error)
            self.closed.exception()  # read, so that asyncio reports no unread exception once run() is cancelled


class Follower(ABC):
    """Follows one master at a time. Belongs to the event loop."""

    _first_retry_s = RETRY_S  # the pause doubles after each try, up to RETRY_S

    def __init__(self, *, store: MessageStore, clock: Clock, network: Network) -> None:
        self._store = store
        self._clock = clock
        self._network = network
        self._connection: MasterConnection | None = None
        self._is_stopped = False
        self._master = MasterAddress(ha="")
        self._master_end = 0
        self._last_read_s = -1.0
        self._last_write_s = -1.0
        self._rate = ByteRate(clock.monotonic(), store.log.end)
        self._trouble = ""
        self._timer: Timer | None = None

    async def run(self, master: MasterAddress) -> None:
        """Follow `master` until cancelled, or until the mode has set `_is_stopped`."""
        self._master, self._is_stopped = master, False
        pause_s = self._first_retry_s
        while not self._is_stopped:
            try:
                await self._follow()
            except (AerobeeError, OSError, TimeoutError) as error:
                self._say(why(error))
            except Exception:
                # Boundary of the task: a slave whose task had ended would copy nothing, unnoticed by
                # operators.
                log.exception("following the master at %s failed; trying again", master.ha)
                self._trouble = "an internal error of this broker, see its log"
            else:
                continue
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S)

    @abstractmethod
    async def _follow(self) -> None:
        """One connection, from its handshake to its end. Returning makes the caller reconnect without a pause."""

    def state(self) -> FollowState:
        """The present state of the master."""
        return FollowState(
            master=self._master,
            is_connected=self._is_copying,
            master_end=self._master_end,
            last_read_s=self._last_read_s,
            last_write_s=self._last_write_s,
            bytes_per_s=self._rate.look(self._clock.monotonic(), self._store.log.end),
            trouble=self._trouble,
        )

    def on_read(self) -> None:
        """Bytes of the master came."""
        self._last_read_s = self._clock.monotonic()

    def on_write(self) -> None:
        """Something was sent to the master."""
        self._last_write_s = self._clock.monotonic()

    @property
    @abstractmethod
    def _is_copying(self) -> bool:
        """Whether a connection is open and received bytes are appended."""

    async def _connect(self, connection: MasterConnection) -> None:
        """Open it to the master. Raises OSError, TimeoutError. _disconnect() closes it, also when this raises."""
        host, port = split_address(self._master.ha)
        self._last_read_s = self._clock.monotonic()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await self._network.create_connection(lambda: connection, host, port)
        self._connection = connection

    def _disconnect(self, connection: MasterConnection | None) -> None:
        """Close that connection. A connection that a later run() has opened stays."""
        if connection is None:
            return
        if connection is self._connection:
            self._connection = None
            self._stop_watching()
        connection.end(ConnectionResetError("this broker no longer follows"))

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("the master at %s is not followed: %s; trying again", self._master.ha, trouble)

    async def _durable(self) -> None:
        """With sync flush wait until the log is on disk: the first report contains its end."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(ok: bool) -> None:
            if not future.done():
                future.set_result(ok)

        self._store.wait_durable(self._store.log.end, done)
        if not await future:
            raise StoreError(self._store.writability.reason or "the store failed")

    async def _cut(self, start: int, what: str) -> None:
        """Truncate the log; `what` states the reason in the log line. Raises StoreError, RecordInvalid, OSError."""
        cut = await self._store.cut_to(start)
        log.warning(
            "this log %s: its bytes from %d up to %d were cut off, with %d queue entries, and are kept in %s",
            what,
            cut.start,
            cut.end,
            cut.entry_count,
            ", ".join(cut.paths),
        )

    def _acknowledge(self, connection: MasterConnection) -> None:
        """Report the log's end; with sync flush the flushed end, after the flush."""
        store = self._store
        if not store.holds_answers:
            connection.report(store.log.end)
            return
        store.wait_durable(store.log.end, lambda ok: connection.report(store.flushed.value) if ok else None)

    def _watch(self, connection: MasterConnection) -> None:
        """Periodic reports and housekeeping, until _stop_watching()."""
        store, now = self._store, self._clock.monotonic()
        config = store.config
        self._rate.look(now, store.log.end)
        silent_s = now - self._last_read_s
        if silent_s > config.ha_housekeeping_interval / 1000:
            connection.end(
                TimeoutError(f"nothing came from it for {silent_s:.0f} s (haHousekeepingInterval)")
            )
            return
        if now - self._last_write_s >= config.ha_send_heartbeat_interval / 1000:
            # Never the confirm offset: a report below an earlier one would mean a loss. While no byte is
            # known to match the master's log, 0 acknowledges nothing.
            kept = store.flushed.value if store.holds_answers else store.log.end
            connection.report(kept if self._is_copying else 0)
        shortest_ms = min(config.ha_send_heartbeat_interval, config.ha_housekeeping_interval, 4_000)
        self._timer = self._clock.call_later(shortest_ms / 4000, self._watch, connection)

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
