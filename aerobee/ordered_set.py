"""A set that is walked in the order in which its members came.

A built-in set walks objects by their addresses: another order in each process. Where the order decides what is sent or ended first,
two runs of a simulation from one seed would differ.
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class OrderedSet(dict[T, None]):
    """Members are the keys. Adding a present member does not change its position."""

    def add(self, member: T) -> None:
        """Put a member last, unless it is there."""
        self[member] = None

    def discard(self, member: T) -> None:
        """Take a member away, if it is there."""
        self.pop(member, None)

    def union(self, other: OrderedSet[T]) -> OrderedSet[T]:
        """A new set of the members of both, `other`'s last."""
        both = OrderedSet(self)
        both.update(other)
        return both
