"""The hooks of the fast path for sends with options: the dedup keys of earlier messages, LMQs, and this master's epoch."""

from __future__ import annotations

from collections.abc import Callable

from aerobee.broker.send.lmq import lmq_topic
from aerobee.broker.send.send_duplicates import SendDuplicates
from aerobee.lite_topic import LITE_PREFIX
from aerobee.store.log.stored_message import AppendResult
from aerobee.store.message_store import MessageStore
from aerobee.store.queue.consume_queue import ConsumeQueue
from aerobee.store.queue.queue_table import LMQ_QUEUE_ID


class OptionFastPath:
    """seam.OptionHooks."""

    def __init__(self, *, duplicates: SendDuplicates, epoch: Callable[[], int], store: MessageStore) -> None:
        self._store = store
        self.is_new = duplicates.is_new
        self.epoch = epoch
        self._note = duplicates.note

    def lmq(self, name: str) -> ConsumeQueue | None:
        """The queue of an existing LMQ; None for another name, and where there are no LMQs.

        None for that of a lite topic, too: whoever serves lite topics is notified of each message (lite_service.py).
        """
        if not self._store.config.dispatches_lmqs or lmq_topic(name) is None or name.startswith(LITE_PREFIX):
            return None
        queue = self._store.queues.get((name, LMQ_QUEUE_ID))
        return queue if type(queue) is ConsumeQueue else None

    def stored(
        self,
        topic: str,
        key: str,
        queue_id: int,
        queue_offset: int,
        physical_offset: int,
        size: int,
        stored_ms: int,
        unique_key: str,
    ) -> None:
        """A message with this dedup key is in the log."""
        result = AppendResult(physical_offset, size, queue_offset, stored_ms, (physical_offset,))
        self._note(topic, key, result, queue_id, unique_key)
