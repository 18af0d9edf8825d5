"""The checkpoint: the bounds up to which the parts of the store are durable. Follows StoreCheckpoint of RocketMQ.

4096 bytes, int64 each: @0 log time, @8 queues' time, @16 index time, @24 master's flushed offset, @32 confirm
offset, @40 queues' physical offset: every queue entry of a record before it is on the disk. Times are the store
times of the last records that had reached the disk.

RocketMQ reads only the bytes before that. Aerobee keeps its own, exact bounds there:

    @64 magic 8 | log_flushed 8 | queues_flushed 8 | copy of @0 8 | copy of @8 8 | crc32 of these 4

If RocketMQ has written the checkpoint since, the copies differ, and the bounds are ignored. After the 4096 bytes that
RocketMQ maps follow the bounds of each queue (queue_bounds.py):

    @4096 size of it 4 | crc32 of @64 to @104 and of it 4 | it
"""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from aerobee.store.files.disk import Disk

CHECKPOINT_BYTES = 4096
FIELDS = struct.Struct(">qqqqqq")
BOUNDS_AT = 64
BOUNDS = struct.Struct(">8sqqqq")
_MAGIC = b"AEROBEE1"
_OWN_PART = struct.Struct(">II")
_logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Checkpoint:
    """Content of the file. `log_flushed` and `queues_flushed` are -1 when only RocketMQ's fields are known."""

    log_timestamp: int = 0
    queues_timestamp: int = 0
    index_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    queues_physical_offset: int = 0
    log_flushed: int = -1
    queues_flushed: int = -1
    queue_bounds: bytes = b""  # encoded; empty: nothing is known

    @property
    def has_bounds(self) -> bool:
        """Whether Aerobee wrote it, so that it contains the durable bounds of log and queues."""
        return self.log_flushed >= 0

    def encode(self) -> bytes:
        """The whole file: RocketMQ's fields, then Aerobee's."""
        data = bytearray(CHECKPOINT_BYTES)
        FIELDS.pack_into(
            data,
            0,
            self.log_timestamp,
            self.queues_timestamp,
            self.index_timestamp,
            self.master_flushed_offset,
            self.confirm_offset,
            self.queues_physical_offset,
        )
        if self.has_bounds:
            BOUNDS.pack_into(
                data,
                BOUNDS_AT,
                _MAGIC,
                self.log_flushed,
                self.queues_flushed,
                self.log_timestamp,
                self.queues_timestamp,
            )
            crc = zlib.crc32(data[BOUNDS_AT : BOUNDS_AT + BOUNDS.size])
            struct.pack_into(">I", data, BOUNDS_AT + BOUNDS.size, crc)
            if self.queue_bounds:
                crc = zlib.crc32(self.queue_bounds, crc)
                data += _OWN_PART.pack(len(self.queue_bounds), crc) + self.queue_bounds
        return bytes(data)


def without_queues(checkpoint: Checkpoint, log_min_offset: int) -> Checkpoint:
    """The same as to the log; of queues and index nothing is known to be on the disk."""
    return replace(
        checkpoint,
        queues_timestamp=0,
        index_timestamp=0,
        queues_physical_offset=log_min_offset,
        queues_flushed=log_min_offset if checkpoint.has_bounds else -1,
    )


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Read the file's content; one that is too short or empty is a checkpoint of zeros."""
    if len(data) < FIELDS.size:
        return Checkpoint()
    log, queues, index, master, confirm, physical = FIELDS.unpack_from(data, 0)
    checkpoint = Checkpoint(
        log_timestamp=log,
        queues_timestamp=queues,
        index_timestamp=index,
        master_flushed_offset=master,
        confirm_offset=confirm,
        queues_physical_offset=physical,
    )
    if len(data) >= BOUNDS_AT + BOUNDS.size + 4:
        magic, log_flushed, queues_flushed, log_copy, queues_copy = BOUNDS.unpack_from(data, BOUNDS_AT)
        (crc,) = struct.unpack_from(">I", data, BOUNDS_AT + BOUNDS.size)
        if (
            magic == _MAGIC
            and (log_copy, queues_copy) == (log, queues)
            and crc == zlib.crc32(data[BOUNDS_AT : BOUNDS_AT + BOUNDS.size])
        ):
            checkpoint.log_flushed = log_flushed
            checkpoint.queues_flushed = queues_flushed
            checkpoint.queue_bounds = _decode_own_part(data, crc)
    return checkpoint


def _decode_own_part(data: bytes, seed: int) -> bytes:
    start = CHECKPOINT_BYTES + _OWN_PART.size
    if len(data) < start:
        return b""
    size, crc = _OWN_PART.unpack_from(data, CHECKPOINT_BYTES)
    part = data[start : start + size]
    return part if len(part) == size and zlib.crc32(part, seed) == crc else b""


class OpenIndex(Protocol):
    """The oldest index file whose entries are not all durable.

    A protocol, because the index (IndexFile) lies above the store's files.
    """

    begin_timestamp: int
    begin_physical_offset: int


def next_checkpoint(
    current: Checkpoint,
    *,
    log_flushed: int,
    confirm_offset: int,
    log_end: int,
    queues_bound: int,
    last_record: tuple[int, int],
    record_time: Callable[[int], int],
    index_timestamp: int,
    open_index: OpenIndex | None,
    queue_bounds: bytes,
) -> Checkpoint:
    """The checkpoint that may be written now. `last_record` is (offset, store time) of the newest one, offset -1 for
    none.

    `queues_bound`: the queue and index entries of every record before it are on the disk.
    """
    last_offset, last_timestamp = last_record
    bound = min(queues_bound, log_flushed)
    is_whole = bound >= log_end and last_offset >= 0
    # RocketMQ trusts data that is 3 s older than these times: with unflushed data write slightly older times.
    queues_timestamp = last_timestamp if is_whole else max(0, record_time(bound) - 1)
    queues_physical_offset = last_offset if is_whole else bound
    if open_index is not None:
        # After a crash RocketMQ deletes this file and fills it again from where its queues' bound lies, so that
        # must not be behind the file's first record. Aerobee's recovery uses the bounds below.
        queues_timestamp = min(queues_timestamp, open_index.begin_timestamp)
        queues_physical_offset = min(queues_physical_offset, open_index.begin_physical_offset)
    return replace(
        current,
        log_timestamp=last_timestamp if log_flushed >= log_end else max(0, record_time(log_flushed) - 1),
        queues_timestamp=queues_timestamp,
        index_timestamp=index_timestamp,
        confirm_offset=confirm_offset,
        queues_physical_offset=queues_physical_offset,
        log_flushed=log_flushed,
        queues_flushed=bound,
        queue_bounds=queue_bounds,
    )


class CheckpointFile:
    """The checkpoint file and its present content."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.current = Checkpoint()
        self._disk = disk
        self._path = path

    def read(self) -> Checkpoint:
        """The checkpoint on the disk; zeros when there is none."""
        if self._disk.exists(self._path):
            self.current = decode_checkpoint(self._disk.read_file(self._path))
        return self.current

    def write(self, checkpoint: Checkpoint) -> None:
        """Replace the file's content, durable on return. After a write error the previous file stays valid."""
        try:
            self.must_write(checkpoint)
        except OSError as error:
            _logger.warning(
                "the checkpoint %s could not be written, the next start reads more of the log: %s",
                self._path,
                error,
            )

    def with_bounds(self, queue_bounds: bytes, queues_flushed: int) -> Checkpoint:
        """The same with other queue bounds.

        If only RocketMQ's fields are known, queues are trusted up to `queues_flushed`, and no part of the log counts as
        durable.
        """
        checkpoint = replace(self.current, queue_bounds=queue_bounds)
        if not checkpoint.has_bounds:
            checkpoint = replace(checkpoint, log_flushed=0, queues_flushed=queues_flushed)
        return checkpoint

    def must_write(self, checkpoint: Checkpoint) -> None:
        """As write(), but raises OSError when the disk refuses."""
        if checkpoint != self.current:
            self._disk.replace_file(self._path, checkpoint.encode())
            self.current = checkpoint
