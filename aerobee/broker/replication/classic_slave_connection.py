"""The master's side of a slave's connection, in classic mode (DefaultHAConnection of RocketMQ).

The handshake is the first report.

A slave that reports 0 is empty: it gets the whole log, or with syncFromLastFile the newest file (RocketMQ's masters
send only that). A slave that requests bytes before the log's begin or after its end is disconnected with a line in the
log: RocketMQ's master waits until its own log has grown past that offset and then sends the middle of a record.
"""

from __future__ import annotations

from collections.abc import Callable

from aerobee.broker.replication.ended_slaves import EndedSlaves
from aerobee.broker.replication.slave_connection import SlaveConnection
from aerobee.clock import Clock
from aerobee.ha.stream.transfer_header import CLASSIC_HEAD, Reports
from aerobee.store.message_store import MessageStore


class ClassicSlaveConnection(SlaveConnection):
    """Connection of one slave. Its buffer is bounded: at most 7 received bytes are kept."""

    def __init__(
        self,
        *,
        store: MessageStore,
        clock: Clock,
        admit: Callable[[ClassicSlaveConnection], str],
        on_ack: Callable[[ClassicSlaveConnection], None],
        on_lost: Callable[[ClassicSlaveConnection], None],
        is_urgent: Callable[[], bool],
        ended: EndedSlaves,
    ) -> None:
        """`admit` returns the reason for closing the connection, "" when it may stay. `on_ack`: `acknowledged` has
        changed."""
        super().__init__(store=store, clock=clock, is_urgent=is_urgent, ended=ended)
        self.is_in_doubt = False  # another connection from its host was opened since its last bytes
        self._admit_slave = admit
        self._on_ack = on_ack
        self._on_lost = on_lost
        self._reports = Reports()

    def _admit(self) -> str:
        return self._admit_slave(self)

    def _acknowledged(self) -> None:
        self._on_ack(self)

    def _lost(self) -> None:
        self._on_lost(self)

    def _read(self, data: bytes) -> None:
        self.is_in_doubt = False
        offset = self._reports.feed(data)
        if offset is None:
            return
        if self.has_begun:
            self._take_report(offset)
        else:
            self._on_first_report(offset)

    def _on_first_report(self, offset: int) -> None:
        store = self._store
        if offset > store.log.end:
            self.end(f"it has byte {offset}, the log ends at {store.log.end}: it followed another master")
            return
        start = self._start_of(offset, is_from_last_file=store.config.sync_from_last_file)
        if start is None:
            return
        # It acknowledges nothing: the slave has not compared its log before that offset yet.
        self.acknowledged = 0
        self._begin(start).wake()
        self._acknowledged()

    def _frame(self, offset: int, size_max: int) -> tuple[bytes, int]:
        return CLASSIC_HEAD.pack(offset, size_max), size_max

    def _why_not_in_sync(self) -> str:
        if self.acknowledged < 0:
            return "it has not said yet how far its log goes"
        gap, gap_max = self._store.log.end - self.acknowledged, self._store.config.ha_max_gap_not_in_sync
        return f"it lacks {gap} bytes, haMaxGapNotInSync is {gap_max}" if gap >= gap_max else ""
