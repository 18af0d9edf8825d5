"""Number of pending timer messages per topic: config/timermetrics (TimerMetrics of RocketMQ).

    {"dataVersion":{...},"timingCount":{topic:{"count":n,"timeStamp":ms}}}

on one line. It is also the body of GET_TIMER_METRICS (61). A number for people: after a crash it may be off by what
happened since the file was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aerobee.errors import MalformedFrame
from aerobee.remoting import fastjson
from aerobee.remoting.body.data_version import DataVersion

TOPICS_MAX = 100_000  # names come from messages and must not fill the memory


def parse_counts(data: bytes) -> dict[str, Any]:
    """The content of timermetrics, for PendingCounts.load(). Raises ValueError with the reason."""
    try:
        tree = fastjson.loads_trusted(data, "timermetrics")
        if isinstance(tree.get("dataVersion"), dict):
            DataVersion.from_dict(tree["dataVersion"])
    except MalformedFrame as error:
        raise ValueError(str(error)) from error
    return tree


class PendingCounts:
    """Counts by real topic."""

    def __init__(self, now_ms: int) -> None:
        self._counts: dict[str, list[int]] = {}  # topic -> count, time of the last change
        self.data_version = DataVersion(0, now_ms, 0)

    def add(self, topic: str, step: int, now_ms: int) -> None:
        """Change a topic's number of pending messages by `step`, which may be negative. A new topic beyond TOPICS_MAX
        is not counted.
        """
        entry = self._counts.get(topic)
        if entry is None:
            if len(self._counts) >= TOPICS_MAX:
                return
            entry = self._counts[topic] = [0, 0]
        entry[0] += step
        entry[1] = now_ms

    def get(self, topic: str) -> int:
        """Number of pending messages for the topic."""
        entry = self._counts.get(topic)
        return entry[0] if entry is not None else 0

    @property
    def total(self) -> int:
        """Number of pending messages for all topics."""
        return sum(max(0, entry[0]) for entry in self._counts.values())

    def counts(self) -> Iterator[tuple[tuple[str, ...], int]]:
        """(topic,) and how many wait for it."""
        for topic, (count, _) in list(self._counts.items()):
            yield (topic,), max(0, count)

    def to_dict(self) -> dict[str, Any]:
        """The content of timermetrics, and the body of 61."""
        return {
            "dataVersion": self.data_version.to_dict(),
            "timingCount": {
                topic: {"count": count, "timeStamp": time_ms}
                for topic, (count, time_ms) in self._counts.items()
            },
        }

    def encode(self, now_ms: int) -> bytes:
        """The file's content."""
        self.data_version = self.data_version.next(now_ms)
        return fastjson.dumps(self.to_dict())

    def copy(self, tree: dict[str, Any]) -> None:
        """Be what a master's body of 61 says."""
        self._counts.clear()
        self.load(tree)

    def load(self, tree: dict[str, Any]) -> None:
        """Load a file's content. Entries that are none are left out."""
        if isinstance(tree.get("dataVersion"), dict):
            self.data_version = DataVersion.from_dict(tree["dataVersion"])
        table = tree.get("timingCount")
        for topic, entry in (table if isinstance(table, dict) else {}).items():
            if len(self._counts) >= TOPICS_MAX and topic not in self._counts:
                continue
            if isinstance(entry, dict) and isinstance(entry.get("count"), int):
                time_ms = entry.get("timeStamp")
                self._counts[str(topic)] = [entry["count"], time_ms if isinstance(time_ms, int) else 0]
