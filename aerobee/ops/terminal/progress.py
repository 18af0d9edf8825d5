"""How far a long send is: one line that is written over and over, in a terminal only."""

from __future__ import annotations

import os
import stat
from typing import TextIO

EVERY_S = 0.5
TO_THE_END = "\x1b[K"  # takes away what the line before had more


def size_of(descriptor: int) -> int:
    """The bytes of an open file from where it is read on; 0 for a pipe, a terminal and everything that has no end."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def progress_text(sent: int, seconds: float, bytes_read: int, bytes_total: int) -> str:
    """ "12,000 sent, 4,000 a second, 40 %, 4.5 s left"; without percent and time where the size is unknown."""
    rate = sent / seconds if seconds > 0 else 0.0
    text = f"{sent:,} sent, {rate:,.0f} a second"
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
    """The line of one command. Times are those of the caller's monotonic clock."""

    def __init__(self, stream: TextIO, *, bytes_total: int, began: float) -> None:
        self._stream = stream
        self._bytes_total = bytes_total
        self._bytes_read = 0
        self._began = began
        self._next = began + EVERY_S
        self._is_shown = False
        self._wanted = stream.isatty()

    def read(self, count: int) -> None:
        """So many bytes more were read."""
        self._bytes_read += count

    def show(self, sent: int, now: float) -> None:
        """Write the line when it is time to."""
        if not self._wanted or now < self._next:
            return
        self._next = now + EVERY_S
        self._is_shown = True
        text = progress_text(sent, now - self._began, self._bytes_read, self._bytes_total)
        self._stream.write(f"\r{text}{TO_THE_END}")
        self._stream.flush()

    def end(self) -> None:
        """Leave the line to what comes next."""
        if self._is_shown:
            self._is_shown = False
            self._stream.write(f"\r{TO_THE_END}")
            self._stream.flush()
