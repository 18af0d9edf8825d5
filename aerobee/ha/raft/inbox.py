"""Inputs of a Raft replica that wait for its next step: messages of other members, and calls of this process. Core.

Each kind has a separate bound, and a step takes one of each in rotation. So calls never displace the messages
that keep the leadership, however many calls are pending, and messages never displace calls.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

MESSAGES_MAX = 4_096  # pending messages; more are dropped, as a network may drop them
CALLS_MAX = 4_096  # pending calls; more are refused

Each = TypeVar("Each")


class Inbox(Generic[Each]):
    """Two bounded queues with one order of service. Belongs to one thread."""

    def __init__(self) -> None:
        self._messages: deque[Each] = deque()
        self._calls: deque[Each] = deque()
        self._order: list[deque[Each]] = []  # source of each input of the last batch()

    def __len__(self) -> int:
        return len(self._messages) + len(self._calls)

    @property
    def has_room_for_message(self) -> bool:
        return len(self._messages) < MESSAGES_MAX

    @property
    def has_room_for_call(self) -> bool:
        return len(self._calls) < CALLS_MAX

    def add_message(self, message: Each) -> None:
        self._messages.append(message)

    def add_call(self, call: Each) -> None:
        self._calls.append(call)

    def batch(self, inputs_max: int) -> list[Each]:
        """The inputs of the next step: a message, a call, a message and so on. They stay pending until remove()."""
        found: list[Each] = []
        order: list[deque[Each]] = []
        messages, calls = self._messages, self._calls
        for index in range(min(inputs_max, max(len(messages), len(calls)))):
            for queue in (messages, calls):
                if index < len(queue) and len(found) < inputs_max:
                    found.append(queue[index])
                    order.append(queue)
        self._order = order
        return found

    def remove(self, count: int) -> None:
        """Remove the first `count` inputs of the last batch(): they were executed."""
        for queue in self._order[:count]:
            queue.popleft()
        self._order = []

    def clear(self) -> None:
        self._messages.clear()
        self._calls.clear()
        self._order = []
