"""Options that many commands share, and the small parsers behind them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

import typer

from aerobee.errors import UsageError
from aerobee.ops.lines import STDIN
from aerobee.ops.run import Interrupted

NAMESERVER_DEFAULT = "127.0.0.1:9876"
_AGO = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)\Z")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

NameServers = Annotated[
    str,
    typer.Option(
        "--nameserver",
        "-n",
        envvar=["AEROBEE_NAMESRV_ADDR", "NAMESRV_ADDR"],
        metavar="HOST:PORT[;…]",
        help="Where the NameServers listen.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: one document, or one on each line.")]
ClusterName = Annotated[str | None, typer.Option("--cluster", "-c", help="This cluster only.")]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group's name.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def time_ms(text: str, now_ms: int) -> int:
    """Parse a moment: `2026-11-21T10:00:00` (local unless it names an offset), ms since the epoch, or `15m` ago.

    Raises UsageError saying which forms are taken.
    """
    ago = _AGO.match(text)
    if ago is not None:
        return now_ms - round(float(ago[1]) * _UNIT_MS[ago[2]])
    if text.isdecimal() and len(text) >= 12:
        return int(text)
    if text == "now":
        return now_ms
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise UsageError(
            f"{text!r} is no time: write 2026-11-21T10:00:00, milliseconds since the epoch, or 15m for 15 minutes ago"
        ) from None


def time_text(epoch_ms: int) -> str:
    """A moment as ISO 8601 in UTC with milliseconds; "-" for none."""
    if epoch_ms <= 0:
        return "-"
    moment = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{epoch_ms % 1000:03d}Z"


def ask(question: str, assume_yes: bool) -> None:
    """Ask before something that cannot be undone. Raises UsageError when there is nobody to ask, or the answer is no.

    Ctrl-C ends the command at once, although the event loop has a handler of its own for it.
    """
    if assume_yes:
        return
    while True:
        try:
            with _interruptible():
                sys.stderr.write(f"{question} [y/N]: ")
                sys.stderr.flush()
                line = _read_answer()
        except KeyboardInterrupt:
            raise Interrupted from None  # which ends the command's coroutine in order
        if not line:
            raise UsageError(f"{question} Nobody answered; repeat with --yes")
        answer = line.strip().lower()
        if answer in ("y", "yes"):
            return
        if answer in ("", "n", "no"):
            raise UsageError("nothing was done")


def _read_answer() -> str:
    """A line of standard input, "" when there is none."""
    line = b""
    while not line.endswith(b"\n"):
        try:
            byte = os.read(STDIN, 1)  # no more than the answer: what follows is not ours
        except OSError:
            break
        if not byte:
            break
        line += byte
    return line.decode(errors="replace")


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt here, also while an event loop has taken the signal over."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
