"""Options that many commands share, and the small parsers behind them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

import typer

from aerobee.errors import UsageError

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
    """Ask before something that cannot be undone. Raises UsageError when there is nobody to ask."""
    if assume_yes:
        return
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort:
        raise UsageError(f"{question} Nobody answered; repeat with --yes") from None
    if not agreed:
        raise UsageError("nothing was done")
