"""`aerobee spark`: jobs that run on Spark. They need the extra `spark` and Java 17; no other command does."""

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
    help="Spark jobs: lag of every consumer group with its history, queue placement plans.",
    no_args_is_help=True,
)

History = Annotated[str, typer.Option("--history", metavar="DIRECTORY", help="Directory of the lag history.")]
Format = Annotated[
    str, typer.Option("--format", help="Format of the history: parquet, delta, jdbc, ... (default parquet).")
]
FormatOptions = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Option of the format; may be repeated."),
]
Every = Annotated[float, typer.Option("--every", min=0.1, help="Interval between two samples in seconds.")]
WindowS = Annotated[
    float, typer.Option("--window", min=1, help="Seconds of history that determine a group's state.")
]
Rounds = Annotated[
    int,
    typer.Option("--rounds", min=0, help="Number of samples, each with a report; 0: until interrupted."),
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
PlanFile = Annotated[str, typer.Option("--plan", metavar="FILE", help="Write the plan to this file.")]
Samples = Annotated[
    int,
    typer.Option(
        "--sample", min=0, help="Number of samples to take before planning; 0: use only the history."
    ),
]
BrokersFile = Annotated[
    str, typer.Option("--brokers", metavar="FILE", help="JSON file with zones and capacities of brokers.")
]
Ordered = Annotated[
    list[str] | None,
    typer.Option("--ordered", metavar="TOPIC", help="A topic with ordered messages; may be repeated."),
]
MoveOrdered = Annotated[
    bool, typer.Option("--move-ordered", help="Include topics whose message keys choose the queue.")
]
Horizon = Annotated[
    float,
    typer.Option(
        "--horizon", min=0, metavar="DAYS", help="Plan for the load expected in this number of days."
    ),
]
Page = Annotated[
    str,
    typer.Option(
        "--page", metavar="FILE", help="Write an HTML page with a heat map and a chart of each group."
    ),
]
PageHours = Annotated[
    float, typer.Option("--page-hours", min=0.01, help="Hours of history that the page shows.")
]
PlanPage = Annotated[
    str,
    typer.Option(
        "--page", metavar="FILE", help="Write an HTML page with the loads before and after, and the changes."
    ),
]
PageZone = Annotated[
    str, typer.Option("--page-zone", metavar="ZONE", help="Time zone of the page, such as Europe/Berlin.")
]
Metrics = Annotated[
    str,
    typer.Option(
        "--metrics",
        metavar="FILE",
        help="Write a .prom file for the textfile collector of Prometheus's node_exporter.",
    ),
]
Alerts = Annotated[
    str, typer.Option("--alerts", help="Send a message for each queue that is not OK to this topic.")
]


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
    page_zone: PageZone = "UTC",
    metrics: Metrics = "",
    alerts: Alerts = "",
) -> None:
    """Sample all groups into a history, and show those with the highest lag: state, lag, lag time, rates, time to drain."""
    arguments = ["--nameservers", nameserver, "--history", history, "--format", history_format]
    arguments += [word for each in option or [] for word in ("--option", each)]
    arguments += ["--rounds", str(rounds), "--every", str(every), "--window", str(window), "--alerts", alerts]
    arguments += ["--page", page, "--page-hours", str(page_hours), "--page-zone", page_zone]
    arguments += ["--metrics", metrics]
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
    page: PlanPage = "",
    page_zone: PageZone = "UTC",
) -> None:
    """Plan the placement of queues from the history of their load; `aerobee placement apply` executes the plan."""
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
    arguments += ["--page", page, "--page-zone", page_zone]
    raise typer.Exit(_job("placement_job").main(arguments))


def _job(name: str) -> ModuleType:
    try:
        return import_module(f"aerobee.spark.{name}")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{error.name} is not installed: run pip install 'aerobee[spark]', and install Java 17"
        ) from error
