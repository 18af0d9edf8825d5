"""Reads that a follower has asked its leader for. Core."""

from __future__ import annotations

from aerobee.ha.raft.outgoing import ReadReady

_READ_ID_MAX = 1 << 62


class AskedReads:
    """Read ids, and until when each waits. Ids begin at a random number: an answer to an earlier life fits none."""

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
        """Empty when no caller waits for it, or not any more."""
        return [ReadReady(read_id, index)] if self._until_ms.pop(read_id, None) is not None else []

    def fail(self, now_ms: float = float("inf")) -> list[ReadReady]:
        """Those that have waited long enough; all of them by default."""
        late = [read_id for read_id, until_ms in self._until_ms.items() if until_ms <= now_ms]
        for read_id in late:
            del self._until_ms[read_id]
        return [ReadReady(read_id, None) for read_id in late]

    @property
    def deadline_ms(self) -> float:
        return min(self._until_ms.values(), default=float("inf"))
