"""A promise that was broken, and which checker noticed."""

from __future__ import annotations

from enum import Enum


class Checker(Enum):
    """The checks. The value is its name in reports."""

    # Acknowledged messages are in the surviving log, at the acknowledged offsets.
    ACKNOWLEDGED = "acknowledged"
    EXACTLY_ONCE = "exactly-once"  # and nowhere else, unless its client sent it again
    NOTHING_UNSENT = "nothing-unsent"  # no message is stored or received that no producer sent
    # Messages that one producer sent successively to a queue are stored and received in that order.
    ORDER = "order"
    OFFSETS = (
        # A group's committed offset never goes back at a broker, and never exceeds the received messages.
        "offsets"
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
    POPPED = "popped"  # messages that a POP group acknowledged are not redelivered
    NO_FAULT_OF_OURS = "no-fault-of-ours"  # no unexpected exception


class Broken(AssertionError):
    """The cluster broke a promise."""

    def __init__(self, checker: Checker, text: str) -> None:
        super().__init__(f"{checker.value}: {text}")
        self.checker = checker
