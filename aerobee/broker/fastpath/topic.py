"""Cached look-ups of the fast path: topics, their queues, and the hashes of index keys. A core, see python_backend.py."""

from __future__ import annotations

from collections.abc import Sequence

from aerobee.broker.metrics.metrics import SIZE_ENDS, size_class
from aerobee.message import DIGITS31, HIGH31_DIGITS, LOW31_DIGITS, java_hash, tags_code
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.store.queue.consume_queue import ConsumeQueue

SMALL_BYTES = SIZE_ENDS[0]  # larger records are counted by their size
_TAG_CODES_KEPT = 4096
_POW31 = [pow(31, n, 1 << 32) for n in range(128)]
# The characters 0 to N, which are all that message ids have: counted from 0 each is one digit, and one number is enough.
_ID_CHARS = bytes(range(ord("0"), ord("0") + 31))
_ID31 = bytes.maketrans(_ID_CHARS, DIGITS31)
_ID_STARTS = [ord("0") * sum(_POW31[:size]) for size in range(128)]  # what counting from 0 takes off, by size


class FastQueue:
    """One queue of an ordinary topic."""

    __slots__ = ("key", "queue", "queue_id", "reply_start")

    def __init__(self, queue: ConsumeQueue, queue_id: int) -> None:
        self.key = (queue.topic, queue_id)
        self.queue = queue
        self.queue_id = queue_id
        self.reply_start = f'{{"code":0,"extFields":{{"queueId":"{queue_id}","transactionId":"'


class FastTopic:
    """Cached data of one ordinary topic. Dropped when the topic's config changes."""

    __slots__ = (
        "byte_count",
        "count",
        "field",
        "hash_start",
        "is_touched",
        "larger",
        "name",
        "queue_count",
        "queues",
        "request_count",
        "tags",
        "write_count",
    )

    def __init__(self, config: TopicConfig) -> None:
        raw = config.topic_name.encode()
        self.name = config.topic_name
        self.field = bytes((len(raw),)) + raw
        self.queue_count = max(config.read_queue_nums, config.write_queue_nums)
        self.write_count = config.write_queue_nums
        self.queues: dict[str, FastQueue] = {}  # by the queue id as text
        self.hash_start = java_hash(config.topic_name + "#") & 0xFFFFFFFF
        self.tags: dict[str, tuple[int, int]] = {}  # tag -> (tags code, hash of its index key)
        # Totals of stored messages since the last Shared.take_stored().
        self.is_touched = False
        self.count = self.byte_count = self.request_count = 0
        self.larger: list[int] | None = None  # records beyond the smallest of SIZE_ENDS; None: there are none

    def note_size(self, size: int, times: int = 1) -> None:
        """A record is larger than the smallest of SIZE_ENDS."""
        if self.larger is None:
            self.larger = [0] * len(SIZE_ENDS)
        self.larger[size_class(size)] += times

    def tag(self, tag: str) -> tuple[int, int]:
        """Return the tags code of a queue entry and the hash of the index key `topic#T#tag`."""
        codes = self.tags.get(tag)
        if codes is None:
            if len(self.tags) >= _TAG_CODES_KEPT:
                self.tags.clear()
            codes = self.tags[tag] = (tags_code(tag), positive(java_hash(f"{self.name}#T#{tag}")))
        return codes

    def key_hash(self, key: str) -> int:
        """The hash of the index key `topic#key`, without building it."""
        if 0 < len(key) < 128 and key.isascii():
            return self.plain_key_hash(key.encode())
        return positive(java_hash(f"{self.name}#{key}"))

    def plain_key_hash(self, raw: bytes) -> int:
        """The hash of a non-empty ASCII key."""
        size = len(raw)
        if size < 128:
            # Continues from the hash of the topic: java_hash() of `topic#key` costs 6,200 more of the 88,000 instructions of a
            # send (7 %).
            if raw.translate(None, _ID_CHARS):
                low, high = int(raw.translate(LOW31_DIGITS), 31), int(raw.translate(HIGH31_DIGITS), 31)
                value = (self.hash_start * _POW31[size] + low + 31 * high) & 0xFFFFFFFF
            else:
                value = (
                    self.hash_start * _POW31[size] + _ID_STARTS[size] + int(raw.translate(_ID31), 31)
                ) & 0xFFFFFFFF
            return value if value < 0x80000000 else (0x100000000 - value) & 0x7FFFFFFF
        return positive(java_hash(f"{self.name}#{raw.decode()}"))

    def plain_key_hashes(self, keys: Sequence[bytes]) -> list[int]:
        """The same for keys of one length. Message ids, which batches are full of, take half as long as one by one."""
        size = len(keys[0])
        if size >= 128 or b"".join(keys).translate(None, _ID_CHARS):
            return [self.plain_key_hash(key) for key in keys]
        start = self.hash_start * _POW31[size] + _ID_STARTS[size]
        return [
            value
            if (value := (start + int(key.translate(_ID31), 31)) & 0xFFFFFFFF) < 0x80000000
            else positive(value)
            for key in keys
        ]


def positive(value: int) -> int:
    """The absolute value of a Java int; that of the smallest one is 0, as RocketMQ's index has it."""
    value &= 0xFFFFFFFF
    return value if value < 0x80000000 else (0x100000000 - value) & 0x7FFFFFFF
