"""What else goes when the end of a slave's log was cut off: what this broker noted as a master about the bytes that are gone."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.delay.escaped import EscapedDeliveries
from aerobee.broker.delay.schedule import Schedule
from aerobee.broker.topic_table import TopicTable
from aerobee.store.disk import Disk
from aerobee.store.dispatch import SCHEDULE_TOPIC
from aerobee.store.message_store import MessageStore

log = logging.getLogger(__name__)

# Progress that is found again in the log when it is not in a file: of timers, and of transactions.
PROGRESS_FILES = ("timercheck", "transactionSettled.json")


class AfterCut:
    """Called after each cut. Belongs to the event loop; blocks for two small files."""

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        schedule: Schedule,
        escaped: EscapedDeliveries,
        disk: Disk,
        on_cut: Callable[[int], None] = lambda log_offset: None,
    ) -> None:
        """`on_cut` is called with where the log ends now, before anything else: it forgets what is only in memory."""
        self._on_cut = on_cut
        self._store = store
        self._escaped = escaped
        self._topics = topics
        self._offsets = offsets
        self._schedule = schedule
        self._disk = disk

    def forget(self, log_offset: int) -> None:
        """The log was cut at `log_offset`. Raises OSError.

        An offset behind its queue's end would make its group pass over the messages that come there next.
        """
        store = self._store
        self._on_cut(log_offset)
        self._topics.log_cut(log_offset)
        for topic, group, queue_id in self._offsets.limit_to_ends(store.next_offset):
            log.warning(
                "group %s on %s queue %d goes back to the end of what was not cut", group, topic, queue_id
            )
        levels = {
            level: min(offset, store.next_offset(SCHEDULE_TOPIC, level - 1))
            for level, offset in self._schedule.offsets.items()
        }
        self._schedule.copy_from(levels, log_offset)
        self._escaped.forget_outside(store.log.min_offset, log_offset)
        for name in PROGRESS_FILES:
            for path in (store.config.path("config", name), store.config.path("config", f"{name}.bak")):
                if self._disk.exists(path):
                    self._disk.remove(path)
        self._disk.sync_dir(os.path.join(store.config.store_path_root_dir, "config"))
