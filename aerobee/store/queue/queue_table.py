"""All consume queues by topic and queue id. Follows ConsumeQueueStore of RocketMQ.

`consumequeue/{topic}/{queueId}/` are ordinary queues, `batchconsumequeue/...` those of BatchCQ topics,
`consumequeue_ext/...` extensions of ordinary ones. Other directories (rocksdbstore, ...) are not touched.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from aerobee.errors import RecordInvalid, StoreNotWritable
from aerobee.message import decode_properties, encode_properties
from aerobee.store.files.config import StoreConfig
from aerobee.store.log.dispatch import DispatchRecord, entry_tags_code, is_batch_record, message_count
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.queue.batch_consume_queue import BatchConsumeQueue, BatchEntry
from aerobee.store.queue.consume_queue import QUEUE_OFFSET_MAX, ConsumeQueue
from aerobee.store.queue.extended_queue import Bitmap, ExtendedQueue, QueueExtension
from aerobee.store.queue.queue_files import QUEUE_ID_MAX, FilePool, check_component
from aerobee.store.queue.queue_kind import RecordAt, copy_to_batch, copy_to_simple, kind_for
from aerobee.system_names import LMQ_PREFIX, SCHEDULE_TOPIC

AnyQueue = ConsumeQueue | BatchConsumeQueue
MULTI_DISPATCH, MULTI_OFFSET = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"
MULTI_OFFSET_TEXT = MULTI_OFFSET.encode()
LMQ_QUEUE_ID = 0


class QueueTable:
    """Finds, creates, fills and deletes queues. Any code may read `queues`; only this class changes it."""

    def __init__(
        self, config: StoreConfig, pool: FilePool, *, record_at: RecordAt = lambda physical_offset: None
    ) -> None:
        """`record_at` reads the whole record at a physical offset of the log; None when none is there."""
        self._record_at = record_at
        # Called with a queue that is replaced or begins again, and the one in which its offsets continue, if one does.
        self.on_replaced: Callable[[AnyQueue, AnyQueue | None], None] = lambda old, new: None
        self._aside: list[AnyQueue] = []  # of another kind than the queue of their name, on the disk only
        self.queues: dict[tuple[str, int], AnyQueue] = {}
        self._config = config
        self._pool = pool
        self._simple_dir = config.path("consumequeue")
        self._batch_dir = config.path("batchconsumequeue")
        self.batch_topics: set[str] = set()
        self.delay_levels_ms = config.delay_levels_ms()
        self._extension_dir = config.path("consumequeue_ext")
        self._has_extensions = config.enable_consume_queue_ext or pool.disk.is_dir(self._extension_dir)
        self._bitmap: Bitmap | None = None

    def set_bitmap(self, bitmap: Bitmap | None) -> None:
        """Compute the filter bits of messages with this from now on; None: entries have no bits."""
        self._bitmap = bitmap

    def load(self, written_sizes: tuple[int, int] = (0, 0)) -> None:
        """Open every queue that is on the disk. `written_sizes`: what files of ordinary and batch queues are known to
        have had, 0 when nothing is known.
        """
        disk = self._pool.disk
        for directory in (self._simple_dir, self._batch_dir):
            for topic in disk.list_dir(directory):
                for name in disk.list_dir(os.path.join(directory, topic)):
                    if not name.isdecimal() or not is_queue_name(topic, int(name)):
                        continue
                    queue = self._make(topic, int(name), is_batch=directory == self._batch_dir)
                    queue.load(written_sizes[directory == self._batch_dir])
                    self._take_loaded(queue)

    def _take_loaded(self, queue: AnyQueue) -> None:
        """Add a loaded queue. When a crash left files of both kinds for one topic and queue id, the queue with the
        newer records is kept.
        """
        key = queue.topic, queue.queue_id
        other = self.queues.get(key)
        if other is not None and other.max_physical_offset > queue.max_physical_offset:
            queue, other = other, queue
        if other is not None:
            self._aside.append(other)
        self.queues[key] = queue
        (self.batch_topics.add if queue.is_batch else self.batch_topics.discard)(queue.topic)

    def remove_aside(self, key: tuple[str, int] | None = None) -> None:
        """After recovery: remove the files of queues that load() found in both kinds and that do not count; of one, with `key`."""
        for queue in [each for each in self._aside if key in (None, (each.topic, each.queue_id))]:
            self._aside.remove(queue)
            queue.clear()
            self._remove_directory(self._parent_of(queue), queue.topic)

    def simple(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, created empty when it is new; nothing is written before its first entry.

        Raises RecordInvalid for a topic or queue id that cannot be a directory.
        """
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            queue = self.queues[topic, queue_id] = self._make(topic, queue_id, is_batch=False)
        assert isinstance(queue, ConsumeQueue)
        return queue

    def any(self, topic: str, queue_id: int) -> AnyQueue:
        """As simple(), for a topic of either kind."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            queue = self._make(topic, queue_id, is_batch=topic in self.batch_topics)
            self.queues[topic, queue_id] = queue
        return queue

    def for_batches(self, queue: AnyQueue) -> AnyQueue:
        """The queue for a batch: of a batch topic an ordinary one, which a deleted topic of the same name left, becomes a batch
        queue, with its messages, as it does at replicas. Raises StoreFull, StoreNotWritable."""
        if queue.is_batch or queue.topic not in self.batch_topics:
            return queue
        try:
            return self._replace(queue, is_empty=False)
        except OSError as error:
            raise StoreNotWritable(
                f"queue {queue.queue_id} of {queue.topic} cannot become a batch queue: {error}"
            ) from error

    def _make(self, topic: str, queue_id: int, *, is_batch: bool) -> AnyQueue:
        check_queue_name(topic, queue_id)
        if is_batch:
            return BatchConsumeQueue(
                topic,
                queue_id,
                os.path.join(self._batch_dir, topic, str(queue_id)),
                self._config.mapper_file_size_batch_consume_queue,
                self._pool,
            )
        directory = os.path.join(self._simple_dir, topic, str(queue_id))
        size = self._config.mapped_file_size_consume_queue
        if self._has_extensions:
            extension_dir = os.path.join(self._extension_dir, topic, str(queue_id))
            writes = self._config.enable_consume_queue_ext
            if writes or self._pool.disk.is_dir(extension_dir):
                extension = QueueExtension(
                    extension_dir, self._config.mapped_file_size_consume_queue_ext, self._pool
                )
                return ExtendedQueue(
                    topic,
                    queue_id,
                    directory,
                    size,
                    self._pool,
                    extension,
                    lambda: self._bitmap,
                    writes=writes,
                )
        return ConsumeQueue(topic, queue_id, directory, size, self._pool)

    def tags_code(self, topic: str, properties: dict[str, str], store_timestamp: int) -> int:
        """The filter value of a message's queue entry: the tag's hash, or the due time."""
        return entry_tags_code(topic, properties, store_timestamp, self.delay_levels_ms)

    def light_records(self, record: DispatchRecord, properties: dict[str, str]) -> Iterator[DispatchRecord]:
        """The record once more for each LMQ that has an entry of it."""
        if not self._config.dispatches_lmqs or MULTI_DISPATCH not in properties:
            return
        names, offsets = properties[MULTI_DISPATCH].split(","), properties.get(MULTI_OFFSET, "").split(",")
        for name, offset in zip(names, offsets, strict=False):
            if name.startswith(LMQ_PREFIX) and offset.isdecimal() and len(offset) < 19:
                yield dataclasses.replace(record, topic=name, queue_id=LMQ_QUEUE_ID, queue_offset=int(offset))

    def of_record(self, record: DispatchRecord) -> AnyQueue | None:
        """The queue for a record's entry, of the kind that the record needs; created, converted or emptied as needed.

        None when the queue is of the other kind and has later records: these belong to a later topic of the same name.
        Raises StoreFull, RecordInvalid.
        """
        key = record.topic, record.queue_id
        says_batch = is_batch_record(record.topic, record.sys_flag)
        queue = self.queues.get(key)
        if queue is None and not says_batch:
            return self.any(*key)
        if isinstance(queue, ConsumeQueue) and record.queue_offset and not says_batch and queue.max_offset:
            return queue  # nearly all others
        if queue is not None and record.physical_offset < queue.max_physical_offset:
            return queue if queue.is_batch or not says_batch else None
        if says_batch:
            self.batch_topics.add(record.topic)
        if queue is None:
            return self.any(*key)
        kind = kind_for(
            record,
            is_batch=queue.is_batch,
            start=queue.min_offset,
            end=queue.max_offset,
            is_batch_topic=record.topic in self.batch_topics,
        )
        if kind.is_batch != queue.is_batch:
            return self._replace(queue, is_empty=kind.restarts)
        if kind.restarts and self._is_behind(record, queue):
            self._restart(queue)
        return queue

    @staticmethod
    def _is_behind(record: DispatchRecord, queue: AnyQueue) -> bool:
        """Whether a record lies behind all records of a queue, those of holes too."""
        if isinstance(queue, BatchConsumeQueue):
            return record.physical_offset >= queue.max_physical_offset
        newest = queue.entries(queue.max_offset - 1, 1)
        return all(physical_offset < record.physical_offset for physical_offset, _, _ in newest)

    def _restart(self, queue: AnyQueue) -> None:
        """Empty a queue whose messages are a deleted topic's: it begins at offset 0, wherever it began before."""
        self.on_replaced(queue, None)
        if isinstance(queue, BatchConsumeQueue):
            queue.clear()
        else:
            queue.cut_offsets_from(0)

    def settle_kinds(self, kind_of: Callable[[str], bool | None], known_to: int) -> list[str]:
        """Give the queues the kind that their topics have: `kind_of(topic)`, True for batch queues, None for an unknown topic.

        The settings are those of the time when the log ended at `known_to`; queues with records behind it are left as they are.
        An ordinary topic has no records of batches: a queue of them is a deleted topic's, and goes. Returns the topics that
        changed. Raises StoreFull, OSError.
        """
        changed: set[str] = set()
        for (topic, _), queue in list(self.queues.items()):
            is_batch = kind_of(topic)
            if is_batch in (None, queue.is_batch) or queue.max_physical_offset > known_to:
                continue
            self._replace(
                queue, is_empty=isinstance(queue, BatchConsumeQueue) and not queue.holds_single_messages
            )
            changed.add(topic)
        return sorted(changed)

    def ended_before(self, ends: Mapping[str, int]) -> list[tuple[str, int]]:
        """The queues of the topics in `ends` all of whose records lie before that offset of the log."""
        return [
            key
            for key, queue in list(self.queues.items())
            if key[0] in ends and self._ends_before(queue, ends[key[0]])
        ]

    @staticmethod
    def _ends_before(queue: AnyQueue, physical_offset: int) -> bool:
        # 0: a queue without entries, or one whose last entry is a hole.
        return queue.max_offset == queue.min_offset or 0 < queue.max_physical_offset <= physical_offset

    def _replace(self, queue: AnyQueue, *, is_empty: bool) -> AnyQueue:
        """Replace a queue by one of the other kind, with the same messages unless it `is_empty`; the old files go.

        Raises StoreFull, OSError; nothing has changed then.
        """
        self.remove_aside((queue.topic, queue.queue_id))  # before files of the same names are made
        new = self._make(queue.topic, queue.queue_id, is_batch=not queue.is_batch)
        try:
            if not is_empty and isinstance(queue, ConsumeQueue) and isinstance(new, BatchConsumeQueue):
                copy_to_batch(queue, new, self._record_at)
            elif not is_empty and isinstance(queue, BatchConsumeQueue) and isinstance(new, ConsumeQueue):
                copy_to_simple(queue, new, self._record_at)
        except BaseException:
            new.unsynced_from = -1
            new.clear()
            raise
        new.readable_max = 0 if is_empty else queue.readable_max
        self.queues[queue.topic, queue.queue_id] = new
        self.on_replaced(queue, None if is_empty else new)
        queue.unsynced_from = -1
        queue.clear()
        self._remove_directory(self._parent_of(queue), queue.topic)
        return new

    def _parent_of(self, queue: AnyQueue) -> str:
        return self._batch_dir if queue.is_batch else self._simple_dir

    def redispatch(
        self, record: DispatchRecord, properties: dict[str, str], *, after_gap: bool = False
    ) -> str:
        """Give a record of the log its queue entry, unless it has it. Returns what happened:

        "present", "added", "began" (added to a queue that had none, and it is not its first message), "mended" (another entry stood there), "gap" (entries before it are missing, so the queue
        must be rebuilt from an older offset; a batch queue takes it with `after_gap`), "other" (the entry of another
        record stands there), or "unnamed" (its topic or queue id cannot be a directory, or no queue goes that far: no queue is made). Raises
        StoreFull.
        """
        if (record.topic, record.queue_id) not in self.queues and not is_queue_name(
            record.topic, record.queue_id
        ):
            return "unnamed"
        if record.queue_offset > QUEUE_OFFSET_MAX:
            return "unnamed"  # as its offset cannot be one
        queue = self.of_record(record)
        if queue is None:
            return "present"  # if its topic exists
        offset = record.queue_offset
        code = self.tags_code(record.topic, properties, record.store_timestamp)
        is_empty = queue.max_offset == queue.min_offset
        if isinstance(queue, BatchConsumeQueue):
            if record.physical_offset + record.size <= queue.max_physical_offset:
                return "present"
            if not is_empty and offset > queue.max_offset and not after_gap:
                return "gap"
            queue.append_batch_entry(
                BatchEntry(
                    record.physical_offset,
                    record.size,
                    code,
                    record.store_timestamp,
                    offset,
                    message_count(record.topic, record.sys_flag, properties),
                )
            )
            return "began" if is_empty and offset else "added"
        wanted = (record.physical_offset, record.size, code)
        if offset < queue.max_offset:
            found = queue.entry(offset)
            if found == wanted:
                return "present"
            if found is not None and found[0] > record.physical_offset:
                return "other"  # of a later queue of that name, after its topic was deleted and recreated
            if found is not None and found[0] == record.physical_offset:
                if record.topic == SCHEDULE_TOPIC and found[1] == record.size:
                    return "present"  # the delay levels may have been others then
                queue.rewrite_entry(offset, *wanted)
                return "mended"
            if found is None and offset < queue.min_offset:
                return "gap"  # the files before are gone
            if found is None and offset:
                queue.rewrite_entry(offset, *wanted)  # it is lost, or a hole
                return "mended"
            if offset:
                return "other"
            self._restart(queue)
            is_empty = True
        if offset > queue.max_offset:
            if not is_empty:
                return "gap"
            queue.start_at(offset)
        begins = is_empty and offset > 0
        if queue.max_offset >= queue.room:
            queue.make_room()
        queue.append_message(
            *wanted, record.store_timestamp, record.properties.encode(errors="surrogateescape")
        )
        return "began" if begins else "added"

    def rewrite(self, record: DispatchRecord, properties: dict[str, str]) -> None:
        """Put the record's entry in place of another that stands there."""
        queue = self.any(record.topic, record.queue_id)
        assert isinstance(queue, ConsumeQueue)
        code = self.tags_code(record.topic, properties, record.store_timestamp)
        queue.rewrite_entry(record.queue_offset, record.physical_offset, record.size, code)

    def rewrite_from(self, queue: ConsumeQueue, offset: int, record: DispatchRecord) -> None:
        """Write a record's entry at an offset of a queue, replacing an existing one."""
        properties = decode_properties(record.properties)
        code = self.tags_code(record.topic, properties, record.store_timestamp)
        queue.rewrite_entry(offset, record.physical_offset, record.size, code)

    def make_holes(self, start: int, stop: int) -> None:
        """The log bytes [start, stop) contain no message any more: remove the entries that point to them."""
        for queue in self.queues.values():
            queue.make_holes(start, stop)

    def expose_all(self) -> None:
        """Everything that is written becomes visible to consumers."""
        for queue in self.queues.values():
            queue.readable_max = queue.max_offset
            queue.forget_known()

    def cut_records_from(
        self, physical_bound: int, judge: Callable[[ConsumeQueue], None] | None = None
    ) -> int:
        """Drop the entries of records at or behind the bound in every queue. Returns how many.

        `judge` as in ConsumeQueue.cut_records_from.
        """
        return sum(
            queue.cut_records_from(physical_bound, judge)
            if isinstance(queue, ConsumeQueue)
            else queue.cut_records_from(physical_bound)
            for queue in self.queues.values()
        )

    def delete_before(self, log_min_offset: int) -> int:
        """Delete files below the log's first record, and move every min offset. Returns files deleted."""
        return sum(self.deletion_before(log_min_offset))

    def deletion_before(self, log_min_offset: int) -> Iterator[int]:
        """As delete_before(), queue by queue: how many files it deleted of each."""
        for queue in list(self.queues.values()):
            yield queue.delete_before(log_min_offset)

    def topics(self) -> set[str]:
        """Every topic that has a queue."""
        return {topic for topic, _ in self.queues}

    def take_topics(self, topics: Collection[str]) -> list[AnyQueue]:
        """take_queues() of all queues of topics."""
        taken = self.take_queues([key for key in self.queues if key[0] in topics])
        self.batch_topics.difference_update(topics)
        return taken

    def take_queues(self, keys: Iterable[tuple[str, int]]) -> list[AnyQueue]:
        """Take queues out of the table. Each is given to delete_taken() next, and at last their topics are given to
        remove_directories(): meanwhile the topics may be recreated, with new queues."""
        taken = [self.queues.pop(key) for key in keys if key in self.queues]
        for queue in taken:
            queue.unsynced_from = -1
        return taken

    def delete_taken(self, queue: AnyQueue) -> None:
        """Remove a queue's files from the disk, except files that a new queue of the same name has created since."""
        again = self.queues.get((queue.topic, queue.queue_id))
        queue.delete(frozenset(again.file_paths) if again is not None else ())

    def remove_directories(self, topics: Iterable[str]) -> None:
        """Remove the directories of topics that have no queues any more."""
        for topic in topics:
            for parent in (self._simple_dir, self._batch_dir, self._extension_dir):
                self._remove_directory(parent, topic)

    def _remove_directory(self, parent: str, topic: str) -> None:
        disk, unsynced = self._pool.disk, self._pool.unsynced_dirs
        directory = os.path.join(parent, topic)
        if disk.is_dir(directory) and not disk.list_dir(directory):
            disk.remove(directory)
            unsynced.discard(directory)
            unsynced.add(parent)


def check_queue_name(topic: str, queue_id: int) -> None:
    """Raise RecordInvalid unless a queue of this topic and id can be on the disk."""
    check_component(topic)
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise RecordInvalid(f"queue {queue_id} of topic {topic}: queue ids are 0 to {QUEUE_ID_MAX}")


def is_queue_name(topic: str, queue_id: int) -> bool:
    """Whether a queue of this topic and id can be on the disk."""
    try:
        check_queue_name(topic, queue_id)
    except RecordInvalid:
        return False
    return True


def without_light_offsets(message: StoredMessage) -> StoredMessage:
    """A message that gets no entry in LMQs carries no offsets in them: recovery would write entries there, over
    those of others. Clients can send the property, and a copy (a retry, a delayed message) has that of its original."""
    if MULTI_OFFSET_TEXT not in message.properties:
        return message
    properties = decode_properties(message.properties.decode(errors="surrogateescape"))
    if properties.pop(MULTI_OFFSET, None) is None:
        return message
    return dataclasses.replace(
        message, properties=encode_properties(properties).encode(errors="surrogateescape")
    )
