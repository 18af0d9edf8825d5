"""The durable end of the log, the callbacks that wait for it, and the records that consumers may read.

With SYNC_FLUSH the broker answers a send, and shows the record to consumers, when the record is on the disk; with
ASYNC_FLUSH it does both immediately.
Follows CommitLog.handleDiskFlush and getMaxReadableOffset; the flush itself is in flush.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from aerobee.clock import Clock
from aerobee.store.append.visibility import Visibility
from aerobee.store.append.writability import Writability
from aerobee.store.files.config import StoreConfig
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.log.flush import LogFlusher, Watermark


class Durability:
    """Durability of one log. Belongs to the event loop's thread, except finish()."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        visibility: Visibility,
        writability: Writability,
        *,
        clock: Clock,
        executor: Executor | None,
        needs_confirmation: bool = False,
    ) -> None:
        """`visibility` receives the durable offset, `writability` a failed sync."""
        self.flushed = Watermark()  # the log is durable below it
        self._is_sync = config.is_sync_flush
        # Whether burst_done() does anything. A plain attribute: it is read with each burst.
        self.hears_bursts = self._is_sync
        self._needs_confirmation = needs_confirmation
        self._confirmed = 0  # enough replicas have the log below it
        self._log = log
        self._visibility = visibility
        self._writability = writability
        self._flusher = LogFlusher(
            log,
            self.flushed,
            config,
            clock=clock,
            executor=executor,
            on_flushed=self._show,
            on_failed=writability.fail,
        )
        self._on_burst: Callable[[], None] | None = None
        self._is_burst_wanted: Callable[[], bool] = lambda: True
        self._is_wanted_soon: Callable[[], bool] = lambda: False
        self.want_flush = self._flusher.want  # begin to flush now, with async flush too

    @property
    def holds_answers(self) -> bool:
        """Whether appends are answered when the disk has them (SYNC_FLUSH)."""
        return self._is_sync

    @property
    def readable_offset(self) -> int:
        """Consumers see records that end at or before it: with sync flush the durable ones, in controller mode the
        confirmed ones, else all.
        """
        end = self.flushed.value if self._is_sync else self._log.end
        return min(end, self._confirmed) if self._needs_confirmation else end

    @property
    def unflushed_bytes(self) -> int:
        """Bytes of the log that are not durable yet (remainHowManyDataToFlush)."""
        return self._log.end - self.flushed.value

    def burst_done(self) -> None:
        """After the last append of a burst: with sync flush, begin the group commit; tell who sends the log on."""
        if self._is_sync:
            self._flusher.want()
        if self._on_burst is not None:
            self._on_burst()

    @property
    def wants_each_burst(self) -> bool:
        """Whether burst_done() must be called after each burst; else the caller may report several bursts as one."""
        return self._is_sync or (self._on_burst is not None and self._is_burst_wanted())

    @property
    def wants_bursts(self) -> bool:
        """Whether the caller may report several bursts as one, but only shortly after the first."""
        return self._on_burst is not None and self._is_wanted_soon()

    def on_burst(
        self,
        callback: Callable[[], None] | None,
        is_wanted: Callable[[], bool] = lambda: True,
        is_wanted_soon: Callable[[], bool] = lambda: False,
    ) -> None:
        """Call back after each burst of appends. Set the one callback, which must be cheap and never raise. While
        `is_wanted` returns False, one call may report many bursts: within a moment while `is_wanted_soon` returns True,
        else at any time.
        """
        self._on_burst, self._is_burst_wanted, self._is_wanted_soon = callback, is_wanted, is_wanted_soon
        self.hears_bursts = self._is_sync or callback is not None

    def confirm(self, offset: int) -> None:
        """Enough replicas have the log below `offset`: any elected master has it, so consumers may see it. The offset
        never decreases.
        """
        if offset > self._confirmed:
            self._confirmed = offset
            if self._needs_confirmation:
                self._show()

    def cut(self, offset: int) -> None:
        """The log was truncated to this end."""
        self.flushed.cut(offset)
        self._confirmed = min(self._confirmed, offset)
        self._hold_back()
        assert self.readable_offset <= self._log.end, "consumers see what was cut off"

    def recovered(self, confirmed: int) -> None:
        """The log was opened. `confirmed`: the recorded confirm offset; in controller mode later bytes may exist only
        here, and consumers see them when this broker's master, or the election of this broker, confirms them."""
        self._confirmed = min(confirmed, self._log.end)
        self._hold_back()
        assert self.readable_offset <= self._log.end, "consumers see what is not in the log"

    @property
    def confirmed(self) -> int:
        """The offset up to which enough replicas are known to have the log."""
        return min(self._confirmed, self._log.end)

    def _hold_back(self) -> None:
        if self._needs_confirmation or self._is_sync:
            self._visibility.hold_back(self.readable_offset)

    def wait_flushed(self, offset: int, callback: Callable[[bool], None]) -> None:
        """As wait(), with async flush too: the flush begins immediately."""
        self.flushed.when(offset, callback)
        self.want_flush()

    def wait(self, offset: int, callback: Callable[[bool], None]) -> None:
        """With sync flush call back when the log is durable up to `offset`; with async flush immediately.

        callback(False): a sync failed, nothing is known about the record. The time limit is the caller's.
        """
        if self._is_sync:
            self.flushed.when(offset, callback)
        else:
            callback(self._writability.failure is None)

    def flush_now(self) -> None:
        """Sync the log in this thread, and call the waiting callbacks. Raises StoreError, also for a sync that failed
        before.
        """
        if self._writability.failure is not None:
            raise self._writability.failure
        self._flusher.sync_now()

    async def flushed_to_end(self) -> bool:
        """Flush the log up to its present end, in the executor while the flushes by interval run. False: a sync failed."""
        if not self._flusher.is_running:
            self.flush_now()
            return True
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.wait_flushed(self._log.end, lambda ok: None if done.done() else done.set_result(ok))
        return await done

    def reconfigure(self, config: StoreConfig) -> None:
        """Apply changed flush intervals."""
        self._flusher.reconfigure(config)

    # -- life

    def start(self) -> None:
        """Begin to flush in the running event loop."""
        self._flusher.start()
        if self.unflushed_bytes:
            self._flusher.want()

    async def stop(self) -> None:
        """End the flushes by interval and wait for the one under way."""
        await self._flusher.stop()

    def finish(self) -> None:
        """The last flush, in the calling thread; no callback runs yet. Raises OSError."""
        self._log.sync(self.flushed.value, self._log.end)
        self.flushed.value = max(self.flushed.value, self._log.end)

    def show_finished(self) -> None:
        """After finish(), in the event loop's thread: show consumers the records that it made durable."""
        self._show()

    def _show(self) -> None:
        self._visibility.show_safe(self.readable_offset)
