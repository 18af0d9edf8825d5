"""Properties of a message that determine its delivery time. Core.

Follows HookUtils.handleTimerMessage of RocketMQ. A producer writes one of TIMER_DELAY_SEC, TIMER_DELAY_MS (from now)
and TIMER_DELIVER_MS (since the epoch), taken in this order. The broker adds TIMER_OUT_MS, the beginning of the slot
that the message belongs to: the time floored to the precision, one precision earlier when it is an exact multiple. So a
slot that begins at T contains messages due in (T, T + precision].
"""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.property_names import (
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELAYS,
    TIMER_DELIVER_MS,
    TIMER_ROLL_TIMES,
)

DIGITS_MAX = 18


def number(text: str | None) -> int | None:
    """The decimal number in a property, or None if the text is no number."""
    if text is None or len(text) > DIGITS_MAX:
        return None
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() else None


def requested_time(properties: Mapping[str, str], now_ms: int) -> int | None:
    """Requested delivery time of the message, ms since the epoch; None without such a property.

    Raises ValueError, naming the property, for a wish that is not a number.
    """
    for name in TIMER_DELAYS:
        text = properties.get(name)
        if text is None:
            continue
        value = number(text)
        if value is None:
            raise ValueError(f"{name} is {text!r}, not a number")
        if name == TIMER_DELAY_SEC:
            return now_ms + value * 1000
        return now_ms + value if name == TIMER_DELAY_MS else value
    return None


def slot_time(deliver_ms: int, precision_ms: int) -> int:
    """TIMER_OUT_MS: when the slot of a moment begins."""
    floored = deliver_ms - deliver_ms % precision_ms
    return floored - precision_ms if floored == deliver_ms else floored


def due_time(properties: Mapping[str, str], out_ms: int, *, store_timestamp: int, precision_ms: int) -> int:
    """Due time of a stored timer message, to the millisecond if known.

    A delay counts from the time of storing. If the properties do not match the slot (another clock, a message that
    RocketMQ stored again) it is the slot's end, at which RocketMQ delivers.
    """
    due = None
    if TIMER_ROLL_TIMES not in properties:
        seconds, milliseconds = (
            number(properties.get(TIMER_DELAY_SEC)),
            number(properties.get(TIMER_DELAY_MS)),
        )
        if TIMER_DELAY_SEC in properties:
            due = None if seconds is None else store_timestamp + seconds * 1000
        elif TIMER_DELAY_MS in properties:
            due = None if milliseconds is None else store_timestamp + milliseconds
    if due is None:
        due = number(properties.get(TIMER_DELIVER_MS))
    if due is None or not out_ms < due <= out_ms + 2 * precision_ms:
        return out_ms + precision_ms
    return due
