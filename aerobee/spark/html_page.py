"""Self-contained HTML pages with tables and plotly figures: what the pages of the Spark jobs share. Core.

A page loads nothing from elsewhere: plotly's script is part of it, some 4.5 MB. Every text from a cluster is escaped, also in
the labels of figures, which plotly would read as markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo
from html import escape
from typing import Any

UNKNOWN_TEXT = "?"
_INK = "#7b8794"  # legible on a white and on a dark page
_STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:80rem;padding:0 1rem;color:#1c2530;background:#fff}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;width:100%}.wide{overflow-x:auto}
th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #d8dee6}th.number,td.number{text-align:right;font-variant-numeric:tabular-nums}
.good{color:#19703d}.warning{color:#8a5a00}.unknown{color:#5b6675}.bad{color:#b3261e;font-weight:600}
@media(prefers-color-scheme:dark){body{background:#12171d;color:#dfe6ee}th,td{border-color:#2c3641}.good{color:#6fcf97}
.warning{color:#e0b252}.unknown{color:#9aa7b5}.bad{color:#ff8a80}}
"""
_NUMBER = ' class="number"'
_CONFIG = {"displaylogo": False, "responsive": True}


def html_page(title: str, parts: Sequence[str], *, has_figures: bool) -> str:
    """A whole page. `title` is text, `parts` are HTML."""
    script = ""
    if has_figures:
        from plotly.offline import get_plotlyjs  # 0.2 s to import: only for jobs with --page

        script = f"<script>{get_plotlyjs()}</script>"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>{script}<h1>{escape(title)}</h1>{''.join(parts)}</html>"
    )


def heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; `rows` are made of cell() and number_cell(). The title of a column of numbers stands on the right, as they do."""
    first = rows[0] if rows else [""] * len(titles)
    head = "".join(
        f'<th scope="col"{_NUMBER if _NUMBER in shown else ""}>{escape(title)}</th>'
        for title, shown in zip(titles, first, strict=True)
    )
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def cell(text: str, kind: str = "") -> str:
    """`kind`: a class of the style (good, warning, unknown, bad), or none."""
    return f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"


def number_cell(value: float | None, decimals: int = 0) -> str:
    text = UNKNOWN_TEXT if value is None else f"{value:,.{decimals}f}"
    return f"<td{_NUMBER}>{text}</td>"


def label(text: str) -> str:
    """A text of a figure that plotly shows as it is."""
    return escape(text, quote=False)


def moment(ms: float, zone: tzinfo) -> str:
    """A time as plotly reads it for an axis: local time of the zone, without an offset."""
    return datetime.fromtimestamp(ms / 1000, zone).strftime("%Y-%m-%d %H:%M:%S")


def figure(traces: Sequence[dict[str, Any]], layout: dict[str, Any], *, height_px: int, name: str) -> str:
    """One plotly figure. `traces` and `layout` as plotly.js documents them; `name` is what a screen reader says."""
    from plotly.graph_objects import Figure

    drawn = Figure(data=list(traces), layout=layout)
    drawn.update_layout(
        template="none",
        height=height_px,
        font={"color": _INK, "family": "system-ui,sans-serif"},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": _INK, "activecolor": _INK},
        margin={"l": 70, "r": 20, "t": 34, "b": 60},
    )
    axis = {"gridcolor": "rgba(123,135,148,0.25)", "automargin": True, "title_standoff": 12}
    drawn.update_xaxes(axis)
    drawn.update_yaxes(axis)
    inner = drawn.to_html(full_html=False, include_plotlyjs=False, config=_CONFIG)
    return f'<div role="img" aria-label="{escape(name)}">{inner}</div>'
