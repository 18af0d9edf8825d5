import pytest

from aerobee.broker.filter.expressions import EXPRESSIONS_MAX, Expressions
from aerobee.broker.filter.sql92 import FilterSyntaxError
from aerobee.message import tags_code

A, B, C = (tags_code(tag) for tag in "ABC")


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("TAGS = 'A'", {A}),
        ("'A' = TAGS AND a > 1", {A}),
        ("TAGS IN ('A', 'B') AND (a > 1 OR b > 1)", {A, B}),
        ("TAGS IN ('A', 'B') AND TAGS IN ('B', 'C')", {B}),
        ("TAGS = 'A' OR a > 1", None),
        ("TAGS <> 'A'", None),
        ("TAGS NOT IN ('A')", None),
        ("NOT (TAGS = 'A')", None),
        ("TAGS = 1", None),
        ("TAGS IS NULL", None),
        ("a = 'A'", None),
    ],
)
def test_tags_that_an_expression_needs_are_found_by_their_hashes(text, codes):
    assert Expressions().get(text).tag_codes == (None if codes is None else frozenset(codes))


def test_an_expression_is_compiled_once_and_the_table_is_bounded():
    table = Expressions()
    first = table.get("a = 1")
    assert table.get("a = 1") is first
    for number in range(EXPRESSIONS_MAX + 5):
        table.get(f"a = {number + 2}")
        table.get("a = 1")
    assert len(table) == EXPRESSIONS_MAX
    assert table.get("a = 1") is first, "what is in use stays"


def test_a_fault_is_said_again_with_its_column():
    table = Expressions()
    for _ in range(2):
        with pytest.raises(FilterSyntaxError, match="column 4"):
            table.get("a =")
    for number in range(300):
        with pytest.raises(FilterSyntaxError):
            table.get(f"a = = {number}")
    assert len(table) == 0
