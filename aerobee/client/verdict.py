"""How a handler says what is to become of a message."""

from __future__ import annotations


class RetryLater(Exception):
    """Raised by a handler: deliver the message again.

    `delay_level` 0 lets the broker choose a growing delay, 1..18 is one of its delay levels, -1 puts the message
    with the dead letters at once.
    """

    def __init__(self, reason: str = "", *, delay_level: int = 0) -> None:
        super().__init__(reason)
        self.delay_level = delay_level
