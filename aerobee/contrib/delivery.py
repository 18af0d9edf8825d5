"""One message that a broker has handed to this process, and what becomes of it."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any

from aerobee.client.consumer.popped import PoppedMessage


class Verdict(Enum):
    """What a delivery ends with."""

    ACK = "acknowledged"
    RETURN = "returned without a try"
    """Another worker may have it after a second; the delivery does not count."""
    REQUEUE = "requeued"
    """Another worker may have it after `after_s`; the delivery counts towards the maximum of the group."""
    DEAD_LETTER = "dead-lettered"


class Delivery:
    """A popped message. `verdict` is None while the worker has it; `is_busy` while a request about it is in flight."""

    __slots__ = (
        "after_s",
        "envelope",
        "forget_at_s",
        "is_busy",
        "is_lost",
        "message",
        "reason",
        "renew_at_s",
        "verdict",
    )

    def __init__(self, message: PoppedMessage, renew_at_s: float) -> None:
        """`renew_at_s`: monotonic time at which its invisible time is renewed. `forget_at_s`: at which it is dropped
        without a verdict.

        `envelope`: what the bridge has decoded from the body.
        """
        self.message = message
        self.envelope: Any = None
        self.renew_at_s = renew_at_s
        self.verdict: Verdict | None = None
        self.reason = ""
        self.after_s = 0.0
        self.forget_at_s = math.inf
        self.is_busy = False
        self.is_lost = False
