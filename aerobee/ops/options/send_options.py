"""The options of `aerobee send`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aerobee.errors import UsageError
from aerobee.message import AckLevel
from aerobee.ops.terminal.times import above_zero, seconds

Text = Annotated[
    str | None,
    typer.Argument(metavar="[TEXT]", help="Message body; without it, each line of the input is a body."),
]
File = Annotated[
    Path | None, typer.Option("--file", "-f", help="Send each line of this file; - is standard input.")
]
Whole = Annotated[bool, typer.Option("--whole", help="Send the file or standard input as one message.")]
Tag = Annotated[str | None, typer.Option("--tag", "-t", help="Tag of the messages.")]
Keys = Annotated[
    list[str] | None, typer.Option("--keys", "-k", metavar="KEY", help="An index key; may be repeated.")
]
Properties = Annotated[
    list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="A property; may be repeated.")
]
Queue = Annotated[str | None, typer.Option("--queue", metavar="BROKER/ID", help="Send to this queue.")]
MessageGroup = Annotated[
    str | None, typer.Option("--message-group", help="Messages of one group go to the same queue, in order.")
]
DelayLevel = Annotated[
    int,
    typer.Option(
        "--delay-level",
        min=0,
        help="Delay level: 1 to 18, or the levels of the broker's messageDelayLevel; 0: no delay.",
    ),
]
DeliverAfter = Annotated[
    float | None,
    typer.Option(
        "--deliver-after", parser=seconds, metavar="SPAN", help="Delay before delivery: 3s, 15m, 1h30m."
    ),
]
DeliverAt = Annotated[
    str | None,
    typer.Option(
        "--deliver-at",
        metavar="TIME",
        help="Delivery time: 2026-11-21T10:00:00 (UTC), or with an offset: +01:00.",
    ),
]
Priority = Annotated[
    int | None,
    typer.Option("--priority", min=0, help="Priority, equal to the queue id; pops take higher values first."),
]
Ack = Annotated[
    AckLevel | None,
    typer.Option("--ack", help="When the send returns. Default: as the topic or the broker's settings say."),
]
DedupKey = Annotated[
    str | None,
    typer.Option(
        "--dedup-key",
        help="Deduplication key: a broker with dedupWindowMillis stores one message per key; "
        "give --queue or --message-group too.",
    ),
]
Reply = Annotated[
    float | None,
    typer.Option(
        "--reply-within",
        parser=above_zero,
        metavar="SPAN",
        help="Send TEXT as a request and wait this long for a consumer's reply.",
    ),
]
Trace = Annotated[bool, typer.Option("--trace", help="Record the sends for `aerobee trace`.")]
Group = Annotated[str, typer.Option("--group", help="Producer group.")]
InFlight = Annotated[
    int,
    typer.Option(
        "--in-flight",
        min=1,
        max=10_000,
        help="Maximum number of concurrent sends; 1 keeps the order of the lines at RocketMQ's brokers too.",
    ),
]
SkipEmpty = Annotated[
    bool, typer.Option("--skip-empty", help="Skip empty lines; RocketMQ's brokers refuse empty messages.")
]
FromLine = Annotated[int, typer.Option("--from-line", min=1, help="First line to send.")]
RetryFor = Annotated[
    float,
    typer.Option(
        "--retry-for", parser=seconds, metavar="SPAN", help="Time for which a failed line is retried."
    ),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", parser=above_zero, metavar="SPAN", help="Timeout of one send."),
]


def check_tag(tag: str | None) -> None:
    """Raises UsageError for a tag that no subscription can name, for example "a || b", meant as two tags."""
    if tag is not None and ("||" in tag or tag != tag.strip(" ")):
        what = "contains ||, the separator of tags" if "||" in tag else "begins or ends with a space"
        raise UsageError(
            f"--tag {tag!r} {what} in subscriptions: no consumer can subscribe to it. A message has one tag; "
            "for more attributes use --property, which SQL92 subscriptions read"
        )
