"""Merges the master's table of committed offsets with a slave's. Core.

RocketMQ's slaves overwrite their values with the master's, and keep offsets that the master does not have. So a master
that returns with an old file reverts what consumers committed at the slave meanwhile, and offsets of deleted topics and
groups remain. Here a slave raises its value to the master's. It lowers its value only when it has followed the master
without a break and the master lowered the value: an operator has reset the group. Offsets that consumers committed at
this slave while the master was away are sent to the master when it returns, also for groups that the master has never
seen.

An Aerobee master reports the topics and groups whose offsets it removed; the slave removes them before it merges the
table. Offsets that the master lacks then were committed at this slave. RocketMQ's master reports no removals: an offset
that was in its previous table and is missing now was removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from aerobee.system_names import SYSTEM_GROUP_PREFIX

PUSHED_MAX = 10_000  # maximum number of offsets reported to a master in one request


class OffsetAt(NamedTuple):
    """An offset of a group in a queue."""

    topic: str
    group: str
    queue_id: int
    offset: int


class Merge(NamedTuple):
    """Result of a merge: offsets to set at this slave, offsets to report to the master, and offsets that the master
    removed.
    """

    taken: list[OffsetAt]
    given_back: list[OffsetAt]
    removed: list[OffsetAt]


class OffsetMerge:
    """Remembers the master's previous table."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, int], int] = {}
        self._was_away = True

    def master_lost(self) -> None:
        """The master does not answer, or another one is followed: a lower value is no reset from here on."""
        self._was_away = True

    def merge(
        self,
        table: Iterable[OffsetAt],
        query: Callable[[str, str, int], int | None],
        own: Iterable[tuple[str, str, int, int]] = (),
        *,
        own_count: int = 0,
        is_from_here: Callable[[OffsetAt], bool] = lambda each: True,
        counts_cut_off: bool = False,
    ) -> Merge:
        """Compare the master's whole table with the offsets here; `query(group, topic, queue_id)` tells those, `own` are all of
        them (topic, group, queue id, offset), `own_count` in number. `is_from_here` says of one that the master does not have whether it was committed here.
        `counts_cut_off`: this log was truncated, so the offsets here may include removed messages and check points.
        Then the merge takes all values of the master, and returns none to give back.
        """
        taken: list[OffsetAt] = []
        removed: list[OffsetAt] = []
        given_back: list[OffsetAt] = []
        seen, was_away = self._seen, self._was_away
        known = 0  # of the master's offsets that are here, too
        now: dict[tuple[str, str, int], int] = {}
        for each in table:
            key = each.topic, each.group, each.queue_id
            last, mine = seen.get(key), query(each.group, each.topic, each.queue_id)
            now[key] = each.offset
            known += mine is not None
            if each.group.startswith(SYSTEM_GROUP_PREFIX):
                if mine != each.offset:  # the brokers' own progress: no client commits it here
                    taken.append(each)
            elif counts_cut_off:
                if mine != each.offset:
                    taken.append(each)
            elif (
                mine is None
                or each.offset > mine
                or (last is not None and not was_away and each.offset < last)
            ):
                taken.append(each)
            elif (
                last is not None
                and was_away
                and mine > max(last, each.offset)
                and len(given_back) < PUSHED_MAX
            ):
                given_back.append(each._replace(offset=mine))
        for topic, group, queue_id, offset in own if own_count > known else ():
            key = topic, group, queue_id
            if key in now or group.startswith(SYSTEM_GROUP_PREFIX):
                continue
            each = OffsetAt(*key, offset)
            if not was_away:
                if key in seen:
                    removed.append(each)
            elif not counts_cut_off and len(given_back) < PUSHED_MAX and is_from_here(each):
                given_back.append(each)
        self._seen, self._was_away = now, False
        return Merge(taken, given_back, removed)
