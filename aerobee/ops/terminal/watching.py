"""`--watch SPAN`: repeat a command that shows something until Ctrl-C."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from datetime import UTC, datetime

from aerobee.ops.terminal.run import BEFORE_EXIT, exit_on_interrupt

ALTERNATE, MAIN = "\x1b[?1049h", "\x1b[?1049l"  # the screen without scrollback, and back
CLEAR = "\x1b[H\x1b[2J"  # move the cursor to the top left, then clear the screen
WATCHED = frozenset(
    {
        "topic list", "topic describe", "topic stats", "group list", "group describe", "group lag", "group pop",
        "offset show", "dlq list", "transaction list", "cluster list", "cluster describe", "ha status", "timer list",
        "timer stats", "doctor", "why", "user list", "acl list",
    }
)  # fmt: skip


def begin_look(command: str, every_s: float, *, as_json: bool, number: int) -> None:
    """Before each sample: clear the screen, or write a line with the time to a file or pipe; nothing in JSON."""
    if number == 0:
        exit_on_interrupt()
    if as_json:
        return
    moment = datetime.now(UTC).strftime("%H:%M:%S UTC")
    head = f"aerobee {command}, every {every_s:g} s, {moment}"
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        if not BEFORE_EXIT:
            sys.stdout.write(ALTERNATE)
            BEFORE_EXIT.append(_leave_alternate)
            atexit.register(_leave_alternate)
        sys.stdout.write(f"{CLEAR}{head}\n\n")
    else:
        sys.stdout.write(f"{'' if number == 0 else chr(10)}--- {head}\n")
    sys.stdout.flush()


def _leave_alternate() -> None:
    """Give the terminal its screen and scrollback back, as they were before the first sample."""
    with contextlib.suppress(OSError, ValueError):  # the terminal is gone
        os.write(sys.stdout.fileno(), MAIN.encode())


def pause(every_s: float) -> None:
    """Wait for the next sample. From here on Ctrl-C ends the command immediately."""
    sys.stdout.flush()
    exit_on_interrupt()
    time.sleep(every_s)
