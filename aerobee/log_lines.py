"""Lines of a process's log, whatever peers put into them. Every record passes both classes, wherever it was written.

Names, remarks and errors contain text of untrusted peers. A line break in it would forge a line, an escape sequence would steer the terminal, and a
request that logs a line would fill the disk. LineFormatter makes each record one line of bounded length, whose continuation lines (of a
traceback) are indented. LineThrottle bounds the lines of each call site; it does not limit DEBUG, which an operator enables on purpose.
A record with `extra=AUDIT` is written whole and never left out: its writer bounds it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TextIO

from aerobee.visible_text import one_line, visible

LINE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MESSAGE_CHARS_MAX = 4_096  # of one record; a route or a name of a peer may be larger
TRACEBACK_CHARS_MAX = 65_536
LINES_MAX = 200  # of one call site in INTERVAL_S: a start with as many topics or groups is below it
INTERVAL_S = 10.0
_LEFT_OUT = "aerobee_left_out"
_AUDIT = "aerobee_audit"
AUDIT = {_AUDIT: True}  # `extra` of a record of who did what


class LineFormatter(logging.Formatter):
    """LINE_FORMAT with control and format characters escaped."""

    def __init__(self) -> None:
        super().__init__(LINE_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        message = record.message
        if len(message) > MESSAGE_CHARS_MAX and not _is_audit(record):
            message = f"{message[:MESSAGE_CHARS_MAX]}… ({len(message) - MESSAGE_CHARS_MAX} more characters)"
        left_out = getattr(record, _LEFT_OUT, 0)
        more = f" ({left_out} more lines like it left out)" if left_out else ""
        record.message = one_line(message) + more
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        # The message is one line by then: what follows it is a traceback, whose errors quote peers, too.
        text = super().format(record)
        if not _is_audit(record):
            text = text[: MESSAGE_CHARS_MAX + TRACEBACK_CHARS_MAX]
        first, *rest = text.split("\n")
        return "\n".join([first, *(f"  {visible(line)}" for line in rest)])


class LineThrottle(logging.Filter):
    """Passes LINES_MAX records of a call site in each interval of INTERVAL_S, and all below INFO. The first of a later interval says how many
    were left out."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """`monotonic` gives seconds."""
        super().__init__()
        self._monotonic = monotonic
        self._sites: dict[tuple[str, int], list[float]] = {}  # until when, lines written, lines left out

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO or _is_audit(record):
            return True
        now = self._monotonic()
        site = self._sites.setdefault((record.pathname, record.lineno), [now + INTERVAL_S, 0, 0])
        if now >= site[0]:
            setattr(record, _LEFT_OUT, int(site[2]))
            site[:] = [now + INTERVAL_S, 0, 0]
        if site[1] >= LINES_MAX:
            site[2] += 1
            return False
        site[1] += 1
        return True


def _is_audit(record: logging.LogRecord) -> bool:
    return getattr(record, _AUDIT, False) is True


def log_to(stream: TextIO, monotonic: Callable[[], float]) -> logging.Handler:
    """A handler for the root logger that writes such lines to a text stream."""
    handler: logging.Handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter())
    handler.addFilter(LineThrottle(monotonic))
    return handler
