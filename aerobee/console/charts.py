"""The charts of the pages: which numbers each page shows, over which range, from the console's memory or from Prometheus.

range   point    source
1m      4 s      memory
10m     4 s      memory
1h      20 s     memory
1d      480 s    Prometheus (--prometheus)
30d     14400 s  Prometheus
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aerobee.clock import Clock
from aerobee.console.history import STEP_S, History, Kind, mean
from aerobee.console.prometheus import Prometheus, PrometheusFailed, quoted
from aerobee.errors import UsageError

GAP_S = 150  # a line continues over a gap up to this: in a large cluster a topic is read about every 100 s


@dataclass(frozen=True, slots=True)
class Range:
    """A range of time: `points` points of `step_s` seconds."""

    name: str
    points: int
    step_s: int
    in_memory: bool


RANGES = {
    each.name: each
    for each in (
        Range("1m", 15, STEP_S, in_memory=True),
        Range("10m", 150, STEP_S, in_memory=True),
        Range("1h", 180, 5 * STEP_S, in_memory=True),
        Range("1d", 180, 480, in_memory=False),
        Range("30d", 180, 14_400, in_memory=False),
    )
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart. `promql` has {{}} for the label matchers and $W for the window of rates; "": not in Prometheus."""

    name: str
    metric: str
    promql: str = ""
    of: Callable[[Iterable[float]], float] = max


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: lines of one unit."""

    title: str
    unit: str
    lines: tuple[Line, ...]


def _latency(name: str, quantile: str, kind: str) -> Line:
    buckets = f"sum by (le) (rate(aerobee_{kind}_latency_seconds_bucket{{{{}}}}[$W]))"
    return Line(
        f"{name} p{quantile.removeprefix('0.').ljust(2, '0')}",
        f"{kind}_p{quantile.removeprefix('0.').ljust(2, '0')}",
        f"1000 * histogram_quantile({quantile}, {buckets})",
    )


_IN = Line("In", "in", "sum(rate(rocketmq_messages_in_total{{}}[$W]))", mean)
_OUT = Line("Out", "out", "sum(rate(rocketmq_messages_out_total{{}}[$W]))", mean)
_RATES = Chart("Messages", "/s", (_IN, _OUT))
_LAG = Chart("Lag", "messages", (Line("Lag", "lag", "sum(rocketmq_consumer_lag_messages{{}})"),))
_LAG_TIME = Chart(
    "Lag time", "ms", (Line("Oldest unconsumed message", "late", "max(rocketmq_consumer_lag_latency{{}})"),)
)
_LATENCY = Chart("Latency of sends", "ms", (_latency("Send", "0.5", "put"), _latency("Send", "0.99", "put")))
_READS = Chart("Latency of pulls", "ms", (_latency("Pull", "0.5", "get"), _latency("Pull", "0.99", "get")))
_DISK = Chart("Disk", "%", (Line("Used", "disk", "100 * max(aerobee_disk_used_ratio{{}})"),))
_CONNECTIONS = Chart(
    "Connections",
    "",
    (
        Line("Connections", "connections"),
        Line("Producers", "producers", "sum(rocketmq_producer_connections{{}})"),
        Line("Consumers", "consumers", "sum(rocketmq_consumer_connections{{}})"),
    ),
)
_REPLICATION = Chart(
    "Replication lag", "bytes", (Line("Slowest replica", "behind", "max(aerobee_replica_behind_bytes{{}})"),)
)
CHARTS: Mapping[Kind, tuple[Chart, ...]] = {
    Kind.CLUSTER: (_RATES, _LAG, _LAG_TIME, _LATENCY, _DISK, _CONNECTIONS, _REPLICATION),
    Kind.BROKER: (_RATES, _LATENCY, _READS, _DISK, _CONNECTIONS, _REPLICATION),
    Kind.TOPIC: (_RATES, _LAG, _LAG_TIME),
    Kind.GROUP: (_RATES, _LAG, _LAG_TIME),
}


class Charts:
    """Makes the documents of /api/charts."""

    def __init__(self, history: History, clock: Clock, prometheus: Prometheus | None) -> None:
        self._history = history
        self._clock = clock
        self._prometheus = prometheus

    async def document(
        self, kind: Kind, name: str, range_name: str, clusters: Iterable[str], broker_name: str = ""
    ) -> dict[str, Any]:
        """The charts of the cluster (`name` ""), of a broker (its address), a topic or a group.

        `clusters` are the names by which Prometheus knows this cluster's series, `broker_name` is the name of a broker. A failure of
        Prometheus is in the document. Raises UsageError for an unknown range.
        """
        chosen = RANGES.get(range_name)
        if chosen is None:
            raise UsageError(f"range is {range_name!r}, must be one of {', '.join(RANGES)}")
        end_s = self._clock.now_ms() // 1000 // chosen.step_s * chosen.step_s
        trouble, charts = "", list[dict[str, Any]]()
        if chosen.in_memory:
            charts = [self._remembered(chart, kind, name, chosen, end_s) for chart in CHARTS[kind]]
        elif self._prometheus is None:
            trouble = "ranges above 1h need a Prometheus server: start the console with --prometheus URL"
        else:
            labels = _matchers(kind, name, clusters, broker_name)
            try:
                charts = [
                    await self._queried(self._prometheus, chart, labels, chosen, end_s)
                    for chart in CHARTS[kind]
                ]
            except PrometheusFailed as error:
                trouble = f"Prometheus: {error}"
        return {
            "range": chosen.name,
            "ranges": [
                {"name": each.name, "is_available": each.in_memory or self._prometheus is not None}
                for each in RANGES.values()
            ],
            "step_ms": chosen.step_s * 1000,
            "begin_ms": (end_s - (chosen.points - 1) * chosen.step_s) * 1000,
            "points": chosen.points,
            "gap_ms": max(GAP_S, 2 * chosen.step_s) * 1000,
            "trouble": trouble,
            "charts": [each for each in charts if each["lines"]],
        }

    def _remembered(self, chart: Chart, kind: Kind, name: str, chosen: Range, end_s: int) -> dict[str, Any]:
        values = {
            line.name: self._history.read(
                kind,
                name,
                line.metric,
                end_s,
                slots_per_point=chosen.step_s // STEP_S,
                points=chosen.points,
                of=line.of,
            )
            for line in chart.lines
        }
        return _chart(chart, values)

    async def _queried(
        self, server: Prometheus, chart: Chart, labels: str, chosen: Range, end_s: int
    ) -> dict[str, Any]:
        queries = {
            line.name: line.promql.replace("{{}}", "{" + labels + "}").replace("$W", f"{chosen.step_s}s")
            for line in chart.lines
            if line.promql
        }
        return _chart(chart, await server.ranges(queries, end_s, chosen.step_s, chosen.points))


def _chart(chart: Chart, values: Mapping[str, list[float | None]]) -> dict[str, Any]:
    """The chart with the lines that have a value."""
    lines = [
        {"name": name, "values": [None if each is None else round(each, 4) for each in found]}
        for name, found in values.items()
        if any(each is not None for each in found)
    ]
    return {"title": chart.title, "unit": chart.unit, "lines": lines}


def _matchers(kind: Kind, name: str, clusters: Iterable[str], broker_name: str) -> str:
    """Label matchers of PromQL."""
    matchers = [f"cluster=~{quoted('|'.join(map(re.escape, sorted(set(clusters)))))}"]
    if kind is Kind.BROKER:
        matchers.append(f"node_id={quoted(broker_name)}")
    elif kind is Kind.TOPIC:
        matchers.append(f"topic={quoted(name)}")
    elif kind is Kind.GROUP:
        matchers.append(f"consumer_group={quoted(name)}")
    return ",".join(matchers)
