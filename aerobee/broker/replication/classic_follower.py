"""A slave's half of classic replication (DefaultHAClient of RocketMQ), with a search for diverged logs, which RocketMQ
lacks.

States of a connection:

    ASK      the master's log begin and end are requested (28), where its address is known
    COMPARE  the newest bytes of this log are requested again and compared (ha/stream/divergence.py); a diverging end is
             truncated
    FOLLOW   bytes are appended as they arrive, and the log's end is reported after each read

An empty log begins at the start of the master's. Classic masters send only their newest file to a slave that reports 0,
so it requests byte 1 and assumes that the log's first byte, the highest byte of a record's size, is 0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from aerobee.broker.fastpath.choice import RawAppends
from aerobee.broker.replication.follower import CannotFollow, Follower, MasterConnection
from aerobee.broker.replication.ha_mode import MasterAddress
from aerobee.broker.replication.raw_receiver import RawReceiver
from aerobee.broker.state.master_questions import LogBounds
from aerobee.clock import Clock
from aerobee.errors import MalformedFrame, StoreError
from aerobee.ha.stream.divergence import DivergenceSearch, Verdict
from aerobee.ha.stream.transfer_header import ClassicFrames, encode_report
from aerobee.message import MAGIC_BLANK
from aerobee.network import Network
from aerobee.record_head import RECORD_BYTES_MIN
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.message_store import MessageStore

log = logging.getLogger(__name__)
UNANSWERED_MAX = (
    20  # requests of an empty slave for the begin of the master's log, before it continues without a reply
)


# Reads a master's log ends, by its address for requests; None when it does not return them.
AskBounds = Callable[[str], Awaitable[LogBounds | None]]


class _ClassicConnection(MasterConnection):
    """One connection to a classic master."""

    def __init__(self, owner: ClassicFollower, plan: _Plan) -> None:
        super().__init__(owner)
        self._follower = owner
        self._plan = plan
        self._frames = ClassicFrames()
        self._is_first = True

    def _greet(self, transport: asyncio.Transport) -> None:
        self.report(self._plan.ask_from)

    def _encode_report(self, offset: int) -> bytes:
        return encode_report(offset)

    def _read(self, data: bytes | memoryview) -> None:
        self._frames.feed(data)
        # Bodies of frames that continue where the one before ends are appended together.
        parts: list[bytes | memoryview] = []
        start, end = 0, -1
        while (frame := self._frames.next_frame()) is not None:
            offset, body = frame.offset, frame.body
            if self._is_first and body:
                self._is_first = False
                if self._plan.is_second_byte:
                    if offset != 1:
                        raise MalformedFrame(
                            f"the master sent bytes at offset {offset}, the slave requested 1"
                        )
                    offset, body = 0, b"\x00" + bytes(body)
            if parts and offset != end:
                self._follower.on_bytes(self, start, _joined(parts))
                parts = []
            if body:
                start = start if parts else offset
                parts.append(body)
                end = offset + len(body)
        if parts:
            self._follower.on_bytes(self, start, _joined(parts))

    def _space(self) -> memoryview | None:
        large = self._frames.large
        return self._follower.space(self, large.offset, large.left) if large.left and large.is_begun else None

    def _on_space_filled(self, count: int) -> None:
        self._frames.large.passed(count)
        self._follower.on_space_filled(count)


def _joined(parts: list[bytes | memoryview]) -> bytes | memoryview:
    return parts[0] if len(parts) == 1 else b"".join(parts)


class _Plan(NamedTuple):
    """Start of a connection. `search`: received bytes are compared first."""

    ask_from: int
    search: DivergenceSearch | None = None
    is_second_byte: bool = False  # byte 1 was requested instead of byte 0


class ClassicFollower(Follower):
    """Follows one master at a time, in classic mode. Belongs to the event loop."""

    def __init__(
        self,
        *,
        store: MessageStore,
        clock: Clock,
        network: Network,
        ask_bounds: AskBounds,
        finish_cut: Callable[[], Awaitable[None]],
        native: RawAppends | None = None,
    ) -> None:
        """`finish_cut` does a cut's steps outside the log, before anything else is appended."""
        super().__init__(store=store, clock=clock, network=network)
        self._ask_bounds = ask_bounds
        self._finish_cut = finish_cut
        self._native = native
        self._receiver = RawReceiver(store, native=native)
        self._search: DivergenceSearch | None = None  # compares received bytes; None while bytes are appended
        self._further_back: DivergenceSearch | None = None  # the search that the next connection continues
        # result of the comparison: truncate the log here before the next connection
        self._cut_at: int | None = None
        self._unanswered = 0

    @property
    def _is_copying(self) -> bool:
        return self._connection is not None and self._search is None

    async def run(self, master: MasterAddress) -> None:
        self._search, self._further_back, self._cut_at = None, None, None
        await super().run(master)

    async def _follow(self) -> None:
        await self._finish_cut()  # of an earlier run, or one that was cancelled
        await self._durable()
        plan = await self._make_plan()
        connection = _ClassicConnection(self, plan)
        self._search = plan.search
        try:
            await self._connect(connection)
            self._watch(connection)
            await connection.closed
        finally:
            self._disconnect(connection)
        if self._cut_at is not None:
            cut_at, self._cut_at = self._cut_at, None
            await self._cut(cut_at, f"parted from the master's at {cut_at}")
            await self._finish_cut()

    # --- start offset

    async def _make_plan(self) -> _Plan:
        bounds = await self._ask_bounds(self._master.broker) if self._master.broker else None
        if bounds is not None:
            self._master_end = max(self._master_end, bounds.end)
        store_log = self._store.log
        if not store_log.segments or store_log.end == store_log.min_offset == 0:
            if bounds is None and self._master.broker and self._unanswered < UNANSWERED_MAX:
                # A RocketMQ master answers a request for 0 with its newest file only, and this slave would
                # never get the earlier ones.
                self._unanswered += 1
                raise CannotFollow(f"the broker at {self._master.broker} does not say where its log begins")
            return self._plan_of_empty(bounds)
        self._receiver = RawReceiver(self._store, native=self._native)
        end = store_log.end
        if bounds is not None and end < bounds.begin:
            raise CannotFollow(
                f"this log ends at {end}, the master's begins at {bounds.begin}: the part between has been deleted. Move the store "
                "of this slave away; an empty one begins where the master's log does"
            )
        search, self._further_back = self._further_back, None
        if search is None:
            low = bounds.begin if bounds is not None else 0
            stop = end if bounds is None else min(end, bounds.end)
            starts = await self._record_starts(low, stop)
            if not starts:
                raise CannotFollow(
                    f"the master's log ends at {stop}, before the first record here: it has nothing that this slave has. "
                    "Move the store of this slave away if that is the master it shall follow"
                )
            search = DivergenceSearch(starts, stop, self._read)
        if search.ask_from == 0:
            return _Plan(1, search, is_second_byte=True)
        return _Plan(search.ask_from, search)

    async def _record_starts(self, low: int, end: int) -> list[int]:
        store_log = self._store.log
        pins = store_log.pin(low, end)
        try:
            return await asyncio.to_thread(record_starts, store_log, low, end)
        finally:
            store_log.unpin(pins)

    def _plan_of_empty(self, bounds: LogBounds | None) -> _Plan:
        size = self._store.log.segment_size
        begin = 0
        if bounds is not None:
            begin = bounds.end - bounds.end % size if self._store.config.sync_from_last_file else bounds.begin
            if begin % size:
                raise CannotFollow(
                    f"the master's log begins at {begin}, which is not the start of a file of {size} bytes: "
                    "mappedFileSizeCommitLog must be the same at both"
                )
        self._receiver = RawReceiver(self._store, native=self._native)
        self._receiver.begin_at(begin)
        if begin:
            return _Plan(begin)
        return _Plan(1, is_second_byte=True) if bounds is not None and bounds.end > size else _Plan(0)

    def _read(self, start: int, end: int) -> bytes:
        """Bytes of this log, of one or more files."""
        parts: list[bytes] = []
        while start < end:
            part = self._store.log.read(start, end - start)
            if not part:
                raise StoreError(f"the log has no byte {start}", offset=start)
            parts.append(part)
            start += len(part)
        return b"".join(parts)

    # --- received bytes

    def space(self, connection: _ClassicConnection, offset: int, size: int) -> memoryview | None:
        """Where bytes for `offset` may be written; None when they must not be appended unseen."""
        if (
            self._search is not None
            or connection is not self._connection
            or offset != self._receiver.received
        ):
            return None
        return self._receiver.space(size)

    def on_space_filled(self, count: int) -> None:
        """`count` log bytes have been written into space(). Raises WireError, StoreError."""
        self._master_end = max(self._master_end, self._receiver.received + count)
        if self._receiver.grew(count):
            self._report()

    def on_bytes(self, connection: _ClassicConnection, offset: int, body: bytes | memoryview) -> None:
        """Log bytes have come. Raises WireError, StoreError, CannotFollow."""
        self._master_end = max(self._master_end, offset + len(body))
        if self._search is not None:
            rest = self._compare(connection, self._search, offset, bytes(body))
            if not rest:
                return
            offset, body = offset + len(body) - len(rest), rest
        if self._receiver.received == 0 and offset and not self._store.log.segments:
            self._receiver.begin_at(offset)  # the newest file only: the master does not send more
        if self._receiver.take(offset, body):
            self._trouble = ""
            self._report()

    def _compare(
        self, connection: _ClassicConnection, search: DivergenceSearch, offset: int, body: bytes
    ) -> bytes:
        """Compare instead of appending; return the bytes after the end of this log once both logs are equal."""
        found = search.take(offset, body)
        end = self._store.log.end
        if found.verdict is Verdict.MORE:
            return b""
        self._search = None
        if found.verdict is Verdict.EQUAL and found.common_end == end:
            log.info("this log is the master's up to its end at %d", end)
            self._trouble = ""
            self._report()
            return body[end - offset :]
        if found.verdict is Verdict.NOTHING_COMMON:
            raise CannotFollow(
                f"this log and that of the master at {self._master.ha} have no record in common. Move the store of this "
                "slave away if that is the master it shall follow"
            )
        if found.verdict is Verdict.FURTHER_BACK:
            self._further_back = search
        else:
            self._cut_at = found.common_end
        connection.end(None)
        return b""

    def _report(self) -> None:
        if self._connection is not None:
            self._acknowledge(self._connection)


NEAR_BYTES = 1 << 20  # of the newest file: with less in it, the file before it is walked, too


def record_starts(log: CommitLog, low: int, end: int) -> list[int]:
    """Offsets of records, ascending, from `low` on that begin before `end`: each file's first, and all of the newest.

    The search for a diverged log compares the newest ones first. Blocking: it reads the sizes of the records of the newest
    file, of 1 GiB in about a second.
    """
    segments = [segment for segment in log.segments if segment.base < end]
    if not segments:
        return []
    walked = 1 if end - segments[-1].base >= NEAR_BYTES else 2
    starts = [segment.base for segment in segments[:-walked]]
    for segment in segments[-walked:]:
        starts += _walk(log, segment.base, min(end, segment.end))
    return [start for start in starts if start >= low]


def _walk(log: CommitLog, start: int, end: int) -> list[int]:
    segment = log.segment_at(start)
    assert segment is not None
    buffer, base, at, starts = segment.file.buffer, segment.base, start, []
    while at < end:
        head = buffer[at - base : at - base + 8]
        size = int.from_bytes(head[:4], "big")
        if head[4:] == MAGIC_BLANK.to_bytes(4, "big") or size < RECORD_BYTES_MIN:
            break
        starts.append(at)
        at += size
    return starts
