"""A slave's connection at the master, in classic mode (DefaultHAConnection of RocketMQ).

    READ    its first report says where it wants to begin, every later one how far its log goes
    SEND    log bytes as they come, a heartbeat after haSendHeartbeatInterval without any

A slave that reports 0 has nothing: it gets the whole log, or with syncFromLastFile the newest file (RocketMQ's masters send
no more than that). One that wants bytes that are not here, before the log's begin or behind its end, is sent away with a
line in the log: RocketMQ's master waits until its own log has grown past that place and then sends the middle of a record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from aerobee.broker.replication.byte_rate import ByteRate
from aerobee.broker.replication.ended_slaves import EndedSlaves
from aerobee.broker.replication.ha_mode import ReplicaState
from aerobee.broker.replication.log_sender import LogSender
from aerobee.clock import Clock, Timer
from aerobee.errors import WireError
from aerobee.ha.stream.transfer_header import CLASSIC_HEAD, Reports
from aerobee.host_port import join_address
from aerobee.store.message_store import MessageStore

log = logging.getLogger(__name__)


class SlaveConnection(asyncio.Protocol):
    """One slave. Bounded: of what it sends at most 7 bytes are kept, and it is sent no more than it reads."""

    def __init__(
        self,
        *,
        store: MessageStore,
        clock: Clock,
        admit: Callable[[SlaveConnection], str],
        on_ack: Callable[[SlaveConnection], None],
        on_lost: Callable[[SlaveConnection], None],
        is_urgent: Callable[[], bool],
        ended: EndedSlaves,
    ) -> None:
        """`is_urgent`: somebody waits until slaves have what is written.

        `admit` says why the connection may not stay, "" when it may. `on_ack`: `acknowledged` has changed.
        """
        self.address = ""
        self.host = ""
        self.is_in_doubt = False  # another connection came from its host since it was heard last
        self.acknowledged = -1  # before its first report
        self.caught_up_at_s = -1.0
        self._store = store
        self._clock = clock
        self._admit = admit
        self._on_ack = on_ack
        self._on_lost = on_lost
        self._is_urgent = is_urgent
        self._ended = ended
        self._reports = Reports()
        self._transport: asyncio.Transport | None = None
        self._sender: LogSender | None = None
        self._timer: Timer | None = None
        self._last_read_s = clock.monotonic()
        self._rate = ByteRate(self._last_read_s)

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = join_address(*peer[:2]) if peer else "?"
        self.host = str(peer[0]) if peer else ""
        refusal = self._admit(self)
        if refusal:
            self.end(refusal)
            return
        log.info("a slave has connected from %s", self.address)
        self._tick()

    def data_received(self, data: bytes) -> None:
        self._last_read_s = self._clock.monotonic()
        self.is_in_doubt = False
        try:
            offset = self._reports.feed(data)
        except WireError as error:
            self.end(f"it sent {error}")
            return
        if offset is None:
            return
        if self._sender is None:
            start = self._start_of(offset)
            if start is None:
                return
            # It does not count as an acknowledgement: nobody has compared yet what the slave has before that place.
            self.acknowledged = 0
            self._begin(start)
            self._on_ack(self)
            return
        if offset > self._store.log.end:
            self.end(f"it says that it has byte {offset}, the log ends at {self._store.log.end}")
            return
        if offset > self._sender.position:
            self.end(f"it says that it has byte {offset}, it was sent what is before {self._sender.position}")
            return
        self.acknowledged = offset
        self._sender.on_ack(offset)
        if offset >= self._store.log.end:
            self.caught_up_at_s = self._last_read_s
        self._on_ack(self)

    def pause_writing(self) -> None:
        if self._sender is not None:
            self._sender.pause()

    def resume_writing(self) -> None:
        if self._sender is not None:
            self._sender.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._sender is not None:
            self._sender.close()
        self._on_lost(self)

    # ---

    @property
    def has_begun(self) -> bool:
        """Whether it has said where to begin, and is sent the log."""
        return self._sender is not None

    def wake(self) -> None:
        """The log has grown."""
        if self._sender is not None:
            self._sender.wake()

    def end(self, reason: str) -> None:
        """Close the connection at once; connection_lost follows."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._ended.say(self.address, reason)
            if self._sender is not None:
                self._sender.close()
            transport.abort()

    def state(self) -> ReplicaState:
        """What operators are shown of this slave."""
        gap, gap_max = (
            self._store.log.end - max(0, self.acknowledged),
            self._store.config.ha_max_gap_not_in_sync,
        )
        why_not = ""
        if self.acknowledged < 0:
            why_not = "it has not said yet how far its log goes"
        elif gap >= gap_max:
            why_not = f"it lacks {gap} bytes, haMaxGapNotInSync is {gap_max}"
        return ReplicaState(
            address=self.address,
            acknowledged=max(0, self.acknowledged),
            sent=self._sender.position if self._sender is not None else 0,
            is_in_sync=not why_not,
            why_not=why_not,
            caught_up_at_s=self.caught_up_at_s,
            bytes_per_s=self._bytes_per_s(),
        )

    def _bytes_per_s(self) -> int:
        return self._rate.look(
            self._clock.monotonic(), self._sender.position if self._sender is not None else 0
        )

    def _start_of(self, offset: int) -> int | None:
        """Where to send from; None when that cannot be, and the connection is being closed."""
        store_log = self._store.log
        if offset == 0:
            if not self._store.config.sync_from_last_file:
                return store_log.min_offset
            return max(store_log.min_offset, store_log.end - store_log.end % store_log.segment_size)
        if offset < store_log.min_offset:
            self.end(f"it wants byte {offset}, the log begins at {store_log.min_offset}")
            return None
        if offset > store_log.end:
            self.end(f"it has byte {offset}, the log ends at {store_log.end}: it followed another master")
            return None
        return offset

    def _begin(self, start: int) -> None:
        assert self._transport is not None
        log.info("the slave at %s follows from byte %d on", self.address, start)
        store = self._store
        self._sender = LogSender(
            log=store.log,
            transport=self._transport,
            frame_head=self._frame_head,
            hot_bytes=lambda: store.config.hot_read_bytes,
            warm=store.warm_records,
            clock=self._clock,
            on_gone=self.end,
            is_urgent=self._is_urgent,
            position=start,
        )
        self._rate = ByteRate(self._clock.monotonic(), start)
        self._sender.wake()

    def _frame_head(self, offset: int, size_max: int) -> tuple[bytes, int]:
        size = min(size_max, self._store.config.ha_transfer_batch_size)
        return CLASSIC_HEAD.pack(offset, size), size

    def _tick(self) -> None:
        """Heartbeats and housekeeping, once a second or as often as the settings want."""
        config, now = self._store.config, self._clock.monotonic()
        if now - self._last_read_s > config.ha_housekeeping_interval / 1000:
            self.end(f"it was silent for {now - self._last_read_s:.0f} s (haHousekeepingInterval)")
            return
        self._bytes_per_s()
        sender = self._sender
        if sender is not None and now - sender.last_write_s >= config.ha_send_heartbeat_interval / 1000:
            sender.write(CLASSIC_HEAD.pack(sender.position, 0))
        shortest_ms = min(config.ha_send_heartbeat_interval, config.ha_housekeeping_interval, 4_000)
        self._timer = self._clock.call_later(shortest_ms / 4000, self._tick)
