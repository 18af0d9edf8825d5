"""config/transactionMetrics: how many transactions of each topic are open (TransactionMetrics of RocketMQ).

    {"dataVersion": {"counter", "stateVersion", "timestamp"},
     "transactionCount": {topic: {"count", "timeStamp"}}}

Only people and tools read the file: a start counts again, because RocketMQ's count drifts after a crash, even below 0.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from aerobee.broker.state.config_file import ConfigFile
from aerobee.clock import Clock
from aerobee.errors import MalformedFrame
from aerobee.remoting.body.data_version import DataVersion

log = logging.getLogger(__name__)


class TransactionMetrics:
    """The file. write() blocks."""

    def __init__(self, *, file: ConfigFile | None, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._written: dict[str, int] = {}
        self._changed_ms: dict[str, int] = {}
        self.data_version = DataVersion(0, clock.now_ms(), 0)

    def load(self) -> None:
        """Read the topics and the version that the file names; the counts are recomputed. A damaged file begins again, too."""
        tree = self._file.read_statistics() if self._file is not None else None
        if tree is None:
            return
        counts = tree.get("transactionCount")
        if isinstance(counts, dict):
            self._written = {str(topic): _count(entry) for topic, entry in counts.items()}
        if isinstance(tree.get("dataVersion"), dict):
            try:
                self.data_version = DataVersion.from_dict(tree["dataVersion"])
            except MalformedFrame as error:
                log.warning("config/transactionMetrics: %s; a new version is begun", error)

    def changed(self, counts: Mapping[str, int]) -> bool:
        """Whether the file says something else than `counts`."""
        written = self._written
        return any(written.get(topic, 0) != count for topic, count in counts.items()) or any(
            count and not counts.get(topic) for topic, count in written.items()
        )

    def write_soon(self, counts: Mapping[str, int]) -> None:
        """Replace the file, off the event loop."""
        if self._file is not None:
            self._file.write_soon(lambda: self.write(counts))

    def write(self, counts: Mapping[str, int]) -> None:
        """Replace the file. Topics that it named stay, with 0 when nothing of them is open. Raises StoreError."""
        if self._file is None or not self.changed(counts):
            return
        now_ms = self._clock.now_ms()
        merged = {**dict.fromkeys(self._written, 0), **counts}
        for topic, count in merged.items():
            if self._written.get(topic) != count:
                self._changed_ms[topic] = now_ms
        self.data_version = self.data_version.next(now_ms)
        tree: dict[str, Any] = {
            "dataVersion": self.data_version.to_dict(),
            "transactionCount": {
                topic: {"count": count, "timeStamp": self._changed_ms.get(topic, now_ms)}
                for topic, count in merged.items()
            },
        }
        self._file.write(tree)
        self._written = merged


def _count(entry: object) -> int:
    count = entry.get("count") if isinstance(entry, dict) else None
    return count if isinstance(count, int) else 0
