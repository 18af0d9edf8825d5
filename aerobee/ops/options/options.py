"""Options that many commands share, and the small parsers behind them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Annotated

import typer

from aerobee.errors import UsageError
from aerobee.ops.terminal.lines import STDIN
from aerobee.ops.terminal.run import Interrupted

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


def ask(question: str, assume_yes: bool) -> None:
    """Ask before something that cannot be undone. Raises UsageError when there is nobody to ask, or the answer is no.

    Ctrl-C ends the command at once, although the event loop has a handler of its own for it.
    """
    if assume_yes:
        return
    while True:
        try:
            with interruptible():
                sys.stderr.write(f"{question} [y/N]: ")
                sys.stderr.flush()
                line = _read_answer()
        except KeyboardInterrupt:
            raise Interrupted from None  # which ends the command's coroutine in order
        if not line:
            sys.stderr.write("\n")
            raise UsageError("nobody answered, so nothing was done: repeat with --yes")
        answer = line.strip().lower()
        if answer in ("y", "yes"):
            return
        if answer in ("", "n", "no"):
            raise UsageError("nothing was done")


def never_delivered(count: int) -> str:
    """What follows for so many messages, as a question about them says."""
    return "It is then never delivered." if count == 1 else "They are then never delivered."


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
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt inside, also where the shell has it ignored, and while an event loop has taken the signal over."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
