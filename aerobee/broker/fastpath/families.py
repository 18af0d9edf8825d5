"""What a family of frames is: the frames of one kind, which it takes when they are ordinary. A core."""

from __future__ import annotations

from typing import Protocol

from aerobee.broker.fastpath.request import Request


class Family(Protocol):
    """A family takes what is ordinary and leaves the rest, before it has written a byte."""

    @property
    def codes(self) -> tuple[int, ...]:
        """Of the requests that it looks at."""
        ...

    @property
    def is_send(self) -> bool:
        """Whether its frames pass the gate of sends; else that of pulls."""
        ...

    def serve(self, request: Request) -> None:
        """Serve one frame. Raises NotOrdinary, and has changed nothing then; any other exception is a fault: the frame may
        be written."""
        ...

    def end(self) -> None:
        """A burst has ended: tell those who want to know once."""
        ...

    def forget_topics(self) -> None: ...

    def forget_authorizations(self) -> None: ...
