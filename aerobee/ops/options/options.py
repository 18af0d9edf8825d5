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
        help="Addresses of the NameServers.",
    ),
]
Controllers = Annotated[
    str,
    typer.Option(
        "--controller",
        "-a",
        envvar=["AEROBEE_CONTROLLER_ADDR"],
        metavar="HOST:PORT[;…]",
        help="Addresses of the controllers.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: one document, or one per line.")]
ClusterName = Annotated[
    str | None, typer.Option("--cluster", "-c", help="Limit the command to this cluster.")
]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group's name.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def ask(question: str, assume_yes: bool) -> None:
    """Ask for confirmation of a change that cannot be undone. Raises UsageError without an answer, or for the answer no.

    Ctrl-C ends the command immediately, although the event loop has installed its signal handler.
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
            raise Interrupted from None  # ends the command's coroutine with its clean-up
        if not line:
            sys.stderr.write("\n")
            raise UsageError("no confirmation on standard input, so nothing was done: repeat with --yes")
        answer = line.strip().lower()
        if answer in ("y", "yes"):
            return
        if answer in ("", "n", "no"):
            raise UsageError("nothing was done")


def never_delivered(count: int) -> str:
    """The consequence for `count` messages, as a confirmation question states it."""
    return "It is then never delivered." if count == 1 else "They are then never delivered."


def _read_answer() -> str:
    """One line of standard input, "" at its end."""
    line = b""
    while not line.endswith(b"\n"):
        try:
            byte = os.read(STDIN, 1)  # only the answer: the bytes after it belong to another reader
        except OSError:
            break
        if not byte:
            break
        line += byte
    return line.decode(errors="replace")


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt inside, even if the shell ignores SIGINT or an event loop handles it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
