"""The hooks of the fast path for sends with options: the dedup keys of earlier messages, and the epoch of this master."""

from __future__ import annotations

from collections.abc import Callable

from aerobee.broker.send.send_duplicates import SendDuplicates
from aerobee.store.log.stored_message import AppendResult


class OptionFastPath:
    """seam.OptionHooks."""

    def __init__(self, *, duplicates: SendDuplicates, epoch: Callable[[], int]) -> None:
        self.is_new = duplicates.is_new
        self.epoch = epoch
        self._note = duplicates.note

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
