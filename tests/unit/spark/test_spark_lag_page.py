"""The lag job's page: what is drawn, what is left empty, and that no name becomes markup."""

from __future__ import annotations

import math
from typing import Any
from zoneinfo import ZoneInfo

from aerobee.spark.lag_page import COLUMNS, GROUPS_MAX, LINES_SHOWN, Span, page
from tests.unit.spark.pages import Elements, figures

SPAN = Span(1_700_000_000_000, 1_700_000_096_000)


def row(group: str, **more: Any) -> dict[str, Any]:
    return {"group": group, "state": "OK", "reason": "no lag", "lag": 0, **more}


def test_each_interval_with_a_lag_is_drawn_and_no_other() -> None:
    text = page([row("g")], {"g": {0: 0, 1: 4, 5: 16}}, SPAN)
    ((heat,), heat_layout), ((line,), line_layout) = figures(text)
    assert heat["y"] == ["g"]
    assert heat["customdata"] == [[0, 4, None, None, None, 16] + [None] * (COLUMNS - 6)]
    assert heat["z"][0][:3] == [0, math.log10(5), None]
    assert line["y"] == heat["customdata"][0]
    assert line["connectgaps"] is False
    assert line["x"][0] == "2023-11-14 22:13:20"
    assert "2023-11-14 22:13:20 to 2023-11-14 22:14:56, time zone UTC. ?: not known." in Elements(text).text
    assert SPAN.column_ms * COLUMNS == SPAN.end_ms - SPAN.begin_ms
    for layout in (heat_layout, line_layout):
        assert layout["xaxis"]["title"]["text"] == "time (UTC)"
    assert line_layout["yaxis"]["title"]["text"] == "lag (messages)"


def test_times_are_those_of_the_zone_that_is_named() -> None:
    text = page([row("g")], {"g": {0: 1}}, Span(SPAN.begin_ms, SPAN.end_ms, ZoneInfo("Asia/Tokyo")))
    (_, layout), ((line,), _) = figures(text)
    assert line["x"][0] == "2023-11-15 07:13:20"
    assert layout["xaxis"]["title"]["text"] == "time (Asia/Tokyo)"


def test_a_scale_says_what_a_colour_means() -> None:
    ((heat,), _), _ = figures(page([row("g")], {"g": {0: 1_500}}, SPAN))
    assert heat["colorbar"]["title"]["text"] == "messages"
    assert heat["colorbar"]["ticktext"] == ["0", "1", "10", "100", "1,000"]
    assert heat["colorbar"]["tickvals"][-1] == math.log10(1_001)


def test_names_are_text_and_what_is_not_known_is_no_number() -> None:
    name = "</script><script>alert(1)</script>"
    groups = [row(name, state="UNKNOWN", lag=None, retry=0, dead=0, reason='"&<b>')]
    text = page(groups, {name: {0: 3}}, SPAN)
    drawn = Elements(text)
    assert not drawn.all("b")
    assert name in drawn.text
    assert "?" in drawn.text
    assert "alert(1)</script>" not in text
    ((heat,), _), ((line,), _) = figures(text)
    # plotly reads labels as markup; escaped, it shows them as they are.
    assert heat["y"] == [line["name"]] == ["&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;"]


def test_nothing_is_loaded_from_elsewhere() -> None:
    drawn = Elements(page([row("g")], {"g": {0: 1}}, SPAN))
    assert not [each for each in drawn.all("script") if each.get("src")]
    assert not drawn.all("link")


def test_more_groups_than_fit_are_counted() -> None:
    rows = [row(f"g{number}") for number in range(GROUPS_MAX + 3)]
    text = page(rows, {}, SPAN)
    assert "Not shown: 3 more groups." in Elements(text).text
    _, (lines, _) = figures(text)
    assert len(lines) == GROUPS_MAX
    assert [line["visible"] for line in lines].count(True) == LINES_SHOWN


def test_a_page_without_groups_is_a_page() -> None:
    text = page([], {}, SPAN)
    assert "<title>Lag of 0 groups</title>" in text
    assert not figures(text)
