"""The lag job's page: what is drawn, what is left empty, and that no name becomes markup."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from aerobee.spark.lag_page import COLUMNS, GROUPS_MAX, Span, page

SPAN = Span(1_700_000_000_000, 1_700_000_096_000)


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def row(group: str, **more: Any) -> dict[str, Any]:
    return {"group": group, "state": "OK", "reason": "no lag", "lag": 0, **more}


def test_every_column_with_a_lag_is_a_cell_and_no_other():
    drawn = Elements(page([row("g")], {"g": {0: 0, 1: 4, 5: 16}}, SPAN))
    cells = drawn.all("rect")
    assert len(cells) == 3
    fills = [cell["fill"] for cell in cells]
    assert fills == ["hsl(140 65% 78%)", "hsl(70 65% 62%)", "hsl(0 65% 45%)"]
    # 0 and 1 are a line, 5 stands alone: between them nothing is known.
    (line,) = drawn.all("polyline")
    assert len(str(line["points"]).split()) == 2
    assert len(drawn.all("circle")) == 1
    assert "2023-11-14 22:13:20Z to 2023-11-14 22:14:56Z" in drawn.text
    assert SPAN.column_ms * COLUMNS == SPAN.end_ms - SPAN.begin_ms


def test_names_are_text_and_what_is_not_known_is_no_number():
    drawn = Elements(
        page([row("<script>alert(1)</script>", state="UNKNOWN", lag=None, reason='"&<b>')], {}, SPAN)
    )
    assert not drawn.all("script")
    assert not drawn.all("b")
    assert "<script>alert(1)</script>" in drawn.text
    assert "?" in drawn.text
    assert not drawn.all("rect")


def test_more_groups_than_fit_are_counted():
    drawn = Elements(page([row(f"g{number}") for number in range(GROUPS_MAX + 3)], {}, SPAN))
    assert "Not shown: 3 more groups." in drawn.text
    assert len(drawn.all("svg")) == 1 + GROUPS_MAX
