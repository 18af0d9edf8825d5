"""Interface of frame handlers: each serves the ordinary frames of one kind. A core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from aerobee.broker.fastpath.request import Request
from aerobee.broker.fastpath.topic import FastQueue

# Contents of the reply to a send: queue, queue offset, message ids, unique key; whether it waits until the append is safe, or
# the name of the ack level for which it waits; further fields as JSON within the value before them: `","name":"value`.
Answer = tuple[FastQueue, int, str, str, bool | str, str]

# Serves one frame; returns the reply to a send, None when the frame handler replies itself. Raises
# FallBackToHandler without any change; any other exception is a fault: the frame may be written.
Serve = Callable[[Request], Answer | None]


class FrameHandler(Protocol):
    """Serves ordinary frames, and leaves others before it has written a byte.

    A frame handler adds work for the end of a burst to Shared.at_end.
    """

    @property
    def serves(self) -> Mapping[int, Serve]:
        """Serving functions by request code."""
        ...

    @property
    def is_send(self) -> bool:
        """Whether its frames pass the gate of sends; else that of pulls."""
        ...

    def forget_topics(self) -> None: ...

    def forget_authorizations(self) -> None: ...
