"""Deliveries to other brokers while this group had no master, stored in config/actingDeliveries.json:

    {"sources": [physical offsets of the records that waited]}

A master's log records deliveries (store/log/source_pointer.py); a slave's log cannot. The acting slave checks this
table before it delivers, also after a restart; a returning master receives it, and keeps it as long as its log has
those records.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from aerobee.broker.state.config_file import ConfigFile
from aerobee.errors import MalformedFrame, StoreError

SOURCES_MAX = 2_000_000  # the oldest go first: a message could then come twice
FILE_NAME = "actingDeliveries.json"


class EscapedDeliveries:
    """Records deliveries to other brokers. A crash loses those of the last second: the messages are delivered twice.
    Belongs to the event loop.
    """

    def __init__(self, file: ConfigFile) -> None:
        self._file = file
        self._sources: dict[int, None] = {}  # in the order in which they came

    def __contains__(self, physical_offset: object) -> bool:
        return physical_offset in self._sources

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def sources(self) -> frozenset[int]:
        """Physical offsets of the records that were delivered."""
        return frozenset(self._sources)

    def load(self, log_min_offset: int, log_end: int) -> None:
        """Read the file and drop offsets outside the log. Raises StoreError."""
        tree = self._file.read() or {}
        try:
            found = parse_sources(tree.get("sources", []))
        except MalformedFrame as error:
            raise StoreError(f"config/{FILE_NAME}: {error}", path=self._file.path) from error
        self._sources = dict.fromkeys(each for each in found if log_min_offset <= each < log_end)

    def add(self, sources: Iterable[int]) -> None:
        """Record deliveries; the file follows soon."""
        before = len(self._sources)
        self._sources.update(dict.fromkeys(sources))
        if len(self._sources) == before:
            return
        while len(self._sources) > SOURCES_MAX:
            del self._sources[next(iter(self._sources))]
        self._save()

    def forget_outside(self, log_min_offset: int, log_end: int) -> None:
        """Drop entries outside these bytes, the present range of the log."""
        kept = {each: None for each in self._sources if log_min_offset <= each < log_end}
        if len(kept) != len(self._sources):
            self._sources = kept
            self._save()

    def part(self, start: int, count: int) -> list[int]:
        """`count` entries in the order of their arrival, from number `start` on."""
        return list(itertools.islice(self._sources, start, start + count))

    def _save(self) -> None:
        # Copied in the writer's thread, once for all that came meanwhile; list() of a dict is one step of the interpreter.
        self._file.write_soon(lambda: self._file.write({"sources": list(self._sources)}))


def parse_sources(value: object) -> list[int]:
    """Physical offsets from another broker or the file. Raises MalformedFrame."""
    if not isinstance(value, list) or len(value) > SOURCES_MAX:
        raise MalformedFrame("the deliveries of an acting master are no list of offsets")
    if any(type(each) is not int or each < 0 for each in value):
        raise MalformedFrame("the deliveries of an acting master hold something that is no offset")
    return value
