"""Sends the log to one slave, as frames of raw bytes read from the mapped files; the messages in them are not parsed.

A burst of appends wakes it once. While no reply waits for the slave, bytes that arrive within GATHER_S of the last
write are sent together: a write and its acknowledgement cost as much as dozens of messages. If a reply waits and the
slave has acknowledged everything, bytes are sent within the burst, before its replies are deferred; otherwise in the
next event loop iteration, because bursts of other connections follow in this one. It pauses while the slave does not
read, yields after TURN_BYTES, and loads bytes that are not in memory off the event loop first, so that a slave with a
large lag delays no producer. A slave behind by more than BULK_LAG_BYTES is sent runs by bulk_transfer.py, where that is
possible.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from aerobee.broker.replication.bulk_transfer import (
    BULK_FRAME_BYTES,
    BULK_LAG_BYTES,
    BULK_RUN_BYTES,
    BulkTransfer,
    FilePart,
)
from aerobee.broker.replication.gathered_write import write_parts
from aerobee.clock import Clock, Timer
from aerobee.errors import StoreError
from aerobee.store.files.disk import WritableBuffer
from aerobee.store.log.commit_log import Segment

TURN_BYTES = 1 << 20  # bytes sent before it yields: about 0.2 ms
WARM_BYTES = 4 << 20  # bytes loaded into memory at a time
_WRITE_BYTES = 256 << 10  # of frames in one write
GATHER_S = 0.001  # minimum time between two writes without a waiting reply
GATHER_BYTES = 128 << 10  # and maximum number of bytes that wait for it


class _File(Protocol):
    buffer: WritableBuffer

    def fileno(self) -> int: ...


class LogSegment(Protocol):
    """One file of the log."""

    base: int

    @property
    def end(self) -> int: ...
    @property
    def file(self) -> _File: ...


class SentLog(Protocol):
    """The part of the commit log that LogSender uses."""

    end: int

    def segment_at(self, physical_offset: int) -> LogSegment | None: ...
    def pin(self, start: int, end: int) -> list[Segment]: ...
    def unpin(self, pinned: Iterable[Segment]) -> None: ...
    def has_removed(self, pinned: Iterable[Segment]) -> bool: ...


# (offset, maximum number of bytes) -> (head of the frame, bytes of its body); no bytes: nothing may be sent
# now.
FrameHead = Callable[[int, int], tuple[bytes, int]]


class LogSender:
    """Sends the log from `position` on to one transport. It calls `on_gone` when the bytes to send were deleted or
    cannot be read.
    """

    def __init__(
        self,
        *,
        log: SentLog,
        transport: asyncio.WriteTransport,
        bulk: BulkTransfer | None = None,
        frame_head: FrameHead,
        frame_bytes: Callable[[], int],
        hot_bytes: Callable[[], int],
        warm: Callable[[Sequence[tuple[int, int]]], Awaitable[None]],
        clock: Clock,
        on_gone: Callable[[str], None],
        is_urgent: Callable[[], bool],
        position: int,
    ) -> None:
        """`is_urgent`: whether a reply waits for slaves. `frame_bytes`: maximum size of a frame that is not part of a
        run. `bulk` sends runs, None where that is not possible; the sender closes it. `hot_bytes`: number of the newest bytes of the log that count
        as in memory; `warm` loads others.
        """
        self.position = position
        self._acknowledged = position  # the slave's newest report
        self.last_write_s = clock.monotonic()
        self._log = log
        self._transport = transport
        self._bulk = bulk
        self._frame_head = frame_head
        self._frame_bytes = frame_bytes
        self._hot_bytes = hot_bytes
        self._warm = warm
        self._warm_end = 0
        self._clock = clock
        self._on_gone = on_gone
        self._is_urgent = is_urgent
        self._gathered_s = float("-inf")  # when log bytes were sent last
        self._gathering: Timer | None = None
        self._is_paused = False
        self._is_closed = False
        self._is_planned = False  # a callback is scheduled
        self._absence: asyncio.Task[None] | None = (
            None  # loads bytes or sends a run; nothing else is sent meanwhile
        )
        self._in_run = False
        self._pins: list[Segment] = []  # files of the run under way
        self._after_run = b""  # a frame without log bytes, which cannot be sent within a run

    def wake(self) -> None:
        """Send new bytes; called when the log has grown. Cheap; may be called often."""
        if self._is_planned or self._is_paused or self._is_closed or self._absence is not None:
            return
        if self._is_urgent():
            self._gather_no_more()
            if self._acknowledged < self.position:
                self._plan_turn()
            else:
                self._turn()
        elif not self._may_gather():
            self._turn()

    def on_ack(self, offset: int) -> None:
        """The slave has everything before `offset`."""
        self._acknowledged = offset

    def _plan_turn(self) -> None:
        self._is_planned = True
        asyncio.get_running_loop().call_soon(self._turn)

    def _may_gather(self) -> bool:
        """Whether the present bytes wait for more; then a timer is set."""
        if self._log.end - self.position >= GATHER_BYTES:
            self._gather_no_more()
            return False
        if self._gathering is None:
            pause_s = self._gathered_s + GATHER_S - self._clock.monotonic()
            if pause_s <= 0:
                return False
            self._gathering = self._clock.call_later(pause_s, self._gathered)
        return True

    def _gathered(self) -> None:
        self._gathering = None
        if not (self._is_planned or self._is_paused or self._is_closed or self._absence is not None):
            self._turn()

    def _gather_no_more(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None

    def pause(self) -> None:
        """The transport takes no more."""
        self._is_paused = True

    def resume(self) -> None:
        """The transport accepts bytes again: continue sending."""
        self._is_paused = False
        self.wake()

    def close(self) -> None:
        """Send nothing more."""
        self._is_closed = True
        self._gather_no_more()
        if self._absence is not None and not self._in_run:
            self._absence.cancel()
        if self._bulk is not None:  # ends a run, whose files are then released
            self._bulk.close()

    @property
    def keeps_deleted_file(self) -> bool:
        """Whether the slave is being sent a file that the log has deleted since: the disk keeps it until the slave has it."""
        return bool(self._pins) and self._log.has_removed(self._pins)

    def write(self, frame: bytes) -> None:
        """Write a frame without log bytes, between others; within a run of bulk bytes the newest such frame waits."""
        if self._is_closed:
            return
        self.last_write_s = self._clock.monotonic()
        if self._in_run:
            self._after_run = frame
        else:
            self._transport.write(frame)

    def _turn(self) -> None:
        self._is_planned = False
        try:
            self._send()
        except StoreError as error:
            self._on_gone(str(error))  # a file of the log cannot be read; the slave asks again

    def _send(self) -> None:
        sent = 0
        while not (self._is_paused or self._is_closed) and self.position < self._log.end:
            if sent >= TURN_BYTES:
                self._plan_turn()
                return
            if self._bulk is not None and self._log.end - self.position > BULK_LAG_BYTES:
                self._begin_run(self._bulk)
                return
            if self._is_cold():
                self._begin_warming()
                return
            parts = self._frames()
            if not parts:
                return
            write_parts(self._transport, parts)
            sent += _WRITE_BYTES
        if sent:
            self.last_write_s = self._gathered_s = self._clock.monotonic()

    def _frames(self) -> list[bytes | memoryview]:
        """Frames for one write, all of one file. `position` is behind them on return."""
        log, at = self._log, self.position
        segment = log.segment_at(at)
        if segment is None:
            self._on_gone(f"the log no longer has byte {at}")
            return []
        parts: list[bytes | memoryview] = []
        stop = min(log.end, segment.end, at + _WRITE_BYTES)
        if log.end - at > self._hot_bytes():
            stop = min(stop, self._warm_end)
        view = memoryview(segment.file.buffer)
        while at < stop:
            head, size = self._frame_head(at, min(stop - at, self._frame_bytes()))
            if not size:
                break
            parts += (head, view[at - segment.base : at - segment.base + size])
            at += size
        self.position = at
        return parts

    # --- a slave far behind

    def _begin_run(self, bulk: BulkTransfer) -> None:
        if self._transport.get_write_buffer_size():
            self._is_paused = True  # the transport calls resume() when its last byte has left
            return
        start = self.position
        pins = self._log.pin(start, start + BULK_RUN_BYTES)
        try:
            parts = self._run_parts()
        except BaseException:
            self._log.unpin(pins)
            raise
        if not parts:
            self._log.unpin(pins)
            return
        self._in_run, self._pins = True, pins
        self._absence = asyncio.get_running_loop().create_task(
            self._send_run(bulk, parts, pins), name="ha-run"
        )

    def _run_parts(self) -> list[bytes | FilePart]:
        """A run of frames, all of one file. `position` is behind them on return."""
        at = self.position
        segment = self._log.segment_at(at)
        if segment is None:
            self._on_gone(f"the log no longer has byte {at}")
            return []
        descriptor, base = segment.file.fileno(), segment.base
        stop = min(self._log.end, segment.end, at + BULK_RUN_BYTES)
        frame_bytes = max(BULK_FRAME_BYTES, self._frame_bytes())
        parts: list[bytes | FilePart] = []
        while at < stop:
            head, size = self._frame_head(at, min(stop - at, frame_bytes))
            if not size:
                break
            parts += (head, FilePart(descriptor, at - base, size))
            at += size
        self.position = at
        return parts

    async def _send_run(self, bulk: BulkTransfer, parts: list[bytes | FilePart], pins: list[Segment]) -> None:
        try:
            await bulk.send(parts)
        except (StoreError, OSError) as error:
            self._on_gone(str(error))
        finally:
            self._log.unpin(pins)
            self._absence, self._in_run, self._pins = None, False, []
        self.last_write_s = self._gathered_s = self._clock.monotonic()
        if self._after_run:
            frame, self._after_run = self._after_run, b""
            self.write(frame)
        self.wake()

    # --- bytes that are on the disk only

    def _is_cold(self) -> bool:
        return self._log.end - self.position > self._hot_bytes() and self.position >= self._warm_end

    def _begin_warming(self) -> None:
        self._absence = asyncio.get_running_loop().create_task(self._make_warm(), name="ha-warm")

    async def _make_warm(self) -> None:
        try:
            segment = self._log.segment_at(self.position)
            end = min(self.position + WARM_BYTES, self._log.end if segment is None else segment.end)
            await self._warm([(self.position, end - self.position)])
            self._warm_end = end
        except (StoreError, OSError) as error:
            self._on_gone(str(error))
        finally:
            self._absence = None
        self.wake()
