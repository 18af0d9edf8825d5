"""The options of `aerobee consume`."""

from __future__ import annotations

from typing import Annotated

import typer

from aerobee.ops.terminal.times import above_zero

From = Annotated[
    str,
    typer.Option(
        "--from", help="first, last, a time (2026-11-21T10:00:00, 15m for 15 minutes ago), offset:N."
    ),
]
Tags = Annotated[str, typer.Option("--tags", "-t", help="Only these tags: 'A || B'.")]
SqlFilter = Annotated[
    str | None, typer.Option("--sql", help='Only what an SQL92 expression takes: "price > 5".')
]
Count = Annotated[int, typer.Option("--count", min=0, help="End after so many messages; 0 never ends.")]
Follow = Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for more, or end at the end.")]
Group = Annotated[str | None, typer.Option("--group", "-g", help="Join this group and commit.")]
Queue = Annotated[str | None, typer.Option("--queue", metavar="BROKER/ID", help="This queue only.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show queue, offset, tag, keys and time.")]
Pop = Annotated[
    bool, typer.Option("--pop", help="With --group: pop and acknowledge, without queues of its own.")
]
Invisible = Annotated[
    float,
    typer.Option(
        "--invisible",
        parser=above_zero,
        metavar="SPAN",
        help="With --pop: hidden from other members so long.",
    ),
]
Raw = Annotated[
    bool, typer.Option("--raw", help="The bodies as they are, one behind the other, nothing added.")
]
Form = Annotated[
    str | None,
    typer.Option(
        "--format",
        "-f",
        metavar="FORM",
        help="As kcat: %t topic, %p queue, %o offset, %k keys, %g tag, %s body, %S its size, %T stored at, "
        "%h properties, %{name} one of them, %i id, %b broker; \\n ends a line.",
    ),
]
Trace = Annotated[bool, typer.Option("--trace", help="Record what is read for `aerobee trace`.")]
