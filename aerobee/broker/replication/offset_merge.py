"""What becomes of a group's offsets at a slave when the master's table comes. Core.

RocketMQ's slaves put the master's values over their own and keep what the master does not have: a master that returns with an old
file takes back what consumers have committed at the slave meanwhile, and offsets of deleted topics and groups stay. Here a value
goes up with the master's, and down only when the master itself, while it was followed without a break, took it back: an operator has
reset the group. What consumers committed here while the master was away is given to it when it is back, also for groups that it
has never seen.

A master of ours tells which topics' and groups' offsets it removed; they are removed before its table is merged. What it does not have
then was committed here. RocketMQ's master does not tell: what it had at the last look, and has no more, was removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from aerobee.system_names import SYSTEM_GROUP_PREFIX

PUSHED_MAX = 10_000  # offsets given back to a master at a time


class OffsetAt(NamedTuple):
    """An offset of a group in a queue."""

    topic: str
    group: str
    queue_id: int
    offset: int


class Merge(NamedTuple):
    """What to set here, what to report to the master, and what it has removed."""

    taken: list[OffsetAt]
    given_back: list[OffsetAt]
    removed: list[OffsetAt]


class OffsetMerge:
    """Remembers what a master said last."""

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
        `counts_cut_off`: the end of this log was cut off, and what is here may count messages and check points of pops that went
        with it: the master's values are taken whatever is here, and nothing is given to it.
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
