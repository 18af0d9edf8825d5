"""The documentation site that `make docs` builds into site/: its search index answers what readers search for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

SITE = Path(__file__).resolve().parents[2] / "site"


@pytest.fixture(scope="module")
def index() -> dict[str, Any]:
    """The search index of the built site."""
    path = SITE / "search" / "search_index.json"
    assert path.exists(), "run `make docs`, which builds the site first"
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def found(index: dict[str, Any], query: str) -> list[str]:
    """Sections that have every word of the query, cut into words and completed at the end as the site's search does."""
    separator = re.compile(index["config"]["separator"])
    return [
        section["location"]
        for section in index["docs"]
        if all(
            any(
                word.startswith(wanted)
                for word in separator.split(f"{section['title']} {section['text']}".lower())
            )
            for wanted in query.split()
        )
    ]


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("dead letter", "retry.html"),
        ("lag", "monitoring.html"),
        ("ack", "acknowledgements.html"),
        ("retry_count_max", "api.html"),
        ("flushdisktype", "operations.html"),
    ],
)
def test_the_search_finds_what_readers_look_for(index: dict[str, Any], query: str, page: str) -> None:
    assert any(location.startswith(page) for location in found(index, query)), found(index, query)[:20]


def test_the_search_does_not_find_what_no_page_has(index: dict[str, Any]) -> None:
    assert found(index, "zookeepers quorumpeer") == []


def test_fields_have_their_descriptions_in_the_reference() -> None:
    page = (SITE / "api.html").read_text(encoding="utf-8")
    assert "Time-out of one send, retries included, in seconds." in page
