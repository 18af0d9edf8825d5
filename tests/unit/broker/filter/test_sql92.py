import os
import random
import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee.broker.filter.sql92 import DEPTH_MAX, FilterSyntaxError, compile_filter
from tests.fuzz import sql92_against_sqlite as fuzz
from tests.rounds import rounds
from tests.unit.broker.filter.rows import ROW


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a = 3", True),
        ("a <> 3", False),
        ("a > 2 AND a < 4", True),
        ("b > 2", False),  # "2.5" is no integer, and an integer literal asks for one
        ("b > 2.0", True),
        ("a >= 3.0", True),
        ("a BETWEEN 1 AND 3", True),
        ("a NOT BETWEEN 1 AND 3", False),
        ("color = 'red'", True),
        ("color IN ('blue', 'red')", True),
        ("color NOT IN ('blue')", True),
        ("missing IN ('x')", False),
        ("NOT (missing IN ('x'))", False),
        ("missing <> 'x'", False),
        ("missing IS NULL", True),
        ("color IS NOT NULL", True),
        ("flag = TRUE", True),
        ("flag = FALSE", False),
        ("TRUE", True),
        ("NULL", False),
        ("color", False),
        ("color CONTAINS 'e'", True),
        ("color NOT CONTAINS 'e'", False),
        ("color CONTAINS ''", False),
        ("color NOT CONTAINS ''", False),
        ("color STARTSWITH 're'", True),
        ("color ENDSWITH 'ed'", True),
        ("a CONTAINS 3", False),
        ("missing IS NULL OR a = 9", True),
        ("missing = 1 OR a = 3", True),
        ("missing = 1 AND a = 3", False),
        ("not a = 4", False),  # NOT binds to the property: NOT a is FALSE, compared with 4
        ("NOT (a = 4)", True),
        ("a = 3 -- the rest", True),
        ("a /* three */ = 3", True),
        ("a = +3", True),
        ("a > -1", True),
        ("a = 3L", True),
        ("'it''s' = 'it''s'", True),
        ("a < b", False),
        ("b < a", True),
        ("a > 0.0", True),
    ],
)
def test_expression_matches_as_the_reference_says(expression, expected):
    assert compile_filter(expression).matches(ROW) is expected


@pytest.mark.parametrize(
    ("expression", "column"),
    [
        ("", 1),
        ("a =", 4),
        ("a = 'open", 5),
        ("a ~ 3", 3),
        ("a BETWEEN 5 AND 1", 11),
        ("a BETWEEN 'x' AND 'y'", 11),
        ("3 IN ('a')", 1),
        ("a IN (1)", 7),
        ("a IN ()", 7),
        ("a > 'x'", 5),
        ("a > TRUE", 5),
        ("a = 3 b", 7),
        ("(a = 3", 7),
        ("3", 1),
        ("a = 1 AND 2", 11),
        ("-a = 3", 1),
        ("a = 99999999999999999999", 5),
        ("a = 1.5L", 5),
        ("a IS 3", 6),
        ("(" * (DEPTH_MAX + 1) + "a = 1", DEPTH_MAX + 2),
    ],
)
def test_fault_is_reported_with_its_column(expression, column):
    with pytest.raises(FilterSyntaxError) as caught:
        compile_filter(expression)
    assert caught.value.column == column


def test_long_chains_are_evaluated_without_nesting():
    chain = " OR ".join(f"a = {n}" for n in range(4000))
    assert compile_filter(chain).matches({"a": "3999"})


def test_names_of_properties_are_collected():
    assert compile_filter("a = 1 AND (b IS NULL OR color IN ('x'))").properties == {"a", "b", "color"}


# Where SQLite and RocketMQ agree: integer columns against integer literals, texts with = and <>, and the logic.
_numbers = st.integers(-5, 5)
_texts = st.sampled_from(["x", "y", "z z", "it's"])
_quoted = _texts.map(lambda text: "'" + text.replace("'", "''") + "'")
_leaf = st.one_of(
    st.builds(
        "{} {} {}".format,
        st.sampled_from("ijk"),
        st.sampled_from(["=", "<>", "<", "<=", ">", ">="]),
        _numbers,
    ),
    st.builds("{} {} {}".format, st.sampled_from("st"), st.sampled_from(["=", "<>"]), _quoted),
    st.builds("{} IS {}NULL".format, st.sampled_from("ijkst"), st.sampled_from(["", "NOT "])),
    st.builds(
        "{} {}IN ({})".format,
        st.sampled_from("st"),
        st.sampled_from(["", "NOT "]),
        st.lists(_quoted, min_size=1, max_size=3).map(", ".join),
    ),
    st.tuples(st.sampled_from("ijk"), st.sampled_from(["", "NOT "]), _numbers, _numbers).map(
        lambda t: f"{t[0]} {t[1]}BETWEEN {min(t[2:])} AND {max(t[2:])}"
    ),
)
expressions = st.recursive(
    _leaf,
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=8,
)
rows = st.fixed_dictionaries(
    {},
    optional={**dict.fromkeys("ijk", _numbers), **dict.fromkeys("st", _texts)},
)


@pytest.fixture(scope="module")
def sqlite():
    connection = sqlite3.connect(":memory:")
    yield connection
    connection.close()


@settings(max_examples=rounds(500), deadline=None)
@given(expression=expressions, row=rows)
def test_expression_agrees_with_sqlite(sqlite, expression, row):
    columns = ", ".join(f":{name} AS {name}" for name in "ijkst")
    values = {name: row.get(name) for name in "ijkst"}
    (expected,) = sqlite.execute(f"SELECT ({expression}) FROM (SELECT {columns})", values).fetchone()
    properties = {name: str(value) for name, value in row.items()}
    assert compile_filter(expression).matches(properties) is (expected == 1)


def test_filters_agree_with_sqlite_on_random_expressions():
    """A short run; `python tests/fuzz/sql92_against_sqlite.py` is the full one, of a million rows."""
    seed = random.randrange(1 << 32)
    assert (
        fuzz.run(int(os.environ.get("AEROBEE_FUZZ_ROWS") or rounds(4000)), seed) > 0
    )  # a disagreement names the seed


def test_numbers_of_any_count_of_digits_are_read_or_are_none() -> None:
    many = "9" * 5000  # more than int() takes
    matches = compile_filter("n = 7").matches
    for text, expected in ((many, False), ("-" + many, False), ("0" * 5000 + "7", True), ("-7", False)):
        assert matches({"n": text}) is expected
    assert compile_filter("n > -9223372036854775808").matches({"n": "-9223372036854775807"}) is True
    with pytest.raises(FilterSyntaxError, match="does not fit 64 bits"):
        compile_filter(f"n = {many}")
    assert compile_filter(f"n = {'0' * 5000}7").matches({"n": "7"}) is True
