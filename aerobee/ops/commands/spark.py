"""`aerobee spark`: jobs that run on Spark. They need the extra `spark` and Java 17; everything else of the command does not."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Annotated

import typer

from aerobee.errors import UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.ops.options.options import NameServers

app = typer.Typer(
    name="spark",
    help="Jobs on Spark: lag of every group with its history, plans for where queues lie.",
    no_args_is_help=True,
)

History = Annotated[str, typer.Option("--history", metavar="DIRECTORY", help="Where samples are kept.")]
Format = Annotated[str, typer.Option("--format", help="Of the history: parquet, delta, jdbc, ...")]
FormatOptions = Annotated[
    list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="Of the format; may be repeated.")
]
Every = Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two looks.")]
WindowS = Annotated[
    float, typer.Option("--window", min=1, help="Seconds of history that a state is judged by.")
]
Rounds = Annotated[
    int, typer.Option("--rounds", min=0, help="Looks, each with a report; 0: until it is stopped.")
]
Keep = Annotated[
    float,
    typer.Option(
        "--keep",
        min=0,
        metavar="HOURS",
        help="Delete older samples of a parquet history in a directory of this machine; 0: keep all.",
    ),
]
PlanFile = Annotated[str, typer.Option("--plan", metavar="FILE", help="Where the plan goes.")]
Samples = Annotated[
    int,
    typer.Option("--sample", min=0, help="Looks at the cluster before planning; 0: by the history alone."),
]
BrokersFile = Annotated[
    str, typer.Option("--brokers", metavar="FILE", help="JSON: zone and capacities of brokers.")
]
Ordered = Annotated[
    list[str] | None,
    typer.Option("--ordered", metavar="TOPIC", help="Order is promised in it; again for more."),
]
MoveOrdered = Annotated[
    bool, typer.Option("--move-ordered", help="Topics whose keys choose the queue take part.")
]
Horizon = Annotated[
    float, typer.Option("--horizon", min=0, metavar="DAYS", help="Plan for the load in so many days.")
]
Page = Annotated[
    str,
    typer.Option("--page", metavar="FILE", help="An HTML page with a heat map and a chart of each group."),
]
PageHours = Annotated[
    float, typer.Option("--page-hours", min=0.01, help="How much of the history the page shows.")
]
Metrics = Annotated[
    str,
    typer.Option(
        "--metrics",
        metavar="FILE",
        help="A .prom file for Prometheus, by node_exporter's textfile collector.",
    ),
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
    keep: Keep = 0.0,
    window: WindowS = 120.0,
    page: Page = "",
    page_hours: PageHours = 6.0,
    metrics: Metrics = "",
    alerts: Alerts = "",
) -> None:
    """Sample all groups into a history, and show the worst: state, lag, oldest unread message, rates, time to drain."""
    arguments = ["--nameservers", nameserver, "--history", history, "--format", history_format]
    arguments += [word for each in option or [] for word in ("--option", each)]
    arguments += ["--rounds", str(rounds), "--every", str(every), "--window", str(window), "--alerts", alerts]
    arguments += ["--page", page, "--page-hours", str(page_hours), "--metrics", metrics]
    arguments += ["--keep", str(keep)]
    raise typer.Exit(_job("lag_job").main(arguments))


@app.command("placement")
def placement(
    history: History,
    plan: PlanFile,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    history_format: Format = "parquet",
    option: FormatOptions = None,
    sample: Samples = 0,
    every: Every = 30.0,
    brokers: BrokersFile = "",
    ordered: Ordered = None,
    move_ordered: MoveOrdered = False,
    horizon: Horizon = 0.0,
) -> None:
    """Plan where queues should lie, by the history of their load; `aerobee placement apply` carries the plan out."""
    arguments = [
        "--nameservers",
        nameserver,
        "--history",
        history,
        "--format",
        history_format,
        "--plan",
        plan,
    ]
    arguments += [word for each in option or [] for word in ("--option", each)]
    arguments += [word for each in ordered or [] for word in ("--ordered", each)]
    arguments += [
        "--sample",
        str(sample),
        "--every",
        str(every),
        "--brokers",
        brokers,
        "--horizon",
        str(horizon),
    ]
    arguments += ["--move-ordered"] if move_ordered else []
    raise typer.Exit(_job("placement_job").main(arguments))


def _job(name: str) -> ModuleType:
    try:
        return import_module(f"aerobee.spark.{name}")
    except ModuleNotFoundError as error:
        raise UsageError(f"this needs {error.name}: pip install 'aerobee[spark]', and Java 17") from error
