"""Reads for which a follower has sent its leader a ReadRequest. Core."""

from __future__ import annotations

from aerobee.ha.raft.outgoing import ReadReady

_READ_ID_MAX = 1 << 62


class AskedReads:
    """Ids of pending reads, with their deadlines. Ids begin at a random number, so a reply to a read of an
    earlier process matches none.
    """

    def __init__(self, random: float) -> None:
        self._last_id = int(random * _READ_ID_MAX)
        self._until_ms: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._until_ms)

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def ask(self, read_id: int, until_ms: float) -> None:
        self._until_ms[read_id] = until_ms

    def answered(self, read_id: int, index: int) -> list[ReadReady]:
        """The result of this read; empty when the read is unknown or has timed out."""
        return [ReadReady(read_id, index)] if self._until_ms.pop(read_id, None) is not None else []

    def fail(self, now_ms: float = float("inf")) -> list[ReadReady]:
        """Failed results of the reads whose deadline has passed; by default of all reads."""
        late = [read_id for read_id, until_ms in self._until_ms.items() if until_ms <= now_ms]
        for read_id in late:
            del self._until_ms[read_id]
        return [ReadReady(read_id, None) for read_id in late]

    @property
    def deadline_ms(self) -> float:
        return min(self._until_ms.values(), default=float("inf"))
