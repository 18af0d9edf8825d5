"""Remaining steps of a truncation of the log, on disk from before the first removed byte until all steps are done, so
that the next start completes it after a kill: `cut/unfinished`.

    magic 8 | physical offset 8 | crc32 of the log's bytes there 4 | 1 once the log itself is cut, else 0: 1 | crc32 of these 4

The bytes at the offset show whether the log still contains the part to cut: a log that another program has written to
since is left unchanged.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from dataclasses import dataclass, replace

from aerobee.store.files.disk import Disk
from aerobee.store.log.commit_log import CommitLog

NAME = "unfinished"
HEAD_BYTES = 64  # of the first record that goes: size, offsets, times, hosts
_LAYOUT = struct.Struct(">8sqIB")
_MAGIC = b"AEROCUT1"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CutIntent:
    """A cut of the log that is not finished yet."""

    offset: int
    head_crc: int
    is_log_cut: bool

    def encode(self) -> bytes:
        """The whole file."""
        data = _LAYOUT.pack(_MAGIC, self.offset, self.head_crc, self.is_log_cut)
        return data + zlib.crc32(data).to_bytes(4, "big")


def decode_intent(data: bytes) -> CutIntent | None:
    """Decode the whole file. None when its size, magic, offset or checksum is wrong."""
    head, crc = data[: _LAYOUT.size], data[_LAYOUT.size :]
    if len(data) != _LAYOUT.size + 4 or zlib.crc32(head).to_bytes(4, "big") != crc:
        return None
    magic, offset, head_crc, is_log_cut = _LAYOUT.unpack(head)
    return CutIntent(offset, head_crc, bool(is_log_cut)) if magic == _MAGIC and offset >= 0 else None


class CutIntentFile:
    """The file `cut/unfinished`; `current` is the cut in it, None without one."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.current: CutIntent | None = None
        self._disk = disk
        self._directory = directory
        self._path = os.path.join(directory, NAME)

    def read(self, log: CommitLog) -> None:
        """Read the remaining steps. Raises OSError.

        A damaged file only shows that there was an intent: state outside the log is then limited to the present log.
        """
        self.current = None
        if not self._disk.exists(self._path):
            return
        self.current = decode_intent(self._disk.read_file(self._path))
        if self.current is None:
            _logger.warning("%s is damaged: the log's end is taken for where it was cut", self._path)
            self.current = CutIntent(log.end, 0, is_log_cut=True)

    def begin(self, offset: int, log: CommitLog) -> None:
        """The log is about to be cut there. Durable on return. Raises OSError."""
        self._disk.make_dirs(self._directory)
        self._write(CutIntent(offset, head_crc(log, offset), is_log_cut=offset >= log.end))

    def log_is_cut(self) -> None:
        """The steps on the log itself remain. Durable on return. Raises OSError."""
        if self.current is not None and not self.current.is_log_cut:
            self._write(replace(self.current, is_log_cut=True))

    def finished(self) -> None:
        """All steps are done: remove the file. Durable on return. Raises OSError."""
        if self.current is not None:
            if self._disk.exists(self._path):
                self._disk.remove(self._path)
            self._disk.sync_dir(self._directory)
            self.current = None

    def _write(self, intent: CutIntent) -> None:
        self._disk.replace_file(self._path, intent.encode())
        self.current = intent


def head_crc(log: CommitLog, offset: int) -> int:
    """CRC of the bytes at the offset; 0 behind the log's end."""
    segment = log.segment_at(offset) if offset < log.end else None
    if segment is None:
        return 0
    at = offset - segment.base
    return zlib.crc32(
        segment.open_file().peek(at, min(segment.size, log.end - segment.base, at + HEAD_BYTES))
    )
