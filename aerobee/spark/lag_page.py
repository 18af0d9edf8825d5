"""The lag of groups as a self-contained HTML page: a table, a heat map of all groups, their lag over time. Core.

The page has a bounded size for any history: at most GROUPS_MAX groups, each with at most COLUMNS points; a point is the
highest lag of an interval. Intervals without a sample or a reply stay empty, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any

from aerobee.spark.html_page import (
    cell,
    figure,
    heading,
    html_page,
    label,
    moment,
    number_cell,
    paragraph,
    table,
)
from aerobee.words import plural

GROUPS_MAX = 40
COLUMNS = 96
LINES_SHOWN = 8  # of the worst groups; the legend switches the others on
ROW_PX, HEAT_MAP_PX, CHART_PX = 18, 140, 420
COLUMNS_SHOWN = (
    ("group", "group"),
    ("state", "state"),
    ("lag", "lag (messages)"),
    ("retry", "retries"),
    ("dead", "dead letters"),
    ("lag_ms", "lag time (s)"),
    ("produce_rate", "in (messages/s)"),
    ("consume_rate", "out (messages/s)"),
    ("drain_s", "time to drain (s)"),
    ("retention_s", "retention left (s)"),
    ("reason", "reason"),
)
_KINDS = {"OK": "good", "WARN": "warning", "UNKNOWN": "unknown"}
_SCALE = [[0.0, "#d9ead3"], [0.5, "#f6c343"], [1.0, "#b3261e"]]


@dataclass(frozen=True, slots=True)
class Span:
    """Time range of a page in ms since the epoch, from `begin_ms` to `end_ms`, shown in a time zone."""

    begin_ms: int
    end_ms: int
    zone: tzinfo = UTC

    @property
    def column_ms(self) -> float:
        """Duration of one column."""
        return max(1.0, (self.end_ms - self.begin_ms) / COLUMNS)

    def middle(self, column: int) -> str:
        """The middle of a column, for an axis."""
        return moment(self.begin_ms + (column + 0.5) * self.column_ms, self.zone)


Lags = Mapping[str, Mapping[int, int]]  # group -> column -> highest lag in it


def page(groups: Sequence[Mapping[str, Any]], lags: Lags, span: Span) -> str:
    """The page. `groups`: rows of lag_job.groups_of(), the worst first; groups beyond GROUPS_MAX are only counted."""
    shown = list(groups[:GROUPS_MAX])
    names = [str(row["group"]) for row in shown]
    hidden = len(groups) - len(shown)
    parts = [
        paragraph(
            f"{moment(span.begin_ms, span.zone)} to {moment(span.end_ms, span.zone)}, time zone {span.zone}. ?: not known."
        ),
        table([title for _, title in COLUMNS_SHOWN], [_row(row) for row in shown]),
    ]
    if hidden:
        parts.append(paragraph(f"Not shown: {plural(hidden, 'more group')}."))
    if names:
        parts += [
            heading("Heat map"),
            paragraph("Highest lag of each interval; empty where it is not known."),
            _heat_map(names, lags, span),
            heading("Lag over time"),
            paragraph(
                f"The {LINES_SHOWN} worst groups; click a name in the legend to show or to hide its group."
            ),
            _chart(names, lags, span),
        ]
    return html_page(f"Lag of {plural(len(groups), 'group')}", parts, has_figures=bool(names))


def _row(row: Mapping[str, Any]) -> list[str]:
    cells = []
    for name, _ in COLUMNS_SHOWN:
        value = row.get(name)
        if name in ("group", "reason"):
            cells.append(cell(str(value)))
        elif name == "state":
            cells.append(cell(str(value), _KINDS.get(str(value), "bad")))
        else:
            seconds = value / 1000 if name == "lag_ms" and value is not None else value
            cells.append(number_cell(seconds, 1 if name.endswith("rate") else 0))
    return cells


def _heat_map(names: Sequence[str], lags: Lags, span: Span) -> str:
    """Colours by the logarithm: a lag of ten stays visible when another group has a million."""
    known = [[lags.get(name, {}).get(column) for column in range(COLUMNS)] for name in names]
    most = max((lag for row in known for lag in row if lag is not None), default=0)
    ticks = [0, *(10**power for power in range(1 + int(math.log10(max(1, most)))))]
    heat = {
        "type": "heatmap",
        "x": [span.middle(column) for column in range(COLUMNS)],
        "y": [label(name) for name in names],
        "z": [[None if lag is None else math.log10(lag + 1) for lag in row] for row in known],
        "zmin": 0,
        "zmax": max(1.0, math.log10(most + 1)),
        "customdata": known,
        "hoverongaps": False,
        "hovertemplate": "%{y}<br>%{x}<br>lag %{customdata:,} messages<extra></extra>",
        "colorscale": _SCALE,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {
            "title": {"text": "messages"},
            "tickvals": [math.log10(tick + 1) for tick in ticks],
            "ticktext": [f"{tick:,}" for tick in ticks],
        },
    }
    layout = {
        "xaxis": _time_axis(span),
        "yaxis": {"title": {"text": "group"}, "autorange": "reversed", "type": "category"},
    }
    height_px = HEAT_MAP_PX + ROW_PX * len(names)
    return figure([heat], layout, height_px=height_px, name="Lag of each group over time, by colour")


def _chart(names: Sequence[str], lags: Lags, span: Span) -> str:
    lines = []
    for number, name in enumerate(names):
        of_group = lags.get(name, {})
        lines.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "marker": {"size": 4},
                "name": label(name),
                "x": [span.middle(column) for column in range(COLUMNS)],
                "y": [of_group.get(column) for column in range(COLUMNS)],
                "connectgaps": False,
                "hovertemplate": "%{x}<br>lag %{y:,} messages",
                "visible": True if number < LINES_SHOWN else "legendonly",
            }
        )
    layout = {
        "xaxis": _time_axis(span),
        "yaxis": {"title": {"text": "lag (messages)"}, "rangemode": "tozero"},
        "showlegend": True,
    }
    return figure(lines, layout, height_px=CHART_PX, name="Lag of the groups over time, one line for each")


def _time_axis(span: Span) -> dict[str, Any]:
    begin, end = moment(span.begin_ms, span.zone), moment(span.end_ms, span.zone)
    return {"title": {"text": f"time ({span.zone})"}, "type": "date", "range": [begin, end]}
