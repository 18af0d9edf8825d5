"""A message of the features' topic, as its sender and the members of the POP group know it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from aerobee.client import TransactionState

TASKS, POP_GROUP = "tasks", "poppers"
INVISIBLE_S = 2.5
GRPC = "gRPC"  # sends and deliveries by this protocol, in reports


@dataclass(slots=True)
class Task:
    """One message: the reply to its sender, and the times at which members of the group received it."""

    body: bytes
    is_stored: bool = False  # according to the reply to its sender
    due_s: float = 0.0  # no member may receive it before this time of the simulation's clock
    wanted: TransactionState | None = None  # the sender's reply to a check; None: no transaction
    received: list[float] = field(default_factory=list)
    done_at_s: float = float("inf")  # time at which a broker confirmed an acknowledgement
    is_asked: bool = False  # a broker received the sender's decision
    is_maybe_done: bool = False  # an acknowledgement was sent, and its outcome is unknown
    held_s: float = INVISIBLE_S  # longest time for which a member received it

    @property
    def is_due(self) -> bool:
        """Whether the message must reach the group."""
        return self.is_stored and self.wanted in (None, TransactionState.COMMIT)


class TaskTable(Protocol):
    """The tasks of one cluster, for clients of another protocol.

    A protocol, because features.py, which has them, loads those clients.
    """

    under_way: int  # sends without a reply

    def new_task(self, kind: str) -> Task:
        """A message that is about to be sent."""
        ...

    def received(self, body: bytes, now: float, way: str) -> Task | None:
        """A member of the group has received a message by this kind of consumption. Returns None for one that was never sent."""
        ...
