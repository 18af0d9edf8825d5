"""Progress of a long send: one line that is overwritten, in a terminal only."""

from __future__ import annotations

import os
import stat
from typing import TextIO

EVERY_S = 0.5
CLEAR_TO_EOL = "\x1b[K"  # clears the rest of a longer previous text


def size_of(descriptor: int) -> int:
    """Size of an open regular file in bytes; 0 for a pipe, a terminal and everything else without a size."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def progress_text(sent: int, seconds: float, bytes_read: int, bytes_total: int) -> str:
    """ "12,000 sent, 4,000/s, 40 %, 4.5 s left"; without percent and time if the size is unknown."""
    rate = sent / seconds if seconds > 0 else 0.0
    text = f"{sent:,} sent, {rate:,.0f}/s"
    if bytes_total <= 0 or bytes_read <= 0:
        return text
    share = min(1.0, bytes_read / bytes_total)
    left_s = seconds * (1 - share) / share
    return f"{text}, {share * 100:.0f} %, {_span(left_s)} left"


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"


class Progress:
    """The progress line of one command. Times are those of the caller's monotonic clock."""

    def __init__(self, stream: TextIO, *, bytes_total: int, began: float) -> None:
        self._stream = stream
        self._bytes_total = bytes_total
        self._bytes_read = 0
        self._began = began
        self._next = began + EVERY_S
        self._is_shown = False
        self._wanted = stream.isatty()

    def read(self, count: int) -> None:
        """Count `count` further bytes as read."""
        self._bytes_read += count

    def show(self, sent: int, now: float) -> None:
        """Write the line, at most every EVERY_S."""
        if not self._wanted or now < self._next:
            return
        self._next = now + EVERY_S
        self._is_shown = True
        text = progress_text(sent, now - self._began, self._bytes_read, self._bytes_total)
        self._stream.write(f"\r{text}{CLEAR_TO_EOL}")
        self._stream.flush()

    def end(self) -> None:
        """Clear the line for other output."""
        if self._is_shown:
            self._is_shown = False
            self._stream.write(f"\r{CLEAR_TO_EOL}")
            self._stream.flush()
