"""`aerobee spark`: jobs that run on Spark. They need the extra `spark` and Java 17; everything else of the command does not."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from aerobee.errors import UsageError
from aerobee.ops.options import NAMESERVER_DEFAULT, NameServers

app = typer.Typer(
    name="spark", help="Jobs on Spark: lag of every group with its history.", no_args_is_help=True
)

History = Annotated[str, typer.Option("--history", metavar="DIRECTORY", help="Where samples are kept.")]
Format = Annotated[str, typer.Option("--format", help="Of the history: parquet, delta, jdbc, ...")]
FormatOptions = Annotated[
    list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="Of the format; may be repeated.")
]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Looks, each with a report.")]
Every = Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two looks.")]
WindowS = Annotated[
    float, typer.Option("--window", min=1, help="Seconds of history that a state is judged by.")
]
Alerts = Annotated[str, typer.Option("--alerts", help="Topic for a message about each queue that is not OK.")]


@app.command("lag")
def lag(
    history: History,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    history_format: Format = "parquet",
    option: FormatOptions = None,
    rounds: Rounds = 1,
    every: Every = 30.0,
    window: WindowS = 120.0,
    alerts: Alerts = "",
) -> None:
    """Sample all groups into a history, and show the worst: state, lag, oldest unread message, rates, time to drain."""
    arguments = ["--nameservers", nameserver, "--history", history, "--format", history_format]
    arguments += [word for each in option or [] for word in ("--option", each)]
    arguments += ["--rounds", str(rounds), "--every", str(every), "--window", str(window), "--alerts", alerts]
    try:
        job = import_module("aerobee.spark.lag_job")
    except ModuleNotFoundError as error:
        raise UsageError(f"this needs {error.name}: pip install 'aerobee[spark]', and Java 17") from error
    raise typer.Exit(job.main(arguments))
