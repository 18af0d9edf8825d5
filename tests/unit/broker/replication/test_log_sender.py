"""When log bytes leave for a slave: immediately after a pause or when a request waits for them, else many bursts in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from aerobee.broker.replication.log_sender import GATHER_BYTES, GATHER_S, TURN_BYTES, LogSender
from aerobee.clock import ManualClock
from aerobee.store.log.commit_log import Segment
from tests.fakes import FakeTransport


@dataclass
class _File:
    buffer: bytearray

    def fileno(self) -> int:
        return -1


@dataclass
class _Segment:
    file: _File
    base: int = 0

    @property
    def end(self) -> int:
        return len(self.file.buffer)


@dataclass
class _Log:
    """One file, of which `end` bytes are written."""

    end: int = 0
    segment: _Segment = field(default_factory=lambda: _Segment(_File(bytearray(range(256)) * 4096)))

    def segment_at(self, physical_offset: int) -> _Segment | None:
        return self.segment

    def pin(self, start: int, end: int) -> list[Segment]:
        return []

    def unpin(self, pinned: Iterable[Segment]) -> None:
        return

    def has_removed(self, pinned: Iterable[Segment]) -> bool:
        return False


class _Slave:
    """A sender with what it needs."""

    def __init__(self, is_urgent: Callable[[], bool] = lambda: False) -> None:
        self.log, self.clock, self.transport = _Log(), ManualClock(), FakeTransport()
        self.gone: list[str] = []

        async def warm(ranges: Sequence[tuple[int, int]]) -> None: ...

        warmed: Callable[[Sequence[tuple[int, int]]], Awaitable[None]] = warm
        self.sender = LogSender(
            log=self.log,
            transport=self.transport,
            frame_head=lambda offset, size_max: (b"", size_max),
            frame_bytes=lambda: 32_768,
            hot_bytes=lambda: 1 << 30,
            warm=warmed,
            clock=self.clock,
            on_gone=self.gone.append,
            is_urgent=is_urgent,
            position=0,
        )

    async def appended(self, count: int) -> None:
        self.log.end += count
        self.sender.wake()
        await asyncio.sleep(0)

    @property
    def sizes(self) -> list[int]:
        return [len(each) for each in self.transport.writes]


async def test_what_comes_soon_after_a_write_goes_in_one_piece() -> None:
    slave = _Slave()
    await slave.appended(100)
    assert slave.sizes == [100]
    for _ in range(10):
        await slave.appended(100)
    assert slave.sizes == [100]
    slave.clock.advance(GATHER_S)
    assert slave.sizes == [100, 1000]
    assert slave.transport.written == bytes(slave.log.segment.file.buffer[:1100])
    slave.clock.advance(GATHER_S * 2)
    await slave.appended(7)
    assert slave.sizes == [100, 1000, 7]
    assert not slave.gone


async def test_awaited_bytes_are_sent_immediately() -> None:
    waits = False
    slave = _Slave(lambda: waits)
    await slave.appended(100)
    await slave.appended(100)
    assert slave.sizes == [100]
    waits = True
    await slave.appended(100)
    assert slave.sizes == [100, 200]
    slave.clock.advance(1)
    assert slave.sizes == [100, 200]


async def test_awaited_bytes_leave_within_the_batch_once_acknowledged() -> None:
    slave = _Slave(lambda: True)
    slave.log.end = 100
    slave.sender.wake()
    assert slave.sizes == [100]
    slave.log.end = 150
    slave.sender.wake()
    slave.log.end = 200
    slave.sender.wake()
    assert slave.sizes == [100], "bursts of one pass of the loop, while the slave is at work, go as one"
    await asyncio.sleep(0)
    assert slave.sizes == [100, 100]
    slave.sender.on_ack(200)
    slave.log.end = 207
    slave.sender.wake()
    assert slave.sizes == [100, 100, 7]


async def test_a_slave_far_behind_gives_others_their_turn() -> None:
    slave = _Slave()
    slave.log.segment.file.buffer *= 3
    slave.log.end = 3 << 20
    slave.sender.wake()
    assert sum(slave.sizes) == TURN_BYTES
    slave.sender.wake()
    assert sum(slave.sizes) == TURN_BYTES
    await asyncio.sleep(0)
    assert sum(slave.sizes) == 2 * TURN_BYTES


async def test_many_bytes_wait_for_no_more() -> None:
    slave = _Slave()
    await slave.appended(100)
    await slave.appended(GATHER_BYTES - 1)
    assert slave.sizes == [100]
    await slave.appended(1)
    assert sum(slave.sizes) == 100 + GATHER_BYTES


async def test_a_slave_that_does_not_read_is_sent_what_was_gathered_when_it_does() -> None:
    slave = _Slave()
    await slave.appended(100)
    await slave.appended(100)
    slave.sender.pause()
    slave.clock.advance(GATHER_S)
    assert slave.sizes == [100]
    slave.sender.resume()
    await asyncio.sleep(0)
    assert slave.sizes == [100, 100]


async def test_a_closed_connection_is_sent_nothing() -> None:
    slave = _Slave()
    await slave.appended(100)
    await slave.appended(100)
    slave.sender.close()
    slave.clock.advance(GATHER_S)
    assert slave.sizes == [100]
