"""A slave's connection at the master, in controller mode (AutoSwitchHAConnection of RocketMQ).

HANDSHAKE   it says who it is; once it stands for that id (replica_claims.py) the answer is this log's epochs and end, as often as
            it asks before its first report
READ        its first report says where its log ends once it has cut off what the epochs do not share; then sending begins
SEND        an empty frame first, then log bytes, each frame within one epoch; heartbeats without bytes

The first report is where to begin and acknowledges nothing; each later one acknowledges what was sent on this connection, or what it
began behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from aerobee.broker.replication.controller_files import Epochs
from aerobee.broker.replication.ended_slaves import EndedSlaves
from aerobee.broker.replication.ha_mode import ReplicaState
from aerobee.broker.replication.log_sender import LogSender
from aerobee.clock import Clock, Timer
from aerobee.errors import WireError
from aerobee.ha.stream.epoch_file import EpochEntry
from aerobee.ha.stream.handshake import Handshake, HandshakeReply, SlaveStream
from aerobee.ha.stream.transfer_header import TRANSFER_HEAD, HaState
from aerobee.host_port import join_address
from aerobee.store.message_store import MessageStore

log = logging.getLogger(__name__)


class AutoSwitchSlave(asyncio.Protocol):
    """One slave. Bounded: a frame of what it sends is at most 16 bytes, and it is sent no more than it reads."""

    def __init__(
        self,
        *,
        store: MessageStore,
        clock: Clock,
        epochs: Epochs,
        confirm_offset: Callable[[], int],
        is_member: Callable[[int], bool],
        on_connected: Callable[[AutoSwitchSlave], str],
        claim: Callable[[AutoSwitchSlave], None],
        on_ack: Callable[[AutoSwitchSlave], None],
        on_lost: Callable[[AutoSwitchSlave], None],
        is_urgent: Callable[[], bool],
        ended: EndedSlaves,
    ) -> None:
        """`is_urgent`: somebody waits until slaves have what is written.

        `on_connected` says why the connection may not stay, "" when it may. `claim` is called when the slave has said its id, and
        leads to admitted() or end(), at once or later.
        """
        self.address = ""
        self.host = ""
        self.broker_id = -1
        self.is_learner = False
        self.acknowledged = -1  # until it confirms what it was sent
        self.read_count = 0  # reads that brought something
        self._store = store
        self._clock = clock
        self._epochs = epochs
        self._confirm_offset = confirm_offset
        self._is_member = is_member
        self._on_connected = on_connected
        self._claim = claim
        self._is_admitted = False
        self._on_ack = on_ack
        self._on_lost = on_lost
        self._is_urgent = is_urgent
        self._ended = ended
        self._stream = SlaveStream()
        self._wants_last_file = False
        self._transport: asyncio.Transport | None = None
        self._sender: LogSender | None = None
        self._timer: Timer | None = None
        self._last_read_s = clock.monotonic()
        self._caught_up_at_s = -1.0

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = join_address(*peer[:2]) if peer else "?"
        self.host = str(peer[0]) if peer else ""
        refusal = self._on_connected(self)
        if refusal:
            self.end(refusal)
            return
        self._tick()

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._last_read_s = self._clock.monotonic()
        self.read_count += 1
        try:
            self._stream.feed(data)
            last, handshake = -1, None
            while (frame := self._stream.next_frame()) is not None:
                if isinstance(frame, Handshake):
                    handshake = frame
                else:
                    last = frame.offset
            if handshake is not None:
                self._on_handshake(handshake)  # one answer a read, however many were sent
            if last >= 0 and not transport.is_closing():
                self._on_report(last)
        except WireError as error:
            self.end(f"it sent {error}")
        except Exception as error:
            log.exception("serving the slave at %s failed", self.address)
            self.end(f"a fault of this broker: {error!r}")

    def pause_writing(self) -> None:
        if self._sender is not None:
            self._sender.pause()
        elif self._transport is not None:
            self._transport.pause_reading()  # it asks for epochs and does not read them

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
        self._on_lost(self)

    # ---

    def admitted(self) -> None:
        """It stands for its id: answer its handshake."""
        if self._transport is not None and not self._transport.is_closing():
            self._is_admitted = True
            self._greet()

    def probe(self) -> None:
        """Send something that a slave answers, if it was sent anything yet."""
        if self._sender is not None:
            self._sender.write(self._head(self._sender.position, 0))

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
        is_member = self._is_member(self.broker_id)
        return ReplicaState(
            address=self.address,
            acknowledged=max(0, self.acknowledged),
            sent=self._sender.position if self._sender is not None else 0,
            is_in_sync=is_member,
            why_not="" if is_member else self._why_no_member(),
            caught_up_at_s=self._caught_up_at_s,
            broker_id=self.broker_id,
        )

    def _why_no_member(self) -> str:
        if self.is_learner:
            return "it is an asyncLearner"
        if self.acknowledged < 0:
            return "it has not confirmed yet what it was sent"
        gap = self._store.log.end - self.acknowledged
        if gap:
            return f"it lacks {gap} bytes"
        return "it has everything, and the controllers have not taken it in yet"

    def _on_handshake(self, handshake: Handshake) -> None:
        if self._sender is not None:
            self.end("it sent a handshake in the middle of the log")
            return
        if self.broker_id not in (-1, handshake.broker_id):
            self.end(f"it said that it is broker {self.broker_id}, and now {handshake.broker_id}")
            return
        is_new = self.broker_id < 0
        self.broker_id = handshake.broker_id
        self.is_learner = handshake.is_async_learner
        self._wants_last_file = handshake.is_sync_from_last_file
        if is_new:
            self._claim(self)
        elif self._is_admitted:
            self._greet()

    def _greet(self) -> None:
        reply = HandshakeReply(max_offset=self._store.log.end, entries=self._epochs.sent())
        assert self._transport is not None
        self._transport.write(reply.encode())

    def _on_report(self, offset: int) -> None:
        end = self._store.log.end
        if not self._is_admitted:
            self.end("it reported before it was told where this log is")
        elif offset > end:
            self.end(f"it says that it has byte {offset}, the log ends at {end}")
        elif self._sender is None:
            self._begin(offset)
        elif offset > self._sender.position:
            self.end(f"it says that it has byte {offset}, it was sent what is before {self._sender.position}")
        else:
            self._sender.on_ack(offset)
            self._acknowledge(offset)

    def _acknowledge(self, offset: int) -> None:
        self.acknowledged = offset
        if offset >= self._store.log.end:
            self._caught_up_at_s = self._last_read_s
        self._on_ack(self)

    def _begin(self, offset: int) -> None:
        """The slave's log ends at `offset`, and is this one up to there: epochs say so."""
        store_log = self._store.log
        start = offset
        if offset == 0:
            start = store_log.min_offset
            if self._wants_last_file:
                start = max(start, store_log.end - store_log.end % store_log.segment_size)
        if start < store_log.min_offset:
            self.end(f"it wants byte {start}, the log begins at {store_log.min_offset}")
            return
        assert self._transport is not None
        log.info("broker %d at %s follows from byte %d on", self.broker_id, self.address, start)
        store = self._store
        self._sender = LogSender(
            log=store_log,
            transport=self._transport,
            frame_head=self._frame_head,
            hot_bytes=lambda: store.config.hot_read_bytes,
            warm=store.warm_records,
            clock=self._clock,
            on_gone=self.end,
            is_urgent=self._is_urgent,
            position=start,
        )
        # Answered by what acknowledges: where it began is what it says of itself, and nothing was sent to it yet.
        self._sender.write(self._head(start, 0))
        self._sender.wake()

    def _frame_head(self, offset: int, size_max: int) -> tuple[bytes, int]:
        _, end = self._epoch_at(offset)
        size = min(size_max, self._store.config.ha_transfer_batch_size, end - offset)
        return self._head(offset, size), size

    def _head(self, offset: int, size: int) -> bytes:
        entry, _ = self._epoch_at(offset)
        return TRANSFER_HEAD.pack(
            HaState.TRANSFER, size, offset, entry.epoch, entry.start_offset, self._confirm_offset()
        )

    def _epoch_at(self, offset: int) -> tuple[EpochEntry, int]:
        found = self._epochs.at(offset)
        assert found is not None, "a master's log has an epoch from its first byte on"
        return found

    def _tick(self) -> None:
        """Heartbeats and housekeeping."""
        config, now = self._store.config, self._clock.monotonic()
        if now - self._last_read_s > config.ha_housekeeping_interval / 1000:
            self.end(f"it was silent for {now - self._last_read_s:.0f} s (haHousekeepingInterval)")
            return
        sender = self._sender
        if sender is not None and now - sender.last_write_s >= config.ha_send_heartbeat_interval / 1000:
            sender.write(self._head(sender.position, 0))
        shortest_ms = min(config.ha_send_heartbeat_interval, config.ha_housekeeping_interval, 4_000)
        self._timer = self._clock.call_later(shortest_ms / 4000, self._tick)
