"""Rebalance history of consumer groups: who joined, who left, and which queues changed their owner. Core: readings in, rows out.

The console reads the online members of a group and the owner of each queue with every refresh; a difference between two readings is
a change of the group. Between the release of a queue and its next owner a reading shows no owner: such a queue keeps its previous
owner until another one has it, or until the group has no member. Changes within MERGED_S of the last one belong to the same rebalance.

Bounds: EVENTS_MAX rebalances of all groups together, MOVES_MAX moved queues and MEMBERS_MAX members of each; the counts are exact. At
the bound the oldest rebalance of any group is removed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

EVENTS_MAX = 1_000
MOVES_MAX = 32
MEMBERS_MAX = 32
NAME_MAX = 128  # characters of a client id that are kept
MERGED_S = 15.0  # members rebalance within 20 s of a change, and see a join or a leave at different times


@dataclass(slots=True)
class Rebalance:
    """One rebalance. `moves`: queue -> (previous owner, new owner), None where the queue has no owner."""

    first_s: float
    last_s: float
    joined: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    moves: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    members: int = 0
    more: int = 0  # joins, leaves and moves beyond the bounds, counted only

    def merge(self, other: Rebalance) -> None:
        """Add a later change of the same rebalance. A queue that returns to its previous owner has not moved."""
        self.last_s, self.members, self.more = other.last_s, other.members, self.more + other.more
        for name in other.joined:
            _add(self, self.joined, self.left, name)
        for name in other.left:
            _add(self, self.left, self.joined, name)
        for queue, (before, after) in other.moves.items():
            first = self.moves[queue][0] if queue in self.moves else before
            if first == after:
                self.moves.pop(queue, None)
            elif queue in self.moves or len(self.moves) < MOVES_MAX:
                self.moves[queue] = first, after
            else:
                self.more += 1

    @property
    def is_empty(self) -> bool:
        return not (self.joined or self.left or self.moves or self.more)


@dataclass(slots=True)
class _Group:
    members: frozenset[str]
    owners: dict[str, str]


class Rebalances:
    """The history of all groups. Names of queues are topic, broker and queue id as one text."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._events: OrderedDict[int, tuple[str, Rebalance]] = OrderedDict()  # the oldest first
        self._last: dict[str, int] = {}  # group -> key of its last rebalance
        self._number = 0

    def record(self, group: str, at_s: float, members: Collection[str], owners: Mapping[str, str]) -> None:
        """Record a reading at a time in seconds since the epoch: the online members, and the owner of each queue that has one."""
        now = frozenset(name[:NAME_MAX] for name in members)
        seen = {queue: owner[:NAME_MAX] for queue, owner in owners.items() if owner}
        before = self._groups.get(group)
        if before is None:
            self._groups[group] = _Group(now, seen)
            return
        moves: dict[str, tuple[str | None, str | None]] = {
            queue: (before.owners.get(queue), owner)
            for queue, owner in seen.items()
            if before.owners.get(queue) != owner
        }
        if not now:  # no member can take the queues
            moves |= {queue: (owner, None) for queue, owner in before.owners.items()}
            before.owners = {}
        event = _bounded(at_s, now - before.members, before.members - now, moves, len(now))
        before.members = now
        before.owners.update(seen)
        if not event.is_empty:
            self._add(group, event)

    def retain(self, groups: Collection[str]) -> None:
        """Drop the readings of groups that no longer exist. Their past rebalances leave at the bound."""
        for gone in self._groups.keys() - set(groups):
            del self._groups[gone]

    def of(self, group: str) -> list[Rebalance]:
        """The rebalances of a group, the newest first."""
        return [event for name, event in reversed(self._events.values()) if name == group]

    def _add(self, group: str, event: Rebalance) -> None:
        key = self._last.get(group)
        if key is not None and event.first_s - self._events[key][1].last_s <= MERGED_S:
            last = self._events[key][1]
            last.merge(event)
            if last.is_empty:  # all of it was taken back
                self._remove(key)
            return
        self._number += 1
        self._events[self._number] = group, event
        self._last[group] = self._number
        if len(self._events) > EVENTS_MAX:
            self._remove(next(iter(self._events)))

    def _remove(self, key: int) -> None:
        group, _ = self._events.pop(key)
        if self._last.get(group) == key:
            del self._last[group]


def _add(event: Rebalance, to: list[str], opposite: list[str], name: str) -> None:
    if name in opposite:  # it left and returned, or the reverse
        opposite.remove(name)
    elif len(to) < MEMBERS_MAX:
        to.append(name)
    else:
        event.more += 1


def _bounded(
    at_s: float,
    joined: Collection[str],
    left: Collection[str],
    moves: Mapping[str, tuple[str | None, str | None]],
    members: int,
) -> Rebalance:
    kept = dict(sorted(moves.items())[:MOVES_MAX])
    event = Rebalance(at_s, at_s, sorted(joined)[:MEMBERS_MAX], sorted(left)[:MEMBERS_MAX], kept, members)
    event.more = sum(
        len(whole) - len(part) for whole, part in ((joined, event.joined), (left, event.left), (moves, kept))
    )
    return event


def rebalance_row(event: Rebalance) -> dict[str, object]:
    """A rebalance for a page."""
    return {
        "at_ms": round(event.first_s * 1000),
        "last_ms": round(event.last_s * 1000),
        "joined": event.joined,
        "left": event.left,
        "members": event.members,
        "more": event.more,
        "moves": [
            {"queue": queue, "from": before, "to": after} for queue, (before, after) in event.moves.items()
        ],
    }
