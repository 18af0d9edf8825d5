"""What a frame handler is: the frames of one kind, which it takes when they are ordinary. A core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from aerobee.broker.fastpath.request import Request
from aerobee.broker.fastpath.topic import FastQueue

# What the reply to a send says: queue, queue offset, message ids, unique key; whether it leaves only when the disk has the
# message; the recall handle of a timer message, else empty.
Answer = tuple[FastQueue, int, str, str, bool, str]

# Serves one frame; returns the answer to a send, None when the family answers itself. Raises FallBackToHandler, and has changed nothing
# then; any other exception is a fault: the frame may be written.
Serve = Callable[[Request], Answer | None]


class FrameHandler(Protocol):
    """A family takes what is ordinary and leaves the rest, before it has written a byte.

    One that still has something to do when a burst has ended adds it to Shared.at_end.
    """

    @property
    def serves(self) -> Mapping[int, Serve]:
        """By the request code of the frames that it looks at."""
        ...

    @property
    def is_send(self) -> bool:
        """Whether its frames pass the gate of sends; else that of pulls."""
        ...

    def forget_topics(self) -> None: ...

    def forget_authorizations(self) -> None: ...
