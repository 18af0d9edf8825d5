"""Progress of the timer: config/timercheck. Follows TimerCheckpoint of RocketMQ.

4096 bytes; the first 56 are also the body of GET_TIMER_CHECK_POINT (60), int64 each:

    read time ms | timer log's flushed position | timer queue offset | master's timer queue offset
    data version: state version | timestamp | counter

Every slot before the read time is delivered; every message of the timer topic below the queue offset has its unit
in the timer log below the flushed position. RocketMQ reads nothing behind byte 56. Aerobee keeps there

    @64 magic 8 | scan_from 8 | is closed 8 | copy of the read time 8 | copy of the counter 8 | crc32 of these 4

    @128 magic 8 | where the timer log begins 8 | size of its files 8 | crc32 of these and the one above 4
    @192 magic 8 | source 8 | position 8 | log end 8 | crc32 of these and that @128 4   (a slave's copy only)
    @256 magic 8 | marked from 8 | crc32 of these and that @128 4

`scan_from` is a physical offset: deliveries of slots from the read time on are after it in the commit log. `is closed`
is 1 while no slot was written since. If RocketMQ has written the file since, the copies differ, and scan_from is
ignored.

`marked from` is a physical offset: each delivery of a timer message from there on names it (source_pointer.py). A RocketMQ broker's do
not.

A slave's file repeats what its master said: `source` is the master's timer log, `position` where in it the copy ends, and `log end` where
the master's commit log ended. The statement is true of a commit log that reaches `log end`.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass, replace

from aerobee.store.files.disk import Disk

TIMER_CHECKPOINT_BYTES = 4096
FIELDS = struct.Struct(">qqqqqqq")
OWN_AT = 64
OWN = struct.Struct(">8sqqqq")
_MAGIC = b"AEROTIM1"
LOG_AT = 128
LOG = struct.Struct(">8sqq")
_LOG_MAGIC = b"AEROTIM2"
COPY_AT = 192
COPY = struct.Struct(">8sQqq")
_COPY_MAGIC = b"AEROTIM3"
MARKED_AT = 256
MARKED = struct.Struct(">8sq")
_MARKED_MAGIC = b"AEROTIM4"
ROCKETMQ = (1 << 64) - 1  # the source of a statement without units: a RocketMQ master's read time


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedFrom:
    """The source of a slave's checkpoint: the master's timer log from which it was copied, and the log end that it
    requires.
    """

    source: int  # the timer log of one mastership, or ROCKETMQ
    position: int  # in that timer log: units before it are copied; of ROCKETMQ: messages before this queue offset had a unit
    log_end: int  # physical offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerCheckpoint:
    """Content of the file; `scan_from` is -1 (unknown) in a file that RocketMQ wrote."""

    read_time_ms: int = 0
    log_flushed: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0
    scan_from: int = -1
    is_closed: bool = False
    log_min: int = -1  # begin of the timer log; -1: unknown
    log_file_size: int = 0  # 0: not known
    copied_from: CopiedFrom | None = None  # None: this broker was the master
    marked_from: int = -1  # physical offset; -1: unknown

    def fields(self) -> bytes:
        """The 56 bytes that RocketMQ knows."""
        return FIELDS.pack(
            self.read_time_ms,
            self.log_flushed,
            self.queue_offset,
            self.master_queue_offset,
            self.state_version,
            self.timestamp,
            self.counter,
        )

    def encode(self) -> bytes:
        """The whole file."""
        data = bytearray(TIMER_CHECKPOINT_BYTES)
        data[: FIELDS.size] = self.fields()
        if self.scan_from >= 0:
            own = OWN.pack(_MAGIC, self.scan_from, self.is_closed, self.read_time_ms, self.counter)
            data[OWN_AT : OWN_AT + OWN.size] = own
            crc = zlib.crc32(own)
            struct.pack_into(">I", data, OWN_AT + OWN.size, crc)
            part = LOG.pack(_LOG_MAGIC, self.log_min, self.log_file_size)
            data[LOG_AT : LOG_AT + LOG.size] = part
            crc = zlib.crc32(part, crc)
            struct.pack_into(">I", data, LOG_AT + LOG.size, crc)
            if (copied := self.copied_from) is not None:
                part = COPY.pack(_COPY_MAGIC, copied.source, copied.position, copied.log_end)
                data[COPY_AT : COPY_AT + COPY.size] = part
                struct.pack_into(">I", data, COPY_AT + COPY.size, zlib.crc32(part, crc))
            if self.marked_from >= 0:
                part = MARKED.pack(_MARKED_MAGIC, self.marked_from)
                data[MARKED_AT : MARKED_AT + MARKED.size] = part
                struct.pack_into(">I", data, MARKED_AT + MARKED.size, zlib.crc32(part, crc))
        return bytes(data)


def decode_timer_checkpoint(data: bytes) -> TimerCheckpoint | None:
    """Read the file's content or a body of 56 bytes; None when it is shorter or was never written."""
    if len(data) < FIELDS.size or not any(data[: FIELDS.size]):
        return None
    read_time, log_flushed, queue_offset, master, state, timestamp, counter = FIELDS.unpack_from(data, 0)
    if min(read_time, log_flushed, queue_offset) < 0:
        return None
    checkpoint = TimerCheckpoint(
        read_time_ms=read_time,
        log_flushed=log_flushed,
        queue_offset=queue_offset,
        master_queue_offset=master,
        state_version=state,
        timestamp=timestamp,
        counter=counter,
    )
    if len(data) >= OWN_AT + OWN.size + 4:
        own = data[OWN_AT : OWN_AT + OWN.size]
        magic, scan_from, is_closed, read_copy, counter_copy = OWN.unpack(own)
        (crc,) = struct.unpack_from(">I", data, OWN_AT + OWN.size)
        if (magic, read_copy, counter_copy, crc) == (_MAGIC, read_time, counter, zlib.crc32(own)):
            own_part = replace(checkpoint, scan_from=scan_from, is_closed=bool(is_closed))
            return _with_log(own_part, data, crc)
    return checkpoint


def _with_log(checkpoint: TimerCheckpoint, data: bytes, seed: int) -> TimerCheckpoint:
    part = data[LOG_AT : LOG_AT + LOG.size]
    if len(data) < LOG_AT + LOG.size + 4:
        return checkpoint
    magic, log_min, file_size = LOG.unpack(part)
    (crc,) = struct.unpack_from(">I", data, LOG_AT + LOG.size)
    if magic != _LOG_MAGIC or crc != zlib.crc32(part, seed):
        return checkpoint
    return replace(
        checkpoint,
        log_min=log_min,
        log_file_size=file_size,
        copied_from=_copied_from(data, crc),
        marked_from=_marked_from(data, crc),
    )


def _copied_from(data: bytes, seed: int) -> CopiedFrom | None:
    part = data[COPY_AT : COPY_AT + COPY.size]
    if len(data) < COPY_AT + COPY.size + 4:
        return None
    magic, source, position, log_end = COPY.unpack(part)
    (crc,) = struct.unpack_from(">I", data, COPY_AT + COPY.size)
    if magic != _COPY_MAGIC or crc != zlib.crc32(part, seed):
        return None
    return CopiedFrom(source=source, position=position, log_end=log_end)


def _marked_from(data: bytes, seed: int) -> int:
    part = data[MARKED_AT : MARKED_AT + MARKED.size]
    if len(data) < MARKED_AT + MARKED.size + 4:
        return -1
    magic, marked_from = MARKED.unpack(part)
    (crc,) = struct.unpack_from(">I", data, MARKED_AT + MARKED.size)
    return marked_from if magic == _MARKED_MAGIC and crc == zlib.crc32(part, seed) else -1


class TimerCheckpointFile:
    """The file, replaced in one step."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path

    def read(self) -> TimerCheckpoint | None:
        """The durable checkpoint; None when there is nothing usable. Raises OSError."""
        if not self._disk.exists(self._path):
            return None
        return decode_timer_checkpoint(self._disk.read_file(self._path))

    def write(self, checkpoint: TimerCheckpoint) -> None:
        """Durable on return. Raises OSError; the previous content then remains."""
        self._disk.replace_file(self._path, checkpoint.encode())

    def remove(self) -> None:
        """Durable on return. Raises OSError."""
        if self._disk.exists(self._path):
            self._disk.remove(self._path)
            self._disk.sync_dir(os.path.dirname(self._path))
