"""A promise that was broken, and which checker noticed."""

from __future__ import annotations

from enum import Enum


class Checker(Enum):
    """What is looked at. The value is its name in reports."""

    ACKNOWLEDGED = "acknowledged"  # what was acknowledged is in the surviving log, where the answer said
    EXACTLY_ONCE = "exactly-once"  # and nowhere else, unless its client sent it again
    NOTHING_UNSENT = "nothing-unsent"  # no message is stored or received that no producer sent
    ORDER = "order"  # what one producer sent one after the other to a queue lies and arrives in that order
    OFFSETS = (
        "offsets"  # a group's committed offset never goes back at a broker, and never past what was received
    )
    ONE_MASTER = "one-master"  # one broker acknowledges in an epoch, and a deposed one does not at all
    CONFIRMED = (
        "confirmed"  # a broker confirms only bytes that it has; replicas are equal up to what both confirm
    )
    EQUAL = "equal"  # in the end all replicas have the same bytes
    DELIVERED = "delivered"  # whoever reads gets every acknowledged message
    PROGRESS = "progress"  # within a bound once faults end: a master, equal replicas, everything delivered
    NOT_EARLY = (
        "not-early"  # no consumer receives a delayed message early, or a message of an open transaction
    )
    TRANSACTIONS = "transactions"  # no consumer receives a rolled-back message
    POPPED = "popped"  # what a member of a POP group has acknowledged does not come back
    NO_FAULT_OF_OURS = "no-fault-of-ours"  # no unexpected exception


class Broken(AssertionError):
    """The cluster broke a promise."""

    def __init__(self, checker: Checker, text: str) -> None:
        super().__init__(f"{checker.value}: {text}")
        self.checker = checker
