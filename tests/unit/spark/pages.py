"""What tests read out of the Spark jobs' pages: elements, texts and figures."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any


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


def figures(text: str) -> list[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """Traces and layout of each figure of the page."""
    found = []
    for call in re.finditer(r'Plotly\.newPlot\(\s*"[^"]+",\s*(?=\[)', text):
        traces, at = json.JSONDecoder().raw_decode(text, call.end())
        layout, _ = json.JSONDecoder().raw_decode(text, text.index("{", at))
        found.append((traces, layout))
    return found
