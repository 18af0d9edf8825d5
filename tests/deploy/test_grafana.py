"""The dashboards through Grafana's own Prometheus data source, with a real Prometheus and a cluster at work: every query of every
panel has numbers to draw and legends that differ, with each variable as Grafana asks for its values and fills them in.

`make grafana` runs this; the data source is built the first time (scripts/setup-grafana). Grafana's server and pages are not in it.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

from aerobee.spark.lag_metrics import metrics_text
from tests.deploy.grafana import DEPLOY, Series, Source, data_source, filled
from tests.integration.dashboards import ABSENT, WAIT_S, boards
from tests.integration.prometheus import LAG_JOB_ROW, client_metrics, prometheus, serving, world

ALL = "$__all"


async def test_every_panel_has_something_to_draw() -> None:
    others = metrics_text([LAG_JOB_ROW], round(time.time() * 1000)) + client_metrics()
    async with (
        serving(others) as others_address,
        world() as running,
        prometheus({**running.targets, "others": others_address}, DEPLOY / "prometheus") as address,
        data_source(address) as source,
    ):
        deadline = time.monotonic() + WAIT_S
        while faults := [fault for board in boards() for fault in await faults_of(board, source)]:
            assert time.monotonic() < deadline, "\n".join(faults)
            await asyncio.sleep(1)


async def faults_of(board: dict[str, Any], source: Source) -> list[str]:
    """What a person would miss on this dashboard as it opens, and with every value of its variables picked by hand."""
    opened: dict[str, str | list[str]] = {}
    picked: dict[str, str | list[str]] = {}
    faults = []
    for variable in board["templating"]["list"]:
        if variable["type"] == "datasource":
            continue
        name = variable["name"]
        values = await source.values(filled(variable["query"]["query"], opened))
        if not values:
            faults.append(f"{board['title']}: nothing to choose for ${name}")
        first = values[0] if values else ""
        if variable["multi"]:
            assert variable["current"]["value"] == ALL
            opened[name], picked[name] = variable["allValue"], values
        else:
            opened[name] = picked[name] = first
    for variables in (opened, picked):
        for panel in board["panels"]:
            targets = [{**each, "expr": filled(each["expr"], variables)} for each in panel["targets"]]
            drawn = await source.series(targets)
            faults += [
                f"{board['title']}: {panel['title']}: {fault}" for fault in panel_faults(targets, drawn)
            ]
    return faults


def panel_faults(targets: list[dict[str, Any]], drawn: dict[str, list[Series]]) -> list[str]:
    faults = []
    for target in targets:
        if any(name in target["expr"] for name in ABSENT):
            continue
        if not any(math.isfinite(number) for series in drawn[target["refId"]] for number in series.numbers):
            faults.append(f"nothing to draw: {target['expr']}")
    legends = [series.legend for each in drawn.values() for series in each]
    faults += [
        f"{legends.count(legend)} lines are called {legend!r}"
        for legend in sorted(set(legends))
        if legends.count(legend) > 1
    ]
    return faults
