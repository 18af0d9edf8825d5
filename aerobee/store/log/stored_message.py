"""Input and result of an append: messages ready for encoding, and the positions of their records.

Follows MessageExtBrokerInner, AppendMessageResult, GetMessageResult and QueryMessageResult of RocketMQ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from operator import sub

from aerobee.quick_init import quick_init


@dataclass(slots=True, kw_only=True)
class StoredMessage:
    """One message to append. The store sets offsets, store time and CRC, and takes everything else as it is.

    `properties` is the text form, encoded. `born_host` and `store_host` are packed (message.pack_host);
    an empty `store_host` means the store's own. Bits 4 and 5 of `sys_flag` are set from the hosts.
    """

    topic: str
    queue_id: int
    body: bytes | bytearray | memoryview
    properties: bytes
    born_host: bytes
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    store_host: bytes = b""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    # The filter value in the queue entry. None: what dispatch computes from the stored record (the hash of
    # TAGS, or the delivery time in the schedule topic). A value that differs is lost when recovery rebuilds
    # it.
    tags_code: int | None = None
    # Key texts of the index entries, without the leading "topic#". None: taken from the properties.
    index_keys: tuple[str, ...] | None = None
    # `properties` decoded, where the sender's side has them: they are not decoded again then.
    parsed: dict[str, str] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Position of the stored records. Readable as the store's readable_offset says, durable when `flushed` reaches
    `end`."""

    physical_offset: int  # of the first record
    size: int  # bytes of all records together
    queue_offset: int  # of the first record; 0 for prepared and rollback records, which take none
    store_timestamp: int
    record_offsets: tuple[int, ...]  # physical offset of each record

    @property
    def end(self) -> int:
        """Offset behind the last record, the argument of wait_durable()."""
        return self.physical_offset + self.size

    @property
    def record_sizes(self) -> Iterator[int]:
        """Bytes of each record."""
        return record_sizes(self.record_offsets, self.end)

    @property
    def count(self) -> int:
        """Number of written records."""
        return len(self.record_offsets)


def record_sizes(offsets: Sequence[int], end: int) -> Iterator[int]:
    """Bytes of records that lie back to back, the last one up to `end`."""
    return map(sub, (*offsets[1:], end), offsets)


class GetStatus(Enum):
    """Outcome of a read, as RocketMQ's GetMessageStatus."""

    FOUND = auto()
    NO_MATCHED_MESSAGE = auto()  # the filter rejected all messages that were read; continue at next_offset
    MESSAGE_WAS_REMOVING = auto()  # the record was deleted already
    OFFSET_FOUND_NULL = auto()  # the queue has a gap here
    OFFSET_OVERFLOW_BADLY = auto()  # beyond the end
    OFFSET_OVERFLOW_ONE = auto()  # at the end, or at a stored message that is not visible yet: wait
    OFFSET_TOO_SMALL = auto()  # deleted
    NO_MATCHED_LOGIC_QUEUE = auto()  # no such queue
    NO_MESSAGE_IN_QUEUE = auto()


@quick_init
@dataclass(frozen=True, slots=True)
class GetResult:
    """Records back to back, each whole. `next_offset` is where the consumer continues, whatever the status."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    body: bytes = b""
    count: int = 0  # messages in the queue's counting; an inner batch of a batch queue counts as its messages
    suggest_slave: bool = False  # the requested data is beyond the memory share: a slave should serve it


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Candidates of an index query, newest first, back to back.

    Only the key's hash is in the index: the caller compares the keys. The index's last update tells a client
    how far the answer reaches.
    """

    body: bytes
    count: int
    index_last_timestamp: int
    index_last_physical_offset: int
