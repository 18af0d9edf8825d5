"""A violated invariant, and the checker that detected it."""

from __future__ import annotations

from enum import Enum


class Checker(Enum):
    """The checks. The value is its name in reports."""

    # Acknowledged messages are in the surviving log, at the acknowledged offsets.
    ACKNOWLEDGED = "acknowledged"
    # acknowledged messages are at no other offset, unless the client sent them again
    EXACTLY_ONCE = "exactly-once"
    NOTHING_UNSENT = "nothing-unsent"  # every stored or received message was sent by a producer
    # Messages that one producer sent successively to a queue are stored and received in that order.
    ORDER = "order"
    OFFSETS = (
        # A group's committed offset never goes back at a broker, and never exceeds the received messages.
        "offsets"
    )
    # only one broker acknowledges in an epoch, and a deposed broker acknowledges nothing
    ONE_MASTER = "one-master"
    CONFIRMED = (
        "confirmed"  # a broker confirms only bytes that it has; replicas are equal up to what both confirm
    )
    EQUAL = "equal"  # after the faults all replicas have the same bytes
    DELIVERED = "delivered"  # each consumer group receives every acknowledged message
    # within a time limit after the faults: a master exists, replicas are equal, all messages are delivered
    PROGRESS = "progress"
    NOT_EARLY = (
        "not-early"  # no consumer receives a delayed message early, or a message of an open transaction
    )
    TRANSACTIONS = "transactions"  # no consumer receives a rolled-back message
    POPPED = "popped"  # messages that a POP group acknowledged are not redelivered
    NO_FAULT_OF_OURS = "no-fault-of-ours"  # no unexpected exception


class Broken(AssertionError):
    """The cluster violated an invariant."""

    def __init__(self, checker: Checker, text: str) -> None:
        super().__init__(f"{checker.value}: {text}")
        self.checker = checker
