"""Durations (spans) and times (moments) on the command line. One parser for each, for every option.

A span is `500ms`, `3s`, `15m`, `1h30m`, `2d`, or a bare number of seconds. Commands print a moment in UTC, with a Z; as input
it is UTC unless it has another offset, so that commands accept the times that other commands print.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from aerobee.errors import UsageError

SPAN_FORMS = "500ms, 3s, 15m, 1h30m, 2d or a number of seconds"
_UNIT_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_PART = r"(\d+(?:\.\d+)?)"
_SPAN = re.compile(rf"(?:{_PART}d)?(?:{_PART}h)?(?:{_PART}m(?!s))?(?:{_PART}s)?(?:{_PART}ms)?\Z", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d*)?\Z|\.\d+\Z", re.ASCII)
SPAN_MS_MAX = 100 * 365 * 86_400_000


def span_ms(text: str) -> int:
    """A span in ms. Raises UsageError that lists the accepted forms."""
    if _NUMBER.match(text):
        milliseconds = round(float(text) * 1000)
    else:
        match = _SPAN.match(text)
        if match is None or not text:
            raise UsageError(f"{text!r} is not a duration: write {SPAN_FORMS}")
        parts = zip(match.groups(), _UNIT_MS.values(), strict=True)
        milliseconds = round(sum(float(number) * unit for number, unit in parts if number))
    if milliseconds > SPAN_MS_MAX:
        raise UsageError(f"{text!r} is longer than the limit of 100 years")
    return milliseconds


def is_span(text: str) -> bool:
    """Whether span_ms() accepts the text, apart from its limit."""
    return bool(text) and bool(_NUMBER.match(text) or _SPAN.match(text))


def seconds(text: str | float) -> float:
    """A span in seconds, for options: `typer.Option(parser=seconds, metavar="SPAN")`."""
    return span_ms(text) / 1000 if isinstance(text, str) else text


def above_zero(text: str | float) -> float:
    """As seconds(); raises UsageError for 0."""
    value = seconds(text)
    if value <= 0:
        raise UsageError(f"{text!r} must be above 0")
    return value


def moment_ms(text: str, now_ms: int) -> int:
    """A moment in ms since the epoch: `2026-11-21T10:00:00` (UTC unless it names an offset), `now`, or `15m` ago.

    Raises UsageError that lists the accepted forms.
    """
    if text == "now":
        return now_ms
    if text.isdecimal() and len(text) >= 12:
        return int(text)
    if _SPAN.match(text) and text:
        return now_ms - span_ms(text)
    try:
        moment = datetime.fromisoformat(text)
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{text!r} is not a time: write 2026-11-21T10:00:00 (UTC, or with an offset: +01:00), milliseconds since the "
            "epoch, or 15m for 15 minutes ago"
        ) from None


def moment_text(epoch_ms: int) -> str:
    """A moment as ISO 8601 in UTC with milliseconds; "-" for none."""
    if epoch_ms <= 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{epoch_ms} ms"  # beyond the year 9999
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{epoch_ms % 1000:03d}Z"


def until_text(milliseconds: int) -> str:
    """The time until a moment as text: `in 4.2 s`, `in 3 h 20 min`, `now`."""
    if milliseconds <= 0:
        return "now"
    if milliseconds < 120_000:
        return f"in {milliseconds / 1000:.1f} s"
    minutes = round(milliseconds / 60_000)
    if minutes < 120:
        return f"in {minutes} min"
    hours = minutes // 60
    return f"in {hours} h {minutes % 60} min" if hours < 48 else f"in {hours // 24} d {hours % 24} h"
