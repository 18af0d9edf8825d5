"""The options of `aerobee send`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aerobee.errors import UsageError
from aerobee.ops.terminal.times import above_zero, seconds

Text = Annotated[str | None, typer.Argument(metavar="[TEXT]", help="The body; without it, lines are read.")]
File = Annotated[
    Path | None, typer.Option("--file", "-f", help="Send each line of this file; - is standard input.")
]
Whole = Annotated[bool, typer.Option("--whole", help="The file, or standard input, is one message.")]
Tag = Annotated[str | None, typer.Option("--tag", "-t", help="The messages' tag.")]
Keys = Annotated[list[str] | None, typer.Option("--key", "-k", help="An index key; may be repeated.")]
Properties = Annotated[
    list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="A property; may be repeated.")
]
Queue = Annotated[str | None, typer.Option("--queue", metavar="BROKER/ID", help="This queue.")]
OrderKey = Annotated[str | None, typer.Option("--order-key", help="Equal keys go to the same queue.")]
DelayLevel = Annotated[
    int,
    typer.Option(
        "--delay-level", min=0, help="Deliver later: 1 to 18, or as the broker's messageDelayLevel says."
    ),
]
DeliverAfter = Annotated[
    float | None,
    typer.Option(
        "--deliver-after", parser=seconds, metavar="SPAN", help="Deliver so much later: 3s, 15m, 1h30m."
    ),
]
DeliverAt = Annotated[
    str | None,
    typer.Option(
        "--deliver-at",
        metavar="TIME",
        help="Deliver then: 2026-11-21T10:00:00 (UTC), or with an offset: +01:00.",
    ),
]
Priority = Annotated[
    int | None,
    typer.Option("--priority", min=0, help="Pops take higher ones first; it is the queue's number."),
]
DedupKey = Annotated[
    str | None,
    typer.Option(
        "--dedup-key",
        help="A broker with dedupWindowMillis stores one message with this key; give --queue or --order-key too.",
    ),
]
Reply = Annotated[
    float | None,
    typer.Option(
        "--reply-within",
        parser=above_zero,
        metavar="SPAN",
        help="Wait so long for a consumer's reply to TEXT.",
    ),
]
Trace = Annotated[bool, typer.Option("--trace", help="Record the sends for `aerobee trace`.")]
Group = Annotated[str, typer.Option("--group", help="The producer group.")]
InFlight = Annotated[
    int,
    typer.Option(
        "--in-flight",
        min=1,
        max=10_000,
        help="Sends under way at a time; 1 keeps the strict order at RocketMQ's brokers too.",
    ),
]
SkipEmpty = Annotated[
    bool, typer.Option("--skip-empty", help="Leave out empty lines; RocketMQ's brokers refuse them.")
]
FromLine = Annotated[int, typer.Option("--from-line", min=1, help="Leave out the lines before.")]
RetryFor = Annotated[
    float,
    typer.Option(
        "--retry-for", parser=seconds, metavar="SPAN", help="How long a line that failed is tried again."
    ),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", parser=above_zero, metavar="SPAN", help="Longest that one send may take."),
]


def check_tag(tag: str | None) -> None:
    """Refuse a tag that is meant for several: what is typed as "a || b" would be one tag that no subscription can name."""
    if tag is not None and ("||" in tag or tag != tag.strip(" ")):
        what = "holds ||, which stands between tags" if "||" in tag else "begins or ends with a blank"
        raise UsageError(
            f"--tag {tag!r} {what} in subscriptions: no consumer could ask for it. A message has one tag; "
            "for more write --property, which a subscription in SQL92 reads"
        )
