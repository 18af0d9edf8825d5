"""The lag of groups as a self-contained HTML page: a table, a heat map of all groups, a chart of each group. Core.

The page is small for any history: at most GROUPS_MAX groups, each with at most COLUMNS points; a point is the
highest lag of an interval. Intervals without a sample or a reply stay empty, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any

from aerobee.words import plural

GROUPS_MAX = 40
COLUMNS = 96
CELL_PX, ROW_PX, CHART_PX = 9, 16, 120
COLUMNS_SHOWN = (
    ("group", "group"),
    ("state", "state"),
    ("lag", "lag"),
    ("retry", "retry"),
    ("dead", "dead"),
    ("lag_ms", "oldest, s"),
    ("produce_rate", "in/s"),
    ("consume_rate", "out/s"),
    ("drain_s", "drain, s"),
    ("retention_s", "lost in, s"),
    ("reason", "reason"),
)
STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem;color:#1c2530;background:#fff}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #d8dee6}td.number{text-align:right;font-variant-numeric:tabular-nums}
.OK{color:#19703d}.WARN{color:#8a5a00}.UNKNOWN{color:#5b6675}.bad{color:#b3261e;font-weight:600}svg{display:block;max-width:100%}
text{font:11px system-ui,sans-serif;fill:#5b6675}
@media(prefers-color-scheme:dark){body{background:#12171d;color:#dfe6ee}th,td{border-color:#2c3641}.OK{color:#6fcf97}.WARN{color:#e0b252}
.UNKNOWN{color:#9aa7b5}.bad{color:#ff8a80}text{fill:#9aa7b5}}
"""


@dataclass(frozen=True, slots=True)
class Span:
    """Time range of a page in ms since the epoch, from `begin_ms` to `end_ms`."""

    begin_ms: int
    end_ms: int

    @property
    def column_ms(self) -> float:
        """Duration of one column."""
        return max(1.0, (self.end_ms - self.begin_ms) / COLUMNS)


Lags = Mapping[str, Mapping[int, int]]  # group -> column -> highest lag in it


def page(groups: Sequence[Mapping[str, Any]], lags: Lags, span: Span) -> str:
    """The page. `groups`: rows of lag_job.groups_of(), the worst first; groups beyond GROUPS_MAX are only counted."""
    shown = list(groups[:GROUPS_MAX])
    begin, end = _moment(span.begin_ms), _moment(span.end_ms)
    title = f"Lag of {plural(len(groups), 'group')}"
    hidden = len(groups) - len(shown)
    more = f"<p>Not shown: {plural(hidden, 'more group')}.</p>" if hidden else ""
    charts = "".join(
        f"<h2>{escape(str(row['group']))}</h2>{_chart(lags.get(row['group'], {}), str(row['group']))}"
        for row in shown
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}</style>"
        f"<h1>{title}</h1><p>{begin} to {end}</p>{_table(shown)}{more}"
        f"<h2>Heat map</h2><p>Messages that wait; empty where nothing is known.</p>{_heat_map(shown, lags)}{charts}</html>"
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f'<th scope="col">{title}</th>' for _, title in COLUMNS_SHOWN)
    body = "".join(
        f"<tr>{''.join(_cell(name, row.get(name), str(row.get('state'))) for name, _ in COLUMNS_SHOWN)}</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(name: str, value: Any, state: str) -> str:
    if name in ("group", "reason"):
        return f"<td>{escape(str(value))}</td>"
    if name == "state":
        kind = state if state in ("OK", "WARN", "UNKNOWN") else "bad"
        return f'<td class="{kind}">{escape(state)}</td>'
    if value is None:
        return '<td class="number">?</td>'
    return f'<td class="number">{float(value) / (1000 if name == "lag_ms" else 1):,.0f}</td>'


def _heat_map(rows: Sequence[Mapping[str, Any]], lags: Lags) -> str:
    left = 8 * max((len(str(row["group"])) for row in rows), default=0) + 8
    most = max((lag for row in rows for lag in lags.get(row["group"], {}).values()), default=0)
    cells = []
    for number, row in enumerate(rows):
        name = escape(str(row["group"]))
        cells.append(f'<text x="0" y="{number * ROW_PX + 12}">{name}</text>')
        for column, lag in sorted(lags.get(row["group"], {}).items()):
            # The square root keeps a tenth of the highest lag visible.
            share = (lag / most) ** 0.5 if most else 0.0
            cells.append(
                f'<rect x="{left + column * CELL_PX}" y="{number * ROW_PX}" width="{CELL_PX - 1}" height="{ROW_PX - 2}" '
                f'fill="hsl({140 - 140 * share:.0f} 65% {78 - 33 * share:.0f}%)"><title>{name}: {lag:,}</title></rect>'
            )
    return (
        f'<svg role="img" aria-label="Lag of groups over time" width="{left + COLUMNS * CELL_PX}" '
        f'height="{max(1, len(rows)) * ROW_PX}">{"".join(cells)}</svg>'
    )


def _chart(lags: Mapping[int, int], name: str) -> str:
    most = max(lags.values(), default=0)
    width = COLUMNS * CELL_PX

    def height(lag: int) -> float:
        return CHART_PX - (CHART_PX - 16) * (lag / most if most else 0.0)

    parts, line = [], []
    for column in range(COLUMNS + 1):
        if column in lags:
            line.append(f"{column * CELL_PX + CELL_PX / 2:.1f},{height(lags[column]):.1f}")
            continue
        if line:
            parts.append(_line(line))
        line = []
    return (
        f'<svg role="img" aria-label="Lag of {escape(name)} over time, at most {most:,}" width="{width}" height="{CHART_PX + 4}">'
        f'<text x="0" y="11">{most:,}</text><line x1="0" x2="{width}" y1="{CHART_PX}" y2="{CHART_PX}" stroke="#9aa7b5"/>'
        f"{''.join(parts)}</svg>"
    )


def _line(points: list[str]) -> str:
    if len(points) == 1:
        x, y = points[0].split(",")
        return f'<circle cx="{x}" cy="{y}" r="2" fill="#2f6fde"/>'
    return f'<polyline points="{" ".join(points)}" fill="none" stroke="#2f6fde" stroke-width="2"/>'


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
