"""Durable end of the log, and callbacks that wait for it. Follows GroupCommitService and FlushRealTimeService of
RocketMQ.

`Watermark` is the sans-IO core: an offset that only grows and callbacks in the order of their offsets. `LogFlusher` is the
I/O layer around the commit log: at most one sync is on its way in the executor, and it releases every waiter whose
record was in the log when it began.

After a sync that failed the kernel may have marked the lost pages clean, so that the next sync succeeds without
them. Therefore a failure is final: no waiter gets "durable" again until a restart has read the log from the disk.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor

from aerobee.clock import Clock, Timer, in_step
from aerobee.errors import StoreError
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.descriptors import is_used_up
from aerobee.store.files.disk import PAGE_BYTES
from aerobee.store.log.commit_log import CommitLog, Segment

_RETRY_S = 0.1  # while all descriptors of the process are used up
Waiter = Callable[[bool], None]


class Watermark:
    """An offset that only grows; `when` calls back once it has been reached, or failed."""

    __slots__ = ("_waiters", "failed", "value")

    def __init__(self, value: int = 0) -> None:
        self.value = value
        self.failed = False
        self._waiters: deque[tuple[int, Waiter]] = deque()

    def when(self, offset: int, callback: Waiter) -> None:
        """Call back with True when the value reaches `offset`, with False when it never will.

        Immediately if that is known already. Callbacks run in the order of their offsets.
        """
        if offset <= self.value:
            callback(True)
        elif self.failed:
            callback(False)
        elif not self._waiters or self._waiters[-1][0] <= offset:
            self._waiters.append((offset, callback))
        else:
            insort(self._waiters, (offset, callback), key=_offset_of)

    def advance(self, value: int) -> None:
        """Raise the value and release who waited for it. A lower value changes nothing."""
        if self.failed or value <= self.value:
            return
        self.value = value
        waiters = self._waiters
        while waiters and waiters[0][0] <= value:
            waiters.popleft()[1](True)

    def fail(self) -> None:
        """Release every waiter with False, now and from now on."""
        self.failed = True
        while self._waiters:
            self._waiters.popleft()[1](False)

    def reset(self, value: int) -> None:
        """Set the value after recovery, when no callback waits."""
        assert not self._waiters
        self.value = value

    def cut(self, value: int) -> None:
        """The log was truncated to this offset, and is durable up to it; callbacks for later offsets are called when
        the log has grown again.
        """
        self.value = min(self.value, value)

    @property
    def waiting(self) -> int:
        """Number of waiting callbacks."""
        return len(self._waiters)


def _offset_of(waiter: tuple[int, Waiter]) -> int:
    return waiter[0]


class LogFlusher:
    """Bring the commit log to the disk: immediately when a caller waits, else by interval and pages."""

    def __init__(
        self,
        log: CommitLog,
        watermark: Watermark,
        config: StoreConfig,
        *,
        clock: Clock,
        executor: Executor | None,
        on_flushed: Callable[[], None],
        on_failed: Callable[[StoreError], None],
    ) -> None:
        self._log = log
        self._watermark = watermark
        self._config = config
        self._clock = clock
        self._executor = executor
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._syncing = False
        self._wanted = False
        self._running = False
        self._timer: Timer | None = None
        self._thorough_at = 0.0
        self._idle: asyncio.Event | None = None

    def reconfigure(self, config: StoreConfig) -> None:
        """Apply other settings, from the next flush on."""
        self._config = config

    def start(self) -> None:
        """Begin flushing in the running event loop."""
        self._running = True
        self._idle = asyncio.Event()
        self._idle.set()
        self._thorough_at = self._clock.monotonic() + self._config.flush_commit_log_thorough_interval / 1000
        self._arm()

    @property
    def is_running(self) -> bool:
        """Whether start() was called, and stop() was not."""
        return self._running

    def want(self) -> None:
        """A caller waits for the log's present end: sync as soon as the sync under way, if any, is done."""
        self._wanted = True
        if self._running and not self._syncing:
            # Not now but when this burst has been written: all its records then share the sync.
            self._syncing = True
            assert self._idle is not None
            self._idle.clear()
            asyncio.get_running_loop().call_soon(self._begin)

    async def stop(self) -> None:
        """Stop the timer and wait for the sync under way. The last flush is sync_now()'s."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._idle is not None:
            await self._idle.wait()

    def sync_now(self) -> None:
        """Sync in this thread and advance the watermark; for load, stop and tests. Raises StoreError."""
        if self._watermark.failed:
            return
        end = self._log.end
        try:
            self._log.sync(self._watermark.value, end)
        except OSError as error:
            raise self._fail(error) from error
        self._finish(end)

    def _arm(self) -> None:
        interval_s = self._config.flush_interval_commit_log / 1000
        self._timer = self._clock.call_later(in_step(self._clock, interval_s), self._on_interval)

    def _on_interval(self) -> None:
        if not self._running:
            return
        self._arm()
        dirty_bytes = self._log.end - self._watermark.value
        now = self._clock.monotonic()
        is_thorough = now >= self._thorough_at
        if dirty_bytes and (
            is_thorough or dirty_bytes >= self._config.flush_commit_log_least_pages * PAGE_BYTES
        ):
            self.want()
        if is_thorough:
            self._thorough_at = now + self._config.flush_commit_log_thorough_interval / 1000

    def _begin(self) -> None:
        self._wanted = False
        start, end = self._watermark.value, self._log.end
        if self._watermark.failed or start >= end:
            self._done()
            return
        pinned = self._log.pin(start, end)
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, self._log.sync_pinned, pinned, start, end)
        future.add_done_callback(lambda done: self._synced(done, pinned, end))

    def _synced(self, future: asyncio.Future[None], pinned: list[Segment], end: int) -> None:
        self._log.unpin(pinned)
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if is_used_up(error):
            # The names of new files could not be synced, so nothing was: not a sync that failed. It passes.
            self._wanted = False
            self._clock.call_later(_RETRY_S, self._retry)
        elif error is not None:
            self._fail(error)
        else:
            self._finish(end)
        if self._wanted and self._running and not self._watermark.failed:
            self._begin()
        else:
            self._done()

    def _retry(self) -> None:
        if self._running:
            self.want()

    def _done(self) -> None:
        self._syncing = False
        if self._idle is not None:
            self._idle.set()

    def _finish(self, end: int) -> None:
        self._watermark.advance(end)
        self._on_flushed()

    def _fail(self, error: BaseException) -> StoreError:
        failure = StoreError(
            f"syncing the commit log {self._log.directory} to the disk failed: {error}. Records of the last moments "
            "may be lost although they can be read now; the store takes no more messages. Check the disk, then "
            "restart the broker: recovery reads what the disk really holds",
            path=self._log.directory,
            offset=self._watermark.value,
        )
        failure.__cause__ = error
        self._on_failed(failure)  # first not writable, then tell the waiters
        self._watermark.fail()
        return failure
