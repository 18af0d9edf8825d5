"""The options of `aerobee consume`."""

from __future__ import annotations

from typing import Annotated

import typer

from aerobee.ops.terminal.times import above_zero

From = Annotated[
    str,
    typer.Option(
        "--from",
        help="Where to start: first, last, a time (2026-11-21T10:00:00, 15m for 15 minutes ago), offset:N.",
    ),
]
Tags = Annotated[str, typer.Option("--tags", "-t", help="Only messages with these tags: 'A || B'.")]
SqlFilter = Annotated[
    str | None, typer.Option("--sql", help='Only messages that match this SQL92 expression: "price > 5".')
]
Count = Annotated[int, typer.Option("--count", min=0, help="Number of messages to read; 0: no limit.")]
Follow = Annotated[
    bool, typer.Option("--follow/--no-follow", help="Wait for new messages, or end at the last message.")
]
Group = Annotated[
    str | None, typer.Option("--group", "-g", help="Join this consumer group and commit its offsets.")
]
Queue = Annotated[str | None, typer.Option("--queue", metavar="BROKER/ID", help="Read this queue only.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show queue, offset, tag, keys and time.")]
Pop = Annotated[
    bool, typer.Option("--pop", help="With --group: pop and acknowledge single messages, without rebalance.")
]
Invisible = Annotated[
    float,
    typer.Option(
        "--invisible",
        parser=above_zero,
        metavar="SPAN",
        help="With --pop: time for which a message is hidden from other members.",
    ),
]
Raw = Annotated[
    bool, typer.Option("--raw", help="Write the bodies unchanged, one after the other, without separator.")
]
Form = Annotated[
    str | None,
    typer.Option(
        "--format",
        "-f",
        metavar="FORM",
        help="Output format, as kcat's: %t topic, %p queue, %o offset, %k keys, %g tag, %s body, %S body size, "
        "%T store time, %h properties, %{name} one property, %i id, %b broker; \\n ends a line.",
    ),
]
Trace = Annotated[bool, typer.Option("--trace", help="Record the consumption for `aerobee trace`.")]
