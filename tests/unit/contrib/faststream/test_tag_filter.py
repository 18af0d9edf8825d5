"""Tags of subscribers: expressions and templates."""

from __future__ import annotations

import pytest
from faststream.exceptions import SetupError

from aerobee.contrib.faststream.tag_filter import TagFilter


@pytest.mark.parametrize(
    ("text", "tag", "path"),
    [
        ("{country}-{city}", "it-Rome", {"country": "it", "city": "Rome"}),
        ("{country}-{city}", "it-San-Marino", {"country": "it", "city": "San-Marino"}),
        ("v{number}", "v1.2", {"number": "1.2"}),
        ("a.{b}", "axb", None),
        ("{country}-{city}", "it", None),
        ("{all}", None, None),
        ("{all}", "", None),
        ("{a}{b}", "xyz", {"a": "x", "b": "yz"}),
        ("{a}-{b}", "--x", {"a": "-", "b": "x"}),
        ("{a}-{b}!", "x-!", None),
        ("{a}-{b}", "x\n-y", None),
        pytest.param(
            "{a}-{b}-{c}!", "-" * 32_000, None, id="a hostile producer's"
        ),  # a regular expression needs hours
        ("*", None, {}),
        ("a || b", "c", {}),
    ],
)
def test_path_of_a_tag(text: str, tag: str | None, path: dict[str, str] | None) -> None:
    assert TagFilter(text).path(tag) == path


@pytest.mark.parametrize(
    ("text", "expression", "wanted", "unwanted"),
    [
        ("*", "*", "x", None),
        ("a || b", "a || b", "b", "c"),
        ("v{n}", "*", "v1", "w1"),
        ("sql:n > 1", "sql:n > 1", "x", None),
    ],
)
def test_expression_and_tags_that_match(
    text: str, expression: str, wanted: str, unwanted: str | None
) -> None:
    found = TagFilter(text)
    assert found.expression == expression
    assert found.wants(wanted)
    assert unwanted is None or not found.wants(unwanted)


def test_template_is_no_expression() -> None:
    with pytest.raises(SetupError, match="one of both"):
        TagFilter("{a} || b")
    with pytest.raises(SetupError, match="twice"):
        TagFilter("{a}-{a}")
