"""Repairs a queue entry that a read finds to point to no record of its queue: rewrites it from the log, or skips it.

Entries have no checksum. QueueMender searches the log between the records of the adjacent entries for the missing
record. If it is not there, the record itself is damaged: the read skips only that message, and logs it.
"""

from __future__ import annotations

import logging

from aerobee.errors import StoreError
from aerobee.message import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from aerobee.record_head import head_struct
from aerobee.store.log.commit_log import BLANK_BYTES, CommitLog
from aerobee.store.log.dispatch import scan_record
from aerobee.store.log.log_scanner import MAGICS, LogScanner
from aerobee.store.queue.consume_queue import ConsumeQueue
from aerobee.store.queue.queue_table import AnyQueue, QueueTable

SEARCH_BYTES_MAX = 64 << 20  # of the log, a quarter of a second: more is for `aerobee store repair`
_NEIGHBOURS_MAX = 4_096  # damaged entries in a row
_NOTES_MAX = 10_000  # entries that are remembered, to be logged once
_HEAD = head_struct("size", "magic", "queue_id", "queue_offset", "physical_offset")
_logger = logging.getLogger(__name__)


class QueueMender:
    """Used only by the reading thread."""

    def __init__(self, log: CommitLog, queues: QueueTable) -> None:
        self._log = log
        self._queues = queues
        self._said: set[tuple[str, int, int]] = set()

    def mend(self, queue: AnyQueue, offset: int) -> bool:
        """Put the right entry at a queue offset. Returns False when there is none: the read skips that message.

        Raises StoreError when too much of the log would have to be read for it.
        """
        if isinstance(queue, ConsumeQueue):
            start = self._end_before(queue, offset)
            stop = self._begin_behind(queue, offset)
            found = self._find(queue, offset, start, stop) if start < stop else None
            if found is not None:
                record = scan_record(
                    self._log.read(found, self._log.segment_size), found, check_crc=False
                ).record
                if record is not None and record.topic == queue.topic:
                    self._queues.rewrite_from(queue, offset, record)
                    _logger.warning(
                        "the entry %d of queue %s %d did not match the log and was written again: its record is at %d",
                        offset, queue.topic, queue.queue_id, found,
                    )  # fmt: skip
                    return True
        self._say(queue, offset)
        return False

    def _say(self, queue: AnyQueue, offset: int) -> None:
        key = (queue.topic, queue.queue_id, offset)
        if key in self._said or len(self._said) >= _NOTES_MAX:
            return
        self._said.add(key)
        entry = queue.entry(offset)
        physical_offset = entry[0] if entry is not None else -1
        segment = self._log.segment_at(physical_offset)
        where = (
            f"byte {physical_offset - segment.base} of {segment.path} (log byte {physical_offset})"
            if segment is not None
            else f"an offset outside the log, {physical_offset}"
        )
        _logger.error(
            "message %d of queue %d of %s is damaged and is passed over: its entry points to %s, where it is not; what is "
            "behind it is served. `aerobee store verify` shows all such entries, a replica or a copy may have it",
            offset, queue.queue_id, queue.topic, where,
        )  # fmt: skip

    def _is_whole(self, queue: ConsumeQueue, offset: int) -> tuple[int, int] | None:
        """Begin and end of the record of an entry, when it is that entry's."""
        entry = queue.entry(offset)
        if entry is None or not self._log.min_offset <= entry[0] < self._log.end:
            return None
        head = self._log.read(entry[0], _HEAD.size)
        if len(head) < _HEAD.size:
            return None
        size, magic, queue_id, queue_offset, own = _HEAD.unpack(head)
        is_right = (size, queue_id, queue_offset, own) == (entry[1], queue.queue_id, offset, entry[0])
        return (entry[0], entry[0] + size) if is_right and magic in (MAGIC_V1, MAGIC_V2) else None

    def _end_before(self, queue: ConsumeQueue, offset: int) -> int:
        for at in range(offset - 1, max(queue.min_offset, offset - _NEIGHBOURS_MAX) - 1, -1):
            whole = self._is_whole(queue, at)
            if whole is not None:
                return whole[1]
        return self._log.min_offset

    def _begin_behind(self, queue: ConsumeQueue, offset: int) -> int:
        for at in range(offset + 1, min(queue.max_offset, offset + _NEIGHBOURS_MAX)):
            whole = self._is_whole(queue, at)
            if whole is not None:
                return whole[0]
        return self._log.end

    def _find(self, queue: ConsumeQueue, offset: int, start: int, stop: int) -> int | None:
        """Position of the queue's message in [start, stop), which begins at a record's start or end."""
        log, at, topic = self._log, start, queue.topic.encode()
        limit = start + SEARCH_BYTES_MAX
        while at < stop and (segment := log.segment_at(at)) is not None:
            position = at - segment.base
            if position + BLANK_BYTES > segment.size:
                at = segment.end
                continue
            head = segment.file.peek(position, min(segment.size, position + _HEAD.size))
            size = int.from_bytes(head[:4], "big")
            if head[4:8] == MAGIC_BLANK.to_bytes(4, "big"):
                at = segment.end
                continue
            is_record = len(head) == _HEAD.size and head[4:8] in MAGICS and size >= _HEAD.size
            _, _, queue_id, queue_offset, own = _HEAD.unpack(head) if is_record else (0, 0, 0, 0, -1)
            if own != at:  # the log is damaged here: sizes lead nowhere, the next whole record is looked for
                behind = LogScanner(log, check_crc=False).next_record(at, stop=min(stop, limit))
                if behind is None:
                    return None
                at = behind.physical_offset
                continue
            if (queue_id, queue_offset) == (queue.queue_id, offset) and topic in segment.file.peek(
                position, min(segment.size, position + size)
            ):
                return at
            at += size
            if at > limit:
                raise StoreError(
                    f"the entry {offset} of queue {queue.queue_id} of {queue.topic} is damaged, and its record is not in the "
                    f"{SEARCH_BYTES_MAX >> 20} MiB behind {start}: stop the broker and run `aerobee store repair`",
                    path=queue.path,
                    offset=start,
                )
        return None
