"""The master's side of a slave's connection, for both modes (HAConnection of RocketMQ).

    ADMIT    the mode decides whether the connection may stay, then decides again where its handshake says who it is
    READ     what the slave sends: a handshake (classic_slave_connection.py, auto_switch_slave_connection.py), then where its log ends
    SEND     log bytes from where the handshake says, a heartbeat after haSendHeartbeatInterval without any

A report acknowledges what is before it. One above the master's log, or above what was sent on this connection, closes it.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

from aerobee.broker.replication.bulk_transfer import bulk_transfer
from aerobee.broker.replication.byte_rate import ByteRate
from aerobee.broker.replication.ended_slaves import EndedSlaves
from aerobee.broker.replication.ha_mode import ReplicaState
from aerobee.broker.replication.log_sender import LogSender
from aerobee.clock import Clock, Timer
from aerobee.errors import WireError
from aerobee.host_port import join_address
from aerobee.store.message_store import MessageStore

log = logging.getLogger(__name__)
LATEST_TICK_MS = 4_000  # a quarter of it is the longest time between two ticks


class SlaveConnection(asyncio.Protocol, ABC):
    """Connection of one slave. Its memory is bounded: the decoder keeps at most one frame, and log bytes are sent no
    faster than the slave reads.
    """

    def __init__(
        self, *, store: MessageStore, clock: Clock, is_urgent: Callable[[], bool], ended: EndedSlaves
    ) -> None:
        """`is_urgent`: whether an append waits for slaves. `ended` logs why the master closes a connection."""
        self.address = ""
        self.host = ""
        self.broker_id = -1  # until the slave says it; classic slaves do not
        self.acknowledged = -1  # before its first report
        self.caught_up_at_s = -1.0
        self.read_count = 0  # number of reads with bytes
        self._store = store
        self._clock = clock
        self._is_urgent = is_urgent
        self._ended = ended
        self._transport: asyncio.Transport | None = None
        self._sender: LogSender | None = None
        self._timer: Timer | None = None
        self._last_read_s = clock.monotonic()
        self._rate = ByteRate(self._last_read_s)
        self._kept_deleted_since_s: float | None = None  # a file of the log, for this slave

    # --- what a mode adds

    @abstractmethod
    def _admit(self) -> str:
        """Why the connection may not stay; "" when it may."""

    @abstractmethod
    def _read(self, data: bytes) -> None:
        """Bytes of the slave: the handshake, then reports for _take_report(). Raises WireError."""

    @abstractmethod
    def _acknowledged(self) -> None:
        """`acknowledged` has changed."""

    @abstractmethod
    def _lost(self) -> None:
        """The connection is closed."""

    @abstractmethod
    def _frame(self, offset: int, size_max: int) -> tuple[bytes, int]:
        """The head of a frame of log bytes from `offset` on, and how many bytes (at most `size_max`) follow it; 0: a heartbeat."""

    @abstractmethod
    def _why_not_in_sync(self) -> str:
        """Reason why the slave is not in sync, as a clause without a full stop; "" when it is in sync."""

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = join_address(*peer[:2]) if peer else "?"
        self.host = str(peer[0]) if peer else ""
        refusal = self._admit()
        if refusal:
            self.end(refusal)
            return
        log.info("a slave has connected from %s", self.address)
        self._tick()

    def data_received(self, data: bytes) -> None:
        if self._is_closing():
            return
        self._last_read_s = self._clock.monotonic()
        self.read_count += 1
        try:
            self._read(data)
        except WireError as error:
            self.end(f"it sent {error}")
        except Exception as error:
            # The edge of what a slave can reach: without it the transport would close, and no line would name the slave.
            log.exception("serving the slave at %s failed", self.address)
            self.end(f"an internal error of this broker: {error!r}")

    def pause_writing(self) -> None:
        if self._sender is not None:
            self._sender.pause()
        elif self._transport is not None:
            self._transport.pause_reading()  # the slave repeats its handshake and does not read the answers

    def resume_writing(self) -> None:
        if self._sender is not None:
            self._sender.resume()
        if self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._sender is not None:
            self._sender.close()
        self._lost()

    # --- for the mode

    @property
    def has_begun(self) -> bool:
        """Whether it has said where to begin, and is sent the log."""
        return self._sender is not None

    def wake(self) -> None:
        """The log has grown."""
        if self._sender is not None:
            self._sender.wake()

    def probe(self) -> None:
        """Send a heartbeat, which a slave answers, if sending has begun."""
        if self._sender is not None:
            self._heartbeat(self._sender)

    def end(self, reason: str) -> None:
        """Close the connection immediately; connection_lost follows."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._ended.say(self.address, reason)
            if self._sender is not None:
                self._sender.close()
            transport.abort()

    def state(self) -> ReplicaState:
        """This slave's state, for operators."""
        why_not = self._why_not_in_sync()
        return ReplicaState(
            address=self.address,
            acknowledged=max(0, self.acknowledged),
            sent=self._sender.position if self._sender is not None else 0,
            is_in_sync=not why_not,
            why_not=why_not,
            caught_up_at_s=self.caught_up_at_s,
            bytes_per_s=self._bytes_per_s(),
            broker_id=self.broker_id,
        )

    # --- for the handshake of a mode

    def _is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def _start_of(self, offset: int, *, is_from_last_file: bool) -> int | None:
        """The offset from which to send to a slave whose log ends at `offset`; None when the slave cannot follow: the
        connection is then being closed.
        """
        store_log = self._store.log
        if offset == 0:
            if not is_from_last_file:
                return store_log.min_offset
            return max(store_log.min_offset, store_log.end - store_log.end % store_log.segment_size)
        if offset < store_log.min_offset:
            self.end(f"it wants byte {offset}, the log begins at {store_log.min_offset}")
            return None
        return offset

    def _begin(self, start: int) -> LogSender:
        """Send the log from `start` on, at the next wake()."""
        assert self._transport is not None, "sending begins on an open connection"
        assert self._sender is None, "sending begins once"
        assert self._store.log.min_offset <= start <= self._store.log.end, "the log has what is sent"
        who = f"broker {self.broker_id}" if self.broker_id >= 0 else "the slave"
        log.info("%s at %s follows from byte %d on", who, self.address, start)
        store = self._store
        sender = self._sender = LogSender(
            log=store.log,
            transport=self._transport,
            bulk=bulk_transfer(self._transport),
            frame_head=self._frame,
            frame_bytes=lambda: store.config.ha_transfer_batch_size,
            hot_bytes=lambda: store.config.hot_read_bytes,
            warm=store.warm_records,
            clock=self._clock,
            on_gone=self.end,
            is_urgent=self._is_urgent,
            position=start,
        )
        self._rate = ByteRate(self._clock.monotonic(), start)
        return sender

    def _take_report(self, offset: int) -> None:
        """A report after the one that began the sending."""
        sender, end = self._sender, self._store.log.end
        assert sender is not None, "a slave acknowledges what it was sent"
        if offset > end:
            self.end(f"it says that it has byte {offset}, the log ends at {end}")
            return
        if offset > sender.position:
            self.end(f"it says that it has byte {offset}, it was sent what is before {sender.position}")
            return
        self.acknowledged = offset
        sender.on_ack(offset)
        assert self.acknowledged <= sender.position <= end, (
            "a slave acknowledges what it was sent, and that is in the log"
        )
        if offset >= end:
            self.caught_up_at_s = self._last_read_s
        self._acknowledged()

    # ---

    def _bytes_per_s(self) -> int:
        return self._rate.look(
            self._clock.monotonic(), self._sender.position if self._sender is not None else 0
        )

    def _heartbeat(self, sender: LogSender) -> None:
        sender.write(self._frame(sender.position, 0)[0])

    def _tick(self) -> None:
        """Heartbeats and housekeeping, every second or as often as the settings require."""
        config, now = self._store.config, self._clock.monotonic()
        if now - self._last_read_s > config.ha_housekeeping_interval / 1000:
            self.end(f"it was silent for {now - self._last_read_s:.0f} s (haHousekeepingInterval)")
            return
        self._bytes_per_s()
        sender = self._sender
        if sender is None or not sender.keeps_deleted_file:
            self._kept_deleted_since_s = None
        elif self._kept_deleted_since_s is None:
            self._kept_deleted_since_s = now
        elif now - self._kept_deleted_since_s > config.ha_housekeeping_interval / 1000:
            self.end(
                f"it takes no bytes of a file that was deleted {now - self._kept_deleted_since_s:.0f} s ago (haHousekeepingInterval)"
            )
            return
        if sender is not None and now - sender.last_write_s >= config.ha_send_heartbeat_interval / 1000:
            self._heartbeat(sender)
        shortest_ms = min(config.ha_send_heartbeat_interval, config.ha_housekeeping_interval, LATEST_TICK_MS)
        self._timer = self._clock.call_later(shortest_ms / 4000, self._tick)
