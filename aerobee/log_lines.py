"""Lines of a process's log, whatever peers put into them. Every record passes LineHandler, wherever it was written.

Names, remarks and errors contain text of untrusted peers. A line break in it would forge a line, an escape sequence would steer the terminal, and a
request that logs a line would fill the disk. LineFormatter makes each record one line of bounded length, whose continuation lines (of a
traceback) are indented. LineThrottle bounds the lines of each call site. It does not limit CRITICAL, which says why a process ends, nor
DEBUG, which an operator enables on purpose. A record with `extra=AUDIT` is written whole and never left out: its writer bounds it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from aerobee.visible_text import one_line, visible

LINE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MESSAGE_CHARS_MAX = 4_096  # of one record; a route or a name of a peer may be larger
TRACEBACK_CHARS_MAX = 65_536  # a longer one keeps its beginning and its end, which names the error
LINES_MAX = 200  # of one call site in INTERVAL_S: a start with as many topics or groups is below it
INTERVAL_S = 10.0
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
        record.message = one_line(message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        # The message is one line by then: what follows it is a traceback, whose errors quote peers, too.
        first, *rest = super().format(record).split("\n", 1)
        lines = _shortened(rest[0]).split("\n") if rest else []
        return "\n".join([first, *(f"  {visible(line)}" for line in lines)])


@dataclass(slots=True)
class _Site:
    """A call site in an interval that ends at `until` seconds."""

    until: float
    written: int = 0
    left_out: int = 0
    first_left_out: logging.LogRecord | None = None  # its text, without its arguments and its traceback


class LineThrottle:
    """Passes LINES_MAX records of a call site in each interval of INTERVAL_S, and counts the others. Not thread-safe."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """`monotonic` gives seconds."""
        self._monotonic = monotonic
        self._sites: dict[tuple[str, int], _Site] = {}
        self._due = float("inf")  # when the first interval in which something was left out ends

    def passes(self, record: logging.LogRecord) -> bool:
        """Whether to write this record. Raises what formatting its message raises."""
        if not logging.INFO <= record.levelno < logging.CRITICAL or _is_audit(record):
            return True
        now, key = self._monotonic(), (record.pathname, record.lineno)
        site = self._sites.get(key)
        if site is None or now >= site.until:
            site = self._sites[key] = _Site(now + INTERVAL_S)
        if site.written < LINES_MAX:
            site.written += 1
            return True
        if site.first_left_out is None:
            site.first_left_out = _text_of(record)
            self._due = min(self._due, site.until)
        site.left_out += 1
        return False

    def take_left_out(self, *, is_last: bool = False) -> list[logging.LogRecord]:
        """A record for each call site whose interval has ended and of which records were left out: how many. `is_last`: of all intervals."""
        now = self._monotonic()
        if now < self._due and not is_last:
            return []
        records = []
        for key, site in list(self._sites.items()):
            if site.first_left_out is not None and (is_last or now >= site.until):
                del self._sites[key]
                site.first_left_out.msg = (
                    f"{site.left_out} lines left out, the first: {site.first_left_out.msg}"
                )
                records.append(site.first_left_out)
        left = [each.until for each in self._sites.values() if each.first_left_out is not None]
        self._due = min(left, default=float("inf"))
        return records


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes such lines to a text stream. How many of a call site were left out is written with the next record of any logger after the
    interval, and by close(), which logging.shutdown() calls."""

    def __init__(self, stream: TextIO, monotonic: Callable[[], float]) -> None:
        super().__init__(stream)
        self.setFormatter(LineFormatter())
        self._throttle = LineThrottle(monotonic)

    def emit(self, record: logging.LogRecord) -> None:
        # The caller holds the handler's lock.
        self._write_left_out()
        try:
            passes = self._throttle.passes(record)
        except Exception:  # as logging.Handler does: a bad record is reported, and ends no caller
            self.handleError(record)
            return
        if passes:
            super().emit(record)

    def close(self) -> None:
        self.acquire()
        try:
            self._write_left_out(is_last=True)
        finally:
            self.release()
        super().close()

    def _write_left_out(self, *, is_last: bool = False) -> None:
        for each in self._throttle.take_left_out(is_last=is_last):
            super().emit(each)


def _is_audit(record: logging.LogRecord) -> bool:
    return getattr(record, _AUDIT, False) is True


def _text_of(record: logging.LogRecord) -> logging.LogRecord:
    """A record of the same site that keeps no argument alive."""
    text = record.getMessage()[: MESSAGE_CHARS_MAX // 2]
    return logging.LogRecord(record.name, record.levelno, record.pathname, record.lineno, text, None, None)


def _shortened(traceback: str) -> str:
    """Beginning and end of a long one, and how much is missing between them."""
    missing = len(traceback) - TRACEBACK_CHARS_MAX
    if missing <= 0:
        return traceback
    half = TRACEBACK_CHARS_MAX // 2
    return f"{traceback[:half]}\n… ({missing} characters left out) …\n{traceback[-half:]}"


def log_to(stream: TextIO, monotonic: Callable[[], float]) -> logging.Handler:
    """A handler for the root logger that writes such lines to a text stream."""
    return LineHandler(stream, monotonic)
