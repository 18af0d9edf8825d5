"""The result of a handler: it returns (the message is consumed), or raises one of these exceptions.

After any other exception the message is redelivered, with a delay that grows with each try.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from aerobee.errors import BodyUnreadable, MessageDamaged, UsageError

# Default delays of a broker's levels (messageDelayLevel), in seconds.
LEVEL_DELAYS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
LEVEL_BROKER_CHOOSES = 0
LEVEL_DEAD_LETTER = -1
ERROR_CHARS_MAX = 1024  # maximum length of the error text that is sent with a message that is given back


class RetryLater(Exception):
    """Raised by a handler: redeliver the message.

    `after` is in seconds. A message of an ordered queue is retried in order after exactly that time. Others go back to
    the broker: Aerobee's broker uses `after` to the millisecond; RocketMQ's has 18 delays from 1 s to 2 h and uses the
    shortest that is at least `after`. `delay_level` selects one of these 18 delays; 0 lets the broker choose a growing
    delay.
    """

    def __init__(self, reason: str = "", *, delay_level: int = 0, after: float | None = None) -> None:
        super().__init__(reason)
        if after is not None and delay_level:
            raise UsageError("a retry has either `after` or `delay_level`, not both")
        if after is not None and after < 0:
            raise UsageError(f"a retry after {after} s: the time must not be negative")
        self.reason = reason
        self.after = after
        self.delay_level = level_for(after) if after is not None else delay_level


class Reject(Exception):
    """Raised by a handler: do not retry. The message is dead-lettered with `reason`."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


def retry(reason: str = "", *, after: float | None = None, delay_level: int = 0) -> NoReturn:
    """Leave a handler and redeliver this message, after `after` seconds if given. Raises RetryLater."""
    raise RetryLater(reason, delay_level=delay_level, after=after)


def reject(reason: str = "") -> NoReturn:
    """Leave a handler and dead-letter this message immediately. Raises Reject."""
    raise Reject(reason)


def level_for(after_s: float) -> int:
    """The level of the shortest delay that is at least `after_s`, or the highest level."""
    for level, delay_s in enumerate(LEVEL_DELAYS_S, start=1):
        if delay_s >= after_s:
            return level
    return len(LEVEL_DELAYS_S)


@dataclass(frozen=True, slots=True)
class GiveBack:
    """A consumer's report to a broker about a message that it gives back.

    `tries` counts the deliveries so far; 0: the count in the message. `reason` is the reason of the dead-lettering.
    `after_ms` is the requested delay, -1 for none; brokers that do not know it use `delay_level`.
    """

    delay_level: int = LEVEL_BROKER_CHOOSES
    reason: str = ""
    error: str = ""
    tries: int = 0
    after_ms: int = -1

    @property
    def is_dead(self) -> bool:
        return self.delay_level < 0


def error_text(error: BaseException) -> str:
    """`error` as one line of bounded length."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return " ".join(text.split())[:ERROR_CHARS_MAX]


def give_back_after(error: BaseException) -> GiveBack:
    """The GiveBack of a message whose handler raised `error`."""
    if isinstance(error, Reject):
        reason = error.reason or "rejected by the handler"
        return GiveBack(LEVEL_DEAD_LETTER, reason[:ERROR_CHARS_MAX], error_text(error))
    if isinstance(error, RetryLater):
        dead = error.delay_level < 0
        reason = (error.reason or "rejected by the handler") if dead else ""
        after_ms = -1 if error.after is None else round(error.after * 1000)
        return GiveBack(error.delay_level, reason[:ERROR_CHARS_MAX], error_text(error), after_ms=after_ms)
    if isinstance(error, MessageDamaged):
        # A copy in the retry topic would get a CRC that matches the damaged body and would hide the damage.
        return GiveBack(LEVEL_DEAD_LETTER, "the body is damaged", error_text(error))
    if isinstance(error, BodyUnreadable):
        return GiveBack(LEVEL_DEAD_LETTER, str(error)[:ERROR_CHARS_MAX], error_text(error.__cause__ or error))
    return GiveBack(error=error_text(error))
