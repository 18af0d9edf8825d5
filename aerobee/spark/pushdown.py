"""Conditions of a query that a read can apply: on queues, offsets, times and tags. Core.

Spark passes conditions joined by AND. Conditions on topic, broker, queue_id, queue_offset and tags are
applied here completely. A condition on store_ts narrows the offsets with a precision of milliseconds, and
Spark applies it again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from aerobee.message import MessageQueue

_LEGAL_TAG = re.compile(r"[^|\s](?:[^|]*[^|\s])?\Z")


class Condition(Protocol):
    """A filter of pyspark.sql.datasource: EqualTo, In, GreaterThan, Not, ...

    A protocol, because the classes are PySpark's.
    """


_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": lambda have, want: bool(have == want),
    "EqualNullSafe": lambda have, want: bool(have == want),
    "In": lambda have, want: have in want,
    "GreaterThan": lambda have, want: bool(have > want),
    "GreaterThanOrEqual": lambda have, want: bool(have >= want),
    "LessThan": lambda have, want: bool(have < want),
    "LessThanOrEqual": lambda have, want: bool(have <= want),
    "StringStartsWith": lambda have, want: bool(have.startswith(want)),
    "StringEndsWith": lambda have, want: bool(have.endswith(want)),
    "StringContains": lambda have, want: want in have,
    "IsNotNull": lambda have, _want: True,
    "IsNull": lambda have, _want: False,
}
_OF_QUEUE: dict[str, Callable[[MessageQueue], Any]] = {
    "topic": lambda queue: queue.topic,
    "broker": lambda queue: queue.broker_name,
    "queue_id": lambda queue: queue.queue_id,
}
_EQUALS = ("EqualTo", "EqualNullSafe")


@dataclass(slots=True)
class Pushed:
    """The applied conditions. `offset_min` is inclusive, `offset_end` exclusive; times are in ms, both inclusive."""

    queue_tests: list[Callable[[MessageQueue], bool]] = field(default_factory=list)
    offset_min: int | None = None
    offset_end: int | None = None
    time_min_ms: int | None = None
    time_max_ms: int | None = None
    tags: frozenset[str] | None = None
    descriptions: list[str] = field(default_factory=list)

    def wants(self, queue: MessageQueue) -> bool:
        """Whether the queue can have a row that meets the conditions."""
        return all(test(queue) for test in self.queue_tests)

    def push(self, condition: Condition, *, may_filter_tags: bool) -> bool:
        """Add a condition; True when Spark need not apply it again.

        `may_filter_tags`: the options set no expression; a broker accepts only one.
        """
        name, negated = type(condition).__name__, False
        if name == "Not":
            condition, negated = condition.child, True  # type: ignore[attr-defined]
            name = type(condition).__name__
        column = condition.attribute  # type: ignore[attr-defined]
        value = getattr(condition, "value", None)
        if len(column) != 1 or name not in _TESTS:
            return False
        taken = self._take(column[0], name, value, negated, may_filter_tags)
        if taken:
            self.descriptions.append(f"{'not ' if negated else ''}{column[0]} {name} {value!r}")
        return taken

    def _take(self, column: str, name: str, value: Any, negated: bool, may_filter_tags: bool) -> bool:
        if column in _OF_QUEUE:
            return self._take_queue(column, name, value, negated)
        if negated:
            return False
        if column == "queue_offset":
            return self._take_offset(name, value)
        if column == "tags" and may_filter_tags:
            return self._take_tags(name, value)
        if column == "store_ts":
            self._take_time(name, value)
        return False

    def _take_queue(self, column: str, name: str, value: Any, negated: bool) -> bool:
        if value is None and name not in ("IsNull", "IsNotNull", "EqualNullSafe"):
            return False
        test, of = _TESTS[name], _OF_QUEUE[column]
        self.queue_tests.append(lambda queue: test(of(queue), value) is not negated)
        return True

    def _take_offset(self, name: str, value: Any) -> bool:
        if name == "IsNotNull":
            return True
        if not isinstance(value, int):
            return False
        if name in (*_EQUALS, "GreaterThan", "GreaterThanOrEqual"):
            least = value + (name == "GreaterThan")
            self.offset_min = least if self.offset_min is None else max(self.offset_min, least)
        elif name not in ("LessThan", "LessThanOrEqual"):
            return False
        if name in (*_EQUALS, "LessThan", "LessThanOrEqual"):
            end = value + (name != "LessThan")
            self.offset_end = end if self.offset_end is None else min(self.offset_end, end)
        return True

    def _take_tags(self, name: str, value: Any) -> bool:
        texts = value if name == "In" else (value,)
        if name not in (*_EQUALS, "In") or not all(isinstance(text, str) for text in texts):
            return False
        if not texts or not all(_LEGAL_TAG.match(text) and text != "*" for text in texts):
            return False
        self.tags = frozenset(texts) if self.tags is None else self.tags & frozenset(texts)
        return True

    def _take_time(self, name: str, value: Any) -> None:
        if not isinstance(value, datetime) or value.tzinfo is None:
            return
        ms = value.timestamp() * 1000
        if name in (*_EQUALS, "GreaterThan", "GreaterThanOrEqual"):
            least = int(ms // 1)
            self.time_min_ms = least if self.time_min_ms is None else max(self.time_min_ms, least)
        if name in (*_EQUALS, "LessThan", "LessThanOrEqual"):
            most = -int(-ms // 1)
            self.time_max_ms = most if self.time_max_ms is None else min(self.time_max_ms, most)

    def offsets_within(self, begin: int, end: int) -> tuple[int, int]:
        """A range restricted by the conditions on offsets."""
        begin = begin if self.offset_min is None else max(begin, self.offset_min)
        end = end if self.offset_end is None else min(end, self.offset_end)
        return begin, max(begin, end)


def push_all(conditions: Iterable[Condition], *, may_filter_tags: bool) -> tuple[Pushed, list[Condition]]:
    """Return the applied conditions, and the conditions that Spark must apply."""
    pushed = Pushed()
    left = [each for each in conditions if not pushed.push(each, may_filter_tags=may_filter_tags)]
    return pushed, left
