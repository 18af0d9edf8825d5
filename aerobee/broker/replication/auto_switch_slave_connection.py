"""The master's side of a slave's connection, in controller mode (AutoSwitchHAConnection of RocketMQ).

HANDSHAKE  it states its id; once it represents that id (replica_claims.py) the reply is this log's epochs and end, for
           each request before its first report
READ       its first report contains the end of its log after truncation to the common epochs; then sending starts
SEND       an empty frame first, then log bytes, each frame within one epoch; heartbeats without bytes

The first report is the start offset and acknowledges nothing; each later one acknowledges bytes that were sent on this
connection, or the start offset.
"""

from __future__ import annotations

from collections.abc import Callable

from aerobee.broker.replication.controller_files import Epochs
from aerobee.broker.replication.ended_slaves import EndedSlaves
from aerobee.broker.replication.slave_connection import SlaveConnection
from aerobee.clock import Clock
from aerobee.ha.stream.epoch_file import EpochEntry
from aerobee.ha.stream.handshake import Handshake, HandshakeReply, SlaveStream
from aerobee.ha.stream.transfer_header import TRANSFER_HEAD, HaState
from aerobee.store.message_store import MessageStore


class AutoSwitchSlaveConnection(SlaveConnection):
    """Connection of one slave. Its buffer is bounded: a slave's frame has at most 16 bytes."""

    def __init__(
        self,
        *,
        store: MessageStore,
        clock: Clock,
        epochs: Epochs,
        confirm_offset: Callable[[], int],
        is_member: Callable[[int], bool],
        on_connected: Callable[[AutoSwitchSlaveConnection], str],
        claim: Callable[[AutoSwitchSlaveConnection], None],
        on_ack: Callable[[AutoSwitchSlaveConnection], None],
        on_lost: Callable[[AutoSwitchSlaveConnection], None],
        is_urgent: Callable[[], bool],
        ended: EndedSlaves,
    ) -> None:
        """`on_connected` returns the reason for closing the connection, "" when it may stay. `claim` is called with the
        slave's id, and leads to admitted() or end(), immediately or later.
        """
        super().__init__(store=store, clock=clock, is_urgent=is_urgent, ended=ended)
        self.is_learner = False
        self._epochs = epochs
        self._confirm_offset = confirm_offset
        self._is_member = is_member
        self._on_connected = on_connected
        self._claim = claim
        self._is_admitted = False
        self._on_ack = on_ack
        self._on_lost = on_lost
        self._stream = SlaveStream()
        self._wants_last_file = False

    def admitted(self) -> None:
        """The connection represents its id: answer its handshake."""
        if not self._is_closing():
            self._is_admitted = True
            self._greet()

    def _admit(self) -> str:
        return self._on_connected(self)

    def _acknowledged(self) -> None:
        self._on_ack(self)

    def _lost(self) -> None:
        self._on_lost(self)

    def _why_not_in_sync(self) -> str:
        if self._is_member(self.broker_id):
            return ""
        if self.is_learner:
            return "it is an asyncLearner"
        if self.acknowledged < 0:
            return "it has not confirmed yet what it was sent"
        gap = self._store.log.end - self.acknowledged
        if gap:
            return f"it lacks {gap} bytes"
        return "it has everything, and the controllers have not added it yet"

    def _read(self, data: bytes) -> None:
        self._stream.feed(data)
        last, handshake = -1, None
        while (frame := self._stream.next_frame()) is not None:
            if isinstance(frame, Handshake):
                handshake = frame
            else:
                last = frame.offset
        if handshake is not None:
            self._on_handshake(handshake)  # one reply per read, however many requests it contains
        if last >= 0 and not self._is_closing():
            self._on_report(last)

    def _on_handshake(self, handshake: Handshake) -> None:
        if self.has_begun:
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
            self.end("it reported before it knew where this log begins and ends")
        elif self.has_begun:
            self._take_report(offset)
        elif offset > end:
            self.end(f"it says that it has byte {offset}, the log ends at {end}")
        else:
            self._on_first_report(offset)

    def _on_first_report(self, offset: int) -> None:
        """The slave's log ends at `offset` and equals this log up to there, by the epochs."""
        start = self._start_of(offset, is_from_last_file=self._wants_last_file)
        if start is None:
            return
        self._begin(start)
        # Until something was sent, its position is only its own statement and acknowledges nothing.
        self.probe()
        self.wake()

    def _frame(self, offset: int, size_max: int) -> tuple[bytes, int]:
        entry, end = self._epoch_at(offset)
        size = min(size_max, end - offset)
        assert size >= 0, "an epoch that a byte belongs to ends behind it"
        head = TRANSFER_HEAD.pack(
            HaState.TRANSFER, size, offset, entry.epoch, entry.start_offset, self._confirm_offset()
        )
        return head, size

    def _epoch_at(self, offset: int) -> tuple[EpochEntry, int]:
        found = self._epochs.at(offset)
        assert found is not None, "a master's log has an epoch from its first byte on"
        return found
