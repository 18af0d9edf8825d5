"""Cleans up after a slave's log was truncated: removes the state that this broker recorded, as a master, about the
removed bytes.

The store marks a cut as pending before it removes the first byte, until finish() has written all changes to disk.
Nothing is appended meanwhile: offsets, timers and deliveries of removed records must not be applied to records of
another master. After a kill the next start completes it; after a disk error the next try does.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.delay.escaped import FILE_NAME as ESCAPED_FILE
from aerobee.broker.delay.escaped import EscapedDeliveries
from aerobee.broker.delay.schedule import Schedule
from aerobee.broker.replication.cut_progress import CutProgress
from aerobee.broker.replication.cut_revivals import CutRevivals
from aerobee.broker.state.config_file import ConfigFile
from aerobee.broker.state.topic_table import TopicTable
from aerobee.clock import Clock
from aerobee.errors import StoreError
from aerobee.shared_task import SharedTask
from aerobee.store.files.disk import Disk
from aerobee.store.message_store import MessageStore
from aerobee.store.recovery.log_cut import DIRECTORY as CUT_DIRECTORY
from aerobee.system_names import SCHEDULE_TOPIC, TRANSACTION_GROUP

log = logging.getLogger(__name__)

# Progress files that can be rebuilt from the log: of timers, and of transactions.
PROGRESS_FILES = ("timercheck", "transactionSettled.json")
# Files that are changed in memory and written by another thread.
_CHANGED_FILES = ("consumerOffset.json", "delayOffset.json", ESCAPED_FILE)
RETRY_S = 1.0


class AfterCut:
    """The clean-up after a truncation. Belongs to the event loop; blocks for two small files."""

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        schedule: Schedule,
        escaped: EscapedDeliveries,
        disk: Disk,
        clock: Clock,
        config_file: Callable[[str], ConfigFile],
        revive_topic: str,
        on_cut: Callable[[int], None] = lambda log_offset: None,
    ) -> None:
        """`config_file` gives a file of the store's config directory by its name. `on_cut` is called with the log's new
        end, before anything else: it drops state that is only in memory."""
        self._on_cut = on_cut
        self._revive_topic = revive_topic
        self._store = store
        self._escaped = escaped
        self._topics = topics
        self._offsets = offsets
        self._schedule = schedule
        self._disk = disk
        self._clock = clock
        self._config_file = config_file
        self._work: SharedTask[None] | None = None

    def resume(self) -> None:
        """Call at the start, before anything reads the state that forget() removes: completes the cut of the last run.
        No state was read from the log yet. Raises OSError."""
        offset = self._store.pending_cut
        if offset is not None:
            log.warning("the log was cut at %d in the last run: completing this cut now", offset)
            for _ in self._lowering(offset):
                pass
            self._forget_noted(offset)

    def _lowering(self, log_offset: int) -> Iterator[None]:
        store = self._store
        progress = CutProgress(
            offsets=self._offsets,
            levels=self._schedule.offsets,
            revivals=CutRevivals(store, self._offsets, self._revive_topic),
            read_record=store.stored_record,
            disk=self._disk,
            directory=os.path.join(store.config.store_path_root_dir, CUT_DIRECTORY),
        )
        return progress.lowering(log_offset)

    def begin(self) -> None:
        """Complete the pending cut in a task."""
        if self._store.pending_cut is not None and (self._work is None or self._work.task.done()):
            self._work = SharedTask(asyncio.create_task(self._finish(), name="after-cut"))

    async def finish(self) -> None:
        """Return when no cut is pending. The work continues when the caller is cancelled; failed writes are retried."""
        while self._store.pending_cut is not None:
            self.begin()
            assert self._work is not None
            await self._work.outcome()

    async def stop(self) -> None:
        """Stop; the next start completes a pending cut."""
        work, self._work = self._work, None
        if work is not None:
            work.task.cancel()
            await asyncio.wait((work.task,))

    async def _finish(self) -> None:
        while (offset := self._store.pending_cut) is not None:
            try:
                for _ in self._lowering(offset):
                    await asyncio.sleep(0)
                self.forget(offset)
                await self._saved()
                self._store.cut_finished()
            except (OSError, StoreError) as error:
                log.error(
                    "the log was cut at %d, and recording this cut failed: %s; trying again",
                    offset,
                    error,
                )
            except Exception:
                # Boundary of the task: stale state must not be applied to the following records.
                log.exception("the log was cut at %d, and completing this cut failed; trying again", offset)
            else:
                return
            await self._clock.sleep(RETRY_S)

    async def _saved(self) -> None:
        """Return when the changes of forget() are in the files. Raises StoreError."""
        await self._topics.settled()
        if self._topics.is_unsaved:
            raise StoreError("the disk refuses topics.json")
        for name in _CHANGED_FILES:
            await self._config_file(name).written()

    def forget(self, log_offset: int) -> None:
        """The log was cut at `log_offset`. The files follow soon. Raises OSError; another call completes the work.

        An offset after its queue's end would make its group skip the next messages of the queue.
        """
        self._on_cut(log_offset)
        self._forget_noted(log_offset)

    def _forget_noted(self, log_offset: int) -> None:
        store = self._store
        self._topics.log_cut(log_offset)
        for topic, group, queue_id in self._offsets.limit_to_ends():
            log.warning(
                "group %s on %s queue %d goes back to the end of the remaining log", group, topic, queue_id
            )
        # An offset limited to the queue's end would still include half messages whose decisions were cut off.
        # Without an offset, the next mastership reads both queues from their start, unless the new master's
        # offset was copied before.
        self._offsets.remove_progress(TRANSACTION_GROUP)
        self._offsets.log_cut(log_offset)
        self._offsets.save_soon()
        levels = {
            level: min(offset, store.next_offset(SCHEDULE_TOPIC, level - 1))
            for level, offset in self._schedule.offsets.items()
        }
        self._schedule.copy_from(levels, log_offset)
        self._schedule.save_soon()
        self._escaped.forget_outside(store.log.min_offset, log_offset)
        directory = os.path.join(store.config.store_path_root_dir, "config")
        if not self._disk.is_dir(directory):
            return
        for name in PROGRESS_FILES:
            for path in (store.config.path("config", name), store.config.path("config", f"{name}.bak")):
                if self._disk.exists(path):
                    self._disk.remove(path)
        self._disk.sync_dir(directory)
