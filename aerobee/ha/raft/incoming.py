"""A snapshot that a node receives chunk by chunk. Core.

All chunks belong to one leader, term and index; a chunk of another one discards the received chunks, because
two leaders may encode the same state in different bytes. It buffers at most `total_bytes`.
"""

from __future__ import annotations

import zlib

from aerobee.errors import WireError
from aerobee.ha.raft.messages import SnapshotChunk


class IncomingSnapshot:
    """The received bytes, and the snapshot to which they belong."""

    def __init__(self) -> None:
        self._of: tuple[object, ...] = ()
        self._data = bytearray()

    def clear(self) -> None:
        self._of = ()
        self._data = bytearray()

    def add(self, chunk: SnapshotChunk) -> tuple[int, bytes | None]:
        """Add a chunk. Return the number of received bytes, and the whole snapshot after the last chunk.

        A chunk that does not follow the last one is ignored: the reply contains the offset at which the
        leader must continue. Raises WireError when the checksum of the whole snapshot is wrong, and discards
        it.
        """
        key = (chunk.source, chunk.term, chunk.index, chunk.snapshot_term, chunk.total_bytes, chunk.crc)
        if key != self._of:
            self.clear()
            self._of = key
        if chunk.offset == len(self._data):
            self._data += chunk.data
        if len(self._data) < chunk.total_bytes:
            return len(self._data), None
        data = bytes(self._data)
        self.clear()
        if zlib.crc32(data) != chunk.crc:
            raise WireError(f"the snapshot at {chunk.index} from {chunk.source!r} is damaged")
        return len(data), data
